"""Atlas questions that refer to the answers of earlier ones; every answer is found by walking the world.

    chain        Q1 Velan Toris 's birthplace ?     Q2 answer Q1 's mayor ?
    shared       Q1 Velan Toris 's birthplace ?     Q2 answer Q1 's mayor ?     Q3 answer Q1 's twin ?
    comparison   Q1 Velan Toris 's birthplace ?     Q2 Dora Lint 's seat ?
                 Q3 answer Q1 ; answer Q2 's mayor is Sela Prand ?              -> the city whose mayor that is

All words are Atlas's own, so a policy that knows Atlas can read them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from mem1.records import Question
from mem1.tasks.atlas.world import POSSESSIVE, RELATIONS, World
from mem1.tasks.dependencies import Draft, Group, Material


@dataclass(frozen=True)
class AtlasMaterial(Material):
    """Questions of one world."""

    world: World
    hops: tuple[int, ...] = (1, 2)
    """Numbers of searches per question, in equal shares; comparisons need one."""
    tries: ClassVar[int] = 1000
    reference: ClassVar[str] = "answer Q{}"

    def shortage(self, size: int) -> str:
        return f"{self.world.name} is too small for such questions; give it more entities"

    def attempt(self, group: Group, taken: frozenset[str], rng: random.Random) -> list[Draft]:
        drafts: list[Draft] = []
        seen: set[str] = set()
        for references in group:
            before = [drafts[i].question.answers[0] for i in references]
            if len(before) == 2:
                made = self._compared(before[0], before[1], rng)
            else:
                start = before[0] if before else rng.choice(self.world.entities).name
                made = self._asked(start, bool(before), seen, rng)
            if made is None:
                return drafts
            drafts.append(made)
        return drafts

    def _asked(self, start: str, refers: bool, seen: set[str], rng: random.Random) -> Draft | None:
        """A question about `start`; None if it leads back to an entity of the group."""
        relations: tuple[str, ...] = ()
        names = [start]
        for _ in range(rng.choice(self.hops)):
            relations += (rng.choice(tuple(RELATIONS[self.world.kind_of[names[-1]]])),)
            names.append(self.world.facts[names[-1], relations[-1]])
        new = names[1:] if refers else names
        if len(set(relations)) < len(relations) or len(set(names)) < len(names) or seen & set(new):
            return None
        seen.update(new)
        question = self.world.question(relations, start)
        return Draft(question, ("", question.text.removeprefix(start)) if refers else (question.text,))

    def _compared(self, one: str, other: str, rng: random.Random) -> Draft | None:
        """A question which of two names has a certain value; None if their kinds differ or their values agree."""
        kind = self.world.kind_of[one]
        relation = rng.choice(tuple(RELATIONS[kind]))
        answer = rng.choice((one, other))
        if kind != self.world.kind_of[other] or one == other:
            return None
        values = {name: self.world.facts[name, relation] for name in (one, other)}
        if values[one] == values[other]:
            return None
        ends = f" {POSSESSIVE} {relation} is {values[answer]} ?"
        question = Question(
            id=f"{self.world.name}:{relation}:{one.replace(' ', '_')}|{other.replace(' ', '_')}",
            text=f"{one} ; {other}{ends}",
            answers=(answer,),
            source=self.world.name,
            hops=1,  # if it is not the one, it is the other
            passage_ids=(self.world.passage_id(one), self.world.passage_id(other)),
        )
        return Draft(question, ("", " ; ", ends))
