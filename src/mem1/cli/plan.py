"""`mem1 plan`: memory, tokens and FLOPs of a recipe before it is run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import OVERRIDES_HELP, Fills, JsonOption, expanded, refuse
from mem1.configuration.model import MOST_TOKENS
from mem1.errors import UserError
from mem1.pages.table import printed

if TYPE_CHECKING:
    from rich.console import Console

    from mem1.planning.attempts import Attempts
    from mem1.planning.fits import Change
    from mem1.planning.plan import Plan, StagePlan
    from mem1.planning.preflight import DryRun


def command(
    invocation: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help=OVERRIDES_HELP)] = None,
    gpus: Annotated[str | None, typer.Option(help="8xH100, or 2x8xH100: two machines. Default: no limit.")] = None,
    server_gpus: Annotated[
        int,
        typer.Option(min=1, max=1000, help="GPUs that sample, with rollout.engine=servers."),
        Fills("mem1.planning.plan:make_plan.server_gpus"),
    ] = 1,
    run: Annotated[
        Path | None, typer.Option(help="Recorded attempts (.jsonl), whose sizes replace the limits.")
    ] = None,
    prompt: Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, help="Tokens of the prompt.")] = None,
    state: Annotated[int | None, typer.Option(min=0, max=MOST_TOKENS, help="Tokens of a state.")] = None,
    action: Annotated[
        int | None, typer.Option(min=0, max=MOST_TOKENS, help="Tokens of an action (a query, the answer).")
    ] = None,
    result: Annotated[int | None, typer.Option(min=0, max=MOST_TOKENS, help="Tokens of a result.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, max=10000, help="Turns of an attempt.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Estimate a recipe's memory by part, tokens and FLOPs per step; if it does not fit, what to change."""
    from mem1.api import load_recipe

    config = load_recipe(recipe, *expanded(overrides or []))
    if config.rollout.engine != "servers":
        refuse(invocation, "server_gpus", because="the recipe samples in its own process; set rollout.engine=servers")
    sizes = {"prompt": prompt, "state": state, "action": action, "result": result, "turns": turns}
    from mem1.planning.fits import advise
    from mem1.planning.gpus import cluster
    from mem1.planning.plan import Steps, make_plan, record

    known, steps = _attempts(run, sizes), Steps()
    _check_sizes(sizes, config.budget.context)
    named = None if gpus is None else cluster(gpus)
    plan = make_plan(config, gpus=named, server_gpus=server_gpus, attempts=known, steps=steps)
    advice = None
    if named is not None and not plan.fits:
        advice = advise(config, gpus=named, server_gpus=server_gpus, attempts=known, steps=steps)
    if as_json:
        from dataclasses import asdict

        print(json.dumps({**record(plan), "advice": None if advice is None else [asdict(one) for one in advice]}))
    else:
        show_plan(plan, advice)


def _check_sizes(sizes: Mapping[str, int | None], most: int) -> None:
    """Raises UserError for sizes of which not even one turn fits into a context, by whatever memory."""
    least = sum(sizes[name] or 0 for name in ("prompt", "state", "action"))
    least += (sizes["result"] or 0) if (sizes["turns"] or 1) > 1 else 0
    if least > most:
        raise UserError(
            f"these sizes make contexts of {least:,} tokens or more, and budget.context = {most:,}: raise it, or give "
            "smaller ones"
        )


def _attempts(run: Path | None, sizes: dict[str, int | None]) -> Attempts:
    from mem1.evaluation.tokens import even_sizes
    from mem1.planning.attempts import Attempts
    from mem1.trajectory_files import read_trajectories

    known = {name: size for name, size in sizes.items() if size is not None}
    if run is not None:
        if known:
            raise UserError(f"{', '.join(f'--{n}' for n in known)}: {run} has its own sizes; leave out one of them")
        called = tuple(t for t in read_trajectories(run) if t.turns)
        if not called:
            raise UserError(f"{run} has no attempt with a model call; give another run")
        return Attempts(recorded=called)
    if not known:
        return Attempts()
    if missing := [f"--{name}" for name in sizes if name not in known]:
        raise UserError(f"give all sizes or none; missing: {', '.join(missing)}")
    return Attempts(sizes=even_sizes(**known))


