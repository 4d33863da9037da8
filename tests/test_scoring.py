"""Exact match and F1 by SQuAD's rules, and answers to N questions at once."""

from __future__ import annotations

import random
import re
import string
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mem1.errors import UserError
from mem1.scoring import (
    SCORERS,
    contains,
    exact_match,
    exactly,
    f1,
    labelled,
    normalize,
    same,
    score_answers,
    split_answers,
)


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
        ("\u7b54\u6848\u662f\u5317\u4eac\u3002", ["\u5317\u4eac"], 1),  # no blanks between words
        ("\u5317\u65b9\u4eac\u57ce", ["\u5317\u4eac"], 0),
        ("\u0e2d\u0e22\u0e39\u0e48\u0e01\u0e23\u0e38\u0e07", ["\u0e01\u0e23\u0e38\u0e07"], 1),
        ("GPT-4\u3092", ["GPT-4"], 1),
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


APART = [
    *(("-5", "5"), ("3.5", "35"), ("5%", "5"), ("$5", "5"), ("$5", "\u20ac5"), ("5 km", "5 m"), ("1.234", "1234")),
    *(("C", "C#"), ("C#", "C++"), (".NET", "NET"), ("A+", "A"), ("!!!", "???"), ("The The", "The"), ("A", "The")),
    *(("A", ""), ("10\u00b2", "102"), ("3\u00bd", "31/2"), ("5!", "5"), ("1990-95", "199095")),
    *((".", ""), ("...", "."), ("etc...", "etc"), ("%.", ""), ("C.5", "C5")),
]
ALIKE = [
    *(("The Eiffel Tower.", "eiffel tower"), ("\u22125", "-5"), ("5 %", "5%"), ("$ 5", "$5"), ("5 KM", "5km")),
    *(("1,234", "1234"), ("Cafe\u0301", "caf\u00e9"), ("\uff11\uff12", "12"), ("\u0663\u066b\u0665", "3.5")),
    *(("\u0966", "0"), ("\u6771\u4eac\u3002", "\u6771\u4eac"), ("\u300c\u6771\u4eac\u300d", "\u6771\u4eac")),
    *(('"C#"', "c#"), ("\u201cA\u201d", "a"), ("\u00bd", "1/2"), ("1990\u20131995", "1990-1995"), ("Yes!", "yes")),
    *(
        ("100%.", "100%"),
        ("C++.", "C++"),
        ("O(n).", "O(n)"),
        ("Foo (bar).", "foo (bar)"),
        ('"Foo".', "Foo"),
        ("5\u00b0.", "5\u00b0"),
    ),
]


@pytest.mark.parametrize(("one", "other"), APART)
def test_the_exact_scorer_tells_signs_points_units_and_lone_articles_apart(one: str, other: str):
    assert (same(one, [other]), same(other, [one]), same(one, [one])) == (0, 0, 1)


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_the_exact_scorer_takes_other_ways_to_write_the_same_for_the_same(one: str, other: str):
    assert (same(one, ["x", other]), same(other, [one])) == (1, 1)


def test_the_exact_scorer_in_place_of_squads():
    golds = [["-5"], ["The The"], ["C#"]]
    assert score_answers("5; the; C", golds).em == [1.0, 1.0, 1.0]
    assert score_answers("5; the; C", golds, scorer=same).em == [0.0, 0.0, 0.0]
    assert score_answers("-5; the the; c#", golds, scorer=same).em == [1.0, 1.0, 1.0]


def failing(prediction: str, golds: Sequence[str]) -> int:
    raise KeyError("Oslo")


@pytest.mark.parametrize(
    ("scorer", "why"),
    [
        (failing, "the scorer 'failing' must return 0 or 1; for the answer 'Paris' it gave KeyError: 'Oslo'"),
        (lambda prediction, golds: None, "ValueError: None, not a finite number"),
        (lambda prediction, golds: "yes", "ValueError: 'yes', not a finite number"),
        (lambda prediction, golds: 2, "ValueError: 2, not 0 or 1"),
    ],
)
def test_a_scorer_that_fails_or_gives_neither_0_nor_1_is_named_with_the_answer(scorer: Any, why: str):
    with pytest.raises(UserError, match=re.escape(why)):
        score_answers("Paris", [["Paris"]], scorer=scorer)


