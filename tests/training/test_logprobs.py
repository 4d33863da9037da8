"""Log-probs of the sampled tokens: packed, unpacked and dense are one number, and so are their gradients."""

from __future__ import annotations

import math
import random

import pytest
import torch
from builders import VOCABULARY, random_group, random_tokens, random_trajectory, tiny_model, trajectory
from precision import gradient_rounding, rounding
from torch import Tensor
from transformers import PreTrainedModel

from mem1.errors import UserError
from mem1.packing import Pack, pack
from mem1.packing.attention import tree_attention
from mem1.records import Trajectory
from mem1.training.logprobs import completion_logprobs, flat_logprobs, score

pytestmark = pytest.mark.numeric

KINDS = ["qwen2", "llama", "qwen3"]
Nested = list[list[Tensor]]
LLAMA3_POSITIONS = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def batch(seed: int = 0, policy: str = "constant") -> list[Trajectory]:
    """Two groups of three attempts."""
    rng = random.Random(seed)
    return [t for _ in range(2) for t in random_group(rng, 3, policy=policy, turns=4, longest=8, prompt=9)]


def loss(logprobs: Nested) -> Tensor:
    """A sum in which each token has a weight of its own, by trajectory length so that order does not matter."""
    flat = [x for turns in logprobs for x in turns]
    return torch.stack([(x * torch.linspace(-1, 2, len(x), dtype=x.dtype)).sum() for x in flat]).sum() / 50


def gradients(model: PreTrainedModel, value: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(value, list(model.parameters())))


def values(logprobs: Nested) -> Tensor:
    return torch.cat([x.detach() for turns in logprobs for x in turns])


