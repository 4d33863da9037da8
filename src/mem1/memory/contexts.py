"""The renderer of memories in tokens: the turns that a memory selects become the exact tokens of the next call.

    prompt, then of each kept turn: completion (without a thought, without what the policy drops), result

Tokens that the model sampled enter the next context as they were sampled, never re-encoded; text from the environment
was encoded once, by itself, and enters as those tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from mem1.errors import UserError
from mem1.memory.notes import note_spans
from mem1.memory.selection import Kept, MemoryPolicy, Selection
from mem1.protocol import NOTE, SUMMARY
from mem1.records import Origin, Span, Turn, note_role


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The exact tokens of one model call, with the ranges of their roles."""

    ids: tuple[int, ...]
    spans: Mapping[str, Span]
    """"prompt", and of the newest kept turn "state", notes, "query" and "result" where it has them."""
    origins: tuple[Origin, ...] = ()
    """Origin of every token after the prompt, in order."""
    requested_action: str | None = None
    """Kind of action that the model must take now, "summary"; None: its own choice."""


def next_context(policy: MemoryPolicy, prompt_ids: Sequence[int], turns: Sequence[Turn]) -> Context:
    """The context of the next turn: prompt, then completion and result of each kept turn.

        constant, prompt p q, one turn with completion a b and result i   ->   p q a b i

    A thought that does not survive (a protocol with its own thought tag) is left out of the copy. A summary is copied
    with its opening tag, which was prefilled at the end of the context that requested it, and counts as a state.
    """
    selection: Selection[Turn] = policy.select(turns) if turns else Selection(kept=())
    if not isinstance(selection, Selection):
        raise UserError(f"{type(policy).__name__}.select returned a {type(selection).__name__}; it returns a Selection")
    numbers = {id(turn): number for number, turn in enumerate(turns, start=1)}
    ids = list(prompt_ids)
    start = len(ids)  # of the newest kept turn
    origins: list[Origin] = []
    for kept in selection.kept:
        start, number = len(ids), numbers.get(id(kept.turn), 0)
        ids += surviving(kept)
        for role, (a, b) in _tiles(surviving_roles(kept), len(ids) - start):
            origins.append((number, role, start + a, start + b))
        if kept.result and kept.turn.observation_ids:
            origins.append((number, "result", len(ids), len(ids) + len(kept.turn.observation_ids)))
            ids += kept.turn.observation_ids
    spans: dict[str, Span] = {"prompt": (0, len(prompt_ids))}
    if selection.kept:
        newest = selection.kept[-1]
        spans |= {role: (start + a, start + b) for role, (a, b) in surviving_roles(newest).items()}
        if newest.result:
            spans["result"] = (len(ids) - len(newest.turn.observation_ids), len(ids))
    return Context(ids=tuple(ids), spans=spans, origins=tuple(origins), requested_action=selection.requested_action)


def surviving(kept: Kept[Turn]) -> tuple[int, ...]:
    """Tokens of a completion that stay; the result comes after them."""
    turn, ids = kept.turn, kept.turn.completion_ids
    if kept.only_notes is not None:
        return tuple(id for a, b in note_spans(turn, kept.only_notes) for id in ids[a:b])
    for a, b in reversed(_dropped(kept)):
        ids = ids[:a] + ids[b:]
    return turn.prefill_ids + ids if turn.action == SUMMARY else ids


def surviving_roles(kept: Kept[Turn]) -> dict[str, Span]:
    """Ranges of state, query and notes in `surviving`; a second note has the role "note 2"."""
    if kept.turn.action == SUMMARY:
        return {"state": (0, len(surviving(kept)))}
    spans = kept.turn.completion_spans
    if kept.only_notes is not None:
        ends = [0, *accumulate(b - a for a, b in note_spans(kept.turn, kept.only_notes))]
        return {note_role(i): ends for i, ends in enumerate(pairwise(ends))}
    names = {"action": "query"} if kept.state_tokens == 0 else {"action": "query", "state": "state"}
    roles = {names.get(of, of): spans[of] for of in spans if of in names or of.startswith(NOTE)}
    if dropped := _dropped(kept):

        def moved(position: int) -> int:
            return position - sum([min(b, position) - a for a, b in dropped if a < position])

        roles = {role: (moved(a), moved(b)) for role, (a, b) in roles.items()}
    return {role: (a, b) for role, (a, b) in roles.items() if b > a}


def _tiles(roles: Mapping[str, Span], length: int) -> Iterator[tuple[str, Span]]:
    """Ranges that cover all of `length` tokens: those of `roles`, where all notes have one, and "text" between."""
    end = 0
    for role, (start, stop) in sorted(roles.items(), key=lambda item: item[1]):
        if start > end:
            yield "text", (end, start)
        yield role.partition(" ")[0], (start, stop)
        end = stop
    if length > end:
        yield "text", (end, length)


def _dropped(kept: Kept[Turn]) -> list[Span]:
    """Ranges of the completion that do not stay, in order; they do not overlap."""
    spans = kept.turn.completion_spans
    forgotten = () if kept.turn.action == SUMMARY else ("thought", "rest")
    dropped = [_alone(role, spans) for role in forgotten if role in spans]
    if kept.state_tokens is None:
        return dropped
    if kept.state_tokens == 0 and "state" in spans:
        dropped.append(_alone("state", spans))
    elif "state_text" in spans:
        start, stop = spans["state_text"]
        if stop - start > kept.state_tokens:
            dropped.append((start + kept.state_tokens, stop))
    dropped.sort()
    return dropped


def _alone(role: str, spans: Mapping[str, Span]) -> Span:
    """Its range without the tokens that it shares with a state, note or action: a border may lie within a token."""
    start, stop = spans[role]
    for other, (a, b) in spans.items():
        if other != role and (other in ("state", "action") or other.startswith(NOTE)):
            start, stop = (max(start, b), stop) if a <= start else (start, min(stop, a))
    return start, max(start, stop)
