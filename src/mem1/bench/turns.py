"""The turns of a chat agent's attempt as a page shows them: what each call was given, what it said, what came back.

    user: the task <memory>...</memory>     ->    Piece("prompt", "the task"), Piece("state", "<memory>...", turn=4)
    assistant: notes, search("Moru Kest")   ->    Piece("thought", "notes", turn=5), Piece("query", "search...", turn=5)
    tool: Moru Kest is ...                  ->    Piece("result", "Moru Kest is ...", turn=5)

A call that writes a state is a turn of its own. Tokens of a turn are the provider's, those of its pieces are estimated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mem1.agent.report import ModelCall
from mem1.evaluation.report.token_attribution import Piece, TurnPieces
from mem1.messages.transcript import ASK, Message, texts
from mem1.protocol import ANSWER, SUMMARY
from mem1.records import Turn

_OPEN = "<memory>\n"
"""Begins the state at the end of a message."""


class Recorded(NamedTuple):
    """One call of the model."""

    messages: Sequence[Message]
    tools: Sequence[Message]
    """Those that it declared."""
    text: str
    """Of the reply."""


ShownTurn = tuple[Turn, TurnPieces, tuple[int, int, int]]
"""A turn's texts, its pieces, and its tokens: given, written, and both with everything appended."""


def shown_turns(
    calls: Sequence[Recorded],
    used: Sequence[ModelCall],
    conversation: Sequence[Message],
    action: str,
    count: Callable[[str], int],
) -> list[ShownTurn]:
    """One for each call that was used, in order.

    conversation  all messages of the attempt
    action        what its tool does, such as "search"
    count         estimates the tokens of a text
    """
    of_turns = iter([number for number, call in enumerate(used, start=1) if not call.state])
    origins: dict[str, int] = {}
    said: dict[int, Message] = {}
    results: dict[int, list[Message]] = {}
    number = 0
    for message in conversation:
        if message["role"] == "assistant":
            number = next(of_turns, 0)
            said[number] = message
            origins |= dict.fromkeys(_ids(message), number)
        elif message["role"] == "tool":
            results.setdefault(number, []).append(message)
    found, left = list[ShownTurn](), iter(calls)
    state = appended = 0
    for number, call in enumerate(used, start=1):
        # a reply that was of no use is not among those that were used
        recorded = next((one for one in left if _asks(one.messages) == call.state), None)
        if recorded is None:
            break
        messages, tools, text = recorded
        declared = json.dumps(tools, ensure_ascii=False)
        context = [piece for message in messages for piece in _pieces(message, origins, state, count)]
        returned = [piece for message in results.get(number, ()) for piece in _pieces(message, origins, state, count)]
        written = [Piece("state", text, count(text), number)]
        if call.state:
            state, kind = number, SUMMARY
        else:
            written = [*_said(said.get(number, {}), "action", number, count)]
            kind, appended = action if _ids(said.get(number, {})) else ANSWER, call.appended + call.output
        turn = Turn(
            context_ids=(0,),
            completion_ids=(0,),
            action=kind,
            content=text,
            observation="\n".join(piece.text for piece in returned),
        )
        pieces = TurnPieces(
            context=[Piece("prompt", declared, count(declared), None), *context], completion=written, result=returned
        )
        found.append((turn, pieces, (call.prompt, call.output, appended)))
    return found


def _asks(messages: Sequence[Message]) -> bool:
    """Whether a call asks for a state."""
    return texts(messages[-1].get("content")).startswith(ASK)


def _ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]


def _pieces(message: Message, origins: dict[str, int], state: int, count: Callable[[str], int]) -> Iterator[Piece]:
    """A message in a context; `state`: turn that wrote the newest state."""
    text, role = texts(message.get("content")), message["role"]
    if role == "assistant":
        yield from _said(message, "query", next((origins.get(id, 0) for id in _ids(message)), 0), count)
    elif role == "tool":
        yield Piece("result", text, count(text), origins.get(message["tool_call_id"]))
    else:
        head, opened, memory = text.partition(_OPEN)
        if head:
            yield Piece("prompt", head, count(head), None)
        if opened:
            yield Piece("state", opened + memory, count(opened + memory), state or None)


def _said(message: Message, role: str, turn: int, count: Callable[[str], int]) -> Iterator[Piece]:
    """What the model says, and its calls; without calls, its text has the role."""
    calls: list[Any] = list(message.get("tool_calls") or ())
    if text := texts(message.get("content")):
        yield Piece("thought" if calls else role, text, count(text), turn or None)
    for call in calls:
        function = call["function"]
        text = f"{function['name']}({function['arguments']})"
        yield Piece(role, text, count(text), turn or None)
