"""`mem1 plan`: memory, tokens, FLOPs and time of a recipe before it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import Fills, refuse
from mem1.configuration.numbers import MOST_TOKENS

if TYPE_CHECKING:
    from mem1.planning.stages import Attempts


def command(
    invocation: typer.Context,
    recipe: Annotated[str, typer.Argument(help="A TOML file, or the name of a shipped recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="key=value, dotted: rl.pack_tokens=4096")] = None,
    gpus: Annotated[str | None, typer.Option(help="8xH100, or 2x8xH100 for two machines; without: no time.")] = None,
    server_gpus: Annotated[
        int,
        typer.Option(min=1, max=1000, help="GPUs that serve, with rollout.engine=servers."),
        Fills("mem1.planning.placement:Setup.server_gpus"),
    ] = 1,
    run: Annotated[
        Path | None, typer.Option(help="Recorded attempts (.jsonl), whose sizes are taken in place of limits.")
    ] = None,
    prompt: Annotated[int | None, typer.Option(min=1, max=MOST_TOKENS, help="Tokens of the prompt.")] = None,
    state: Annotated[int | None, typer.Option(min=0, max=MOST_TOKENS, help="Tokens of a state.")] = None,
    action: Annotated[
        int | None, typer.Option(min=0, max=MOST_TOKENS, help="Tokens of an action (a query, the answer).")
    ] = None,
    result: Annotated[int | None, typer.Option(min=0, max=MOST_TOKENS, help="Tokens of a result.")] = None,
    turns: Annotated[int | None, typer.Option(min=1, max=10000, help="Turns of an attempt.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as one JSON object.")] = False,
) -> None:
    """Tell what a recipe needs: memory by part, tokens and FLOPs of a step, time; what does not fit, what to change."""
    from mem1.api import find_recipe
    from mem1.cli.plan_tables import show_plan
    from mem1.cli.recipes import expanded
    from mem1.configuration import load_toml
    from mem1.planning.advice import advise
    from mem1.planning.gpus import cluster
    from mem1.planning.placement import Setup
    from mem1.planning.plan import make_plan, record
    from mem1.training.loop.recipe import TrainConfig

    config = load_toml(find_recipe(recipe), TrainConfig, expanded(overrides or []))
    if config.rollout.engine != "servers":
        refuse(invocation, "server_gpus", because="the recipe samples in its own process; set rollout.engine=servers")
    sizes = {"prompt": prompt, "state": state, "action": action, "result": result, "turns": turns}
    known = _attempts(run, sizes)
    setup = Setup.of(config, server_gpus=server_gpus)
    named = None if gpus is None else cluster(gpus)
    plan = make_plan(config, setup=setup, cluster=named, attempts=known)
    advice = None
    if named is not None and not plan.fits:
        advice = advise(config, setup=setup, cluster=named, attempts=known)
    if as_json:
        from dataclasses import asdict

        print(json.dumps({**record(plan), "advice": None if advice is None else asdict(advice)}))
    else:
        show_plan(plan, advice)


def _attempts(run: Path | None, sizes: dict[str, int | None]) -> Attempts:
    from mem1.errors import UserError
    from mem1.evaluation.store import read_trajectories
    from mem1.evaluation.tokens import even_sizes
    from mem1.planning.stages import Attempts

    known = {name: size for name, size in sizes.items() if size is not None}
    if run is not None:
        if known:
            raise UserError(
                f"{', '.join(f'--{n}' for n in known)}: the sizes are those of {run}; leave out one of them"
            )
        called = tuple(t for t in read_trajectories(run) if t.turns)
        if not called:
            raise UserError(f"{run} holds no attempt that made a call; give a run that did")
        return Attempts(recorded=called)
    if not known:
        return Attempts()
    if missing := [f"--{name}" for name in sizes if name not in known]:
        raise UserError(f"give all sizes or none; missing: {', '.join(missing)}")
    return Attempts(sizes=even_sizes(**known))
