"""A context cut into pieces, each with its role and the turn it comes from.

    turn 1: context p q             completion <IS> a </IS> <query> b </query>      result i
    turn 2: context p q <IS> a </IS> <query> b </query> i
    ->  Piece("prompt", "p q", 2, None), Piece("state", " <IS> a </IS>", 3, 1),
        Piece("query", " <query> b </query>", 3, 1), Piece("result", " i", 1, 1)

Every token of a context is in exactly one piece, and the texts of the pieces joined are exactly what the tokenizer
makes of the whole context. Origins are those that `next_context` recorded; where a trajectory has none, only the roles
in `context_spans` are known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mem1.protocol import SUMMARY
from mem1.records import Turn

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens kept."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring tokens of one role and origin."""

    role: str
    """In a context "prompt", "state", "note", "query", "result", any other recorded role, "forced" (the tag opened for
    the answer) or "text"; in a completion "thought", "state", "note", "action" or "text"."""
    text: str
    tokens: int
    turn: int | None
    """Number of the turn it comes from, counted from 1; None: from no turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPieces:
    """One turn of a trajectory."""

    context: Sequence[Piece]
    """The tokens given to the policy."""
    completion: Sequence[Piece]
    """The tokens it wrote."""
    result: Sequence[Piece]
    """The environment's reply as it was encoded; empty: none."""


_Mark = tuple[int, int, str, int | None]
"""(start, stop, role, turn) in a context or a completion."""


def cut(turns: Sequence[Turn], decode: Decode) -> list[TurnPieces]:
    """The turns of one trajectory in pieces."""
    found: list[TurnPieces] = []
    for number, turn in enumerate(turns, start=1):
        # a summary is an action that takes the place of a state in later contexts
        renamed = {"action": "state"} if turn.action == SUMMARY else {}
        roles = ((role.partition(" ")[0], span) for role, span in turn.completion_spans.items())  # all notes have one
        written = [(a, b, renamed.get(role, role), number) for role, (a, b) in roles]
        result = turn.observation_ids
        found.append(
            TurnPieces(
                context=_context(turn, decode),
                completion=_cut(turn.completion_ids, written, decode, turn=number),
                result=[Piece("result", decode(result), len(result), number)] if result else [],
            )
        )
    return found


def _context(turn: Turn, decode: Decode) -> list[Piece]:
    marks: list[_Mark] = [(a, b, role, number or None) for number, role, a, b in turn.context_origins]
    marks += [(a, b, role.partition(" ")[0], None) for role, (a, b) in turn.context_spans.items()]
    if turn.prefilled:
        marks.append((max((stop for _, stop, _, _ in marks), default=0), len(turn.context_ids), "forced", None))
    return _cut(turn.context_ids, marks, decode, turn=None)


def _cut(ids: Ids, marks: Sequence[_Mark], decode: Decode, *, turn: int | None) -> list[Piece]:
    """Cut at the ends of all marks; the first mark over a token names its role and turn (default "text" and `turn`)."""
    borders = sorted({0, len(ids), *(end for mark in marks for end in mark[:2])})
    named: list[_Mark] = []
    for start, stop in pairwise(borders):
        role, origin = next(((r, t) for a, b, r, t in marks if a <= start and stop <= b), ("text", turn))
        if named and named[-1][2:] == (role, origin):
            start = named.pop()[0]
        named.append((start, stop, role, origin))
    texts = texts_between(ids, [stop for _, stop, _, _ in named], decode)
    return [Piece(role, text, b - a, origin) for (a, b, role, origin), text in zip(named, texts, strict=True)]


def dropped(before: TurnPieces, context: Sequence[Piece]) -> list[Piece]:
    """What stood before the policy at the end of one turn and is missing from the context of the next.

    Opened tags and blanks are ignored.
    """
    kept = {(*_origin(piece), piece.text.strip()) for piece in context}
    copies = {_origin(piece): piece for piece in context if piece.turn is not None}
    seen = [p for p in (*before.context, *before.completion, *before.result) if p.role != "forced"]
    gone = [_missing(p, copies.get(_origin(p))) for p in seen if (*_origin(p), p.text.strip()) not in kept]
    return [piece for piece in gone if piece.text.strip()]


def _origin(piece: Piece) -> tuple[str, int | None]:
    """Role and turn; an action is called "query" in the contexts that keep it."""
    return "query" if piece.role == "action" else piece.role, piece.turn


def _missing(piece: Piece, copy: Piece | None) -> Piece:
    """The part of a piece that is not in its copy, which lacks one stretch of it; None: there is no copy."""
    if copy is None:
        return piece
    whole, left = piece.text.strip(), copy.text.strip()
    start = _common_prefix(whole, left)
    end = _common_prefix(whole[start:][::-1], left[start:][::-1])
    return Piece(piece.role, whole[start : len(whole) - end], max(piece.tokens - copy.tokens, 0), piece.turn)


def texts_between(ids: Ids, stops: Sequence[int], decode: Decode) -> list[str]:
    """`decode(ids)` cut after each of `stops` tokens (the last is `len(ids)`), so that the parts joined are that text.

    A blank that the tokenizer puts between two tokens belongs to the later part; a letter whose bytes are shared by
    two parts, to the earlier one.
    """
    whole = decode(ids)
    texts: list[str] = []
    token, char = 0, 0
    for stop in stops:
        end = _end(ids, whole, token, stop, char, decode) if stop < len(ids) else len(whole)
        texts.append(whole[char:end])
        token, char = stop, end
    return texts


def _end(ids: Ids, whole: str, start: int, stop: int, char: int, decode: Decode) -> int:
    """Characters of `whole` until token `stop`, where token `start` begins at `char`."""
    alone = decode(ids[start:stop])
    for separator in ("", " "):
        if "\ufffd" not in alone and whole.startswith(separator + alone, char):
            return char + len(separator + alone)
    until = decode(ids[:stop])
    return max(char, _common_prefix(whole, until))


def _common_prefix(one: str, other: str) -> int:
    """Characters that both begin with."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
