"""A plan as tables for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from mem1.planning.advice import Advice
    from mem1.planning.plan import Plan, StagePlan
    from mem1.planning.preflight import DryRun

_GB = 1e9


def show_plan(plan: Plan, advice: Advice | None = None) -> None:
    """Print it to stdout."""
    from rich.console import Console

    console = Console(highlight=False)
    network = plan.network
    console.print(
        f"{network.kind} of {network.parameters:,} parameters ({network.source}); attempts: {plan.sizes}.", markup=False
    )
    for stage in plan.stages:
        _show_stage(console, plan, stage)
    if plan.disk:
        console.print(f"Disk: {_gb(plan.disk)} GB for the checkpoints that stand together and the trained policy.")
    _say_whether_it_fits(console, plan)
    if advice is not None:
        _show_advice(console, plan, advice)


def show_dry_run(done: DryRun) -> None:
    """Print what a dry run found to stdout, the plan last."""
    from rich.console import Console

    console = Console(highlight=False)
    for check in done.checks:
        mark = "[green]ok     [/]" if check.ok else "[red]missing[/]"
        console.print(f"{mark} {check.name}: ", end="")
        console.print(check.detail, markup=False, soft_wrap=True)
    rehearsed = done.rehearsed
    console.print(
        f"Rehearsed with a tiny {done.plan.network.kind} on invented tasks, rewards and {rehearsed.tokenizer} "
        f"tokenizer: an expert's attempt of {rehearsed.expert_turns} turns; one step of "
        + ", ".join(f"\\[{name}] (loss {loss:.3f})" for name, loss in rehearsed.stages.items())
        + ", each with a checkpoint written and read.",
    )
    console.print(f"On the meta device the recipe's model has {done.parameters:,} parameters.")
    show_plan(done.plan)


def _show_stage(console: Console, plan: Plan, planned: StagePlan) -> None:
    stage, memory = planned.stage, planned.memory
    where = "one process" if plan.cluster is None else f"one GPU of {plan.cluster}"
    rows = [(name, _gb(size), f"{size / memory.peak:.0%}") for name, size in memory.parts.items()]
    rows.append((f"peak, at {memory.moment}", _gb(memory.peak), ""))
    console.print(_table(f"[{stage.name}] memory of {where}", ("part", "GB", "share"), rows))
    if memory.host:
        console.print(f"and {_gb(memory.host)} GB of the machine's own memory for each GPU.")
    if planned.server is not None:
        held = ", ".join(f"{name} {_gb(size)} GB" for name, size in planned.server.items())
        console.print(f"A server that samples: {held}.")
    tokens = stage.tokens
    counts = [
        ("attempts", f"{tokens.attempts:,}"),
        ("model calls", f"{tokens.calls:,}"),
        ("context tokens read", f"{tokens.prefill:,}"),
        ("tokens sampled", f"{tokens.sampled:,}"),
        ("tokens trained, shared ones once", f"{tokens.trained:,}"),
        ("packs", f"{tokens.packs:,}"),
        ("largest pack", f"{tokens.load.tokens:,}"),
        ("longest context and completion", f"{tokens.longest:,}"),
    ]
    console.print(_table(f"[{stage.name}] a step of {stage.steps}", ("", "number"), counts))
    total = sum(planned.flops.values())
    flops = [(name, f"{n / 1e12:,.3g}", f"{n / total:.0%}") for name, n in planned.flops.items()]
    console.print(_table(f"[{stage.name}] FLOPs of a step", ("part", "TFLOP", "share"), flops))
    if planned.time is not None:
        seconds = planned.time.seconds
        spent = [(name, f"{s:,.1f}", f"{s / seconds:.0%}") for name, s in planned.time.parts.items()]
        spent.append(("a step", f"{seconds:,.1f}", ""))
        spent.append((f"{stage.steps} steps, in hours", f"{seconds * stage.steps / 3600:,.1f}", ""))
        console.print(_table(f"[{stage.name}] time, estimated", ("part", "seconds", "share"), spent))


def _say_whether_it_fits(console: Console, plan: Plan) -> None:
    if plan.cluster is None or plan.usable is None:
        console.print("No GPUs were named (--gpus 8xH100), so there is neither time nor limit.")
        return
    verdict = "[green]fits[/]" if plan.fits else "[red]does not fit[/]"
    gpu = plan.cluster.gpu
    console.print(
        f"{_gb(plan.peak)} GB {verdict} into {_gb(plan.usable)} GB, 90 % of a {gpu.name}'s {gpu.memory_gb:g}."
    )
    if plan.setup.distributed is None and plan.cluster.gpus > 1:
        console.print("Without \\[distributed] one of the GPUs trains; add the section, or distributed={} here.")
    console.print("Figures for GPUs are estimates; none was measured on a GPU (docs/planning.md).")


def _show_advice(console: Console, plan: Plan, advice: Advice) -> None:
    rows = [(change.what, _gb(change.peak), "yes" if change.fits else "no") for change in advice.alone]
    console.print(_table("What each change alone leads to", ("change", "peak, GB", "fits"), rows))
    if advice.together and advice.together[-1].fits:
        console.print(f"Together: {'; '.join(change.what for change in advice.together)}.", markup=False)
    else:
        console.print("No combination of these fits; take a smaller model or more GPUs.")


def _gb(size: float) -> str:
    gigabytes = size / _GB
    return f"{gigabytes:,.1f}" if gigabytes >= 10 else f"{gigabytes:.3g}"


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, title=escape(title), title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(escape, row))
    return table