def assert_same(got: list[Tensor], wanted: list[Tensor], tolerance: float) -> None:
    assert max(x.abs().max().item() for x in wanted) > 1e-3, "the gradient must not be empty"
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def assert_equal_up_to_rounding(model: PreTrainedModel, packed: Nested, alone: Nested) -> None:
    """Log-probs and gradients of a batch, whose gradient is a sum over all its tokens."""
    tokens = len(pack(batch()))
    nats, wanted = float(values(alone).abs().max()), gradients(model, loss(alone))
    torch.testing.assert_close(
        values(packed), values(alone), rtol=0, atol=rounding(model, tokens=tokens, magnitude=nats)
    )
    largest = max(float(x.abs().max()) for x in wanted)
    tolerance = gradient_rounding(model, tokens=tokens, magnitude=max(1.0, largest))
    assert_same(gradients(model, loss(packed)), wanted, tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_packed_equals_one_turn_at_a_time_in_log_probs_and_gradients(kind: str, dtype: torch.dtype):
    model, trajectories = tiny_model(kind, dtype=dtype), batch()
    packed = completion_logprobs(model, trajectories)
    alone = completion_logprobs(model, trajectories, packed=False)
    assert_equal_up_to_rounding(model, packed, alone)
    assert values(alone).std() > 0.5, "the model must not be uniform"


SHAPES = {
    "llama, tied, grouped queries": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 2}),
    "llama, biases, scaled positions": ("llama", {"attention_bias": True, "rope_parameters": LLAMA3_POSITIONS}),
    "qwen2, untied, grouped queries": ("qwen2", {"tie_word_embeddings": False, "num_key_value_heads": 2}),
    "qwen2, all queries on one key": ("qwen2", {"num_key_value_heads": 1}),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3, untied": ("qwen3", {"tie_word_embeddings": False}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_heads_tied_and_untied_and_grouped_queries_are_exact_too(shape: str):
    kind, overrides = SHAPES[shape]
    model, trajectories = tiny_model(kind, **overrides), batch()
    packed, alone = completion_logprobs(model, trajectories), completion_logprobs(model, trajectories, packed=False)
    torch.testing.assert_close(values(packed), values(alone), rtol=0, atol=1e-10)
    assert_same(gradients(model, loss(packed)), gradients(model, loss(alone)), 1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_bf16_model_is_packed_as_exactly_as_bf16_allows(kind: str):
    model, trajectories = tiny_model(kind, dtype=torch.bfloat16, initializer_range=0.1), batch()
    packed, alone = (values(completion_logprobs(model, trajectories, packed=p)) for p in (True, False))
    exact = values(completion_logprobs(model.double(), trajectories, packed=False))
    assert packed.dtype == torch.float32
    assert (packed - exact).abs().max() < 2 * (alone - exact).abs().max() < 0.2


@pytest.mark.parametrize("kind", KINDS)
def test_the_dense_back_end_agrees_too(kind: str):
    model, tree = tiny_model(kind), pack(batch())
    blocks = flat_logprobs(model, tree, temperature=1.0)
    dense = flat_logprobs(model, tree, temperature=1.0, backend="dense")
    torch.testing.assert_close(blocks, dense, rtol=0, atol=1e-10)
    assert_same(gradients(model, loss(tree.split(blocks))), gradients(model, loss(tree.split(dense))), tolerance=1e-10)


def test_contexts_longer_than_a_block_agree():
    model = tiny_model("qwen3")
    rng = random.Random(0)
    one = [random_trajectory(rng, prompt=random_tokens(rng, 200), turns=3, longest=60)]
    assert len(pack(one)) > 256
    torch.testing.assert_close(
        values(completion_logprobs(model, one)),
        values(completion_logprobs(model, one, packed=False)),
        rtol=0,
        atol=1e-10,
    )


@pytest.mark.parametrize("packed", [True, False])
def test_a_model_that_knows_nothing_gives_every_token_one_over_the_vocabulary(packed: bool):
    model = tiny_model("llama")
    head = model.get_output_embeddings()
    assert isinstance(head, torch.nn.Linear)
    torch.nn.init.zeros_(head.weight)
    found = values(completion_logprobs(model, batch(), packed=packed))
    torch.testing.assert_close(found, torch.full_like(found, -math.log(VOCABULARY)))


@pytest.mark.parametrize("packed", [True, False])
def test_the_temperature_divides_the_logits(packed: bool):
    model = tiny_model("qwen2")
    one = [trajectory(([3, 4, 5], [6, 7]))]
    logits = model(torch.tensor([[3, 4, 5, 6]])).logits[0, 2:]
    expected = torch.log_softmax(logits / 0.5, -1)[[0, 1], [6, 7]]
    torch.testing.assert_close(values(completion_logprobs(model, one, temperature=0.5, packed=packed)), expected)
    assert (values(completion_logprobs(model, one, packed=packed)) - expected).abs().max() > 0.1


@pytest.mark.parametrize("packed", [True, False])
def test_a_temperature_of_zero_is_an_error(packed: bool):
    with pytest.raises(ValueError, match="temperature must be above 0"):
        completion_logprobs(tiny_model("qwen2"), batch(), temperature=0.0, packed=packed)


def test_a_later_token_moves_no_earlier_log_prob():
    model = tiny_model("llama")

    def found(last: int) -> Nested:
        return completion_logprobs(model, [trajectory(([1, 2], [3, 4, 5]), ([1, 2, 3, 4, 5, 6], [7, last, 8, 9]))])

    first, second = found(10), found(11)
    torch.testing.assert_close(first[0][0], second[0][0], rtol=0, atol=0)
    torch.testing.assert_close(first[0][1][:1], second[0][1][:1], rtol=0, atol=0)
    assert ((first[0][1] - second[0][1]).abs() > 1e-3).tolist() == [False, True, True, True]


def test_the_other_branch_moves_no_log_prob():
    model = tiny_model("llama")
    one = trajectory(([1, 2], [3, 4]), ([1, 2, 5, 6], [7, 8]))
    with_other = completion_logprobs(model, [one, trajectory(([1, 2], [9, 9, 9]))])
    torch.testing.assert_close(values(with_other[:1]), values(completion_logprobs(model, [one])), rtol=0, atol=1e-12)


def test_the_state_of_the_last_turn_is_seen():
    # Hiding it is a known defect of published training code.
    model = tiny_model("llama")
    first, second = (
        completion_logprobs(model, [trajectory(([1, 2], [3]), ([1, 2, 3, 4], [5]), ([1, 2, state, 6], [7, 8]))])
        for state in (5, 9)
    )
    assert (first[0][2] - second[0][2]).abs().min() > 1e-3


@pytest.mark.parametrize("packed", [True, False])
def test_shuffling_trajectories_changes_nothing(packed: bool):
    model, trajectories = tiny_model("qwen3"), batch()
    order = [4, 2, 0, 5, 1, 3]
    straight = completion_logprobs(model, trajectories, packed=packed)
    shuffled = completion_logprobs(model, [trajectories[i] for i in order], packed=packed)
    for place, i in enumerate(order):
        torch.testing.assert_close(values([shuffled[place]]), values([straight[i]]), rtol=0, atol=1e-10)
    assert_same(gradients(model, loss(shuffled)), gradients(model, loss(straight)), 1e-10)


def test_two_attempts_with_the_same_tokens_count_twice():
    model = tiny_model("llama")
    one = trajectory(([1, 2], [3, 4]))
    once = completion_logprobs(model, [one])
    twice = completion_logprobs(model, [one, one])
    assert len(pack([one, one])) == len(pack([one]))
    doubled = [2 * g for g in gradients(model, loss(once))]
    assert_same(gradients(model, loss(twice)), doubled, 1e-12)


def test_flat_log_probs_come_in_the_order_of_trajectories_turns_and_positions():
    model, trajectories = tiny_model("qwen2"), batch()
    flat = flat_logprobs(model, pack(trajectories), temperature=1.0)
    assert flat.shape == (sum(t.num_completion_tokens for t in trajectories),)
    torch.testing.assert_close(flat.detach(), values(completion_logprobs(model, trajectories)), rtol=0, atol=0)


def test_the_entropy_is_that_of_the_distribution_sampled_from_and_has_no_gradient():
    model = tiny_model("llama")
    found = score(model, Pack.whole([trajectory(([3, 4], [5, 6]))]), temperature=0.5)
    logprobs, entropy = found.logprobs_M, found.entropy_M
    wanted = torch.distributions.Categorical(logits=model(torch.tensor([[3, 4, 5]])).logits[0, 1:] / 0.5).entropy()
    torch.testing.assert_close(entropy, wanted)
    assert logprobs.requires_grad and not entropy.requires_grad
    assert (entropy < math.log(VOCABULARY) - 0.1).all()


def test_a_vocabulary_too_large_to_hold_all_logits_gives_the_same_gradient(monkeypatch):
    monkeypatch.setattr("mem1.training.head.LOGITS_KEPT", 0)
    monkeypatch.setattr("mem1.training.head.LOGITS_AT_ONCE", 111 * VOCABULARY)
    model = tiny_model("qwen2")
    one = [trajectory(([1, 2], random_tokens(random.Random(0), 130)))]
    packed = completion_logprobs(model, one)
    alone = completion_logprobs(model, one, packed=False)
    torch.testing.assert_close(values(packed), values(alone), rtol=0, atol=1e-10)
    assert_same(gradients(model, loss(packed)), gradients(model, loss(alone)), 1e-10)


@pytest.mark.parametrize("packed", [True, False])
def test_there_is_one_log_prob_per_completion_token(packed: bool):
    one = [*batch(), trajectory(([1, 2], []), ([1, 2], [3])), Trajectory(turns=())]
    found = completion_logprobs(tiny_model("qwen2"), one, packed=packed)
    assert [[x.shape for x in turns] for turns in found] == [[(len(u.completion_ids),) for u in t.turns] for t in one]
    assert completion_logprobs(tiny_model("qwen2"), [], packed=packed) == []
    assert completion_logprobs(tiny_model("qwen2"), one[-1:], packed=packed) == [[]]


def test_under_bf16_autocast_log_probs_are_fp32_and_near():
    model, trajectories = tiny_model("qwen2", dtype=torch.float32, initializer_range=0.1), batch()
    exact = values(completion_logprobs(model, trajectories))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = completion_logprobs(model, trajectories)
    assert values(found).dtype == torch.float32
    assert 0 < (values(found) - exact).abs().max() < 0.1
    assert_same(gradients(model, loss(found)), gradients(model, loss(completion_logprobs(model, trajectories))), 0.1)


# the lowest version of transformers that we take does not have its successor
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable. is deprecated")
def test_gradient_checkpointing_needs_the_backward_pass_inside_tree_attention():
    model, trajectories = tiny_model("qwen2").train(), batch()
    wanted = gradients(model, loss(completion_logprobs(model, trajectories)))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    with pytest.raises(UserError, match="with tree_attention"):
        completion_logprobs(model, trajectories)
    with tree_attention(model):
        found = gradients(model, loss(completion_logprobs(model, trajectories)))
    assert_same(found, wanted, 1e-10)


def test_a_model_that_cannot_be_packed_still_trains_one_turn_at_a_time():
    model = tiny_model("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)
    with pytest.raises(UserError, match="sliding_attention"):
        completion_logprobs(model, batch())
    found = gradients(model, loss(completion_logprobs(model, batch(), packed=False)))
    assert max(g.abs().max() for g in found) > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_the_trainer_gives_the_log_probs_that_generation_sampled_with(kind: str):
    model = tiny_model(kind, dtype=torch.float32).eval()
    context = [[5, 6, 7, 8], [9, 10, 11, 12]]
    torch.manual_seed(0)
    out = model.generate(  # pyright: ignore[reportCallIssue]
        torch.tensor(context),
        attention_mask=torch.ones(2, 4, dtype=torch.long),
        do_sample=True,
        temperature=0.8,
        top_k=0,
        max_new_tokens=10,
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=0,
    )
    sampled = out.sequences[:, 4:]
    scores = torch.stack(out.scores, dim=1).log_softmax(-1).gather(-1, sampled[:, :, None])[:, :, 0]
    trajectories = [trajectory((c, s)) for c, s in zip(context, sampled.tolist(), strict=True)]
    found = values(completion_logprobs(model, trajectories, temperature=0.8))
    assert len(found) == 20
    atol = rounding(model, tokens=14, magnitude=float(scores.abs().max()) / 0.8)
    torch.testing.assert_close(found, scores.reshape(-1), rtol=0, atol=atol)
