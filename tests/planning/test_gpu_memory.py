"""A GPU that is too small is named before training begins, and one whose memory runs out in one line."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from small_runs import config as config
from typer.testing import CliRunner

from mem1.api import load_recipe
from mem1.cli.main import app, ended_by
from mem1.engines.out_of_memory import memory_named
from mem1.errors import UserError
from mem1.planning.fits import advise, check_fits, recomputing_if_needed
from mem1.planning.gpus import cluster
from mem1.planning.models import known
from mem1.planning.plan import Steps, make_plan
from mem1.policy.policy import make_policy
from mem1.protocol import PAPER
from mem1.recipe.recipe import Recipe
from mem1.recipe.supervised import Sft
from mem1.records import Task
from mem1.training.rl import RlStage
from mem1.training.train import make_rollout

L4 = "cuda:0 (NVIDIA L4)"
FULL = torch.OutOfMemoryError(
    "CUDA out of memory. Tried to allocate 2.32 GiB. GPU 0 has a total capacity of 21.95 GiB of which 1.10 GiB is "
    "free. Including non-PyTorch memory, this process has 20.84 GiB memory in use. Of the allocated memory 19.33 GiB "
    "is allocated by PyTorch.\nSee documentation"
)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """PPO of a policy of 17 million weights, with a critic of its own and a reference."""
    shape = known("Qwen2.5-0.5B")
    shape.num_hidden_layers, shape.layer_types, shape.vocab_size = 1, ["full_attention"], 2000
    shape.save_pretrained(tmp_path)
    ppo = ("rl.algorithm={name='ppo', critic='separate'}", "rl.kl={}", "rl.group_size=1", "rl.pack_tokens=256")
    given = (f"model.path={tmp_path}", "model.training_dtype=float32", "tasks.prompt=plain")
    return load_recipe("atlas-quick", *given, *ppo)


def test_networks_that_cannot_fit_are_refused_with_what_is_missing_and_the_keys_that_make_them_fit(recipe: Recipe):
    (planned,) = make_plan(recipe, gpus=cluster("H100")).stages
    least = planned.memory.least
    free = least - 50e6
    with pytest.raises(UserError) as refused:
        check_fits(recipe, free=free, device=L4)
    (said,) = str(refused.value).splitlines()
    assert free < least < planned.memory.peak
    assert said.startswith(f"{L4} has {free / 1e9:.1f} GB free, but [rl] needs {least / 1e9:.1f} GB for weights, ")
    assert 'alone, 0.1 GB more; set model.training_dtype = "bfloat16", ' in said
    assert "GB)" in said


def test_a_step_is_taken_once_for_all_changes_that_leave_it_as_it_is(recipe: Recipe):
    steps = Steps()
    warmed = recipe.model_copy(update={"sft": Sft(tokens=256, pack_tokens=256, objectives=(1,))})
    h100 = cluster("H100")
    make_plan(warmed, gpus=h100, steps=steps)
    assert [stage for stage, _ in steps] == ["sft", "rl"]
    changes = advise(warmed, gpus=replace(h100, gpu=replace(h100.gpu, memory_gb=1e-3)), steps=steps)
    taken = ["training_dtype", "activation_checkpointing", "critic", "reference_offload", "cpu_offload", "[lora]"]
    assert [change.what.split(" ")[0].rpartition(".")[2] for change in changes] == taken
    assert not any(change.fits for change in changes)
    # as it is, and one each of precision, of checkpoints, of sharding, which offloading needs, and of adapters; that of
    # a critic leaves sft, and offloading itself leaves both
    assert Counter(stage for stage, _ in steps) == {"sft": 5, "rl": 6}


@pytest.mark.slow
def test_packs_of_demonstrations_are_made_smaller_too():
    warm = load_recipe("atlas-warm-start", "recall=null", "sft.tokens=16384", "sft.pack_tokens=16384")
    gpus = cluster("4090")
    first = [
        change.what for change in advise(warm, gpus=replace(gpus, gpu=replace(gpus.gpu, memory_gb=1e-3)), steps={})
    ]
    assert [what for what in first if "pack_tokens" in what] == ["sft.pack_tokens = 4096", "sft.pack_tokens = 2048"]


def test_attempts_that_may_not_fit_are_a_warning_and_those_that_do_none(recipe: Recipe):
    (planned,) = make_plan(recipe, gpus=cluster("H100")).stages
    warning = check_fits(recipe, free=(planned.memory.least + planned.memory.peak) / 2, device=L4)
    assert warning is not None and warning.startswith("the largest attempts that the recipe allows need ")
    assert "GB more than cuda:0 (NVIDIA L4) has free; if the memory runs out, set model." in warning
    assert check_fits(recipe, free=1.1 * planned.memory.peak, device=L4) is None
    assert check_fits(recipe, free=planned.memory.peak / 1.5, device=L4, ranks=4) is None, "ranks share the networks"


@pytest.mark.slow
def test_layers_are_computed_again_where_only_that_fits_and_nothing_else_was_asked_for(recipe: Recipe):
    steps = Steps()
    recipe = recipe.model_copy(update={"rl": recipe.rl and recipe.rl.model_copy(update={"pack_tokens": 4096})})
    kept, again = (
        make_plan(given, gpus=cluster("H100"), steps=steps).peak
        for given in (recipe, _with(recipe, activation_checkpointing=True))
    )
    assert again < kept
    for free, wanted in ((1.01 * kept, None), (0.5 * (kept + again), True), (0.99 * again, None)):
        assert recomputing_if_needed(recipe, free=free).model.activation_checkpointing is wanted
    refused = _with(recipe, activation_checkpointing=False)
    assert recomputing_if_needed(refused, free=0.5 * (kept + again)) is refused
    unknown = load_recipe("atlas-quick", "model.path=no/such")
    assert recomputing_if_needed(unknown, free=1.0) is unknown


def _with(recipe: Recipe, **keys: bool) -> Recipe:
    return recipe.model_copy(update={"model": recipe.model.model_copy(update=keys)})


@pytest.mark.slow
def test_a_gpu_for_which_no_change_is_enough_is_told_so_and_an_unknown_model_is_not_checked(recipe: Recipe):
    with pytest.raises(UserError, match="take a smaller model or more GPUs, as no change of the recipe is enough"):
        check_fits(recipe, free=1e6, device=L4)
    assert check_fits(load_recipe("atlas-quick", "model.path=no/such"), free=1.0, device=L4) is None


SAMPLED = "mem1.engines.local.Batch.step"
DTYPE = 'set model.dtype = "bfloat16", or compute on the CPU (model.device = "cpu")'
TRAIN = "train atlas-quick workers=1 rl.group_size=2 rl.curriculum=[{steps=1,objectives=[1]}] --no-evaluate"
SFT = (
    "train atlas-warm-start workers=1 model.new={hidden_size=32,layers=2,heads=2,feed_forward=32} sft.steps=1 "
    "sft.tasks=1 sft.objectives=[1] rl=null --no-evaluate"
)
RECALL = "recall.steps=1 recall.tokens=128"


class Full:
    """Tasks that no GPU has room for."""

    def tasks(self, **_: Any) -> list[Task]:
        raise FULL


def test_memory_that_runs_out_in_a_step_is_one_line_with_the_key_to_change(config: Recipe):
    assert config.rl is not None
    policy = make_policy(config)
    rollout = make_rollout(config, policy, config.tasks.source("train", PAPER))
    stage = RlStage(policy, config.rl, rollout, cast(Any, Full()), seed=0)
    with pytest.raises(UserError) as named:
        stage.step(0)
    assert str(named.value) == (
        "the GPU's memory is full while sampling (tried to allocate 2.32 GiB, beside 20.84 GiB of this process); set "
        "distributed.cpu_offload = true, which leaves the GPU to the sampler, or let servers sample "
        "([rollout]), and go on from the last checkpoint with --resume"
    )


def raising(*_: Any, **__: Any) -> Any:
    raise FULL


NEEDED = "(tried to allocate 2.32 GiB, beside 20.84 GiB of this process)"


@pytest.mark.parametrize(
    ("command", "broken", "doing", "change"),
    [
        ("eval --limit 1 --objectives 1", SAMPLED, "evaluating", DTYPE),
        ("run --objectives 1", SAMPLED, "working on the task", DTYPE),
        ("verify --limit 1", SAMPLED, "sampling", DTYPE),
        (
            "verify --limit 1",
            "mem1.training.verify.compute",
            "computing in float32 and float64",
            "give fewer --attempts",
        ),
        (f"{TRAIN} rl.tasks_per_step=1", SAMPLED, "sampling", "set distributed.cpu_offload = true"),
        (TRAIN, "mem1.training.rl.RlStage.update", "training on the attempts", "lower rl.pack_tokens or set model"),
        (f"{SFT} {RECALL}", "mem1.training.supervised.recall_loss", "training associative recall", "set model."),
        (
            f"{SFT} recall=null",
            "mem1.training.supervised.flat_logprobs",
            "training on demonstrations",
            "lower sft.pack_tokens or",
        ),
    ],
)
def test_every_command_says_what_it_was_doing_what_it_needed_and_which_key_to_change(
    command: str, broken: str, doing: str, change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(broken, raising)
    result = CliRunner().invoke(app, command.split(" "))
    assert isinstance(result.exception, UserError), result.exception
    (said,) = str(result.exception).splitlines()
    assert said.startswith(f"the GPU's memory is full while {doing} {NEEDED}; {change}")


def test_memory_that_the_driver_or_a_library_lacks_is_named_and_other_errors_are_not():
    said = r"^the GPU's memory is full while sampling; wait$"
    for text in ("CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"):
        with pytest.raises(UserError, match=said), memory_named("sampling", "wait"):
            raise RuntimeError(text)
    with pytest.raises(RuntimeError, match="no memory of it"), memory_named("sampling", "wait"):
        raise RuntimeError("no memory of it")


def test_an_unknown_wording_and_other_commands_are_one_line_too():
    said = r"^the GPU's memory is full while training; lower it$"
    with pytest.raises(UserError, match=said), memory_named("training", "lower it"):
        raise torch.OutOfMemoryError("no more")
    said = ended_by(FULL)
    assert said is not None and "\n" not in said and NEEDED in said
