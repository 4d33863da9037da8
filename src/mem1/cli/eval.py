"""`mem1 eval`: exact match, tokens and turns of a model on the tasks of a recipe."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mem1.cli.options import Chosen, JsonOption, machine, with_recipe, work_begins
from mem1.cli.progress import EvaluationBar, bars, say, stderr

if TYPE_CHECKING:
    from mem1.engines.device import Computed, Device
    from mem1.envs.base import TaskSource
    from mem1.evaluation.agents import EvaluatedAgent
    from mem1.evaluation.metrics import Row
    from mem1.policy.policy import Policy
    from mem1.recipe.recipe import Recipe
    from mem1.records import Trajectory


@with_recipe()
def command(
    invocation: typer.Context,
    chosen: Chosen,
    out: Annotated[
        Path | None, typer.Option(help="Folder for every trajectory; the same command again resumes.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a model on tasks of several questions: exact match, peak and total tokens, turns, endings.

    Without a recipe: tasks of invented worlds (Atlas) by the shipped policy, or --questions with --corpus.
    An evaluation that was cut off resumes with the same --out, and then has the result of an unbroken run.

    \b
    mem1 eval --limit 20
    mem1 eval --questions q.jsonl --corpus p.jsonl --base-url http://127.0.0.1:8000/v1 --model qwen
    mem1 eval webshop-quick memory=full evaluation.temperature=1.0
    """
    from mem1.cli.progress import JudgeBar
    from mem1.engines.codec import SAMPLE, check_words
    from mem1.evaluation.agents import open_agent
    from mem1.evaluation.judge import VERDICTS, Judge, JudgeServer, Verdicts, judge_rows
    from mem1.evaluation.store import write_made_by
    from mem1.lock import alone_in
    from mem1.policy.protocol import resolve

    recipe = with_sizes(chosen, chosen.load())
    speaks = resolve(recipe)
    recipe = speaks.applied(recipe)
    judge = None
    if recipe.judge is not None:
        asked = recipe.judge
        server = JudgeServer(base_url=asked.url, model=asked.model, max_tokens=asked.max_tokens)
        judge = Judge(server, verdicts=Verdicts(out and out / VERDICTS, model=server.model))
    source = recipe.tasks.source("evaluation", speaks.tags)
    work_begins()
    agent = open_agent(recipe, machine(invocation))
    asked = recipe.evaluation
    sample = source.tasks(objectives=min(asked.objectives), count=min(SAMPLE, asked.tasks), seed=asked.seed)
    check_words(agent.codec, sample, speaks.tags, whose=agent.name, results=recipe.tasks.results)
    for note in (f"protocol: {speaks}", *agent.notes):
        stderr().print(note, markup=False)
    rows, trajectories = evaluate_agent(recipe, agent, source, folder=out)
    if out is not None:
        computed = [] if agent.computed is None else [agent.computed.record()]
        with alone_in(out):
            write_made_by(out, agent.name, recipe, command=sys.argv, computed=computed, protocol=speaks.record())
    if judge is not None:
        with bars(stderr()) as progress:
            rows = judge_rows(rows, trajectories, judge, folder=out, on_progress=JudgeBar(progress))
    show(rows, as_json=as_json, computed=agent.computed)
    check_sampled([t for of_size in trajectories.values() for t in of_size])


def check_sampled(trajectories: Sequence[Trajectory]) -> None:
    """Exit with 1 and the most frequent reason where the model wrote no token in any attempt."""
    from mem1.evaluation.report.tables import ADVICE

    if any(trajectory.num_completion_tokens for trajectory in trajectories):
        return
    reasons = Counter((trajectory.ended, trajectory.detail) for trajectory in trajectories)
    ((ended, detail), count), *_ = reasons.most_common(1)
    why = ": ".join(filter(None, (str(ended), detail, ADVICE.get(ended, ""))))
    say(f"nothing could be sampled: {count} of {len(trajectories)} attempts ended with {why}", "error")
    raise typer.Exit(1)


def with_sizes(chosen: Chosen, recipe: Recipe) -> Recipe:
    """With dependent questions and no recipe, the default numbers of objectives are those that allow the depth."""
    from mem1.errors import UserError
    from mem1.tasks.compose import smallest

    composition: Any = getattr(recipe.tasks, "composition", "independent")
    if chosen.recipe is not None or chosen.sets("evaluation.objectives") or composition == "independent":
        return recipe
    if composition == "file":
        raise UserError("tasks.composition=file needs --objectives: the number of questions in the file's tasks")
    fewest = smallest(composition, getattr(recipe.tasks, "depth", None) or 1)
    fitting = tuple(size for size in recipe.evaluation.objectives if size >= fewest) or (fewest,)
    return recipe.model_copy(update={"evaluation": recipe.evaluation.model_copy(update={"objectives": fitting})})


def evaluate_agent(
    recipe: Recipe, agent: EvaluatedAgent, source: TaskSource, *, folder: Path | None, overwrite: bool = False
) -> tuple[list[Row], dict[int, list[Trajectory]]]:
    """`EvaluatedAgent.evaluate` with its progress on stderr."""
    with bars(stderr()) as progress:
        bar = EvaluationBar(progress, agent.name, agent.limit)
        rows, trajectories = agent.evaluate(recipe, source, folder=folder, overwrite=overwrite, on_progress=bar)
    asked = {row.objectives: recipe.evaluation.count(row.objectives) for row in rows}
    few = [
        f"{row.tasks} of {asked[row.objectives]} at N = {row.objectives}"
        for row in rows
        if row.tasks < asked[row.objectives]
    ]
    if few:
        say(
            f"{agent.name}: fewer tasks than asked for ({', '.join(few)}); these questions yield no others "
            "(no task is asked twice)"
        )
    return rows, trajectories


def evaluate_policy(
    recipe: Recipe, policy: Policy, device: Device, *, name: str, folder: Path, overwrite: bool = True
) -> list[Row]:
    """Rows of a policy before or after its training; without `overwrite`, the attempts in the folder count."""
    from mem1.training.sampling.served import trained_agent

    with trained_agent(recipe, policy, device, name=name) as agent:
        source = agent.speaks.tasks.source("evaluation", agent.speaks.tags)
        return evaluate_agent(recipe, agent, source, folder=folder, overwrite=overwrite)[0]


def show(rows: Sequence[Row], *, as_json: bool, computed: Computed | None = None) -> None:
    """Print the result: one JSON object with the device that computed it, or a table."""
    from rich.console import Console

    from mem1.evaluation.report.rows import ReportRow
    from mem1.evaluation.report.tables import print_table, warnings

    shown = [ReportRow.of(row) for row in rows]
    if not as_json:
        print_table(shown, Console())
        return
    computed_by = {} if computed is None else computed.record()
    print(json.dumps({"rows": [row.as_dict() for row in rows], **computed_by}))
    for warning in warnings(shown):
        stderr().print(warning, style="yellow", markup=False, soft_wrap=True)
