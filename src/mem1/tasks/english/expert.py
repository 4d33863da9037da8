"""A scripted expert for English worlds: the solver in tags, with the habits that a warm start is to show.

It searches for the titles of passages, or (`searches="questions"`) for a question of one hop as the task has it, with
its label: what follows the label there follows it here, which is the easiest thing to copy. With tags for notes, an
answer is written once, into a note, and the final answer is the notes:

    <IS> Q1; </IS> <query> Q1 Who is the mayor of Elmwick now? </query>
    <IS> Q1 then Q2; </IS> <note> Q1 Corin Ashmont </note> <query> Q2 When was Dunford founded? </query>
    <IS> Q2 then done; </IS> <note> Q2 1388 </note> <answer> notes </answer>

What follows is copied from the order at the end of the prompt `ordered`; otherwise a policy that has learnt to go on
would not know where to stop. Without notes, the state has the answers:

    <IS> Q1 then Q2; Q1 = Corin Ashmont; </IS> <query> Q2 When was Dunford founded? </query>
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Literal

from mem1.memory.notes import NOTES
from mem1.protocol import SUMMARY, Tags
from mem1.records import Task
from mem1.tasks.atlas import CLEAN, Laziness
from mem1.tasks.completions import completion, must_answer
from mem1.tasks.english.solver import SAW, Move, Solver, answer_of, lines_of
from mem1.tasks.prompts import DONE, THEN

Searches = Literal["titles", "questions"]
"""titles: the solver's searches, and a list of what they have shown. questions: where one search answers a question,
the question itself, labelled, and no list, which would grow with every search; a language model finds it easier."""
_NOTED = r"<{0}>\s*(Q\d+) ([^<]*[^<\s])\s*</{0}>"
_PLACE = rf"(<(?:{{}}|{SUMMARY})>\s*)(?:Q\d+{THEN})?(Q\d+);"
"""The place in a state, which the solver knows as "now Q2;"."""


@dataclass(frozen=True, kw_only=True)
class EnglishExpert:
    """Writes the next completion from the text of a context; a pure function of the context and the seed."""

    solver: Solver
    tags: Tags
    laziness: Laziness = CLEAN
    """`stop` and `forget` apply, in tasks that are not `diligent`. What has been noted stays: there `forget` is not to
    note the answer."""
    seed: int = 0
    searches: Searches = "titles"

    def __call__(self, context: str) -> str:
        """The completion. Raises StopIteration for an unknown task."""
        tags = self.tags
        task, rest = self.solver.task(context)
        rest = re.sub(_PLACE.format(tags.state), r"\1now \2;", rest)
        rest = rest if tags.note is None else re.sub(_NOTED.format(tags.note), r"\1 = \2;", rest)
        move = self.solver.move(f"{task.prompt} {rest}")
        before = {line.key for line in lines_of(rest) if line.answers}
        # where there are notes, what a correction says stays in the state, beside its day
        lasting = [line for line in move.lines if line.answers and (tags.note is None or line.mark == "=")]
        new = [line for line in lasting if line.key not in before]
        lines = [line for line in move.lines if line.key != SAW or self.searches == "titles"]
        search, rng = move.search, random.Random(f"{self.seed}/{context}")
        lazy = self.laziness.of(task.prompt, self.seed)
        answers = move.answer  # also of what its own memory has no room for
        if new and before and rng.random() < lazy.forget:
            lost = new[-1] if tags.note is not None else rng.choice([line for line in lines if line.answers])
            lines, new = ([line for line in some if line is not lost] for some in (lines, new))
            answers = answer_of(lines)
        if new and search and rng.random() < lazy.stop:
            search, answers = "", answer_of(lines)
        if tags.note is not None:
            late = new if must_answer(tags, context) else ()  # too late for a note
            lines = [line for line in lines if line.mark != "="]
            answers = "; ".join(filter(None, (NOTES, answer_of([*lines, *late]))))
        at = ["", *re.findall(r"\bnow (Q\d+)", rest)][-1]
        place, query = self._asked(task, move, at) if search else ("", "")
        if not search and self.searches == "questions":
            place = f"{at}{THEN}{DONE};"
        state = " ".join(filter(None, (place, *map(str, lines)))) or DONE
        notes = [f"{line.key} {line.value}" for line in new]
        return completion(tags, context, state=state, notes=notes, query=query, answers=answers)

    def _asked(self, task: Task, move: Move, at: str) -> tuple[str, str]:
        """(place, query): the question itself, where one search answers it and no rule forbids it.

        at      label of the question before; empty: there is none
        """
        found = re.match(r"now (Q(\d+))", move.now)
        if found is not None and self.searches == "questions" and not self.solver.rules:
            question = task.questions[int(found[2]) - 1]
            if question.hops == 1 and not question.depends_on:
                place = f"{at}{THEN}{found[1]};" if at not in ("", found[1]) else f"{found[1]};"
                return place, f"{found[1]} {question.text}"
        return move.now, move.search
