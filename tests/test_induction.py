"""Copying heads that are written down: they work before anything was trained, and are the same for the same seed."""

from __future__ import annotations

import pytest
import torch

from mem1.training.model_config import TinyModel
from mem1.training.models import new_model
from mem1.training.recall import Recall, recall_batch, recall_loss

SHAPE = TinyModel(
    hidden_size=192,
    layers=4,
    rope_theta=1e6,
    look_back=(1, 2, 3),
    look_back_strength=6.0,
    induction=True,
    vocab_size=2000,
)


def right(shape: TinyModel, *, pairs: int) -> float:
    """Share of the tokens that follow a key that were seen after it before; by guessing, one in 2,000."""
    ids_BT, predicted_BT = recall_batch(Recall(pairs=(pairs,), tokens=2048), 2000, seed=5)
    with torch.no_grad():
        return recall_loss(new_model(shape, vocab_size=2000, seed=0), ids_BT, predicted_BT)[1]


def test_a_new_model_recalls_what_followed_a_token_before():
    assert right(SHAPE, pairs=4) > 0.97
    assert right(SHAPE, pairs=16) > 0.95
    assert right(SHAPE.model_copy(update={"induction": False}), pairs=4) < 0.05


def test_of_two_places_with_the_same_token_it_finds_the_one_with_the_same_token_before():
    """a b X ... c b Y ... a b   ->   X, although Y followed b last."""
    model = new_model(SHAPE, vocab_size=2000, seed=0)
    draw = torch.Generator().manual_seed(3)
    right = 0
    for _ in range(40):
        noise = torch.randperm(1900, generator=draw)[:60] + 50
        a, b, x, c, y = noise[:5]
        pieces = [noise[5:20], torch.stack([a, b, x]), noise[20:40], torch.stack([c, b, y]), noise[40:]]
        ids = torch.cat([*pieces, torch.stack([a, b])])[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, -1]
        right += bool(logits[x] > logits[y])
    assert right >= 38


def test_the_same_seed_makes_the_same_heads():
    one, again, other = (new_model(SHAPE, vocab_size=400, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(
        one["model.layers.1.self_attn.q_proj.weight"], other["model.layers.1.self_attn.q_proj.weight"]
    )


@pytest.mark.parametrize(
    "changes", [{"layers": 2}, {"heads": 3}, {"look_back": (1, 2)}, {"hidden_size": 100, "heads": 8}]
)
def test_shapes_without_room_for_them_are_refused(changes):
    with pytest.raises(ValueError, match=r"induction needs layers = 3|even number of times heads"):
        TinyModel(**{**SHAPE.model_dump(), **changes})
