"""`mem1 plan` of recipes with [chat]: what the template writes around a prompt is planned as it is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from chat_templates import QWEN3_LIKE, QWEN25_LIKE, tokenizer_with
from native_models import model_folder

from mem1.api import load_recipe
from mem1.dialogue import offered, open_dialogue
from mem1.engines.chat_messages import ChatMessages
from mem1.engines.codec import Codec
from mem1.planning.attempts import CHARACTERS_PER_TOKEN, Attempts, StepTokens, framing, limits, rl_attempts
from mem1.protocol import vocabulary
from mem1.recipe.recipe import Recipe


def recipe(model: Path | str, *overrides: str) -> Recipe:
    return load_recipe("atlas-quick", f"model.path={model}", "tasks.prompt=tools", *overrides)


@pytest.mark.parametrize("template", [QWEN25_LIKE, QWEN3_LIKE])
@pytest.mark.parametrize("words", ["paper", "paper-web"])
def test_a_planned_prompt_is_as_long_as_the_rendered_one(tmp_path: Path, template: str, words: str):
    folder = model_folder(tmp_path / "model", template)
    config = recipe(folder, "chat={}", f"vocabulary={words}")
    tags, codec = vocabulary(words), Codec.load(folder)
    (task,) = config.tasks.source("train", vocabulary("paper")).tasks(objectives=2, count=1, seed=0)
    dialogue = open_dialogue(codec, tags, chat=config.chat, framed=False, source=folder)
    around = len(dialogue.prompt(task)) - len(codec.encode(task.prompt))
    # the last piece of the template before the text, and the first behind it, may be one token with it
    assert framing(config) == pytest.approx(around, abs=2) and around > 100
    before = recipe(folder)
    assert limits(config, 2).prompt - limits(before, 2).prompt == framing(config)


def planned(config: Recipe) -> StepTokens:
    assert config.rl is not None
    return rl_attempts(config, config.rl, Attempts())[0]


def test_longer_prompts_are_read_in_every_context(tmp_path: Path):
    folder = model_folder(tmp_path / "model", QWEN3_LIKE)
    # of the same budget, which [chat] alone would raise to that of a general model
    room = ("budget.completion_per_objective=8", "budget.completion_extra=32")
    plain, chat = planned(recipe(folder, *room)), planned(recipe(folder, "chat={}", *room))
    assert chat.calls == plain.calls
    assert chat.prefill - plain.prefill == framing(recipe(folder, "chat={}")) * chat.calls


def test_actions_in_tags_need_no_schema():
    assert framing(recipe("shipped", 'chat={calls="tags"}')) == framing(recipe("shipped")) == 0


@pytest.mark.parametrize("words", ["paper", "paper-web"])
def test_a_model_that_is_not_at_hand_is_planned_from_the_length_of_its_schemas(words: str):
    tokenizer, codec = tokenizer_with(QWEN25_LIKE)
    tags = vocabulary(words)
    chat = ChatMessages.of(tokenizer, codec, where="the test")
    written = len(codec.decode(chat.encode([{"role": "user", "content": ""}], offered(tags))))
    guessed = framing(recipe("models/Qwen2.5-7B-Instruct", "chat={}", f"vocabulary={words}"))
    assert guessed * CHARACTERS_PER_TOKEN == pytest.approx(written, rel=0.1)
