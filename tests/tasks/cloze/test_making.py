"""Clozes: what is blanked, what makes a question of it, and what is asked twice."""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from attacks import attack
from cloze_documents import corpus
from hypothesis import given, settings
from hypothesis import strategies as st

from mem1.errors import UserError
from mem1.protocol import strip_markup
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.scoring import exact_match, normalize
from mem1.tasks.cloze import BLANK, Cloze, ClozeOptions
from mem1.tasks.cloze.making import (
    COUNTS,
    LONGEST,
    NearDuplicates,
    ambiguous,
    draw_clozes,
    make_clozes,
    of_passage,
    refused,
    spans,
    window,
    words_apart,
)
from mem1.tasks.cloze.questions import aliases, read_ranked, write_clozes
from mem1.tasks.compose import PARTS, part_of
from mem1.tasks.datasets import read_questions

MANY = settings(max_examples=60, deadline=None)
ALVEX = Passage(
    "p0",
    "Alvex",
    "The small company was founded near the old harbour by Mira Toll in 1901 and it made clocks there for many years. "
    "Its first shop, which everybody in Upper Bergen knew for its tall green windows, was closed again in 1923.",
)
TEXTS = st.lists(
    st.sampled_from(["Mira", "Toll", "Bergen's", "(Oslo)", "the", "The", "in", "1901,", "7", "D.", "grew.", '"A', "x"]),
    max_size=60,
).map(" ".join)


def answers(text: str) -> list[str]:
    return [span.answer for span in spans(words_apart(text))]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it was founded by Mira Toll in 1901.", ["Mira Toll", "1901"]),
        ("it was The Bob Hope Show on air", ["Bob Hope Show"]),
        ("Despite this, Oslo grew. Bergen shrank", ["Oslo"]),
        ("Mira Toll came", ["Mira Toll"]),
        (
            "with Franklin D. Roosevelt, Jean-Luc Ås and O'Neill's dog",
            ["Franklin D. Roosevelt", "Jean-Luc Ås", "O'Neill"],
        ),
        ('born ("Toll"), 1,200 of 7 in 19th', ["Toll", "1,200"]),
        ("from One Two Three Four Five came", []),
        ("in Москва and in Αθήνα", ["Москва", "Αθήνα"]),
        ("东京是日本的首都", []),
        ("then I and J. went", []),
        ("see WW2 or B2B", []),
    ],
)
def test_names_of_up_to_four_words_and_numbers_are_found(text: str, found: list[str]):
    assert answers(text) == found


@MANY
@given(TEXTS)
def test_spans_stand_in_the_text_where_they_say_and_never_meet(text: str):
    words = words_apart(text)
    assert [f"{w.before}{w.core}{w.after}" for w in words] == text.split()
    taken: set[int] = set()
    for span in spans(words):
        place = set(range(span.start, span.stop))
        assert 1 <= len(place) <= LONGEST and not place & taken
        taken |= place
        assert span.answer in " ".join(text.split()[span.start : span.stop])
        assert span.answer[0].isupper() or span.answer[0].isdigit()


@MANY
@given(TEXTS, st.integers(0, 9), st.integers(0, 9))
def test_a_window_with_its_answer_put_back_is_a_piece_of_the_text(text: str, left: int, right: int):
    words = words_apart(text)
    for span in spans(words):
        shown = window(words, span, left=left, right=right)
        assert shown.count(BLANK) == 1
        assert shown.replace(BLANK, span.answer) in " ".join(text.split())
        around = len(shown.split()) - 1
        assert around == min(left + right, len(words) - (span.stop - span.start))


def test_a_side_with_too_few_words_is_made_up_for_by_the_other():
    words = words_apart("it was Toll who came to the old town")
    (span,) = spans(words)
    assert window(words, span, left=4, right=2) == f"it was {BLANK} who came to the"
    assert window(words, span, left=2, right=9) == f"it was {BLANK} who came to the old town"


