"""What a policy says of sampled tokens: packed or not, at any temperature, the same by plain arithmetic."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import random_group, tiny_model, trajectory
from torch import Tensor
from transformers import PreTrainedModel

from mem1.algorithms.losses import Importance, Kl
from mem1.packing import Pack
from mem1.recipe.rl import Phase, Rl
from mem1.records import Trajectory, Turn
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.logprobs import score, trunk_states

TEMPERATURES = (0.5, 1.0, 1.7)


def attempts() -> list[Trajectory]:
    """Contexts that branch; a turn without a token, and one of a single token."""
    return [*random_group(random.Random(0), 2, turns=3), trajectory(([1, 2], []), ([1, 2, 3], [4]))]


def by_hand(model: PreTrainedModel, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs, entropies and states, turn after turn."""
    logprobs, entropies, states = [], [], []
    for turn in (turn for t in attempts() for turn in t.turns):
        trunk: Any = model.get_decoder()
        hidden = trunk(input_ids=torch.tensor([turn.context_ids + turn.completion_ids])).last_hidden_state
        for place, token in enumerate(turn.completion_ids, start=len(turn.context_ids) - 1):
            logits = hidden[0, place] @ model.get_parameter("lm_head.weight").T / temperature
            probabilities = logits.exp() / logits.exp().sum()
            logprobs.append(probabilities[token].log())
            entropies.append(-(probabilities * probabilities.log()).sum())
            states.append(hidden[0, place])
    return torch.stack(logprobs), torch.stack(entropies), torch.stack(states)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("packed", [True, False])
def test_log_probs_entropies_and_states_are_those_worked_out_by_hand(packed: bool, temperature: float):
    model = tiny_model("llama")
    with torch.no_grad():
        logprobs_M, entropy_M, states_MD = by_hand(model, temperature)
    found = score(model, Pack.whole(attempts()), temperature=temperature, packed=packed)
    pairs = ((found.logprobs_M, logprobs_M), (found.entropy_M, entropy_M), (found.states_MD, states_MD))
    for ours, wanted in pairs:
        torch.testing.assert_close(ours.detach(), wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        trunk_states(model.get_decoder(), Pack.whole(attempts()), packed=packed), found.states_MD
    )
    assert not found.entropy_M.requires_grad


@pytest.mark.parametrize("packed", [True, False])
def test_the_gradient_of_the_entropy_is_the_one_worked_out_by_hand(packed: bool):
    ours, theirs = tiny_model("llama"), tiny_model("llama")
    score(ours, Pack.whole(attempts()), temperature=0.5, packed=packed, entropy="gradient").entropy_M.sum().backward()
    by_hand(theirs, 0.5)[1].sum().backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert one.grad is not None and other.grad is not None
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-10)


def test_packed_false_applies_to_policy_and_reference():
    model = tiny_model("qwen3", attention_dropout=0.1).eval()  # which cannot be packed
    networks = ActorCritic.make(
        Rl(curriculum=(Phase(steps=1),), kl=Kl(), old_logprobs_from="trainer", packed=False), model
    )
    turn = Turn(context_ids=(1, 2), completion_ids=(3, 4), logprobs=(-1.0, -1.0))
    ((before,),) = networks.old_policy_stats([[Trajectory(turns=(turn,))]])
    assert before.reference_K is not None and torch.equal(before.reference_K, before.old_K)


@pytest.mark.parametrize("packed", [True, False])
def test_policy_and_reference_are_scored_at_the_temperature_of_the_rollout(packed: bool):
    model = tiny_model("llama")
    options: dict[str, Any] = {"kl": Kl(), "importance": Importance(), "packed": packed, "temperature": 0.5}
    networks = ActorCritic.make(Rl(curriculum=(Phase(steps=1),), **options), model)
    with torch.no_grad():
        at_the_start = by_hand(model, 0.5)[0]
        model.get_parameter("lm_head.weight").mul_(1.5)
        moved = by_hand(model, 0.5)[0]
    recorded = [
        replace(t, turns=tuple(replace(turn, logprobs=(-1.0,) * len(turn.completion_ids)) for turn in t.turns))
        for t in attempts()
    ]
    before = [b for group in networks.old_policy_stats([recorded]) for b in group]
    for values, wanted in (([b.reference_K for b in before], at_the_start), ([b.old_K for b in before], moved)):
        torch.testing.assert_close(torch.cat([v for v in values if v is not None]), wanted, rtol=0, atol=1e-12)
