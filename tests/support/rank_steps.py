"""What each rank of a training does in test_distributed.py; also run by the test itself, as the only rank.

Everything is in float64, so that nothing but a mistake makes a difference of 1e-9: a gradient agrees to 1e-14, and
AdamW moves a weight by at most 1e5 times as much (its learning rate over its eps). Layers in 4 bits are in float32, and
learn with plain SGD.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from builders import random_group, save_checkpoint, tiny_model
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from mem1.algorithms.base import Algorithm
from mem1.algorithms.group import Grpo
from mem1.algorithms.losses import Kl
from mem1.algorithms.ppo import Ppo
from mem1.policy.policy import Policy
from mem1.recipe.model import Distributed, Lora
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Sft
from mem1.records import Group, Trajectory
from mem1.training.ranks.adapters import merged
from mem1.training.ranks.optimizers import Optimizers
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import Ranks, joined, whole
from mem1.training.rl import RlStage
from mem1.training.runs.checkpoint import load_checkpoint
from mem1.training.sampling.published import write_weights
from mem1.training.supervised import SftStage

STEPS = 3
SAVED_AFTER = 2
ALGORITHMS: dict[str, Algorithm] = {
    "grpo": Grpo(),
    "ppo, separate": Ppo(critic="separate"),
    "ppo, head": Ppo(critic="head", critic_warmup=1),
}


def attempts(groups: int = 3, size: int = 3) -> list[Group]:
    """Of different lengths, so that packs differ in cost; rewards and log-probs are drawn."""
    rng = random.Random(0)

    def attempt(t: Trajectory) -> Trajectory:
        turns = tuple(replace(u, logprobs=tuple(-1 - rng.random() for _ in u.completion_ids)) for u in t.turns)
        return replace(t, turns=turns, reward=rng.random(), metrics={"em": (0.0,), "f1": (0.0,)})

    return [
        Group(trajectories=tuple(map(attempt, random_group(rng, size, policy="constant", turns=1 + number))))
        for number in range(groups)
    ]


FOUR_BITS = "grpo, 4 bits"
FOUR_BITS_RATE = 0.1
LORA = "grpo, lora"
ALGORITHMS[LORA] = Grpo()


def adapted(name: str, placement: Placement) -> Placement:
    """With adapters, where the name says so."""
    return replace(placement, lora=Lora(rank=3)) if name == LORA else placement


def four_bits_model() -> PreTrainedModel:
    return tiny_model("qwen2", dtype=torch.float32, hidden_size=64)


def four_bits(placement: Placement) -> dict[str, Any]:
    """Adapters beside layers in 4 bits, which are in fp32 at most; not every number of a network has to be sharded."""
    policy = Policy(four_bits_model(), cast(Any, None))
    adapters = replace(placement, lora=Lora(rank=3, quantize="nf4"))
    stage = RlStage(policy, rl_config(Grpo()), cast(Any, None), cast(Any, None), seed=0, placement=adapters)
    # AdamW would move weights whose gradient is rounding alone as far as any other
    learnt = stage.optimizers.parameters
    stage._actor = Optimizers((torch.optim.SGD(learnt),), (FOUR_BITS_RATE,), learnt)
    rows = [stage.update(attempts(), index) for index in range(STEPS)]
    adapters.sync_to_sampler(stage.model, policy.model)
    rounded = [p for p in stage.model.parameters() if p.dtype == torch.uint8]
    return {"rows": rows, "weights": weights(policy.model.parameters()), "rounded": len(rounded)}


def rl_stage(algorithm: Algorithm, placement: Placement, *, seed: int = 0) -> RlStage:
    policy = Policy(tiny_model("qwen2", seed=seed), cast(Any, None))
    torch.set_default_dtype(torch.float64)  # of the critic's head
    try:
        return RlStage(policy, rl_config(algorithm), cast(Any, None), cast(Any, None), seed=0, placement=placement)
    finally:
        torch.set_default_dtype(torch.float32)


def rl_config(algorithm: Algorithm) -> Rl:
    return Rl(
        curriculum=(Phase(steps=STEPS),),
        tasks_per_step=3,
        group_size=3,
        warmup=0,
        learning_rate=1e-3,
        pack_tokens=80,
        algorithm=algorithm,
        kl=Kl(coefficient=0.1, target=0.01),
        old_logprobs_from="trainer",
    )


def weights(parameters: Iterable[Tensor]) -> list[float]:
    return torch.cat([whole(p).detach().flatten() for p in parameters]).tolist()


def everything(stage: RlStage) -> list[float]:
    """All weights that are trained."""
    return weights(stage.optimizers.parameters)


def rl(algorithm: Algorithm, placement: Placement, folder: Path | None) -> dict[str, Any]:
    stage = rl_stage(algorithm, placement)
    rows = []
    for index in range(STEPS):
        rows.append(stage.update(attempts(), index))
        if folder is not None and index + 1 == SAVED_AFTER:
            save(stage, folder, placement.ranks)
    return {"rows": rows, "weights": everything(stage)}


def save(stage: RlStage, folder: Path, ranks: Ranks) -> None:
    save_checkpoint(
        folder, SAVED_AFTER, stage.model, stage.optimizers.members, fingerprint="f", modules=stage.modules, ranks=ranks
    )


def resumed(algorithm: Algorithm, placement: Placement, checkpoint: Path) -> dict[str, Any]:
    """The steps after the checkpoint; the networks are made with other weights."""
    stage = rl_stage(algorithm, placement, seed=7)
    members = stage.optimizers.members
    load_checkpoint(checkpoint, stage.model, members, fingerprint="f", modules=stage.modules, ranks=placement.ranks)
    rows = [stage.update(attempts(), index) for index in range(SAVED_AFTER, STEPS)]
    return {"rows": rows, "weights": everything(stage)}


def sft(placement: Placement) -> dict[str, Any]:
    """Muon and AdamW."""
    shown = [t for group in attempts() for t in group.trajectories]
    policy = Policy(tiny_model("qwen3"), cast(Any, None))
    # two steps an epoch, the second smaller
    stage = SftStage(policy, Sft(steps=3, tokens=100, pack_tokens=64), lambda: shown, seed=0, placement=placement)
    rows = [stage.step(index) for index in range(3)]
    found = weights(stage.optimizers.parameters)
    placement.sync_to_sampler(stage.model, policy.model)
    # The policy that samples has them too.
    by_size = sorted(found), sorted(torch.cat([p.flatten() for p in policy.model.parameters()]).tolist())
    return {"rows": rows, "weights": found, "published": by_size[0] == by_size[1]}


def served(placement: Placement, folder: Path) -> dict[str, Any]:
    """A stage whose policy servers sample: where its weights are, and what is published of them."""
    stage = rl_stage(Grpo(), replace(placement, served=True))
    held = [{p.device.type for p in stage.policy.model.parameters()} == {"meta"}]
    stage.update(attempts(), 0)
    written = folder / f"on-{placement.ranks.size}"
    if placement.ranks.rank == 0:
        file = load_file(write_weights(written, stage.model, 1).path)
        published = torch.cat([file[name].flatten() for name, _ in stage.model.named_parameters()]).tolist()
    else:
        published = []
    if placement.ranks.rank:
        assert all(weight.device.type == "cpu" for _, weight in merged(stage.model))
    stage.placement.hand_back(stage.model, stage.policy.model)
    held.append({p.device.type for p in stage.policy.model.parameters()} == {"meta"})
    return {"without": held, "published": published, "weights": weights(stage.model.parameters())}


def run(ranks: Ranks, folder: Path | None) -> dict[str, Any]:
    placement = Placement(ranks=ranks)
    found = {
        name: rl(algorithm, adapted(name, placement), folder and folder / f"{name} on {ranks.size}")
        for name, algorithm in ALGORITHMS.items()
    }
    found["sft"] = sft(placement)
    found[FOUR_BITS] = four_bits(placement)
    if folder is not None:
        found["served"] = served(placement, folder)
    if ranks.size > 1:
        kept = Placement(
            ranks=ranks,
            config=Distributed(reshard_after_forward=False, cpu_offload=True),
            recompute=True,
        )
        found["grpo, layers computed again"] = rl(Grpo(), kept, None)
    return found


def one_rank(folder: Path, resume: Mapping[str, Path]) -> None:
    """Everything on this rank; then the checkpoints, by the names of their algorithms, go on. Writes what it found."""
    torch.set_num_threads(1)
    with joined() as ranks:
        found = run(ranks, folder)
        for name, checkpoint in resume.items():
            found[f"{name}, resumed"] = resumed(ALGORITHMS[name], adapted(name, Placement(ranks=ranks)), checkpoint)
        (folder / f"found-{ranks.rank}-of-{ranks.size}.json").write_text(json.dumps(found))
