"""The memories that ship: what stays of an agent's past, for trained policies and for chat agents alike.

    constant        the last turn only: MEM1's memory, a state that the model rewrites in every turn
    fold(k)         append for k turns, then keep only the last one:   fold(2) keeps 1, 2, 1, 2, 1, ... turns
    notes           the last turn, and every note that was written: memory by edits
    notes(n)        as notes; once they exceed n tokens, the model must rewrite them
    notebook(k)     as notes, with the k newest ones in sight; the answer still has them all
    dropout(p)      as notes, with p percent of them out of sight, drawn at random: to train recall
    full            everything, as an ordinary agent keeps it
    window(k)       the last k turns: memory by truncation
    masked(k)       everything that the model said, but only the k newest results; masked is masked(1)
    archive(k)      as masked(k), and the action `recall` shows older results again
    discard_all(n)  everything until it exceeds n tokens; then nothing, as if the task had just begun
    summary(n)      everything until it exceeds n tokens; then the model must write a summary
    capped(n)       as constant, with at most n tokens of the state:   <IS> a b c d </IS>  ->  <IS> a b </IS> for n = 2
    belief          the last belief, which the model must write after every result and before it acts again
    external(k)     the last turn, and k earlier ones retrieved for it
    none            the last action and its result, without the state: the floor of every comparison

A policy that was trained writes its state, where a memory asks for one, with every action. A chat agent writes it in a
call of its own, when an exchange leaves; it then stands among the exchanges, as a summary does.

Sources: MEM1 (arXiv 2506.15841), section 3, for constant; folding every k turns rewrites less and keeps prefix caches
valid for longer. Observation masking (Lindenbauer et al., arXiv 2508.21433) for masked: results are most of an agent's
tokens, and what mattered in them has usually been written down. DeepSeek-V3.2 (arXiv 2512.02556) for discard_all. ReSum
(arXiv 2509.13313) for summary. ABBEL (arXiv 2512.20111), which acts on a belief alone, for belief. A-MEM (arXiv
2502.12110) for external; MEM1's baseline uses it with k = 3 and the last turn as the query. What is written anew in
every turn can be lost in every turn and costs more with every fact; notes are written once (research/beyond.md).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import islice
from typing import ClassVar

from mem1.memory.notes import by_turn, standing
from mem1.memory.recall import WordIndex
from mem1.memory.selection import STATE, E, Exchange, Kept, MemoryPolicy, Selection, keep
from mem1.protocol import NOTE, RECALL, SUMMARY, Filled


@dataclass(frozen=True, slots=True)
class _Shipped(MemoryPolicy):
    """A memory named by a word and its fields, which are numbers of at least 1: Window(2).name is "window(2)"."""

    word: ClassVar[str]

    def __post_init__(self) -> None:
        for number in self._numbers:
            if number < 1:
                raise ValueError(f"{self.word} needs a number of at least 1, not {number}")

    @property
    def name(self) -> str:
        numbers = ", ".join(map(str, self._numbers))
        return f"{self.word}({numbers})" if numbers else self.word

    @property
    def _numbers(self) -> list[int]:
        return [number for number in astuple(self) if number is not None]


@dataclass(frozen=True, slots=True)
class Notes(_Shipped):
    """Keep the last turn, preceded by the notes of all earlier ones: the tokens that were sampled, in their order.

        turn 1  <IS> a </IS> <note> Q1 Oslo </note> <query> ... </query>     result 1
        turn 2  <IS> b </IS> <note> Q2 1901 </note> <query> ... </query>     result 2
        ->  prompt, <note> Q1 Oslo </note>, turn 2, result 2

    A note with the key of an earlier one replaces it (`mem1.memory.notes`). With `tokens`, the model must rewrite
    them once they have more: it gets notes and last turn and an opened <summary>, whose text, cut to `tokens`, then
    stands for all notes before it. That is a call of its own and uses up none of the task's turns.
    """

    word = "notes"
    tokens: int | None = None

    @property
    def asks(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset({NOTE} if self.tokens is None else {NOTE, SUMMARY})

    def select(self, turns: Sequence[E]) -> Selection[E]:
        kept, written = self._kept(turns)
        over = self.tokens is not None and turns[-1].notes and written > self.tokens  # a rewrite may be as long
        if self.tokens is None or not over:
            return Selection(kept=kept)
        return Selection(kept=kept, requested_action=SUMMARY, requested_tokens=self.tokens // 2)

    def filled(self, turns: Sequence[Exchange]) -> Filled | None:
        return None if self.tokens is None else (self._kept(turns)[1], self.tokens)

    def _kept(self, turns: Sequence[E]) -> tuple[tuple[Kept[E], ...], int]:
        """What is kept, the last turn whole, and the tokens of all notes, those of the last included."""
        rewritten = _last_summary(turns)
        last = max((i for i, turn in enumerate(turns) if turn.action != SUMMARY), default=-1)
        notes = standing(turns[rewritten + 1 :], first=rewritten + 1)
        written = sum(turns[i].note_tokens(position) for i, of_it in notes.items() for position in of_it)
        kept = [Kept(turn=turns[i], only_notes=of_it, result=False) for i, of_it in notes.items() if i < last]
        newest = [] if last < 0 else [Kept(turn=turns[last])]
        if rewritten < 0:
            return (*kept, *newest), written
        rewrite = turns[rewritten]
        cut = 0 if self.tokens is None else max(0, rewrite.state_tokens - self.tokens)
        kept.insert(0, Kept(turn=rewrite, state_tokens=self.tokens, result=False))
        return (*kept, *newest), written + rewrite.said_tokens - cut


@dataclass(frozen=True, slots=True)
class Notebook(_Shipped):
    """Keep the last turn, preceded by the `k` newest notes of all earlier ones; older notes are out of sight, not lost.

        k = 1, notes Q1 to Q3 in turns 1 to 3  ->  prompt, <note> Q2 1901 </note>, turn 3, result 3

    The answer `notes` still has them all, and the action `recall` shows one again (`mem1.memory.recall`). So the
    context is as short after a hundred notes as after k, and nothing is rewritten.
    """

    word = "notebook"
    k: int
    asks = frozenset({NOTE})

    def select(self, turns: Sequence[E]) -> Selection[E]:
        return _with_notes(turns, _earlier_notes(turns)[-self.k :])


@dataclass(frozen=True, slots=True)
class Dropout(_Shipped):
    """Keep the last turn, preceded by the notes of all earlier ones, without `percent` of them, drawn at random.

    What is drawn depends on the text of a note alone: it stays out of sight, in every attempt that writes it. The
    answer `notes` has them all, and the action `recall` shows them again, so a policy can learn when it has to ask.
    """

    word = "dropout"
    percent: int
    asks = frozenset({NOTE})

    def __post_init__(self) -> None:
        if not 1 <= self.percent <= 99:
            raise ValueError(f"dropout needs a percentage from 1 to 99, not {self.percent}")

    def select(self, turns: Sequence[E]) -> Selection[E]:
        return _with_notes(turns, [(i, p) for i, p in _earlier_notes(turns) if not self._drops(turns[i].notes[p])])

    def _drops(self, note: str) -> bool:
        return zlib.crc32(note.strip().encode("utf-8", "surrogatepass")) % 100 < self.percent


def _last_summary(turns: Sequence[Exchange]) -> int:
    """Position of the last one; -1: there is none."""
    return max((i for i, turn in enumerate(turns) if turn.action == SUMMARY), default=-1)


def _earlier_notes(turns: Sequence[Exchange]) -> list[tuple[int, int]]:
    """(turn, position in it) of each note that stands, without those of the last turn."""
    return [(i, position) for i, of_it in standing(turns).items() if i < len(turns) - 1 for position in of_it]


def _with_notes(turns: Sequence[E], notes: Iterable[tuple[int, int]]) -> Selection[E]:
    """These notes, each (turn, position in it), and the last turn whole."""
    kept = [Kept(turn=turns[i], only_notes=of_it, result=False) for i, of_it in by_turn(notes).items()]
    return Selection(kept=(*kept, Kept(turn=turns[-1])))


@dataclass(frozen=True, slots=True)
class Fold(_Shipped):
    """Keep the turns since the last rewrite, which happens every `k` turns; `constant` is `fold(1)`.

    Where a state was written in a call of its own, it stays, and the turn before it begins the count anew. `k` = None,
    "auto", for chat agents: the k at which a long run is cheapest, by prices and measured sizes
    (`mem1.messages.cost`); by itself it never folds.
    """

    word = "fold"
    k: int | None
    asks = frozenset({STATE})

    @property
    def name(self) -> str:
        return "constant" if self.k == 1 else f"{self.word}({self.k or 'auto'})"

    def select(self, turns: Sequence[E]) -> Selection[E]:
        state, since = _since_state(turns)
        start = 0 if self.k is None else max(0, len(since) - 1) // self.k * self.k
        return Selection(kept=(*state, *keep(since[start:]).kept))


def _since_state(turns: Sequence[E], tokens: int | None = None) -> tuple[list[Kept[E]], Sequence[E]]:
    """The last state that was written in a call of its own, cut to `tokens`; the turns from the one before it on."""
    written = _last_summary(turns)
    if written < 0:
        return [], turns
    since = [turn for turn in turns[max(0, written - 1) :] if turn.action != SUMMARY]
    return [Kept(turn=turns[written], state_tokens=tokens)], since


@dataclass(frozen=True, slots=True)
class Full(_Shipped):
    """Keep every turn: the limit of `fold(k)` for large k."""

    word = "full"

    def select(self, turns: Sequence[E]) -> Selection[E]:
        return keep(turns)


@dataclass(frozen=True, slots=True)
class Window(_Shipped):
    """Keep the last `k` turns."""

    word = "window"
    k: int

    def select(self, turns: Sequence[E]) -> Selection[E]:
        return keep(turns[-self.k :])


@dataclass(frozen=True, slots=True)
class Capped(_Shipped):
    """Keep the last turn, with at most `tokens` tokens of its state's text; tags do not count."""

    word = "capped"
    tokens: int
    asks = frozenset({STATE})

    def select(self, turns: Sequence[E]) -> Selection[E]:
        state, since = _since_state(turns, self.tokens)
        return Selection(kept=(*state, *(Kept(turn=turn, state_tokens=self.tokens) for turn in since[-1:])))

    def filled(self, turns: Sequence[Exchange]) -> Filled:
        return turns[-1].state_tokens, self.tokens


