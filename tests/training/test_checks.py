"""A tokenizer that reads [UNK] in the place of words is refused before a number is computed with it."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
from terminals import Terminal
from worlds import CODEC, SMALL, task

from mem1.configuration import load_toml
from mem1.engines.codec import Codec, check_words
from mem1.envs.search import MultihopTasks
from mem1.errors import UserError
from mem1.planning.preflight import dry_run
from mem1.policy.policy import make_policy
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.records import Question, Task
from mem1.tasks.atlas import make_world
from mem1.training.train import make_stages

REFUSED = "of the tokens of the questions are unknown to the tokenizer of"
terminal = pytest.fixture(lambda capsys, monkeypatch: Terminal(capsys, monkeypatch))


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    """Two questions over one passage, in English."""
    asked = [{"id": "a", "text": "Who founded Alvex?", "answers": ["Jonas Toll"]}]
    asked.append({"id": "b", "text": "Where does Jonas Toll live?", "answers": ["Bergen"]})
    passage = {"id": "p", "title": "Alvex", "text": "Jonas Toll founded Alvex in Bergen."}
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    (tmp_path / "passages.jsonl").write_text(json.dumps(passage) + "\n")
    return ("--questions", str(tmp_path / "questions.jsonl"), "--corpus", str(tmp_path / "passages.jsonl"))


def asked(*texts: str) -> Task:
    questions = tuple(Question(id=f"q{i}", text=text, answers=("x",)) for i, text in enumerate(texts))
    return replace(task("x"), questions=questions, prompt="")


def test_a_fifth_of_unknown_tokens_is_refused_a_hundredth_is_named_and_none_is_silent(caplog):
    caplog.set_level(logging.WARNING)
    known = "mayor mayor"
    check_words(CODEC, [asked(*[known] * 99)], PAPER, whose="it")
    assert caplog.text == ""
    check_words(CODEC, [asked(*[known] * 49, "mayor qzx")], PAPER, whose="it")  # 1 of 100
    assert "1% of the tokens of the questions are unknown to the tokenizer of it" in caplog.text
    with pytest.raises(UserError, match=rf"^20% {REFUSED} it, so it cannot read them; give a model with"):
        check_words(CODEC, [asked(known, known, known, "mayor qzx", "qzx mayor")], PAPER, whose="it")


def test_a_question_of_unknown_words_is_not_hidden_in_a_long_prompt_of_known_ones():
    with pytest.raises(UserError, match=REFUSED):
        check_words(CODEC, [replace(asked("who founded alvex"), prompt="mayor " * 200)], PAPER, whose="it")


def test_a_tokenizer_of_bytes_knows_every_word():
    codec = Codec(bpe_tokenizer(["x"], vocab_size=300, tags=PAPER))
    assert (codec.unknown_id, CODEC.unknown_id) == (None, 1)
    check_words(codec, [asked("Who founded Älvex 北京?")], PAPER, whose="it")


def test_a_script_is_not_scored_in_tokens_that_cannot_write_its_answer(terminal: Terminal, files: tuple[str, ...]):
    answer = ("engine.kind=script", "engine.answer=Q1 Jonas Toll")
    script = ("eval", *files, *answer, "--objectives", "1", "--limit", "2")
    said = " ".join(terminal.error(*script).split())
    assert f"{REFUSED} scripted" in said and "--tokenizer stand-in" in said
    code, out, _ = terminal(*script, "--tokenizer", "stand-in", "budget.completion_extra=500", "--json")
    assert code == 0
    assert json.loads(out)["rows"][0]["em"] == 0.5, "one of the two answers is right"


@pytest.mark.parametrize(
    "command", [("eval",), ("verify",), ("run", "--question", "Who founded Alvex?")], ids=lambda command: command[0]
)
def test_the_shipped_policy_is_refused_on_ones_own_text(terminal: Terminal, files: tuple[str, ...], command):
    given = files if command[0] != "run" else files[2:]
    assert f"{REFUSED} " in " ".join(terminal.error(*command, *given).split())


def test_training_the_shipped_policy_on_ones_own_text_is_refused_and_a_dry_run_says_so(files, tmp_path: Path):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        f"""[tasks]
kind = "multihop"
questions = "{files[1]}"
train_questions = "{files[1]}"
corpus = "{files[3]}"
[rl]
tasks_per_step = 1
group_size = 2
[[rl.curriculum]]
steps = 1
objectives = [1]
"""
    )
    other = tmp_path / "train.jsonl"
    other.write_text(json.dumps({"id": "t", "text": "Which town is known for mills?", "answers": ["Bergen"]}) + "\n")
    config = load_toml(recipe, Recipe, [f"tasks.train_questions={other}"])
    with pytest.raises(UserError, match=f"{REFUSED} the shipped policy"):
        make_stages(config, make_policy(config))
    checks = {check.name: check for check in dry_run(config, out=tmp_path / "run").checks}
    assert not checks["tasks"].ok and REFUSED in checks["tasks"].detail
    shipped = Recipe(tasks=SMALL, rl=config.rl, model=ModelConfig())
    make_stages(shipped, make_policy(shipped))


@pytest.fixture
def atlas(tmp_path: Path) -> tuple[str, ...]:
    """Questions and passages of an invented world, whose words the shipped policy knows, in files."""
    for split in ("train", "evaluation"):
        make_world(0, split=split, entities=40).save(tmp_path / split, questions=20)
    passages = "".join((tmp_path / split / "passages.jsonl").read_text() for split in ("train", "evaluation"))
    (tmp_path / "passages.jsonl").write_text(passages)
    return (
        "--questions",
        str(tmp_path / "evaluation" / "questions.jsonl"),
        "--corpus",
        str(tmp_path / "passages.jsonl"),
    )


def test_instructions_that_the_policy_has_not_learnt_are_told_from_questions_that_it_cannot_read(terminal, atlas):
    asked = ("eval", *atlas, "--model", "shipped", "--objectives", "1", "--limit", "2")
    said = " ".join(terminal.error(*asked, "tasks.prompt=mem1").split())
    assert "of the tokens of the prompt are unknown to the tokenizer of" in said and REFUSED not in said
    assert "not the language of the instructions around them. Set tasks.prompt=plain" in said
    for own in ((), ("tasks.prompt=plain",)):  # a policy of ours gets the prompt that it was trained with
        assert terminal(*asked, *own, "--json")[0] == 0


@pytest.mark.parametrize(("style", "unknown"), [("titled", True), ("bare", False)])
def test_results_that_the_policy_cannot_read_are_said_by_a_dry_run_and_by_the_run(
    atlas, tmp_path: Path, caplog, style: str, unknown: bool
):
    tasks = {
        "kind": "multihop",
        "questions": atlas[1],
        "train_questions": str(tmp_path / "train" / "questions.jsonl"),
        "corpus": atlas[3],
        "prompt": "plain",
        "style": style,
    }
    rl = Rl(curriculum=(Phase(steps=1, objectives=(1,)),), tasks_per_step=1, group_size=2)
    config = Recipe(tasks=tasks, rl=rl)  # type: ignore[arg-type]  # validated
    said = (
        r"\d\d% of the tokens of the results are unknown to the tokenizer of the shipped policy, which reads \[UNK\] in"
    )
    (check,) = (check for check in dry_run(config, out=tmp_path / "run").checks if check.name == "results")
    assert check.ok, "less than a fifth"
    assert bool(re.match(said, check.detail)) is unknown and ("tasks.style=bare" in check.detail) is unknown
    caplog.set_level(logging.WARNING)
    make_stages(config, make_policy(config))
    assert len(re.findall(said, caplog.text)) == unknown, "once"


def test_a_sample_of_results_reads_the_first_passages_alone(tmp_path: Path):
    lines = [json.dumps({"id": str(n), "title": "Alvex", "text": "a b c"}) for n in range(20)]
    (tmp_path / "p.jsonl").write_text("\n".join([*lines, "{ broken"]))
    tasks = MultihopTasks(questions="none.jsonl", corpus=str(tmp_path / "p.jsonl"), passage_words=2)
    assert tasks.results() == ["Doc 1 (Title: Alvex) a b"] * 8
    assert MultihopTasks(questions="none.jsonl", corpus=str(tmp_path / "missing")).results() == ()


def test_a_new_model_with_words_of_another_world_is_refused_by_a_dry_run(files, tmp_path: Path):
    new = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48)
    tasks = {"kind": "multihop", "questions": files[1], "train_questions": files[1], "corpus": files[3]}
    rl = Rl(curriculum=(Phase(steps=1, objectives=(1,)),), tasks_per_step=1, group_size=2)
    other = tmp_path / "train.jsonl"
    other.write_text(json.dumps({"id": "t", "text": "Which town is known for mills?", "answers": ["Bergen"]}) + "\n")
    config = Recipe(model=ModelConfig(new=new), tasks={**tasks, "train_questions": str(other)}, rl=rl)  # type: ignore[arg-type]
    checks = {check.name: check for check in dry_run(config, out=tmp_path / "run").checks}
    assert REFUSED in checks["tasks"].detail and not checks["tasks"].ok and not checks["results"].ok
