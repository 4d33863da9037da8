"""Options: each has the default and the range of the setting it fills, and none is ignored without a word."""

from __future__ import annotations

import contextlib
import csv
import importlib
import inspect
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import annotated_types
import pydantic
import pytest
from commands import Option, walk
from hubs import new_process
from rich.console import Console
from samples import write_lines
from tag_sets import PAPER_NOTES
from terminals import Terminal

from mem1.cli.main import ended_by, main
from mem1.cli.options import only_checked
from mem1.cli.progress import TrainingBar, bars
from mem1.configuration import Config
from mem1.model_folder import asset
from mem1.policy.folders import policy_folder, tokenizer_folder
from mem1.recipe.scripted import search_then_answer
from mem1.records import Question
from mem1.tasks.prompts import PROMPTS, first_question, render
from mem1.training.train import Progress

STAND_IN = asset("stand-in")
OPTIONS = {str(option): option for options in walk().values() for option in options}
OF_THE_COMMAND_ALONE = {
    # what is shown or served, for which nothing in the library has a default
    *("mem1 verify --attempts", "mem1 index --kind", "mem1 report --format", "mem1 data --split"),
    "mem1 export --gguf-type",
    *("mem1 serve-policy --name", "mem1 serve-retriever --top-k"),
    *("mem1 serve-writer --name", "mem1 serve-writer --workers"),
    *(f"mem1 {server} --host" for server in ("serve-policy", "serve-writer", "serve-retriever", "proxy")),
    *(f"mem1 {server} --port" for server in ("serve-policy", "serve-writer", "serve-retriever", "proxy")),
    *("mem1 proxy --memory", "mem1 proxy --states"),
    *("mem1 serve-policy --workers", "mem1 probe --count", "mem1 probe --split", "mem1 probe --repository"),
    *("mem1 serve-recall --form", "mem1 bench --suite", "mem1 bench --seed", "mem1 quickstart --memory"),
    "mem1 real --model",
}  # fmt: skip


def setting(name: str) -> tuple[Any, float | None, float | None]:
    """Default, lowest and highest value of "module:Class.field" or "module:function.parameter"."""
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    owner: Any = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    if isinstance(owner, type) and issubclass(owner, pydantic.BaseModel):
        field = owner.model_fields[last]
        low = next((m.ge for m in field.metadata if isinstance(m, annotated_types.Ge)), None)
        high = next((m.le for m in field.metadata if isinstance(m, annotated_types.Le)), None)
        return field.default, low, high  # type: ignore[return-value]
    return inspect.signature(owner).parameters[last].default, None, None


@pytest.mark.parametrize("option", [o for o in OPTIONS.values() if o.fills is not None], ids=str)
def test_an_option_has_the_default_and_the_range_of_the_setting_that_it_fills(option: Option):
    assert option.fills is not None
    default, low, high = setting(option.fills)
    assert option.default == default or option.default is None, f"{option.fills} has the default {default!r}"
    if low is not None:
        assert option.low == low, f"{option.fills} begins at {low}"
    if high is not None:
        assert option.high == high, f"{option.fills} ends at {high}"


def test_every_default_is_that_of_a_setting_or_of_the_command_alone():
    for name, option in OPTIONS.items():
        if option.fills is None and not option.required and option.default not in (None, False, True):
            assert name in OF_THE_COMMAND_ALONE, (
                f"{name} has the default {option.default!r}: mark the setting that it fills by Fills(...), give it the "
                "default None so that the setting's own holds, or name it in OF_THE_COMMAND_ALONE"
            )