@dataclass(frozen=True, slots=True)
class Masked(_Shipped):
    """Keep everything that the model said, and the results of the last `k` turns."""

    word = "masked"
    k: int = 1

    @property
    def name(self) -> str:
        return self.word if self.k == 1 else f"{self.word}({self.k})"

    def select(self, turns: Sequence[E]) -> Selection[E]:
        return _without_old_results(turns, self.k)


@dataclass(frozen=True, slots=True)
class Archive(_Shipped):
    """Keep everything that the model said, and the results of the last `k` turns; `recall` shows older ones again."""

    word = "archive"
    k: int
    asks = frozenset({RECALL})

    def select(self, turns: Sequence[E]) -> Selection[E]:
        return _without_old_results(turns, self.k)


def _without_old_results(turns: Sequence[E], k: int) -> Selection[E]:
    first = len(turns) - k
    return Selection(kept=tuple(Kept(turn=turn, result=i >= first) for i, turn in enumerate(turns)))


@dataclass(frozen=True, slots=True)
class DiscardAll(_Shipped):
    """Keep everything until it exceeds `tokens` tokens; then drop it all and start again from the task.

    turns of 40 tokens, n = 100   ->   1, 12, (123 are too many) nothing, 4, 45, nothing, ...
    """

    word = "discard_all"
    tokens: int

    def select(self, turns: Sequence[E]) -> Selection[E]:
        start = total = 0
        for number, turn in enumerate(turns, start=1):
            total += turn.said_tokens + turn.result_tokens
            if total > self.tokens:
                start, total = number, 0
        return keep(turns[start:])


