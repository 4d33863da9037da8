"""Puts a transcript together: exchanges of a kind, some of the facts in them, and facts that are planted.

    system | user: the task | assistant: search(...) | tool: ... | user: From now on ... | assistant: ...

After every second exchange, on average, there is one fact more. About half are planted; the others are picked from what
the results tell. Of the kinds of facts that there is a choice of, the one with the fewest facts so far is taken.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

from mem1.extras.probe.kinds.parts import Exchange, Scene, Settings, Split, Told, Wanted
from mem1.extras.probe.kinds.planting import PLANTED, Planted, plant
from mem1.extras.probe.retained import Text, retains
from mem1.extras.probe.transcripts import Fact, Noted, Transcript
from mem1.messages.written import LASTING

_RATE = 0.5
"""Facts per exchange."""
_PLANTED_SHARE = 0.5
_SAYS = 0.15
"""Share of the turns in which the assistant says something beside its call."""
_NOTED, _TOGETHER = 2, 5
"""Facts of a result that are noted, the first ones; of a subject whose facts have no names, in one note."""
_TRIES = 100
"""Topics that are drawn before one is used again."""
_ASIDES = (
    "I look at the next one.",
    "That helps; on to what is still missing.",
    "Nothing unusual here. I go on.",
    "This may matter later.",
    "Let me check one more before I go on.",
    "So far this fits together.",
)


class Draft:
    """A transcript that grows by one exchange at a time."""

    def __init__(self, random: Random, split: Split, settings: Settings) -> None:
        self.messages: list[Mapping[str, Any]] = []
        self.facts: list[Fact] = []
        self._taken: dict[str, Told] = {}
        self._places: dict[str, int] = {}
        """Key -> index of its fact."""
        self._noted: list[Noted] = []
        self._counts: Counter[str] = Counter()
        self._planted = 0
        """Number of facts that were planted."""
        self._clozes: set[str] = set()
        self._topics: set[str] = set()
        """Of what was planted."""
        self._seen: list[str] = []
        """Texts of the messages so far, in lower case."""
        self._later: list[tuple[int, Planted]] = []
        """(exchange from which on it can be told, correction)."""
        self.wanted = Wanted(random=random, split=split, settings=settings, taken=self._taken)
        """What a kind has to know."""

    def finished(self, kind: str, scene: Scene) -> Transcript:
        """The transcript with all its exchanges."""
        self._say({"role": "system", "content": scene.system})
        self._say({"role": "user", "content": scene.task})
        for at in range(self.wanted.settings.exchanges):
            exchange = next(scene.exchanges)
            while not all(map(self._is_new, self._overtaking(exchange))):
                exchange = next(scene.exchanges)
            self._add(at, exchange, scene.note)
        return Transcript(kind=kind, messages=tuple(self.messages), facts=tuple(self.facts), noted=tuple(self._noted))

    def _add(self, at: int, exchange: Exchange, note: str) -> None:
        random = self.wanted.random
        overtaking = self._overtaking(exchange)  # always become facts
        planted = picked = None
        if at and not overtaking and len(self.facts) < _RATE * (at + random.random()):
            if self._planted >= _PLANTED_SHARE * len(self.facts):
                picked = self._picked(exchange)
            if picked is None:
                self._planted += 1
                planted = self._plant(at)
        if planted is not None and planted.voice == "user":
            self._say({"role": "user", "content": planted.sentence})
            self._record_planted(planted)
        says = random.choice(_ASIDES) if random.random() < _SAYS else None
        if planted is not None and planted.voice == "assistant":
            says = planted.sentence
        function = {"name": exchange.tool, "arguments": json.dumps(exchange.arguments, ensure_ascii=False)}
        calls = [{"id": f"call_{at}", "type": "function", "function": function}]
        self._say({"role": "assistant", "content": says, "tool_calls": calls})
        if planted is not None and planted.voice == "assistant":
            self._record_planted(planted)
        lines = exchange.result.splitlines()
        if planted is not None and planted.voice == "result":
            lines.insert(random.randrange(len(lines) + 1), note.format(planted.sentence))
        self._say({"role": "tool", "tool_call_id": f"call_{at}", "content": "\n".join(lines)})
        if planted is not None and planted.voice == "result":
            self._record_planted(planted)
        for told in overtaking:
            self._record(told)
            self._note(told, lasting=True)
        if picked is not None:
            self._record(picked)
        for told in _first(exchange):
            self._note(told, lasting=False)

    def _say(self, message: Mapping[str, Any]) -> None:
        self.messages.append(message)
        arguments = "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
        self._seen.append(f"{message['content'] or ''}\n{arguments}".lower())

    def _overtaking(self, exchange: Exchange) -> list[Told]:
        """The corrections of facts that were picked."""
        return [told for told in exchange.told if told.kind == "correction" and told.key in self._taken]

    def _picked(self, exchange: Exchange) -> Told | None:
        """A fact that is new, of the kind with the fewest so far; what can be corrected counts as a correction."""
        result = Text(exchange.result)  # in a long one a fact may stand far from its subject
        choice = [
            told for told in exchange.told if told.kind != "correction" and retains(told.forms, told.subject, result)
        ]
        self.wanted.random.shuffle(choice)
        choice.sort(key=lambda told: self._counts["correction" if told.key else told.kind])
        asked = json.dumps(exchange.arguments, ensure_ascii=False).lower()
        picked = next((told for told in choice if self._is_new(told, asked)), None)
        self._counts["correction"] += picked is not None and bool(picked.key)  # it is to come
        return picked

    def _plant(self, at: int) -> Planted:
        """A correction that is due, or something new of the rarest kind."""
        if self._later and self._later[0][0] <= at:
            return self._later.pop(0)[1]
        random = self.wanted.random
        kind = min(PLANTED, key=lambda kind: (self._counts[kind], random.random()))
        for tries in itertools.count():
            planted = plant(random, self.wanted.half, kind, self.wanted.settings.wordings)
            later = planted.later
            if planted.topic in self._topics and tries < _TRIES:
                continue
            if self._is_new(planted.told) and (later is None or self._is_new(later.told)):
                break
        self._topics.add(planted.topic)
        if later is not None:
            self._counts["correction"] += 1
            self._later.append((at + random.randint(2, max(3, self.wanted.settings.exchanges // 3)), later))
            self._later.sort(key=lambda due: due[0])
            self._seen.append("\n".join(later.told.forms).lower())  # nothing else may have this value
        return planted

    def _is_new(self, told: Told, asked: str = "") -> bool:
        """Whether no fact has its cloze, and neither a message nor what is `asked` a form of it and its subject."""
        if told.cloze in self._clozes or (told.kind != "correction" and told.key in self._places):
            return False
        subject = told.subject.lower()
        about = [text for text in (*self._seen, asked) if subject in text]
        return not any(form.lower() in text for form in told.forms for text in about)

    def _record_planted(self, planted: Planted) -> None:
        self._record(planted.told)
        self._note(planted.told, lasting=True)

    def _note(self, told: Told, *, lasting: bool) -> None:
        """A note on the last message."""
        form = told.forms[0]
        note = f"{told.label or told.subject}: {form}{LASTING if lasting else ''}"
        self._noted.append(Noted(len(self.messages) - 1, form, note))

    def _record(self, told: Told) -> None:
        """A fact of the last message."""
        message = len(self.messages) - 1
        stale: tuple[str, ...] = ()
        if told.kind == "correction":
            place, overtaken = self._places[told.key], self._taken.pop(told.key)
            self.facts[place] = replace(self.facts[place], until=message)
            stale = overtaken.forms
        else:
            self._counts[told.kind] += 1
            if told.key:
                self._places[told.key], self._taken[told.key] = len(self.facts), told
        self._clozes.add(told.cloze)
        self.facts.append(
            Fact(kind=told.kind, cloze=told.cloze, forms=told.forms, message=message, stale=stale, subject=told.subject)
        )


def _first(exchange: Exchange) -> Iterator[Told]:
    """The facts that its result tells first; those without names, of one subject, as one."""
    result = Text(exchange.result)
    told = [one for one in exchange.told if one.kind != "correction" and retains(one.forms, one.subject, result)]
    told.sort(key=lambda one: exchange.result.find(one.forms[0]))
    yield from [one for one in told if one.label][:_NOTED]
    together = [one for one in told if not one.label and one.forms[0] in exchange.result][:_TOGETHER]
    if together:
        yield replace(together[0], forms=(", ".join(dict.fromkeys(one.forms[0] for one in together)),))
