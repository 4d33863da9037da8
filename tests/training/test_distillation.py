"""docs/training.md, Distillation: its commands, with a scripted chat server as the large model."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from builders import chat_folder
from corpora import TOWNS
from model_servers import Model, model_site
from released import call
from samples import write_lines

from mem1.configuration import load_toml
from mem1.engines.codec import Codec
from mem1.policy.policy import load_policy
from mem1.policy.protocol import ResolvedProtocol
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.recipe import Recipe
from mem1.run_folder import read_metrics
from mem1.training.recorded import read_recorded
from mem1.trajectory_files import read_trajectories

PAGE = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
SECTION = PAGE.split("### Distillation")[1].split("\n### ")[0]
RECIPE = PAGE.split("## SFT on recorded attempts")[1].split("```toml\n")[1].split("```")[0]
KNOWN = {"capital of Norway": "Oslo", "capital of Sweden": "Stockholm", "founded Alvex": "Mira Toll", "rainy": "Bergen"}


def large_model(context: str) -> str:
    """Searches once, then answers what it was asked, one question wrongly if there are four."""
    asked = sorted((context.index(words), answer) for words, answer in KNOWN.items() if words in context)
    if "[HINT] You have" not in context:
        return f"<IS> {len(asked)} open </IS> <query> Norway </query>"
    answers = [answer for _, answer in asked]
    return f"<IS> known </IS> <answer> {'; '.join([*answers[:3], *('Rome' for _ in answers[3:])])} </answer>"


def questions(opening: str) -> list[dict[str, object]]:
    return [
        {"id": f"{opening} {words}", "text": f"{opening} {words}?", "answers": [answer]}
        for words, answer in KNOWN.items()
    ]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the page names."""
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "train.jsonl", *questions("Name the"))
    write_lines(tmp_path / "dev.jsonl", *questions("Which is the"))
    write_lines(tmp_path / "wiki.jsonl", *({"id": p.id, "title": p.title, "text": p.text} for p in TOWNS))
    chat_folder(tmp_path / "models" / "Qwen2.5-0.5B")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path


def test_the_commands_of_the_page_train_a_model_with_another_tokenizer_on_what_a_chat_server_said(
    folder: Path, caplog: pytest.LogCaptureFixture
):
    evaluate, train, compare = re.findall(r"^mem1 (.*)$", SECTION, flags=re.M)
    served = Codec(bpe_tokenizer(["the capital of Norway"], vocab_size=400, tags=PAPER))
    with model_site(Model(served, large_model, prefill=True), chat_only=True) as site:
        address = ("engine.endpoint=chat", "--limit", "2")
        call(*shlex.split(evaluate.replace("http://127.0.0.1:8000/v1", site.url)), *address)
    recorded = {size: read_trajectories(next(folder.glob(f"runs/big/evaluation/*-{size}.jsonl"))) for size in (1, 2, 4)}
    assert {size: [t.reward for t in attempts] for size, attempts in recorded.items()} == {
        **{1: [1, 1], 2: [2, 2], 4: [3, 3]}
    }
    call(*shlex.split(train), "sft.steps=2", "sft.tokens=4096", "--no-evaluate")
    said = "4 of 6 attempts in 3 files are trained; 2 left out: with a reward below 2; 4 encoded anew from their text"
    assert said in caplog.text
    assert len(read_metrics(folder / "runs" / "small" / "metrics.jsonl")) == 2
    noted = json.loads((folder / "runs" / "small" / "resolved.json").read_text())["sft"]
    assert (noted["trained"], noted["encoded_anew"]) == (4, 4)
    policy = load_policy(folder / "runs" / "small" / "policy")
    sft = load_toml(folder / "recipe.toml", Recipe).sft
    assert sft is not None
    for attempt in read_recorded(sft, policy.dialogue(ResolvedProtocol(tags=PAPER))).trajectories:
        assert policy.codec.encode_untrusted(attempt.turns[-1].text, PAPER) == attempt.turns[-1].completion_ids
    tiny = ("budget.completion_extra=2", "budget.completion_per_objective=1", "--limit", "1", "--out", "runs/compared")
    call(*shlex.split(compare), *tiny)
    assert recorded[2][0].task is not None
    instructions = recorded[2][0].task.prompt.split("Name the")[0]
    (attempt,) = read_trajectories(next(folder.glob("runs/compared/*-2.jsonl")))
    compared = policy.codec.decode(attempt.turns[0].context_ids)
    assert len(instructions) > 500 and compared.startswith(f"<|im_start|>user\n{instructions}")
