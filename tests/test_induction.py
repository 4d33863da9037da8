"""Copying heads that are written down: they work before anything was trained, and are the same for the same seed."""

from __future__ import annotations

import pytest
import torch

from mem1.engines.codec import Codec
from mem1.protocol import PAPER
from mem1.tasks.cloze.expert import MARKS
from mem1.training.loop.recall import recall_batch, recall_loss
from mem1.training.loop.recipe import Recall, TinyModel
from mem1.training.tiny_model.model import new_model
from mem1.training.tiny_model.tokenizers import TokenKinds, bpe_tokenizer, token_kinds

SHAPE = TinyModel(
    hidden_size=256,
    layers=3,
    rope_theta=1e6,
    look_back=(1, 2, 5, 6),
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


def behind_the_mark(kinds: TokenKinds) -> int:
    """a … f [blank] ... a … f X ... a … f [found]: how often of 40 times X comes first, of 2,000 tokens."""
    found, blank = 3, 4
    model = new_model(SHAPE, vocab_size=2000, seed=0, kinds=kinds)
    draw = torch.Generator().manual_seed(3)
    first = 0
    for _ in range(40):
        noise = torch.randperm(1900, generator=draw)[:80] + 50
        words, x, between = noise[:6], noise[6:7], noise[7:].split(25)
        window, passage = torch.cat([words, torch.tensor([blank])]), torch.cat([words, x])
        ids = torch.cat([between[0], window, between[1], passage, between[2], words, torch.tensor([found])])
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, -1]
        first += bool(logits.argmax() == x)
    return first


def test_behind_its_mark_it_says_what_followed_the_words_before_it_and_no_blank():
    looks = (0,) * 1000 + (1,) * 1000
    assert behind_the_mark(TokenKinds(kind=looks, found=3, blank=(4,))) >= 24
    assert behind_the_mark(TokenKinds(kind=looks)) <= 2


def test_kinds_are_told_by_how_a_token_begins():
    codec = Codec(bpe_tokenizer(["Oslo has 1901 houses, Oslo has"] * 9, vocab_size=360, tags=PAPER, marks=MARKS))
    kinds = token_kinds(codec)
    assert len(kinds.kind) == codec.vocab_size
    tokens = [codec.encode(text)[0] for text in (" Oslo", "O", " houses", "h", "1", ",")]
    looks = [kinds.kind[token] for token in tokens]
    assert len(set(looks)) == len(looks)
    assert kinds.kind[codec.encode("s")[0]] == kinds.kind[codec.encode("h")[0]]
    assert kinds.found is not None
    assert [codec.decode([token]) for token in (kinds.found, *kinds.blank)] == [" ->", "____", " ____"]
    plain = token_kinds(Codec(bpe_tokenizer(["Oslo"], vocab_size=280, tags=PAPER)))
    assert plain.found is None and plain.blank == ()


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
