"""One real step of each stage, with a tiny model of the recipe's family on invented tasks.

The model has random weights and earns no reward, so attempts get alternating rewards of 1 and 0 to learn from. An
expert's attempt shows that the environment answers. The only file written is a checkpoint in a temporary folder, which
is read back.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import torch

from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.envs.tasks import TasksConfig
from mem1.envs.webshop.tasks import WebShopTasks
from mem1.errors import UserError
from mem1.planning.models import made_model, recipe_shape, small
from mem1.policy.folders import SHIPPED, policy_folder
from mem1.policy.policy import Policy
from mem1.policy.tokenizers import words_of
from mem1.protocol import ACT, Tags, vocabulary
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Sft
from mem1.records import Group
from mem1.rollout import Budget
from mem1.training.ranks.placement import Placement
from mem1.training.rl import RlStage
from mem1.training.runs.checkpoint import load_checkpoint, write_snapshot
from mem1.training.runs.snapshot import Snapshot
from mem1.training.supervised import demonstrate
from mem1.training.train import Stage, make_rollout, make_stages

TOKENS = 1024
"""Most tokens of a step and of a pack."""
WRITTEN = 16
"""Tokens of a completion, which a random model never ends itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsed:
    """Results of the steps."""

    expert_turns: int
    """Turns of the expert's longest attempt."""
    stages: Mapping[str, float]
    """Stage -> loss of its step."""
    tokenizer: str
    """Description of the tokenizer: the recipe's, or one that stands in."""


def rehearse(config: Recipe) -> Rehearsed:
    """Run the steps. Raises UserError where a part of the recipe cannot work, RuntimeError where no weight changed."""
    codec, whose = _codec(config)
    shape = small(recipe_shape(config)[0], vocab_size=codec.vocab_size)
    policy = Policy(made_model(shape, seed=config.seed), codec)
    tags = vocabulary(config.vocabulary)
    shown = _shown(config)
    source = shown.tasks.source("train", tags)
    attempts = demonstrate(shown, make_rollout(shown, policy, source, tags), source, tags)
    losses: dict[str, float] = {}
    placement = Placement(lora=config.lora, applied=config.lora is not None)
    for stage in (make() for tiny in _tiny(config) for make in make_stages(tiny, policy, placement)):
        before = [parameter.clone() for parameter in stage.model.parameters()]
        losses[stage.name] = _step(stage)
        if all(torch.equal(a, b) for a, b in zip(before, stage.model.parameters(), strict=True)):
            raise RuntimeError(f"the step of [{stage.name}] changed no weight")
        _round_trip(stage)
        placement.hand_back(stage.model, policy.model)
    return Rehearsed(expert_turns=max(len(t.turns) for t in attempts), stages=losses, tokenizer=whose)


def _codec(config: Recipe) -> tuple[Codec, str]:
    """The recipe's tokenizer, or a stand-in where it is missing or would have to be trained."""
    tags = vocabulary(config.vocabulary)
    if config.model.new is not None and config.model.new.tokenizer != "bpe":
        return Codec(words_of(config.model.new.tokenizer, tags, config.model.new.labels)), "the recipe's"
    folder = policy_folder(config.model.path or SHIPPED)
    if config.model.new is None and (folder / "tokenizer.json").is_file():
        return Codec.load(folder), "the recipe's"
    return Codec.load(Path(str(resources.files("mem1"))) / "assets" / "stand-in"), "one that stands in"


def _objectives(config: Recipe) -> tuple[int]:
    """The smallest size of the recipe's tasks."""
    if config.rl is not None:
        return (min(n for phase in config.rl.curriculum for n in phase.objectives),)
    return (min(config.demonstrated or config.evaluation.objectives),)


def _shown(config: Recipe) -> Recipe:
    """The recipe for the expert, with room for its texts under any tokenizer."""
    demonstrated = {"trajectories": None, "tasks": 2, "objectives": _objectives(config), "cut_short": 0.0}
    sft = (config.sft or Sft()).model_copy(update=demonstrated)
    return config.model_copy(
        update={
            "tasks": config.tasks.small() or _stand_in(vocabulary(config.vocabulary)),
            "workers": 1,
            "chat": None,  # the expert writes tags; that the template can be used is a check of its own
            "agent": None,  # likewise
            "evaluation": config.evaluation.model_copy(update={"every": 0}),
            "budget": Budget(completion_extra=400, context=config.budget.context + 8192),
            "sft": sft,
        }
    )


def _stand_in(tags: Tags) -> TasksConfig | None:
    """Tasks of ours with an expert who knows the vocabulary's actions."""
    return WebShopTasks(prompt="plain").small() if ACT in tags.action_tags else AtlasTasks().small()


def _tiny(config: Recipe) -> Iterator[Recipe]:
    """One small step of each of the recipe's stages; the expert writes more than a sampled attempt may."""
    shown = _shown(config)
    small = {"steps": 1, "tokens": TOKENS}
    recall = config.recall and config.recall.model_copy(update=small)
    sft = config.sft and shown.sft and shown.sft.model_copy(update={**small, "pack_tokens": TOKENS})
    yield shown.model_copy(update={"recall": recall, "sft": sft, "rl": None})
    if config.rl is not None:
        budget = Budget(completion_per_objective=0, completion_extra=WRITTEN, context=config.budget.context + 8192)
        rl = _tiny_rl(config.rl, _objectives(config))
        yield shown.model_copy(update={"recall": None, "sft": None, "rl": rl, "budget": budget})


def _tiny_rl(rl: Rl, objectives: tuple[int]) -> Rl:
    size = max(2, rl.algorithm.min_attempts_per_task) if rl.group_size > 1 else 1
    return rl.model_copy(
        update={
            "curriculum": (Phase(steps=1, objectives=objectives),),
            "tasks_per_step": 2,
            "group_size": size,
            "minibatches": min(rl.minibatches, 2),
            "pack_tokens": min(rl.pack_tokens, TOKENS),
            "warmup": 0,
            "algorithm": rl.algorithm.rehearsal(),
        }
    )


def _step(stage: Stage) -> float:
    """Run one step; returns its loss."""
    metrics = stage.update(_rewarded(stage.sample(0)), 0) if isinstance(stage, RlStage) else stage.step(0)
    loss = metrics["loss"]
    if not isinstance(loss, float) or not torch.isfinite(torch.tensor(loss)):
        raise UserError(f"the step of [{stage.name}] has a loss of {loss}")
    return loss


def _rewarded(groups: Sequence[Group]) -> list[Group]:
    """Alternating rewards of 1 and 0 over all attempts."""
    number = 0
    done = []
    for group in groups:
        attempts = []
        for attempt in group.trajectories:
            attempts.append(replace(attempt, reward=float(number % 2 == 0)))
            number += 1
        done.append(Group(trajectories=tuple(attempts)))
    return done


def _round_trip(stage: Stage) -> None:
    """Write and read a checkpoint."""
    with tempfile.TemporaryDirectory(prefix="mem1-rehearsal-") as folder:
        members = stage.optimizers.members
        snapshot = Snapshot.take(1, stage.model, members, modules=stage.modules, fingerprint="rehearsal")
        path = write_snapshot(folder, snapshot)
        load_checkpoint(path, stage.model, members, modules=stage.modules, fingerprint="rehearsal")
