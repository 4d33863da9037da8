"""A context cut into pieces that say what they are and from which turn they come.

    turn 1: context p q             completion <IS> a </IS> <query> b </query>      result i
    turn 2: context p q <IS> a </IS> <query> b </query> i
    ->  Piece("prompt", "p q", 2, None), Piece("state", " <IS> a </IS>", 3, 1),
        Piece("query", " <query> b </query>", 3, 1), Piece("result", " i", 1, 1)

Every token of a context is in exactly one piece, and the texts of the pieces joined are exactly what the tokenizer
makes of the whole context. Turns are found by their tokens, as every context policy puts sampled tokens and results
into a context as they are; so which turns a policy keeps is seen, not assumed. In what form it keeps one (without its
thought, a state cut short, a summary with its tag) it is asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from mem1.contexts import ContextPolicy, Full
from mem1.contexts.base import surviving, surviving_roles
from mem1.protocol import SUMMARY
from mem1.records import Turn

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens kept."""

Ids = tuple[int, ...]

SHORTEST = 2
"""Tokens that a part of a turn must have to be known again; one token alone may stand anywhere."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbouring tokens of one role and origin."""

    role: str
    """Of a context "prompt", "state", "query", "result", any other recorded role, "forced" (the tag opened for the
    answer) or "text"; of a completion "thought", "state", "action" or "text"."""
    text: str
    tokens: int
    turn: int | None
    """Number of the turn that it comes from, counted from 1; None: of no turn."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Tokens of an earlier turn that a context may hold."""

    turn: int
    ids: Ids
    roles: tuple[tuple[int, int, str], ...]
    """(start, stop, role) within `ids`."""
    parts: frozenset[tuple[int, str]]
    """What stands in it, as (turn, part): no part of a turn is found twice."""