@pytest.mark.parametrize(
    ("text", "answer", "title", "reason"),
    [
        (f"it was made by {BLANK} in 1901", "Mira Toll", "Alvex", None),
        (f"it was made by {BLANK} in 1901", "Mira Toll", "Mira Toll (maker)", "title"),
        (f"it was made by {BLANK} in 1901", "Mira Toll", "The Mira", "title"),
        (f"it was made by {BLANK} with Ada Toll", "Mira Toll", "Alvex", "repeated"),
        (f"in 1901 by {BLANK}, who in", "1,901", "Alvex", "repeated"),
        (f"by {BLANK} in 1901 it was", "Mira Toll", "Alvex", "short"),
        (f"made by {BLANK}", "Mira Toll", "Alvex", "short"),
        (f"it was | made by {BLANK} in", "Mira Toll", "Alvex", "odd"),
        (f"it was Q2 made by {BLANK} in", "Mira Toll", "Alvex", "odd"),
        (f"write ____ on it by {BLANK} in", "Mira Toll", "Alvex", "odd"),
        (f"it was {'x' * 101} by {BLANK} in", "Mira Toll", "Alvex", "odd"),
    ],
)
def test_what_makes_no_question_is_refused_with_its_reason(text: str, answer: str, title: str, reason: str | None):
    assert refused(text, answer, title, least=4) == reason


@MANY
@given(TEXTS, st.sampled_from(["", "Mira", "Toll Bergen", "1901"]))
def test_no_question_holds_its_answer_and_no_title_says_it(text: str, title: str):
    counts: Counter[str] = Counter()
    options = ClozeOptions(left=4, right=3)
    made = of_passage(Passage("p", title, f"x {text}"), options, counts)
    assert len(made) <= options.per_passage
    assert counts["candidates"] == len(made) + sum(counts[reason] for reason in COUNTS)
    assert len({normalize(cloze.answer) for cloze in made}) == len(made)
    for cloze in made:
        said = set(normalize(cloze.answer).split())
        assert not said & set(normalize(cloze.text).split())
        assert not said <= set(normalize(title).split())


def test_spellings_of_an_answer_are_right_and_other_answers_are_not():
    assert aliases("Jean-Luc Müller") == ("Jean-Luc Müller", "Jean Luc Müller", "Jean-Luc Muller", "Jean Luc Muller")
    assert aliases("1,200") == ("1,200",)
    for said in ("jean luc muller", "Jean-Luc Müller."):
        assert exact_match(said, aliases("Jean-Luc Müller"))
    assert not exact_match("Luc Müller", aliases("Jean-Luc Müller"))


def test_nearly_the_same_words_with_the_same_answer_are_seen_once():
    known = NearDuplicates()
    text = f"the company was founded in 1901 by {BLANK} of Bergen and grew"
    assert not known.seen("Mira Toll", text)
    assert known.seen("mira toll", f"the company was founded in 1901 by {BLANK} of Bergen and shrank")
    assert not known.seen("Ada Brand", text), "another answer is another question"
    assert not known.seen("Mira Toll", f"in Oslo nobody had heard of {BLANK} before she opened her second shop")


def test_boilerplate_of_ten_thousand_passages_takes_no_quadratic_time():
    known, start = NearDuplicates(), time.process_time()
    seen = [
        known.seen("Mira Toll", f"page {i} of the report that was written by {BLANK} for all") for i in range(10_000)
    ]
    assert sum(seen) > 9000
    assert time.process_time() - start < 10


def test_a_text_that_stands_for_two_answers_is_ambiguous():
    def cloze(text: str, answer: str) -> Cloze:
        return Cloze(passage_id="p", title="", start=1, text=text, answer=answer, part="train")

    twice = [cloze(f"he was born in {BLANK} in May", "Oslo"), cloze(f"He was born in {BLANK} in May.", "Bergen")]
    assert ambiguous([*twice, cloze(f"she was born in {BLANK} in May", "Oslo")]) == {normalize(twice[0].text)}
    passages = [
        Passage("a", "A", "as is said in every book he was born in the town of Oslo in the old quarter there"),
        Passage("b", "B", "as is said in every book he was born in the town of Bergen in the old quarter there"),
    ]
    counts: Counter[str] = Counter()
    assert draw_clozes(passages, ClozeOptions(), counts) == []
    assert counts["ambiguous"] == 2


