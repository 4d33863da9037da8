"""`mem1 data compose`, and evaluations whose questions depend on one another."""
# ruff: noqa: F811 (a fixture that is imported)

from __future__ import annotations

import json
from pathlib import Path

import pytest
from samples import BAMBOOGLE, HOTPOTQA, MUSIQUE, NQ, TRIVIAQA, write_json, write_lines, write_table
from test_cli import Terminal, terminal  # noqa: F401

from mem1.cli.eval import with_sizes
from mem1.cli.recipe_options import Chosen
from mem1.envs.search import MultihopTasks
from mem1.errors import UserError
from mem1.evaluation.metrics import OF_TIME
from mem1.protocol import PAPER
from mem1.retrieval.corpus import read_passages
from mem1.tasks.atlas import make_world
from mem1.tasks.compose import split_of
from mem1.tasks.datasets import read_questions, read_tasks


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
    terminal: Terminal, four_files: list[Path], tmp_path: Path
):
    out, corpus = tmp_path / "train.parquet", tmp_path / "corpus.jsonl"
    code, printed, _ = terminal(
        "data", "compose", *four_files, "--objectives", "2", "--out", out, "--passages", corpus, "--json"
    )
    assert code == 0
    assert json.loads(printed) == {
        "out": str(out),
        "tasks": 2,
        "objectives": 2,
        "questions": 5,
        "repeats_left_out": 1,
        "passages": 3,
    }
    assert [len(task) for task in read_tasks(out)] == [2, 2]
    assert len({q.text for task in read_tasks(out) for q in task}) == 4
    assert len(read_passages(corpus)) == 3


def test_a_data_source_without_a_published_reward_is_pointed_out(terminal: Terminal, tmp_path: Path):
    mine = write_lines(tmp_path / "mine.jsonl", {"id": "1", "text": "Who?", "answers": ["A"], "source": "mine"})
    options = ("data", "compose", mine, "--objectives", "1", "--out", tmp_path / "t.parquet")
    assert "no reward for data_source 'mine'" in terminal(*options)[2]
    assert "no reward" not in terminal(*options, "--data-source", "nq")[2]


def test_the_halves_written_by_two_commands_share_no_question(terminal: Terminal, tmp_path: Path):
    make_world(0, entities=60).save(tmp_path / "world", questions=120)
    files: dict[str, Path] = {}
    for half in ("train", "evaluation"):
        files[half] = tmp_path / f"{half}.jsonl"
        options = ("--objectives", "1", "--split", half, "--evaluation-share", "0.3", "--out", files[half])
        assert terminal("data", "compose", tmp_path / "world" / "questions.jsonl", *options)[0] == 0
    train, evaluation = ({q.text for q in read_questions(path)} for path in files.values())
    assert len(train) + len(evaluation) == len(train | evaluation) == 120
    assert {split_of(text, evaluation_share=0.3) for text in evaluation} == {"evaluation"}


def test_the_same_command_writes_the_same_file_and_another_seed_another(terminal: Terminal, tmp_path: Path):
    make_world(0, entities=60).save(tmp_path / "world", questions=40)
    written: list[bytes] = []
    for number, seed in enumerate(("0", "0", "1")):
        terminal(
            "data", "compose", tmp_path / "world" / "questions.jsonl", "--objectives", "4", "--seed", seed,
            "--out", tmp_path / f"{number}.jsonl",
        )  # fmt: skip
        written.append((tmp_path / f"{number}.jsonl").read_bytes())
    assert written[0] == written[1] != written[2]


