"""The plan's memory against what was measured: updates on this CPU, and passes on an H200.

    python benchmarks/plan.py            both tables, in a few minutes of one core

A row of the first table is a network of random weights that takes an update on invented attempts. Measured is what
torch's CPU allocator hands out during it, by torch's profiler, on top of weights, optimiser states and gradients.

The second compares `benchmarks/results/gpu/h200-1.json` (`benchmarks/gpu.py`): forward and backward pass over a group
of attempts in bf16, without optimiser.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from machine import commit, hardware
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from mem1.api import load_recipe
from mem1.engines.device import flushed_denormals
from mem1.evaluation.tokens import even_sizes
from mem1.memory import memory_policy
from mem1.packing import pack
from mem1.packing.attention import tree_attention
from mem1.planning.attempts import made_groups
from mem1.planning.fakes import counted
from mem1.planning.models import known, made_model
from mem1.planning.steps import begin, fake_buffers, make_stage, measured, resident_bytes, update
from mem1.policy.policy import Policy
from mem1.recipe.recipe import Recipe
from mem1.records import Trajectory
from mem1.training.logprobs import flat_logprobs
from mem1.training.ranks.layers import layers
from mem1.training.ranks.placement import Placement, joined_for

SMALL: dict[str, Any] = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4}
SMALL |= {"intermediate_size": 384, "vocab_size": 536, "tie_word_embeddings": True}
WIDE = {**SMALL, "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 1152}
WIDE |= {"vocab_size": 8192}
QWEN2, QWEN3 = Qwen2Config(**SMALL), Qwen3Config(**WIDE, head_dim=64)
LLAMA = LlamaConfig(**{**WIDE, "num_hidden_layers": 2, "tie_word_embeddings": False, "vocab_size": 16000})

CHECKPOINTS = "model.activation_checkpointing=true"
PPO = ("rl.algorithm={name='ppo', critic='separate'}", "rl.kl={}")


@dataclass(frozen=True)
class Row:
    """One network with one recipe."""

    name: str
    shape: PretrainedConfig
    overrides: tuple[str, ...] = ()
    """Of the recipe."""
    context: str = "constant"
    more: bool = True
    turns: int = 4

    @property
    def config(self) -> Recipe:
        """Of a shipped recipe that trains by reinforcement learning."""
        return load_recipe("atlas-quick", "workers=1", f"memory={self.context}", *self.overrides)

    def attempts(self) -> list[Trajectory]:
        """Four, with tokens of the vocabulary."""
        return attempts(self.context, self.shape.vocab_size, turns=self.turns)


BF16 = ("model.training_dtype=bfloat16", "model.dtype=float32")
ROWS = (
    Row("Qwen2, constant", QWEN2),
    Row("Qwen2, full", QWEN2, context="full"),
    Row("Qwen2, a single pack", QWEN2, more=False),
    Row("Qwen2, one context a row", QWEN2, ("rl.packed=false",)),
    Row("Qwen3, constant", QWEN3),
    Row("Qwen3, checkpointing", QWEN3, (CHECKPOINTS,)),
    Row("Qwen3, bf16", QWEN3, BF16),
    Row("Qwen3, sharded, checkpointing, bf16", QWEN3, ("distributed={}", CHECKPOINTS, *BF16)),
    Row("Qwen3, LoRA", QWEN3, ("lora.rank=8",)),
    Row("Qwen3, LoRA, checkpointing", QWEN3, ("lora.rank=8", CHECKPOINTS)),
    Row("Qwen3, PPO: critic of its own, reference", QWEN3, PPO),
    Row("Llama, constant", LLAMA),
)


def attempts(context: str, vocabulary: int, *, turns: int = 4) -> list[Trajectory]:
    """Two groups of two attempts."""
    sizes = even_sizes(prompt=120, state=30, action=10, result=60, turns=turns)

    def within(ids: Sequence[int]) -> tuple[int, ...]:
        # scattered, so that no two attempts go on alike by chance
        return tuple((i * 2654435761 % 2**32) // 7 % vocabulary for i in ids)

    return [
        replace(
            t,
            turns=tuple(
                replace(u, context_ids=within(u.context_ids), completion_ids=within(u.completion_ids)) for u in t.turns
            ),
        )
        for group in made_groups(memory_policy(context), sizes, groups=2, attempts=2)
        for t in group
    ]


def allocated(row: Row) -> int:
    """Bytes at the peak of a real update."""
    with joined_for(row.config) as ranks:
        policy: Any = Policy(made_model(row.shape), None)  # type: ignore[arg-type]  # nothing is sampled
        stage = make_stage(row.config, "rl", policy, row.attempts(), Placement.of(row.config, ranks))
        begin(stage, more=row.more)
        gradients = sum(p.numel() * p.element_size() for p in stage.optimizers.parameters) if row.more else 0
        lasting = sum(resident_bytes(stage, policy.model).values()) + gradients
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            update(stage, row.attempts())
    results: Any = recorded.profiler.kineto_results  # type: ignore[union-attr]
    events = sorted((e for e in results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
    held = highest = 0
    for event in events:
        held += event.nbytes()
        highest = max(highest, held)
    return lasting + highest


def planned(row: Row) -> int:
    """The same by the plan."""
    step = measured(row.config, row.shape, "rl", row.attempts(), more=row.more)
    return max(step.moments["forward"], step.moments["backward"])


H200 = Path(__file__).parent / "results" / "gpu" / "h200-1.json"


def passes(shape: PretrainedConfig, way: str, *, checkpoints: bool) -> int:
    """Bytes of the passes that `benchmarks/gpu_parts.py` measures, in bf16."""
    sizes = even_sizes(prompt=300, state=100, action=30, result=350, turns=6)
    [group] = made_groups(memory_policy("constant"), sizes, groups=1, attempts=8)
    with counted() as count:
        model = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16).eval()
        fake_buffers(model)
        for layer in layers(model) if checkpoints else ():
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        with tree_attention(model):
            backend: Any = {"flex": "blocks", "blocks": "products"}[way]  # as a plan has them
            flat_logprobs(model, pack(group), temperature=1.0, backend=backend).sum().backward()
    return count.peak


@flushed_denormals()
def main() -> None:
    torch.set_num_threads(1)
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print("| update on this CPU | parameters | peak, MB | plan, MB | error |\n|---|--:|--:|--:|--:|")
    for row in ROWS:
        real, plan = allocated(row), planned(row)
        parameters = sum(p.numel() for p in made_model(row.shape).parameters())
        print(
            f"| {row.name} | {parameters / 1e6:.2f} M | {real / 1e6:.1f} | {plan / 1e6:.1f} | {plan / real - 1:+.1%} |"
        )
    print("\n| passes on an H200 | peak, GB | plan, GB | ratio |\n|---|--:|--:|--:|")
    for part in json.loads(H200.read_text())["parts"]:
        for row in part["rows"] if part["part"].startswith("flex-") else ():
            if row["name"] == "turns" or "seconds" not in row:
                continue
            size = part["part"].removeprefix("flex-")
            bytes_ = passes(known(f"Qwen2.5-{size}"), row["name"], checkpoints=row["checkpoints"])
            print(
                f"| {size}, {row['name']}{', checkpointing' if row['checkpoints'] else ''} | {row['peak_gb']:.1f} "
                f"| {bytes_ / 1e9:.1f} | {bytes_ / 1e9 / row['peak_gb']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