def test_what_a_scorer_returns_may_be_of_another_library():
    right: Any = np.bool_(True)
    assert score_answers("Paris; ", [["Paris"]] * 2, scorer=lambda prediction, golds: right).em == [1.0, 0.0]


@given(st.text(max_size=20))
def test_an_exact_text_is_the_same_when_it_is_read_again(text: str):
    assert same(text, [text]) == bool(exactly(text))


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
        ("Q1: Paris\nQ2: 1901\n**Q3**: Oslo", ["Paris", "1901", "Oslo"]),
        ("Final answer: Q1\uff1a Paris; Q3 Oslo", ["Paris", "", "Oslo"]),
        ("Q1 Paris; a city; Q2 1901", ["Paris", "1901", ""]),
        ("Q1 Paris; a city; Oslo", ["Paris", "a city", "Oslo"]),
        ("Q1 - Paris; Q2- 1901; Q3-Oslo", ["Paris", "1901", "Oslo"]),
        ("Q1 \u2013 Paris; Q2 \u2014 1901", ["Paris", "1901", ""]),
        ("| Q1 | Paris |\n|---|---|\n| Q2 | 1901 |", ["Paris", "1901", ""]),
        ("Q1 -5; Q2-5; Q3 -x", ["-5", "-5", "-x"]),
        ("Q1 \u20135; Q2 - 5", ["\u20135", "5", ""]),
        ("Q1 -\nParis\nQ2 \u2013\n1901", ["Paris", "1901", ""]),
        ("Q1\uff1a\u5317\u4eac\uff1bQ2\uff1a1901\u061b Q3 Oslo", ["\u5317\u4eac", "1901", "Oslo"]),
    ],
)
def test_answers_go_to_their_label_or_else_to_their_position(answer: str, pieces: list[str]):
    assert split_answers(answer, (1, 2, 3)) == pieces


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("Q1 Moru Kest; Q2 14 March", "Q1 Moru Kest; Q2 14 March"),
        ("Moru Kest", "Moru Kest"),
        ("Here you are:\n\n**Q1**: Moru Kest\n- Q2: 14 March;\n\nAnything else?", "Q1: Moru Kest; Q2: 14 March"),
        ("<think>\nQ1 may be Kest\n</think>\nQ1 Moru Kest", "Q1 Moru Kest"),
        ("> Q10. a; Q11 b\nQuestions are hard", "Q10. a; Q11 b"),
        ("Q1 \u2013 Moru Kest; Q2 \u2014 14 March", "Q1 \u2013 Moru Kest; Q2 \u2014 14 March"),
        ("Q1 \u20135", "Q1 \u20135"),
        ("\u2022 Q1: a\n\u2022 Q2: b", "Q1: a; Q2: b"),
        ("1. Q1: a\n2) **Q2**: b", "Q1: a; Q2: b"),
        ("Final answer: Q1 a; Q2 b", "Q1 a; Q2 b"),
        ("`Q1 a; Q2 b`", "Q1 a; Q2 b"),
        ("They are <answer>Q1 a; Q2 b</answer>", "Q1 a; Q2 b"),
        ("| | answer |\n|---|---|\n| Q1 | a |\n| Q2 | b |", "Q1 | a; Q2 | b"),
        ("### Q1:\n\na\n\n### Q2\nb\n\nAnything else?", "Q1: a; Q2 b"),
        ("Q1 and Q2 are done.\nQ1: a\nQ2: b", "Q1: a; Q2: b"),
        ("I read all; here they are.\n1. Q1: a\n2. Q2: b", "Q1: a; Q2: b"),
        ("- Q1: C#\n* Q2: A-\n*Q3: b*", "Q1: C#; Q2: A-; Q3: b"),
        ("Q1\uff1aOslo\nQ2\uff1a\nParis", "Q1\uff1aOslo; Q2\uff1a Paris"),
        # what more than one reading has stays as it was
        ("1. Q1: search for Kest\nQ1 a; Q2 b", "Q1 a; Q2 b; Q1: search for Kest"),
        ("a; b\n1. Q1: found at once", "a; b\n1. Q1: found at once"),
        ("| Q1 | Who? | a |", "| Q1 | Who? | a |"),
        ("Q1:\nI looked for it\nand found a", "Q1:"),
    ],
)
def test_answers_are_found_in_lines_too(said: str, answer: str):
    assert labelled(said) == answer


