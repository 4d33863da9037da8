"""The recall exercise: what is shown, what is asked, and that only what can be known is trained."""

from __future__ import annotations

import pytest
import torch
from precision import rounding

from mem1.training.loop.recall import FIRST_TOKEN, recall_batch, recall_loss
from mem1.training.loop.recipe import Recall, TinyModel
from mem1.training.tiny_model.model import new_model

pytestmark = pytest.mark.numeric

ONE_SIZE = Recall(tokens=256, pairs=(4,))


def test_the_second_half_asks_for_the_pairs_of_the_first_in_another_order():
    ids_BT, _ = recall_batch(ONE_SIZE, 100, seed=1)
    assert ids_BT.shape == (8, 32)
    reordered = 0
    for row in ids_BT.tolist():
        shown = [tuple(row[i : i + 4]) for i in range(0, 16, 4)]
        asked = [tuple(row[i : i + 4]) for i in range(16, 32, 4)]
        assert sorted(asked) == sorted(shown)
        reordered += asked != shown
    assert reordered > 4


def test_only_the_values_of_the_second_half_are_predicted():
    _, predicted_BT = recall_batch(ONE_SIZE, 100, seed=1)
    #           a b X Y   c d Z W   ...      keys: no, values: yes
    assert predicted_BT[0].int().tolist() == [0] * 16 + [0, 0, 1, 1] * 4
    assert bool((predicted_BT == predicted_BT[0]).all())


def test_padding_and_the_unknown_token_take_no_part():
    ids_BT, _ = recall_batch(Recall(tokens=4096, pairs=(32,)), 6, seed=0)
    assert sorted(set(ids_BT.flatten().tolist())) == list(range(FIRST_TOKEN, 6))


def test_a_batch_is_a_function_of_the_seed_and_sizes_vary_between_steps():
    config = Recall(tokens=512, pairs=(4, 8))
    assert torch.equal(recall_batch(config, 50, seed=3)[0], recall_batch(config, 50, seed=3)[0])
    assert {recall_batch(config, 50, seed=i)[0].shape for i in range(10)} == {(16, 32), (8, 64)}


def test_a_step_has_at_least_one_row():
    assert recall_batch(Recall(tokens=64, pairs=(32,)), 50, seed=0)[0].shape == (1, 256)


def test_the_loss_is_the_mean_cross_entropy_of_the_tokens_to_predict():
    model = new_model(TinyModel(hidden_size=32, layers=2, feed_forward=64), vocab_size=50, seed=0)
    ids_BT, predicted_BT = recall_batch(ONE_SIZE, 50, seed=0)
    loss, right = recall_loss(model, ids_BT, predicted_BT)
    with torch.no_grad():
        logprobs_BTV = model(ids_BT).logits.log_softmax(-1)
    total = count = hits = 0.0
    for b, t in predicted_BT.nonzero().tolist():
        total -= logprobs_BTV[b, t - 1, ids_BT[b, t]].item()
        hits += int(logprobs_BTV[b, t - 1].argmax()) == int(ids_BT[b, t])
        count += 1
    assert count == 8 * 8
    assert loss.item() == pytest.approx(total / count, abs=rounding(model, tokens=ids_BT.shape[1], magnitude=5.0))
    assert right == pytest.approx(hits / count)
