"""`mem1 data`: make files of tasks out of public data sets or one's own questions, and questions out of documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli import data_cloze, data_verl
from mem1.cli.options import Command, Fills, make_folder_of, refuse, work_begins
from mem1.configuration.numbers import LARGEST_SEED, MOST_OBJECTIVES, MOST_TASKS

if TYPE_CHECKING:
    from mem1.records import Question, Task
    from mem1.tasks.splits import Split

app = typer.Typer(name="data", help="Make files of tasks, and questions out of documents.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make files of tasks out of data sets, and questions out of documents."""


app.command("cloze", cls=Command)(data_cloze.command)
app.command("verl", cls=Command)(data_verl.command)


@app.command("compose", cls=Command)
def compose(
    invocation: typer.Context,
    questions: Annotated[list[str], typer.Argument(help="Files, or hf:owner/name:split, of questions.")],
    objectives: Annotated[int, typer.Option(min=1, max=MOST_OBJECTIVES, help="Questions of a task.")],
    out: Annotated[Path, typer.Option(help=".parquet for MEM1's and Search-R1's code, .jsonl in our own form.")],
    format: Annotated[str | None, typer.Option(help="Format of the files. Without: seen in their content.")] = None,
    aliases: Annotated[str | None, typer.Option(help="id_aliases.json of 2WikiMultihopQA.")] = None,
    decompose: Annotated[bool, typer.Option(help="Single hops in place of questions (2Wiki, MuSiQue).")] = False,
    composition: Annotated[
        str,
        typer.Option(help="independent, chain, shared or comparison."),
        Fills("mem1.envs.search.tasks:QuestionFiles.composition"),
    ] = "independent",
    depth: Annotated[
        int | None, typer.Option(min=1, max=MOST_OBJECTIVES, help="Longest chain of references in a task; 1.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_TASKS, help="Tasks. Without: as many as use each question once (independent questions)."
        ),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train or evaluation: the half, by a hash of each text. Without: both.")
    ] = None,
    evaluation_share: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of the questions in the evaluation half."),
        Fills("mem1.tasks.datasets.reading:read_pool.evaluation_share"),
    ] = 0.1,
    data_source: Annotated[
        str | None, typer.Option(help="data_source of all rows (Parquet). Without: that of each task's first question.")
    ] = None,
    passages: Annotated[Path | None, typer.Option(help="Write the passages that come with the files here.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Of the order in which questions are drawn.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as one JSON object.")] = False,
) -> None:
    """Compose N questions into each task, and write the tasks to a file."""
    from mem1.cli.display import stderr
    from mem1.cli.outputs import new_file
    from mem1.errors import UserError
    from mem1.tasks.datasets import write_passages, write_tasks
    from mem1.tasks.datasets.reading import read_pool

    for written in filter(None, (out, passages)):
        new_file(written)
    half = _half(split)
    if half is None:
        refuse(invocation, "evaluation_share", because="is the size of a half; say which half by --split")
    if out.suffix != ".parquet":
        refuse(invocation, "data_source", because="goes into .parquet files alone")
    work_begins()
    for written in (out, passages):
        if written is not None:
            make_folder_of(written)
    pool = read_pool(
        questions,
        format=format,
        aliases=aliases,
        decompose=decompose,
        split=half,
        evaluation_share=evaluation_share,
    )
    tasks = _tasks(pool.questions, composition, depth, objectives, count, seed)
    if passages is not None and not pool.passages:
        raise UserError("--passages: no passages come with these files; leave it out")
    write_tasks(out, tasks, split=half or "train", source=data_source)
    _note_unscored({data_source or task.questions[0].source for task in tasks}, out)
    if passages is not None:
        write_passages(passages, pool.passages)
    written = {
        "out": str(out),
        "tasks": len(tasks),
        "objectives": objectives,
        "questions": len(pool.questions),
        "repeats_left_out": pool.repeats,
        "passages": len(pool.passages) if passages is not None else 0,
    }
    if as_json:
        print(json.dumps(written))
    else:
        stderr().print(
            f"{len(tasks):,} tasks of {objectives} from {len(pool.questions):,} questions, written to {out}; "
            f"{pool.repeats:,} questions that stood twice were left out"
        )


def _half(split: str | None) -> Split | None:
    from mem1.errors import UserError

    if split is None or split == "train" or split == "evaluation":
        return split
    raise UserError(f"--split takes train or evaluation, not {split!r}")


def _note_unscored(sources: set[str], out: Path) -> None:
    """The published trainers choose their reward by the data source, and know seven."""
    from mem1.cli.display import stderr
    from mem1.tasks.datasets.parquet import SCORED

    unknown = sorted(sources - set(SCORED))
    if unknown and out.suffix == ".parquet":
        stderr().print(
            f"Note: MEM1's and Search-R1's trainers have no reward for data_source {', '.join(map(repr, unknown))}; "
            f"for use with them give --data-source, one of {', '.join(SCORED)}"
        )


def _tasks(
    questions: list[Question], composition: str, depth: int | None, objectives: int, count: int | None, seed: int
) -> list[Task]:
    from mem1.cli.sources import dependence
    from mem1.errors import UserError
    from mem1.protocol import RELEASED
    from mem1.tasks.bridge_questions import LinkedQuestions
    from mem1.tasks.compose import TaskTemplate
    from mem1.tasks.dependencies import compose_as

    if composition == "independent":
        if depth is not None:
            raise UserError("--depth applies to the compositions chain, shared and comparison, not to independent")
        kind, number = composition, count or max(1, len(questions) // objectives)
    else:
        kind, number = dependence(composition), count
    if number is None:
        raise UserError("--count is missing: questions that depend on one another can be drawn without end")
    return compose_as(
        kind,
        depth,
        questions=questions,
        material=LinkedQuestions(questions),
        form=TaskTemplate(prompt="released", tags=RELEASED),
        objectives=objectives,
        count=number,
        seed=seed,
    )
