"""`[rollout] engine = "auto"`: what samples on which machine, and that a run keeps to it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from policies import SHAPE
from typer.testing import CliRunner
from vllms import bare, environment

from mem1.cli.main import app
from mem1.configuration import load_toml, to_toml
from mem1.engines.device import Device, Machine, choose
from mem1.engines.launched import Launch
from mem1.envs.atlas import AtlasTasks
from mem1.recipe.model import ModelConfig
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import AutoRollouts, LocalRollouts, Phase, Rl, Rollouts, ServerRollouts
from mem1.rollout import Budget
from mem1.run_folder import sampled_by
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import Ranks
from mem1.training.sampling.automatic import decided

GPU = choose("auto", Machine(gpus=("Alpha",), pretended=True), training=True)
CPU = choose("auto", Machine(), training=True)
RUN = Path("runs/a")


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An interpreter with a vLLM."""
    return environment(tmp_path, "")


def recipe(rollout: Rollouts, **changes: object) -> Recipe:
    rl = Rl(curriculum=(Phase(steps=1, objectives=(1,)),), tasks_per_step=1, group_size=2)
    return Recipe(
        model=ModelConfig(new=SHAPE),
        tasks=AtlasTasks(entities=40, worlds=1, questions_per_world=50),
        budget=Budget(completion_extra=10, context=400),
        rl=rl,
        rollout=rollout,
        writers=(),
    ).model_copy(update=changes)


def automatic(python: str, **changes: object) -> Recipe:
    return recipe(AutoRollouts(launch=Launch(python=python, gpu_memory=0.3)), **changes)


def test_on_a_gpu_with_vllm_it_is_what_one_would_write_by_hand(python: str, tmp_path: Path):
    config, said = decided(automatic(python), RUN, device=GPU)
    by_hand = tmp_path / "by_hand.toml"
    by_hand.write_text(
        f"""
[tasks]
kind = "atlas"
[rollout]
engine = "servers"
kind = "vllm"
weights_folder = "runs/a-weights"
sleep = true
[rollout.launch]
python = "{python}"
gpu_memory = 0.3
"""
    )
    assert config.rollout == load_toml(by_hand, Recipe).rollout
    assert said == (
        "rollout.engine = auto: vLLM samples, with 0.3 of the memory of cuda:0 (Alpha), in turn with the trainer"
    )
    assert Placement.of(config, Ranks(device=GPU)).computed.dtype == "float32, sampling in bfloat16 on servers"


@pytest.mark.parametrize(
    ("device", "processes", "changes", "why"),
    [
        (CPU, 1, {}, "vLLM would need a GPU of CUDA, and it computes on cpu"),
        (GPU, 2, {}, "2 processes train, and each samples on its own GPU"),
        (GPU, 1, {"rl": None}, "there is no [rl]"),
        (GPU, 1, {"model": ModelConfig(new=SHAPE, dtype="bfloat16")}, "model.dtype = bfloat16 is for a policy that"),
        (
            GPU,
            1,
            {"rl": Rl(curriculum=(Phase(steps=1),), temperature=2.5)},
            "vLLM samples at temperatures up to 2, not at rl.temperature = 2.5",
        ),
    ],
)
def test_where_vllm_cannot_sample_this_process_does_and_says_why(
    python: str, device: Device, processes: int, changes: dict[str, object], why: str
):
    config, said = decided(automatic(python, **changes), RUN, device=device, processes=processes)
    assert config.rollout == LocalRollouts()
    assert said.startswith(f"rollout.engine = auto: this process samples: {why}")


def test_on_a_gpu_without_vllm_this_process_samples_and_says_how_to_have_it(tmp_path: Path):
    config, said = decided(automatic(bare(tmp_path)), RUN, device=GPU)
    assert config.rollout == LocalRollouts()
    assert "this process samples: vLLM is not installed for" in said and "pip install vllm" in said


@pytest.mark.parametrize("rollout", [LocalRollouts(), ServerRollouts(servers=("http://a:1",), weights_folder="w")])
def test_an_engine_that_the_recipe_names_is_left_as_it_is(rollout: Rollouts):
    config = recipe(rollout)
    assert decided(config, RUN, device=GPU) == (config, "")


def test_it_cannot_sample_ahead_of_the_trainer():
    rl = {"curriculum": [{"steps": 1}], "max_staleness": 1, "importance": {}}
    with pytest.raises(ValueError, match=r"max_staleness = 1 needs servers that sample"):
        Recipe.model_validate({"tasks": {"kind": "atlas"}, "rollout": {"engine": "auto"}, "rl": rl})


def test_a_run_says_what_samples_and_keeps_to_it_where_the_machine_has_changed(python: str, tmp_path: Path):
    path, run = tmp_path / "recipe.toml", tmp_path / "run"
    path.write_text(to_toml(automatic(python)))
    command = ["train", str(path), "--out", str(run), "--no-evaluate"]
    done = CliRunner().invoke(app, command, obj=Machine(), catch_exceptions=False)
    assert done.stderr.count("rollout.engine = auto: this process samples: vLLM would need a GPU") == 1
    assert sampled_by(run) == "local" == load_toml(run / "config.toml", Recipe).rollout.engine
    config, said = decided(automatic(python), run, device=GPU, resume=True)
    assert config.rollout == LocalRollouts() and said == "rollout.engine = auto: this process samples: as before"
    assert isinstance(decided(automatic(python), run, device=GPU)[0].rollout, ServerRollouts), "another run is free"

    resolved = run / "resolved.json"
    resolved.write_text(json.dumps({**json.loads(resolved.read_text()), "rollout": "servers"}))
    config, said = decided(automatic(python), run, device=CPU, resume=True)
    assert config.rollout == decided(automatic(python), run, device=GPU)[0].rollout
    assert said.endswith("in turn with the trainer: as before")
