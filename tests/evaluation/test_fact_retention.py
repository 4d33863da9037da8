"""How facts get lost: what has been shown, what the state still holds, and what is a fact at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mem1.evaluation.fact_retention import facts_of, fidelity, memory
from mem1.records import Ended, Question, Task, Trajectory, Turn

QUESTIONS = (
    Question(id="1", text="Who founded Alvex?", answers=("Mira Toll", "M. Toll")),
    Question(id="2", text="Who governs Bergen?", answers=("Sela Prand",)),
)
TASK = Task(id="t", questions=QUESTIONS, prompt="Q1 Who founded Alvex? Q2 Who governs Bergen?", turn_limit=5)
FOUNDED = "[HINT] You have 3 turns left. [/HINT] Alvex was founded by Mira Toll."
GOVERNED = "[HINT] You have 2 turns left. [/HINT] The mayor of Bergen is Sela Prand."
NOTHING = "[HINT] You have 1 turn left. You must answer now. [/HINT] No passage was found."


def turn(state: str, result: str = "", *, answer: str = "", action: str = "search") -> Turn:
    kind, content = ("answer", answer) if answer else (action, "words")
    return Turn(context_ids=(1,), completion_ids=(2,), state=state, action=kind, content=content, observation=result)


def attempt(*turns: Turn, task: Task = TASK) -> Trajectory:
    return Trajectory(turns=turns, task=task)


def one_question(answer: str, *titles: str, text: str = "Who?") -> Task:
    question = Question(id="q", text=text, answers=(answer,), titles=titles)
    return Task(id="t", questions=(question,), prompt=f"Q1 {text}", turn_limit=5)


KEEPS = attempt(
    turn("now Q1", FOUNDED), turn("Q1 M. Toll now Q2", GOVERNED), turn("Q1 mira toll, Q2 Sela Prand", answer="Q1 ...")
)
FORGETS = attempt(
    turn("now Q1", FOUNDED), turn("Q1 Mira Toll now Q2", GOVERNED), turn("Q2 Sela Prand", answer="Q2 Sela Prand")
)
NEVER_NOTES = attempt(turn("now Q1", FOUNDED), turn("now Q2", GOVERNED), turn("done", answer="nobody"))


def test_a_fact_counts_from_the_turn_after_the_one_that_showed_it():
    assert memory(KEEPS).by_turn == ((0, 0), (1, 1), (2, 2))
    assert memory(FORGETS).by_turn == ((0, 0), (1, 1), (1, 2))
    assert memory(NEVER_NOTES).by_turn == ((0, 0), (0, 1), (0, 2))


def test_a_fact_is_found_between_letters_of_a_script_without_blanks():
    shown, state = "\u5317\u4eac\u662f\u4e2d\u56fd\u7684\u9996\u90fd\u3002", "\u7b2c\u4e00\u9898\u662f\u5317\u4eac"
    capital = attempt(turn("", shown), turn(state), task=one_question("\u5317\u4eac"))
    assert memory(capital).by_turn == (None, (1, 1))


def test_lost_is_what_was_noted_once_and_is_gone_not_what_was_never_noted():
    assert [memory(t).lost for t in (KEEPS, FORGETS, NEVER_NOTES)] == [0, 1, 0]


def test_a_fact_that_comes_back_is_not_lost():
    back = attempt(turn("", FOUNDED), turn("Mira Toll", NOTHING), turn("hm", NOTHING), turn("Mira Toll", NOTHING))
    assert memory(back).by_turn == (None, (1, 1), (0, 1), (1, 1))
    assert memory(back).lost == 0
    assert memory(replace(back, turns=back.turns[:3])).lost == 1


def test_shares_are_over_the_facts_of_all_attempts():
    measured = fidelity([KEEPS, FORGETS, NEVER_NOTES])
    assert measured.last == (2 + 1 + 0) / 6
    assert measured.by_turn == (None, 2 / 3, 3 / 6)
    assert measured.lost == 1 / 3


def test_attempts_of_different_lengths_are_counted_as_far_as_they_go():
    short = attempt(turn("", FOUNDED), turn("nobody", answer="nobody"))
    assert fidelity([KEEPS, short]).by_turn == (None, 1 / 2, 2 / 2)
    assert fidelity([attempt()]).by_turn == () and fidelity([attempt()]).last is None


def test_a_fact_that_moves_from_the_state_to_the_answer_is_kept():
    moved = attempt(turn("", FOUNDED), turn("done", answer="Q1 Mira Toll"))
    assert memory(moved).last == (1, 1)
    searched = attempt(turn("", FOUNDED), turn("done"))
    assert memory(searched).last == (0, 1)


def test_a_turn_that_wrote_nothing_readable_is_no_memory():
    broken = attempt(turn("", FOUNDED), turn("Q1 Mira Toll", GOVERNED), turn("", action="malformed"))
    assert memory(broken).by_turn == (None, (1, 1), None)
    assert memory(broken).last == (1, 1)
    assert memory(replace(broken, turns=(), ended=Ended.OUT_OF_TOKENS)).last == (0, 0)


def test_an_entity_on_the_way_is_needed_until_the_answer_is_shown():
    task = one_question("Sela Prand", "Alvex", "Bergen", text="Who is the mayor of the seat of Alvex?")
    answer, seat = facts_of(task)
    assert (answer.aliases, answer.beside, answer.until) == ((" sela prand ",), (" alvex ", " bergen "), None)
    assert seat.until is not None and (seat.aliases, seat.until.aliases) == ((" bergen ",), (" sela prand ",))
    walked = attempt(turn("", "Alvex sits in Bergen."), turn("Bergen", GOVERNED), turn("Sela Prand"), task=task)
    assert memory(walked).by_turn == (None, (1, 1), (1, 1))
    dropped = attempt(turn("", "Alvex sits in Bergen."), turn("hm", NOTHING), turn("Bergen", NOTHING), task=task)
    assert memory(dropped).by_turn == (None, (0, 1), (1, 1))


def test_a_name_that_stands_in_a_result_about_something_else_is_not_shown():
    task = one_question("Mira Toll", "Alvex", text="Who founded it?")
    elsewhere = attempt(turn("", "Mira Toll likes Berl."), turn("hm", FOUNDED), turn("Mira Toll"), task=task)
    assert memory(elsewhere).by_turn == (None, (0, 0), (1, 1))
    by_another_path = one_question("Sela Prand", "Alvex", "Bergen", text="Who is the mayor of the seat?")
    somewhere = attempt(turn("", "Bergen is a city."), turn("hm"), task=by_another_path)
    assert memory(somewhere).last == (0, 0)


def test_a_title_is_known_with_and_without_what_tells_it_from_others():
    assert facts_of(one_question("Oslo", "Green (album)"))[1].aliases == (" green album ", " green ")


@pytest.mark.parametrize(
    ("task", "why"),
    [
        (one_question("Alvex", text="Which is older, Alvex or Berl?"), "the prompt names it"),
        (one_question("Yes"), "any text may hold a yes"),
        (one_question("3"), "results are numbered"),
        (one_question("The"), "nothing is left of it"),
    ],
)
def test_what_a_text_may_hold_by_accident_is_no_fact(task: Task, why: str):
    assert facts_of(task) == [], why


def test_the_same_answer_twice_is_one_fact_and_an_answer_on_the_way_stays_an_answer():
    questions = (
        Question(id="1", text="Who?", answers=("Oslo",), titles=("Bergen",)),
        Question(id="2", text="And?", answers=("Oslo",), titles=("Alvex",)),
        Question(id="3", text="Where?", answers=("Bergen",)),
    )
    oslo, bergen, alvex = facts_of(Task(id="t", questions=questions, prompt="Q1 Who? Q2 And?", turn_limit=3))
    assert (oslo.aliases, oslo.beside, oslo.until) == ((" oslo ",), (" alvex ", " bergen "), None)
    assert (bergen.aliases, bergen.beside, bergen.until) == ((" bergen ",), (), None)
    assert alvex.aliases == (" alvex ",) and alvex.until is not None


def test_names_are_whole_words_and_the_hint_shows_nothing():
    task = one_question("Ana")
    assert memory(attempt(turn("", "Banana and Anaheim"), turn("Banana"), task=task)).last == (0, 0)
    left = one_question("turns left")
    assert memory(attempt(turn("", FOUNDED), turn("turns left"), task=left)).last == (0, 0)
    assert memory(attempt(turn("", "[other] turns left"), turn("turns left"), task=left)).last == (1, 1)


def test_facts_need_the_task():
    with pytest.raises(ValueError, match="no task"):
        memory(Trajectory(turns=()))


def test_a_fact_says_which_question_it_belongs_to_in_the_words_of_the_task():
    first = Question(id="1", text="Who?", answers=("Sela Prand", "S. Prand"), titles=("Bergen (city)",))
    second = replace(first, id="2", titles=("Oslo",))
    found = facts_of(Task(id="t", questions=(first, second), prompt="Q1 Who? Q2 Who?", turn_limit=5))
    assert [(fact.question, fact.text) for fact in found] == [
        (1, "Sela Prand / S. Prand"),
        (1, "Bergen (city)"),
        (2, "Oslo"),
    ]