@pytest.mark.parametrize(
    "command",
    [
        ("data", "compose", "hf:nobody/nothing:train", "--objectives", "2", "--out"),
        ("data", "compose", "hf:nobody/nothing:train", "--objectives", "2", "--out", "new.jsonl", "--passages"),
        ("data", "verl", "quickstart", "--objectives", "1", "--count", "1", "--out"),
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


def test_neighbours_of_one_source_are_composed_in_a_new_folder(terminal: Terminal, tmp_path: Path):
    a = write_lines(tmp_path / "a.jsonl", *({"question": f"who is a{i}", "answer": ["x"]} for i in range(5)))
    b = write_lines(tmp_path / "b.jsonl", *({"question": f"who is b{i}?", "answer": ["x"]} for i in range(2)))
    out = tmp_path / "new" / "deep" / "t.jsonl"
    options = ("--objectives", "2", "--composition", "consecutive", "--question-marks", "--out", out)
    assert terminal("data", "compose", a, b, *options)[0] == 0
    held_out = write_lines(tmp_path / "c.jsonl", {"question": "Who is a3?", "answer": ["x"]})
    apart = (*options[:-1], tmp_path / "apart.jsonl", "--without", held_out)
    assert terminal("data", "compose", a, b, *apart)[0] == 0
    assert "who is a3?" not in {q.text for task in read_tasks(tmp_path / "apart.jsonl") for q in task}
    texts = sorted(tuple(q.text for q in task) for task in read_tasks(out))
    assert texts == [("who is a0?", "who is a1?"), ("who is a2?", "who is a3?"), ("who is b0?", "who is b1?")]

    sources = [{"id": str(i), "text": f"q{i}", "answers": ["x"], "source": "aab"[i // 2]} for i in range(6)]
    questions = str(write_lines(tmp_path / "mixed.jsonl", *sources))
    config = MultihopTasks(questions=questions, corpus="none", composition="consecutive", question_marks=True)
    source = config.source("evaluation", PAPER)
    drawn = [[q.text for q in task.questions] for task in source.tasks(objectives=2, count=3, seed=0)]
    assert sorted(drawn) == [["q0?", "q1?"], ["q2?", "q3?"], ["q4?", "q5?"]]
    with pytest.raises(UserError, match="the file has 1 tasks of 3 objectives, not 2"):
        source.tasks(objectives=3, count=2, seed=0)


def test_chains_are_composed_of_single_hops(terminal: Terminal, tmp_path: Path):
    source, out = write_lines(tmp_path / "m.jsonl", MUSIQUE), tmp_path / "t.jsonl"
    options = ("--decompose", "--composition", "chain", "--depth", "2", "--count", "1")
    assert terminal("data", "compose", source, "--objectives", "3", "--out", out, *options)[0] == 0
    (questions,) = read_tasks(out)
    assert [q.depends_on for q in questions] == [(), (1,), (2,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--out", "t.csv"), "must end in .parquet (for MEM1's code) or .jsonl"),
        (("--split", "dev"), "--split takes train or evaluation, not 'dev'"),
        (("--depth", "2"), "--depth applies to the compositions chain, shared and comparison"),
        (("--composition", "braid"), "unknown composition 'braid'; known: independent, consecutive, chain, shared"),
        (("--composition", "chain"), "--count is missing"),
        (("--format", "squad"), "unknown dataset 'squad'; known: searchr1"),
        (("--decompose",), "only musique, 2wikimultihopqa can be decomposed"),
        (("--passages", "p.jsonl"), "--passages: these files come without passages"),
        (("--evaluation-share", "0", "--split", "evaluation"), "is in the evaluation half; give more questions"),
        (("--objectives", "9"), "9 objectives need 9 different questions, but there are 2"),
    ],
)
def test_what_cannot_be_composed_is_explained_and_nothing_is_written(
    terminal: Terminal, tmp_path: Path, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "nq.jsonl", NQ, {"question": "who owns berl", "answer": ["no one"]})
    code, out, err = terminal("data", "compose", "nq.jsonl", "--objectives", "2", "--out", "t.jsonl", *options)
    assert (code, out) == (2, "")
    assert message in err.replace("\n", " ")
    assert [path.name for path in tmp_path.iterdir()] == ["nq.jsonl"]


def test_an_evaluation_of_chains_gives_exact_match_by_depth(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
    source, corpus, tasks = write_lines(tmp_path / "m.jsonl", MUSIQUE), tmp_path / "c.jsonl", tmp_path / "t.parquet"
    chain = ("--decompose", "--composition", "chain", "--depth", "2")
    terminal(
        "data", "compose", source, *chain, "--count", "1", "--objectives", "3", "--out", tasks, "--passages", corpus
    )
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
