"""The command line: help for everything, and one clear message for whatever a user got wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import walk
from terminals import Terminal
from terminals import recipe as recipe
from terminals import terminal as terminal

import mem1
from mem1.cli.options import Chosen, folder_name
from mem1.envs.atlas import AtlasTasks
from mem1.envs.search import MultihopTasks

ROOT = Path(__file__).parents[2]
LONGEST_HELP = 60
"""Lines of a screen."""


def test_the_version_is_that_of_the_package(terminal: Terminal):
    assert terminal("--version") == (0, f"mem1 {mem1.__version__}\n", "")


def test_every_command_has_help_that_fits_a_screen(terminal: Terminal, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    overview = terminal("--help")[1]
    commands = [*walk(), ("data",), ("webshop",)]
    assert len(commands) > 18
    for command in commands:
        code, out, _ = terminal(*command, "--help")
        assert code == 0 and f"mem1 {' '.join(command)}" in out
        assert len(out.splitlines()) <= LONGEST_HELP, f"mem1 {' '.join(command)} --help: {len(out.splitlines())} lines"
        assert f" {command[0]} " in overview
        # pages, groups, servers
        if not {"report", "data", "webshop", "proxy"} & {*command} and not command[0].startswith("serve-"):
            assert "--json" in out


@pytest.mark.parametrize("arguments", [("trian",), ("train", "--nope"), ("train",), ("eval", "--limit", "many")])
def test_a_command_or_option_that_does_not_exist_is_explained(terminal: Terminal, arguments: tuple[str, ...]):
    message = terminal.error(*arguments)
    assert message.startswith("error: ") and " --help" in message


def test_an_unknown_recipe_lists_the_shipped_ones(terminal: Terminal):
    message = terminal.error("train", "atlas-quik")
    assert message.startswith("error: no recipe 'atlas-quik'")
    assert "atlas-quick" in message


def test_an_unknown_key_lists_the_right_ones(terminal: Terminal, recipe: Path, tmp_path: Path):
    message = terminal.error("train", recipe, "rl.group_sise=3", "--out", tmp_path / "run")
    assert "unknown key rl.group_sise (from the command line); did you mean rl.group_size? Keys of [rl]: " in message
    recipe.write_text(recipe.read_text().replace("group_size", "grup_size"))
    assert "unknown key rl.grup_size; did you mean rl.group_size?" in terminal.error("train", recipe)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl.tasks_per_step=many", "rl.tasks_per_step (from the command line): input should be a valid integer"),
        ("rl.group_size=0", "rl.group_size (from the command line): input should be greater than or equal to 1, got 0"),
        (
            "rl.group_size=1",
            "rl (from the command line): grpo compares the attempts at a task; set group_size to 2 or more",
        ),
        (
            "memory=constnat",
            "memory (from the command line): unknown memory 'constnat' (did you mean constant?); known",
        ),
        ("groups", "'groups' is not an override; write key=value"),
        ("tasks.entities=100000", "20 to"),
        ("sft.objectives=[500]", "500 objectives need 500 different questions, but there are 50"),
        ("model.path=x", "give model.path or model.new, not both"),
        ("tasks.kind=webshp", "webshop"),
        ("tasks.retriever.urls=http://a", "unknown key tasks.retriever"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(
    terminal: Terminal, recipe: Path, tmp_path: Path, override: str, message: str
):
    assert message in terminal.error("train", recipe, override, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_trains_evaluates_and_prints_one_json_object(
    terminal: Terminal, recipe: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    code, out, err = terminal("train", recipe, "--out", tmp_path / "run", "--json", "--resume")
    assert code == 0
    assert f"warning: --resume: {tmp_path / 'run'} holds no run (config.toml is missing)" in err
    assert "warning: since step 3: hardly any group has rewards that differ" in caplog.text
    rows = json.loads(out)["rows"]
    assert [(row["policy"], row["context"], row["objectives"], row["tasks"]) for row in rows] == [
        ("trained", "constant", 1, 3),
        ("trained", "constant", 2, 3),
    ]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rows"] == rows
    assert "policy" in err and "EM: by the scorer squad" in err.splitlines()

    assert "exists and is not empty; continue the run in it with --resume" in terminal.error(
        "train", recipe, "--out", tmp_path / "run"
    )
    assert "seed: 0 in the folder, 4 now" in terminal.error(
        "train", recipe, "seed=4", "--out", tmp_path / "run", "--resume"
    )
    code, out, _ = terminal("train", recipe, "evaluation.tasks=5", "--out", tmp_path / "run", "--resume", "--json")
    assert [row["tasks"] for row in json.loads(out)["rows"]] == [5, 5], "an evaluation of other tasks is run again"


def test_a_dry_run_says_that_the_folder_is_taken(terminal: Terminal, recipe: Path, tmp_path: Path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    for out, why in (
        ("full", "exists, is not empty, and holds no run"),
        ("full/notes.txt/run", "is a file; give the run a folder"),
    ):
        code, printed, _ = terminal("train", recipe, "--out", tmp_path / out, "--dry-run", "--json")
        (folder,) = (check for check in json.loads(printed)["checks"] if check["name"] == "folder")
        assert (code, folder["ok"]) == (1, False) and why in folder["detail"]
    code, printed, _ = terminal(
        "train", recipe, "--out", tmp_path / "full", "--dry-run", "--resume", "--no-evaluate", "--json"
    )
    found = {check["name"]: check for check in json.loads(printed)["checks"]}
    assert code == 1 and "evaluation" not in found and "holds no run" in found["folder"]["detail"]


def test_a_folder_that_is_a_file_is_no_place_for_a_run(terminal: Terminal, recipe: Path):
    assert "tiny.toml is a file; give a folder" in terminal.error("train", recipe, "--out", recipe)


def test_a_folder_has_a_name_that_a_shell_takes_as_it_is():
    names = ("quickstart", "quickstart-fold(3)", "quickstart-mine:Last(2)", "...")
    assert [folder_name(name) for name in names] == ["quickstart", "quickstart-fold-3", "quickstart-mine-Last-2", "run"]


def test_short_names_are_keys_and_a_key_given_twice_has_the_short_names_value():
    short = {"model": "m", "base_url": ["http://a"], "objectives": "1,2", "limit": 3, "seed": None}
    chosen = Chosen.of(["atlas-quick", "corpus=notes", "evaluation.tasks=9"], short)
    assert chosen.recipe == "atlas-quick"
    assert chosen.settings == (
        *("tasks.corpus=notes", "evaluation.tasks=9", "model.new=null", 'model.path="m"', "engine.kind=server"),
        *('engine.urls=["http://a"]', "evaluation.objectives=[1, 2]", "evaluation.tasks=3"),
    )
    assert chosen.sets("engine") and chosen.sets("engine.urls") and not chosen.sets("evaluation.seed")


def test_without_a_recipe_the_tasks_are_atlas_or_those_of_the_questions():
    defaults = {"tasks.worlds": "1", "evaluation.objectives": "[2]"}
    recipe = Chosen.of([], {}).load(defaults)
    assert (recipe.tasks, recipe.evaluation.objectives) == (AtlasTasks(worlds=1), (2,))
    files = {"questions": "q.jsonl", "corpus": "c.jsonl", "objectives": "4"}
    recipe = Chosen.of(["memory=full"], files).load(defaults)
    assert (recipe.tasks, recipe.memory) == (MultihopTasks(questions="q.jsonl", corpus="c.jsonl"), "full")
    assert recipe.evaluation.objectives == (4,)
    assert Chosen.of(["webshop-quick"], {}).load(defaults).evaluation.objectives == (1, 2, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--objectives", "1,two"), "--objectives takes whole numbers separated by commas, such as 1,2,4; not '1,two'"),
        (("--objectives", "0"), "evaluation.objectives.0 (from the command line): input should be greater than or"),
        (("tasks.kind=chess",), "chess"),
        (("tasks.kind=multihop",), "required key tasks.questions is missing"),
        (
            ("--questions", "q.jsonl"),
            'one collection to search: corpus = "FILE", or retriever.urls = ["http://HOST:PORT"]',
        ),
        (
            ("--questions", "q.jsonl", "--corpus", "c.jsonl", 'tasks.retriever.urls=["http://a"]'),
            'one collection to search: corpus = "FILE", or retriever.urls = ["http://HOST:PORT"]',
        ),
        (
            ("--questions", "q.jsonl", 'tasks.retriever.urls=["a:8000"]'),
            "'a:8000' is not the address of a retriever; set one such as http://127.0.0.1:8000",
        ),
        (("--corpus", "c.jsonl"), "--corpus needs questions about it"),
        (("protocol.base=klingon",), "unknown tags 'klingon'; known: paper, released"),
        (("--model", "nowhere"), "nowhere is no model folder: config.json is missing"),
        (("atlas-warm-start",), "the recipe's model is new: train it first, and give the trained folder by --model"),
        (("--base-url", "http://127.0.0.1:1"), "--base-url needs --model, the model's name on the server"),
    ],
)
def test_what_an_evaluation_cannot_use_is_explained(terminal: Terminal, arguments: tuple[str, ...], message: str):
    assert message in terminal.error("eval", *arguments)


def test_a_report_needs_a_run(terminal: Terminal, tmp_path: Path):
    assert terminal.error("report", tmp_path / "nowhere").startswith("error: ")


def test_the_module_runs_as_a_program():
    done = subprocess.run([sys.executable, "-m", "mem1", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"mem1 {mem1.__version__}\n"


def test_warnings_of_other_packages_do_not_reach_the_user():
    code = """
import logging
from mem1.cli.main import main
try:
    main(["--version"])
except SystemExit:
    pass
logging.getLogger("bitsandbytes.backends.cpu.ops").warning("Failed to load a kernel from kernels-community")
logging.getLogger("mem1.training").warning("ours")
logging.getLogger("others").error("an error of others")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["ours", "an error of others"]
