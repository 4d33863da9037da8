"""Runs a compactor over a transcript as an agent would call it, and counts what the facts became and what it cost.

    probe(transcript, OursCompactor("window(4)"))    ->  Probed(outcomes=..., peak=2_310, ...)

A compactor is called before each turn with the whole conversation so far, and returns what the model would see. The
agent's own turns are those of the transcript, so all compactors face the same conversation, and no agent runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

from mem1.extras.probe.transcripts import KINDS, Fact, Transcript, Verdict, verdicts
from mem1.memory import MemoryPolicy
from mem1.messages import Bounds, Memory
from mem1.messages.bounds import common_tokens, tokens_of
from mem1.prices import PriceClass
from mem1.protocol import NOTE

Message = Mapping[str, Any]
NOTE_WISH = "Write the note about the last tool result."
"""How the request for a note begins; in a running agent the note comes with the next action."""
Write = Callable[[list[Message]], str]
"""A model that writes a state or a summary for the messages it is given."""


@dataclass
class Calls:
    """Tokens of the calls that a compactor made for itself."""

    write: Write
    made: list[tuple[list[Message], int]] = field(default_factory=list)
    """(messages, tokens of the reply)."""

    def __call__(self, messages: list[Message]) -> str:
        reply = self.write(messages)
        self.made.append((messages, tokens_of([{"content": reply}])))
        return reply


class Compactor(Protocol):
    """Something that shortens conversations."""

    name: str

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        """What the model sees next of the conversation so far, which only grows from call to call."""
        ...

    def folds(self) -> int:
        """How often it has shortened the conversation so far."""
        ...


class Ours:
    """A memory of mem1. Where it asks for notes, the same model writes them, beside the transcript's actions."""

    def __init__(self, policy: str | MemoryPolicy, write: Write | None = None, bounds: Bounds | None = None) -> None:
        self.name = str(policy)
        self.note_tokens = 0
        self._count = 0
        self._write = write
        self._noted: list[Message] = []
        self.memory = Memory(policy, write=write, bounds=bounds or Bounds(), on_event=self._seen)

    def _seen(self, event: Any) -> None:
        self._count += event.kind != "no_state"

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        for message in messages[len(self._noted) :]:
            if message["role"] == "assistant" and self._noted and NOTE in self.memory.policy.asks:
                message = self._with_note(message)
            self._noted.append(message)
        return self.memory.prompt(self._noted)

    def _with_note(self, message: Message) -> Message:
        """The action with a line about the results before it, as an agent writes both in one reply."""
        assert self._write is not None
        seen = self.memory.prompt(self._noted)
        wish = {
            "role": "user",
            "content": f"{NOTE_WISH} Reply with the line <note>...</note> alone, in at most 40 words.",
        }
        write = self._write.write if isinstance(self._write, Calls) else self._write
        note = write([*seen[-2:], wish] if len(seen) > 1 else [*seen, wish]).strip()
        note = note if "<note>" in note else f"<note>{note}</note>"
        self.note_tokens += tokens_of([{"content": note}])
        return {**message, "content": note}

    def folds(self) -> int:
        return self._count


class Replacing:
    """A function from a history to a shorter one, which the agent then goes on with, as most frameworks do."""

    def __init__(self, name: str, shorten: Callable[[list[Message]], Sequence[Message]]) -> None:
        self.name = name
        self._shorten = shorten
        self._history: list[Message] = []
        self._taken = 0
        self._count = 0

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        self._history += messages[self._taken :]
        self._taken = len(messages)
        shorter = list(self._shorten(list(self._history)))
        self._count += shorter != self._history
        self._history = shorter
        return shorter

    def folds(self) -> int:
        return self._count


class Tracking:
    """A function from the whole conversation to what the model sees of it, which itself knows what it has shortened."""

    def __init__(
        self,
        name: str,
        shorten: Callable[[Sequence[Message]], list[Message]],
        behind: Callable[[Sequence[Message]], str] = lambda shown: "",
    ) -> None:
        """`behind`: the texts that the model can open by what it is shown, besides mem1's handles."""
        self.name = name
        self.behind = behind
        self._shorten = shorten
        self._before: list[Message] = []
        self._count = 0

    def shown(self, messages: Sequence[Message]) -> list[Message]:
        shorter = self._shorten(messages)
        self._count += shorter[: len(self._before)] != self._before
        self._before = shorter
        return shorter

    def folds(self) -> int:
        return self._count


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a fact."""

    fact: Fact
    verdict: Verdict
    folds: int
    """How often the conversation was shortened after the fact was stated."""
    age: int
    """Turns of the model after the fact was stated."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of all calls of an agent."""

    prompt: int
    cached: int
    """Prompt tokens that stood at the same place of the prompt before."""
    output: int

    def cost(self, prices: PriceClass) -> float:
        """In the currency of the prices; what is not read from the cache is written to it."""
        given = prices.prices
        return (
            (self.prompt - self.cached) * given.write + self.cached * given.cached + self.output * given.output
        ) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """One compactor on one transcript. Tokens are estimates of four characters each."""

    name: str
    outcomes: tuple[Outcome, ...]
    peak: int
    """Tokens of the longest prompt, the compactor's own calls included."""
    prompt_tokens: int
    """Sum over all calls."""
    cached_tokens: int
    """Prompt tokens that stood at the same place of the prompt before."""
    output_tokens: int
    """Sum over all replies."""
    folds: int

    appended: Tokens
    """What appending everything takes."""

    def cost(self, prices: PriceClass) -> float:
        """What all calls cost, in the currency of the prices."""
        return Tokens(self.prompt_tokens, self.cached_tokens, self.output_tokens).cost(prices)

    def share(self, verdict: Verdict, kind: str | None = None) -> float:
        """Share of the facts, of one kind or of all, with this verdict."""
        chosen = [outcome.verdict for outcome in self.outcomes if kind in (None, outcome.fact.kind)]
        return sum(found is verdict for found in chosen) / max(1, len(chosen))


