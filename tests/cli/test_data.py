"""`mem1 data`: files of tasks, and evaluations whose questions depend on one another."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from samples import BAMBOOGLE, HOTPOTQA, MUSIQUE, NQ, TRIVIAQA, write_json, write_lines, write_table
from terminals import Terminal
from terminals import terminal as terminal

from mem1.cli.eval import with_sizes
from mem1.cli.options import Chosen
from mem1.envs.search import MultihopTasks
from mem1.errors import UserError
from mem1.evaluation.metrics import OF_TIME
from mem1.protocol import PAPER
from mem1.retrieval.corpus import read_passages
from mem1.tasks.atlas import make_world
from mem1.tasks.compose import Split, split_of
from mem1.tasks.datasets import read_questions, read_tasks

Write = Callable[..., Path]


@pytest.fixture
def recipe(tmp_path: Path) -> Write:
    """Writes a recipe with these files of questions and lines of [tasks]."""

    def written(files: Sequence[Path], *lines: str) -> Path:
        path = tmp_path / "recipe.toml"
        listed = f"questions = {json.dumps(list(map(str, files)))}"
        path.write_text("\n".join(['[tasks]\nkind = "multihop"\ncorpus = "none"', listed, *lines, ""]))
        return path

    return written


@pytest.fixture
def four_files(tmp_path: Path) -> list[Path]:
    """Four data sets, one question that stands in two of them."""
    return [
        write_lines(tmp_path / "nq.jsonl", NQ, {"question": "who owns berl", "answer": ["no one"]}),
        write_json(tmp_path / "hotpot.json", [HOTPOTQA]),
        write_json(
            tmp_path / "trivia.json",
            {"Data": [TRIVIAQA, {**TRIVIAQA, "QuestionId": "x", "Question": "Who owns Berl?"}]},
        ),
        write_table(tmp_path / "bamboogle.csv", BAMBOOGLE),
    ]


def test_questions_of_several_data_sets_become_one_file_of_tasks(
    terminal: Terminal, recipe: Write, four_files: list[Path], tmp_path: Path
):
    out, corpus = tmp_path / "train.parquet", tmp_path / "corpus.jsonl"
    options = ("--objectives", "2", "--limit", "2", "--out", out, "--passages", corpus, "--json")
    code, printed, _ = terminal("data", recipe(four_files), *options)
    assert code == 0
    told = {"out": str(out), "tasks": 2, "objectives": [2], "split": "evaluation", "passages": 3}
    assert json.loads(printed) == told
    assert [len(task) for task in read_tasks(out)] == [2, 2]
    assert len({q.text for task in read_tasks(out) for q in task}) == 4
    assert len(read_passages(corpus)) == 3
    whole = MultihopTasks(questions=tuple(map(str, four_files)), corpus="none").source("evaluation", PAPER)
    assert sum(question.text.casefold().startswith("who owns berl") for question in whole.questions) == 1  # type: ignore[attr-defined]


def test_the_tasks_that_are_written_are_those_that_an_evaluation_asks(
    terminal: Terminal, recipe: Write, four_files: list[Path], tmp_path: Path
):
    out = tmp_path / "t.jsonl"
    asked = ("--objectives", "1,2", "--limit", "2", "--seed", "3")
    assert terminal("data", recipe(four_files), *asked, "--out", out)[0] == 0
    source = MultihopTasks(questions=tuple(map(str, four_files)), corpus="none").source("evaluation", PAPER)
    ones, twos = (source.tasks(objectives=n, count=2, seed=3) for n in (1, 2))
    assert read_tasks(out) == [task.questions for pair in zip(ones, twos, strict=True) for task in pair]
    assert terminal("data", recipe(four_files), *asked, "--out", tmp_path / "t.parquet")[0] == 0
    assert read_tasks(tmp_path / "t.parquet") == read_tasks(out), "tasks of one question and of two in one file"


def test_a_data_source_without_a_published_reward_is_pointed_out(terminal: Terminal, recipe: Write, tmp_path: Path):
    for source, end in (("mine", "parquet"), ("nq", "parquet"), ("mine", "jsonl")):
        mine = write_lines(tmp_path / "mine.jsonl", {"id": "1", "text": "Who?", "answers": ["A"], "source": source})
        out = tmp_path / f"{source}.{end}"
        said = terminal("data", recipe([mine]), "--objectives", "1", "--limit", "1", "--out", out)[2]
        assert ("no reward for the source 'mine'" in said) == (out.name == "mine.parquet")


TRAIN = 87
"""Of 120 questions those whose hash is at least 0.3; more are not there to be written."""


def test_the_halves_share_no_question(terminal: Terminal, recipe: Write, tmp_path: Path):
    make_world(0, entities=60).save(tmp_path / "world", questions=120)
    config = recipe([tmp_path / "world" / "questions.jsonl"], "evaluation_share = 0.3", 'composition = "consecutive"')
    files: dict[str, Path] = {}
    for half, count in (("train", TRAIN), ("evaluation", 120 - TRAIN)):
        files[half] = tmp_path / f"{half}.jsonl"
        options = ("--objectives", "1", "--limit", str(count), "--split", half, "--out", files[half])
        code, _, said = terminal("data", config, *options)
        assert code == 0, said
    train, evaluation = ({q.text for q in read_questions(path)} for path in files.values())
    assert len(train) + len(evaluation) == len(train | evaluation) == 120
    assert {split_of(text, evaluation_share=0.3) for text in evaluation} == {"evaluation"}


def test_the_same_command_writes_the_same_file_and_another_seed_another(
    terminal: Terminal, recipe: Write, tmp_path: Path
):
    make_world(0, entities=60).save(tmp_path / "world", questions=40)
    config = recipe([tmp_path / "world" / "questions.jsonl"])
    written: list[bytes] = []
    for number, seed in enumerate(("0", "0", "1")):
        out = tmp_path / f"{number}.jsonl"
        terminal("data", config, "--objectives", "4", "--limit", "10", "--seed", seed, "--out", out)
        written.append(out.read_bytes())
    assert written[0] == written[1] != written[2]


@pytest.mark.parametrize(
    "command",
    [
        ("data", "atlas-quick", "--out"),
        ("data", "atlas-quick", "--out", "new.jsonl", "--passages"),
        ("webshop", "load", "nowhere", "--out"),
        ("report", "nowhere", "--format", "csv", "--out"),
    ],
    ids=lambda command: f"{command[0]} {command[1]} {command[-1]}",
)
def test_a_file_that_stands_at_the_name_of_an_output_is_never_replaced(
    terminal: Terminal, tmp_path: Path, command: tuple[str, ...]
):
    (tmp_path / "mine.jsonl").write_text("years of work")
    code, _, said = terminal(*command, tmp_path / "mine.jsonl")
    assert code == 2 and "mine.jsonl exists and is not replaced; delete it or choose another name" in said
    assert (tmp_path / "mine.jsonl").read_text() == "years of work"


def drawn(config: MultihopTasks, half: Split, objectives: int, count: int) -> list[list[str]]:
    tasks = config.source(half, PAPER).tasks(objectives=objectives, count=count, seed=0)
    return sorted([q.text for q in task.questions] for task in tasks)


def test_neighbours_of_one_source_in_one_file_are_composed(tmp_path: Path):
    a = write_lines(tmp_path / "a.jsonl", *({"question": f"who is a{i}", "answer": ["x"]} for i in range(5)))
    b = write_lines(tmp_path / "b.jsonl", *({"question": f"who is b{i}?", "answer": ["x"]} for i in range(2)))
    held_out = write_lines(tmp_path / "c.jsonl", {"question": "Who is a3?", "answer": ["x"]})
    consecutive: dict[str, Any] = {"corpus": "none", "composition": "consecutive", "question_marks": True}
    both = (str(a), str(b))
    pairs = [["who is a0?", "who is a1?"], ["who is a2?", "who is a3?"], ["who is b0?", "who is b1?"]]
    assert drawn(MultihopTasks(questions=both, **consecutive), "evaluation", 2, 3) == pairs
    trained = MultihopTasks(questions=str(held_out), train_questions=both, without=str(held_out), **consecutive)
    pairs[1] = ["who is a2?", "who is a4?"]
    assert drawn(trained, "train", 2, 3) == pairs

    sources = [{"id": str(i), "text": f"q{i}", "answers": ["x"], "source": "aab"[i // 2]} for i in range(6)]
    mixed = MultihopTasks(questions=str(write_lines(tmp_path / "mixed.jsonl", *sources)), **consecutive)
    assert drawn(mixed, "evaluation", 2, 3) == [["q0?", "q1?"], ["q2?", "q3?"], ["q4?", "q5?"]]
    with pytest.raises(UserError, match="the file has 1 tasks of 3 objectives, not 2"):
        drawn(mixed, "evaluation", 3, 2)


def test_chains_are_composed_of_single_hops_into_a_new_folder(terminal: Terminal, recipe: Write, tmp_path: Path):
    source, out = write_lines(tmp_path / "m.jsonl", MUSIQUE), tmp_path / "new" / "deep" / "t.jsonl"
    config = recipe([source], "decompose = true", 'composition = "chain"', "depth = 2")
    assert terminal("data", config, "--objectives", "3", "--limit", "1", "--out", out)[0] == 0
    (questions,) = read_tasks(out)
    assert [q.depends_on for q in questions] == [(), (1,), (2,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "t.csv"), "the name of a file of tasks ends in .jsonl, .jsonl.gz or .parquet"),
        (("--split", "dev"), "--split takes train or evaluation, not 'dev'"),
        (("tasks.depth=2",), "depth applies to the compositions chain, shared and comparison"),
        (("tasks.composition=braid",), "tasks.composition"),
        (("tasks.format=squad",), "unknown dataset 'squad'; known: searchr1"),
        (("tasks.decompose=true",), "only musique, 2wikimultihopqa can be decomposed"),
        (("--passages", "p.jsonl"), "--passages: these tasks come without passages"),
        (("--passages", "./t.jsonl"), "--passages: --out is written there; give another file"),
        (("--split", "train"), "tasks.train_questions is missing: give a file of questions to train on"),
        (("tasks.evaluation_share=1e-9",), "is in the evaluation half; give more questions"),
        (("tasks.evaluation_share=0.5", "tasks.train_questions=nq.jsonl"), "give train_questions or evaluation_share"),
        (("tasks.composition=file", "tasks.without=nq.jsonl", "tasks.format=nq"), "without, format: needs files of"),
        (("--objectives", "9"), "9 objectives need 9 different questions, but there are 2"),
    ],
)
def test_what_cannot_be_composed_is_explained_and_nothing_is_written(
    terminal: Terminal, tmp_path: Path, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "nq.jsonl", NQ, {"question": "who owns berl", "answer": ["no one"]})
    given = ("--questions", "nq.jsonl", "--corpus", "none", "--objectives", "2", "--limit", "1", "--out", "t.jsonl")
    code, out, err = terminal("data", *given, *options)
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["nq.jsonl"]


def test_clozes_of_documents_become_a_folder(terminal: Terminal, tmp_path: Path):
    text = "After the fire of 1923 the old mill near the river was rebuilt by Jonas Toll with money from the town."
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mill.md").write_text(f"# Mill\n\n{text}")
    options = ("tasks.making.development=0", "tasks.making.test=0", "--json")
    code, printed, said = terminal(
        "data", "own-documents", f"corpus={tmp_path / 'notes'}", "--out", tmp_path / "c", *options
    )
    assert code == 0, said
    told = json.loads(printed)
    assert told["parts"] == {"train": told["counts"]["questions"], "development": 0, "test": 0}
    assert {q.answers[0] for q in read_questions(tmp_path / "c" / "train.jsonl.gz")} == {"1923", "Jonas Toll"}


@pytest.mark.parametrize("command", ["data own-documents corpus=../notes", "index ../notes"])
def test_the_folder_that_one_is_in_is_no_place_for_a_new_one(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
):
    for name in ("notes", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "notes" / "mill.md").write_text("# Mill\n\nAfter the fire of 1923 the old mill was rebuilt.")
    monkeypatch.chdir(tmp_path / "here")
    said = terminal.error(*command.split(), "--out", ".")
    assert "is the folder that you are in, which cannot be replaced; name one in it" in said
    assert not list((tmp_path / "here").iterdir())


def test_half_a_pair_of_surrogates_is_told_where_a_table_cannot_hold_it(
    terminal: Terminal, recipe: Write, tmp_path: Path
):
    pytest.importorskip("pyarrow")
    line = '{"question": "who owns \\ud83d berl", "answer": ["no one"]}\n'
    (tmp_path / "nq.jsonl").write_text(line)
    asked = ("data", recipe([tmp_path / "nq.jsonl"]), "--objectives", "1", "--limit", "1", "--out")
    assert "surrogates not allowed; nothing was changed" in terminal.error(*asked, tmp_path / "t.parquet")
    assert not (tmp_path / "t.parquet").exists()


def test_an_evaluation_of_chains_gives_exact_match_by_depth(
    terminal: Terminal, recipe: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
    source, corpus, tasks = write_lines(tmp_path / "m.jsonl", MUSIQUE), tmp_path / "c.jsonl", tmp_path / "t.parquet"
    config = recipe([source], "decompose = true", 'composition = "chain"', "depth = 2")
    terminal("data", config, "--objectives", "3", "--limit", "1", "--out", tasks, "--passages", corpus)
    data = (
        "--corpus",
        corpus,
        "--objectives",
        "3",
        "--limit",
        "1",
        "tasks.prompt=plain",
        "budget.completion_extra=300",
    )
    answer = ("engine.kind=script", "engine.answer=Q1 nobody ; Q2 nobody ; Q3 nobody")
    script = (*answer, "--tokenizer", "stand-in", "--json")
    same = ("tasks.decompose=true", "tasks.composition=chain", "tasks.depth=2")
    rows = [
        json.loads(terminal("eval", *data, "--questions", path, *options, *script)[1])["rows"][0]
        for path, options in ((source, same), (tasks, ("tasks.composition=file",)))
    ]
    for row in rows:
        assert (row["objectives"], row["em"], row["em_by_depth"]) == (3, 0.0, {"0": 0.0, "1": 0.0, "2": 0.0})
    assert rows[0] == {**rows[1], **{key: rows[0][key] for key in OF_TIME}}, (
        "composed while evaluating, or before: the same task"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("tasks.depth=2",), "tasks"),
        (("tasks.composition=file",), "tasks.composition"),
        (("tasks.composition=braid",), "tasks.composition"),
        (("tasks.decompose=true",), "unknown key tasks.decompose"),
        (("tasks.composition=chain", "tasks.depth=3", "--objectives", "2"), "needs at least 4 objectives, not 2"),
    ],
)
def test_a_composition_that_makes_no_sense_is_explained(terminal: Terminal, options: tuple[str, ...], message: str):
    code, out, err = terminal("eval", *options, "engine.kind=script", "engine.answer=Q1 nobody", "--limit", "1")
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ((), (1, 2, 4, 8, 16)),
        (("tasks.composition=chain", "tasks.depth=3"), (4, 8, 16)),
        (("tasks.composition=comparison",), (4, 8, 16)),
        (("tasks.composition=shared", "tasks.depth=20"), (22,)),
        (("tasks.composition=chain", "tasks.depth=3", "evaluation.objectives=[1,2]"), (1, 2)),
    ],
)
def test_without_objectives_the_usual_sizes_that_allow_the_depth_are_evaluated(
    settings: tuple[str, ...], sizes: tuple[int, ...]
):
    chosen = Chosen.of(settings, {})
    assert with_sizes(chosen, chosen.load()).evaluation.objectives == sizes


def test_a_recipe_may_lie_in_a_folder_with_an_equals_sign(tmp_path: Path):
    (tmp_path / "lr=1e-4").mkdir()
    (tmp_path / "lr=1e-4" / "config.toml").write_text("seed = 3\n")
    path, long = str(tmp_path / "lr=1e-4" / "config.toml"), f"evaluation.objectives=[1,{' ' * 400}2]"
    assert Chosen.of([path, "seed=4"], {}) == Chosen(path, ("seed=4",))
    assert Chosen.of([long, "seed=4"], {}) == Chosen(None, (long, "seed=4"))
