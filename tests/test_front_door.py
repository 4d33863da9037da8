"""`import mem1`: every name resolves, and importing is quick and light."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import mem1


@pytest.mark.parametrize("name", mem1.__all__)
def test_every_name_of_the_front_door_resolves(name: str):
    assert getattr(mem1, name) is not None and name in dir(mem1)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        mem1.trian  # noqa: B018


def test_importing_takes_a_fifth_of_a_second_more_than_python_and_loads_no_room():
    def seconds(code: str) -> float:
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - began

    loaded = "import mem1, sys; sys.exit(any(m.startswith('mem1.') or m == 'torch' for m in sys.modules))"
    assert min(seconds(loaded) - seconds("pass") for _ in range(3)) < 0.2
