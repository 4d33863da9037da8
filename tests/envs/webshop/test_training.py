"""Training in the shop: demonstrations, one step of reinforcement learning, and MEM1's settings as a dry run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from precision import rounding
from tag_sets import PAPER_SHOP, PAPER_SHOP_NOTES

from mem1.api import find_recipe
from mem1.configuration import load_toml
from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.envs.webshop.catalogue import Entry
from mem1.envs.webshop.files import write_entries
from mem1.envs.webshop.invented import invent
from mem1.envs.webshop.tasks import WebShopTasks
from mem1.policy.folders import SHIPPED_SHOP
from mem1.policy.policy import Policy, load_policy, make_policy
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import bpe_tokenizer, shop_tokenizer
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Sft
from mem1.records import Ended
from mem1.rollout import Budget
from mem1.training.logprobs import completion_logprobs
from mem1.training.supervised import demonstrate
from mem1.training.train import make_rollout, train

TINY = TinyModel(hidden_size=32, layers=2, feed_forward=64, tokenizer="shop")
CONFIG = Recipe(
    model=ModelConfig(new=TINY),
    tasks=WebShopTasks(products=160, pages="short", prompt="plain"),
    budget=Budget(completion_extra=40),
    sft=Sft(steps=2, objectives=(1, 2), tasks=3, tokens=1024, warmup=0, decay=0),
    rl=Rl(curriculum=(Phase(steps=1, objectives=(1,)),), tasks_per_step=2, group_size=2, warmup=0),
    writers=(),
)


def test_a_recipe_demonstrates_and_learns_in_the_shop(tmp_path: Path):
    finished = train(CONFIG, tmp_path / "run", command=["test"])
    assert finished.complete
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 3
    assert '"reward"' in lines[2] and '"tool_failed"' not in lines[2]


def test_the_shipped_policy_has_the_tokenizer_of_the_shop_and_buys_something():
    policy = load_policy(SHIPPED_SHOP)
    assert policy.codec.tokenizer.get_vocab() == shop_tokenizer(PAPER_SHOP).get_vocab()
    config = CONFIG.model_copy(update={"budget": Budget(completion_extra=48)})
    source = config.tasks.source("evaluation", PAPER_SHOP)
    attempts = make_rollout(config, policy, source)(
        source.tasks(objectives=1, count=8, seed=0), sampling=Sampling(temperature=0.0, seed=0)
    )
    assert sum(t.ended is Ended.ANSWERED for t in attempts) >= 5
    assert sum(t.reward or 0.0 for t in attempts) / 8 > 0.25  # random clicks get 0.22


def test_demonstrations_buy_what_was_asked_for_and_are_trained_as_they_were_written():
    config = CONFIG.model_copy(update={"sft": Sft(objectives=(1,), tasks=6)})
    policy = make_policy(config)
    source = config.tasks.source("train", PAPER_SHOP)
    attempts = demonstrate(config, make_rollout(config, policy, source), source, PAPER_SHOP)
    assert [t.ended for t in attempts] == [Ended.ANSWERED] * 6
    assert sum(t.reward or 0.0 for t in attempts) / 6 > 0.9


@pytest.mark.parametrize("objectives", [1, 3])
def test_with_notes_what_was_tried_is_written_once_and_the_same_is_bought(objectives: int):
    found = {}
    for tags, context in ((PAPER_SHOP, "constant"), (PAPER_SHOP_NOTES, "notes")):
        config = CONFIG.model_copy(update={"memory": context, "sft": Sft(objectives=(objectives,), tasks=30)})
        source, policy = config.tasks.source("train", tags), make_policy(config)
        found[context] = demonstrate(config, make_rollout(config, policy, source), source, tags)
    several = 0
    for constant, noted in zip(found["constant"], found["notes"], strict=True):
        assert noted.reward == constant.reward
        assert [turn.content for turn in noted.turns] == [turn.content for turn in constant.turns]
        assert not any("tried" in turn.state for turn in noted.turns)
        notes = [note for turn in noted.turns for note in turn.notes]
        tried = {
            f"{turn.state.split(' ; ')[0]} {part}" if turn.state.startswith("goal") else part
            for turn in constant.turns
            for part in turn.state.split(" ; ")
            if part.startswith("tried")
        }
        assert len(notes) == len(tried) and set(notes) == tried, "each once"
        several += len(notes) > 1
    assert several > 5
    if objectives > 1:
        assert any(note.startswith("goal 2 tried") for t in found["notes"] for turn in t.turns for note in turn.notes)


def test_the_trainer_sees_what_the_sampler_saw():
    policy = make_policy(CONFIG)
    source = CONFIG.tasks.source("train", PAPER_SHOP)
    rollout = make_rollout(CONFIG, policy, source)
    attempts = rollout(source.tasks(objectives=1, count=2, seed=0), sampling=Sampling(seed=0))
    with torch.no_grad():
        per_turn = completion_logprobs(policy.model, attempts)
    compared = 0
    for attempt, turns in zip(attempts, per_turn, strict=True):
        for turn, logprobs in zip(attempt.turns, turns, strict=True):
            atol = rounding(policy.model, tokens=turn.num_tokens, magnitude=float(logprobs.abs().max()))
            torch.testing.assert_close(logprobs, torch.tensor(turn.logprobs), rtol=0, atol=atol)
            compared += len(turn.logprobs)
    assert compared > 20


@pytest.fixture
def general_model(tmp_path: Path) -> Path:
    """A stand-in for Qwen2.5-7B: the same architecture with two thin layers, and a tokenizer of bytes."""
    codec = Codec(bpe_tokenizer([], vocab_size=300, tags=PAPER_SHOP))
    shape = TinyModel(hidden_size=32, layers=2, feed_forward=64, look_back=())
    (tmp_path / "model").mkdir()
    Policy(new_model(shape, vocab_size=codec.vocab_size, seed=0), codec).save(tmp_path / "model")
    return tmp_path / "model"


def test_the_recipe_with_mem1s_settings_runs_with_another_model_and_catalogue(general_model: Path, tmp_path: Path):
    catalogue = invent(0, "train")
    write_entries(
        tmp_path / "shop.jsonl", [Entry(p, synthetic=catalogue.synthetic.get(p.asin)) for p in catalogue.products]
    )
    config = load_toml(
        find_recipe("webshop-7b"),
        Recipe,
        [
            f'model.path="{general_model}"',
            f'tasks.catalogue="{tmp_path / "shop.jsonl"}"',
            'tasks.goals="synthetic"',
            "tasks.turns_per_goal=2",
            "budget.completion_extra=8",
            "rl.tasks_per_step=2",
            "rl.curriculum=[{steps=1, objectives=[1]}]",
            "writers=[]",
        ],
    )
    assert config.rl is not None and config.rl.algorithm.name == "ppo"
    assert train(config, tmp_path / "run", command=["test"]).complete
    assert (tmp_path / "run" / "policy" / "model.safetensors").is_file()