def show_plan(plan: Plan, advice: Sequence[Change] | None = None) -> None:
    """Print it to stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    console.print(
        f"{plan.shape.model_type} of {plan.parameters:,} parameters ({plan.source}); attempts: {plan.sizes}.",
        markup=False,
    )
    for stage in plan.stages:
        _show_stage(console, plan, stage)
    if plan.disk:
        console.print(f"Disk: {_gb(plan.disk)} GB for the checkpoints that stand together and the trained policy.")
    if plan.published is not None:
        console.print(f"Published weights: {_gb(plan.published)} GB per step, written once to rollout.weights_folder.")
    _say_whether_it_fits(console, plan)
    if advice is not None:
        _show_advice(console, advice)


def show_dry_run(done: DryRun) -> None:
    """Print what a dry run found to stdout: the plan, then the checks, what is missing last."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    rehearsed = done.rehearsed
    console.print(
        f"Rehearsed with a tiny {done.plan.shape.model_type} on invented tasks, rewards and {rehearsed.tokenizer} "
        f"tokenizer: an expert's attempt of {rehearsed.expert_turns} turns; one step of "
        + ", ".join(f"\\[{name}] (loss {loss:.3f})" for name, loss in rehearsed.stages.items())
        + ", each with a checkpoint written and read.",
    )
    show_plan(done.plan)
    for check in sorted(done.checks, key=lambda check: not check.ok):
        mark = "[green]ok     [/]" if check.ok else "[red]missing[/]"
        console.print(f"{mark} {escape(check.name if check.ok else f'{check.name}, {check.key}')}: ", end="")
        console.print(check.detail, markup=False, soft_wrap=True)


def _show_stage(console: Console, plan: Plan, stage: StagePlan) -> None:
    memory = stage.memory
    where = "one process" if plan.gpus is None else f"one GPU of {plan.gpus}"
    rows = [(name, _gb(size), f"{size / memory.peak:.0%}") for name, size in memory.parts.items()]
    rows.append((f"peak, at {memory.moment}", _gb(memory.peak), ""))
    console.print(printed(("part", "GB", "share"), rows, title=f"[{stage.name}] memory of {where}"))
    if memory.host:
        console.print(f"and {_gb(memory.host)} GB of the machine's own memory for each GPU.")
    if stage.server is not None:
        held = ", ".join(f"{name} {_gb(size)} GB" for name, size in stage.server.items())
        console.print(f"A server that samples: {held}.")
    tokens = stage.tokens
    counts = [
        ("attempts", f"{tokens.attempts:,}"),
        ("model calls", f"{tokens.calls:,}"),
        ("context tokens read", f"{tokens.prefill:,}"),
        ("tokens sampled", f"{tokens.sampled:,}"),
        ("tokens trained, shared ones once", f"{tokens.trained:,}"),
        ("packs", f"{tokens.packs:,}"),
        ("largest pack", f"{tokens.largest_pack:,}"),
        ("longest context and completion", f"{tokens.longest:,}"),
    ]
    console.print(printed(("", "number"), counts, title=f"[{stage.name}] a step of {stage.steps}"))
    total = sum(stage.flops.values())
    flops = [(name, f"{n / 1e12:,.3g}", f"{n / total:.0%}") for name, n in stage.flops.items()]
    console.print(printed(("part", "TFLOP", "share"), flops, title=f"[{stage.name}] FLOPs per step"))


def _say_whether_it_fits(console: Console, plan: Plan) -> None:
    if plan.gpus is None or plan.usable is None:
        console.print("No GPUs were named (--gpus 8xH100), so there is no limit.")
        return
    verdict = "[green]fits[/]" if plan.fits else "[red]does not fit[/]"
    gpu = plan.gpus.gpu
    console.print(
        f"{_gb(plan.peak)} GB {verdict} into {_gb(plan.usable)} GB, 90 % of a {gpu.name}'s {gpu.memory_gb:g}."
    )
    if plan.server_least:
        verdict = "[green]fits[/]" if plan.server_fits else "[red]does not fit[/]"
        console.print(
            f"A server with one context, {_gb(plan.server_least)} GB, {verdict} into the {plan.server_gpus} of them "
            "that sample."
        )
    if plan.config.distributed is None and plan.gpus.gpus > 1:
        console.print("Without \\[distributed] one of the GPUs trains; add the section, or distributed={} here.")


def _show_advice(console: Console, advice: Sequence[Change]) -> None:
    rows = [(change.what, _gb(change.peak), "yes" if change.fits else "no") for change in advice]
    console.print(printed(("change", "peak, GB", "fits"), rows, title="Changes, each added to those before it"))
    if not advice or not advice[-1].fits:
        console.print("Even together they do not fit; take a smaller model or more GPUs.")


def _gb(size: float) -> str:
    gigabytes = size / 1e9
    return f"{gigabytes:,.1f}" if gigabytes >= 10 else f"{gigabytes:.3g}"
