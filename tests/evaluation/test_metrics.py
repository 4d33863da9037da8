"""Result rows, on trajectories small enough to count by hand; tokens by themselves are in test_tokens.py.

One attempt, letters standing for tokens (p prompt, a-d and e-g sampled, r j results):

    constant   turn 1: pp | ab       turn 2: pp ab r | cd      turn 3: pp cd jj | efg
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from mem1.errors import UserError
from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.metrics import (
    Row,
    bounds,
    by_question,
    contained,
    duplicate_searches,
    em_by_depth,
    em_by_question,
    summarize,
)
from mem1.evaluation.tokens import (
    ModelShape,
    appended_peak_tokens,
    appended_tokens,
    dependency,
    peak_tokens,
    total_tokens,
)
from mem1.records import Ended, Question, Task, Trajectory, Turn
from mem1.scoring import exact_match, f1, score_answers

P, A, B, R, C, D, J, E, F, G = range(10)
PROMPT = {"prompt": (0, 2)}
TASK = Task(
    id="t",
    questions=(Question(id="1", text="x?", answers=("x",)), Question(id="2", text="y?", answers=("y",))),
    prompt="x? y?",
    turn_limit=9,
)


def turn(context: tuple[int, ...], completion: tuple[int, ...], observation: tuple[int, ...] = (), **fields) -> Turn:
    return Turn(
        context_ids=context,
        completion_ids=completion,
        observation_ids=observation,
        **{"context_spans": PROMPT, **fields},
    )


FIRST = turn((P, P), (A, B), (R,), action="search", content="Oslo", completion_spans={"state": (0, 1)})
SECOND = turn((P, P, A, B, R), (C, D), (J, J), action="search", content="the oslo!", completion_spans={"state": (0, 2)})
CONSTANT = Trajectory(
    turns=(FIRST, SECOND, turn((P, P, C, D, J, J), (E, F, G), action="answer")),
    task=TASK,
    metrics={"em": (1.0, 0.0), "f1": (1.0, 0.5)},
    reward=1.0,
    context="constant",
)
SHAPE = ModelShape(parameters=100, output_parameters=10, layers=1, width=5)
NEVER_CALLED = Trajectory(turns=(), task=TASK, ended=Ended.OUT_OF_TOKENS)
MALFORMED = Trajectory(turns=(turn((P, P), (A,), action="malformed"),), task=TASK, ended=Ended.BAD_TAGS)


def scored(em: tuple[float, float]) -> Trajectory:
    return dataclasses.replace(CONSTANT, metrics={"em": em, "f1": em}, reward=sum(em))


def row(*trajectories: Trajectory, shape: ModelShape | None = None) -> Row:
    return summarize(trajectories, policy="trained", context="constant", objectives=2, shape=shape)


def test_a_row_names_the_scorer_of_its_exact_matches():
    exact = dataclasses.replace(CONSTANT, task=dataclasses.replace(TASK, scorer="exact"))
    assert (row(CONSTANT).scorer, row(exact).scorer, row(CONSTANT, exact).scorer) == ("squad", "exact", "squad, exact")
    assert row(dataclasses.replace(CONSTANT, metrics={"steps": 3.0})).scorer is None
    bought = dataclasses.replace(CONSTANT, turns=(turn((P, P), (A,), action="act"),))
    assert row(bought).scorer is None


def test_the_scorer_is_the_one_that_also_gives_the_reward():
    import mem1.scoring

    assert (exact_match, f1, score_answers) == (
        mem1.scoring.exact_match,
        mem1.scoring.f1,
        mem1.scoring.score_answers,
    )


def test_the_peak_need_not_be_at_the_last_turn():
    falling = Trajectory(turns=(turn((P,) * 8, (A, B, C)), turn((P, P), (D,))))
    assert peak_tokens(falling) == 11


def test_the_answer_tag_opened_for_a_forced_turn_counts_in_both():
    spans = {"prompt": (0, 2), "state": (2, 4), "result": (4, 5)}
    forced = Trajectory(turns=(FIRST, turn((P, P, A, B, R, J), (C,), prefilled=True, context_spans=spans)))
    assert peak_tokens(forced) == 7
    assert appended_tokens(forced) == [4, 2 + 3 + 1 + 1]


@pytest.mark.parametrize("measure", [peak_tokens, appended_peak_tokens, total_tokens, dependency])
def test_a_trajectory_that_never_called_the_policy_costs_nothing(measure):
    assert measure(NEVER_CALLED) == 0


def test_a_prompt_that_was_not_recorded_can_neither_be_left_out_nor_added():
    bare = Trajectory(turns=(Turn(context_ids=(1, 2), completion_ids=(3,)),))
    with pytest.raises(ValueError, match="context_spans"):
        peak_tokens(bare, prompt=False)
    with pytest.raises(ValueError, match="context_spans"):
        appended_peak_tokens(bare, prompt=True)


def test_peak_and_dependency_need_no_spans():
    bare = Trajectory(turns=(Turn(context_ids=(1, 2), completion_ids=(3,)),))
    assert (peak_tokens(bare), dependency(bare)) == (3, 2.5)


def test_a_search_whose_normalised_query_was_sent_before_is_a_duplicate():
    assert duplicate_searches(CONSTANT) == 1  # "Oslo" and "the oslo!"
    assert duplicate_searches(Trajectory(turns=(FIRST, SECOND, FIRST))) == 2
    assert duplicate_searches(MALFORMED) == 0


def test_a_row_by_hand():
    result = row(CONSTANT, scored((1.0, 1.0)))
    assert (result.policy, result.context, result.objectives, result.tasks) == ("trained", "constant", 2, 2)
    assert (result.em, result.f1, result.reward) == (0.75, 0.875, 1.5)
    assert (result.turns, result.searches, result.duplicate_searches) == (3, 2, 1)
    assert (result.peak_tokens, result.peak_tokens_without_prompt) == (9, 7)
    assert (result.appended_peak_tokens, result.appended_peak_tokens_without_prompt) == (12, 10)
    assert (result.total_tokens, result.dependency) == (20, 40.5)
    #                pp            r     cd jj        pp ab    pp              ab  cd  efg
    assert (result.fresh_tokens, result.cached_tokens, result.output_tokens) == (2 + 1 + 4, 4 + 2, 2 + 2 + 3)
    assert (result.malformed, result.state_tokens) == (0, 1.5)


def test_flops_are_there_where_the_shape_of_the_model_is_known():
    assert (row(CONSTANT).flops, row(CONSTANT).flops_cached_per_solved) == (None, None)
    # em is 1 of 2 and 2 of 2: 3 solved in 2 tasks
    result = row(CONSTANT, scored((1.0, 1.0)), shape=SHAPE)
    #       2 * parameters  2 * logits  4 * width * pairs of 4, 7 and 9 tokens
    plain = 200 * 20 + 20 * 7 + 20 * (10 + 28 + 45)
    cached = 200 * 14 + 20 * 7 + 20 * (10 + (28 - 10) + (45 - 3))
    assert (result.flops, result.flops_cached) == (plain, cached)
    assert (result.flops_per_solved, result.flops_cached_per_solved) == (plain / 1.5, cached / 1.5)


def test_what_was_never_solved_has_no_cost_per_solution():
    result = row(scored((0.0, 0.0)), shape=SHAPE)
    assert result.flops is not None and result.flops_per_solved is None


def test_an_answer_that_contains_the_gold_counts_by_objective():
    answers = ("Q1 it is x ; Q2 yy", "Q1 x ; Q2 the Y!", "")
    attempts = [dataclasses.replace(CONSTANT, answer=answer) for answer in answers]
    assert [contained(t) for t in attempts] == [0.5, 1.0, 0.0]
    assert row(*attempts).contains == 0.5
    assert row(attempts[1], NEVER_CALLED).contains == 0.5, "a failure contains nothing and counts"


def test_in_a_shop_no_text_contains_anything():
    bought = dataclasses.replace(CONSTANT, turns=(turn((P, P), (A,), action="act"),), answer='[{"asin": "x"}]')
    malformed = dataclasses.replace(CONSTANT, turns=(turn((P, P), (A,), action="malformed"),), answer="")
    assert [(r.contains, r.scorer) for r in (row(bought), row(bought, malformed), row(malformed, bought))] == [
        (None, None)
    ] * 3


def test_wall_time_is_given_with_its_95th_percentile():
    result = row(*(dataclasses.replace(CONSTANT, seconds=float(s)) for s in range(21)))
    assert (result.seconds, result.seconds_p95) == (10.0, 19.0)


def test_state_tokens_by_turn_are_means_over_the_attempts_that_wrote_one():
    longer = turn((P, P), (A, B, C, D), completion_spans={"state": (0, 3)})
    unlike = dataclasses.replace(CONSTANT, turns=(longer, turn((P, P), (A,)), turn((P, P), (A,)), longer))
    # states of 1, 2 and no tokens; of 3, none, none and 3
    assert row(CONSTANT, unlike).state_tokens_by_turn == (2.0, 2.0, None, 3.0)
    assert row(NEVER_CALLED).state_tokens_by_turn == ()


def test_a_row_says_which_facts_the_states_kept():
    shown = dataclasses.replace(FIRST, observation="the answer is Oslo", state="now")
    task = dataclasses.replace(TASK, questions=(Question(id="1", text="x?", answers=("Oslo",)), TASK.questions[1]))
    last = turn((P, P), (A,), action="answer", content="nobody")
    states = (dataclasses.replace(SECOND, state="Oslo"), dataclasses.replace(SECOND, state="hm"))
    keeps, forgets = (dataclasses.replace(CONSTANT, task=task, turns=(shown, second)) for second in states)
    loses = dataclasses.replace(keeps, turns=(*keeps.turns, last))
    result = row(keeps, forgets, loses)
    assert (result.fidelity, result.facts_lost) == (1 / 3, 1 / 3)
    assert result.fidelity_by_turn == (None, 2 / 3, 0.0)
    assert row(CONSTANT).fidelity is None


def test_failures_count_with_exact_match_0_and_with_their_tokens():
    result = row(scored((1.0, 1.0)), MALFORMED, NEVER_CALLED)
    assert result.tasks == 3
    assert (result.em, result.f1) == pytest.approx((1 / 3, 1 / 3))
    assert result.reward == pytest.approx(2 / 3)
    assert result.peak_tokens == (9 + 3 + 0) / 3
    assert result.turns == (3 + 1 + 0) / 3


def test_endings_are_counted_and_every_ending_is_a_key():
    endings = row(CONSTANT, MALFORMED, MALFORMED, NEVER_CALLED).endings
    failed = {"out_of_time": 0, "agent_failed": 0, "tool_failed": 0, "engine_failed": 0}
    assert endings == {"answered": 1, "out_of_turns": 0, "out_of_tokens": 1, "bad_tags": 2, **failed}


def chained(*em: float) -> Trajectory:
    """Q1, Q2 of Q1, Q3 of Q2, and Q4 alone."""
    depends = ((), (1,), (2,), ())
    questions = tuple(Question(id=str(i), text="Who?", answers=("A",), depends_on=d) for i, d in enumerate(depends))
    task = Task(id="t", questions=questions, prompt="p", turn_limit=4)
    return Trajectory(turns=(), task=task, ended=Ended.OUT_OF_TURNS, reward=sum(em), metrics={"em": em, "f1": em})


def test_exact_match_by_depth_is_over_all_questions_of_a_depth():
    assert em_by_depth([chained(1.0, 1.0, 0.0, 0.0)]) == {"0": 0.5, "1": 1.0, "2": 0.0}
    # one that was never scored has no right answer
    assert em_by_depth([chained(1.0, 1.0, 1.0, 1.0), chained()]) == {"0": 0.5, "1": 0.5, "2": 0.5}
    by_row = summarize([chained(1.0, 0.0, 0.0, 1.0)], policy="p", context="c", objectives=4).em_by_depth
    assert by_row == {"0": 1.0, "1": 0.0, "2": 0.0}


def test_exact_match_that_is_not_measured_is_null_and_not_zero():
    helpful = dataclasses.replace(chained(), metrics={"helpful": 0.9}, ended=Ended.ANSWERED, reward=0.9)
    assert by_question([helpful]) is None and em_by_depth([helpful, helpful]) is None
    # where others have it, one without is wrong; and so are all that were never scored
    assert by_question([helpful, chained(1.0, 1.0, 1.0, 1.0)]) == [(0.0,) * 4, (1.0,) * 4]
    assert by_question([chained(), NEVER_CALLED]) == [(0.0,) * 4, (0.0,) * 2]
    with pytest.raises(UserError, match=r"exact match is not measured here; .* \(the attempts have helpful\)"):
        em_by_question(helpful)


def test_a_metric_of_an_attempt_as_a_whole_has_an_interval_too():
    whole = [dataclasses.replace(CONSTANT, metrics={"em": value}) for value in (0.0, 0.5, 1.0)]
    found = row(*whole)
    assert (found.em, found.em_low, found.em_high) == (0.5, *mean_interval([0.0, 0.5, 1.0]))
    assert bounds(whole) == (0.0, 1.0)
    per_cent = row(*(dataclasses.replace(CONSTANT, metrics={"em": value}) for value in (50.0, 60.0)))
    assert (per_cent.em_low, per_cent.em_high) == mean_interval([50.0, 60.0], within=None)


@pytest.mark.parametrize(
    "metrics", [{"turns": 42.0}, {"a": (1.0, 1.0), "a_high": 2.0}], ids=["a row's", "an interval's"]
)
def test_a_metric_with_the_name_of_one_of_a_row_is_named(metrics: dict):
    with pytest.raises(UserError, match=r"metric '(turns|a_high)' has the name of a number that mem1"):
        row(dataclasses.replace(CONSTANT, metrics=metrics))


def test_there_are_no_depths_where_no_question_depends_on_another():
    assert row(CONSTANT).em_by_depth is None


def test_malformed_is_a_share_of_turns():
    assert row(CONSTANT, MALFORMED).malformed == 1 / 4


def test_state_tokens_are_none_where_no_turn_wrote_a_state():
    assert row(MALFORMED).state_tokens is None


def test_a_row_as_json_has_the_names_that_others_rely_on():
    printed = json.loads(json.dumps({"rows": [row(CONSTANT).as_dict()]}))["rows"][0]
    head = ["policy", "context", "objectives", "tasks", "questions", "scorer", "em", "em_low", "em_high", "f1"]
    assert list(printed)[:10] == head
    assert {"peak_tokens", "peak_tokens_without_prompt", "total_tokens", "endings"} <= set(printed)


@pytest.mark.parametrize(
    ("trajectory", "missing"),
    [
        (dataclasses.replace(CONSTANT, task=None), "no task"),
        (dataclasses.replace(CONSTANT, metrics={"em": ()}), "0 em scores for 2 objectives"),
        (dataclasses.replace(CONSTANT, metrics={"f1": (1.0,)}), "1 f1 scores for 2 objectives"),
        (dataclasses.replace(CONSTANT, reward=None), "no reward"),
        (dataclasses.replace(CONSTANT, task=dataclasses.replace(TASK, questions=TASK.questions[:1])), "1 objectives"),
    ],
)
def test_what_cannot_be_counted_is_an_error_that_says_what_is_missing(trajectory, missing):
    with pytest.raises(ValueError, match=missing):
        row(CONSTANT, trajectory)


def test_no_trajectories_is_an_error():
    with pytest.raises(ValueError, match="at least one trajectory"):
        row()


def test_the_row_holds_the_interval_over_tasks_with_the_scores_of_their_questions():
    attempts = [scored((1.0, 1.0)), scored((0.0, 0.0)), scored((1.0, 0.0))]
    result = row(*attempts)
    assert (result.em_low, result.em_high) == mean_interval([[1, 1], [0, 0], [1, 0]], questions=[("x", "y")] * 3)
    assert (result.tasks, result.questions) == (3, 2)


def test_the_documentation_explains_every_field_of_a_row_in_order():
    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    table = text.partition("| key | unit | formula |\n|---|---|---|\n")[2].partition("\n\n")[0]
    explained = [name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split(" | ")[0])]
    assert explained == [field.name for field in dataclasses.fields(Row)]