def test_every_question_finds_its_passage_and_nothing_depends_on_the_order():
    passages = corpus(60)
    made = make_clozes(passages, BM25.build(passages).search, ClozeOptions(development=0.2, test=0.2))
    assert made.counts["passages"] == 60
    assert made.counts["candidates"] == sum(made.counts[name] for name in COUNTS)
    assert len(made.clozes) == made.counts["questions"] > 60
    bm25 = BM25.build(passages)
    for cloze, result in zip(made.clozes, bm25.search([c.text for c in made.clozes], 2), strict=True):
        assert [passage.id for passage, _ in result].index(cloze.passage_id) + 1 == cloze.rank
    assert {cloze.part for cloze in made.clozes} == set(PARTS)
    part = {cloze.passage_id: cloze.part for cloze in made.clozes}
    assert all(part[cloze.passage_id] == cloze.part for cloze in made.clozes)
    turned = make_clozes(passages[::-1], BM25.build(passages[::-1]).search, ClozeOptions(development=0.2, test=0.2))
    assert {(c.passage_id, c.start, c.text, c.part) for c in turned.clozes} == {
        (c.passage_id, c.start, c.text, c.part) for c in made.clozes
    }


def test_a_question_whose_passage_is_not_found_is_left_out():
    passages = corpus(20)
    elsewhere = [(Passage("other", "", "text"), 1.0)]
    with pytest.raises(UserError, match="no question could be made from 20 passages"):
        make_clozes(passages, lambda queries, k: [elsewhere] * len(queries), ClozeOptions())
    with pytest.raises(UserError, match="in a script with capital letters"):
        make_clozes([Passage("p", "", "nothing to see here")], BM25.build(passages).search, ClozeOptions())


def test_another_seed_draws_other_questions_and_the_same_seed_the_same():
    drawn = [
        {(c.passage_id, c.start) for c in draw_clozes(corpus(20), ClozeOptions(per_passage=1, seed=seed), Counter())}
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(drawn[0]) == 20


def test_the_part_of_a_passage_is_that_of_its_text():
    passages = corpus(400)
    parts = Counter(part_of(p.text, development=0.1, test=0.2) for p in passages)
    assert 10 < parts["development"] < 80 and 40 < parts["test"] < 140
    for passage in passages[:50]:
        copy = Passage("other", "other", f"{passage.text.upper()} ")
        assert part_of(copy.text, development=0.1, test=0.2) == part_of(passage.text, development=0.1, test=0.2)
        if part_of(passage.text, development=0.1, test=0.2) != "train":
            assert part_of(passage.text, development=0.3, test=0.4) == part_of(passage.text, development=0.1, test=0.2)


def test_questions_survive_being_written_and_are_questions_of_our_own_form(tmp_path: Path):
    passages = corpus(20)
    made = make_clozes(passages, BM25.build(passages).search, ClozeOptions()).clozes
    write_clozes(tmp_path / "train.jsonl.gz", made)
    read = read_ranked(tmp_path / "train.jsonl.gz")
    assert [(r.question, r.rank, r.passage) for r in read] == [(c.question(), c.rank, c.passage_id) for c in made]
    assert read_questions(tmp_path / "train.jsonl.gz") == [c.question() for c in made]
    (tmp_path / "bad.jsonl").write_text('{"id": "a", "text": "b", "answers": ["c"]}')
    with pytest.raises(UserError, match=r"bad\.jsonl:1: question 'a' has no rank"):
        read_ranked(tmp_path / "bad.jsonl")


def test_hostile_documents_forge_no_tag_and_take_no_long_time():
    rng, counts, start = Random(0), Counter(), time.process_time()
    for number in range(300):
        text = " ".join(f"{attack(rng)} and then Mira Toll came in 19{i}5 to" for i in range(4))
        for cloze in of_passage(Passage(f"p{number}", "", text), ClozeOptions(), counts):
            assert strip_markup(cloze.text) == cloze.text
            assert not re.search(r"[<>|=]", cloze.text + cloze.answer)
    of_passage(Passage("p", "", "!" * 100_000 + "a" + " Mira" * 10_000), ClozeOptions(), counts)
    assert counts["candidates"] > 300
    assert time.process_time() - start < 20


@pytest.mark.parametrize("shares", [{"development": 0.6, "test": 0.4}, {"test": 1.0}, {"left": 2}, {"within": 0}])
def test_options_that_leave_nothing_are_refused(shares: dict[str, float]):
    with pytest.raises(ValueError, match=r"below 1|less than 1|greater than"):
        ClozeOptions(**shares)  # type: ignore[arg-type]
