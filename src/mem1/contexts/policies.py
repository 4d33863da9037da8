"""Which tokens the model sees next: the common path of every context policy, and the memories that ship.

A context policy is a pure function from the prompt and the turns so far to the next context, in tokens.
Tokens that the model sampled enter the next context as they were sampled, never re-encoded; text from the
environment was encoded once, by itself, and enters as those tokens.

A policy selects turns, and tokens of them; `next_context` assembles the context:

    prompt, then of each kept turn: completion (without a thought, without what the policy drops), result

    constant      the last turn only: MEM1's memory, which the model rewrites in every turn
    fold(k)       append for k turns, then keep only the last one:   fold(2) keeps 1, 2, 1, 2, 1, ... turns
    full          everything, as an ordinary agent keeps it
    window(k)     the last k turns: memory by truncation
    capped(n)     as constant, with at most n tokens of the state:   <IS> a b c d </IS>  ->  <IS> a b </IS> for n = 2
    masked        every completion, but only the newest result
    none          the last action and its result, without the state: the floor of every comparison
    summary(n)    everything until it exceeds n tokens; then the model must write a summary
    external(k)   the last turn, and k earlier ones retrieved for it

Sources: MEM1 (arXiv 2506.15841), section 3, for constant; folding every k turns rewrites less and keeps prefix caches
valid for longer. Observation masking (Lindenbauer et al., arXiv 2508.21433) for masked: results are most of an agent's
tokens, and what mattered in them has usually been written down. ReSum (arXiv 2509.13313) for summary. A-MEM (arXiv
2502.12110) for external; MEM1's baseline uses it with k = 3 and the last turn as the query.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from typing import ClassVar, Protocol

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
    dropped = [_between(spans[role], spans) for role in ("thought", "rest") if role in spans]
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


def _between(span: Span, spans: Mapping[str, Span]) -> Span:
    """The range without tokens that it shares with state or action, whose text begins or ends within a token."""
    start, stop = span
    for a, b in (spans[role] for role in ("state", "action") if role in spans):
        start, stop = (max(start, b), stop) if a <= start else (start, min(stop, a))
    return start, max(start, stop)


@dataclass(frozen=True, slots=True)
class _Shipped(ContextPolicy):
    """A policy named by a word and its fields, which are numbers of at least 1: Window(2).name is "window(2)"."""

    word: ClassVar[str]

    def __post_init__(self) -> None:
        for number in astuple(self):
            if number < 1:
                raise ValueError(f"{self.word} needs a number of at least 1, not {number}")

    @property
    def name(self) -> str:
        numbers = ", ".join(map(str, astuple(self)))
        return f"{self.word}({numbers})" if numbers else self.word


@dataclass(frozen=True, slots=True)
class Fold(_Shipped):
    """Keep the turns since the last rewrite, which happens every `k` turns; `constant` is `fold(1)`."""

    word = "fold"
    k: int

    @property
    def name(self) -> str:
        return "constant" if self.k == 1 else f"{self.word}({self.k})"

    def select(self, turns: Sequence[Turn]) -> Selection:
        return keep(turns[(len(turns) - 1) // self.k * self.k :])


@dataclass(frozen=True, slots=True)
class Full(_Shipped):
    """Keep every turn: the limit of `fold(k)` for large k."""

    word = "full"

    def select(self, turns: Sequence[Turn]) -> Selection:
        return keep(turns)


@dataclass(frozen=True, slots=True)
class Window(_Shipped):
    """Keep the last `k` turns."""

    word = "window"
    k: int

    def select(self, turns: Sequence[Turn]) -> Selection:
        return keep(turns[-self.k :])


@dataclass(frozen=True, slots=True)
class Capped(_Shipped):
    """Keep the last turn, with at most `tokens` tokens of its state's text; tags do not count."""

    word = "capped"
    tokens: int

    def select(self, turns: Sequence[Turn]) -> Selection:
        return Selection(kept=(Kept(turn=turns[-1], state_tokens=self.tokens),))


@dataclass(frozen=True, slots=True)
class Masked(_Shipped):
    """Keep every completion, and the last result."""

    word = "masked"

    def select(self, turns: Sequence[Turn]) -> Selection:
        *older, newest = turns
        return Selection(kept=(*(Kept(turn=turn, result=False) for turn in older), Kept(turn=newest)))


@dataclass(frozen=True, slots=True)
class NoMemory(_Shipped):
    """Keep the last turn's action and result, without its state."""

    word = "none"

    def select(self, turns: Sequence[Turn]) -> Selection:
        return Selection(kept=(Kept(turn=turns[-1], state_tokens=0),))


@dataclass(frozen=True, slots=True)
class Summary(_Shipped):
    """Keep the last summary and the turns after it; request the next one once they exceed `tokens` tokens.

        turns 1 2 3, more than n tokens   ->   the model gets all three and an opened <summary>
        it writes ... </summary>          ->   the next context is prompt and summary; later turns are appended to it

    A summary is a call of its own and does not use up one of the task's turns.
    """

    word = "summary"
    tokens: int
    requested_action = SUMMARY

    def select(self, turns: Sequence[Turn]) -> Selection:
        last = max((i for i, turn in enumerate(turns) if turn.action == SUMMARY), default=-1)
        kept = keep(turns[max(last, 0) :])
        new = sum(len(t.completion_ids) + len(t.observation_ids) for t in turns[last + 1 :])
        return Selection(kept=kept.kept, requested_action=SUMMARY if new > self.tokens else None)


@dataclass(frozen=True, slots=True)
class RetrievedNotes(_Shipped):
    """Keep the last turn, preceded by `k` earlier turns retrieved for it, oldest first: notes outside the context.

    A note is a whole turn, never shortened. The last turn is the query, by BM25 over words. As in A-MEM each note is
    linked to the earlier note most like it, and a retrieved note brings the linked one along: best match, its link,
    second match, its link, and so on. A-MEM lets a language model write keywords and links; here both follow from the
    words, so that no model is called that is not trained.
    """

    word = "external"
    k: int

    def select(self, turns: Sequence[Turn]) -> Selection:
        *notes, newest = turns
        retrieved = range(len(notes)) if len(notes) <= self.k else sorted(islice(_retrieved(turns), self.k))
        return keep([*(notes[i] for i in retrieved), newest])


def _retrieved(turns: Sequence[Turn]) -> Iterator[int]:
    """Indices of the notes in the order of their retrieval, each once."""
    import bm25s

    words = [_words(turn) for turn in turns]
    store = bm25s.BM25()
    store.index(words[:-1], show_progress=False)

    def best_first(query: int, among: int) -> list[int]:
        """The first `among` notes by similarity to a turn, most similar first; of equals, the newest."""
        scores = store.get_scores(words[query])[:among]
        return sorted(range(among), key=lambda note: (-scores[note], -note))

    seen: set[int] = set()
    for match in best_first(len(turns) - 1, among=len(turns) - 1):
        for note in (match, *best_first(match, among=match)[:1]):
            if note not in seen:
                seen.add(note)
                yield note


def _words(turn: Turn) -> list[str]:
    # BM25 needs at least one word, so a note without any gets the empty one
    return re.findall(r"\w+", f"{turn.state} {turn.content} {turn.observation}".lower()) or [""]


POLICIES: Mapping[str, Callable[..., ContextPolicy]] = {
    "constant": lambda: Fold(1),
    "capped": Capped,
    "fold": Fold,
    "full": Full,
    "masked": Masked,
    "window": Window,
    "summary": Summary,
    "external": RetrievedNotes,
    "none": NoMemory,
}
"""Name -> what makes the policy from the numbers in brackets."""
