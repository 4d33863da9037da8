"""Rows with a judge's opinion beside exact match.

judge = open_judge("http://127.0.0.1:8000/v1", "qwen3-32b", folder=Path("runs/a"))
judge_rows(rows, trajectories, judge)[0].judge   ->  Judged(correct=0.71, judged=0.99, agreement=0.93, kappa=0.85)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mem1.errors import UserError
from mem1.evaluation.judge import Judge, JudgeServer, Verdict
from mem1.evaluation.judge_prompt import JUDGE_VERSION, Asked
from mem1.evaluation.row import Judged, Row
from mem1.evaluation.verdicts import Verdicts
from mem1.records import Trajectory
from mem1.scoring import split_answers

FILE = "verdicts.jsonl"


def open_judge(url: str | None, model: str | None, *, folder: Path | None) -> Judge | None:
    """The judge that the options ask for, which remembers in `folder`; None: none is asked for.

    Raises UserError where one of the options is missing, or the folder's verdicts cannot be read.
    """
    if url is None and model is None:
        return None
    if url is None or model is None:
        raise UserError("a judge needs both --judge-url and --judge-model")
    server = JudgeServer(base_url=url, model=model)
    return Judge(server, verdicts=Verdicts(None if folder is None else folder / FILE, model=model))


def judge_rows(
    rows: Sequence[Row],
    trajectories: Mapping[int, Sequence[Trajectory]],
    judge: Judge,
    *,
    on_progress: Callable[[int, int, int], None] | None = None,
) -> list[Row]:
    """The rows with `judge` filled in; `trajectories` are those of each row, by its number of objectives.

    Rows whose answers are no texts (a shop) stay as they are. `on_progress` is told (objectives of a row, answers
    done, answers to ask for). Raises ValueError for a trajectory without its task.
    """

    def with_judge(row: Row) -> Row:
        tell = None if on_progress is None else partial(on_progress, row.objectives)
        return replace(row, judge=judged(trajectories[row.objectives], judge, on_reply=tell))

    return [row if row.contains is None else with_judge(row) for row in rows]


def judged(
    trajectories: Sequence[Trajectory], judge: Judge, *, on_reply: Callable[[int, int], None] | None = None
) -> Judged:
    """Every answer of every attempt; where there is no answer it is wrong, as for exact match."""
    verdicts = judge([asked for trajectory in trajectories for asked in answers(trajectory)], on_reply=on_reply)
    em = [bool(score) for t in trajectories for score in (t.em or (0.0,) * _objectives(t))]
    pairs = [(v.correct, e) for v, e in zip(verdicts, em, strict=True) if v.correct is not None]
    return Judged(
        model=judge.server.model,
        version=JUDGE_VERSION,
        correct=_share([correct for correct, _ in pairs]),
        judged=len(pairs) / len(verdicts),
        agreement=_share([correct == e for correct, e in pairs]),
        kappa=kappa(pairs),
        failures=_failures(verdicts),
    )


def answers(trajectory: Trajectory) -> list[Asked]:
    """One for each question of the task, with an empty prediction where there is no answer."""
    if trajectory.task is None:
        raise ValueError("a trajectory has no task, so its questions are not known; keep the task when rolling out")
    questions = trajectory.task.questions
    given = split_answers(trajectory.answer, len(questions))
    return [Asked(q.text, q.answers, answer) for q, answer in zip(questions, given, strict=True)]


def kappa(pairs: Sequence[tuple[bool, bool]]) -> float | None:
    """Cohen's: (agreement - agreement by chance) / (1 - agreement by chance); None where chance explains all.

    Source: Cohen, "A coefficient of agreement for nominal scales", 1960.
    """
    if not pairs:
        return None
    one, other = (sum(column) / len(pairs) for column in zip(*pairs, strict=True))
    observed = sum(a == b for a, b in pairs) / len(pairs)
    chance = one * other + (1 - one) * (1 - other)
    return None if chance == 1 else (observed - chance) / (1 - chance)


def _failures(verdicts: Sequence[Verdict]) -> dict[str, int]:
    return dict(Counter(verdict.why for verdict in verdicts if verdict.correct is None).most_common())


def _objectives(trajectory: Trajectory) -> int:
    return 0 if trajectory.task is None else trajectory.task.objectives


def _share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None