@dataclass(frozen=True, slots=True)
class NoMemory(_Shipped):
    """Keep the last turn's action and result, without its state."""

    word = "none"

    def select(self, turns: Sequence[E]) -> Selection[E]:
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
    asks = frozenset({SUMMARY})

    def select(self, turns: Sequence[E]) -> Selection[E]:
        last = _last_summary(turns)
        kept = keep(turns[max(last, 0) :])
        new = sum(turn.said_tokens + turn.result_tokens for turn in turns[last + 1 :])
        return Selection(kept=kept.kept, requested_action=SUMMARY if new > self.tokens else None)


@dataclass(frozen=True, slots=True)
class Belief(_Shipped):
    """Request a summary, the belief, after every result; keep nothing else when the model acts.

        belief b1, action a1, result r1   ->   prompt, b1, a1, r1 and an opened <summary>: the model writes b2
        belief b2                         ->   prompt, b2: the model acts, and does not see r1

    What an action was reasoned with, its state, stays nowhere. A belief uses up none of the task's turns.
    """

    word = "belief"
    asks = frozenset({SUMMARY})

    def select(self, turns: Sequence[E]) -> Selection[E]:
        *earlier, newest = turns
        if newest.action == SUMMARY:
            return keep([newest])
        last = Kept(turn=newest, state_tokens=0)
        return Selection(kept=(*keep(earlier[-1:]).kept, last), requested_action=SUMMARY)


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

    def select(self, turns: Sequence[E]) -> Selection[E]:
        *notes, newest = turns
        retrieved = range(len(notes)) if len(notes) <= self.k else sorted(islice(_retrieved(turns), self.k))
        return keep([*(notes[i] for i in retrieved), newest])


def _retrieved(turns: Sequence[Exchange]) -> Iterator[int]:
    """Indices of the notes in the order of their retrieval, each once."""
    texts = [turn.words for turn in turns]
    index = WordIndex(texts[:-1])

    def best_first(query: int, among: int) -> list[int]:
        """The first `among` notes by similarity to a turn, most similar first; of equals, the newest."""
        scores = index.scores(texts[query])
        return sorted(range(among), key=lambda note: (-scores[note], -note))

    seen: set[int] = set()
    for match in best_first(len(turns) - 1, among=len(turns) - 1):
        for note in (match, *best_first(match, among=match)[:1]):
            if note not in seen:
                seen.add(note)
                yield note


_KINDS: tuple[type[_Shipped], ...] = (
    *(Fold, Notes, Notebook, Dropout, Full, Window, Masked),
    *(Archive, DiscardAll, Summary, Capped, Belief, RetrievedNotes, NoMemory),
)
POLICIES: Mapping[str, Callable[..., MemoryPolicy]] = {
    "constant": lambda: Fold(1),
    **{kind.word: kind for kind in _KINDS},
}
"""Name -> what makes the memory from the numbers in brackets."""
