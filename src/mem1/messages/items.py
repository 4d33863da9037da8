"""Items of OpenAI's Responses API: which item answers which call, and where its content is.

    function_call      function_call_output       output: text or parts
    computer_call      computer_call_output       output: {"type": "computer_screenshot", "image_url": ...}
    shell_call         shell_call_output          output: [{"stdout": ..., "stderr": ..., "outcome": ...}, ...]

As the types of OpenAI's library 3.57 have them (types/responses/response_input_item_param.py). Calls of later versions,
which no line here names, are kept whole: their output stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mem1.messages.transcript import MAPPING, NO_RESULT, Call, Content, Message, images, is_image, texts

_TEXTS = frozenset(("input_text", "output_text", "text"))
_PARTS = _TEXTS | {"input_image", "input_file", "image_url", "file"}
_ABSENT = "[screenshot dropped]"
BLANK = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAAEklEQVR42mP4DwUMo4xRBukMAOPT/hAC2mzjAAAAAElF"
    "TkSuQmCC"
)
"""A white picture of 64 x 64 points in the place of a screenshot. The API takes no text there ("Invalid
'input[6].output.image_url'"), and a call cannot go alone, as the reasoning before it has to be followed by it."""


def _output(item: Message) -> Content:
    """Text or parts; of another shape, its JSON."""
    output = item.get("output")
    return output if output is None or _is_content(output) else _json_of(output)


def _is_content(output: Any) -> bool:
    if isinstance(output, str):
        return True
    return isinstance(output, list | tuple) and all(
        isinstance(part, MAPPING) and part.get("type") in _PARTS for part in output
    )


def _with_output(item: Message, content: Content) -> Message:
    output = item.get("output")
    return {**item, "output": content} if output is None or _is_content(output) else item


def _with_text(item: Message, content: Content) -> Message:
    return {**item, "output": texts(content)}


def _printed(item: Message) -> Content:
    """What a shell printed."""
    chunks = [chunk for chunk in item.get("output") or () if isinstance(chunk, MAPPING)]
    return "\n".join([text for chunk in chunks for key in ("stdout", "stderr") if (text := chunk.get(key))])


def _with_printed(item: Message, content: Content) -> Message:
    chunks = item.get("output") or ()
    ended = chunks[-1].get("outcome") if chunks and isinstance(chunks[-1], MAPPING) else None
    return {**item, "output": [_chunk(texts(content), "", ended or {"type": "exit", "exit_code": 0})]}


def _chunk(stdout: str, stderr: str, outcome: Mapping[str, Any]) -> Message:
    return {"stdout": stdout, "stderr": stderr, "outcome": outcome}


def _screenshot(item: Message) -> Content:
    """The picture as a part that the output of a function can have, too."""
    output = item.get("output")
    if not isinstance(output, MAPPING):
        return _ABSENT
    if output.get("image_url") == BLANK:
        return _ABSENT
    return [{"type": "input_image", **{key: value for key, value in output.items() if key != "type"}}]


def _with_screenshot(item: Message, content: Content) -> Message:
    if images(content):
        assert content is not None and not isinstance(content, str)
        shown = next({**part, "type": "computer_screenshot"} for part in content if is_image(part))
    else:
        shown = {"type": "computer_screenshot", "image_url": BLANK}
    return {**item, "output": shown}


def _declared(item: Message) -> Content:
    return _json_of(item.get("tools"))


def _decision(item: Message) -> Content:
    return _json_of({key: item.get(key) for key in ("approve", "reason") if key in item})


def _same(item: Message, content: Content) -> Message:
    """What has no shorter shape stays: an approval, definitions of tools."""
    return item


def _json_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A call that the client answers."""

    answer: str
    """Type of the item that answers it."""
    id: str = "call_id"
    """Key of the call's id."""
    answers: str = "call_id"
    """Key of the same id in the answer."""
    content: Callable[[Message], Content] = _output
    with_content: Callable[[Message, Content], Message] = _with_output
    unanswered: Mapping[str, Any] | None = None
    """What the answer has beside its type and id where nobody answered; None: the call is taken back, as no answer
    can be made up."""


KINDS: Mapping[str, Kind] = {
    "function_call": Kind(answer="function_call_output", unanswered={"output": NO_RESULT}),
    "custom_tool_call": Kind(answer="custom_tool_call_output", unanswered={"output": NO_RESULT}),
    "local_shell_call": Kind(
        # its id is that of the call; there is no call_id
        answer="local_shell_call_output",
        answers="id",
        with_content=_with_text,
        unanswered={"output": NO_RESULT},
    ),
    "shell_call": Kind(
        answer="shell_call_output",
        content=_printed,
        with_content=_with_printed,
        unanswered={"output": [_chunk("", NO_RESULT, {"type": "exit", "exit_code": 1})]},
    ),
    "apply_patch_call": Kind(
        answer="apply_patch_call_output",
        with_content=_with_text,
        unanswered={"status": "failed", "output": NO_RESULT},
    ),
    # an answer would have to acknowledge its safety checks, and show a screen
    "computer_call": Kind(answer="computer_call_output", content=_screenshot, with_content=_with_screenshot),
    "tool_search_call": Kind(
        answer="tool_search_output",
        content=_declared,
        with_content=_same,
        unanswered={"execution": "client", "status": "completed", "tools": []},
    ),
    "mcp_approval_request": Kind(
        answer="mcp_approval_response",
        id="id",
        answers="approval_request_id",
        content=_decision,
        with_content=_same,
        unanswered={"approve": False, "reason": NO_RESULT},
    ),
}
_ANSWERS = {kind.answer: kind for kind in KINDS.values()}
_CALL, _OUTPUT = "_call", "_output"


def kind_of(item: Message) -> Kind | None:
    """The kind of a call that the client answers; None: the item is none."""
    type = item.get("type")
    kind = KINDS.get(type) if isinstance(type, str) else None
    if kind is None and isinstance(type, str) and type.endswith(_CALL):
        kind = Kind(answer=f"{type}{_OUTPUT}")
    return kind if kind is not None and isinstance(item.get(kind.id), str) else None


def kind_of_answer(item: Message) -> Kind | None:
    """The kind of the call that an item answers; None: it answers none."""
    type = item.get("type")
    if not isinstance(type, str):
        return None
    if type in _ANSWERS:
        kind = _ANSWERS[type]
        return kind if id_of_answer(item, kind) is not None else None
    return Kind(answer=type) if type.endswith(f"{_CALL}{_OUTPUT}") else None


def id_of_answer(item: Message, kind: Kind) -> Any:
    """The id of the call that an item answers, also where a client wrote it under the usual key."""
    return item.get("call_id") if item.get("call_id") is not None else item.get(kind.answers)


def call_of(item: Message, kind: Kind) -> Call:
    """The call that an item makes."""
    given = next((item[key] for key in ("arguments", "input", "action", "operation", "actions") if key in item), None)
    arguments = given if isinstance(given, str) else _json_of(given)
    return Call(item[kind.id], str(item.get("name", item["type"])), arguments)


def unanswered(call: Call, kind: Kind) -> Message | None:
    """The answer to a call that nobody answered; None: there is none."""
    return None if kind.unanswered is None else {"type": kind.answer, kind.answers: call.id, **kind.unanswered}


def content_of(item: Message) -> Content:
    """Text or parts of an answer, whatever its type."""
    return (kind_of_answer(item) or KINDS["function_call"]).content(item)


def with_content(item: Message, content: Content) -> Message:
    """The answer with other content, in the shape that its type has; the same one where it has no other."""
    return (kind_of_answer(item) or KINDS["function_call"]).with_content(item, content)
