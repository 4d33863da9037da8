"""Cutting text into passages on the borders of sentences."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mem1.retrieval.documents import cut_text


@pytest.mark.parametrize(
    ("text", "words", "passages"),
    [
        ("One two. Three four five. Six.", 4, ["One two.", "Three four five. Six."]),
        ("One two. Three four five. Six.", 6, ["One two. Three four five. Six."]),
        ("a b c d e f g h i", 4, ["a b c d", "e f g h", "i"]),
        ("Short. a b c d e f g", 4, ["Short. a b c", "d e f g"]),
        ("One. Two three four five six. Seven.", 4, ["One.", "Two three four five", "six. Seven."]),
        ("Use e.g. this one. It is fine.", 5, ["Use e.g. this one.", "It is fine."]),
        ('He said "Go away!" Then (see there.) Gone?', 4, ['He said "Go away!"', "Then (see there.) Gone?"]),
        ("A heading\n\nand its text goes on", 5, ["A heading", "and its text goes on"]),
        ("Lines that\nwrap are\none sentence.  Another.", 7, ["Lines that wrap are one sentence. Another."]),
        ("It costs 3.50 in v1.2.Next one here", 9, ["It costs 3.50 in v1.2.Next one here"]),
        ("\u6771\u4eac\u306f\u9996\u90fd\u3067\u3059\u3002\u5927\u962a\u3082\u5927\u304d\u3044\u3002 Yes.", 8,
         ["\u6771\u4eac\u306f\u9996\u90fd\u3067\u3059\u3002", "\u5927\u962a\u3082\u5927\u304d\u3044\u3002 Yes."]),
        ("", 4, []),
        (" \n\t ", 4, []),
    ],
)  # fmt: skip
def test_examples(text: str, words: int, passages: list[str]):
    assert cut_text(text, words=words) == passages


TEXTS = st.text(st.sampled_from("ab Z.!?\u3002\u6771\n\t\"')(1"), max_size=200) | st.text(max_size=60)


@given(TEXTS, st.integers(1, 12))
@example("." * 500, 1)
def test_nothing_is_lost_and_no_passage_is_too_long(text: str, words: int):
    passages = cut_text(text, words=words)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(0 < len(passage.split()) <= words for passage in passages)


@given(st.lists(st.integers(1, 10), min_size=1, max_size=30))
def test_sentences_that_fit_are_never_cut_and_two_passages_could_not_have_been_one(lengths: list[int]):
    text = " ".join(" ".join(["Word"] * length) + "." for length in lengths)
    passages = cut_text(text, words=10)
    assert all(passage.endswith(".") for passage in passages)
    firsts = [len(passage.split(".")[0].split()) for passage in passages]
    assert all(len(a.split()) + first > 10 for a, first in zip(passages, firsts[1:], strict=False))


def test_what_has_no_spaces_is_cut_too():
    assert max(map(len, cut_text("x" * 100_000, words=100))) == 100 * 200
