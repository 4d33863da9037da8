"""Text to tokens and back, and where a range of characters lies in the tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.policy.tokenizers import atlas_tokenizer, bpe_tokenizer
from mem1.protocol import PAPER, parse

WORDS = Codec(atlas_tokenizer(PAPER))
BPE = Codec(bpe_tokenizer(["the mayor of the city"] * 3, vocab_size=300, tags=PAPER))


def foreign(*merges: tuple[str, str]) -> Codec:
    """A byte-level tokenizer that knows nothing of our tags, as that of a general model."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(tokens)}, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Codec(tokenizer)


ACROSS = foreign(("©", "Ã"), ("©Ã", "©Ã"))
"""Has tokens that end one letter and begin the next: "ééé" is C3 | A9 C3 A9 C3 | A9."""


def spans(codec: Codec, text: str) -> dict[str, str]:
    """The text of the tokens of each parsed role."""
    ids = codec.encode(text)
    decoded = codec.decode(ids)
    found = codec.token_spans(ids, decoded, parse(decoded).spans)
    return {role: codec.decode(ids[a:b]) for role, (a, b) in found.items()}


@pytest.mark.parametrize("codec", [WORDS, BPE, foreign()], ids=["words", "bpe", "foreign"])
def test_the_tokens_of_state_and_action_are_those_of_their_text(codec: Codec):
    assert spans(codec, "<IS> now Q1 </IS> <query> mayor a 3 </query>") == {
        "state": "<IS> now Q1 </IS>",
        "state_text": "now Q1",
        "action": "<query> mayor a 3 </query>",
    }


@pytest.mark.parametrize("codec", [BPE, foreign()], ids=["bpe", "foreign"])
def test_spans_hold_for_text_whose_characters_take_several_tokens(codec: Codec):
    found = spans(codec, "<IS>naïve 東京 🙂</IS>東<answer>🙂🙂</answer>")
    # of a letter that takes several tokens, the last may be shared with what follows
    assert found.pop("state_text").startswith("naïve 東京 ")
    assert found == {"state": "<IS>naïve 東京 🙂</IS>", "action": "<answer>🙂🙂</answer>"}


def test_a_span_in_words_is_literal():
    #        <IS> now Q1 </IS> <query> mayor </query>
    text = "<IS> now Q1 </IS> <query> mayor </query>"
    ids = WORDS.encode(text)
    assert len(ids) == 7
    assert WORDS.token_spans(ids, text, {"state": (0, 17), "action": (18, 40)}) == {"state": (0, 4), "action": (4, 7)}
    assert WORDS.token_spans(ids, text, {"all": (0, 40), "none": (0, 0)}) == {"all": (0, 7), "none": (0, 0)}


def test_a_token_that_straddles_a_border_belongs_to_both_sides():
    ids = BPE.encode(" the city")  # two tokens: " the", " city"
    assert [BPE.decode([i]) for i in ids] == [" the", " city"]
    assert BPE.token_spans(ids, " the city", {"left": (0, 6), "right": (6, 9)}) == {"left": (0, 2), "right": (1, 2)}


@pytest.mark.parametrize("codec", [WORDS, BPE, foreign(), ACROSS], ids=["words", "bpe", "foreign", "across letters"])
@given(text=st.text("ab city<>/IS?é🙂", max_size=60), data=st.data())
def test_spans_are_those_that_trying_every_number_of_tokens_finds(codec: Codec, text: str, data: st.DataObject):
    ids = codec.encode(text)
    lengths = [len(codec.decode(ids[:n])) for n in range(len(ids) + 1)]
    start = data.draw(st.integers(0, lengths[-1]))
    stop = data.draw(st.integers(start, lengths[-1]))
    first = max(n for n, length in enumerate(lengths) if length <= start)
    last = min(n for n, length in enumerate(lengths) if length >= stop)
    found = codec.token_spans(ids, codec.decode(ids), {"part": (start, stop), "all": (0, lengths[-1])})
    assert found["part"] == (first, last)


def test_a_token_that_ends_one_letter_and_begins_the_next_belongs_to_both():
    ids = ACROSS.encode("aéééb")
    assert [len(ACROSS.decode(ids[:n])) for n in range(len(ids) + 1)] == [0, 1, 2, 4, 4, 5]
    #          a   | é: C3, part of 2 | é
    assert ACROSS.token_spans(ids, "aéééb", {"a": (0, 1), "first": (1, 2), "second": (2, 3), "b": (4, 5)}) == {
        "a": (0, 1),
        "first": (1, 2),
        "second": (2, 3),
        "b": (4, 5),
    }


def test_texts_encoded_together_have_the_tokens_of_each_by_itself():
    texts = ["<info> [HINT] 3 [/HINT] mayor city </info>", "", "mayor <info> [PAD] [HINT] 3 [/HINT]", "city", "city"]
    assert BPE.encode_each_untrusted(texts, PAPER) == [BPE.encode_untrusted(text, PAPER) for text in texts]
    assert BPE.encode_untrusted(texts[0], PAPER) == BPE.encode(texts[0])
    assert BPE.encode_each_untrusted([], PAPER) == []


@given(st.text())
def test_foreign_text_comes_back_as_it_was(text: str):
    codec = foreign()
    assert codec.decode(codec.encode(text)) == text


def test_stop_strings_are_single_tokens_only_where_each_of_them_is():
    assert WORDS.single_tokens(["</query>", "</answer>"]) == WORDS.encode("</query> </answer>")
    assert WORDS.single_tokens(["</query>", "mayor city"]) is None
    assert foreign().single_tokens(["</query>"]) is None


def test_encoding_adds_no_special_token():
    tokenizer = atlas_tokenizer(PAPER)
    tokenizer.post_processor = TemplateProcessing(single="[PAD] $A", special_tokens=[("[PAD]", 0)])
    (mayor,) = WORDS.encode("mayor")
    assert tokenizer.encode("mayor").ids == [0, mayor]
    assert Codec(tokenizer).encode("mayor") == (mayor,)


def test_a_saved_tokenizer_is_loaded_from_a_model_folder(tmp_path: Path):
    WORDS.tokenizer.save(str(tmp_path / "tokenizer.json"))
    loaded = Codec.load(tmp_path)
    assert loaded.encode("<IS> mayor city") == WORDS.encode("<IS> mayor city")
    assert loaded.vocab_size == WORDS.vocab_size


def test_a_missing_or_damaged_tokenizer_is_named(tmp_path: Path):
    with pytest.raises(UserError, match=r"tokenizer\.json does not exist"):
        Codec.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": ')
    with pytest.raises(UserError, match=r"tokenizer\.json is not a readable tokenizer"):
        Codec.load(tmp_path)
