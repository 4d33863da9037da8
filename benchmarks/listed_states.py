"""A reward for Atlas under constant memory: the harness lists the answers of an attempt from all its states.

Under notes the harness writes the list of answers, and the other memories write it themselves. This takes the writing
away from them, for training and for evaluation:

    mem1 train beyond/... tasks.reward=listed_states:listed

A state lists the answers found so far, `Q1 Moru Kest Q3 Ana Brul now Q4 Dora Lint 's seat ? Q4 last`. Of a question
that several states answer, the first counts, as the later ones are copies of it; the answer that the policy wrote adds
the questions that no state has.
"""

from __future__ import annotations

import re

from mem1.records import Ended, Task, Trajectory
from mem1.scoring import score_answers

_ENTRY = re.compile(r"\bQ(\d{1,4})((?: (?!Q\d)[A-Z]\w*)+)")
_WORKING = re.compile(r"\bnow\b.*", re.DOTALL)


def listed_answer(attempt: Trajectory) -> str:
    """The list of answers, such as "Q1 Moru Kest; Q3 Ana Brul"."""
    answers: dict[int, str] = {}
    for text in [*(_WORKING.sub("", turn.state) for turn in attempt.turns), attempt.answer]:
        for label, name in _ENTRY.findall(text):
            answers.setdefault(int(label), name.strip())
    return "; ".join(f"Q{label} {name}" for label, name in sorted(answers.items()))


def listed(task: Task, attempt: Trajectory) -> float:
    """The number of right answers in the list; 0 if the attempt never answered."""
    if attempt.ended is not Ended.ANSWERED:
        return 0.0
    return sum(score_answers(listed_answer(attempt), [q.answers for q in task.questions], task.numbers).em)
