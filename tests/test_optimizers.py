"""Optimisers and schedules: which parameters each takes, what is clipped, and the learning rate of every step."""

from __future__ import annotations

import pytest
import torch
from builders import tiny_model

from mem1.training.ranks.optimizers import adamw, muon, warmup, warmup_decay


def test_muon_takes_the_matrices_of_the_layers_and_adamw_the_rest():
    model = tiny_model("llama")  # its output matrix is not its embedding
    made = muon(model, 0.02, 0.003)
    names = {id(p): name for name, p in model.named_parameters()}
    of_muon, of_adamw = ({names[id(p)] for g in member.param_groups for p in g["params"]} for member in made.members)
    assert of_muon == {name for name in names.values() if "proj" in name}
    assert {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"} < of_adamw
    assert of_muon | of_adamw == set(names.values()) and not of_muon & of_adamw
    (group,) = made.members[1].param_groups
    assert (group["betas"], group["weight_decay"], made.rates) == ((0.9, 0.95), 0.0, (0.02, 0.003))


def test_two_steps_of_adamw_by_hand_the_second_clipped():
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.ones_(model.weight)
    made = adamw(model, 0.1)
    model.weight.grad = torch.tensor([[0.5]], dtype=torch.float64)
    assert made.step(scale=0.5, max_grad_norm=2.0) == 0.5
    # the first step of Adam is the rate, whatever the gradient: 0.05
    assert model.weight.item() == pytest.approx(0.95, abs=1e-8)
    assert model.weight.grad is None
    model.weight.grad = torch.tensor([[8.0]], dtype=torch.float64)
    assert made.step(scale=1.0, max_grad_norm=2.0) == 8.0
    # clipped to 2: moments 0.045 + 0.2 = 0.245 over 0.19, and 0.011875 + 0.2 = 0.211875 over 0.0975
    assert model.weight.item() == pytest.approx(0.95 - 0.1 * (0.245 / 0.19) / (0.211875 / 0.0975) ** 0.5, abs=1e-7)


def test_the_rate_rises_from_the_first_step_and_falls_to_a_twentieth():
    assert [warmup(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
    assert warmup(0, 0) == 1.0
    rates = [warmup_decay(step, steps=50, warmup_steps=2, decay=0.8) for step in range(50)]
    assert rates[:3] == [0.5, 1, 1]
    assert rates[10] == 1.0 and rates[11] == 39 / 40 and rates[30] == 0.5
    assert rates[-3:] == pytest.approx([3 / 40, 2 / 40, 0.05])
    assert [warmup_decay(step, steps=5, warmup_steps=0, decay=0) for step in range(5)] == [1.0] * 5
