"""Whether a recipe fits into a GPU, and which changes of the recipe make it fit.

advise(config, gpus=cluster("H100"), steps=steps)   ->  changes added one after another until the plan fits
recomputing_if_needed(config, free=20e9)         ->  the recipe with activation checkpointing, if only that fits
check_fits(config, free=20e9, device="cuda:0 (NVIDIA L4)")
    ->  UserError: cuda:0 (NVIDIA L4) has 20.0 GB free, but [rl] needs 121.9 GB for weights, gradients and optimiser
        alone, 101.9 GB more; ...                                                   it cannot work: refused
    ->  "the largest attempts that the recipe allows ..."                           it may run out: a warning
    ->  None                                                                        the largest attempts fit

What a run holds at every moment follows from the networks; the rest depends on how long attempts become, which a plan
can only bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mem1.errors import UserError
from mem1.planning.attempts import Attempts
from mem1.planning.gpus import Cluster, Gpu
from mem1.planning.models import recipe_shape
from mem1.planning.plan import USABLE, Steps, make_plan
from mem1.planning.steps import PLANNED_GPU
from mem1.recipe.model import Distributed, Lora
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.training.ranks.placement import trains_in_bfloat16

SMALLEST_PACK = 2048
"""Smallest pack, in tokens, that is suggested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One suggested change of the recipe, with the resulting peak memory in bytes, after those before it."""

    what: str
    peak: int
    fits: bool


def advise(
    config: Recipe, *, gpus: Cluster, steps: Steps, server_gpus: int = 1, attempts: Attempts | None = None
) -> tuple[Change, ...]:
    """Changes added one after another until the plan fits: the last one does, or none suffices.

    `steps`: those of the plan that does not fit; each that a change needs is taken once.

    Raises UserError as `make_plan` does.
    """
    found: list[Change] = []
    while (change := next(_changes(config), None)) is not None:
        what, config = change
        plan = make_plan(config, gpus=gpus, server_gpus=server_gpus, attempts=attempts, steps=steps)
        found.append(Change(what=what, peak=plan.peak, fits=bool(plan.fits)))
        if plan.fits:
            break
    return tuple(found)


def _changes(config: Recipe) -> Iterator[tuple[str, Recipe]]:
    """The changes that are left, in order of their cost in time and in learning."""
    distributed, sft, rl = config.distributed or Distributed(), config.sft, config.rl
    if not trains_in_bfloat16(config, PLANNED_GPU):
        half = _set(config.model, training_dtype="bfloat16")
        yield 'model.training_dtype = "bfloat16"', _set(config, model=half)
    if not config.model.activation_checkpointing:
        yield "model.activation_checkpointing = true", _recomputing(config)
    if sft is not None and min(sft.tokens, sft.pack_tokens) > SMALLEST_PACK:
        tokens = max(SMALLEST_PACK, min(sft.tokens, sft.pack_tokens) // 4)
        yield f"sft.pack_tokens = {tokens}", _set(config, sft=_set(sft, pack_tokens=tokens))
    if rl is not None:
        if rl.pack_tokens > SMALLEST_PACK:
            tokens = max(SMALLEST_PACK, rl.pack_tokens // 4)
            yield f"rl.pack_tokens = {tokens}", _set(config, rl=_set(rl, pack_tokens=tokens))
        critic = rl.algorithm.critic_config
        if critic is not None and critic.critic == "separate":
            head = _set(rl, algorithm=_set(critic, critic="head"))
            yield 'rl.algorithm.critic = "head"', _set(config, rl=head)
    if config.lora is not None:
        return
    if rl is not None and rl.kl is not None and not (distributed.reference_offload or distributed.cpu_offload):
        offloaded = _set(distributed, reference_offload=True)
        yield "distributed.reference_offload = true", _set(config, distributed=offloaded)
    if not distributed.cpu_offload:
        yield "distributed.cpu_offload = true", _set(config, distributed=_set(distributed, cpu_offload=True))
    yield "[lora] rank = 16", _set(config, distributed=_set(distributed, cpu_offload=False), lora=Lora())


def _recomputing(config: Recipe) -> Recipe:
    return _set(config, model=_set(config.model, activation_checkpointing=True))


def _set(section: Any, **keys: Any) -> Any:
    return section.model_copy(update=keys)


def recomputing_if_needed(config: Recipe, *, free: float, ranks: int = 1, steps: Steps | None = None) -> Recipe:
    """The recipe, with `model.activation_checkpointing` where it leaves that open and fits only so.

    Arguments as of `check_fits`.
    """
    if config.model.activation_checkpointing is not None or not _is_known(config):
        return config
    given, gpus = _on_this_machine(config, free, "", ranks)
    steps = Steps() if steps is None else steps
    if make_plan(given, gpus=gpus, steps=steps).fits:
        return config
    return _recomputing(config) if make_plan(_recomputing(given), gpus=gpus, steps=steps).fits else config


def _is_known(config: Recipe) -> bool:
    try:
        recipe_shape(config)
    except UserError:
        return False
    return True


def _on_this_machine(config: Recipe, free: float, device: str, ranks: int) -> tuple[Recipe, Cluster]:
    """The recipe as these ranks run it, and their GPUs."""
    if ranks > 1:
        config = _set(config, distributed=config.distributed or Distributed())
    serving = isinstance(config.rollout, ServerRollouts) and config.rollout.apart
    # a plan fills a share of a GPU, and what is free is counted without what CUDA itself has taken
    gpu = Gpu(device, free / USABLE / 1e9, "this machine")
    return config, Cluster(gpu=gpu, machines=1, per_machine=ranks + serving)


def check_fits(config: Recipe, *, free: float, device: str, ranks: int = 1, steps: Steps | None = None) -> str | None:
    """A warning where the recipe's largest attempts do not fit into `free` bytes of this rank's GPU; None: they do.

    device      the GPU's name, for messages
    ranks       processes that train, each on a GPU like this one
    steps       those counted before for this GPU; new ones are added

    Raises UserError where weights, gradients and optimiser states alone do not fit. A model that is not there is not
    checked.
    """
    if not _is_known(config):
        return None
    config, gpus = _on_this_machine(config, free, device, ranks)
    steps = Steps() if steps is None else steps
    plan = make_plan(config, gpus=gpus, steps=steps)
    if plan.fits:
        return None
    change = _said(advise(config, gpus=gpus, steps=steps))
    stage = max(plan.stages, key=lambda stage: stage.memory.least)
    least = stage.memory.least
    if least > free:
        raise UserError(
            f"{device} has {_gb(free)} GB free, but [{stage.name}] needs {_gb(least)} GB for weights, gradients and "
            f"optimiser alone, {_gb(least - free)} GB more; {change}"
        )
    return (
        f"the largest attempts that the recipe allows need {_gb(plan.peak)} GB, {_gb(plan.peak - free)} GB more than "
        f"{device} has free; if the memory runs out, {change}"
    )


def _said(changes: tuple[Change, ...]) -> str:
    if not changes or not changes[-1].fits:
        return "take a smaller model or more GPUs, as no change of the recipe is enough (mem1 plan RECIPE --gpus ...)"
    return f"set {', '.join(change.what for change in changes)} ({_gb(changes[-1].peak)} GB)"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"
