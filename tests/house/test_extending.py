"""Each page of docs/extending is a complete program: here it is saved, trained, resumed and evaluated."""

from __future__ import annotations

import json
import re
import runpy
import sys
from importlib import invalidate_caches
from pathlib import Path

import pytest
from language_models import language_model
from typer.testing import CliRunner, Result

import mem1
from mem1.cli.main import app

EXTENDING = Path(__file__).parents[2] / "docs" / "extending"
ENGINE, GYMNASIUM, VERIFIERS = (EXTENDING / f"{name}.md" for name in ("engine", "gymnasium", "verifiers"))
PAGES = sorted({*EXTENDING.glob("*.md")} - {ENGINE, GYMNASIUM, VERIFIERS})
TINY = ("model.new.hidden_size=32", "model.new.layers=1", "model.new.heads=2", "model.new.feed_forward=32")
SMALL = (*TINY, "model.new.look_back=[]", "budget.completion_extra=8", "checkpoint_every=1")


def files(page: Path) -> dict[str, str]:
    """Name -> text of the page's code blocks with a title."""
    return dict(re.findall(r'^```\w+ title="(.*?)"\n(.*?)^```', page.read_text(encoding="utf-8"), flags=re.M | re.S))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_program_of_a_page_is_trained_resumed_and_evaluated(page: Path, tmp_path: Path, monkeypatch):
    (module, program), (_, recipe) = sorted(files(page).items(), key=lambda file: file[0].endswith(".toml"))
    assert len(program.splitlines()) <= 30
    assert [line for line in program.splitlines() if "mem1" in line and "import" in line] == ["import mem1"]
    (tmp_path / module).write_text(program, encoding="utf-8")
    (tmp_path / "recipe.toml").write_text(recipe, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, Path(module).stem, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    few = ("rl.curriculum=[{ steps = 1, objectives = [1] }]", "rl.tasks_per_step=2", "rl.group_size=2")
    few += ("sft.steps=1", "sft.tasks=4", "budget.completion_extra=32") if "[sft]" in recipe else ()
    mem1.train(mem1.load_recipe("recipe.toml", *SMALL, *few), out="one")
    config = mem1.load_recipe("one/config.toml")  # what the run left repeats it, the plug-in included
    assert config == mem1.load_recipe("recipe.toml", *SMALL, *few)
    done = mem1.train(config, out="one", resume=True)
    assert done is not None and (tmp_path / "one" / "policy").is_dir()
    (row,) = mem1.evaluate(config, "one/policy", objectives=(1,), tasks=4, out="one/evaluation")
    assert (row.objectives, row.tasks, row.policy) == (1, 4, "policy")
    assert row.context == config.memory
    assert ("right" in row.as_dict()) == (page.stem == "environment")
    (tmp_path / module).unlink()
    monkeypatch.delitem(sys.modules, Path(module).stem)
    invalidate_caches()
    report = CliRunner().invoke(app, ["report", "one", "--format", "md"])  # needs no plug-in
    assert ("| right |" in report.stdout, "| EM per objective |" in report.stdout) == (
        page.stem == "environment",
        page.stem != "environment",
    )
    with pytest.raises(mem1.UserError, match=f"cannot import {Path(module).stem} .* it must be installed, or lie in"):
        mem1.load_recipe("one/config.toml")


def test_a_gymnasium_environment_is_trained_and_evaluated(tmp_path: Path, monkeypatch):
    pytest.importorskip("gymnasium")
    for name, text in files(GYMNASIUM).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    config = mem1.load_recipe("recipe.toml", *SMALL, "rl.curriculum=[{ steps = 1, objectives = [1] }]")
    dry = CliRunner().invoke(app, ["train", "recipe.toml", "--dry-run"])
    assert dry.exit_code == 0, dry.output
    mem1.train(config, out="one")
    (row,) = mem1.evaluate(config, "one/policy", out="one/evaluation")
    assert (row.objectives, row.tasks) == (1, 4) and "score" in row.as_dict()


def test_an_engine_of_ones_own_is_evaluated(tmp_path: Path, monkeypatch):
    for name, text in files(ENGINE).items():
        assert name.endswith(".toml") or len(text.splitlines()) <= 30
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def evaluate(*args: str) -> Result:
        return CliRunner().invoke(app, ["eval", "recipe.toml", *args])

    (row,) = json.loads(evaluate("--json", "--out", "results").stdout)["rows"]
    assert (row["policy"], row["turns"], row["endings"]["answered"]) == ("Parrot", 1.0, 4)
    assert evaluate("--out", "results").exit_code == 0  # its trajectories are read
    assert "was made with other settings" in str(evaluate("--out", "results", "engine.word=yes").exception)
    assert "did you mean engine.word? Keys of [engine]: kind, tokenizer, concurrency, word" in str(
        evaluate("engine.wrod=no").exception
    )
    assert "cannot import nowhere" in str(evaluate("engine.kind=nowhere:Parrot").exception)


def test_there_are_pages():
    assert {page.stem for page in PAGES} >= {"algorithm", "environment", "memory", "reward", "tool"}


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_loop_with_a_real_model_trains_and_examines_any(tmp_path: Path, capsys):
    path = EXAMPLES / "real_loop.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 120
    loop = runpy.run_path(str(path))
    loop["main"](str(language_model(tmp_path / "model")), sft=2, rl=1, batch=2, group=2, tasks=1)
    said = capsys.readouterr().out
    assert "demonstrations: step 2 of 2" in said and "RL: step 1 of 1" in said
    for objectives in (1, 2, 4, 8):
        assert f"N = {objectives}: exact match 0.00" in said


def test_the_loop_in_one_file_runs_two_steps(capsys):
    path = EXAMPLES / "rl_loop.py"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 120
    rewards = runpy.run_path(str(path))["main"](2)
    assert len(rewards) == 2 and all(0 <= reward <= 2 for reward in rewards)
    assert "trained: exact match" in capsys.readouterr().out
