"""`mem1 data`: makes files of tasks out of questions, questions out of documents, and files for verl's trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from mem1.cli.options import Command, Fills, JsonOption, make_folder_of, new_file, refuse, work_begins
from mem1.cli.recipe_options import OVERRIDES_HELP, expanded
from mem1.configuration.model import LARGEST_SEED, MOST_OBJECTIVES, MOST_TASKS
from mem1.errors import UserError, printable

if TYPE_CHECKING:
    from mem1.records import Question, Task
    from mem1.tasks.compose import Dependence, Split

_ORDER = "How they are drawn"
_FILTERS = "Which are kept"

app = typer.Typer(name="data", help="Make files of tasks, and questions out of documents.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make files of tasks out of data sets, and questions out of documents."""


@app.command("compose", cls=Command)
def compose(
    invocation: typer.Context,
    questions: Annotated[list[str], typer.Argument(help="Files, or hf:owner/name:split, of questions.")],
    objectives: Annotated[int, typer.Option(min=1, max=MOST_OBJECTIVES, help="Questions of a task.")],
    out: Annotated[Path, typer.Option(help=".parquet for MEM1's and Search-R1's code, .jsonl in mem1's own format.")],
    format: Annotated[str | None, typer.Option(help="Format of the files. Default: recognised by content.")] = None,
    aliases: Annotated[str | None, typer.Option(help="id_aliases.json of 2WikiMultihopQA.")] = None,
    decompose: Annotated[
        bool, typer.Option("--decompose", help="Single hops in place of questions (2Wiki, MuSiQue).")
    ] = False,
    composition: Annotated[
        str,
        typer.Option(help="independent, consecutive, chain, shared or comparison."),
        Fills("mem1.envs.search:QuestionFiles.composition"),
    ] = "independent",
    question_marks: Annotated[
        bool, typer.Option("--question-marks", help="Append a question mark to questions without one.")
    ] = False,
    depth: Annotated[
        int | None, typer.Option(min=1, max=MOST_OBJECTIVES, help="Longest chain of references in a task; 1.")
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            min=1, max=MOST_TASKS, help="Tasks. Default, for independent questions: as many as use each one once."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(help="train or evaluation: half of the questions, by a hash of each. Default: both."),
    ] = None,
    evaluation_share: Annotated[
        float,
        typer.Option(min=0.0, max=1.0, help="Share of the questions in the evaluation half."),
        Fills("mem1.tasks.datasets.reading:read_pool.evaluation_share"),
    ] = 0.1,
    without: Annotated[
        list[str] | None, typer.Option(help="File of questions that must not occur, as of a test; repeatable.")
    ] = None,
    data_source: Annotated[
        str | None, typer.Option(help="data_source of all rows (Parquet). Default: that of each task's first question.")
    ] = None,
    passages: Annotated[Path | None, typer.Option(help="Write the passages that come with the files here.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the order of the questions.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Compose N questions into each task, and write the tasks to a file."""
    from mem1.cli.progress import stderr
    from mem1.tasks.compose import marked
    from mem1.tasks.datasets import write_passages, write_tasks
    from mem1.tasks.datasets.reading import read_pool

    for written in filter(None, (out, passages)):
        new_file(written)
    half = _half(split)
    if half is None:
        refuse(invocation, "evaluation_share", because="is the size of a half; choose the half by --split")
    if out.suffix != ".parquet":
        refuse(invocation, "data_source", because="goes only into .parquet files")
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
        without=without or (),
    )
    files = [list(map(marked, file)) for file in pool.files] if question_marks else pool.files
    tasks = _tasks(files, composition, depth, objectives, count, seed)
    if passages is not None and not pool.passages:
        raise UserError("--passages: these files come without passages; leave it out")
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
            f"{pool.repeats:,} repeated questions were left out"
        )


def _half(split: str | None) -> Split | None:
    if split is None or split == "train" or split == "evaluation":
        return split
    raise UserError(f"--split takes train or evaluation, not {split!r}")


def _note_unscored(sources: set[str], out: Path) -> None:
    """Warns of data sources for which the published trainers, which choose their reward by it, have none."""
    from mem1.cli.progress import stderr
    from mem1.tasks.datasets.parquet import SCORED

    unknown = sorted(sources - set(SCORED))
    if unknown and out.suffix == ".parquet":
        stderr().print(
            f"Note: MEM1's and Search-R1's trainers have no reward for data_source {', '.join(map(repr, unknown))}; "
            f"to use them, give --data-source, one of {', '.join(SCORED)}"
        )


def _tasks(
    files: list[list[Question]], composition: str, depth: int | None, objectives: int, count: int | None, seed: int
) -> list[Task]:
    from mem1.protocol import RELEASED
    from mem1.tasks.bridge_questions import LinkedQuestions
    from mem1.tasks.compose import as_composed, compose_as, consecutive
    from mem1.tasks.template import TaskTemplate

    questions = [question for file in files for question in file]
    form = TaskTemplate(prompt="released", tags=RELEASED)
    if composition in ("independent", "consecutive") and depth is not None:
        raise UserError(f"--depth applies to the compositions chain, shared and comparison, not to {composition}")
    if composition == "consecutive":
        groups = [group for file in files for group in consecutive(file, objectives)]
        number = len(groups) if count is None else count
        return as_composed(groups, form, objectives=objectives, count=max(1, number), seed=seed)
    if composition == "independent":
        kind, number = composition, count or max(1, len(questions) // objectives)
    else:
        kind, number = _dependence(composition), count
    if number is None:
        raise UserError("--count is missing: dependent questions can be drawn without end")
    return compose_as(
        kind,
        depth,
        questions=questions,
        material=LinkedQuestions(questions),
        form=form,
        objectives=objectives,
        count=number,
        seed=seed,
    )


def _dependence(composition: str) -> Dependence:
    """The kind of this name. Raises UserError for an unknown one."""
    from mem1.tasks.compose import Dependence

    for known in get_args(Dependence):
        if composition == known:
            return known
    raise UserError(
        f"unknown composition {composition!r}; known: independent, consecutive, {', '.join(get_args(Dependence))}"
    )


@app.command("cloze", cls=Command)
def cloze(
    corpus: Annotated[
        Path,
        typer.Argument(
            help="Passages in JSONL (may be gzipped) or Parquet, an index, or a folder of documents (see mem1 index).",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the questions, their index and a README.", show_default=False)],
    left: Annotated[
        int,
        typer.Option(min=3, help="Words shown before the blank.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.left"),
    ] = 6,
    right: Annotated[
        int,
        typer.Option(min=0, help="Words shown after it.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.right"),
    ] = 4,
    per_passage: Annotated[
        int,
        typer.Option(min=1, help="Most questions per passage.", rich_help_panel=_FILTERS),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.per_passage"),
    ] = 6,
    within: Annotated[
        int,
        typer.Option(min=1, help="Most search results down to its passage.", rich_help_panel=_FILTERS),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.within"),
    ] = 2,
    development: Annotated[
        float,
        typer.Option(min=0, help="Share of the passages for development.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.development"),
    ] = 0.05,
    test: Annotated[
        float,
        typer.Option(min=0, help="Share of the passages for the test.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.test"),
    ] = 0.05,
    seed: Annotated[
        int,
        typer.Option(min=0, max=LARGEST_SEED, help="Seed of the draw in a passage.", rich_help_panel=_ORDER),
        Fills("mem1.tasks.cloze.questions:ClozeOptions.seed"),
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Make fill-in questions from a corpus, by blanking out names and numbers."""
    from mem1.cli.index import read
    from mem1.cli.progress import bars, stderr
    from mem1.envs.cloze import make_cloze_folder
    from mem1.lock import alone_in
    from mem1.tasks.cloze import ClozeOptions

    options = ClozeOptions(
        left=left,
        right=right,
        per_passage=per_passage,
        within=within,
        development=development,
        test=test,
        seed=seed,
    )
    work_begins()
    console = stderr()
    passages, _ = read(corpus, console)
    with alone_in(out), bars(console) as progress:
        shown = {what: progress.add_task(what, total=None, note="") for what in ("blank", "search")}
        folder = make_cloze_folder(
            passages,
            out,
            options,
            corpus=corpus.name,
            on_progress=lambda what, done, of: progress.update(shown[what], completed=done, total=of),
        )
    known = folder.statistics()
    if as_json:
        print(json.dumps({"out": str(out), **known}))
    else:
        parts = ", ".join(f"{number:,} {part}" for part, number in known["parts"].items())
        name = printable(str(out))
        print(f"{known['counts']['questions']:,} questions ({parts}) of {len(passages):,} passages in {name}")
        print(f"Look at {name}/README.md; evaluate with mem1 eval tasks.kind=cloze --corpus {name}")


@app.command("verl", cls=Command)
def verl(
    recipe: Annotated[str, typer.Argument(help="A recipe: a file, or the name of a shipped one.")],
    out: Annotated[Path, typer.Option(help="File to write, .parquet.")],
    objectives: Annotated[
        list[int], typer.Option(min=1, max=MOST_OBJECTIVES, help="Questions per task; repeatable, in equal shares.")
    ],
    count: Annotated[int, typer.Option(min=1, max=MOST_TASKS, help="Tasks for each number of questions.")],
    overrides: Annotated[list[str] | None, typer.Argument(help=OVERRIDES_HELP)] = None,
    split: Annotated[str, typer.Option(help="Half of the tasks: train or evaluation.")] = "train",
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the tasks that are drawn.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Write the tasks of a recipe as the Parquet file that verl's trainer reads (docs/verl.md)."""
    from mem1.api import load_recipe

    half = _half(split)
    assert half is not None
    new_file(out)
    config = load_recipe(recipe, *expanded(overrides or []))
    work_begins()
    from mem1.cli.progress import stderr
    from mem1.extras.verl.settings import write_tasks
    from mem1.protocol import vocabulary

    make_folder_of(out)
    source = config.tasks.source(half, vocabulary(config.vocabulary))
    by_size = [source.tasks(objectives=number, count=count, seed=seed) for number in objectives]
    tasks = [task for together in zip(*by_size, strict=True) for task in together]
    write_tasks(out, tasks, split=half)
    if as_json:
        print(json.dumps({"out": str(out), "tasks": len(tasks), "objectives": objectives, "split": split}))
    else:
        sizes = ", ".join(map(str, objectives))
        stderr().print(f"{len(tasks):,} tasks of {sizes} questions ({split}), written to {out}")
