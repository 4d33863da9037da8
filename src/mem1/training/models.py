"""Policies: load one from a folder (safetensors only), or make a small one from nothing.

A small transformer does not learn to copy by itself in minutes. Heads that look a few tokens back make it
(`look_back.py`): in layers 0 and 1, one for each of a few distances, such as 1 and 2; or, with `induction`, heads that
copy from the beginning (`induction.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from mem1.engines.model_folder import code_in
from mem1.engines.weights import check_finite
from mem1.errors import UserError
from mem1.retrieval.model_folder import how_to_fetch
from mem1.training.induction import write_induction
from mem1.training.look_back import look_back
from mem1.training.model_config import TinyModel
from mem1.training.token_kinds import ALIKE, TokenKinds


def new_model(config: TinyModel, *, vocab_size: int, seed: int, kinds: TokenKinds = ALIKE) -> PreTrainedModel:
    """A Qwen2 with random weights, tied embeddings and look-back heads; the same for the same seed.

    `kinds` is of use with `config.induction` alone.
    """
    qwen = Qwen2Config(
        vocab_size=vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.heads,
        intermediate_size=config.feed_forward,
        max_position_embeddings=config.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen2ForCausalLM(qwen)
    for layer in model.model.layers[: 1 if config.induction else 2]:
        for head, distance in enumerate(config.look_back):
            look_back(layer.self_attn, head, distance, config)
    if config.induction:
        write_induction(model, config, kinds, seed=seed)
    return model


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration of a transformers model, without its weights. Raises UserError where it cannot be read."""
    if not (Path(folder) / "config.json").is_file():
        raise UserError(
            f"{folder} is no model folder: config.json is missing; give the folder of a transformers model"
            + how_to_fetch(str(folder))
        )
    try:
        # trust_remote_code=False: without it transformers would ask on the terminal whether to run the folder's code
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise UserError(f"cannot load the model in {folder}: {code_in(folder) or error}") from error


def load_model(
    folder: Path, *, dtype: Callable[[torch.dtype | None], torch.dtype] = lambda stored: torch.float32
) -> PreTrainedModel:
    """A transformers causal language model from a local folder, weights from safetensors only.

    dtype       its precision, given the one that config.json says its weights are stored in, if it does

    Raises UserError where the folder, its config or its weights are missing or unreadable, where a weight is NaN or
    infinite, and where the folder would have to run code of its own.
    """
    folder = Path(folder)
    config = load_config(folder)
    if not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder} has no *.safetensors file; mem1 loads weights from safetensors only")
    try:
        model, found = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]  # a pair, as asked for below
            folder,
            config=config,
            dtype=dtype(config.dtype if isinstance(config.dtype, torch.dtype) else None),
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (ValueError, OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"cannot load the model in {folder}: {code_in(folder) or error}") from error
    if missing := sorted(found["missing_keys"]):  # transformers fills them with random numbers
        raise UserError(f"{folder}: {len(missing)} weights are missing, such as {missing[0]}; copy the model again")
    check_finite(model.state_dict(), str(folder))
    return model.eval()