_Mark = tuple[int, int, str | None, int | None]
"""(start, stop, role, turn) in a context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnPieces:
    """One turn of a trajectory."""

    context: Sequence[Piece]
    """What the policy was given."""
    completion: Sequence[Piece]
    """What it wrote."""
    result: Sequence[Piece]
    """What the environment replied, as it was encoded; empty: nothing."""


def cut(turns: Sequence[Turn], decode: Decode, policy: ContextPolicy | None = None) -> list[TurnPieces]:
    """The turns of one trajectory in pieces; `policy`: the one that made its contexts, None: one not known here."""
    policy = policy or Full()
    sources: list[_Source] = []
    found: list[TurnPieces] = []
    for number, turn in enumerate(turns, start=1):
        # a summary is an action that counts as a state wherever it stands
        renamed = {"action": "state"} if turn.action == SUMMARY else {}
        written = [(a, b, renamed.get(role, role), number) for role, (a, b) in turn.completion_spans.items()]
        result = turn.observation_ids
        found.append(
            TurnPieces(
                context=_context(turn, sources, decode),
                completion=_cut(turn.completion_ids, written, decode, rest=("text", number)),
                result=[Piece("result", decode(result), len(result), number)] if result else [],
            )
        )
        sources = [*_sources(turn, number, policy), *sources]  # the latest turn first
    return found


def dropped(before: TurnPieces, context: Sequence[Piece]) -> list[Piece]:
    """What the policy had before it at the end of one turn and no more in the context of the next one.

    An opened tag and blanks aside.
    """
    kept = {(*_origin(piece), piece.text.strip()) for piece in context}
    copies = {_origin(piece): piece for piece in context if piece.turn is not None}
    seen = [p for p in (*before.context, *before.completion, *before.result) if p.role != "forced"]
    gone = [_missing(p, copies.get(_origin(p))) for p in seen if (*_origin(p), p.text.strip()) not in kept]
    return [piece for piece in gone if piece.text.strip()]


_IN_CONTEXTS = {"action": "query"}
"""An action is called "query" in the contexts that keep it."""


def _origin(piece: Piece) -> tuple[str, int | None]:
    return _IN_CONTEXTS.get(piece.role, piece.role), piece.turn


def _missing(piece: Piece, copy: Piece | None) -> Piece:
    """What of a piece is not in the copy that stayed, which lacks one stretch of it; None: no copy did."""
    if copy is None:
        return piece
    whole, left = piece.text.strip(), copy.text.strip()
    start = _agreed(whole, left)
    end = _agreed(whole[start:][::-1], left[start:][::-1])
    return Piece(piece.role, whole[start : len(whole) - end], max(piece.tokens - copy.tokens, 0), piece.turn)


def _context(turn: Turn, sources: Sequence[_Source], decode: Decode) -> list[Piece]:
    start = turn.context_spans.get("prompt", (0, 0))[1]
    found = list(_origins(turn.context_ids, start, sources))
    recorded: list[_Mark] = [(a, b, role, None) for role, (a, b) in turn.context_spans.items()]
    last = max((stop for _, stop, _, _ in (*found, *recorded)), default=0)
    opened: list[_Mark] = [(last, len(turn.context_ids), "forced", None)] if turn.forced else []
    return _cut(turn.context_ids, [*recorded, *found, *opened], decode, rest=("text", None))


def _sources(turn: Turn, number: int, policy: ContextPolicy) -> Iterator[_Source]:
    """The result; the completion as `policy` lets it survive; its state and its query alone."""
    result = turn.observation_ids
    yield _Source(number, result, ((0, len(result), "result"),), frozenset({(number, "result")}))
    kept = policy.select((turn,)).kept[-1]
    ids, spans = surviving(kept), surviving_roles(kept)
    roles = tuple((start, stop, role) for role, (start, stop) in spans.items())
    yield _Source(number, ids, roles, frozenset((number, name) for name in ("completion", *spans)))
    for start, stop, role in roles:
        yield _Source(number, ids[start:stop], ((0, stop - start, role),), frozenset({(number, role)}))


def _origins(ids: Ids, start: int, sources: Sequence[_Source]) -> Iterator[_Mark]:
    """Where earlier turns stand in `ids` from `start` on: read from the end, the first of `sources` wins."""
    ending: defaultdict[int, list[_Source]] = defaultdict(list)
    for source in sources:
        if len(source.ids) >= SHORTEST:
            ending[source.ids[-1]].append(source)
    used: set[tuple[int, str]] = set()
    stop = len(ids)
    while stop > start:
        for source in ending.get(ids[stop - 1], ()):
            begin = stop - len(source.ids)
            if begin >= start and not source.parts & used and ids[begin:stop] == source.ids:
                yield from ((begin + a, begin + b, role, source.turn) for a, b, role in source.roles)
                yield begin, stop, None, source.turn
                used |= source.parts
                stop = begin
                break
        else:
            stop -= 1


def _cut(ids: Ids, marks: Sequence[_Mark], decode: Decode, *, rest: tuple[str, int | None]) -> list[Piece]:
    """Cut at every border of a mark; the first mark that names a role (a turn) for some tokens gives it."""
    borders = sorted({0, len(ids), *(end for mark in marks for end in mark[:2])})
    named: list[tuple[int, int, str, int | None]] = []
    for start, stop in pairwise(borders):
        over = [mark for mark in marks if mark[0] <= start and stop <= mark[1]]
        role = next((r for _, _, r, _ in over if r is not None), rest[0])
        turn = next((t for _, _, _, t in over if t is not None), rest[1])
        if named and named[-1][2:] == (role, turn):
            start = named.pop()[0]
        named.append((start, stop, role, turn))
    texts = texts_between(ids, [stop for _, stop, _, _ in named], decode)
    return [Piece(role, text, b - a, turn) for (a, b, role, turn), text in zip(named, texts, strict=True)]


def texts_between(ids: Ids, stops: Sequence[int], decode: Decode) -> list[str]:
    """`decode(ids)` cut after each of `stops` tokens, the last of which is `len(ids)`; joined, it is that text.

    A blank that the tokenizer puts between two tokens belongs to the later one, and a letter whose bytes two pieces
    share to the earlier one.
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
    return max(char, _agreed(whole, until))


def _agreed(one: str, other: str) -> int:
    """Characters that both begin with."""
    shorter = min(len(one), len(other))
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)
