"""Small random models of real architectures, with byte-level tokenizers and chat templates, as others publish them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

from mem1.policy.folders import split_by

TEXTS = (
    "In 1984, 3.14159 people\n\n  left\tthe 2nd house.\r\nDon't they'll 100,000",
    "Zürich 北京 2024年 naïve — “quoted” ½ Ⅷ 🙂🙂",
    "<|im_start|>user\nWho? <think> 12 </think><|im_end|>\n",
    "    def f(x):\n        return x**2  # 42",
)
KINDS = {
    "llama": ("smollm", LlamaConfig, {}),
    "qwen2": ("qwen2", Qwen2Config, {}),
    "qwen3": ("llama-bpe", Qwen3Config, {"head_dim": 128}),
}


def made(folder: Path, kind: str, **changed: Any) -> Path:
    """A random model with more rows than tokens, vectors that are no ones and zeros, and a small BPE tokenizer."""
    split, config, own = KINDS[kind]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split_by(split)  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token, normalized=False) for token in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS * 9,
        trainers.BpeTrainer(vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.add_tokens([AddedToken("<think>", normalized=False)])
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": kind != "llama"}
    shape |= {"vocab_size": tokenizer.get_vocab_size() + 5, "eos_token_id": 2, "rope_theta": 50_000.0}
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config(**{**shape, **own, **changed}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(folder)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    wrapped.chat_template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    wrapped.save_pretrained(folder)
    return folder


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
