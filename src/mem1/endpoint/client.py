"""How an agent acts in the environment of its task, from any process.

act(base_url, "search", "capital of Norway")        ->  "Doc 1 (Title: Oslo) Oslo is the capital of Norway."
act(base_url, "act", "click[buy now]").ended        ->  True
"""

from __future__ import annotations

import json
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from mem1.errors import UserError

_WAIT_S = 600.0
_DIRECT = build_opener(ProxyHandler({}))


class ActionFailed(UserError):
    """The environment did not carry the action out; the message says why."""


class Reply(str):
    """The text of an environment's reply."""

    ended: bool
    """True: the episode is over, and no more actions are taken."""

    def __new__(cls, text: str, ended: bool = False) -> Reply:
        made = super().__new__(cls, text)
        made.ended = ended
        return made


def act(base_url: str, kind: str, argument: str) -> Reply:
    """The environment's reply to an action, such as "search". Raises ActionFailed.

    `base_url`: the address that the agent was given. Where actions make the answer, those of an attempt are carried out
    one after the other; one after the end of the episode fails, and changes no score. An attempt whose environment
    failed is not scored, whatever the agent makes of the exception.
    """
    body = json.dumps({"kind": kind, "argument": argument}).encode()
    request = Request(f"{base_url.rstrip('/')}/act", body, {"content-type": "application/json"})
    try:
        with _DIRECT.open(request, timeout=_WAIT_S) as answer:
            return Reply(**json.load(answer))
    except HTTPError as error:
        raise ActionFailed(_why(error)) from error
    except OSError as error:
        raise ActionFailed(f"{base_url} does not answer: {error}") from error


def _why(error: HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, LookupError, TypeError, OSError):
        return f"the endpoint answered with status {error.code}"
