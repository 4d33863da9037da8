"""What [sft] shows: which tasks, under which context, cut into which pieces; nothing is left out or shown twice."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest
from builders import random_trajectory, tiny_model
from samples import write_lines
from tag_sets import PAPER_SHOP
from worlds import SMALL, rollout

from mem1.engines.codec import Codec
from mem1.engines.config import STAND_IN
from mem1.envs.atlas import AtlasTasks
from mem1.envs.base import Environment
from mem1.envs.english import EnglishTasks
from mem1.envs.search import MultihopTasks, SearchEnvironment
from mem1.envs.tasks import TasksConfig
from mem1.envs.webshop.tasks import WebShopTasks
from mem1.errors import UserError
from mem1.memory import memory_policy, next_context
from mem1.policy.folders import tokenizer_folder
from mem1.policy.policy import Policy
from mem1.protocol import PAPER, Tags
from mem1.recipe.recipe import Recipe
from mem1.recipe.supervised import Sft
from mem1.records import Ended, Passage, Question, Task, Trajectory
from mem1.retrieval import RetrievalFailed
from mem1.rollout import Budget
from mem1.training.supervised import SftStage, _cut_short, demonstrate

ROOMY = Budget(completion_extra=4000, context=16_000)
LENGTHS = (1, 3, 4, 5, 8, 9, 11)


def trained(seed: int = 0, *, epochs: int = 2) -> list[list[tuple[int, ...]]]:
    """By epoch, the pieces in their order: which turns each has, numbered through all attempts."""
    rng = random.Random(0)
    attempts = [random_trajectory(rng, turns=length) for length in LENGTHS]
    numbers = {id(turn): n for n, turn in enumerate(turn for t in attempts for turn in t.turns)}
    config = Sft(steps=40, tokens=100)
    stage = SftStage(Policy(tiny_model("qwen3"), cast(Any, None)), config, lambda: attempts, seed=seed)
    pieces = iter(tuple(numbers[id(turn)] for turn in piece.turns) for batch in stage._batches for piece in batch)
    found: list[list[tuple[int, ...]]] = []
    for _ in range(epochs):
        epoch: list[tuple[int, ...]] = []
        while sum(map(len, epoch)) < len(numbers):
            epoch.append(next(pieces))
        found.append(epoch)
    return found


# attempt    1 turn  3        4          5             8                       9                          11
PIECES = [
    (0,), (1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11), (12,), (13, 14, 15, 16), (17, 18, 19, 20), (21, 22, 23, 24),
    (25, 26, 27, 28), (29,), (30, 31, 32, 33), (34, 35, 36, 37), (38, 39, 40),
]  # fmt: skip


def test_every_turn_is_in_one_piece_of_up_to_four_and_every_piece_in_every_epoch():
    for epoch in trained():
        assert sorted(epoch) == PIECES


def test_every_epoch_and_every_seed_has_an_order_of_its_own():
    (first, second), (other, _) = trained(), trained(seed=1)
    assert trained() == [first, second]
    assert len({tuple(order) for order in (first, second, other, PIECES)}) == 4


# -- which tasks are shown -------------------------------------------------------------------------------------------

SOURCE = SMALL.source("train", PAPER)
WORLDS = cast(SearchEnvironment, SOURCE.environment)


@dataclass
class Drawn:
    """The tasks of a source, noted."""

    source: Any = SOURCE
    sizes: list[int] = field(default_factory=list)
    tasks_: list[Task] = field(default_factory=list)

    @property
    def environment(self) -> Environment:
        return self.source.environment

    def tasks(self, *, objectives: int, count: int, seed: int) -> list[Task]:
        found = self.source.tasks(objectives=objectives, count=count, seed=seed)
        self.sizes.append(objectives)
        self.tasks_ += found
        return found


def shown(
    drawn: Drawn,
    *,
    seed: int = 0,
    config: AtlasTasks = SMALL,
    environment: Any = None,
    budget: Budget = ROOMY,
    **keys: Any,
) -> list[Trajectory]:
    """The demonstrations by a recipe with these keys of [sft], whose own context is window(2)."""
    recipe = Recipe(seed=seed, memory="window(2)", tasks=config, sft=Sft.model_validate(keys), writers=())
    run = rollout(lambda _: "", environment or drawn.source.environment, context="window(2)", budget=budget)
    return demonstrate(recipe, run, cast(Any, drawn), PAPER)


def test_tasks_are_dealt_to_the_contexts_in_turn_each_to_one():
    drawn, names = Drawn(), ("full", "constant", "masked")
    found = shown(drawn, objectives=[1, 2], tasks=5, memories=list(names))
    assert drawn.sizes == [1, 2] and len(drawn.tasks_) == len(found) == 10
    for place, name in enumerate(names):
        of_it = [t for t in found if t.context == name]
        assert [t.task for t in of_it] == drawn.tasks_[place::3]
        for t in of_it:  # each turn reads what its policy keeps
            for n, turn in enumerate(t.turns):
                ids = next_context(memory_policy(name), t.turns[0].context_ids, t.turns[:n]).ids
                assert turn.context_ids[: len(ids)] == ids


def test_without_contexts_all_are_shown_under_the_recipes_own():
    drawn = Drawn()
    found = shown(drawn, objectives=[2, 1], tasks=3)
    assert [(t.context, t.task) for t in found] == [("window(2)", one) for one in drawn.tasks_]
    assert [t.task.objectives for t in found if t.task] == [2, 2, 2, 1, 1, 1]


def test_sizes_and_seeds_have_worlds_and_questions_of_their_own():
    def worlds(seed: int) -> list[str]:
        drawn = Drawn()
        shown(drawn, seed=seed, objectives=[1, 1, 1], tasks=1)
        return [task.corpus for task in drawn.tasks_]

    first, second = (world for world in WORLDS.retrievers)
    assert worlds(0) == [second, first, second] and worlds(1) == [first, second, first]
    drawn = Drawn()
    shown(drawn, objectives=[1, 1], tasks=20)
    one, other = ({task.questions[0].id for task in tasks} for tasks in (drawn.tasks_[:20], drawn.tasks_[20:]))
    assert len(one & other) < 10 <= min(len(one), len(other))


def test_a_part_of_the_tasks_is_cut_short_and_no_limit_is_raised():
    def limits(share: float) -> list[int]:
        drawn = Drawn()
        found = shown(drawn, objectives=[4], tasks=40, cut_short=share)
        assert [replace(t.task, turn_limit=15) for t in found if t.task] == drawn.tasks_
        return [t.task.turn_limit for t in found if t.task]

    assert limits(0.0) == [15] * 40 and set(limits(1.0)) == {2, 3, 4, 5, 6}
    assert 6 <= sum(limit < 15 for limit in limits(0.25)) <= 16


@pytest.mark.parametrize(
    ("objectives", "limit", "limits"), [(1, 6, {2}), (2, 9, {2, 3}), (4, 15, {2, 3, 4, 5, 6}), (4, 3, {2, 3})]
)
def test_a_limit_is_cut_to_between_two_turns_and_one_and_a_half_for_each_question(objectives, limit, limits):
    questions = tuple(Question(id=str(n), text="?", answers=("a",)) for n in range(objectives))
    task, rng = Task(id="t", questions=questions, prompt="?", turn_limit=limit), random.Random(0)
    assert {_cut_short(task, rng).turn_limit for _ in range(100)} == limits


def test_of_an_excerpt_what_begins_in_the_middle_is_not_shown():
    config = SMALL.model_copy(update={"excerpt": 2})
    drawn = Drawn(config.source("train", PAPER))
    found = shown(drawn, config=config, objectives=[8], tasks=12)
    begun = [(t.turns[0].state, t.turns[0].prompt_tokens < len(t.turns[0].context_ids)) for t in found]
    assert {later for _, later in begun} == {True, False}
    assert all("now Q1 " in state for state, later in begun if not later)
    # fewer turns are left where an excerpt begins late
    assert {t.task.turn_limit for t in found if t.task} > {task.turn_limit for task in drawn.tasks_} == {27}


class Broken:
    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        raise RetrievalFailed("connection refused")


def test_a_single_world_that_cannot_be_searched_stops_it():
    first, *others = WORLDS.retrievers.items()
    environment = replace(WORLDS, retrievers={**dict(others), first[0]: Broken()})
    with pytest.raises(UserError, match="2 of 4 demonstrations could not search: connection refused"):
        shown(Drawn(), environment=environment, objectives=[1], tasks=4)


class Wrapped:
    """The environment of a recipe's tasks.environment, which adds nothing."""

    def __init__(self, environment: Environment) -> None:
        self.observe, self.score = environment.observe, environment.score