def test_scores_by_position_missing_answers_zero_surplus_ignored():
    golds = [["Paris"], ["1900"], ["Oslo", "Christiania"]]
    assert score_answers("Paris; 1901", golds).em == [1.0, 0.0, 0.0]
    assert score_answers("Q3 Christiania; Q1 the Paris", golds).em == [1.0, 0.0, 1.0]
    assert score_answers("Paris; 1900; Oslo; more", golds).em == [1.0, 1.0, 1.0]
    assert score_answers("in Paris, France", golds).f1 == [0.5, 0.0, 0.0]
    assert score_answers("1900; Paris", golds).em == [0.0, 0.0, 0.0]


def test_a_single_answer_may_hold_a_semicolon_or_begin_like_a_label():
    assert score_answers("Q1 Hamlet; Macbeth", [["Hamlet; Macbeth"]]).em == [1.0]
    assert score_answers("It was in\nQ3 2021", [["It was in Q3 2021"]]).em == [1.0]
    assert score_answers("- Q1: Oslo\nAnything else?", [["Oslo"]]).em == [1.0]
    assert score_answers("Q3 2021", [["Q3 2021"]]).em == score_answers("Q1 Q3 2021", [["Q3 2021"]]).em == [1.0]
    assert score_answers("Q1 Hamlet; Macbeth", [["Hamlet"]]).em == [1.0], "the first of two"
    assert score_answers("Q3 Rome; Q1 Oslo", [["Oslo"], ["Rome"]]).em == [1.0, 0.0]


def test_an_answer_is_not_cut_where_a_gold_one_has_a_semicolon():
    golds = [["Q", "AC;DC"], ["Paris"], ["Steins;Gate"]]
    assert split_answers("Q1 AC;DC ; Q2 Paris; Q3 Steins;Gate", (1, 2, 3), golds) == ["AC;DC", "Paris", "Steins;Gate"]
    assert score_answers("Q3: Steins;Gate\nQ1: AC;DC\nQ2: Paris", golds).em == [1.0, 1.0, 1.0]
    assert score_answers("Q1 AC;DC; Q1 AC;DB; Q2 Paris; it is", golds).em == [1.0, 1.0, 0.0]
    assert score_answers("Q1 A\uff1bB; Q2 Paris", [["A\uff1bB"], ["Paris"]]).em == [1.0, 1.0]


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


# The rules of SQuAD's evaluate-v1.1.py (Rajpurkar et al. 2016), read again and written a second time without regular
# expressions or translation tables: letters are filtered one by one, articles are whole runs of word characters, common
# tokens are counted off one by one, and F1 is an exact fraction. Whoever shares a mistake with it made it twice.

CASES = 5_000
ASCII_PUNCTUATION = {chr(i) for i in (*range(33, 48), *range(58, 65), *range(91, 97), *range(123, 127))}
ARTICLES = ("a", "an", "the")
WORDS = ("the", "The", "THE", "a", "A", "an", "An", "theatre", "Ana", "a1", "Paris", "paris", "U.S.", "us", "1901")
ODD = (
    *("the-a", "a.n", "t'he", "_the_", "the—a", "«an»", "a\u0301", "e\u0301", "\u00e9", "ÀÉ", "ß", "ẞ", "İ", "\u0131"),
    *("\u017f", "Ⅷ", "²", "½", "٣", "三", "東京", "the東京", "ﬁ", "\u0345", "👍", "👩\u200d🚀", "…", "!!!", "—", "$5"),
)
BLANKS = (" ", "  ", "\t", "\n", "\r\n", "\x0b", "\x1c", "\x85", "\u00a0", "\u2003", "\u2028", "\u3000", "\u200b", "")


def tokens(text: str) -> list[str]:
    """Lower case, then no ASCII punctuation, then articles to blanks, then cut at white space: in this order."""
    kept = "".join(c for c in text.lower() if c not in ASCII_PUNCTUATION)
    runs = ("".join(run) for _, run in groupby(kept, key=str.isalnum))  # an article stands between word borders
    return "".join(" " if run in ARTICLES else run for run in runs).split()


