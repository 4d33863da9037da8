"""Whether a recipe fits into the free memory of the GPU at hand, before training begins.

check_fits(config, free=20e9, device="cuda:0 (NVIDIA L4)")
    ->  UserError: cuda:0 (NVIDIA L4) has 20.0 GB free, but [rl] needs 121.9 GB for weights, gradients and optimiser
        alone, 101.9 GB more; ...                                                   it cannot work: refused
    ->  "the largest attempts that the recipe allows ..."                           it may run out: a warning
    ->  None                                                                        the largest attempts fit

What a run holds at every moment follows from the network; the rest depends on how long attempts become, which a plan
can only bound.
"""

from __future__ import annotations

from dataclasses import replace

from mem1.errors import UserError
from mem1.planning.networks import Setup, recipe_network
from mem1.planning.plan import USABLE, Plan, advise, make_plan
from mem1.planning.step_time import Cluster, Gpu
from mem1.recipe.model import Distributed
from mem1.recipe.recipe import Recipe


def check_fits(config: Recipe, *, free: float, device: str, ranks: int = 1) -> str | None:
    """A warning where the recipe's largest attempts do not fit into `free` bytes of this rank's GPU; None: they do.

    device      the GPU's name, for messages
    ranks       processes that train, each on a GPU like this one

    Raises UserError where weights, gradients and optimiser states alone do not fit. A network that `mem1 plan` does not
    know is not checked.
    """
    try:
        recipe_network(config)
    except UserError:
        return None
    setup = Setup.of(config)
    if ranks > 1:
        setup = replace(setup, distributed=config.distributed or Distributed())
    serving = setup.server_gpus if setup.engine == "servers" and not setup.sleep else 0
    # a plan fills a share of a GPU, and what is free is counted without what CUDA itself has taken
    gpu = Gpu(device, free / USABLE / 1e9, 1.0, 1.0, 1.0, 1.0, "its rates are not used")
    cluster = Cluster(gpu=gpu, machines=1, per_machine=ranks + serving)
    plan = make_plan(config, setup=setup, cluster=cluster)
    if plan.fits:
        return None
    changes = _changes(config, setup, cluster)
    name, least = _least(plan)
    if least > free:
        raise UserError(
            f"{device} has {_gb(free)} GB free, but [{name}] needs {_gb(least)} GB for weights, gradients and "
            f"optimiser alone, {_gb(least - free)} GB more; {changes}"
        )
    return (
        f"the largest attempts that the recipe allows need {_gb(plan.peak)} GB, {_gb(plan.peak - free)} GB more than "
        f"{device} has free; if the memory runs out, {changes}"
    )


def _least(plan: Plan) -> tuple[str, int]:
    """The stage that holds the most at every moment, and these bytes."""
    return max(((s.stage.name, s.memory.least) for s in plan.stages), key=lambda found: found[1])


def _changes(config: Recipe, setup: Setup, cluster: Cluster) -> str:
    """The fewest of the plan's changes, in its order, with which the largest attempts fit."""
    together = advise(config, setup=setup, cluster=cluster).together
    if not together or not together[-1].fits:
        return "take a smaller model or more GPUs, as no change of the recipe is enough (mem1 plan RECIPE --gpus ...)"
    return f"set {', '.join(change.what for change in together)} ({_gb(together[-1].peak)} GB)"


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f}"
