"""`mem1 verify`: does the trainer see what the sampler saw? Sample, compute every way, compare."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mem1.cli.devices import DeviceOption
from mem1.cli.options import Fills, is_given, refuse, work_begins
from mem1.cli.recipes import Settings
from mem1.configuration.numbers import COLDEST, LARGEST_SEED, MOST_OBJECTIVES, MOST_TASKS, WARMEST
from mem1.contexts import KNOWN

if TYPE_CHECKING:
    from mem1.engines.base import Sampling
    from mem1.engines.device import Computed
    from mem1.envs.base import TaskSource
    from mem1.records import Group, Task, Trajectory
    from mem1.training.loop.recipe import TrainConfig
    from mem1.training.verify.checks import Check
    from mem1.training.weights.policy import Policy

_COLOURS = {"passed": "green", "failed": "bold red", "not tested": "yellow"}
_STEERED = 4
"""Turns of an attempt that is steered, at most."""


def command(
    invocation: typer.Context,
    model: Annotated[str, typer.Option(help="Folder of a transformers model, or 'shipped'.")] = "shipped",
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="A recipe (file or name): its model, tasks, tags, context, budget.")
    ] = None,
    settings: Settings = None,
    context: Annotated[
        str, typer.Option(help=f"{KNOWN}."), Fills("mem1.training.loop.recipe:TrainConfig.context")
    ] = "constant",
    vocabulary: Annotated[
        str, typer.Option(help="Tags: paper or released."), Fills("mem1.training.loop.recipe:TrainConfig.vocabulary")
    ] = "paper",
    task: Annotated[
        str, typer.Option(help="atlas; multihop: --questions over --corpus or --retriever; cloze: --corpus.")
    ] = "atlas",
    questions: Annotated[Path | None, typer.Option(help="JSONL of questions (multihop).")] = None,
    corpus: Annotated[Path | None, typer.Option(help="File of passages, or an index (multihop, cloze).")] = None,
    retriever: Annotated[
        list[str] | None, typer.Option(help="Address of a retriever in place of --corpus; repeatable (multihop).")
    ] = None,
    objectives: Annotated[
        int, typer.Option(min=1, max=MOST_OBJECTIVES, help="Questions of a task; with --recipe its first size.")
    ] = 2,
    tasks: Annotated[int, typer.Option(min=1, max=MOST_TASKS, help="Tasks that are attempted.")] = 8,
    attempts: Annotated[
        int, typer.Option(min=1, max=MOST_TASKS, help="Attempts at each; they share a token tree.")
    ] = 4,
    temperature: Annotated[
        float,
        typer.Option(min=COLDEST, max=WARMEST, help="Of sampling, above 0; with --recipe that of [rl]."),
        Fills("mem1.training.loop.rl_config:Rl.temperature"),
    ] = 1.0,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Seed of tasks and sampling."),
        Fills("mem1.engines.base:Sampling.seed"),
    ] = 0,
    device: DeviceOption = None,
    attention: Annotated[
        str,
        typer.Option(help="Of the token tree: auto (flex on CUDA, else blocks), blocks or flex."),
        Fills("mem1.training.loop.recipe:ModelConfig.attention"),
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print the checks as one JSON object.")] = False,
) -> None:
    """Check on fresh trajectories that training is exact; exit code 1 if a check fails or cannot be made."""
    from mem1.cli.devices import chosen, known
    from mem1.cli.display import stderr
    from mem1.cli.recipes import evaluation_recipe
    from mem1.cli.sources import task_config
    from mem1.contexts import context_policy
    from mem1.engines.base import Sampling
    from mem1.engines.codec import check_words
    from mem1.packing.attention import choose_attention
    from mem1.protocol import vocabulary as tags_called
    from mem1.training.loop.recipe import ModelConfig, TrainConfig
    from mem1.training.verify.verify import NO_GRADIENTS, has_gradients, verify
    from mem1.training.weights.policy import make_policy

    attention = known("attention", attention)
    if recipe is not None:
        own = ("objectives", "tasks", "temperature", "seed")
        config = evaluation_recipe(invocation, recipe, settings or [], besides=own)
        if is_given(invocation, "model"):
            given = ModelConfig.model_validate({**config.model.model_dump(), "path": model, "new": None})
            config = config.model_copy(update={"model": given})
        if not is_given(invocation, "attention"):
            attention = config.model.attention
        if config.rl is not None and not is_given(invocation, "temperature"):
            temperature = config.rl.temperature
        if not is_given(invocation, "objectives"):
            objectives = _first_size(config)
    else:
        refuse(invocation, "settings", because="changes keys of a recipe; give the recipe too, by --recipe")
        config = TrainConfig(
            vocabulary=tags_called(vocabulary).name,
            context=context_policy(context).name,
            model=ModelConfig(path=model),
            tasks=task_config(task, questions, corpus, retriever, worlds=1),
        )
    tags = tags_called(config.vocabulary)
    work_begins()
    source = config.tasks.source("evaluation", tags)
    on = chosen(invocation, device or config.model.device, training=True)
    backend = choose_attention(attention, on.at, gradients=False)
    policy = make_policy(config, tags)
    policy.model.to(on.at)  # type: ignore[arg-type]  # transformers' own signature takes less
    computed = replace(policy.computed(on), attention=backend)
    stderr().print(str(computed), markup=False, soft_wrap=True)
    sampling = Sampling(temperature=temperature, seed=seed)
    drawn = [t for t in source.tasks(objectives=objectives, count=tasks, seed=seed) for _ in range(attempts)]
    check_words(policy.codec, drawn[::attempts], tags, whose=config.model.name)
    with stderr().status("sampling") as status:
        trajectories, steered = _sample(config, policy, source, drawn, sampling)
        groups = _groups(trajectories, attempts)
        checks = verify(
            policy.model,
            groups,
            temperature=temperature,
            attention=backend,
            progress=lambda what: status.update(f"trainer: {what}"),
        )
    if not has_gradients(backend, policy.model):
        stderr().print(NO_GRADIENTS, soft_wrap=True)
    _show(checks, groups, policy, config.context, computed, as_json, steered=steered)
    if not all(check.passed for check in checks):
        raise typer.Exit(1)


def _first_size(config: TrainConfig) -> int:
    """Of what the recipe trains, else of what it evaluates."""
    if config.rl is not None:
        return config.rl.objectives(0)[0]
    return (config.evaluation if config.sft is None else config.sft).objectives[0]


def _sample(
    config: TrainConfig, policy: Policy, source: TaskSource, tasks: Sequence[Task], sampling: Sampling
) -> tuple[list[Trajectory], bool]:
    """Attempts, and whether they had to be steered: no attempt of the model's own came to a second turn."""
    from mem1.engines.local import LocalEngine
    from mem1.protocol import vocabulary
    from mem1.training.loop.train import make_rollout
    from mem1.training.steering import Turns

    tags = vocabulary(config.vocabulary)
    engine = LocalEngine(policy.model, policy.codec, tags.stop_strings)
    rollout = make_rollout(config, policy, source, tags, engine=engine)
    own = rollout(tasks, sampling=sampling)
    if any(len(t.turns) > 1 for t in own):
        return own, False
    engine.steering = Turns(policy.codec, tags)
    return rollout([replace(t, turn_limit=min(t.turn_limit, _STEERED)) for t in tasks], sampling=sampling), True


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
    trajectories = [t for group in groups for t in group.trajectories]
    sizes = {
        "parameters": sum(p.numel() for p in policy.model.parameters()),
        "trajectories": len(trajectories),
        "turns": sum(len(t.turns) for t in trajectories),
        "sampled_tokens": sum(t.num_completion_tokens for t in trajectories),
    }
    passed = all(check.passed for check in checks)
    if as_json:
        rows = [check.as_dict() for check in checks]
        facts = {"context": context, **sizes, **computed.record(), "steered": steered}
        print(json.dumps({**facts, "checks": rows, "passed": passed}))
        return
    console = Console(highlight=False)
    console.print(
        f"{sizes['sampled_tokens']:,} sampled tokens of {sizes['turns']:,} turns of {sizes['trajectories']:,} "
        f"trajectories; context policy {context}"
    )
    if steered:
        console.print(
            "The model came to no second turn by itself: tags were written for it, what is inside them is sampled."
        )
    console.print(_table(checks))
    for check in checks:
        if check.failed:
            console.print(f"{check.name}: {check.explanation}", soft_wrap=True)
    if any(check.verdict == "not tested" for check in checks):
        console.print(
            "Not tested is not passed: there was nothing to compare, such as no second turn or no second attempt. Give "
            "--attempts 2 or more, and a budget with room for the tags."
        )


def _table(checks: Sequence[Check]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("check")
    for heading in ("measured", "limit", "unit", "compared"):
        table.add_column(heading, justify="left" if heading == "unit" else "right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for check in checks:
        colour = _COLOURS[check.verdict]
        table.add_row(
            check.name,
            f"{check.measured:.1e}" if check.measured else "0",
            f"{check.limit:.0e}" if check.limit else "0",
            check.unit,
            f"{check.compared:,}",
            f"[{colour}]{check.verdict}[/]",
        )
    return table
