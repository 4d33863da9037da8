"""Tasks of clozes: composed, mixed, hanging together, from a folder that was made or from documents themselves."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pydantic
import pytest
from cloze_documents import corpus
from terminals import Terminal
from terminals import terminal as terminal

from mem1.cli.options import expanded
from mem1.configuration import load_toml
from mem1.envs.base import Action
from mem1.envs.cloze import ClozeTasks, make_cloze_folder, open_cloze_folder
from mem1.errors import UserError
from mem1.policy.policy import make_policy
from mem1.protocol import PAPER
from mem1.recipe.recipe import Recipe
from mem1.records import Passage, Question, Task
from mem1.retrieval.index_folder import open_retriever, read_corpus
from mem1.tasks.cloze import BLANK, ClozeOptions
from mem1.tasks.cloze.compose import ClozeMaterial, compose_clozes, names_around
from mem1.tasks.cloze.questions import Ranked
from mem1.tasks.compose import PARTS, Dependence, Split, compose_dependent
from mem1.tasks.datasets import write_passages, write_questions
from mem1.tasks.prompts import TaskTemplate

OPTIONS = ClozeOptions(development=0.2, test=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("clozes") / "made"
    make_cloze_folder(corpus(120), out, OPTIONS, corpus="towns")
    return out


def ranked(passage: str, text: str, answer: str, rank: int = 1) -> Ranked:
    return Ranked(Question(id=f"{passage}:1", text=text, answers=(answer,), passage_ids=(passage,)), rank)


def compose(clozes: list[Ranked], objectives: int, count: int, *, seed: int = 0, real=(), share=0.0) -> list[Task]:
    form = TaskTemplate(prompt="cloze", tags=PAPER, corpus="c")
    return compose_clozes(clozes, real, form, share=share, objectives=objectives, count=count, seed=seed)


FIVE = [ranked(f"p{i}", f"the {i} was in {BLANK} then", f"A{i}") for i in range(5)]
TWICE = [*FIVE, *(ranked(f"p{i}", f"again {i} was in {BLANK} then", f"B{i}") for i in range(5))]


def test_a_task_has_one_question_of_a_passage_and_all_passages_are_asked_equally_often():
    tasks = compose(TWICE, 3, 50)
    passages = [[question.passage_ids[0] for question in task.questions] for task in tasks]
    assert all(len(set(names)) == 3 for names in passages)
    often = Counter(name for names in passages for name in names)
    assert max(often.values()) - min(often.values()) <= 5
    assert len({question.text for task in tasks for question in task.questions}) == 10


def test_the_same_seed_gives_the_same_tasks_and_more_of_them_begin_the_same():
    assert compose(TWICE, 2, 9, seed=1) == compose(TWICE, 2, 20, seed=1)[:9]
    assert compose(TWICE, 2, 9, seed=1) != compose(TWICE, 2, 9, seed=2)
    assert len({task.id for task in compose(TWICE, 2, 20)}) == 20


def test_real_questions_take_the_share_that_was_asked_for():
    real = [Question(id=f"r{i}", text=f"Who is {i}?", answers=("x",)) for i in range(5)]
    tasks = compose(FIVE, 2, 500, real=real, share=0.3)
    ids = [question.id for task in tasks for question in task.questions]
    assert 0.25 < sum(name.startswith("r") for name in ids) / len(ids) < 0.35
    assert all(len({q.id for q in task.questions}) == 2 for task in tasks)


@pytest.mark.parametrize(("share", "objectives"), [(0.0, 6), (0.5, 2)])
def test_too_few_passages_or_real_questions_are_named(share: float, objectives: int):
    with pytest.raises(UserError, match=r"there are 5 and 1; lower"):
        compose(FIVE, objectives, 1, share=share, real=[Question(id="r", text="Who?", answers=("x",))])


LINKED = [
    ranked("p0", f"it was founded by {BLANK} in the year", "Mira Toll"),
    ranked("p1", f"in {BLANK} the rich Mira Toll was born as", "Bergen"),
    ranked("p2", f"the mayor of Bergen is called {BLANK} by all", "Ada Brand"),
    ranked("p3", f"a street in Bergen was made by {BLANK} for", "Corm Lint"),
    ranked("p0", f"and so said Mira Toll to {BLANK} in the", "Dask Holm"),
]


def linked(clozes: list[Ranked], dependence: Dependence, depth: int, objectives: int, count: int = 20) -> list[Task]:
    return compose_dependent(
        ClozeMaterial(clozes),
        TaskTemplate(prompt="cloze", tags=PAPER),
        dependence=dependence,
        depth=depth,
        objectives=objectives,
        count=count,
        seed=0,
    )


def test_the_answer_of_one_cloze_is_a_name_in_the_window_of_the_next():
    for task in linked(LINKED, "chain", 2, 3):
        assert [q.depends_on for q in task.questions] == [(), (1,), (2,)]
        assert [q.text for q in task.questions[:2]] == [
            f"it was founded by {BLANK} in the year",
            f"in {BLANK} the rich the answer to Q1 was born as",
        ]
        assert "the answer to Q2" in task.questions[2].text and "Bergen" not in task.prompt
        assert len({q.passage_ids for q in task.questions}) == 3


def test_clozes_of_one_passage_are_not_linked():
    only = [LINKED[0], LINKED[4]]
    with pytest.raises(UserError, match="depend on one another in this way; lower the depth"):
        linked(only, "chain", 1, 2)


def test_two_clozes_share_a_name_and_a_comparison_is_by_the_alphabet():
    for task in linked(LINKED, "shared", 1, 3):
        assert {q.depends_on for q in task.questions[1:]} == {(1,)}
    for task in linked([*LINKED, *FIVE], "comparison", 1, 3):
        one, other, compared = task.questions
        assert compared.depends_on == (1, 2)
        assert compared.answers[0] == min(one.answers[0], other.answers[0])


def test_the_parts_around_a_name_are_the_window_without_it():
    text = f'so "Mira Toll\'s" {BLANK}, of Upper Bergen and Oslo, Oslo in 1901'
    found = names_around(text)
    assert set(found) == {"Mira Toll", "Upper Bergen"}, "Oslo stands twice, and a year is no name"
    assert all(before + name + after == text for name, (before, after) in found.items())


def test_a_folder_has_questions_by_part_an_index_and_a_readme(folder: Path):
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["index", "README.md", "statistics.json", *(f"{part}.jsonl.gz" for part in PARTS)]
    )
    opened = open_cloze_folder(folder, OPTIONS)
    known = opened.statistics()
    questions = {part: opened.questions(part) for part in PARTS}
    assert {part: len(found) for part, found in questions.items()} == known["parts"]
    passages = [{cloze.passage for cloze in found} for found in questions.values()]
    assert sum(map(len, passages)) == len(set.union(*passages)), "no passage is in two parts"
    assert list(read_corpus(folder)) == corpus(120)
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert f"{known['counts']['questions']:,} |" in text and "## Some of test" in text


def test_the_readme_shows_hostile_text_as_text(tmp_path: Path):
    hostile = [Passage(f"p|{i}", "", f"{p.text} ![x](http://x.example) `code` <b>") for i, p in enumerate(corpus(40))]
    made = make_cloze_folder(hostile, tmp_path / "out", ClozeOptions(left=12, right=12), corpus="a*b|c")
    text = (made.path / "README.md").read_text(encoding="utf-8")
    assert "a\\*b\\|c" in text and "p\\|" in text
    assert "](http" not in text and "<b>" not in text
    assert "\\]\\(http\\:" in text, "such a question must be among the samples"


def test_something_else_is_never_overwritten_and_a_folder_of_clozes_is(tmp_path: Path):
    for _ in range(2):
        make_cloze_folder(corpus(20), tmp_path / "out", ClozeOptions(), corpus="c")
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"holds notes\.txt, which is no part"):
        make_cloze_folder(corpus(20), tmp_path / "out", ClozeOptions(), corpus="c")
    with pytest.raises(UserError, match="is not a folder of clozes; move it away or choose"):
        make_cloze_folder(corpus(20), tmp_path / "out" / "notes.txt", ClozeOptions(), corpus="c")


@pytest.mark.parametrize("mine", ["README.md", "index/notes.txt", "train.jsonl.gz", "statistics.json", ".git/HEAD"])
def test_files_of_ones_own_with_the_names_of_a_folder_of_clozes_are_never_overwritten(tmp_path: Path, mine: str):
    file = tmp_path / "out" / mine
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    with pytest.raises(UserError, match="exists and is not a folder of clozes: it holds"):
        make_cloze_folder(corpus(20), tmp_path / "out", ClozeOptions(), corpus="c")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file] and file.read_text() == "mine"


def test_a_readme_that_was_written_into_is_not_replaced(tmp_path: Path):
    make_cloze_folder(corpus(20), tmp_path / "out", ClozeOptions(), corpus="c")
    (tmp_path / "out" / "README.md").write_text("my notes on these questions")
    with pytest.raises(UserError, match=r"README\.md is not as mem1 wrote it and is not replaced"):
        make_cloze_folder(corpus(20), tmp_path / "out", ClozeOptions(), corpus="c")
    assert (tmp_path / "out" / "README.md").read_text() == "my notes on these questions"


@pytest.mark.parametrize("manifest", ["{}", "[" * 100_000, '{"version": 1, "counts": {}}', '{"kind": "cloze"}', ""])
def test_a_folder_of_clozes_with_a_hand_made_manifest_is_refused_by_a_sentence(tmp_path: Path, manifest: str):
    made = make_cloze_folder(corpus(20), tmp_path / "out", ClozeOptions(), corpus="c")
    (made.path / "statistics.json").write_text(manifest)
    with pytest.raises(UserError, match="make it again with mem1 data"):
        open_cloze_folder(made.path, ClozeOptions())
    with pytest.raises(UserError, match="make it with mem1 data"):
        made.statistics()


def test_tasks_of_the_halves_share_no_passage_and_are_found_by_their_windows(folder: Path):
    config = ClozeTasks(corpus=str(folder), snippet_words=24, top_k=2)
    asked: dict[str, set[str]] = {}
    halves: tuple[Split, ...] = ("train", "evaluation")
    for half in halves:
        source = config.source(half, PAPER)
        tasks = source.tasks(objectives=3, count=20, seed=0)
        assert tasks == source.tasks(objectives=3, count=20, seed=0) != source.tasks(objectives=3, count=20, seed=1)
        questions = [(task, question) for task in tasks for question in task.questions]
        asked[half] = {question.passage_ids[0] for _, question in questions}
        seen = source.environment.observe([Action(task, "search", question.text) for task, question in questions])
        views = [q.answers[0] in s.text for (_, q), s in zip(questions, seen, strict=True)]
        assert sum(views) / len(views) > 0.9
        assert max(len(s.text.split()) for s in seen) == 48
    assert asked["train"] and not asked["train"] & asked["evaluation"]


def test_the_held_out_part_is_a_choice_and_hard_or_long_questions_can_be_left_out(folder: Path):
    def clozes(**options) -> set[str]:
        source = ClozeTasks(corpus=str(folder), **options).source("evaluation", PAPER)
        return {q.id for task in source.tasks(objectives=1, count=300, seed=0) for q in task.questions}

    assert clozes() and not clozes() & clozes(held_out="test")
    assert clozes(worst_rank=1) <= clozes()
    assert clozes(window_words=(10, 10)) <= clozes()
    with pytest.raises(UserError, match="no development clozes with this worst_rank and window_words"):
        clozes(window_words=(1, 2))


def test_real_questions_are_mixed_in_by_half(folder: Path, tmp_path: Path):
    for name in ("train", "test"):
        write_questions(
            tmp_path / f"{name}.jsonl",
            [Question(id=f"{name}{i}", text=f"What is {name} {i}?", answers=("x",)) for i in range(9)],
        )
    files: dict[str, Any] = {
        "questions": str(tmp_path / "test.jsonl"),
        "train_questions": str(tmp_path / "train.jsonl"),
    }
    config = ClozeTasks(corpus=str(folder), real=0.5, **files)
    halves: tuple[tuple[Split, str], ...] = (("train", "train"), ("evaluation", "test"))
    for half, name in halves:
        ids = [q.id for t in config.source(half, PAPER).tasks(objectives=2, count=40, seed=0) for q in t.questions]
        real = [i for i in ids if i.startswith(("train", "test"))]
        assert 20 < len(real) < 60 and all(i.startswith(name) for i in real)
    with pytest.raises(UserError, match="are also training questions"):
        twice: dict[str, Any] = {"questions": files["questions"], "train_questions": files["questions"]}
        ClozeTasks(corpus=str(folder), real=0.5, **twice).source("train", PAPER).tasks(objectives=1, count=1, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"real": 0.5}, "real questions need files: give questions, train_questions"),
        ({"real": 0.5, "questions": "q", "composition": "chain"}, "need composition = independent"),
        ({"depth": 2}, "depth applies to the compositions"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: dict, message: str):
    with pytest.raises(pydantic.ValidationError, match=message):
        ClozeTasks(corpus="c", **options)


def test_documents_are_made_into_clozes_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
    notes = tmp_path / "notes"
    notes.mkdir()
    for passage in corpus(30):
        (notes / f"{passage.id}.txt").write_text(passage.text)
    kept = [ClozeTasks(corpus=str(notes)).folder() for _ in range(2)]
    assert kept[0].path == kept[1].path and kept[0].path.parent == tmp_path / "cache"
    assert capsys.readouterr().err.replace("\n", "").count("Making clozes (once)") == 1
    assert ClozeTasks(corpus=str(notes), making=ClozeOptions(left=5)).folder().path != kept[0].path
    (notes / "p0.txt").write_text("Another text about Mira Toll, who lived there.")
    assert ClozeTasks(corpus=str(notes)).folder().path != kept[0].path
    with pytest.raises(UserError, match="check the path"):
        ClozeTasks(corpus=str(tmp_path / "nowhere")).folder()


def test_the_recipe_is_told_its_corpus_by_one_word():
    recipe = Path(__file__).parents[3] / "recipes" / "own-documents.toml"
    config = load_toml(recipe, Recipe, expanded(["corpus=notes", "seed=3"]))
    assert isinstance(config.tasks, ClozeTasks)
    assert (config.tasks.corpus, config.seed) == ("notes", 3)
    with pytest.raises(UserError, match=r"unknown key tasks\.corpus"):
        load_toml(recipe.with_name("atlas-quick.toml"), Recipe, expanded(["corpus=notes"]))


def test_a_new_tokenizer_is_made_of_the_documents(folder: Path):
    recipe = Path(__file__).parents[3] / "recipes" / "own-documents.toml"
    small = ["model.new.vocab_size=400", "model.new.layers=3", f"corpus={folder}"]
    policy = make_policy(load_toml(recipe, Recipe, expanded(small)))
    assert policy.codec.decode(policy.codec.encode(f"made by {BLANK} |")) == f"made by {BLANK} |"


def made(terminal: Terminal, folder: Path, name: str, *options: str) -> tuple[int, str, str]:
    return terminal("data", "tasks.kind=cloze", "--corpus", folder / "c.jsonl", "--out", folder / name, *options)


def test_the_command_writes_the_same_folder_twice(terminal: Terminal, tmp_path: Path):
    write_passages(tmp_path / "c.jsonl", corpus(40))
    written = []
    for name in ("a", "b"):
        code, out, _ = made(terminal, tmp_path, name, "tasks.making.test=0.2", "--json")
        assert code == 0
        printed = json.loads(out)
        assert printed["counts"]["questions"] == sum(printed["parts"].values()) > 0
        written.append([(tmp_path / name / f"{part}.jsonl.gz").read_bytes() for part in PARTS])
    assert written[0] == written[1]
    assert open_retriever(tmp_path / "a").search(["anything"], 1) is not None
    code, out, _ = made(terminal, tmp_path, "a", "tasks.making.left=5")
    assert code == 0 and f"{tmp_path / 'a'}/README.md has numbers and samples" in out
    assert re.search(r"a: [\d,]+ for train, [\d,]+ for development, [\d,]+ for test;", out)
    assert "left 5" in (tmp_path / "a" / "README.md").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("tasks.making.development=0.6", "tasks.making.test=0.6"), "their sum must be below 1"),
        (("tasks.making.test=1.5",), "tasks.making.test (from the command line): input should be less than 1"),
    ],
)
def test_what_cannot_be_made_is_explained(terminal: Terminal, tmp_path: Path, options: tuple[str, ...], message: str):
    write_passages(tmp_path / "c.jsonl", corpus(5))
    code, out, err = made(terminal, tmp_path, "x", *options)
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")
    assert not (tmp_path / "x").exists()


def test_a_script_is_evaluated_on_clozes(terminal: Terminal, folder: Path):
    options = (
        "tasks.kind=cloze",
        "--corpus",
        folder,
        "--objectives",
        "2",
        "--limit",
        "3",
        "budget.completion_extra=300",
    )
    script = ("engine.kind=script", "engine.answer=Q1 nobody", "--tokenizer", "stand-in", "--json")
    code, out, _ = terminal("eval", *options, *script)
    assert code == 0
    (row,) = json.loads(out)["rows"]
    assert (row["objectives"], row["tasks"]) == (2, 3)
    assert "required key tasks.corpus is missing" in terminal.error("eval", "tasks.kind=cloze", "--limit", "1")


def test_parts_without_a_question_are_named(terminal: Terminal, tmp_path: Path):
    write_passages(tmp_path / "c.jsonl", corpus(5))
    code, out, err = made(terminal, tmp_path, "a", "tasks.making.test=0")
    assert code == 0 and " 0 for test;" in out and "no question for" in err and "test: give more text" in err
