"""`mem1 bench`: tasks of invented worlds, more and more questions at once, for a model and the memories it may have."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from mem1.cli.options import (
    Command,
    DeviceOption,
    Group,
    JsonOption,
    folder_name,
    known,
    make_folder_of,
    new_file,
    refuse,
    work_begins,
)
from mem1.cli.progress import bars, say, stderr
from mem1.errors import UserError, printable
from mem1.pages.table import fitting, printed

if TYPE_CHECKING:
    from mem1.bench.results import Attempt
    from mem1.bench.running import Journal, Player
    from mem1.bench.scores import Compared, Side
    from mem1.bench.suites import Suite
    from mem1.prices import PriceClass

_CHAT, _TAGS = ("full", "fold(8)"), ("constant",)
"""Memories of a chat agent and of a policy where none are given."""
_STATES: Mapping[str, int | None] = {"unlimited": None, "none": 0, "50": 50, "200": 200, "1000": 1000}
"""Script -> tokens that its states may have."""
PAGE = "page.html"
"""Page of a result, in its folder."""
_OF_SERVERS = ("model", "api_key_env", "setting", "concurrency", "max_cost")

app = typer.Typer(name="bench", cls=Group, invoke_without_command=True)


@app.callback()
def command(
    invocation: typer.Context,
    base_url: Annotated[list[str] | None, typer.Option(help="Chat server of OpenAI's protocol, with --model.")] = None,
    model: Annotated[str | None, typer.Option(help="Name of the model on the server.")] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policy folder in place of a server; 'shipped'; 'random': random weights.")
    ] = None,
    script: Annotated[
        str | None,
        typer.Option(help="Use a scripted solver instead; tokens of its state: unlimited, 1000, 200, 50, none."),
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="The script calls tools, as a chat model does.")] = False,
    suite: Annotated[str, typer.Option(help="quick, standard or full; or package.module:NAME.")] = "quick",
    memory: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: full, constant, fold(k), notes, notebook(k), summary(n), masked(k), window(k), ...",
            show_default="full,fold(8); of a policy, constant",
        ),
    ] = None,
    families: Annotated[str | None, typer.Option(help="Comma-separated families of the suite. Default: all.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Tasks of each family and size; all later by leaving it out.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="0: the public tasks; any other: fresh ones.")] = 0,
    prices: Annotated[str | None, typer.Option(help="Price class (docs/cost.md), for costs; or your own:")] = None,
    fresh: Annotated[float | None, typer.Option(help="Your price per million prompt tokens.")] = None,
    cached: Annotated[float | None, typer.Option(help="Read from the cache.")] = None,
    write: Annotated[float | None, typer.Option(help="Written to the cache; --fresh if free.")] = None,
    output: Annotated[float | None, typer.Option(help="Your price per million generated tokens.")] = None,
    max_cost: Annotated[
        float | None, typer.Option(min=0, help="Stop before a request that could cost more, all in all.")
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests at the same time.", show_default="16")
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option(help="KEY=VALUE in every request.", show_default="max_tokens=4000")
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable with the API key.")] = None,
    device: DeviceOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder; the same command goes on there.", show_default="runs/bench/MODEL-SUITE")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how much of a long task a model keeps, with each memory, on tasks that nobody can have memorised.

    What it will cost is estimated first. Rerun the command to resume; no request is repeated. Exits with 1 while
    attempts are left at which the server or a tool failed.

    \b
    mem1 bench --base-url http://127.0.0.1:8000/v1 --model qwen --memory full,notes
    mem1 bench --base-url https://api.example.com/v1 --model m --api-key-env KEY --prices hosted-50 --max-cost 5
    mem1 bench --policy runs/a/policy --memory constant,full
    mem1 bench compare runs/bench/a runs/bench/b
    """
    options = [option.name for option in invocation.command.params]
    if invocation.invoked_subcommand is not None:
        refuse(invocation, *options, because=f"goes with a run; mem1 bench {invocation.invoked_subcommand} has its own")
        return
    from mem1.bench.page import bench_page
    from mem1.bench.results import RESULT
    from mem1.bench.running import run, told_in
    from mem1.bench.scores import sides_of
    from mem1.bench.suites import MOST_SEED, suite_of
    from mem1.bench.tables import comparisons, failures
    from mem1.pages.page import write_page
    from mem1.prices import chosen_prices

    who = {"--base-url": base_url, "--policy": policy, "--script": script}
    given = [name for name, value in who.items() if value]
    if len(given) != 1:
        raise UserError(
            "say who takes the benchmark: --base-url URL --model NAME, --policy FOLDER, or --script unlimited"
            + (f"; one of {' and '.join(given)}" if given else "")
        )
    if base_url is None:
        refuse(invocation, *_OF_SERVERS, because="is for a model on a server; give --base-url too")
    if script is None:
        refuse(invocation, "chat", because="is for a script")
    if policy is None:
        refuse(invocation, "device", because="is for a policy in this process")
    if seed > MOST_SEED:
        raise UserError(f"--seed takes numbers up to {MOST_SEED:,}, not {seed}")
    priced = chosen_prices(prices, {"fresh": fresh, "cached": cached, "write": write, "output": output})
    if max_cost is not None and priced is None:
        raise UserError(
            "--max-cost needs prices: give --prices, or your own by --fresh, --cached, --write and --output"
        )
    whole = replace(suite_of(suite), limit=limit)
    chosen = whole.only(_names(families))
    if base_url is not None:
        taker = _served(base_url, model, api_key_env, concurrency, setting, priced, max_cost)
    elif script is not None:
        taker = _scripted(script, chat, priced)
    else:
        taker = _policy(str(policy), known("device", device), priced)
    memories = _names(memory) or taker.memories
    for name in memories:
        taker.check(name)
    folder = out or Path("runs/bench") / folder_name(f"{taker.name}-{suite}" + (f"-seed{seed}" if seed else ""))
    work_begins()
    console = stderr()
    if base_url is not None:
        _show_estimate(console, chosen, memories, seed, priced)
    with bars(console) as progress:
        bar = _Bar(progress, taker.name, priced)
        result = run(
            taker.player,
            whole,
            memories,
            seed=seed,
            folder=folder,
            families=chosen.families,
            prices=priced,
            on_progress=bar,
        )
    sides = sides_of(result, told_in(folder))
    write_page(folder / PAGE, bench_page(sides, title=result.model))
    compared = comparisons(sides)
    if as_json:
        written = {"result": str(folder / RESULT), "page": str(folder / PAGE), "seconds": result.seconds}
        print(json.dumps({**record(sides, compared), **written}))
    else:
        show(sides, compared)
        say(f"{folder / RESULT}\n{folder / PAGE}")
    mine = [one for one in result.attempts if one.memory in memories and one.family in chosen.families]
    if failed := failures(mine):
        say(f"{failed}; repeat the command to make them again", "error")
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class _Participant:
    """Who takes the benchmark, before anything is loaded or asked."""

    name: str
    memories: tuple[str, ...]
    """Where none are given."""
    check: Callable[[str], object]
    """Raises UserError for a memory that it cannot have."""
    player: Callable[[Journal], Player]


