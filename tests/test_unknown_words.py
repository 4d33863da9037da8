"""A tokenizer that reads [UNK] in the place of words is refused before a number is computed with it."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
from test_cli import Terminal
from worlds import CODEC, SMALL, task

from mem1.configuration import load_toml
from mem1.engines.codec import Codec, check_words
from mem1.errors import UserError
from mem1.planning.preflight import dry_run
from mem1.protocol import PAPER
from mem1.records import Question, Task
from mem1.training.loop.recipe import ModelConfig, Recipe
from mem1.training.loop.train import make_stages
from mem1.training.weights.policy import make_policy
from mem1.training.weights.tokenizers import bpe_tokenizer

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
        make_stages(config, make_policy(config, PAPER))
    checks = {check.name: check for check in dry_run(config, out=tmp_path / "run").checks}
    assert not checks["tasks"].ok and REFUSED in checks["tasks"].detail
    shipped = Recipe(tasks=SMALL, rl=config.rl, model=ModelConfig())
    make_stages(shipped, make_policy(shipped, PAPER))