def test_the_walk_sees_a_default_that_differs():
    exchanges = OPTIONS["mem1 probe --exchanges"]
    assert exchanges.default == setting("mem1.extras.probe.kinds:Settings.exchanges")[0]
    assert exchanges.default != setting("mem1.messages.bounds:Bounds.state")[0]


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "300")
    return Terminal(capsys, monkeypatch)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("eval engine.kind=script engine.answer=x --base-url http://127.0.0.1:9/v1", "unknown key engine.answer"),
        ("eval --tokenizer x", "--tokenizer is for a served model: give --base-url too"),
        ("run --question x --corpus c --objectives 3", "--question gives the questions; leave out evaluation.object"),
        ("train atlas-quick engine.kind=script engine.answer=x", "[engine] is for mem1 eval and run"),
        *(
            (f"{command} --writer-url http://127.0.0.1:9/v1", "--writer-url: belongs to --writer")
            for command in ("probe", "proxy --upstream http://127.0.0.1:9/v1 --memory fold(4)")
        ),
        *(
            (f"{command} --writer-model notes", "--writer-url and --writer-model go together")
            for command in ("probe --writer x", "proxy --writer x --upstream http://127.0.0.1:9/v1 --memory fold(4)")
        ),
        ("serve-writer x --writer-url http://127.0.0.1:9/v1", "--writer-url and --writer-model go together"),
        (
            "serve-writer x --writer-url http://127.0.0.1:9/v1 --writer-model notes --workers 2",
            "--workers: is for a writer in this process",
        ),
        ("run --prices hosted-90", "--prices: goes with --mcp or --memory"),
        ("run --mcp x --memory full", "needs one --question: its task"),
        ("run --mcp x --question a --question b", "needs one --question: its task"),
        ("run --mcp x --question a", "needs a chat server: give --base-url and --model"),
        ("run --mcp x --question a --base-url http://127.0.0.1:9/v1", "--base-url needs --model, the model's name"),
        ("run atlas-quick --memory full --question a", "and keys of [engine]; leave out atlas-quick"),
        ("run --memory full --question a --corpus c --seed 1", "and keys of [engine]; leave out tasks.corpus"),
        ("run --memory full --question a --tokenizer stand-in --base-url http://x/v1", "leave out engine.tokenizer"),
        ("run --memory forget --question a --base-url http://x/v1 --model m", "unknown memory 'forget'"),
        ("run --memory fold(auto) --question a --base-url http://x/v1 --model m", "(--prices of a command"),
        ("run --mcp ' --question a --base-url http://x/v1 --model m", "is neither a command nor an http address"),
        ("index c --out o --batch-size 3", "--batch-size: goes with --kind dense"),
        ("index c --out o --kind dense --encoder e --k1 1.2", "--k1: goes with --kind bm25"),
        ("data atlas-quick --out o.jsonl --verl", "--verl: its trainer reads .parquet"),
        ("data own-documents corpus=c --out clozes --split train", "--split: is for a file of tasks"),
        ("train atlas-quick --no-evaluate --json", "--json: prints the evaluation, which --no-evaluate leaves out"),
        ("plan atlas-quick --server-gpus 2", "--server-gpus: the recipe samples in its own process"),
        ("quickstart --resume --out nowhere", "--resume: nowhere does not exist; start a run without --resume"),
    ],
)  # fmt: skip
def test_an_option_that_would_be_of_no_effect_is_refused(terminal: Terminal, command: str, message: str):
    assert message in terminal.error(*command.split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("eval memory=fold", "error: memory (from the command line): unknown memory 'fold'; known: const"),
        ("eval budget.context=-5", "budget.context (from the command line): input should be greater than"),
        ("eval --limit 0", "evaluation.tasks (from the command line): input should be greater than or equal to 1"),
        ("eval --limit x", "see mem1 eval --help"),
        ("eval --seed 123456789012345678901234", "--seed takes numbers up to"),
        ("bench --script unlimited --cached nan", "--cached takes a finite number, not nan"),
        ("eval evaluation.temperature=0.0001", "a temperature is 0 (greedy) or at least 0.01"),
        ("plan atlas-quick rl.curriculum=[]", "rl.curriculum (from the command line): tuple should have at"),
        ("train atlas-quick rl.curriculum=[]", "rl.curriculum (from the command line): tuple should have at"),
        ("train atlas-quick rl.curriculum=[] --dry-run", "rl.curriculum (from the command line): tuple should"),
        ("plan atlas-quick evaluation.objectives=[]", "evaluation.objectives (from the command line): tuple should"),
        ("train atlas-quick rl.curriculum=[{steps=1,objectives=[]}]", "rl.curriculum.0.objectives (from the command"),
        ("train atlas-quick sft={steps=0}", "sft.steps (from the command line): input should be greater than"),
        ("plan atlas-quick seed=123456789012345678901234", "seed (from the command line): input should be less than"),
        ("plan atlas-quick seed=-1", "seed (from the command line): input should be greater than or equal to 0"),
        ("train atlas-quick rl.learning_rate=1e400", "rl.learning_rate (from the command line): input should be a fin"),
        ("plan atlas-quick rl.kl.coefficient=1e30", "rl.kl.coefficient (from the command line): a number must be at"),
        ("plan atlas-quick rl.tasks_per_step=" + "9" * 5000, "is no value of a recipe (Exceeds the limit"),
        ('plan atlas-quick model.path="\\u0000"', "model.path (from the command line): text must not hold the charact"),
        ("quickstart --seed 123456789012345678901234", "Invalid value for '--seed'"),
        ("quickstart --memory rolling", "unknown memory 'rolling'; known: constant, fold(k)"),
        ("nonsense", "No such command 'nonsense'; see mem1 --help"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_one_message(terminal: Terminal, command: str, message: str):
    said = terminal.error(*command.split())
    assert said.startswith("error: ") and message in said


class TestTheSystem:
    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (OSError(30, "Read-only file system", "a"), "a: Read-only file system; nothing can be written there; give"),
            (OSError(28, "No space left on device"), "No space left on device; free some space"),
            (PermissionError(13, "Permission denied", "a"), "a: Permission denied; check who may read and write it"),
            (IsADirectoryError(21, "Is a directory", "a"), "a: Is a directory; give a file"),
            (OSError(36, "File name too long", "a"), "a: File name too long; give a shorter path"),
            (OSError("no reason"), "no reason"),
            (MemoryError(), "the machine's memory is full; ask for less, or close other programs"),
        ],
    )
    def test_what_it_refuses_has_a_message(self, error: Exception, message: str):
        said = ended_by(error)
        assert said is not None and said.startswith(message)

    def test_what_ones_own_code_raises_says_where(self):
        with pytest.raises(OSError) as raised:
            raise ConnectionRefusedError(111, "Connection refused")
        line = raised.traceback[-1].lineno + 1
        assert ended_by(raised.value) == f"Connection refused (ConnectionRefusedError in {__file__}, line {line})"

    def test_a_fault_of_ours_has_none(self):
        assert ended_by(TypeError("x")) is None and ended_by(ZeroDivisionError()) is None

    def test_a_model_is_found_by_its_name_and_its_keys(self):
        class Lamp(Config):
            colour: int = 0

        with pytest.raises(pydantic.ValidationError) as raised:
            Lamp.model_validate({"colur": 1})
        assert ended_by(raised.value) == "unknown key colur; did you mean colour? Keys of the file: colour"

    def test_an_argument_that_is_no_text_is_named(self, terminal: Terminal):
        assert "argument 3, 'a\\udcff', is not UTF-8 text" in terminal.error("eval", "--model", "a\udcff")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An evaluation of one task."""
    folder = tmp_path_factory.mktemp("evaluated")
    write_lines(folder / "q.jsonl", {"id": "q", "text": "Who founded Alvex?", "answers": ["Ana Brul"]})
    write_lines(folder / "c.jsonl", {"id": "p", "title": "Alvex", "text": "Ana Brul founded Alvex."})
    tasks = f"--questions {folder / 'q.jsonl'} --corpus {folder / 'c.jsonl'} tasks.prompt=released"
    with contextlib.redirect_stdout(io.StringIO()) as said:
        script = f"engine.kind=script engine.answer=AnaBrul --model {STAND_IN} --objectives 1 --limit 1"
        main(f"eval {script} {tasks} --json --out {folder / 'run'}".split())
    (row,) = json.loads(said.getvalue())["rows"]
    assert (row["searches"], row["malformed"]) == (1.0, 0.0), "the script searched, and did not repeat the prompt"
    return folder / "run"


@pytest.mark.skipif(not os.path.exists("/sys/kernel"), reason="needs a file system that nobody can write to")
@pytest.mark.parametrize("name", ["report.html", "deep/er/report.html"])
def test_a_report_on_a_disk_that_cannot_be_written_is_explained(terminal: Terminal, run: Path, name: str):
    said = terminal.error("report", run, "--tokenizer", STAND_IN, "--out", f"/sys/kernel/{name}")
    assert "cannot write the page" in said or "its folder cannot be made" in said


def test_a_result_goes_into_folders_that_are_made(terminal: Terminal, run: Path, tmp_path: Path):
    for kind, name in (("html", "a/b/report.html"), ("csv", "c/d/table.csv")):
        code, out, _ = terminal("report", run, "--tokenizer", STAND_IN, "--format", kind, "--out", tmp_path / name)
        assert (code, out.strip()) == (0, str(tmp_path / name)) and (tmp_path / name).is_file()
    text = (tmp_path / "c" / "d" / "table.csv").read_text()
    (row,) = csv.DictReader(io.StringIO(text))
    assert row["state_tokens_by_turn.1"] and "(" not in text and "None" not in text


@pytest.mark.parametrize(("width", "lines"), [(80, 2), (120, 1)])
def test_nothing_of_the_line_of_a_training_is_cut_in_a_narrow_terminal(width: int, lines: int):
    console = Console(width=width, force_terminal=True, color_system=None, file=io.StringIO())
    metrics = {name: 0.5 for name in ("loss", "reward", "em", "turns", "peak_tokens", "groups_with_variance")}
    with bars(console) as progress:
        bar = TrainingBar(progress)
        for step in (11, 12):
            bar(Progress(stage="rl", step=step, steps=40, metrics=metrics, seconds=1.0))
        paper = Console(width=width, color_system=None, file=io.StringIO())
        paper.print(progress.get_renderable())
    shown = paper.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(shown) == lines
    first, last = shown[0], shown[-1]
    assert all(part in first for part in ("train: rl", "━━━╸", "12/40", "0:00:00 left "))
    assert last.endswith("reward 0.50  EM 0.50  varied 0.50  loss 0.50  turns 0.50  peak 0.50")


@pytest.mark.parametrize(
    "prompt", sorted(PROMPTS.keys() - {"bench-errand", "episode", "shop", "tools-episode", "web", "web-example"})
)
def test_a_script_searches_the_first_question_under_every_prompt(prompt: str):
    questions = [
        Question(id=f"q{i}", text=text, answers=("a",)) for i, text in enumerate(("Who led Kest?", "And Moru?"))
    ]
    text = render(prompt, questions, PAPER_NOTES)  # which has a tag for everything that these prompts mention
    searched = search_then_answer("Ana Brul", state="IS", search="query")(text)
    assert first_question(text) == "Who led Kest?"
    assert searched.startswith("<IS> now Q1 </IS> <query> Who led Kest?")


def test_with_only_checked_nothing_is_written(terminal: Terminal, tmp_path: Path):
    with only_checked():
        assert terminal("train", "atlas-quick", "--out", tmp_path / "run")[0] == 0
        assert terminal("data", "atlas-quick", "--out", tmp_path / "a" / "b.jsonl")[0] == 0
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of Hugging Face that holds the stand-in tokenizer as org/tiny."""
    folder = tmp_path / "hub" / "models--org--tiny"
    shutil.copytree(STAND_IN, folder / "snapshots" / "abc")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    new_process(monkeypatch)
    return folder / "snapshots" / "abc"


