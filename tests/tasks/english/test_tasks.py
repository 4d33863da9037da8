"""Families of tasks about English worlds, and the scripted solver that calibrates them."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from guesses import candidates, chance
from pydantic import ValidationError

from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.engines.config import STAND_IN
from mem1.envs.base import Action
from mem1.envs.english import BROKEN, EnglishSource, EnglishTasks
from mem1.errors import UserError
from mem1.evaluation.metrics import em_by_question
from mem1.memory import memory_policy
from mem1.policy.folders import tokenizer_folder
from mem1.protocol import PAPER
from mem1.records import Task, task_to_json
from mem1.rollout import Budget, Rollout
from mem1.scoring import score_answers
from mem1.tasks.english.families import LEVELS, asks_for_rules, rules_of, searches, section_of, smallest
from mem1.tasks.english.solver import Solver

DIGEST = "deae29ec1481b0b0e046cce1dc502c9a5c8a50e2a3fc1fd74ab3cf1aa723eb74"
CELLS = [(family, level) for family, most in LEVELS.items() for level in range(1, most + 1)]


def source_of(**settings: Any) -> EnglishSource:
    source = EnglishTasks(**{"prompt": "plain", "worlds": 1, **settings}).source("evaluation", PAPER)
    assert isinstance(source, EnglishSource)
    return source


def tasks_in(source: EnglishSource, sizes: tuple[int, ...], count: int, seed: int = 0) -> Iterator[Task]:
    fewest = smallest(source.config.family, source.config.level)
    for size in sizes:
        if size >= fewest:
            yield from source.tasks(objectives=size, count=count, seed=seed)


def play(source: EnglishSource, solver: Solver, task: Task) -> tuple[tuple[float, ...], int]:
    """Exact match by question and the turns of an attempt with constant memory: prompt, last notes, last result."""
    environment, text, history = source.environment, task.prompt, ()
    for turn in range(1, task.turn_limit + 1):
        move = solver.move(f"{text} You have 1 turn left" if turn == task.turn_limit else text)
        if not move.search:
            em = environment.score(task, move.answer).metrics["em"]
            assert isinstance(em, tuple)
            return em, turn
        (reply,) = environment.observe([Action(task, "search", move.search, history)])
        history = (*history, ("search", move.search))
        if reply.ended:
            break
        text = f"{task.prompt} {move.notes} {reply.text}"
    return (0.0,) * task.objectives, task.turn_limit


def accuracy(source: EnglishSource, tasks: list[Task], memory: int | None) -> float:
    solver = source.config.model_copy(update={"memory": memory}).solver(tasks, source.environment)
    scores = [em for task in tasks for em in play(source, solver, task)[0]]
    return sum(scores) / len(scores)


def digest_of(tasks: list[Task]) -> str:
    return hashlib.sha256(json.dumps([task_to_json(task) for task in tasks]).encode()).hexdigest()


def test_tasks_are_the_same_on_every_machine():
    tasks = [t for family, level in CELLS for t in tasks_in(source_of(family=family, level=level), (1, 3, 8), 2)]
    assert len({task.id for task in tasks}) == len(tasks)
    assert digest_of(tasks) == DIGEST


@pytest.mark.parametrize(("family", "level"), CELLS)
def test_a_solver_with_unlimited_memory_answers_everything(family: str, level: int):
    source = source_of(family=family, level=level, first_world=11)
    tasks = list(tasks_in(source, (1, 4, 12), 2))
    assert tasks and accuracy(source, tasks, None) == 1.0


@pytest.mark.slow
def test_a_solver_with_unlimited_memory_answers_10_000_tasks():
    wrong, done, first = [], 0, 100
    while done < 10_000:
        for family, level in CELLS:
            source = source_of(family=family, level=level, first_world=first)
            tasks = list(tasks_in(source, (1, 2, 4, 8, 16), 8, seed=first))
            solver = source.config.solver(tasks, source.environment)
            wrong += [task.id for task in tasks if sum(play(source, solver, task)[0]) < task.objectives]
            done += len(tasks)
        first += 1
    assert not wrong


@pytest.mark.parametrize("each", [20, pytest.param(110, marks=pytest.mark.slow)])
def test_who_searches_nothing_scores_what_chance_allows(each: int):
    rng, right, expected, count = random.Random(5), 0.0, 0.0, 0
    for family, level in CELLS:
        source = source_of(family=family, level=level, first_world=50)
        askers = {asker.world.name: asker for asker in source.askers}
        for task in tasks_in(source, (1, 2, 4, 8), each, seed=3):
            asker = askers[task.corpus]
            guesses = [rng.choice(candidates(asker, q) or ("unknown",)) for q in task.questions]
            answer = "; ".join(f"Q{n} {guess}" for n, guess in enumerate(guesses, start=1))
            right += sum(score_answers(answer, [q.answers for q in task.questions]).em) / task.objectives
            expected += sum(chance(asker, q) for q in task.questions) / task.objectives
            count += 1
    assert count >= 70 * each  # sizes that a family has
    assert right / count == pytest.approx(expected / count, abs=0.01)
    assert expected / count < 0.1


def test_memory_decides_and_more_questions_are_harder():
    source = source_of()
    by_size = [source.tasks(objectives=size, count=max(3, 32 // size), seed=1) for size in (1, 2, 4, 16, 48)]
    found = {memory: [accuracy(source, tasks, memory) for tasks in by_size] for memory in (0, 50, 200, 1_000)}
    for scores in found.values():
        assert scores[0] == 1.0
        assert all(more <= fewer + 0.02 for fewer, more in itertools.pairwise(scores))
    for one, other in itertools.pairwise(found.values()):
        assert all(more >= less for less, more in zip(one, other, strict=True))
    assert found[0][2] < 0.4 < 0.9 < found[50][1] and found[50][4] < 0.35
    assert found[50][4] + 0.3 < found[200][4] < found[1_000][4] - 0.02


@pytest.mark.parametrize("memory", [50, 200])
def test_another_wording_is_as_hard(memory: int):
    one, other = source_of(surface=0, worlds=2), source_of(surface=9, worlds=2)
    first, second = (list(tasks_in(source, (2, 8, 24), 16)) for source in (one, other))
    assert [[q.id for q in t.questions] for t in first] == [[q.id for q in t.questions] for t in second]
    assert sum(a.prompt != b.prompt for a, b in zip(first, second, strict=True)) > len(first) * 0.9
    assert accuracy(one, first, memory) == pytest.approx(accuracy(other, second, memory), abs=0.01)


def test_every_size_asks_the_same_kinds_of_questions():
    source = source_of(worlds=2)
    hops = {}
    for size in (1, 4, 16, 64):
        asked = [q for t in source.tasks(objectives=size, count=max(12, 512 // size), seed=0) for q in t.questions]
        hops[size] = sum(len(q.titles) == 2 for q in asked) / len(asked)
    assert max(hops.values()) - min(hops.values()) < 0.06


def test_the_solver_works_in_tags_under_constant_and_full_contexts():
    codec = Codec.load(tokenizer_folder(STAND_IN, ""))
    source = source_of(family="update", prompt="mem1")
    tasks = source.tasks(objectives=4, count=3, seed=0)
    expert = source.config.expert(tasks, source.environment, PAPER, seed=0)
    for context in ("constant", "full", "fold(2)"):
        rollout = Rollout(
            engine=ScriptedEngine(codec, expert),
            dialogue=TagDialogue(codec, PAPER),
            environment=source.environment,
            context=memory_policy(context),
            budget=Budget(context=100_000, completion_extra=4_000),
        )
        attempts = rollout(tasks, sampling=Sampling(seed=0))
        assert [em_by_question(attempt) for attempt in attempts] == [(1.0,) * 4] * 3, context


def test_a_query_that_breaks_a_rule_ends_the_attempt_without_a_score():
    source = source_of(family="constraint", level=3)
    (task,) = source.tasks(objectives=2, count=1, seed=0)
    section, rules = section_of(task.seed), rules_of(task.seed, 3)
    assert section in task.prompt and len(rules) == 3
    (shown,) = source.environment.observe([Action(task, "search", f"rules of section {section}")])
    assert all(rule.text in shown.text for rule in rules) and not shown.ended
    (broken,) = source.environment.observe(
        [Action(task, "search", "The Quiet Harbour and seven more words than allowed HERE")]
    )
    assert broken.ended and broken.answer is not None and broken.answer.startswith(BROKEN)
    assert source.environment.score(task, broken.answer).reward == 0
    assert source.environment.score(task, f"{BROKEN} {task.questions[0].answers[0]}").reward == 0
    query = task.questions[0].titles[0]
    for rule in rules:
        query = rule.follow(query)
    assert all(rule.keeps(query) for rule in rules)
    (found,) = source.environment.observe([Action(task, "search", query)])
    assert not found.ended and task.questions[0].titles[0] in found.text
    gold = "; ".join(f"Q{n} {q.answers[0]}" for n, q in enumerate(task.questions, start=1))
    assert source.environment.score(task, gold).reward == 2


@pytest.mark.parametrize("query", ["rules of section K-17", "K-17", "section k 17 rules"])
def test_rules_are_found_by_their_section(query: str):
    assert asks_for_rules(query, "K-17")
    assert not asks_for_rules(query, "K-71") and not asks_for_rules("XK-172", "K-17")


def test_rules_hold_one_after_the_other_for_every_seed():
    for seed in range(300):
        query = "the Lantern City"
        rules = rules_of(seed, 6)
        for rule in rules:
            query = rule.follow(query)
        assert all(rule.keeps(query) for rule in rules), (query, [rule.text for rule in rules])
        assert not all(rule.keeps("the Lantern City of old") for rule in rules)


def test_a_corrected_fact_needs_the_passage_of_another_question():
    source = source_of(family="update", level=2)
    world = source.worlds[0]
    tasks = source.tasks(objectives=6, count=10, seed=0)
    asker = source.askers[0]
    for task in tasks:
        wrong = [question for question in task.questions if asker.stale(question)]
        assert len(wrong) == 2
        titles = {title for question in task.questions for title in question.titles[:1]}
        for question in wrong:
            (subject,) = question.titles
            relation = question.id.split(":")[1]
            assert set(world.corrections(subject, relation)) <= titles
            stale = asker.stale(question)
            assert score_answers(stale, [question.answers]).em == [0.0]
    carrier = world.corrections(*world.corrected[0])[0]
    (shown,) = source.environment.observe([Action(tasks[0], "search", carrier)])
    assert "Correction of" in shown.text
    (own,) = source.environment.observe([Action(tasks[0], "search", world.corrected[0][0])])
    assert world.stated(*world.corrected[0]).values[0] in own.text


def test_a_budget_is_what_the_questions_need():
    for level, more in ((1, 0.5), (4, 0.0)):
        for task in source_of(family="budget", level=level).tasks(objectives=8, count=5, seed=0):
            fewest = searches(task.questions)
            assert task.turn_limit == fewest + -int(-more * fewest // 1) + 1
            assert fewest < sum(len(question.titles) for question in task.questions)


def test_questions_of_chains_refer_to_the_one_before_and_of_shared_ones_to_the_same():
    for task in source_of(family="chain", level=3).tasks(objectives=8, count=5, seed=0):
        assert max(task.depths) == 3
        assert all(f"the answer to Q{q.depends_on[0]}" in q.text for q in task.questions if q.depends_on)
    for task in source_of(family="shared", level=3).tasks(objectives=8, count=5, seed=0):
        assert set(task.depths) == {0, 1}
        assert sorted(sum(q.depends_on == (n,) for q in task.questions) for n in range(1, 9))[-2:] == [3, 3]


def test_halves_and_development_worlds_share_no_world():
    tasks = EnglishTasks(worlds=1)
    names = [
        set(source.environment.worlds)
        for source in (
            tasks.source("train", PAPER),
            tasks.source("evaluation", PAPER),
            tasks.development().source("evaluation", PAPER),
        )
        if isinstance(source, EnglishSource)
    ]
    assert len(names) == 3 and len(set.union(*names)) == 3
    assert tasks.development().source("train", PAPER).tasks(objectives=1, count=1, seed=0)[0].corpus in names[0]


def test_impossible_levels_and_sizes_are_errors():
    with pytest.raises(ValidationError, match="family update has levels 1 to 4"):
        EnglishTasks(family="update", level=5)
    with pytest.raises(UserError, match="1 to 512 questions"):
        source_of().tasks(objectives=513, count=1, seed=0)
    with pytest.raises(UserError, match="give it more entities"):
        source_of(family="update", entities=40).tasks(objectives=40, count=1, seed=0)


def test_a_failing_search_is_told_and_the_solver_goes_on():
    source = source_of()
    (task,) = source.tasks(objectives=2, count=1, seed=4)
    solver = source.config.solver([task], source.environment)
    first = solver.move(task.prompt)
    after = solver.move(f"{task.prompt} {first.notes} No passage was found.")
    assert first.notes.startswith("now Q1") and after.notes.startswith("now Q2")
    last = solver.move(f"{task.prompt} {first.notes} [HINT] You have 1 turn left")
    assert last.answer == "" and last.search == ""
