"""The questions of several files as one pool: each text once, each id once, and one half of them where it is asked for.

read_pool(["nq.jsonl", "hotpot.json"], split="evaluation")  ->  Pool(questions=[...], passages=[...], repeats=3)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mem1.errors import UserError
from mem1.records import Passage, Question
from mem1.scoring import normalize
from mem1.tasks.datasets.fields import hashed
from mem1.tasks.datasets.reading import read_dataset
from mem1.tasks.datasets.splits import EVALUATION_SHARE, Split, split_of


@dataclass(frozen=True, slots=True)
class Pool:
    """Questions to compose tasks of."""

    questions: list[Question]
    passages: list[Passage]
    """All that come with the files, each once, whatever half their questions are in: distractors are needed too."""
    repeats: int
    """Questions left out because their text, after normalisation, stood before them."""


def read_pool(
    paths: Sequence[str],
    *,
    format: str | None = None,
    aliases: str | None = None,
    decompose: bool = False,
    split: Split | None = None,
    evaluation_share: float = EVALUATION_SHARE,
) -> Pool:
    """The questions of one half, or of both where `split` is None. Raises UserError where none is left.

    Of two questions with one id and different texts, as files numbered from 0 have them, the later one gets an id
    that is made from its text.
    """
    questions: dict[str, Question] = {}
    passages: dict[str, Passage] = {}
    ids: set[str] = set()
    repeats = 0
    for path in paths:
        data = read_dataset(path, format=format, aliases=aliases, decompose=decompose)
        passages.update((passage.id, passage) for passage in data.passages)
        for question in data.questions:
            if split is not None and split_of(question.text, evaluation_share=evaluation_share) != split:
                continue
            key = normalize(question.text) or question.text
            if key in questions:
                repeats += 1
                continue
            if question.id in ids:
                name = hashed(question.source or Path(path).name, question.text)
                question = dataclasses.replace(question, id=name)
            ids.add(question.id)
            questions[key] = question
    if not questions:
        raise UserError(f"no question of {', '.join(paths)} belongs to the {split} half; give more questions")
    return Pool(list(questions.values()), list(passages.values()), repeats)
