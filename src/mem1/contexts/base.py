"""Which tokens the model sees next: the common path of every context policy.

A context policy is a pure function from the prompt and the turns so far to the next context, in tokens.
Tokens that the model sampled enter the next context as they were sampled, never re-encoded; text from the
environment was encoded once, by itself, and enters as those tokens.

A policy selects turns, and tokens of them; `next_context` assembles the context:

    prompt, then of each kept turn: completion (without a thought, without what the policy drops), result
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mem1.protocol import SUMMARY
from mem1.records import Origin, Span, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The exact tokens of one model call, with the ranges of their roles."""

    ids: tuple[int, ...]
    spans: Mapping[str, Span]
    """"prompt", and of the newest kept turn "state", "query" and "result" where it has them."""
    origins: tuple[Origin, ...] = ()
    """Origin of every token after the prompt, in order."""
    requested_action: str | None = None
    """Kind of action that the model must take now, "summary"; None: its own choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A turn to keep, and how much of it."""

    turn: Turn
    state_tokens: int | None = None
    """Number of leading tokens of the state's text to keep; 0: drop the state with its tags; None: all."""
    result: bool = True
    """Whether to keep its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The turns that a policy keeps, and the action that it requests."""

    kept: tuple[Kept, ...]
    """In the order of the next context."""
    requested_action: str | None = None
    """As in `Context`."""


class ContextPolicy(Protocol):
    """How much of the past stays in the context."""

    requested_action: str | None = None
    """Kind of action that the policy sometimes requests from the model; the vocabulary must have it."""

    @property
    def name(self) -> str:
        """The name in recipes, such as "constant" or "fold(4)"."""
        return type(self).__name__

    def select(self, turns: Sequence[Turn]) -> Selection:
        """Select from the finished turns, of which there is at least one; something of the newest must stay."""
        ...


def keep(turns: Sequence[Turn]) -> Selection:
    """These turns, whole."""
    return Selection(kept=tuple(Kept(turn=turn) for turn in turns))


def next_context(policy: ContextPolicy, prompt_ids: Sequence[int], turns: Sequence[Turn]) -> Context:
    """The context of the next turn: prompt, then completion and result of each kept turn.

        constant, prompt p q, one turn with completion a b and result i   ->   p q a b i

    A thought that does not survive (a protocol with its own thought tag) is left out of the copy. A summary is copied
    with its opening tag, which was prefilled at the end of the context that requested it, and counts as a state.
    """
    selection = policy.select(turns) if turns else Selection(kept=())
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


def surviving(kept: Kept) -> tuple[int, ...]:
    """Tokens of a completion that stay; the result comes after them."""
    turn = kept.turn
    if turn.action == SUMMARY:
        return turn.prefill_ids + turn.completion_ids
    ids = turn.completion_ids
    for a, b in reversed(_dropped(kept)):
        ids = ids[:a] + ids[b:]
    return ids


def surviving_roles(kept: Kept) -> dict[str, Span]:
    """Ranges of state and query in `surviving`."""
    if kept.turn.action == SUMMARY:
        return {"state": (0, len(surviving(kept)))}
    spans = kept.turn.completion_spans
    roles = {role: spans[of] for role, of in (("state", "state"), ("query", "action")) if of in spans}
    if dropped := _dropped(kept):

        def moved(position: int) -> int:
            return position - sum([min(b, position) - a for a, b in dropped if a < position])

        roles = {role: (moved(a), moved(b)) for role, (a, b) in roles.items()}
    return {role: (a, b) for role, (a, b) in roles.items() if b > a}


def _tiles(roles: Mapping[str, Span], length: int) -> Iterator[tuple[str, Span]]:
    """Ranges that cover all of `length` tokens: those of `roles`, and "text" between them."""
    end = 0
    for role, (start, stop) in sorted(roles.items(), key=lambda item: item[1]):
        if start > end:
            yield "text", (end, start)
        yield role, (start, stop)
        end = stop
    if length > end:
        yield "text", (end, length)


def _dropped(kept: Kept) -> list[Span]:
    """Ranges of the completion that do not stay, in order; they do not overlap."""
    spans = kept.turn.completion_spans
    dropped = [spans["thought"]] if "thought" in spans else []
    if kept.state_tokens is None:
        return dropped
    if kept.state_tokens == 0 and "state" in spans:
        dropped.append(spans["state"])
    elif "state_text" in spans:
        start, stop = spans["state_text"]
        if stop - start > kept.state_tokens:
            dropped.append((start + kept.state_tokens, stop))
    dropped.sort()
    return dropped
