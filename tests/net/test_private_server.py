"""Which addresses only this machine can connect to; what a server with a token refuses is in test_policy_server.py."""

from __future__ import annotations

import pytest

from mem1.errors import UserError
from mem1.net.private_server import check_private, is_loopback


def test_which_addresses_are_this_machines_own():
    assert all(map(is_loopback, ("127.0.0.1", "127.8.0.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.example.org")))


def test_others_may_ask_only_with_a_token():
    check_private("0.0.0.0", "sesame")
    check_private("127.0.0.1", None)
    with pytest.raises(UserError, match=r"needs a token.*--token-env"):
        check_private("0.0.0.0", None)
