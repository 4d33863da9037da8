"""Belief apart from reasoning: in two calls (the policy `belief`), and in one (a thought, which no memory keeps)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Literal

import pytest
from answer_stages import answer_stages
from tag_sets import PAPER_BELIEF, PAPER_SUMMARY
from worlds import SAMPLING, contexts, replay, rollout, shelf, task

from mem1.algorithms.channels import places
from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.evaluation.fact_retention import memory
from mem1.evaluation.tokens import appended_peak_tokens, even_sizes, peak_tokens, state_tokens, total_tokens
from mem1.memory import Belief, memory_spans, next_context
from mem1.planning.attempts import made_groups
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER, SUMMARY, Tags
from mem1.records import Ended, Trajectory, Turn
from mem1.tasks.atlas import Expert, Laziness
from mem1.training.checks import reencoded_share

PROMPT = (100, 101)


def acted(t: int) -> Turn:
    """Completion: state t1 t2, query t3; result t9."""
    return Turn(
        context_ids=PROMPT,
        completion_ids=(10 * t + 1, 10 * t + 2, 10 * t + 3),
        observation_ids=(10 * t + 9,),
        action="search",
        completion_spans={"state": (0, 2), "action": (2, 3)},
    )


def believed(t: int) -> Turn:
    """Belief t5 t6 after the opened tag 900; hint t8."""
    return Turn(
        context_ids=(*PROMPT, 900),
        completion_ids=(10 * t + 5, 10 * t + 6),
        observation_ids=(10 * t + 8,),
        action=SUMMARY,
        prefilled=True,
        context_spans={"prompt": (0, 2)},
        completion_spans={"action": (0, 2), "state_text": (0, 1)},
    )


TURNS = [acted(1), believed(1), acted(2), believed(2), acted(3)]


@pytest.mark.parametrize(
    ("turns", "ids", "requested"),
    [
        (0, [], None),
        (1, [13, 19], SUMMARY),
        (2, [900, 15, 16, 18], None),
        (3, [900, 15, 16, 18, 23, 29], SUMMARY),
        (4, [900, 25, 26, 28], None),
        (5, [900, 25, 26, 28, 33, 39], SUMMARY),
    ],
)
def test_a_belief_is_asked_for_after_every_result_and_alone_in_sight_of_every_action(turns, ids, requested):
    context = next_context(Belief(), PROMPT, TURNS[:turns])
    assert (list(context.ids[2:]), context.requested_action) == (ids, requested)


def test_origins_and_spans_of_both_calls():
    asked, acting = (next_context(Belief(), PROMPT, TURNS[:n]) for n in (3, 4))
    assert asked.spans == {"prompt": (0, 2), "query": (6, 7), "result": (7, 8)}
    assert asked.origins == ((2, "state", 2, 5), (2, "result", 5, 6), (3, "query", 6, 7), (3, "result", 7, 8))
    assert acting.spans == {"prompt": (0, 2), "state": (2, 5), "result": (5, 6)}
    assert acting.origins == ((4, "state", 2, 5), (4, "result", 5, 6))


# -- attempts --------------------------------------------------------------------------------------------------------


TAGS = pytest.mark.parametrize("tags", [PAPER_SUMMARY, PAPER_BELIEF], ids=lambda tags: tags.name)
ONE_CALL = replace(PAPER, thought="think")
CODECS = {tags: Codec(atlas_tokenizer(tags)) for tags in (PAPER_SUMMARY, PAPER_BELIEF, ONE_CALL)}


def scripted(*completions: str, turns: int = 4) -> Trajectory:
    run = rollout(
        replay(*completions), shelf("a book ."), context="belief", codec=CODECS[PAPER_BELIEF], tags=PAPER_BELIEF
    )
    (attempt,) = run([task("book", turns=turns)], sampling=SAMPLING)
    return attempt


@cache
def expert_attempts(
    tags: Tags,
    context: str = "belief",
    *,
    turns: int | None = None,
    hops: tuple[Literal[1, 2], ...] = (1, 2),
    **lazy: float,
) -> list[Trajectory]:
    source = AtlasTasks(worlds=1, entities=60, questions_per_world=60, hops=hops).source("train", tags)
    tasks = [replace(one, turn_limit=turns or one.turn_limit) for one in source.tasks(objectives=4, count=6, seed=0)]
    expert = Expert(tags=tags, laziness=Laziness(**lazy))
    run = rollout(expert, source.environment, context=context, codec=CODECS[tags], tags=tags)
    return run(tasks, sampling=SAMPLING)


def test_the_contexts_around_a_belief():
    attempt = scripted(
        "<think> where ? </think> <IS> now Q1 </IS> <query> a </query>",
        "Q1 book </summary>",
        "<think> now </think> <answer> book </answer>",
    )
    _, asked, acting = contexts(attempt, CODECS[PAPER_BELIEF])
    result = "<info> [HINT] You have 3 turns left . [/HINT] a book . </info>"
    assert asked == f"Q1 a mayor ? <query> a </query> {result} <summary>"
    assert acting == ("Q1 a mayor ? <summary> Q1 book </summary> <info> [HINT] You have 3 turns left . [/HINT] </info>")
    assert (attempt.ended, attempt.per_objective("em")) == (Ended.ANSWERED, (1.0,))


def test_beliefs_use_up_no_turns_and_the_last_turn_must_answer():
    searches = [text for i in "abc" for text in (f"<query> {i} </query>", "Q1 book </summary>")]
    attempt = scripted(*searches[:4], "Q1 book </answer>", turns=3)
    assert [turn.action for turn in attempt.turns] == ["search", SUMMARY, "search", SUMMARY, "answer"]
    assert [turn.prefilled for turn in attempt.turns] == [False, True, False, True, True]
    assert (attempt.ended, attempt.answer) == (Ended.ANSWERED, "Q1 book")
    assert contexts(attempt, CODECS[PAPER_BELIEF])[-1].endswith("You must answer now . [/HINT] </info> <answer>")


@TAGS
def test_the_clean_expert_answers_everything_from_its_beliefs(tags: Tags):
    attempts = expert_attempts(tags)
    assert {t.ended for t in attempts} == {Ended.ANSWERED}
    assert {t.per_objective("em") for t in attempts} == {(1.0,) * 4}
    assert reencoded_share(attempts) == 0
    for attempt in attempts:
        assert [turn.action == SUMMARY for turn in attempt.turns] == [i % 2 == 1 for i in range(len(attempt.turns))]


@TAGS
def test_the_expert_takes_the_turns_that_it_takes_with_mem1s_memory(tags: Tags):
    for turns in (None, 4):
        pairs = zip(expert_attempts(tags, turns=turns), expert_attempts(tags, "constant", turns=turns), strict=True)
        for one, other in pairs:
            calls = [turn for turn in one.turns if turn.action != SUMMARY]
            assert [(t.action, t.content) for t in calls] == [(t.action, t.content) for t in other.turns]
            assert [t.observation for t in calls] == [t.observation for t in other.turns]


def test_who_acts_sees_the_belief_and_no_passage():
    for attempt in expert_attempts(PAPER_BELIEF):
        for before, text in zip(attempt.turns[1:-1:2], contexts(attempt, CODECS[PAPER_BELIEF])[2::2], strict=True):
            seen = text.removeprefix(attempt.task.prompt if attempt.task else "").strip()
            assert re.sub(r"<info> \[HINT\][^\[]*\[/HINT\] </info>", "", seen).replace("<answer>", "").strip() == (
                f"<summary> {before.text.strip()}"
            )


def test_apart_from_its_belief_the_expert_writes_only_actions():
    for attempt in expert_attempts(PAPER_BELIEF):
        assert all(re.fullmatch(r"<(query|answer)> .* </\1>", turn.text) for turn in attempt.turns[::2])
        assert [memory_spans(turn) for turn in attempt.turns[::2]] == [[]] * (len(attempt.turns) // 2 + 1)
        assert all(state_tokens(turn) == len(turn.completion_ids) + 1 for turn in attempt.turns[1::2])


def test_in_one_call_the_expert_says_what_it_begins_and_thinks_of_what_it_has_read():
    for attempt in expert_attempts(ONE_CALL, "constant"):
        assert attempt.per_objective("em") == (1.0,) * 4
        first, *others = attempt.turns
        assert re.fullmatch(r"<IS> now Q1 [^?]* \? Q1 then Q2 </IS> <query> .* </query>", first.text)
        assert all(re.match(r"<think> [^<]* is [^<]* \. </think> <IS> (Q1|now Q1|done) ?", t.text) for t in others)


def test_a_skipped_hop_is_known_from_the_query_alone():
    skipping = expert_attempts(PAPER_BELIEF, hops=(2,), shortcut=1.0)
    assert {t.per_objective("em") for t in skipping} == {(0.0,) * 4}
    assert all("is unknown ." in turn.text for t in skipping for turn in t.turns[1::2])


@TAGS
def test_without_a_memory_the_expert_begins_again_where_it_does_not_know_its_place(tags: Tags):
    for attempt in expert_attempts(tags, "none", hops=(2,)):
        assert attempt.turns[-1].prefilled, "it searches until it must answer"
        queries = [turn.content for turn in attempt.turns[:-1]]
        assert queries[2] == queries[0] if tags is PAPER_BELIEF else len(set(queries)) == 1


def test_both_calls_count_in_peaks_and_totals():
    for attempt in expert_attempts(PAPER_BELIEF):
        calls = [turn.num_tokens for turn in attempt.turns]
        assert (peak_tokens(attempt), total_tokens(attempt)) == (max(calls), sum(calls))
        assert calls.index(max(calls)) % 2 == 1, "a belief is written with the result in sight"
        actions = sum(len(turn.completion_ids) + len(turn.observation_ids) for turn in attempt.turns[:-1:2])
        assert appended_peak_tokens(attempt) == attempt.turns[0].prompt_tokens + actions + len(
            attempt.turns[-1].completion_ids
        )


def test_credit_for_memory_lands_on_beliefs_alone():
    turns = [turn for attempt in expert_attempts(PAPER_BELIEF) for turn in attempt.turns]
    assert {turn.action for turn in turns} > {SUMMARY}
    for turn in turns:
        belief = range(len(turn.completion_ids)) if turn.action == SUMMARY else range(0)
        assert places(turn, "memory") == list(belief)


def test_facts_are_captured_by_the_belief_and_kept_while_it_stands():
    attempts = expert_attempts(PAPER_BELIEF)
    shares = answer_stages(attempts, CODECS[PAPER_BELIEF].decode).shares
    assert shares == {"found": 1.0, "captured": 1.0, "retained": 1.0, "read": 1.0, "em": 1.0}
    for attempt in attempts:
        facts = memory(attempt)
        assert facts.by_turn[0] is None and None not in facts.by_turn[1:]
        assert facts.by_turn[2:-1:2] == facts.by_turn[1:-2:2], "an action beside which nothing is written loses nothing"
        assert facts.last[0] == facts.last[1] > 0 and facts.lost == 0


def test_what_a_belief_leaves_out_is_neither_captured_nor_kept():
    calls = "<query> a </query>", "now Q1 </summary>", "<query> b </query>", "done </summary>", "<answer> x </answer>"
    attempt = scripted(*calls)
    assert answer_stages([attempt], CODECS[PAPER_BELIEF].decode).shares["captured"] == 0.0
    assert memory(attempt).last == (0, 1)


# -- one call --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["constant", "full", "masked", "fold(3)", "summary(30)"])
def test_the_clean_expert_answers_everything_with_a_thought_apart(context: str):
    attempts = expert_attempts(PAPER_BELIEF, context)
    assert {t.per_objective("em") for t in attempts} == {(1.0,) * 4}
    assert reencoded_share(attempts) == 0


def test_a_thought_is_sampled_and_leaves_no_trace_in_the_next_context():
    thoughts = 0
    for attempt in expert_attempts(PAPER_BELIEF, "constant"):
        for turn, text in zip(attempt.turns, contexts(attempt, CODECS[PAPER_BELIEF])[1:], strict=False):
            state, query = (re.search(f"<{tag}>.*</{tag}>", turn.text) for tag in ("IS", "query"))
            assert "<think>" not in text
            assert (state[0] if state else "") + " " + query[0] in f" {text}".replace("  ", " ")  # type: ignore[index]
            thoughts += "<think>" in turn.text
    assert thoughts > 10


# -- demonstrations and plans ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("context", ["belief", "constant"])
def test_excerpts_show_no_decision_to_stop_in_the_middle_of_a_list(context: str):
    tags = PAPER_BELIEF
    expert = Expert(tags=tags, excerpt=4)
    source = AtlasTasks(worlds=1, entities=60, questions_per_world=60).source("train", tags)
    tasks = [expert.placed(one) for one in source.tasks(objectives=16, count=24, seed=0)]
    run = rollout(expert, source.environment, context=context, codec=CODECS[tags], tags=tags)
    ends = 0
    for attempt in run(tasks, sampling=SAMPLING):
        shown = expert.shown(attempt).turns
        assert attempt.task is not None and not attempt.turns[-1].prefilled
        finishes = expert.range_of(attempt.task.prompt, 16)[1] == 16
        assert any(turn.action == "answer" for turn in shown) == finishes
        assert any("done </summary>" in turn.text for turn in shown) == (finishes and context == "belief")
        left_out = len(attempt.turns) - len(shown) - (expert.range_of(attempt.task.prompt, 16)[0] > 1)
        assert left_out == (0 if finishes else 2 if context == "belief" else 1)
        ends += finishes
    assert 4 < ends < 24


def test_a_summary_that_decides_to_stop_is_shown_only_where_the_list_ends():
    expert = Expert(tags=PAPER_SUMMARY, excerpt=4)
    source = AtlasTasks(worlds=1, entities=60, questions_per_world=60).source("train", PAPER_SUMMARY)
    tasks = [expert.placed(one) for one in source.tasks(objectives=16, count=24, seed=0)]
    codec = Codec(atlas_tokenizer(PAPER_SUMMARY))
    run = rollout(expert, source.environment, context="summary(24)", codec=codec, tags=PAPER_SUMMARY)
    decided = 0
    for attempt in run(tasks, sampling=SAMPLING):
        finishes = expert.range_of(attempt.task.prompt, 16)[1] == 16  # type: ignore[union-attr]
        decides = any("done </summary>" in turn.text for turn in attempt.turns)
        assert any("done </summary>" in turn.text for turn in expert.shown(attempt).turns) == (finishes and decides)
        going_on = [turn for turn in attempt.turns if turn.action == SUMMARY and "now Q" in turn.content]
        assert [turn for turn in expert.shown(attempt).turns if "now Q" in turn.content] == going_on
        decided += decides and not finishes
    assert decided > 4


def test_a_plan_counts_the_calls_that_write_beliefs():
    sizes = even_sizes(prompt=10, state=4, action=2, result=20, turns=3)
    [[attempt]] = made_groups(Belief(), sizes, groups=1, attempts=1)
    assert [len(turn.context_ids) for turn in attempt.turns] == [10, 10 + 2 + 20, 14, 14 + 2 + 20, 14]
    assert [len(turn.completion_ids) for turn in attempt.turns] == [6, 4, 6, 4, 6]