def _served(
    urls: Sequence[str],
    model: str | None,
    api_key_env: str | None,
    concurrency: int | None,
    setting: Sequence[str] | None,
    prices: PriceClass | None,
    max_cost: float | None,
) -> _Participant:
    from mem1.bench.chat import ChatPlayer
    from mem1.bench.running import Journal
    from mem1.engines.servers import ModelServer
    from mem1.net.spending import MoneyLimit, Spending, Usage

    if not model:
        raise UserError("--base-url needs --model, the model's name on the server (the server lists them at /models)")
    many: dict[str, Any] = {} if concurrency is None else {"concurrency": concurrency}
    server = ModelServer(urls=tuple(urls), model=model, api_key_env=api_key_env, **many)
    settings = _settings(setting or ())

    def player(journal: Journal) -> Player:
        spending = None
        if max_cost is not None and prices is not None:
            spending = Spending(MoneyLimit(max_cost, prices.unit), Usage(money=journal.money))
        return ChatPlayer.served(server, settings=settings, journal=journal, prices=prices, spending=spending)

    return _Participant(name=model, memories=_CHAT, check=player(Journal(None)).check, player=player)


def _scripted(script: str, chat: bool, prices: PriceClass | None) -> _Participant:
    from mem1.bench.policies import script_player
    from mem1.bench.scripted import scripted_player

    if script not in _STATES:
        raise UserError(f"--script is the number of tokens of its state: {', '.join(_STATES)}; not {script!r}")
    state = _STATES[script]
    if chat and state == 0:
        raise UserError("--chat: a chat agent without any state is --memory window(1)")
    name = f"script, {script}"
    player = (scripted_player if chat else script_player)(name, state=state, prices=prices)
    return _Participant(name=name, memories=_CHAT if chat else _TAGS, check=player.check, player=lambda journal: player)


