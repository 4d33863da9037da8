"""A network as a transformers model: with random weights, or on the meta device, where weights have shapes alone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mem1.planning.networks import Network

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


def transformers_config(network: Network, *, positions: int = 32768) -> PretrainedConfig:
    """The configuration of the network's own family."""
    from transformers import LlamaConfig, Qwen2Config, Qwen3Config

    shape = {
        "vocab_size": network.vocabulary,
        "hidden_size": network.hidden,
        "num_hidden_layers": network.layers,
        "num_attention_heads": network.heads,
        "num_key_value_heads": network.kv_heads,
        "head_dim": network.head_size,
        "intermediate_size": network.feed_forward,
        "tie_word_embeddings": network.tied,
        "max_position_embeddings": positions,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if network.kind == "qwen2":
        return Qwen2Config(**shape)
    if network.kind == "qwen3":
        return Qwen3Config(**shape, attention_bias=network.biases)
    return LlamaConfig(**shape, attention_bias=network.biases)


def made_model(network: Network, *, seed: int = 0) -> PreTrainedModel:
    """Random weights in fp32; the same for the same seed."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(transformers_config(network)).eval()


def meta_parameters(network: Network) -> int:
    """Weights of the model that transformers makes of this shape, without memory for them; tied ones count once."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(transformers_config(network))
    return sum(parameter.numel() for parameter in model.parameters())


def small(network: Network, vocabulary: int) -> Network:
    """The same family in small: grouped queries, ties and biases as they are, two layers of 32."""
    grouped = network.kv_heads < network.heads
    return replace(
        network,
        hidden=32,
        layers=2,
        heads=4,
        kv_heads=2 if grouped else 4,
        head_size=8,
        feed_forward=64,
        vocabulary=vocabulary,
        source="small",
    )