class TestModelsByTheirId:
    def test_one_that_is_in_the_cache_is_found_there(self, cache: Path):
        assert policy_folder("org/tiny") == cache

    def test_a_folder_of_that_name_comes_first(self, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        (tmp_path / "org" / "tiny").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        assert policy_folder("org/tiny") == Path("org/tiny")

    def test_of_another_it_says_that_the_network_is_off_but_not_of_a_folder(
        self, cache: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
    ):
        said = terminal.error("eval", "--model", "org/other", "--objectives", "1", "--limit", "1")
        assert "org/other is not in the cache of Hugging Face" in said and "HF_HUB_OFFLINE is set" in said
        for folder in ("nowhere", "models/nowhere", "runs/mine", f"{cache.parents[2].name}/nowhere"):
            with monkeypatch.context() as there:
                there.chdir(cache.parents[3])
                said = terminal.error("eval", "--model", folder, "--objectives", "1", "--limit", "1")
            assert f"{folder} is no model folder: config.json is missing" in said and "cache" not in said

    @pytest.mark.parametrize("given", [None, "org/tiny", "shipped", "stand-in"])
    def test_the_tokenizer_of_a_served_model_is_found_likewise(self, cache: Path, given: str | None):
        wanted = {"shipped": policy_folder("shipped"), "stand-in": STAND_IN}.get(given or "", cache)
        assert tokenizer_folder(given, "org/tiny") == wanted
