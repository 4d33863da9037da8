"""`mem1 verify`: does the trainer see what the sampler saw? Sample, compute every way, compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import Chosen, JsonOption, chosen_device, with_recipe, work_begins
from mem1.configuration.model import MOST_TASKS
from mem1.interrupts import stopped_while

if TYPE_CHECKING:
    from mem1.engines.base import Sampling
    from mem1.engines.device import Computed
    from mem1.envs.base import TaskSource
    from mem1.policy.policy import Policy
    from mem1.recipe.recipe import Recipe
    from mem1.records import Group, Task, Trajectory
    from mem1.training.checks import Check

_COLOURS = {"passed": "green", "failed": "bold red", "not tested": "yellow"}
_STEERED_TURNS = 4
"""Most turns of a steered attempt."""
_TASKS = 8
"""Tasks attempted if neither --limit nor the key is given."""


@with_recipe("model", "questions", "corpus", "objectives", "limit", "seed")
def command(
    invocation: typer.Context,
    chosen: Chosen,
    attempts: Annotated[
        int, typer.Option(min=1, max=MOST_TASKS, help="Attempts at each task; they share a token tree.")
    ] = 4,
    as_json: JsonOption = False,
) -> None:
    """Check on fresh trajectories that training is exact; exit code 1 if a check fails or cannot be made.

    Without a recipe: the shipped policy on tasks of two questions of an invented world (Atlas). With one: its model,
    tasks, tags, memory, budget and attention, on the first number of objectives that it trains. Sampling is at
    rl.temperature; a recipe without RL uses evaluation.temperature if above 0, else 1.
    """
    from mem1.errors import UserError
    from mem1.policy.protocol import resolve

    recipe = chosen.load({"tasks.worlds": "1", "evaluation.objectives": "[2]"})
    if recipe.engine.kind != "local":
        raise UserError("mem1 verify computes gradients, so the model runs in this process; leave out [engine]")
    speaks = resolve(recipe)
    recipe, tags = speaks.applied(recipe), speaks.tags
    work_begins()
    from mem1.cli.progress import stderr
    from mem1.engines.base import Sampling
    from mem1.engines.codec import check_words
    from mem1.engines.out_of_memory import ANSWERING, VERIFYING, memory_named
    from mem1.packing.attention import choose_attention, unpackable
    from mem1.policy.policy import check_sampled, make_policy
    from mem1.training.ranks.placement import trains_in_bfloat16
    from mem1.training.verify import NO_GRADIENTS, has_gradients, verify

    source = recipe.tasks.source("evaluation", tags)
    device = chosen_device(invocation, recipe.model.device, training=True)
    backend = choose_attention(recipe.model.attention, device.at, gradients=False)
    policy = make_policy(recipe)
    check_sampled(policy.model, recipe)
    if why := unpackable(policy.model):
        raise UserError(
            f"{why}. mem1 verify compares packed training with that of one context a row, which is how this model is "
            "trained: there is nothing to compare"
        )
    with memory_named("loading the policy", ANSWERING):
        policy.model.to(device.at)  # type: ignore[arg-type]  # transformers' own signature takes less
    computed = replace(policy.computed(device), attention=backend)
    half = (recipe.sft is not None or recipe.rl is not None) and trains_in_bfloat16(recipe, device)
    stderr().print(str(computed), markup=False, soft_wrap=True)
    asked = recipe.evaluation
    temperature = (asked.temperature or 1.0) if recipe.rl is None else recipe.rl.temperature
    size, *others = asked.objectives if chosen.sets("evaluation.objectives") else (_first_size(recipe),)
    if others:
        raise UserError("mem1 verify checks tasks of one size: give one number by --objectives")
    count = asked.tasks if chosen.sets("evaluation.tasks") else _TASKS
    drawn = [t for t in source.tasks(objectives=size, count=count, seed=asked.seed) for _ in range(attempts)]
    check_words(policy.codec, drawn[::attempts], tags, whose=recipe.model.name, results=recipe.tasks.results)

    def tell(what: str) -> None:
        stderr().print(f"{what} ...", style="dim", markup=False, soft_wrap=True)

    with stopped_while("verifying"):
        tell(f"sampling {len(drawn)} attempts")
        sampling = Sampling(temperature=temperature, seed=asked.seed)
        with memory_named("sampling", ANSWERING):
            trajectories, steered = _sample(recipe, policy, source, drawn, sampling)
        groups = _groups(trajectories, attempts)
        with memory_named("computing in float32 and float64", VERIFYING):
            checks = verify(
                policy.model,
                groups,
                temperature=temperature,
                attention=backend,
                half=half,
                progress=lambda what: tell(f"computing {what}"),
            )
    if not has_gradients(backend, policy.model):
        stderr().print(NO_GRADIENTS, soft_wrap=True)
    _show(checks, groups, policy, trajectories[0].context, computed, as_json, steered=steered)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def _first_size(recipe: Recipe) -> int:
    """The first number of objectives that the recipe trains, else that it evaluates."""
    if recipe.rl is not None:
        return recipe.rl.objectives(0)[0]
    return (recipe.demonstrated or recipe.evaluation.objectives)[0]


def _sample(
    recipe: Recipe, policy: Policy, source: TaskSource, tasks: Sequence[Task], sampling: Sampling
) -> tuple[list[Trajectory], bool]:
    """Attempts, and whether they had to be steered because no attempt reached a second turn by itself."""
    from mem1.engines.local import LocalEngine
    from mem1.policy.protocol import resolve
    from mem1.training.train import make_rollout
    from mem1.training.verify import Forced

    engine = LocalEngine(policy.model, policy.codec, policy.dialogue(resolve(recipe)).stop_strings)
    rollout = make_rollout(recipe, policy, source, engine=engine)
    own = rollout(tasks, sampling=sampling)
    if recipe.agent is not None or any(len(t.turns) > 1 for t in own):
        return own, False  # what an agent makes of a steered message is not known
    engine.steering = Forced(rollout.dialogue)
    return rollout([replace(t, turn_limit=min(t.turn_limit, _STEERED_TURNS)) for t in tasks], sampling=sampling), True


def _groups(trajectories: Sequence[Trajectory], attempts: int) -> list[Group]:
    from mem1.records import Group

    starts = range(0, len(trajectories), attempts)
    return [Group(trajectories=tuple(trajectories[i : i + attempts])) for i in starts]


def _show(
    checks: Sequence[Check],
    groups: Sequence[Group],
    policy: Policy,
    context: str,
    computed: Computed,
    as_json: bool,
    *,
    steered: bool,
) -> None:
    """The checks on stdout: one JSON object, or a table."""
    from rich.console import Console

    from mem1.pages.table import printed

    trajectories = [t for group in groups for t in group.trajectories]
    sizes = {
        "parameters": sum(p.numel() for p in policy.model.parameters()),
        "trajectories": len(trajectories),
        "turns": sum(len(t.turns) for t in trajectories),
        "sampled_tokens": sum(t.num_completion_tokens for t in trajectories),
    }
    if as_json:
        rows = [check.as_dict() for check in checks]
        facts = {"context": context, **sizes, **computed.record(), "steered": steered}
        print(json.dumps({**facts, "checks": rows, "passed": all(check.passed for check in checks)}))
        return
    console = Console(highlight=False)
    console.print(
        f"{sizes['sampled_tokens']:,} sampled tokens of {sizes['turns']:,} turns of {sizes['trajectories']:,} "
        f"trajectories; memory {context}"
    )
    if steered:
        console.print("The model reached no second turn by itself: its tags were written for it, the rest is sampled.")
    lines = [
        (
            check.name,
            f"{check.measured:.1e}" if check.measured else "0",
            f"{check.limit:.0e}" if check.limit else "0",
            check.unit,
            f"{check.compared:,}",
            f"[{_COLOURS[check.verdict]}]{check.verdict}[/]",
        )
        for check in checks
    ]
    console.print(printed(("check", "measured", "limit", "unit", "compared", "verdict"), lines, left=(3, 5)))
    for check in checks:
        if check.failed:
            console.print(f"{check.name}: {check.explanation}", soft_wrap=True)
    untested = [check.name for check in checks if check.verdict == "not tested"]
    if untested:
        console.print(
            "Not tested is not passed: there was nothing to compare, such as no second turn or no second attempt, or "
            "too few of them. Give --attempts 2 or more, more tasks by --limit or larger ones by --objectives, and a "
            "budget with room for the tags; an agent must call the model twice."
        )
    console.print(_in_words([check.name for check in checks if check.failed], untested), soft_wrap=True)


def _in_words(failed: Sequence[str], untested: Sequence[str]) -> str:
    """The verdict on all checks."""
    if failed:
        return f"[bold red]Not exact[/]: failed: {', '.join(failed)}. Training would not learn from what was sampled."
    if untested:
        return f"[yellow]Not shown to be exact[/]: not tested: {', '.join(untested)}."
    return "[green]Exact[/]: every check passed; the trainer sees what the sampler saw."
