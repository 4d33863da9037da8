"""`mem1 train --dry-run`: every recipe is rehearsed, and what it lacks is named."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest
from corpora import TOWNS
from samples import write_lines
from servers import in_a_thread
from typer.testing import CliRunner

from mem1.api import load_recipe
from mem1.cli.main import app
from mem1.configuration import load_toml
from mem1.errors import UserError
from mem1.planning.models import known, small
from mem1.planning.plan import Steps, make_plan
from mem1.planning.preflight import checks, rehearse
from mem1.planning.steps import Measured
from mem1.policy.folders import SMOLLM2
from mem1.recipe.recipe import Recipe
from mem1.registry import register
from mem1.retrieval import BM25
from mem1.run_folder import RunFolder
from mem1.training.runs.resume import NOT_FINGERPRINTED

FOLDER = Path(__file__).parents[2] / "recipes"
RECIPES = {path.relative_to(FOLDER).with_suffix("").as_posix(): path for path in sorted(FOLDER.rglob("*.toml"))}
AFTER_ANOTHER = {"beyond/chains", "beyond/longer", "qwen3-0.6b/train", "reader/train", "smollm2/train"}
"""Begin with a policy that another recipe makes."""
EXAMINATIONS = {"qwen3-0.6b/eval", "smollm2/eval"}
"""Have no stage to train."""
LACK = {
    "own-documents": {"tasks"},
    "qwen2.5-7b-multihop/grpo": {"model", "tokenizer", "tasks", "search", "servers"},
    "qwen2.5-7b-multihop/mem1-published": {"model", "tokenizer", "tasks", "search", "servers"},
    "qwen2.5-7b-multihop/ppo": {"model", "tokenizer", "tasks", "search", "servers"},
    "qwen2.5-7b-qlora/grpo": {"model", "tokenizer", "tasks", "search", "servers"},
    "qwen3-0.6b/start": {"model", "tokenizer"},
    "qwen3-1.7b-lora/grpo": {"model", "tokenizer", "tasks", "search"},
    "reader/warm-start": {"tasks"},
    "smollm2/start": {"model", "tokenizer"},
    "webshop-7b": {"model", "tokenizer", "tasks"},
}
"""What is not part of the repository. The data of multihop-smoke may be there or not, as may room on the disk."""
ANY_MODEL = "models/Qwen2.5-0.5B"
LESS = {
    "recall": ("recall.tokens=512",),
    "sft": ("sft.tokens=1024", "sft.pack_tokens=512"),
    "rl": ("rl.pack_tokens=512",),
}
"""Section -> what leaves the rehearsal as it is and makes the plan beside it quick."""


def shapes(folder: Path, config: Recipe) -> None:
    """A small model's config.json in the place of a large one's, so that the plan is quick."""
    if config.model.path is not None and config.model.path.startswith("models/"):
        small(known(config.model.path), vocab_size=1000).save_pretrained(folder / config.model.path)


PLANNED = {"atlas-warm-start", "atlas-ppo", "qwen2.5-7b-qlora/grpo", "smollm2/start"}
"""Their plan takes its step on fake tensors, as in tests/planning/test_plan.py; the others have that of any other."""


TELLING = {*PLANNED, "beyond/start", "compare-atlas/warm-start", "multihop-smoke", "own-documents", "webshop-quick"}
"""One of each kind; all of them take a minute."""


@functools.cache
def any_step() -> Measured:
    steps: Steps = {}
    make_plan(load_toml(RECIPES["atlas-quick"], Recipe, ["rl.pack_tokens=512"]), steps=steps)
    return next(iter(steps.values()))


def less(config: Recipe) -> list[str]:
    return [key for name, keys in LESS.items() if getattr(config, name) is not None for key in keys]


def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that are not there are not waited for."""
    for module in ("mem1.planning.preflight", "mem1.envs.search"):
        monkeypatch.setattr(f"{module}.SERVER_S", 0.05)


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_there_are_recipes_to_rehearse():
    assert len(RECIPES) >= 13 and RECIPES.keys() >= AFTER_ANOTHER | LACK.keys()


