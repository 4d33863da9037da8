"""Small models made from scratch: their tokenizers, the recall exercise, and copying heads that are written down."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from precision import rounding

from mem1.engines.codec import Codec
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import MAX_NUMBER, PAD, UNKNOWN, TokenKinds, atlas_tokenizer, bpe_tokenizer, token_kinds
from mem1.protocol import PAPER, RELEASED, Tags, observation
from mem1.recipe.model import TinyModel
from mem1.recipe.supervised import Recall
from mem1.tasks.cloze.expert import MARKS
from mem1.tasks.prompts import LABELS
from mem1.training.supervised import FIRST_TOKEN, recall_batch, recall_loss

TEXTS = ["Oslo is the capital of Norway.", "Bergen is a rainy city in Norway."] * 3


@pytest.mark.parametrize("tags", [PAPER, RELEASED])
def test_every_tag_and_both_hint_brackets_are_single_tokens(tags: Tags):
    for tokenizer in (atlas_tokenizer(tags), bpe_tokenizer(TEXTS, vocab_size=320, tags=tags)):
        ids = Codec(tokenizer).single_tokens(tags.special_tokens)
        assert ids is not None
        assert len(set(ids)) == len(tags.special_tokens) == 10


def test_padding_and_the_unknown_token_come_first():
    # random exercises (training/supervised.py) leave the first two tokens out
    tokenizer = atlas_tokenizer(PAPER)
    assert (tokenizer.token_to_id(PAD), tokenizer.token_to_id(UNKNOWN)) == (0, 1)
    assert bpe_tokenizer(TEXTS, vocab_size=320, tags=PAPER).token_to_id(PAD) == 0


def test_the_vocabulary_of_atlas_is_fixed():
    # a trained policy depends on it: a change makes every saved one unusable
    codec = Codec(atlas_tokenizer(PAPER))
    assert codec.vocab_size == 536
    ids = (526, 35, 530, 527, 205, 365, 525, 6, 531)
    assert codec.encode("<IS> Q1 </IS> <query> Bala Brand 's mayor </query>") == ids
    assert codec.decode(ids) == "<IS> Q1 </IS> <query> Bala Brand 's mayor </query>"


@pytest.mark.parametrize(
    "text",
    [f"Q{LABELS}", observation("", MAX_NUMBER)[0], observation("", 1)[0], "No passage was found.", "done unknown"],
)
def test_labels_hints_and_replies_have_no_unknown_word(text: str):
    codec = Codec(atlas_tokenizer(PAPER))
    assert codec.encode(UNKNOWN)[0] not in codec.encode(text)


def test_a_word_that_atlas_does_not_know_becomes_unknown():
    codec = Codec(atlas_tokenizer(PAPER))
    assert codec.decode(codec.encode("mayor in Trondheim 3")) == "mayor [UNK] [UNK] 3"


BPE = Codec(bpe_tokenizer(TEXTS, vocab_size=300, tags=PAPER))


@given(st.text())
def test_bpe_encodes_and_decodes_any_text_without_loss(text: str):
    assert BPE.decode(BPE.encode(text)) == text


def test_bpe_has_the_requested_size_and_merges_frequent_pairs():
    assert BPE.vocab_size == 300
    plain = Codec(bpe_tokenizer(TEXTS, vocab_size=267, tags=PAPER))
    assert len(plain.encode("Norway")) == 6 > len(BPE.encode(" Norway"))


MARKED = Codec(bpe_tokenizer(TEXTS, vocab_size=290, tags=PAPER, marks=(" ____", "____", " ->")))


def test_marks_are_single_tokens_within_the_requested_size_also_in_other_text():
    assert MARKED.vocab_size == 290
    assert MARKED.single_tokens([" ____", "____", " ->"]) is not None
    assert BPE.single_tokens([" ____"]) is None
    text = 'Oslo is ____ , "____" -> Bergen'
    assert MARKED.encode_untrusted(text, PAPER) == MARKED.encode(text)
    (blank,) = MARKED.encode(" ____")
    assert MARKED.encode(text).count(blank) == 1


@given(st.lists(st.sampled_from(["_", " ", "Oslo", " ____", " ->", "é"])).map("".join))
def test_text_with_marks_is_encoded_and_decoded_without_loss(text: str):
    assert MARKED.decode(MARKED.encode(text)) == text


def test_bpe_is_the_same_for_the_same_texts():
    first, second = (bpe_tokenizer(TEXTS, vocab_size=300, tags=PAPER).to_str() for _ in range(2))
    assert first == second


ONE_SIZE = Recall(tokens=256, pairs=(4,))


def test_the_second_half_repeats_the_pairs_of_the_first_in_another_order():
    ids_BT, _ = recall_batch(ONE_SIZE, 100, seed=1)
    assert ids_BT.shape == (8, 32)
    reordered = 0
    for row in ids_BT.tolist():
        shown = [tuple(row[i : i + 4]) for i in range(0, 16, 4)]
        repeated = [tuple(row[i : i + 4]) for i in range(16, 32, 4)]
        assert sorted(repeated) == sorted(shown)
        reordered += repeated != shown
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


@pytest.mark.numeric
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
    rows = []
    for _ in range(40):
        noise = torch.randperm(1900, generator=draw)[:60] + 50
        a, b, x, c, y = noise[:5]
        pieces = [noise[5:20], torch.stack([a, b, x]), noise[20:40], torch.stack([c, b, y]), noise[40:]]
        rows.append(torch.cat([*pieces, torch.stack([a, b]), torch.stack([x, y])]))
    ids = torch.stack(rows)
    with torch.no_grad():
        logits = model(input_ids=ids[:, :-2]).logits[:, -1].gather(1, ids[:, -2:])
    assert (logits[:, 0] > logits[:, 1]).sum() >= 38


def hits_after_the_mark(kinds: TokenKinds) -> int:
    """a … f [blank] ... a … f X ... a … f [found]: how often of 40 times X comes first, of 2,000 tokens."""
    found, blank = 3, 4
    model = new_model(SHAPE, vocab_size=2000, seed=0, kinds=kinds)
    draw = torch.Generator().manual_seed(3)
    rows = []
    for _ in range(40):
        noise = torch.randperm(1900, generator=draw)[:80] + 50
        words, x, between = noise[:6], noise[6:7], noise[7:].split(25)
        window, passage = torch.cat([words, torch.tensor([blank])]), torch.cat([words, x])
        rows.append(torch.cat([between[0], window, between[1], passage, between[2], words, torch.tensor([found]), x]))
    ids = torch.stack(rows)
    with torch.no_grad():
        logits = model(input_ids=ids[:, :-1]).logits[:, -1]
    return int((logits.argmax(-1) == ids[:, -1]).sum())


def test_after_its_mark_it_copies_what_followed_the_words_before_it_and_no_blank():
    looks = (0,) * 1000 + (1,) * 1000
    assert hits_after_the_mark(TokenKinds(kind=looks, found=3, blank=(4,))) >= 24
    assert hits_after_the_mark(TokenKinds(kind=looks)) <= 2


def test_kinds_depend_on_how_a_token_begins():
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