def _policy(path: str, device: str, prices: PriceClass | None) -> _Participant:
    from mem1.memory import memory_policy

    def player(journal: Journal) -> Player:
        from mem1.bench.policies import policy_player

        del journal  # nothing is asked of a server
        return policy_player(path, device=device, prices=prices)

    return _Participant(name=Path(path).name, memories=_TAGS, check=memory_policy, player=player)


def _settings(given: Sequence[str]) -> dict[str, Any]:
    """KEY=VALUE, whose value is JSON or else a text. Raises UserError for anything else."""
    from mem1.bench.chat import SETTINGS

    settings: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not key.strip() or not equals:
            raise UserError(f"--setting is KEY=VALUE, such as temperature=0; not {text!r:.80}")
        try:
            settings[key.strip()] = json.loads(value, parse_constant=_no_number)
        except (ValueError, RecursionError):
            settings[key.strip()] = value
    return settings if "max_completion_tokens" in settings else {**SETTINGS, **settings}


def _no_number(name: str) -> Any:
    raise ValueError(name)


def _names(text: str | None) -> tuple[str, ...]:
    """The names between commas, each once; those in brackets belong to a name."""
    if text is None:
        return ()
    names = tuple(dict.fromkeys(name.strip() for name in re.split(r",(?![^()]*\))", text)))
    if not all(names):
        raise UserError(f"{text!r:.80} should be names with commas between them")
    return names


def _show_estimate(
    console: Console, suite: Suite, memories: Sequence[str], seed: int, prices: PriceClass | None
) -> None:
    from mem1.bench.scripted import estimates

    with console.status("estimating what it will cost"):
        found = estimates(suite, memories, seed=seed, prices=prices)
    unit = "" if prices is None else prices.unit
    rows = [
        [
            escape(one.memory),
            f"{one.tasks:,}",
            *map(_thousands, (one.input, one.cached, one.output)),
            _money(one.cost, unit),
        ]
        for one in found
    ]
    if len(found) > 1:
        totals = (sum(one.input for one in found), sum(one.cached for one in found), sum(one.output for one in found))
        cost = None if prices is None else sum(one.cost or 0.0 for one in found)
        rows.append(["all", f"{sum(one.tasks for one in found):,}", *map(_thousands, totals), _money(cost, unit)])
    caption = (
        "Estimated before anything is asked, by a script that plays some of the tasks, at four characters a token. A "
        "model that thinks writes more."
    )
    headings = ["memory", "tasks", "tokens in", "cached of them", "tokens out", "cost"]
    console.print(printed(headings, rows, title=f"{suite.name}, seed {seed}", caption=caption))


class _Bar:
    """One bar for the whole run: share of right answers, tokens and cost so far."""

    def __init__(self, progress: Any, name: str, prices: PriceClass | None) -> None:
        self._progress, self._unit = progress, "" if prices is None else prices.unit
        self._bar = progress.add_task(escape(printable(name)), total=None, note="")
        self._attempts: list[Attempt] = []

    def __call__(self, attempts: Sequence[Attempt], of: int) -> None:
        self._attempts += attempts
        note = ""
        if self._attempts:
            right = sum(attempt.accuracy for attempt in self._attempts) / len(self._attempts)
            read = sum(attempt.tokens.fresh + attempt.tokens.cached for attempt in self._attempts)
            costs = [attempt.cost for attempt in self._attempts if attempt.cost is not None]
            note = f"{right:.0%} right  {_thousands(read)} tokens in"
            note += f"  {_money(sum(costs), self._unit)}" if costs else ""
        self._progress.update(self._bar, completed=len(self._attempts), total=of, note=note)


