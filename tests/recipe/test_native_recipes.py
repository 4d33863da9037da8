"""Recipes with protocol = tools: trained, verified, evaluated and imitated in the model's own protocol."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chat_templates import QWEN3_LIKE, QWEN25_LIKE
from native_models import check_exact, model_folder
from typer.testing import CliRunner

from mem1.api import load_recipe
from mem1.cli.main import app
from mem1.errors import UserError
from mem1.training.train import train
from mem1.trajectory_files import read_trajectories

RECIPE = """
memory = "{context}"
writers = []
[protocol]
kind = "tools"
thoughts = "{thoughts}"
{template}
[model]
path = "{model}"
[tasks]
kind = "atlas"
worlds = 1
entities = 40
questions_per_world = 20
[budget]
completion_extra = 40
completion_per_objective = 0
context = 4096
[rl]
curriculum = [{{ steps = 2, objectives = [1] }}]
tasks_per_step = 1
group_size = 2
[rl.algorithm]
name = "{algorithm}"
[evaluation]
objectives = [1]
tasks = 2
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "qwen3-like", QWEN3_LIKE)


def recipe_file(folder: Path, model: Path, **options: str) -> Path:
    given = {"context": "constant", "thoughts": "drop", "template": "", "algorithm": "grpo"} | options
    path = folder / "recipe.toml"
    path.write_text(RECIPE.format(model=model, **given))
    return path


def run(*arguments: str | Path) -> dict:
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "options",
    [
        {"context": "constant", "template": "template = { enable_thinking = false }"},
        {"context": "full", "thoughts": "keep"},
    ],
    ids=["constant", "full"],
)
def test_verify_passes_in_the_models_own_protocol(tmp_path: Path, model: Path, options: dict[str, str]):
    assert check_exact(recipe_file(tmp_path, model, **options))["passed"]


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_run_trains_is_evaluated_and_its_attempts_are_imitated(tmp_path: Path, model: Path, algorithm: str):
    out = tmp_path / "run"
    recipe = load_recipe(recipe_file(tmp_path, model, algorithm=algorithm))
    assert train(recipe, out, command=["mem1", "train"]).complete
    assert (out / "policy" / "chat_template.jinja").read_text() == QWEN3_LIKE
    attempts = [t for path in sorted((out / "trajectories").glob("*.jsonl*")) for t in read_trajectories(path)]
    assert attempts and all('"name": "search"' not in turn.text or turn.calls for t in attempts for turn in t.turns)
    (row,) = run("eval", recipe_file(tmp_path, out / "policy"), "--json", "--out", tmp_path / "eval")["rows"]
    assert row["tasks"] == 2


def test_recorded_attempts_are_trained_with_their_tokens(tmp_path: Path, model: Path):
    """Written by hand, as a model without training answers nothing."""
    from mem1.engines.base import Sampling, ScriptedEngine
    from mem1.memory import memory_policy
    from mem1.policy.policy import load_policy
    from mem1.policy.protocol import resolve
    from mem1.protocol import PAPER
    from mem1.rollout import Budget, Rollout
    from mem1.training.recorded import read_recorded
    from mem1.trajectory_files import write_trajectories

    recipe = load_recipe(recipe_file(tmp_path, model))
    source, policy = resolve(recipe).tasks.source("train", PAPER), load_policy(model)
    speaks = policy.dialogue(resolve(recipe))
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>'
    said = iter([f"<think>\nhm\n</think>\n\n{call}<|im_end|>", "Q1 Oslo<|im_end|>"])
    attempts = Rollout(
        engine=ScriptedEngine(policy.codec, lambda _: next(said)),
        dialogue=speaks.offering(()),
        environment=source.environment,
        context=memory_policy("constant"),
        budget=Budget(completion_extra=500, context=8000),
    )(source.tasks(objectives=1, count=1, seed=0), sampling=Sampling())
    write_trajectories(tmp_path / "attempts.jsonl", attempts)
    change = f"sft={{trajectories=['{tmp_path}/attempts.jsonl'], optimizer='adamw', steps=1}}"
    imitating = load_recipe(recipe_file(tmp_path, model), change)
    assert imitating.sft is not None
    found = read_recorded(imitating.sft, speaks.offering(()))
    assert (found.trajectories, found.encoded_anew) == (tuple(attempts), 0)
    other = load_policy(model_folder(tmp_path / "other", QWEN25_LIKE))
    with pytest.raises(UserError, match="not in the tokens of this model, which calls tools"):
        read_recorded(imitating.sft, other.dialogue(resolve(recipe)).offering(()))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("tasks.prompt=mem1", "protocol = tools: the prompt 'mem1' explains tags; leave out tasks.prompt"),
        ("sft={}", "protocol = tools: the expert demonstrates in tags"),
        ("memory=notes", "keeps notes, which calls of tools have none of; set protocol=framed"),
        ("model={new={}}", "protocol = tools, but a new model has no chat template"),
        ("model.path=shipped", "protocol = tools, but .* has no chat template; it was trained with protocol = tags"),
    ],
)
def test_a_recipe_that_cannot_be_meant_is_one_clear_line(tmp_path: Path, model: Path, change: str, reason: str):
    config = load_recipe(recipe_file(tmp_path, model), change)
    with pytest.raises(UserError, match=reason):
        train(config, tmp_path / "run", command=["mem1", "train"])


def test_a_template_that_fails_says_so_before_the_run(tmp_path: Path):
    broken = model_folder(tmp_path / "broken", "{{ raise_exception('only two roles') }}")
    with pytest.raises(UserError, match=r"the chat template in .*broken fails: only two roles"):
        train(load_recipe(recipe_file(tmp_path, broken)), tmp_path / "run", command=["mem1", "train"])
