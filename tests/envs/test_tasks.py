"""What the configurations of question tasks have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pydantic
import pytest
from cloze_documents import corpus
from samples import HOTPOTQA, write_lines

from mem1.envs.atlas import AtlasTasks
from mem1.envs.cloze import ClozeTasks, make_cloze_folder
from mem1.envs.english import EnglishTasks
from mem1.envs.search import MultihopTasks
from mem1.envs.tasks import QuestionTasks, made_tasks
from mem1.errors import UserError
from mem1.evaluation.metrics import scorer_names
from mem1.protocol import PAPER
from mem1.records import Ended, Trajectory
from mem1.tasks.cloze import ClozeOptions
from mem1.tasks.english.families import LEVELS, smallest

SMALL: dict[str, Any] = {"entities": 60, "worlds": 1}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[type[QuestionTasks], dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("tasks")
    make_cloze_folder(corpus(60), folder / "clozes", ClozeOptions(development=0.2, test=0.2), corpus="towns")
    questions = write_lines(folder / "q.jsonl", {"id": "1", "question": "Which code?", "answers": ["-4 Bq"]})
    passages = write_lines(folder / "c.jsonl", {"id": "p", "title": "Code", "text": "The code is -4 Bq."})
    return {
        "atlas": (AtlasTasks, {**SMALL, "questions_per_world": 60}),
        "cloze": (ClozeTasks, {"corpus": str(folder / "clozes")}),
        "english": (EnglishTasks, SMALL),
        "multihop": (MultihopTasks, {"questions": str(questions), "corpus": str(passages)}),
    }


@pytest.mark.parametrize("kind", ["atlas", "cloze", "english", "multihop"])
def test_every_kind_of_questions_takes_a_scorer(
    kind: str, kinds: dict[str, tuple[type[QuestionTasks], dict[str, Any]]]
):
    made, settings = kinds[kind]
    given = {"squad": (1.0, 1.0, 0.0), "exact": (1.0, 0.0, 0.0), "mem1.scoring:contains": (1.0, 1.0, 1.0)}
    for scorer, expected in given.items():
        source = made(scorer=scorer, **settings).source("evaluation", PAPER)
        (task,) = source.tasks(objectives=1, count=1, seed=0)
        gold = task.questions[0].answers[0]
        answers = (gold, f"#{gold}", f"It is {gold} now")
        assert tuple(source.environment.score(task, answer).reward for answer in answers) == expected
        assert scorer_names([Trajectory(turns=(), ended=Ended.ANSWERED, task=task)]) == scorer
    assert made(**settings).scorer == "squad"


@pytest.mark.parametrize("family", LEVELS)
def test_the_families_of_english_keep_the_scorer(family: Any):
    source = EnglishTasks(family=family, scorer="exact", **SMALL).source("evaluation", PAPER)
    for task in source.tasks(objectives=smallest(family, 1), count=3, seed=0):
        assert task.scorer == "exact"
        golds = "; ".join(question.answers[0] for question in task.questions)
        assert source.environment.score(task, golds).metrics["em"] == (1.0,) * task.objectives


def test_an_unknown_scorer_is_refused():
    with pytest.raises((UserError, pydantic.ValidationError), match="nosuch"):
        AtlasTasks(scorer="nosuch")
    with pytest.raises(pydantic.ValidationError, match="must be a function"):
        AtlasTasks(scorer="mem1.scoring:SQUAD")


def test_a_task_of_the_default_scorer_is_written_as_before():
    assert QuestionTasks().template(PAPER, "c").scorer == ""
    assert QuestionTasks(scorer="exact").template(PAPER, "c", labels=9).labels == 9


def files(folder: Path, **records: list[dict[str, Any]]) -> MultihopTasks:
    """Tasks with a file of questions for each key."""
    passages = write_lines(folder / "p.jsonl", {"id": "p", "title": "Alvex", "text": "Mira Toll founded it."})
    named = {key: str(write_lines(folder / f"{key}.jsonl", *lines)) for key, lines in records.items()}
    return MultihopTasks.model_validate({"corpus": str(passages), **named})


def chain(name: str) -> dict[str, Any]:
    """A composed task whose second question says nothing without the first."""
    born = {"id": f"{name} 2", "text": "Where was the answer to Q1 born?", "answers": ["Bergen"], "depends_on": [1]}
    return {
        "id": name,
        "questions": [{"id": f"{name} 1", "text": f"Who founded {name}?", "answers": ["Mira Toll"]}, born],
    }


def test_development_questions_that_depend_on_others_are_told_by_their_ids(tmp_path: Path):
    halves = {"questions": [chain("Alvex")], "train_questions": [chain("Berl")]}
    tasks = files(tmp_path, **halves, development_questions=[chain("Cern")]).model_copy(update={"composition": "file"})
    assert [q.id for ((group,),) in [tasks.development().half("evaluation")] for q in group] == ["Cern 1", "Cern 2"]
    renamed = chain("Berl")
    renamed["questions"][0] |= {"id": "x", "text": "Name the founder of Berl."}
    tasks = files(tmp_path, **halves, development_questions=[renamed]).model_copy(update={"composition": "file"})
    with pytest.raises(
        UserError,
        match=r"^1 of 2 questions of tasks\.development_questions = '.*' are also questions of .*train_questions\.jsonl"
        r", by text or id: 'Berl 2' \(Where was",
    ):
        tasks.development()


def test_files_that_number_their_questions_alike_may_be_of_development_and_of_an_evaluation(tmp_path: Path):
    def numbered(what: str) -> list[dict[str, Any]]:
        return [{"id": f"dev_{n}", "text": f"Who made {what} {n}?", "answers": ["Mira Toll"]} for n in range(2)]

    named = {"questions": numbered("cider"), "train_questions": [{**numbered("beer")[0], "id": "train_0"}]}
    developed = files(tmp_path, **named, development_questions=numbered("ale")).development()
    assert [q.text for file in developed.half("evaluation") for (q,) in file] == ["Who made ale 0?", "Who made ale 1?"]
    with pytest.raises(UserError, match=r"are also questions of .*, by text or id: 'dev_0' \(Who made cider 0"):
        files(tmp_path, **named, development_questions=numbered("cider")).development()


def test_what_a_source_yields_is_taken_as_a_list():
    class Own:
        def tasks(self, **asked: Any) -> Any:
            return (task for task in AtlasTasks(**SMALL).source("train", PAPER).tasks(**asked))

    assert len(made_tasks(cast(Any, Own()), objectives=2, count=3, seed=0)) == 3


def test_the_paragraphs_of_development_questions_are_given_too(tmp_path: Path):
    named = ("questions", "train_questions", "development_questions")
    tasks = files(tmp_path, **{key: [{**HOTPOTQA, "_id": key, "context": [[key, ["A river."]]]}] for key in named})
    assert [passage.title for passage in tasks.given_passages()] == list(named)
