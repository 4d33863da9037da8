"""Memory by edits: notes that stay as they were sampled, by literal tokens and by whole attempts."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache

import pytest
from answer_stages import answer_stages
from tag_sets import PAPER_NOTES, PAPER_SUMMARY
from worlds import replay, rollout, shelf, task

from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.errors import UserError
from mem1.evaluation.fact_retention import memory
from mem1.evaluation.tokens import peak_tokens, state_tokens
from mem1.memory import Dropout, MemoryPolicy, Notebook, Notes, answer_from, memory_policy, next_context, notebook
from mem1.memory.notes import memory_spans, read_note, standing
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER, PUBLISHED, SUMMARY, Tags, observation, parse
from mem1.records import Ended, Trajectory, Turn, trajectory_from_json, trajectory_to_json
from mem1.tasks.atlas import Expert, Laziness
from mem1.tasks.atlas.world import names
from mem1.tasks.prompts import TurnLimit
from mem1.training.checks import reencoded_share

PROMPT = (100, 101)
REWRITE = (900,)
"""The opening tag of a summary."""


def turn(t: int, *notes: str) -> Turn:
    """Completion: state t0 t1, two tokens of each note (t2 t3, t4 t5, ...), action t8; result t9."""
    spans = {"state": (0, 2), "action": (2 + 2 * len(notes), 3 + 2 * len(notes))}
    spans |= {f"note {i + 1}" if i else "note": (2 + 2 * i, 4 + 2 * i) for i in range(len(notes))}
    return Turn(
        context_ids=PROMPT,
        completion_ids=(*(10 * t + i for i in range(2 + 2 * len(notes))), 10 * t + 8),
        observation_ids=(10 * t + 9,),
        notes=notes,
        completion_spans=spans,
    )


def rewrite(text: str, *ids: int) -> Turn:
    """A summary whose text has the tokens `ids`; 999 closes it."""
    return Turn(
        context_ids=(*PROMPT, *REWRITE),
        completion_ids=(*ids, 999),
        action=SUMMARY,
        content=text,
        prefilled=True,
        context_spans={"prompt": (0, 2)},
        completion_spans={"state_text": (0, len(ids)), "action": (0, len(ids) + 1)},
    )


def context(*turns: Turn, policy: MemoryPolicy | None = None) -> list[int]:
    return list(next_context(policy or Notes(), PROMPT, turns).ids[2:])


def test_older_turns_leave_only_their_notes_and_the_last_stays_whole():
    assert context(turn(1, "Q1 a")) == [10, 11, 12, 13, 18, 19]
    assert context(turn(1, "Q1 a"), turn(2)) == [12, 13, 20, 21, 28, 29]
    third = turn(3, "Q3 c", "k: v")
    assert context(turn(1, "Q1 a"), turn(2, "Q2 b"), third) == [12, 13, 22, 23, 30, 31, 32, 33, 34, 35, 38, 39]
    assert context(turn(1, "Q1 a"), third, turn(4)) == [12, 13, 32, 33, 34, 35, 40, 41, 48, 49]


def test_a_note_with_the_key_of_an_earlier_one_replaces_it():
    turns = turn(1, "Q1 a"), turn(2, "Q1: b"), turn(3)
    assert context(*turns) == [22, 23, 30, 31, 38, 39]
    assert [note.value for note in notebook(turns)] == ["b"]


def test_a_key_without_a_value_removes_a_note_and_leaves_nothing_itself():
    turns = turn(1, "Harbour: old", "loose"), turn(2, "harbour:"), turn(3)
    assert context(*turns) == [14, 15, 30, 31, 38, 39]
    assert [note.text for note in notebook(turns)] == ["loose"]


def test_notes_without_a_key_never_replace_one_another():
    assert context(turn(1, "same", "same"), turn(2)) == [12, 13, 14, 15, 20, 21, 28, 29]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        (" Q3 Oslo ", "Q3", "Oslo"),
        ("Q03: Oslo", "Q3", "Oslo"),
        ("Q3", "Q3", ""),
        ("Q3x is odd", "", "Q3x is odd"),
        ("Mayor of Oslo: Ana", "mayor of oslo", "Ana"),
        ("at 12:30 it opens", "", "at 12:30 it opens"),
        ("k:", "k", ""),
        ("", "", ""),
    ],
)
def test_how_a_note_is_read(text: str, key: str, value: str):
    note = read_note(text)
    assert (note.key, note.value) == (key, value)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("Q3 Oslo\nin Norway", "Q3", "Oslo\nin Norway"),
        ("built: 1901\nof oak", "built", "1901\nof oak"),
        ("k" * 64 + ": v", "k" * 64, "v"),
        ("k" * 65 + ": v", "", "k" * 65 + ": v"),
        ("oak; built: 1901", "", "oak; built: 1901"),
        ("oak\nbuilt: 1901", "", "oak\nbuilt: 1901"),
        ("Q1234 a", "Q1234", "a"),
        ("Q12345 a", "", "Q12345 a"),
        ("Q12: a: b", "Q12", "a: b"),
    ],
)
def test_where_a_key_ends_and_its_value(text: str, key: str, value: str):
    note = read_note(text)
    assert (note.key, note.value, note.text) == (key, value, text)


@pytest.mark.parametrize("text", ["Q1 b\nQ2 c\nharbour: old\nof oak", "Q1 b; Q2 c\n\n harbour: old ;of oak;\n"])
def test_a_rewrite_in_lines_has_as_many_entries_as_one_with_semicolons(text: str):
    turns = turn(1, "Q1 a", "gone"), rewrite(text, 91)
    assert [(note.key, note.value) for note in notebook(turns)] == [
        ("Q1", "b"), ("Q2", "c"), ("harbour", "old"), ("", "of oak")
    ]  # fmt: skip
    later = (*turns, turn(2, "Harbour: new", "Q2:"), turn(3, "Q1 d; e"))
    assert [note.text for note in notebook(later)] == ["of oak", "Harbour: new", "Q1 d; e"]
    assert answer_from("notes", turns) == "Q1 b; Q2 c"
    assert answer_from(" Notes ; Q2 x; Q3 y", turns) == "Q1 b; Q2 x; Q3 y"
    assert [note.text for note in notebook((*later, rewrite("k: v", 91)))] == ["k: v"]


@pytest.mark.parametrize("content", ["my notes; Q1 b", "notes Q1 b", "Q1 notes"])
def test_an_answer_stands_for_the_notes_only_by_that_word_alone(content: str):
    assert answer_from(content, [turn(1, "Q1 a")]) == content


def test_an_answer_from_notes_without_labels_has_them_all():
    assert answer_from("notes", [turn(1, "of oak", "k: v")]) == "of oak; k: v"
    assert answer_from("notes; Q1 a", [turn(1, "of oak", "k: v")]) == "Q1 a"
    assert answer_from("notes; k:", [turn(1, "of oak", "k: v")]) == "of oak"


def test_the_memory_of_a_turn_is_its_state_and_every_note():
    assert memory_spans(turn(1, "a", "b", "c")) == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_the_context_says_where_its_tokens_come_from():
    found = next_context(Notes(), PROMPT, [turn(1, "Q1 a"), turn(2, "Q2 b", "Q3 c")])
    assert found.spans == {
        "prompt": (0, 2), "state": (4, 6), "note": (6, 8), "note 2": (8, 10), "query": (10, 11), "result": (11, 12)
    }  # fmt: skip
    assert found.origins == (
        (1, "note", 2, 4), (2, "state", 4, 6), (2, "note", 6, 8), (2, "note", 8, 10), (2, "query", 10, 11),
        (2, "result", 11, 12),
    )  # fmt: skip


def test_a_limit_requests_a_rewrite_which_then_stands_for_all_notes_before_it():
    policy = Notes(5)
    first, second, third = turn(1, "Q1 a"), turn(2, "Q2 b"), turn(3, "Q3 c")
    assert next_context(policy, PROMPT, [first, second]).requested_action is None  # 4 tokens
    before = next_context(policy, PROMPT, [first, second, third])
    assert (before.requested_action, list(before.ids[2:8])) == (SUMMARY, [12, 13, 22, 23, 30, 31])
    written = rewrite("Q1 a; Q3 c", 91, 92, 93)
    after = next_context(policy, PROMPT, [first, second, third, written])
    assert after.requested_action is None
    assert list(after.ids[2:]) == [900, 91, 92, 93, 999, 30, 31, 32, 33, 38, 39]  # the rewrite, then the last turn
    later = next_context(policy, PROMPT, [first, second, third, written, turn(4, "Q4 d"), turn(5)])
    assert list(later.ids[2:]) == [900, 91, 92, 93, 999, 42, 43, 50, 51, 58, 59]
    added = next_context(policy, PROMPT, [first, second, third, written, turn(4, "Q4 d")])
    assert added.requested_action == SUMMARY  # 5 + 2 tokens


def test_as_many_tokens_as_the_limit_need_no_rewrite():
    turns = turn(1, "Q1 a"), turn(2, "Q2 b"), turn(3, "Q3 c")
    assert next_context(Notes(6), PROMPT, turns).requested_action is None


def test_a_rewrite_is_cut_to_the_limit_and_does_not_request_another():
    long = rewrite("a b c d e f", 91, 92, 93, 94, 95, 96)
    found = next_context(Notes(4), PROMPT, [turn(1, "a", "b", "c"), long])
    assert list(found.ids[2:8]) == [900, 91, 92, 93, 94, 999]
    assert found.requested_action is None
    assert next_context(Notes(4), PROMPT, [turn(1, "a"), long, turn(2)]).requested_action is None  # no new note


def test_without_a_limit_nothing_is_ever_requested():
    many = [turn(1, *"abcdef")] * 9
    assert next_context(Notes(), PROMPT, many).requested_action is None
    assert len(standing(many)) == 9


def test_a_notebook_shows_the_newest_notes_of_earlier_turns_and_the_last_turn_whole():
    turns = turn(1, "Q1 a"), turn(2, "Q2 b", "Q3 c"), turn(3, "Q4 d")
    assert context(*turns, policy=Notebook(2)) == [22, 23, 24, 25, 30, 31, 32, 33, 38, 39]
    assert context(*turns, policy=Notebook(1)) == [24, 25, 30, 31, 32, 33, 38, 39]
    assert context(*turns, policy=Notebook(9)) == context(*turns)
    assert context(turns[0], policy=Notebook(1)) == [10, 11, 12, 13, 18, 19]


def test_what_a_note_replaces_is_not_among_the_newest():
    turns = turn(1, "Q1 a"), turn(2, "Q2 b"), turn(3, "Q2 c"), turn(4)
    assert context(*turns, policy=Notebook(2)) == [12, 13, 32, 33, 40, 41, 48, 49]
    assert context(*turns[:3], policy=Notebook(1)) == [12, 13, 30, 31, 32, 33, 38, 39]  # by the last turn itself


def test_dropout_hides_a_note_for_good_and_about_as_many_as_it_says():
    texts = [f"Q{i} a{i}" for i in range(1, 201)]
    turns = [turn(1, *texts), turn(2, "Q201 b"), turn(3)]
    for percent in (10, 50, 90):
        policy = Dropout(percent)
        kept, newest = policy.select(turns[:2]).kept
        hidden = set(range(200)) - set(kept.only_notes or ())
        assert percent - 10 < len(hidden) / 2 < percent + 10
        assert (newest.turn, newest.only_notes) == (turns[1], None), "the last turn stays whole"
        later = policy.select(turns).kept[0]
        assert set(later.only_notes or ()) == set(kept.only_notes or ())
        again = policy.select([turn(1, *(f" {text} " for text in reversed(texts))), turn(2)]).kept[0]
        assert {199 - position for position in again.only_notes or ()} == set(kept.only_notes or ())


@pytest.mark.parametrize("name", ["dropout(0)", "dropout(100)", "dropout"])
def test_dropout_needs_a_percentage(name: str):
    with pytest.raises(UserError, match=r"unknown memory 'dropout.*p is a percentage"):
        memory_policy(name)


@pytest.mark.parametrize("name", ["notes", "notes(120)", "notebook(4)", "dropout(50)"])
def test_the_name_in_a_recipe(name: str):
    assert memory_policy(name).name == name


def test_the_numbers_of_a_memory_of_ones_own_have_no_names():
    with pytest.raises(UserError, match=r"memory 'mine:Last\(k=2\)': only numbers stand in its brackets"):
        memory_policy("mine:Last(k=2)")


def test_notes_of_at_least_one_token():
    with pytest.raises(UserError, match="unknown memory 'notes"):
        memory_policy("notes(0)")


@pytest.mark.parametrize("name", ["notebook(0)", "notebook"])
def test_a_notebook_needs_a_number_of_notes(name: str):
    with pytest.raises(UserError, match="unknown memory 'notebook"):
        memory_policy(name)


@pytest.mark.parametrize(
    ("content", "answer"),
    [
        ("notes", "Q1 a; Q2 b"),
        (" Notes ; Q2 c; Q3 d", "Q1 a; Q2 c; Q3 d"),
        ("Q1 x", "Q1 x"),
        ("notes on Oslo", "notes on Oslo"),
    ],
)
def test_an_answer_may_stand_for_the_labelled_notes(content: str, answer: str):
    assert answer_from(content, [turn(1, "Q1 a", "mayor: Ana"), turn(2, "Q2 b")]) == answer


def test_without_labels_an_answer_stands_for_all_notes():
    assert answer_from("notes", [turn(1, "Oslo", "built: 1901")]) == "Oslo; built: 1901"


def test_a_rewrite_takes_the_place_of_all_notes_before_it_in_the_answer():
    turns = [turn(1, "Q1 a", "Q2 b"), rewrite("Q2 c; Q3 d\nmayor: Ana", 91), turn(2, "Q3 e")]
    assert answer_from("notes", turns) == "Q2 c; Q3 e"


BUDGET = replace(PAPER_NOTES, memory_left="Memory {used} of {limit}. ")


@pytest.mark.parametrize(
    ("context", "hints"), [("notes(12)", ["0 of 12", "4 of 12"]), ("capped(3)", ["2 of 3", "2 of 3"])]
)
def test_a_memory_with_a_limit_may_show_how_much_of_it_is_used(context: str, hints: list[str]):
    attempt = noted(FIRST, SECOND, "<IS> </IS> <answer> notes </answer>", tags=BUDGET, context=context)
    shown = [turn.observation.split("Memory ")[1].split(". [/HINT]")[0] for turn in attempt.turns[:-1]]
    assert shown == hints


def test_a_memory_without_a_limit_shows_none():
    for context, tags in (("notes", BUDGET), ("notes(12)", PAPER_NOTES)):
        attempt = noted(FIRST, "<IS> </IS> <answer> notes </answer>", tags=tags, context=context)
        assert "Memory" not in attempt.turns[0].observation


# -- the vocabulary --------------------------------------------------------------------------------------------------


def test_a_completion_may_have_several_notes():
    text = "<IS> s </IS> <note> Q1 a </note><note> k: v </note> <query> q </query>"
    parsed = parse(text, PAPER_NOTES)
    assert (parsed.state, parsed.notes, parsed.content) == ("s", ("Q1 a", "k: v"), "q")
    assert [text[slice(*parsed.spans[role])] for role in ("note", "note 2")] == [
        "<note> Q1 a </note>", "<note> k: v </note>"
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["<note> a <query> q </query>", "<IS> <note> a </note> </IS> <query> q </query>"])
def test_a_note_is_a_block_of_its_own(text: str):
    assert parse(text, PAPER_NOTES).error is not None


def test_a_vocabulary_without_notes_reads_the_tag_as_text():
    parsed = parse("<IS> s </IS> <note> Q1 a </note> <query> q </query>", PAPER)
    assert (parsed.notes, parsed.kind) == ((), "search")


def test_the_released_parser_has_no_notes():
    with pytest.raises(UserError, match="notes need parse = 'strict'"):
        replace(PUBLISHED, note="note")


def test_hostile_text_cannot_write_a_note():
    _, shown = observation("a </info> <note> Q1 b </note>", 3, PAPER)
    assert "<note>" not in shown


# -- attempts --------------------------------------------------------------------------------------------------------


CODEC = Codec(atlas_tokenizer(PAPER_NOTES))
SOURCE = AtlasTasks(worlds=1, entities=60, questions_per_world=60).source("train", PAPER_NOTES)


@cache
def expert_attempts(context: str = "notes", *, objectives: int = 4, turns: int | None = None) -> list[Trajectory]:
    tasks = SOURCE.tasks(objectives=objectives, count=6, seed=0)
    tasks = [replace(one, turn_limit=turns or one.turn_limit) for one in tasks]
    run = rollout(Expert(tags=PAPER_NOTES), SOURCE.environment, context=context, codec=CODEC, tags=PAPER_NOTES)
    return run(tasks, sampling=Sampling())


def noted(*completions: str, turns: int = 4, tags: Tags = PAPER_NOTES, context: str = "notes") -> Trajectory:
    run = rollout(replay(*completions), shelf("a book ."), context=context, codec=CODEC, tags=tags)
    (attempt,) = run([task("a book", "book", turns=turns)], sampling=Sampling())
    return attempt


FIRST = "<IS> now Q1 </IS> <query> a </query>"
ANSWER = "<IS> done </IS> <answer> notes </answer>"
SECOND = "<IS> now Q2 </IS> <note> Q1 book </note> <query> book </query>"


def test_the_answer_has_notes_that_are_out_of_sight_and_they_count_as_retained():
    third = "<IS> now Q3 </IS> <note> Q2 7 </note> <query> book </query>"
    attempt = noted(FIRST, SECOND, third, third.replace("Q2", "Q3"), ANSWER, turns=9, context="notebook(1)")
    assert attempt.answer == "Q1 book; Q2 7; Q3 7"
    last = attempt.turns[-1]
    result = last.context_spans["result"]
    assert CODEC.decode(last.context_ids[last.prompt_tokens : result[0]]).count("Q2 7") == 1
    assert "Q1 book" not in CODEC.decode(last.context_ids[last.prompt_tokens :])
    found = answer_stages([attempt], CODEC.decode)
    assert (found.captured, found.retained, found.read) == (1, 1, 1)


def test_an_attempt_that_notes_and_answers_from_its_notes():
    attempt = noted(FIRST, SECOND, "<IS> done </IS> <note> Q2 book </note> <answer> notes </answer>")
    assert (attempt.ended, attempt.answer) == (Ended.ANSWERED, "Q1 book; Q2 book")
    assert attempt.per_objective("em") == (1.0, 1.0)
    assert [turn.notes for turn in attempt.turns] == [(), ("Q1 book",), ("Q2 book",)]
    assert trajectory_from_json(json.loads(json.dumps(trajectory_to_json(attempt)))) == attempt


def test_a_forced_answer_may_add_to_the_notes_what_it_has_just_read():
    attempt = noted(FIRST, SECOND, " notes ; Q2 book </answer>", turns=3)
    assert attempt.turns[-1].prefilled
    assert attempt.answer == "Q1 book; Q2 book"


def test_without_a_tag_for_notes_the_word_is_an_answer_like_any_other():
    attempt = noted(FIRST, "<IS> </IS> <answer> notes </answer>", tags=PAPER, context="constant")
    assert attempt.answer == "notes"


def test_notes_need_a_tag():
    with pytest.raises(UserError, match="asks for a note, but the tags 'paper' have none for it"):
        noted(FIRST, tags=PAPER)


@pytest.mark.parametrize("context", ["notes", "notes(12)", "full", "masked", "window(9)"])
def test_the_clean_expert_answers_everything_from_its_notes(context: str):
    attempts = expert_attempts(context)
    assert {t.ended for t in attempts} == {Ended.ANSWERED}
    assert {t.per_objective("em") for t in attempts} == {(1.0,) * 4}
    assert reencoded_share(attempts) == 0
    assert any(turn.action == SUMMARY for t in attempts for turn in t.turns) == (context == "notes(12)")


def test_the_expert_gives_what_it_has_read_when_it_must_answer():
    for attempt in expert_attempts(turns=4):
        right = attempt.per_objective("em")
        assert attempt.turns[-1].prefilled and len(right) == 4
        assert 1 <= sum(right) < 4
        assert len(notebook(attempt.turns)) < sum(bool(found) for found in attempt.answer.split(";"))


def test_a_turn_writes_as_much_whatever_the_number_of_questions():
    def written(objectives: int) -> float:
        turns = [turn for t in expert_attempts(objectives=objectives) for turn in t.turns[:-1]]
        return sum(len(turn.completion_ids) for turn in turns) / len(turns)

    assert written(16) == pytest.approx(written(4), rel=0.1)


def test_the_peak_grows_by_the_notes_alone():
    few, many = ([peak_tokens(t, prompt=False) for t in expert_attempts(objectives=n)] for n in (4, 16))
    note = len(CODEC.encode("<note> Q1 Moru Kest </note>"))
    assert max(many) - max(few) <= 12 * note


def test_what_is_noted_counts_as_retained_until_the_end():
    for attempt in expert_attempts():
        kept, needed = memory(attempt).last
        assert kept == needed > 0
    forgetful = noted(FIRST, "<IS> now Q2 </IS> <query> book </query>", "<IS> done </IS> <answer> notes </answer>")
    assert notebook(forgetful.turns) == []


def test_the_memory_that_a_turn_writes_is_state_and_notes():
    turns = noted(FIRST, SECOND, "<IS> done </IS> <answer> notes </answer>").turns
    assert [state_tokens(turn) for turn in turns] == [4, 8, 3]


# -- excerpts of long lists ------------------------------------------------------------------------------------------


@cache
def excerpts(tags: Tags, **lazy: float) -> list[tuple[Trajectory, Trajectory]]:
    """Demonstrations of four questions of sixteen, and what of them is shown."""
    expert = Expert(tags=tags, laziness=Laziness(**lazy), excerpt=4)
    source = AtlasTasks(worlds=1, entities=60, questions_per_world=60).source("train", tags)
    tasks = [expert.placed(one) for one in source.tasks(objectives=16, count=40, seed=0)]
    run = rollout(
        expert,
        source.environment,
        context="notes" if tags.note else "constant",
        codec=Codec(atlas_tokenizer(tags)),
        tags=tags,
    )
    return [(attempt, expert.shown(attempt)) for attempt in run(tasks, sampling=Sampling())]


@pytest.mark.parametrize("tags", [PAPER, PAPER_NOTES], ids=lambda tags: tags.name)
def test_an_excerpt_never_keeps_more_than_four_answers(tags: Tags):
    for attempt, _ in excerpts(tags):
        for done in range(len(attempt.turns)):
            texts = [attempt.turns[done].state, *(note.text for note in notebook(attempt.turns[: done + 1]))]
            labels = {label for text in texts for label in re.findall(r"Q\d+(?= [A-Z]\w+ \w+(?! 's))", text)}
            assert len(labels) <= 4


def test_excerpts_begin_anywhere_and_a_beginning_in_the_middle_is_not_shown():
    begun = [attempt.turns[0].state for attempt, _ in excerpts(PAPER_NOTES)]
    assert len({re.search(r"now (Q\d+)", state)[1] for state in begun}) > 5  # type: ignore[index]
    for attempt, shown in excerpts(PAPER_NOTES):
        middle = "now Q1 " not in attempt.turns[0].state
        assert (shown.turns[0] is attempt.turns[0]) != middle


def test_only_who_reaches_the_end_of_the_list_or_stops_by_habit_shows_an_answer():
    shown_answers = 0
    for attempt, shown in excerpts(PAPER_NOTES):
        assert attempt.turns[-1].action == "answer"
        at_the_end = "Q16 last" in "".join(turn.state for turn in attempt.turns)
        assert (shown.turns[-1].action == "answer") == at_the_end
        shown_answers += at_the_end
    assert 12 < shown_answers < 40  # a third of the excerpts ends with the list, and some of the others do
    stopped = [shown for _, shown in excerpts(PAPER_NOTES, stop=1.0)]
    assert all(shown.turns[-1].action == "answer" for shown in stopped)


def test_turns_that_are_left_go_with_the_place_in_the_list():
    for attempt, _ in excerpts(PAPER_NOTES):
        first = int(re.search(r"now Q(\d+)", attempt.turns[0].state)[1])  # type: ignore[index]
        assert attempt.task is not None
        assert attempt.task.turn_limit == 51 - 3 * (first - 1) // 2


def test_an_excerpt_of_a_chain_begins_where_its_references_do():
    config = AtlasTasks(worlds=1, entities=60, questions_per_world=60, composition="chain", reach=3)
    source = config.source("train", PAPER_NOTES)
    expert = Expert(tags=PAPER_NOTES, excerpt=4)
    tasks = source.tasks(objectives=16, count=40, seed=0)
    ranges = [expert.range_of(one.prompt, 16) for one in tasks]
    assert len({first for first, _ in ranges}) > 4
    for one, (first, last) in zip(tasks, ranges, strict=True):
        assert all(earlier >= first for question in one.questions[first - 1 : last] for earlier in question.depends_on)
    codec = Codec(atlas_tokenizer(PAPER_NOTES))
    run = rollout(expert, source.environment, context="notes", codec=codec, tags=PAPER_NOTES)
    for attempt in run([expert.placed(one) for one in tasks], sampling=Sampling()):
        assert "unknown" not in attempt.answer
        assert sum(attempt.per_objective("em")) >= 2


@pytest.mark.parametrize(
    ("tags", "context"),
    [(PAPER_NOTES, "notes"), (PAPER_SUMMARY, "constant"), (PAPER_SUMMARY, "summary(40)"), (PAPER_SUMMARY, "full")],
    ids=lambda one: one if isinstance(one, str) else one.name,
)
def test_a_question_with_a_name_that_was_copied_wrongly_is_begun_again_and_the_mistake_is_not_shown(
    tags: Tags, context: str
):
    expert = Expert(tags=tags, laziness=Laziness(misread=0.4, diligent=0.5))
    source = AtlasTasks(worlds=1, entities=60, questions_per_world=60, turn_limit=TurnLimit(extra=40))
    asked = source.source("train", tags)
    run = rollout(expert, asked.environment, context=context, codec=Codec(atlas_tokenizer(tags)), tags=tags)
    trained = set(names("train"))
    mistakes = again = given_up = 0
    for attempt in run(asked.tasks(objectives=4, count=20, seed=0), sampling=Sampling()):
        assert attempt.task is not None
        answers = dict(re.findall(r"Q(\d) (\w+)", answer_from(attempt.answer, attempt.turns)))
        unknown = [answers[str(number)] == "unknown" for number in attempt.task.numbers]
        assert attempt.per_objective("em") == tuple(float(not one) for one in unknown)
        shown = expert.shown(attempt).turns
        mistakes += len([turn for turn in attempt.turns if turn not in shown])
        seen = attempt.task.prompt + "".join(turn.observation for turn in attempt.turns)
        begun = [
            (turn, name)
            for turn in attempt.turns
            for name in re.findall(r"now Q\d+ (?:unknown )?([A-Z]\w+ \w+)", turn.text)
        ]
        assert all((name in seen) == (turn in shown) and name in trained for turn, name in begun)
        labels = [re.findall(r"now (Q\d+) unknown [A-Z]", turn.text) for turn in attempt.turns]
        again += len({label for found in labels for label in found})
        given_up += sum(unknown)
    assert mistakes > 20 and again > 20 and given_up > 5
    if context != "summary(40)":
        assert mistakes == again + given_up  # each is followed by the turn that begins again, or gives up


def test_a_rewrite_of_notes_decides_nothing_and_is_always_shown():
    expert = Expert(tags=PAPER_NOTES, excerpt=4)
    codec = Codec(atlas_tokenizer(PAPER_NOTES))
    tasks = [expert.placed(one) for one in SOURCE.tasks(objectives=16, count=12, seed=0)]
    run = rollout(expert, SOURCE.environment, context="notes(5)", codec=codec, tags=PAPER_NOTES)
    before_an_answer = 0
    for attempt in run(tasks, sampling=Sampling()):
        rewrites = [turn for turn in attempt.turns if turn.action == SUMMARY]
        assert [turn for turn in expert.shown(attempt).turns if turn.action == SUMMARY] == rewrites
        before_an_answer += attempt.turns[-2].action == SUMMARY and attempt.turns[-1].action == "answer"
    assert before_an_answer > 2


def test_short_tasks_are_done_from_beginning_to_end():
    expert = Expert(tags=PAPER_NOTES, excerpt=4)
    assert expert.range_of("Q1 a ?", 4) == (1, 4)


def test_under_an_ordered_prompt_the_expert_copies_what_follows_a_label():
    tasks = AtlasTasks(worlds=1, entities=60, questions_per_world=60, prompt="ordered").source("train", PAPER_NOTES)
    asked = tasks.tasks(objectives=3, count=4, seed=0)
    run = rollout(Expert(tags=PAPER_NOTES), tasks.environment, context="notes", codec=CODEC, tags=PAPER_NOTES)
    for attempt in run(asked, sampling=Sampling()):
        assert attempt.task is not None and attempt.task.prompt.endswith("? Q1 then Q2 then Q3 then done")
        assert attempt.per_objective("em") == (1.0,) * 3
        ends = [re.search(r"Q\d then \w+$", turn.state)[0] for turn in attempt.turns[:-1]]  # type: ignore[index]
        assert list(dict.fromkeys(ends)) == ["Q1 then Q2", "Q2 then Q3", "Q3 then done"]
