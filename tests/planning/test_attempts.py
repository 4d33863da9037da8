"""`mem1 plan` of recipes whose model calls tools: what the template writes around a prompt is planned as it is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_templates import QWEN3_LIKE, QWEN25_LIKE, tokenizer_with
from native_models import model_folder

from mem1.api import load_recipe
from mem1.dialogue import offered
from mem1.engines.chat_messages import ChatMessages
from mem1.engines.codec import Codec
from mem1.evaluation.tokens import even_sizes
from mem1.memory import memory_policy
from mem1.packing import split_into_packs
from mem1.planning.attempts import (
    CHARACTERS_PER_TOKEN,
    Attempts,
    StepTokens,
    framing,
    limits,
    made_groups,
    pack_tokens,
    rl_attempts,
)
from mem1.policy.protocol import resolve
from mem1.protocol import PAPER
from mem1.recipe.recipe import Recipe

SIZES = even_sizes(prompt=60, state=30, action=10, result=40, turns=3)


def recipe(model: Path | str, *overrides: str) -> Recipe:
    return load_recipe("atlas-quick", f"model.path={model}", "tasks.prompt=tools", *overrides)


@pytest.mark.parametrize("template", [QWEN25_LIKE, QWEN3_LIKE])
@pytest.mark.parametrize("add", [[], ["open"]])
def test_a_planned_prompt_is_as_long_as_the_rendered_one(tmp_path: Path, template: str, add: list[str]):
    folder = model_folder(tmp_path / "model", template)
    config = recipe(folder, "protocol.kind=tools", f"protocol.add={add}")
    codec = Codec.load(folder)
    (task,) = config.tasks.source("train", PAPER).tasks(objectives=2, count=1, seed=0)
    dialogue = resolve(config).dialogue(codec, folder)
    around = len(dialogue.prompt(task)) - len(codec.encode(task.prompt))
    # the last piece of the template before the text, and the first behind it, may be one token with it
    assert framing(config) == pytest.approx(around, abs=2) and around > 100
    before = recipe(folder, "protocol=tags")
    assert limits(config, 2).prompt - limits(before, 2).prompt == framing(config)


def planned(config: Recipe) -> StepTokens:
    assert config.rl is not None
    return rl_attempts(config, config.rl, Attempts())[0]


def test_longer_prompts_are_read_in_every_context(tmp_path: Path):
    folder = model_folder(tmp_path / "model", QWEN3_LIKE)
    # of the same budget, which calls of tools alone would raise to that of a general model
    room = ("budget.completion_per_objective=8", "budget.completion_extra=32")
    plain, chat = planned(recipe(folder, "protocol=tags", *room)), planned(recipe(folder, "protocol=tools", *room))
    assert chat.calls == plain.calls
    assert chat.prefill - plain.prefill == framing(recipe(folder, "protocol=tools")) * chat.calls


@pytest.mark.parametrize("known", ["sizes", "a group"])
def test_a_pack_is_as_full_as_that_of_a_step_however_few_attempts_are_given(known: str):
    """Of groups of two a pack takes many, and a file of a step holds one group."""
    config = load_recipe("atlas-quick", "rl.tasks_per_step=64", "rl.group_size=2", "rl.pack_tokens=16384")
    assert config.rl is not None
    [group] = made_groups(memory_policy(config.memory), SIZES, groups=1, attempts=2)
    sizes, recorded = Attempts(sizes=SIZES), Attempts(recorded=tuple(group))
    tokens, pack = rl_attempts(config, config.rl, sizes if known == "sizes" else recorded)
    assert 0.9 * 16384 < tokens.largest_pack == len(pack.tree) <= 16384
    every, _ = rl_attempts(config, config.rl.model_copy(update={"pack_tokens": 10**9}), sizes)
    assert tokens.attempts == every.attempts == 128 and tokens.trained == pytest.approx(every.trained, rel=0.01)


def test_of_more_attempts_than_a_step_has_some_are_planned_and_of_fewer_copies():
    config = load_recipe("atlas-quick", "rl.tasks_per_step=4", "rl.group_size=2", "rl.pack_tokens=1000000")
    assert config.rl is not None
    for given in (1000, 8, 5, 1):
        groups = made_groups(memory_policy(config.memory), SIZES, groups=given, attempts=1)
        tokens, pack = rl_attempts(config, config.rl, Attempts(recorded=tuple(group[0] for group in groups)))
        assert (tokens.attempts, tokens.packs, len(pack.trajectories)) == (8, 1, 8)


def test_a_step_of_unpacked_attempts_has_the_packs_that_training_makes():
    shape = ("rl.tasks_per_step=64", "rl.group_size=2", "rl.pack_tokens=4096", "memory=full", "rl.packed=false")
    config = load_recipe("atlas-quick", *shape)
    assert config.rl is not None
    tokens, pack = rl_attempts(config, config.rl, Attempts(sizes=SIZES))
    every = [t for g in made_groups(memory_policy("full"), SIZES, groups=64, attempts=2) for t in g]
    packs = split_into_packs(every, max_tokens=4096, whole=config.rl.algorithm.needs_whole_trajectories)
    sizes = [pack_tokens(pack, packed=False) for pack in packs]
    assert tokens.packs == len(packs) and tokens.largest_pack == max(sizes) == pack_tokens(pack, packed=False)


@pytest.mark.parametrize("memory", ["full", "summary(300)", "constant"])
def test_an_attempt_ends_where_its_context_and_a_completion_pass_the_budget(memory: str):
    added = ["summary"] if memory.startswith("summary") else []
    sizes = (f"memory={memory}", f"protocol.add={added}", "rl.curriculum=[{steps=1,objectives=[8]}]")
    free, bound = (planned(load_recipe("atlas-quick", *sizes, f"budget.context={n}")) for n in (10**6, 1024))
    assert bound.longest <= 1024 and bound.calls > bound.attempts
    assert (bound == free) == (memory != "full"), "other contexts do not grow so far"


def test_actions_in_tags_need_no_schema():
    assert framing(recipe("shipped", "agent.entry=builtins:print")) == framing(recipe("shipped")) == 0


@pytest.mark.parametrize("add", [[], ["open"]])
def test_a_model_that_is_not_at_hand_is_planned_from_the_length_of_its_schemas(add: list[str]):
    tokenizer, codec = tokenizer_with(QWEN25_LIKE)
    config = recipe("models/Qwen2.5-7B-Instruct", "protocol.kind=tools", f"protocol.add={add}")
    tags = resolve(config).tags
    chat = ChatMessages.of(tokenizer, codec, where="the test")
    written = len(codec.decode(chat.encode([{"role": "user", "content": ""}], offered(tags))))
    guessed = framing(config)
    assert guessed * CHARACTERS_PER_TOKEN == pytest.approx(written, rel=0.1)