def _thousands(tokens: float) -> str:
    return f"{tokens:,.0f}" if tokens < 10_000 else f"{tokens / 1000:,.0f}k"


def _money(cost: float | None, unit: str) -> str:
    return "-" if cost is None else f"{cost:.4g} {unit}"


@app.command("compare", cls=Command)
def compare(
    results: Annotated[
        list[str],
        typer.Argument(help="Result files, or folders of runs; FILE:MEMORY takes one memory of several."),
    ],
    plot: Annotated[Path | None, typer.Option(help="Write tables, figures and all tasks to this .html.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Set results side by side: scores, what they cost, and differences from the first on the same tasks."""
    from mem1.bench.page import bench_page
    from mem1.bench.tables import comparisons
    from mem1.pages.page import write_page

    if plot is not None:
        new_file(plot)
        make_folder_of(plot)
    work_begins()
    sides = _sides(results)
    if len(sides) == 1:
        raise UserError(f"{sides[0].name} is all that {results[0]} holds; give a second result to compare it with")
    compared = comparisons(sides)
    if plot is not None:
        title = " and ".join(dict.fromkeys(side.result.model for side in sides))
        write_page(plot, bench_page(sides, title=title))
        say(str(plot))
    if as_json:
        print(json.dumps(record(sides, compared)))
    else:
        show(sides, compared)


def _sides(results: Sequence[str]) -> list[Side]:
    """In the order given. Raises UserError for a file that is no result, or lacks the memory."""
    from mem1.bench.results import RESULT, load_result
    from mem1.bench.running import told_in
    from mem1.bench.scores import sides_of

    found: list[Side] = []
    for given in results:
        path, memory = _split(given)
        result = load_result(path)
        if not result.attempts:
            raise UserError(f"{path} holds no attempts, so there is nothing to compare")
        if memory is not None and memory not in result.memories:
            raise UserError(f"{path} has no memory {memory!r}; it has {', '.join(result.memories)}")
        told = told_in(path.parent) if path.name == RESULT else {}
        found += [side for side in sides_of(result, told) if memory in (None, side.memory)]
    return found


def _split(given: str) -> tuple[Path, str | None]:
    """The file, and the memory after its last colon; a file's own name may hold colons."""
    path, _, memory = given.rpartition(":")
    if not path or Path(given).exists():
        return _file(Path(given)), None
    return _file(Path(path)), memory


def _file(path: Path) -> Path:
    """The result in a folder; raises UserError where there is none."""
    from mem1.bench.results import RESULT

    file = path / RESULT if path.is_dir() else path
    if not file.exists():
        raise UserError(f"{file} does not exist; give a result of mem1 bench, or the folder of a run that has ended")
    return file


def record(sides: Sequence[Side], compared: Sequence[Compared]) -> dict[str, Any]:
    """As --json prints it."""
    from mem1.bench.scores import names_of, scores
    from mem1.bench.tables import together

    return {
        "sides": [
            {
                "name": name,
                "model": side.result.model,
                "memory": side.memory,
                "suite": side.result.suite,
                "seed": side.result.seed,
                "all": whole and asdict(whole),
                "families": {family: asdict(score) for family, score in scores(side).items()},
            }
            for name, side, whole in zip(names_of(sides), sides, together(sides), strict=True)
        ],
        "comparisons": [asdict(one) for one in compared],
    }


def show(sides: Sequence[Side], compared: Sequence[Compared]) -> None:
    """Print the tables: scores, differences where there are several sides, what they cost, and endings."""
    from mem1.bench.tables import difference_table, endings_table, notes, score_table, spent_table

    console = Console(highlight=False)
    for title, found in (
        ("scores [95 % interval]", score_table(sides)),
        *([("differences; * interval excludes 0", difference_table(sides, compared))] * bool(compared)),
        ("tokens and cost", spent_table(sides)),
        ("attempts by ending", endings_table(sides)),
    ):
        for part in fitting(console, found.transposed(), title):
            console.print(part)
    for note in notes(sides, compared):
        console.print(escape(printable(note)))
