"""Copying heads that are written down: they work before anything was trained, and are the same for the same seed."""

from __future__ import annotations

import pytest
import torch

from mem1.training.model_config import TinyModel
from mem1.training.models import new_model
from mem1.training.recall import Recall, recall_batch, recall_loss

SHAPE = TinyModel(
    hidden_size=192, layers=4, rope_theta=1e6, look_back=(1,), look_back_strength=6.0, induction=True, vocab_size=2000
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


def test_it_leans_to_what_followed_the_previous_token_where_another_one_stands_between():
    """a b ... a =   ->   b, as in a state that notes "asteroid = 6469"; half of the attention stays on "=" itself."""
    model = new_model(SHAPE, vocab_size=2000, seed=0)
    draw = torch.Generator().manual_seed(3)
    better: list[int] = []
    for _ in range(40):
        text = torch.randperm(1900, generator=draw)[:60] + 50
        place = int(torch.randint(5, 50, (1,), generator=draw))
        ids = torch.cat([text, text[place : place + 1], torch.tensor([7])])[None]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, -1]
        better.append(int((logits > logits[text[place + 1]]).sum()))
    assert sorted(better)[20] < 500, "of 2,000 tokens; by chance 1,000 are better"


def test_the_same_seed_makes_the_same_heads():
    one, again, other = (new_model(SHAPE, vocab_size=400, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(
        one["model.layers.1.self_attn.q_proj.weight"], other["model.layers.1.self_attn.q_proj.weight"]
    )


@pytest.mark.parametrize("changes", [{"layers": 2}, {"look_back": (1, 2)}, {"hidden_size": 100, "heads": 8}])
def test_shapes_without_room_for_them_are_refused(changes):
    with pytest.raises(ValueError, match=r"induction needs layers = 3|even number of times heads"):
        TinyModel(**{**SHAPE.model_dump(), **changes})
