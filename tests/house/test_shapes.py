"""FLOPs as a model really does them: torch counts the multiplications of a forward pass, the formula must agree."""

from __future__ import annotations

import pytest
import torch
from builders import VOCABULARY, tiny_model, trajectory
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3MoeConfig,
)

from mem1.evaluation.tokens import ModelShape, config_shape, forward_flops, model_shape
from mem1.policy.folders import policy_folder
from mem1.policy.policy import load_config, load_policy

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 10,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}


def measured(model: PreTrainedModel, tokens: int) -> int:
    """FLOPs of one pass that gives logits for all tokens and scores for all pairs, also those of the future."""
    model.set_attn_implementation("eager")  # torch does not count what its fused kernels do on a CPU
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        model(torch.zeros(1, tokens, dtype=torch.long), use_cache=False)
    return counter.get_total_flops()


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
@pytest.mark.parametrize("tokens", [2, 7])
def test_the_formula_gives_what_torch_counts(kind: str, tokens: int):
    model = tiny_model(kind, dtype=torch.float32)
    shape = model_shape(model)
    assert shape is not None
    call = trajectory(([1] * (tokens - 1), [1]))  # one token is sampled: one row of logits
    more_logits = 2 * shape.output_parameters * (tokens - 1)
    future = 4 * shape.layers * shape.width * (tokens * (tokens - 1) // 2)
    assert measured(model, tokens) == forward_flops(call, shape) + more_logits + future


def test_a_shape_by_hand():
    # heads of 8: queries, keys, values and output 16 * 16 each; gate, up and down 16 * 8 each
    expected = ModelShape(parameters=2 * (4 * 16 * 16 + 3 * 16 * 8), output_parameters=10 * 16, layers=2, width=2 * 8)
    assert config_shape(Qwen2Config(**SMALL, tie_word_embeddings=True)) == expected
    assert config_shape(Qwen2Config(**SMALL, tie_word_embeddings=False)) == expected


def test_grouped_queries_and_heads_wider_than_the_model():
    model = tiny_model("qwen3")  # 4 query heads of 12, 2 of keys and values, 32 wide
    matrices = 32 * 48 + 2 * 32 * 24 + 48 * 32 + 3 * 32 * 48
    assert model_shape(model) == ModelShape(
        parameters=2 * matrices, output_parameters=32 * VOCABULARY, layers=2, width=48
    )


def test_position_tables_are_no_matrices():
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=64, vocab_size=10))
    assert model_shape(model) == ModelShape(parameters=12 * 16 * 16, output_parameters=160, layers=1, width=16)


def test_the_shipped_policy_has_the_shape_that_its_configuration_says():
    shape = ModelShape(parameters=4 * (4 * 128**2 + 3 * 128 * 384), output_parameters=536 * 128, layers=4, width=128)
    assert config_shape(load_config(policy_folder("shipped"))) == shape == model_shape(load_policy("shipped").model)


@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**SMALL, sliding_window=4),
        Qwen2Config(**SMALL, use_sliding_window=True, sliding_window=4, max_window_layers=1),
        Qwen3MoeConfig(**SMALL, moe_intermediate_size=4, num_experts=4, num_experts_per_tok=2),
    ],
    ids=lambda config: type(config).__name__,
)
def test_windows_and_experts_have_no_shape(config: PretrainedConfig):
    assert config_shape(config) is None