def wrapped(tasks: TasksConfig, tags: Tags) -> list[Trajectory]:
    """Demonstrations of two tasks of two questions in a recipe whose tasks.environment adds nothing."""
    tasks = tasks.model_copy(update={"environment": f"{__name__}:Wrapped"})
    source, codec = tasks.source("train", tags), Codec.load(tokenizer_folder(STAND_IN, ""))
    environment = tasks.wrap_environment(source.environment)
    assert isinstance(environment, Wrapped)
    run = rollout(lambda _: "", environment, codec=codec, tags=tags, budget=ROOMY)
    return demonstrate(Recipe(tasks=tasks, sft=Sft(objectives=(2,), tasks=2), writers=()), run, source, tags)


def test_behind_an_environment_of_ones_own_no_answer_is_written_that_no_search_has_shown(tmp_path: Path):
    who = {"id": "a", "text": "Who wrote Emma?", "answers": ["Jane Austen"], "titles": ["Emma"]}
    what = {"id": "b", "text": "Who built Ely?", "answers": ["Alan"], "titles": ["Ely"]}
    emma = {"id": "1", "title": "Emma", "text": "Emma is a novel by Jane Austen."}
    train, test = (
        write_lines(tmp_path / "train.jsonl", who, what),
        write_lines(tmp_path / "test.jsonl", {**who, "id": "c", "text": "Why?"}),
    )
    passages = write_lines(tmp_path / "p.jsonl", emma)
    tasks = MultihopTasks(train_questions=str(train), questions=str(test), corpus=str(passages), prompt="plain")
    for attempt in wrapped(tasks, PAPER):
        assert sorted(part[3:] for part in attempt.answer.split("; ")) == ["Jane Austen", "unknown"]