@pytest.mark.parametrize("name", sorted(AFTER_ANOTHER))
def test_a_recipe_that_begins_with_anothers_policy_says_where_it_should_be(name: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["train", str(RECIPES[name]), "--dry-run"])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(f"{load_toml(RECIPES[name], Recipe).model.path} is neither a folder")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in TELLING else pytest.mark.slow)
        for name in sorted(RECIPES.keys() - AFTER_ANOTHER - EXAMINATIONS)
    ],
)
def test_every_recipe_takes_a_step_of_each_of_its_stages(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    hasty(monkeypatch)
    if name not in PLANNED:
        step = any_step()
        monkeypatch.setattr("mem1.planning.plan.measured", lambda *_, **__: step)
    # a package of its own and a model of the hub may be there or not
    elsewhere = load_toml(RECIPES[name], Recipe).model.path in (SMOLLM2, "Qwen/Qwen3-0.6B")
    instead = [f"model.path={ANY_MODEL}"] if elsewhere else []
    config = load_toml(RECIPES[name], Recipe, instead)
    shapes(tmp_path, config)
    before = files(tmp_path)
    result = CliRunner().invoke(app, ["train", str(RECIPES[name]), *instead, *less(config), "--dry-run", "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    told = json.loads(result.stdout)
    asked = [stage for stage in ("recall", "sft", "rl") if getattr(config, stage) is not None]
    assert list(told["rehearsed"]["stages"]) == asked
    assert told["rehearsed"]["expert_turns"] >= 2
    assert told["parameters"] == told["plan"]["parameters"]
    lacking = {check["name"] for check in told["checks"] if not check["ok"]}
    assert lacking - {"disk"} == LACK.get(name, set()) or name == "multihop-smoke"
    assert result.exit_code == int(bool(lacking))
    assert files(tmp_path) == before


@pytest.mark.parametrize("name", register.channel.names())
def test_every_channel_is_rehearsed_alone(name: str):
    channels = f'rl.algorithm={{name="channels",channels=[{{name="{name}"}}]}}'
    config = load_toml(RECIPES["atlas-quick"], Recipe, [channels, "workers=1"])
    assert list(rehearse(config).stages) == ["rl"]


def multihop(folder: Path, address: str, *, disk: int = 0, evaluated: int = 2):
    config = load_toml(RECIPES["qwen2.5-7b-multihop/grpo"], Recipe)
    tasks = {
        "questions": str(folder / "test.jsonl"),
        "train_questions": str(folder / "train.jsonl"),
        "evaluation_share": None,
        "format": None,
        "aliases": None,
        "without": None,
        "retriever": {"urls": [address]},
    }
    whole = config.model_dump()
    whole["tasks"] |= tasks
    whole["evaluation"]["objectives"] = (evaluated,)
    found = checks(Recipe.model_validate(whole), disk=disk, out=folder / "not" / "yet" / "there")
    return {check.name: check for check in found}


def two(*numbers: int) -> dict[str, object]:
    asked = [{"id": f"q{n}", "text": f"What is the {n}th?", "answers": [str(n)]} for n in numbers]
    return {"id": "+".join(f"q{n}" for n in numbers), "questions": asked}


def test_what_is_there_is_found(tmp_path: Path):
    write_lines(tmp_path / "train.jsonl", two(1, 2))
    write_lines(tmp_path / "test.jsonl", two(3, 4))
    with in_a_thread(BM25.build(TOWNS)) as address:
        found = multihop(tmp_path, address)
    assert found["tasks"].ok and found["tasks"].detail == "drawn with 2 objectives"
    assert found["search"].ok and address in found["search"].detail
    assert found["disk"].ok
    assert not found["model"].ok and "models/Qwen2.5-7B has no config.json" in found["model"].detail


def test_an_evaluation_that_cannot_be_made_is_told_before_a_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hasty(monkeypatch)
    write_lines(tmp_path / "train.jsonl", two(1, 2))
    write_lines(tmp_path / "test.jsonl", two(3, 4))
    found = multihop(tmp_path, "http://127.0.0.1:9", evaluated=4)["evaluation"]
    why = "no evaluation of 4 objectives can be made: 4 objectives need 4 different questions, but there are 2"
    assert not found.ok and found.detail.startswith(why) and "--no-evaluate" in found.detail
    few = ["--out", str(tmp_path / "run"), "tasks.questions_per_world=20", "evaluation.objectives=[64]"]
    result = CliRunner().invoke(app, ["train", "atlas-quick", *few])
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith("no evaluation of 64 objectives can be made: 64 objectives need 64")
    assert not (tmp_path / "run").exists()


def test_a_context_in_which_no_attempt_can_begin_is_told():
    config = load_recipe("atlas-quick", "budget.context=10")
    found = {check.name: check for check in checks(config, disk=1, out=Path("x"))}
    assert not found["tasks"].ok and "can begin: its prompt has" in found["tasks"].detail


def test_a_run_that_could_not_go_on_is_told(tmp_path: Path):
    config = load_recipe("atlas-quick")
    RunFolder.create(tmp_path / "run", config, command=["mem1"], exclude=NOT_FINGERPRINTED)
    for changed, ok in ((config, True), (load_recipe("atlas-quick", "seed=7"), False)):
        found = {one.name: one for one in checks(changed, disk=1, out=tmp_path / "run", resume=True)}
        assert found["folder"].ok == ok, found["folder"].detail
    assert "was started with another configuration" in found["folder"].detail


def test_what_is_missing_comes_with_a_next_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hasty(monkeypatch)
    found = multihop(tmp_path, "http://127.0.0.1:9", disk=10**18)
    assert "train.jsonl" in found["tasks"].detail or "test.jsonl" in found["tasks"].detail
    assert "start one with mem1 serve-retriever" in found["search"].detail
    assert "set another --out" in found["disk"].detail
    assert not any(check.ok for name, check in found.items() if name not in ("writers", "results", "folder"))


def test_what_is_missing_stands_last_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    shapes(tmp_path, load_toml(RECIPES["webshop-7b"], Recipe))
    result = CliRunner().invoke(app, ["train", "webshop-7b", *LESS["rl"], "--dry-run"])
    lines = result.stdout.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("missing "))
    heads = [line.partition(": ")[0] for line in lines[first:]]
    assert result.exit_code == 1
    assert heads[:3] == ["missing model, model.path", "missing tokenizer, model.path", "missing tasks, [tasks]"]
    assert all(head.startswith("missing ") for head in heads), "nothing follows what is missing"


def test_tags_that_cannot_do_the_tasks_are_found():
    config = load_toml(RECIPES["webshop-quick"], Recipe, ["protocol.actions={search='query',answer='answer'}"])
    with pytest.raises(UserError, match="have no actions of a shop"):
        rehearse(config)
