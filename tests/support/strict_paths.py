"""The strict refusal of the API that a path belongs to: what every scripted server asks before it answers.

refusal_of("/v1/messages", body)    strict_anthropic.refusal(body)
refusal_of("/v1/models", None)      None: nothing that has messages
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import strict_anthropic
import strict_chat
import strict_responses
from server_replies import Reply

Refuses = Callable[[str, Any], Reply | None]
"""(path, body of the request) -> the refusal; None: it is taken."""
_REFUSALS: Mapping[str, Callable[[Any], Reply | None]] = {
    "/chat/completions": lambda body: strict_chat.refusal(body, unknown=True),
    "/responses": strict_responses.refusal,
    "/v1/messages": strict_anthropic.refusal,
}


def refusal_of(path: str, body: Any) -> Reply | None:
    """The refusal of a request to this path; None: it is taken."""
    for end, refusal in _REFUSALS.items():
        if path.partition("?")[0].endswith(end):
            return refusal(body)
    return None