def probe(transcript: Transcript, compactor: Compactor, calls: Calls | None = None) -> Probed:
    """Let the compactor follow the transcript from turn to turn, and judge what it shows before the last one.

    `calls`: the model that the compactor was given, which counts what it was asked.
    """
    prompts: list[list[Message]] = []
    folds_at: list[tuple[int, int]] = []
    said = 0
    shown: list[Message] = []
    for end in _turns(transcript.messages):
        asked = len(calls.made) if calls else 0
        shown = compactor.shown(transcript.messages[:end])
        prompts += [messages for messages, _ in calls.made[asked:]] if calls else []
        prompts.append(shown)
        folds_at.append((end, compactor.folds()))
        if end < len(transcript.messages):
            said += tokens_of(transcript.messages[end : end + 1])
    output = said + (sum(reply for _, reply in calls.made) if calls else 0)
    output += compactor.note_tokens if isinstance(compactor, Ours) else 0
    prompt, cached, peak = _sizes(prompts)
    whole, whole_cached, _ = _sizes([transcript.messages[:end] for end in _turns(transcript.messages)])
    behind = compactor.behind(shown) if isinstance(compactor, Tracking) else ""
    found = verdicts(transcript.facts, shown, transcript.messages, behind)
    return Probed(
        name=compactor.name,
        outcomes=tuple(
            Outcome(
                fact=fact,
                verdict=verdict,
                folds=compactor.folds() - _folds_before(fact.message, folds_at),
                age=sum(end > fact.message for end, _ in folds_at),
            )
            for fact, verdict in zip(transcript.facts, found, strict=True)
        ),
        peak=peak,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        folds=compactor.folds(),
        appended=Tokens(whole, whole_cached, said),
    )


def _sizes(prompts: Sequence[Sequence[Message]]) -> tuple[int, int, int]:
    """(tokens of all prompts, those served by a cache of the prompt before, tokens of the longest)."""
    sizes = [tokens_of(prompt) for prompt in prompts]
    cached = sum(common_tokens(before, after) for before, after in pairwise(prompts))
    return sum(sizes), cached, max(sizes)


def _turns(messages: Sequence[Message]) -> Iterator[int]:
    """Numbers of messages after which the model is called, the whole conversation included."""
    for at, message in enumerate(messages):
        if message["role"] == "assistant":
            yield at
    yield len(messages)


def _folds_before(message: int, folds_at: Sequence[tuple[int, int]]) -> int:
    return max((folds for end, folds in folds_at if end <= message), default=0)


def summary(name: str, runs: Sequence[Probed], prices: PriceClass) -> dict[str, Any]:
    """Means over transcripts, as `mem1 probe` shows them; `cost_ratio` is relative to appending everything."""
    number = len(runs)
    shares = {str(verdict): sum(run.share(verdict) for run in runs) / number for verdict in Verdict}
    by_kind = {
        kind: {str(verdict): sum(run.share(verdict, kind) for run in runs) / number for verdict in Verdict}
        for kind in KINDS
    }
    tokens = {
        key: sum(getattr(run, key) for run in runs) / number
        for key in ("peak", "prompt_tokens", "cached_tokens", "output_tokens", "folds")
    }
    cost = sum(run.cost(prices) for run in runs) / number
    appended = sum(run.appended.cost(prices) for run in runs) / number
    return {
        "memory": name,
        **shares,
        **tokens,
        "cost": cost,
        "cost_ratio": cost / appended,
        "by_kind": by_kind,
        "by_age": [_point(part) for part in _parts(runs, "age")],
        "by_folds": [_point(part) for part in _parts(runs, "folds")],
    }


def _parts(runs: Sequence[Probed], key: str) -> list[list[Outcome]]:
    """The outcomes of all runs by age or folds, in up to 12 parts of equal size."""
    outcomes = sorted((outcome for run in runs for outcome in run.outcomes), key=lambda outcome: getattr(outcome, key))
    size = max(1, -(-len(outcomes) // 12))
    return [outcomes[start : start + size] for start in range(0, len(outcomes), size)]


def _point(part: Sequence[Outcome]) -> dict[str, float]:
    """A point of a curve: mean age and folds, and the share of facts that are retained."""
    return {
        "age": sum(outcome.age for outcome in part) / len(part),
        "folds": sum(outcome.folds for outcome in part) / len(part),
        "retained": sum(outcome.verdict is Verdict.RETAINED for outcome in part) / len(part),
        "facts": len(part),
    }
