"""What several tests build: tiny random models and random trajectories of every memory."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mem1.algorithms.base import LossInputs
from mem1.engines.codec import Codec
from mem1.memory import memory_policy, next_context
from mem1.policy.policy import Policy
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.model import TinyModel
from mem1.records import Trajectory, Turn

VOCABULARY = 40
POLICIES = ("constant", "full", "fold(2)", "window(2)", "masked", "external(2)")

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def tiny_model(kind: str, *, dtype: torch.dtype = torch.float64, seed: int = 0, **overrides: object) -> PreTrainedModel:
    """A random model: "qwen2" (tied, biases), "llama" (untied), "qwen3" (grouped queries, QK-norm).

    In fp64 its norms really are fp64: transformers' own round to fp32, which would hide or add errors of 1e-8.
    """
    torch.manual_seed(seed)
    model = _build(kind, overrides)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    if dtype == torch.float64:
        use_fp64_norms(model)
    return model


def _build(kind: str, overrides: dict[str, object]) -> PreTrainedModel:
    if kind == "qwen2":
        return Qwen2ForCausalLM(
            Qwen2Config(**{**_SHAPE, "num_key_value_heads": 4, "tie_word_embeddings": True, **overrides})
        )
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**{**_SHAPE, "tie_word_embeddings": False, **overrides}))
    if kind == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**{**_SHAPE, "num_key_value_heads": 2, "head_dim": 12, **overrides}))
    raise ValueError(f"no tiny model called {kind!r}")


def use_fp64_norms(model: PreTrainedModel) -> None:
    """Its RMSNorms compute in fp64, not in fp32 as those of transformers do."""
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            weight = module.get_parameter("weight")
            norm = nn.RMSNorm(weight.shape[0], eps=float(module.variance_epsilon), dtype=torch.float64)  # type: ignore[arg-type]
            norm.weight = weight
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, norm)


@contextmanager
def float64_everywhere() -> Iterator[None]:
    """Inside, advantages, rewards and new critics are in float64 too, so that a comparison is to rounding."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def turn(context: Sequence[int], completion: Sequence[int]) -> Turn:
    return Turn(context_ids=tuple(context), completion_ids=tuple(completion))


def trajectory(*turns: tuple[Sequence[int], Sequence[int]]) -> Trajectory:
    return Trajectory(turns=tuple(turn(context, completion) for context, completion in turns))


def random_tokens(rng: random.Random, length: int, vocabulary: int = VOCABULARY) -> tuple[int, ...]:
    return tuple(rng.randrange(vocabulary) for _ in range(length))


def random_trajectory(
    rng: random.Random,
    *,
    policy: str = "constant",
    prompt: tuple[int, ...] | None = None,
    turns: int = 3,
    longest: int = 6,
    vocabulary: int = VOCABULARY,
) -> Trajectory:
    """Random completions and results under a memory; each part is 1 to `longest` tokens long."""

    def part() -> tuple[int, ...]:
        return random_tokens(rng, rng.randint(1, longest), vocabulary)

    prompt = prompt or part()
    done: list[Turn] = []
    for _ in range(turns):
        context = next_context(memory_policy(policy), prompt, done)
        done.append(Turn(context_ids=context.ids, completion_ids=part(), observation_ids=part()))
    return Trajectory(turns=tuple(done), context=policy)


def random_group(
    rng: random.Random, size: int, *, policy: str = "constant", turns: int = 3, longest: int = 6, prompt: int = 5
) -> list[Trajectory]:
    """Attempts at one random prompt."""
    ids = random_tokens(rng, prompt)
    return [random_trajectory(rng, policy=policy, prompt=ids, turns=turns, longest=longest) for _ in range(size)]


def random_batch(seed: int, *, size: int = 4, vocabulary: int = 3) -> list[Trajectory]:
    """Trajectories of all policies mixed, over so few tokens that they share prefixes everywhere."""
    rng = random.Random(seed)
    prompts = [random_tokens(rng, rng.randint(1, 4), vocabulary) for _ in range(2)]
    return [
        random_trajectory(
            rng, policy=rng.choice(POLICIES), prompt=rng.choice(prompts), turns=rng.randint(1, 4), vocabulary=vocabulary
        )
        for _ in range(size)
    ]


def loss_inputs(
    logprobs_M: Tensor,
    old_logprobs_M: Tensor,
    advantages_M: Tensor,
    *turns: Sequence[int],
    weights_M: Tensor | None = None,
) -> LossInputs:
    """A micro-batch; `turns` are the sampled tokens of each turn of each trajectory, one trajectory if left out."""
    trajectories = [trajectory(*(([0], [1] * tokens) for tokens in sizes)) for sizes in turns or ([len(logprobs_M)],)]
    return LossInputs(
        trajectories=trajectories,
        logprobs_M=logprobs_M,
        old_logprobs_M=old_logprobs_M,
        advantages_M=advantages_M,
        weights_M=weights_M,
    )


def save_checkpoint(folder: Path, step: int, model: PreTrainedModel, optimizers: Any, **options: Any) -> Path:
    from mem1.training.ranks.processes import ONE_PROCESS
    from mem1.training.runs.checkpoint import write_snapshot
    from mem1.training.runs.snapshot import Snapshot

    ranks = options.get("ranks", ONE_PROCESS)
    return write_snapshot(folder, Snapshot.take(step, model, optimizers, **options), ranks=ranks)


CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHAT_FILES = {
    "generation_config.json": {"do_sample": True, "temperature": 0.6, "eos_token_id": [3]},
    "special_tokens_map.json": {"eos_token": "<|im_end|>"},
}


def chat_folder(folder: Path) -> Path:
    """Write a small model that knows nothing, whose tokenizer has a chat template."""
    made = Tokenizer.from_str(bpe_tokenizer(["who is the mayor of"], vocab_size=300, tags=PAPER).to_str())
    made.add_special_tokens([AddedToken(mark, normalized=False) for mark in ("<|im_start|>", "<|im_end|>")])
    shape = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48)
    Policy(new_model(shape, vocab_size=Codec(made).vocab_size, seed=0), Codec(made)).save(folder)
    fast = PreTrainedTokenizerFast(tokenizer_object=made, chat_template=CHAT_TEMPLATE, eos_token="<|im_end|>")
    fast.save_pretrained(str(folder))
    for name, content in CHAT_FILES.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text(CHAT_TEMPLATE + " ")
    return folder
