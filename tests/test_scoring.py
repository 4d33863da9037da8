"""Exact match and F1 by SQuAD's rules, and answers to N questions at once."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mem1.scoring import contains, exact_match, f1, normalize, score_answers, split_answers


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("The Eiffel Tower.", "eiffel tower"),
        ("  An   apple\ta day ", "apple day"),
        ("U.S.A.", "usa"),
        ("A+", ""),
        ("theatre", "theatre"),
        ("twenty-one", "twentyone"),
        ("Zürich", "zürich"),
    ],
)
def test_normalisation_folds_case_punctuation_articles_and_space(text: str, normalized: str):
    assert normalize(text) == normalized


PIECES = ["a", "n", "an", "the", "th", "e", " ", "\u00e9", "\u2013", "\x01", "_", "'", "T", "1"]


@given(st.lists(st.sampled_from(PIECES)).map("".join))
def test_articles_are_those_of_squads_own_script(text: str):
    plain = "".join(c for c in text.lower() if c not in string.punctuation)
    assert normalize(text) == " ".join(re.sub(r"\b(a|an|the)\b", " ", plain).split())


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("The Eiffel Tower.", ["Eiffel Tower"], 1),
        ("eiffel", ["Eiffel Tower"], 0),
        ("M. Toll", ["Mira Toll", "m toll"], 1),
        ("1901", ["1900"], 0),
        ("", ["Paris"], 0),
        ("Paris", [], 0),
    ],
)
def test_exact_match_with_any_alias(prediction: str, golds: list[str], score: int):
    assert exact_match(prediction, golds) == score


@pytest.mark.parametrize(
    ("prediction", "golds", "score"),
    [
        ("in Paris, France", ["Paris"], 0.5),  # 1 of 3 predicted, 1 of 1 gold
        ("the cat sat", ["cat sat down"], 0.8),  # 2 of 2, 2 of 3
        ("no no no yes", ["no yes"], 2 / 3),  # counts: one "no" and one "yes" of 4, 2 of 2
        ("no no", ["no no no"], 0.8),  # a word counts as often as both have it
        ("blue", ["red", "dark blue"], 2 / 3),  # the better alias
        ("", ["Paris"], 0.0),
        ("the", ["a"], 0.0),
        ("Paris", [], 0.0),
    ],
)
def test_f1_by_token_counts_over_the_best_alias(prediction: str, golds: list[str], score: float):
    assert f1(prediction, golds) == pytest.approx(score)


@pytest.mark.parametrize(
    ("prediction", "golds", "found"),
    [
        ("It is in Paris, France.", ["paris"], 1),
        ("the United States of America", ["Canada", "United States"], 1),
        ("Houston", ["us"], 0),  # whole words
        ("States United", ["United States"], 0),  # in their order
        ("Paris", ["Paris, France"], 0),
        ("a the", ["The A"], 0),  # an alias of which nothing is left
        ("", ["Paris"], 0),
        ("Paris", [], 0),
    ],
)
def test_an_answer_contains_an_alias_as_whole_words(prediction: str, golds: list[str], found: int):
    assert contains(prediction, golds) == found


@given(st.text(alphabet="ab ,A"), st.lists(st.text(alphabet="ab ,A", max_size=4)))
def test_what_matches_exactly_contains_a_gold_unless_nothing_is_left_of_it(prediction: str, golds: list[str]):
    assert contains(prediction, golds) >= exact_match(prediction, golds) * bool(normalize(prediction))


@pytest.mark.parametrize(
    ("answer", "pieces"),
    [
        ("Paris; 1901; Oslo", ["Paris", "1901", "Oslo"]),
        ("Q1 Paris ; Q2 1901 ; Q3 Oslo", ["Paris", "1901", "Oslo"]),
        ("Q1: Paris; Q2) 1901; Q3. Oslo", ["Paris", "1901", "Oslo"]),
        ("Q3 Oslo; Q1 Paris", ["Paris", "", "Oslo"]),
        ("Paris; Q3 Oslo", ["Paris", "", "Oslo"]),
        ("Paris", ["Paris", "", ""]),
        ("", ["", "", ""]),
        (";;", ["", "", ""]),
        ("a; b; c; d; Q9 e", ["a", "b", "c"]),
        ("Q1 first; Q1 second", ["first", "", ""]),
        ("Q10 x", ["", "", ""]),
        ("Quito; Q Street", ["Quito", "Q Street", ""]),
    ],
)
def test_answers_go_to_their_label_or_else_to_their_position(answer: str, pieces: list[str]):
    assert split_answers(answer, 3) == pieces


def test_scores_by_position_missing_answers_zero_surplus_ignored():
    golds = [["Paris"], ["1900"], ["Oslo", "Christiania"]]
    assert score_answers("Paris; 1901", golds).em == [1.0, 0.0, 0.0]
    assert score_answers("Q3 Christiania; Q1 the Paris", golds).em == [1.0, 0.0, 1.0]
    assert score_answers("Paris; 1900; Oslo; more", golds).em == [1.0, 1.0, 1.0]
    assert score_answers("in Paris, France", golds).f1 == [0.5, 0.0, 0.0]
    assert score_answers("1900; Paris", golds).em == [0.0, 0.0, 0.0]


def test_a_missing_answer_earns_nothing_even_where_the_gold_is_only_punctuation_or_articles():
    assert score_answers("", [["!!!"], ["The A"]]).em == [0.0, 0.0]
    assert score_answers("!!!; a the", [["!!!"], ["The A"]]).em == [1.0, 1.0]


def test_a_label_of_five_thousand_digits_is_no_label():
    assert score_answers("Q" + "9" * 5000 + " Paris", [["Paris"]]).em == [0.0]


@given(st.text(), st.integers(1, 5))
def test_scoring_never_raises_and_stays_in_range(answer: str, objectives: int):
    scores = score_answers(answer, [["Paris", "a"]] * objectives)
    assert len(scores.em) == len(scores.f1) == objectives
    assert all(e in (0.0, 1.0) for e in scores.em)
    assert all(0 <= f <= 1 for f in scores.f1)
