"""Our own tokenizers: tags are single tokens, the words of Atlas too, and BPE takes any text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mem1.engines.codec import Codec
from mem1.protocol import PAPER, RELEASED, Tags, hint
from mem1.tasks.prompts import MAX_LABEL
from mem1.training.tiny_model.tokenizers import MAX_NUMBER, PAD, UNKNOWN, atlas_tokenizer, bpe_tokenizer

TEXTS = ["Oslo is the capital of Norway.", "Bergen is a rainy city in Norway."] * 3


@pytest.mark.parametrize("tags", [PAPER, RELEASED])
def test_every_tag_and_both_hint_brackets_are_single_tokens(tags: Tags):
    for tokenizer in (atlas_tokenizer(tags), bpe_tokenizer(TEXTS, vocab_size=320, tags=tags)):
        ids = Codec(tokenizer).single_tokens(tags.special_tokens)
        assert ids is not None
        assert len(set(ids)) == len(tags.special_tokens) == 10


def test_padding_and_the_unknown_token_come_first():
    # random exercises (training/loop/recall.py) leave the first two tokens out
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


@pytest.mark.parametrize("text", [f"Q{MAX_LABEL}", hint(MAX_NUMBER), hint(1), "No passage was found.", "done unknown"])
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


def test_bpe_is_as_large_as_asked_and_merges_what_is_frequent():
    assert BPE.vocab_size == 300
    plain = Codec(bpe_tokenizer(TEXTS, vocab_size=267, tags=PAPER))
    assert len(plain.encode("Norway")) == 6 > len(BPE.encode(" Norway"))


MARKED = Codec(bpe_tokenizer(TEXTS, vocab_size=290, tags=PAPER, marks=(" ____", "____", " ->")))


def test_marks_are_single_tokens_within_the_size_asked_for_also_in_text_of_others():
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