@pytest.mark.parametrize(
    ("tasks", "tags"),
    [
        (EnglishTasks(worlds=1, entities=40, prompt="plain"), PAPER),
        (WebShopTasks(products=160, prompt="plain"), PAPER_SHOP),
    ],
)
def test_behind_an_environment_of_ones_own_worlds_and_shops_are_demonstrated(tasks: TasksConfig, tags: Tags):
    assert [attempt.reward for attempt in wrapped(tasks, tags)] == [2.0, 2.0]


def test_demonstrations_that_break_the_protocol_stop_it(monkeypatch: pytest.MonkeyPatch):
    class Silent:
        def __call__(self, context: str) -> str:
            return "<IS> Q1 </IS> <IS> again"

    monkeypatch.setattr(type(SMALL), "expert", lambda *_, **__: Silent())
    with pytest.raises(UserError, match=r"2 of 2 demonstrations break the protocol .*the memory window\(2\) asks for"):
        shown(Drawn(), objectives=[1], tasks=2)


def test_it_is_said_where_most_demonstrations_do_not_answer(caplog: pytest.LogCaptureFixture):
    tight = Budget(completion_extra=32, completion_per_objective=0)
    shown(Drawn(), objectives=[1, 8, 8], tasks=2, budget=tight)
    assert "4 of 6 demonstrations end without an answer (4 out_of_tokens)" in caplog.text


def test_some_demonstrations_may_be_cut_by_the_budget_but_not_all():
    tight = Budget(completion_extra=32, completion_per_objective=0)
    found = shown(Drawn(), objectives=[1, 8], tasks=2, budget=tight)
    assert [t.ended for t in found] == [Ended.ANSWERED] * 2 + [Ended.OUT_OF_TOKENS] * 2
    with pytest.raises(UserError, match="none of the 2 demonstrations answers; the first ended with out_of_tokens"):
        shown(Drawn(), objectives=[8], tasks=2, budget=tight)