def overlap(one: Sequence[str], other: Sequence[str]) -> int:
    left, common = Counter(other), 0
    for token in one:
        if left[token]:
            left[token] -= 1
            common += 1
    return common


def squad_f1(prediction: str, golds: Sequence[str]) -> Fraction:
    predicted, best = tokens(prediction), Fraction(0)
    for gold in golds:
        wanted = tokens(gold)
        if common := overlap(predicted, wanted):
            # 2 P R / (P + R) with P = common / predicted and R = common / wanted
            best = max(best, Fraction(2 * common, len(predicted) + len(wanted)))
    return best


def squad_em(prediction: str, golds: Sequence[str]) -> bool:
    return " ".join(tokens(prediction)) in {" ".join(tokens(gold)) for gold in golds}


def random_text(rng: random.Random) -> str:
    """Repeated words, articles and punctuation, odd characters, or whatever Unicode has (no half surrogates)."""
    if rng.random() < 0.15:
        return "".join(chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)))) for _ in range(6))
    pool = WORDS if rng.random() < 0.6 else WORDS + ODD
    parts: list[str] = []
    for _ in range(rng.randint(0, 5)):
        parts += [rng.choice(pool), rng.choice(BLANKS) if rng.random() < 0.3 else " "]
    return "".join(parts)


def case(rng: random.Random) -> tuple[str, list[str]]:
    """A prediction and up to three golds, of which one is often made of the prediction's words."""
    prediction = random_text(rng)
    golds = [random_text(rng) for _ in range(rng.randint(0, 3))]
    if golds and rng.random() < 0.7:
        words = prediction.split(" ")
        if rng.random() < 0.6:
            rng.shuffle(words)
            words = [*words[: rng.randint(1, len(words))], rng.choice(WORDS)]
        golds[rng.randrange(len(golds))] = (
            f"{rng.choice(('the ', '', 'A '))}{' '.join(words).upper()}{rng.choice('.!- ')}"
        )
    return prediction, golds


def test_both_scorers_agree_on_every_case():
    rng = random.Random(2016)
    matches = partial = empty = 0
    for _ in range(CASES):
        prediction, golds = case(rng)
        expected = squad_f1(prediction, golds)
        assert exact_match(prediction, golds) == squad_em(prediction, golds), ascii((prediction, golds))
        assert abs(f1(prediction, golds) - expected) < 1e-12, ascii((prediction, golds))
        matches += squad_em(prediction, golds)
        partial += 0 < expected < 1
        empty += not tokens(prediction)
    # the cases are of every kind, so that agreement says something
    assert min(matches, partial, CASES - matches - partial) > CASES // 10 and empty > CASES // 40


@pytest.mark.parametrize(
    ("answer", "golds"),
    [
        ("Q1:\nParis; Q2: Rome", [["Paris"], ["Rome"]]),
        ("Q1: Paris; Q2:\nRome", [["Paris"], ["Rome"]]),
        ("Paris;\nQ2: Rome", [["Paris"], ["Rome"]]),
        ("Q1 Paris;\nRome;\nBonn", [["Paris"], ["Rome"], ["Bonn"]]),
        ("Q1: New York\nCity; Q2: Rome", [["New York City"], ["Rome"]]),
        ("Q1 x**2; Q2 **kwargs", [["x**2"], ["**kwargs"]]),
        ("Q1 John Smith; Rome", [["Smith; John", "John Smith"], ["Rome"]]),
        ("Q1 Smith; John; Q2 Rome", [["Smith; John"], ["Rome"]]),
        ("Q1: a;\nb", [["a; b"]]),
        ("**Q1**: Paris\n- Q2: Rome\n\nI hope it helps.", [["Paris"], ["Rome"]]),
        ("<answer>Paris</answer>", [["Paris"]]),
    ],
)
def test_lines_between_labels_cost_no_right_answer(answer: str, golds: list[list[str]]):
    assert score_answers(answer, golds, scorer=SCORERS["exact"]).em == [1.0] * len(golds)
