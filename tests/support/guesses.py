"""How likely a question about an English world is answered by somebody who searches nothing."""

from __future__ import annotations

from mem1.records import Question
from mem1.scoring import normalize
from mem1.tasks.english.questions import _NUMBERS, Asker, key_of
from mem1.tasks.english.world import RELATIONS


def candidates(asker: Asker, question: Question) -> tuple[str, ...]:
    """Answers among which somebody who reads only the question would choose, equally likely; empty: too many."""
    world, (relation, kind) = asker.world, key_of(question)
    subject = question.titles[-1]
    if kind == "odd":
        return asker._details(subject, relation, kind).options
    about = RELATIONS[world.entities[subject].kind][relation]
    if kind == "count":
        return tuple(_NUMBERS[about.low : about.high + 1])
    if kind == "list" or about.value in ("date", "number"):
        return ()
    if about.value == "year":
        return tuple(str(year) for year in range(about.low, about.high + 1))
    if about.value == "river":
        return tuple(sorted({fact.values[0] for (_, name), fact in world.facts.items() if name == "river"}))
    return tuple(name for name in world.by_kind[about.value] if name not in question.titles)


def chance(asker: Asker, question: Question) -> float:
    """Probability that a candidate drawn at random is right."""
    found, right = candidates(asker, question), {normalize(answer) for answer in question.answers}
    return sum(normalize(one) in right for one in found) / max(1, len(found))
