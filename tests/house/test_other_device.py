"""Whole trainings on a device that is not the CPU, with values: no operation mixes tensors of two devices."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from policies import SHAPE
from valued import META, other_device

from mem1.algorithms.losses import Kl
from mem1.algorithms.ppo import Ppo
from mem1.algorithms.ratios import Gspo
from mem1.engines.device import Device
from mem1.envs.atlas import AtlasTasks
from mem1.recipe.model import ModelConfig
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.supervised import Recall, Sft
from mem1.rollout import Budget
from mem1.run_folder import read_metrics
from mem1.training.ranks.processes import Ranks
from mem1.training.train import train

RL = Rl(
    curriculum=(Phase(steps=1, objectives=(1,)),),
    tasks_per_step=1,
    group_size=2,
    learning_rate=0.01,
    entropy=0.1,
    kl=Kl(),
)
BASE = Recipe(
    model=ModelConfig(new=SHAPE),
    tasks=AtlasTasks(entities=40, worlds=1, questions_per_world=50),
    budget=Budget(completion_extra=24, context=512),
    writers=(),
)


def test_two_devices_in_one_operation_are_noticed():
    with other_device():
        layer = torch.nn.Linear(2, 1).to(META)
        weights = [*layer.weight.tolist()[0], *layer.bias.tolist()]
        assert layer(torch.ones(1, 2, device=META)).item() == pytest.approx(sum(weights), abs=1e-6)
        with pytest.raises(RuntimeError, match="tensors on meta and cpu"):
            layer(torch.ones(1, 2))


@pytest.mark.parametrize(
    "sections",
    [
        {
            "recall": Recall(steps=1, tokens=64, pairs=(4,)),
            "sft": Sft(steps=1, tasks=1, objectives=(1,), tokens=256),
            "rl": RL.model_copy(update={"algorithm": Gspo(), "packed": False}),
        },
        {
            "model": ModelConfig(new=SHAPE.model_copy(update={"layers": 1})),
            "budget": Budget(completion_per_objective=0, completion_extra=8, context=512),
            "rl": RL.model_copy(update={"algorithm": Ppo(critic="separate")}),
        },
    ],
    ids=["recall, sft, gspo unpacked", "ppo"],
)
def test_a_training_stays_on_its_device(sections: dict[str, object], tmp_path: Path):
    config = BASE.model_copy(update=sections)
    train(config, tmp_path / "cpu", command=["mem1"])
    with other_device():
        ranks = Ranks(device=Device(name="cuda:0", at=META))
        policy = train(config, tmp_path / "other", command=["mem1"], ranks=ranks).policy
        assert {p.device for p in policy.model.parameters()} == {META}
    here, there = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("cpu", "other"))
    # tied weights part in torch's move to another class of tensors, so only the first step is the same
    assert there[0]["loss"] == pytest.approx(here[0]["loss"], abs=1e-4)
    assert len(there) == len(here) == len(sections.keys() & {"recall", "sft", "rl"})
