"""Models that cannot be packed are trained one context a row, and what samples them computes the same."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import MODEL
from precision import rounding
from terminals import Terminal
from terminals import terminal as terminal
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from worlds import CODEC

from mem1.engines.alike import unlike_sampler
from mem1.engines.base import Sampling
from mem1.engines.local import LocalEngine
from mem1.packing.attention import unpackable
from mem1.policy.policy import Policy
from mem1.records import Trajectory, Turn
from mem1.training.logprobs import completion_logprobs

SHAPE: dict[str, Any] = {
    **{"vocab_size": CODEC.vocab_size, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None},
}
WINDOW = 4096


def gemma(window: int = WINDOW) -> PreTrainedConfig:
    """A layer that looks back so many tokens, and one that sees all."""
    kinds = ["sliding_attention", "full_attention"]
    return Gemma3TextConfig(**SHAPE, num_hidden_layers=2, layer_types=kinds, sliding_window=window)


def mistral(window: int | None = WINDOW) -> PreTrainedConfig:
    return MistralConfig(**SHAPE, num_hidden_layers=2, sliding_window=window)


def made(config: PreTrainedConfig) -> PreTrainedModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return model


def largest_difference(model: PreTrainedModel) -> float:
    """Nats between the log-probs of the sampler and of the trainer, over two rounds of contexts of unequal length."""
    generator = torch.Generator().manual_seed(1)
    engine = LocalEngine(model, CODEC, ["</answer> </answer>"])
    contexts = [torch.randint(2, 500, (size,), generator=generator).tolist() for size in (5, 40, 23)]
    turns = []
    for seed in range(2):
        done = engine.complete(contexts, max_tokens=[30, 20, 25], sampling=Sampling(seed=seed))
        turns += zip(contexts, done, strict=True)
        contexts = [[*context, *one.token_ids, 7, 8] for context, one in zip(contexts, done, strict=True)]
    assert sum(len(one.token_ids) for _, one in turns) > 100
    made_turns = [Turn(context_ids=tuple(ids), completion_ids=one.token_ids) for ids, one in turns]
    (trained,) = completion_logprobs(model, [Trajectory(turns=tuple(made_turns))], packed=False)
    sampled = torch.tensor([p for _, one in turns for p in one.logprobs])
    return float((torch.cat([*trained]).detach() - sampled).abs().max())


@pytest.mark.numeric
@pytest.mark.parametrize("config", [gemma, mistral, lambda: mistral(None)], ids=["gemma3", "mistral", "no window"])
def test_the_sampler_computes_what_the_trainer_does(config: Callable[[], PreTrainedConfig]):
    model = made(config())
    assert unpackable(model) and not unlike_sampler(model.config, WINDOW)
    assert largest_difference(model) < rounding(MODEL, tokens=120, magnitude=30.0)


@pytest.mark.parametrize("config", [gemma, mistral])
def test_but_not_beyond_the_window_and_so_that_is_refused(config: Callable[[int], PreTrainedConfig]):
    model = made(config(16))
    assert largest_difference(model) > 0.1
    assert not unlike_sampler(model.config, 16)
    assert "look back 16 tokens, and contexts may have 100: set budget.context=16" in unlike_sampler(model.config, 100)


ANGLES: dict[str, dict[str, Any]] = {
    "dynamic": {"factor": 4.0},
    "longrope": {
        "factor": 4.0,
        "short_factor": [1.0] * 4,
        "long_factor": [1.0, 1.5, 2.5, 4.0],
        "original_max_position_embeddings": 64,
    },
}


@pytest.mark.parametrize(("kind", "positions"), [("dynamic", 64), ("longrope", 256)])
def test_nor_where_angles_follow_the_longest_context_beside_it(kind: str, positions: int):
    rope = {"rope_type": kind, "rope_theta": 10000.0, **ANGLES[kind]}
    model = made(LlamaConfig(**SHAPE, num_hidden_layers=2, max_position_embeddings=positions, rope_parameters=rope))
    assert largest_difference(model) > 0.1  # its longest context has 94 tokens
    assert not unlike_sampler(model.config, 64)
    assert "64" in unlike_sampler(model.config, 65) and "set budget.context=64" in unlike_sampler(model.config, 1000)


def test_nor_beyond_the_positions_of_the_model():
    config = mistral(None)
    config.max_position_embeddings = 2048
    assert not unlike_sampler(config, 2048)
    said = unlike_sampler(config, 4096)
    assert said == "it has 2,048 positions, and contexts may have 4,096: set budget.context=2048"
    config.rope_parameters = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}  # as the cards of Qwen say
    assert not unlike_sampler(config, 8192) and "it has 8,192 positions" in unlike_sampler(config, 8193)


RECIPE = """
model.path = "{start}"
protocol = "tags"
tasks = {{ kind = "atlas", entities = 40, worlds = 1, questions_per_world = 50 }}
budget = {{ completion_extra = 60, context = {context} }}
writers = []
[sft]
steps = 2
objectives = [1]
tasks = 4
tokens = 512
[rl]
curriculum = [{{ steps = 1, objectives = [1] }}]
tasks_per_step = 1
group_size = 2
entropy = 0.01  # the rewards of random models are equal
[evaluation]
objectives = [1]
tasks = 2
"""


@pytest.fixture(params=[pytest.param(gemma, marks=pytest.mark.slow), mistral])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    Policy(made(request.param()), CODEC).save(tmp_path / "start")
    return tmp_path / "start"


def test_a_recipe_trains_such_a_model_as_it_is_and_says_so_once(
    start: Path, tmp_path: Path, terminal: Terminal, caplog: pytest.LogCaptureFixture
):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(start=start, context=WINDOW))
    run = tmp_path / "run"
    assert terminal("train", recipe, "--out", run)[0] == 0
    said = [message for message in caplog.messages if "is trained one context a row" in message]
    assert len(said) == 1 and "ForCausalLM cannot be packed exactly: " in said[0]
    sft, _, rl = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    assert sft["loss"] > 0 and rl["sampler_trainer_max"] < rounding(MODEL, tokens=WINDOW, magnitude=30.0)

    caplog.clear()
    assert (
        terminal("train", recipe, "rl.packed=false", "sft=null", "--out", tmp_path / "unpacked", "--no-evaluate")[0]
        == 0
    )
    assert not [message for message in caplog.messages if "one context a row" in message]


def test_a_dry_run_says_so_and_a_window_that_is_too_short_is_an_error(start: Path, tmp_path: Path, terminal: Terminal):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(start=start, context=WINDOW))
    code, out, _ = terminal("train", recipe, "--dry-run", "--out", tmp_path / "run", "--json")
    checks = {check["name"]: check for check in json.loads(out)["checks"]}
    assert (
        code == 0 and checks["model"]["ok"] and checks["model"]["detail"].endswith("; it is trained one context a row")
    )
    for command in (("train", recipe, "--out", tmp_path / "run"), ("eval", recipe)):
        said = terminal.error(*command, f"budget.context={2 * WINDOW}")
        assert f"set budget.context={WINDOW}" in said and "cannot be sampled in this process" in said
    assert not (tmp_path / "run" / "config.toml").exists()


def test_layers_that_keep_a_state_are_refused():
    config = MistralConfig(**SHAPE)
    config.layer_types = ["linear_attention", "full_attention"]
    assert "layers of another kind than attention over all tokens (linear_attention)" in unlike_sampler(config, 10)
