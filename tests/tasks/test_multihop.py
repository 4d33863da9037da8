"""The whole loop on real questions over real passages: scores and token counts as counted by hand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from corpora import SHARED_QA, needs_shared_qa
from precision import rounding
from worlds import SAMPLING, rollout

from mem1.engines.base import Script
from mem1.engines.codec import Codec
from mem1.envs.search import MultihopTasks, SearchEnvironment
from mem1.evaluation.metrics import appended_peak_tokens, dependency, peak_tokens, total_tokens
from mem1.jsonl import read_objects, write_objects
from mem1.policy.policy import Policy, make_policy
from mem1.protocol import PAPER
from mem1.recipe.model import ModelConfig, TinyModel
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.recipe.scripted import search_then_answer
from mem1.recipe.supervised import Sft
from mem1.records import Ended, Group, Question, Task, Trajectory
from mem1.retrieval import BM25
from mem1.rollout import Budget
from mem1.tasks.datasets import read_questions
from mem1.tasks.gold_expert import GoldExpert
from mem1.tasks.prompts import render
from mem1.training.rl import RlStage
from mem1.training.supervised import SftStage, demonstrate
from mem1.training.train import make_rollout

pytestmark = needs_shared_qa

CATHEDRAL = "hotpotqa_510"  # "Which is located in Cornwall, Southwell Minster or Truro Cathedral?"
BUDGET = Budget(completion_extra=100, context=8192)
PASSAGES = 800


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recipe]:
    """A recipe over the first 800 real passages, so that it takes seconds."""
    data = tmp_path_factory.mktemp("qa")
    passages = itertools.islice(read_objects(SHARED_QA / "corpus.jsonl.gz"), PASSAGES)
    write_objects(data / "corpus.jsonl", (record for _, record in passages))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MEM1_CACHE", str(data / "cache"))
        yield Recipe(
            model=ModelConfig(new=TinyModel(hidden_size=32, layers=2, feed_forward=64, tokenizer="bpe")),
            tasks=MultihopTasks(
                questions=str(SHARED_QA / "test.jsonl"),
                train_questions=str(SHARED_QA / "train.jsonl"),
                corpus=str(data / "corpus.jsonl"),
            ),
            budget=BUDGET,
            sft=Sft(steps=2, objectives=(1, 2), tasks=2, tokens=1024, warmup=0, decay=0),
            rl=Rl(curriculum=(Phase(steps=1, objectives=(1, 2)),), tasks_per_step=2, group_size=2, warmup=0),
        )


@pytest.fixture(scope="module")
def policy(config: Recipe) -> Policy:
    return make_policy(config)


@pytest.fixture(scope="module")
def questions() -> dict[str, Question]:
    return {q.id: q for q in read_questions(SHARED_QA / "test.jsonl")}


def task(*questions: Question, turns: int = 6) -> Task:
    prompt = render("mem1", questions, PAPER)
    return Task(id="by-hand", questions=questions, prompt=prompt, turn_limit=turns, corpus="passages")


def attempt(script: Script, one: Task, config: Recipe, codec: Codec, context: str = "constant") -> Trajectory:
    environment = config.tasks.source("evaluation", PAPER).environment
    run = rollout(script, environment, codec=codec, context=context, budget=BUDGET)
    (trajectory,) = run([one], sampling=SAMPLING)
    return trajectory


def shown(config: Recipe, query: str, turns_left: int) -> str:
    """What the search must show: hint, three passages, a hundred words of each, no bracket that could be a tag's."""
    assert isinstance(config.tasks, MultihopTasks)
    environment = config.tasks.source("evaluation", PAPER).environment
    assert isinstance(environment, SearchEnvironment)
    index = environment.retrievers["passages"]
    assert isinstance(index, BM25)
    (found,) = index.search([query], 3)
    lines = [
        f"Doc {i} (Title: {' '.join(p.title.split())}) {' '.join(p.text.split()[:100])}"
        for i, (p, _) in enumerate(found, start=1)
    ]
    assert len(lines) == 3 and sum(len(line.split()) for line in lines) > 100
    text = "\n".join(lines).replace("<", "(").replace(">", ")")
    return f"<info> [HINT] You have {turns_left} turns left. [/HINT] {text} </info>"


def test_one_search_and_an_answer_score_and_cost_what_they_do_by_hand(
    config: Recipe, policy: Policy, questions: dict[str, Question]
):
    question = questions[CATHEDRAL]
    assert question.answers == ("The Cathedral of the Blessed Virgin Mary, Truro",)
    script = search_then_answer("Q1 Truro Cathedral", state="IS", search="query")
    trajectory = attempt(script, task(question), config, policy.codec)

    # gold without articles: cathedral of blessed virgin mary truro; both given words are among its six
    assert (trajectory.ended, trajectory.per_objective("em")) == (Ended.ANSWERED, (0.0,))
    assert trajectory.per_objective("f1") == pytest.approx([2 * 1 * (2 / 6) / (1 + 2 / 6)])  # 0.5
    assert trajectory.reward == 0.0

    def count(text: str) -> int:
        return len(policy.codec.encode(text))

    p = count(render("mem1", [question], PAPER))
    c1 = count(f"<IS> now Q1 </IS> <query> {question.text} </query>")
    r1 = count(shown(config, question.text, turns_left=5))
    c2 = count("<IS> Q1 Truro Cathedral </IS> <answer> Q1 Truro Cathedral </answer>")
    assert r1 > 300 and p > 200, "real passages and a real prompt"
    assert [(len(t.context_ids), len(t.completion_ids)) for t in trajectory.turns] == [(p, c1), (p + c1 + r1, c2)]
    assert peak_tokens(trajectory) == p + c1 + r1 + c2
    assert peak_tokens(trajectory, prompt=False) == c1 + r1 + c2
    assert total_tokens(trajectory) == (p + c1) + (p + c1 + r1 + c2)
    assert dependency(trajectory) == c1 * (p + c1 / 2) + c2 * (p + c1 + r1 + c2 / 2)
    assert appended_peak_tokens(trajectory) == p + c1 + r1 + c2


def test_right_answers_score_one_whatever_their_case_articles_and_aliases(
    config: Recipe, policy: Policy, questions: dict[str, Question]
):
    two = [questions[CATHEDRAL], next(q for q in questions.values() if len(q.answers) > 3 and ";" not in q.answers[2])]
    answer = f"Q1 cathedral of blessed virgin mary truro! ; Q2 the {two[1].answers[2].upper()}"
    script = search_then_answer(answer, state="IS", search="query")
    trajectory = attempt(script, task(*two), config, policy.codec)
    assert (trajectory.reward, trajectory.per_objective("em"), trajectory.per_objective("f1")) == (
        2.0,
        (1.0, 1.0),
        (1.0, 1.0),
    )


@pytest.mark.parametrize("context", ["constant", "full"])
def test_two_searches_cost_what_they_do_by_hand_constant_and_appended(
    config: Recipe, policy: Policy, questions: dict[str, Question], context: str
):
    two = list(questions.values())[:2]
    one = task(*two)
    trajectory = attempt(GoldExpert(PAPER, [one]), one, config, policy.codec, context)
    assert (trajectory.reward, trajectory.per_objective("em")) == (2.0, (1.0, 1.0))

    def count(text: str) -> int:
        return len(policy.codec.encode(text))

    p = count(render("mem1", two, PAPER))
    (a, b), asked = (q.answers[0] for q in two), [f"Q{i} {q.text}" for i, q in enumerate(two, start=1)]
    c1 = count(f"<IS> Q1; </IS> <query> {asked[0]} </query>")
    c2 = count(f"<IS> Q1 then Q2; Q1 = {a}; </IS> <query> {asked[1]} </query>")
    c3 = count(f"<IS> Q2 then done; Q1 = {a}; Q2 = {b}; </IS> <answer> Q1 {a}; Q2 {b} </answer>")
    r1, r2 = (count(shown(config, query, turns_left=5 - i)) for i, query in enumerate(asked))
    kept = c1 + r1 if context == "full" else 0
    assert [(len(t.context_ids), len(t.completion_ids)) for t in trajectory.turns] == [
        (p, c1),
        (p + c1 + r1, c2),
        (p + kept + c2 + r2, c3),
    ]
    assert peak_tokens(trajectory) == max(p + c1 + r1 + c2, p + kept + c2 + r2 + c3)
    assert appended_peak_tokens(trajectory) == p + c1 + r1 + c2 + r2 + c3
    assert peak_tokens(trajectory) < appended_peak_tokens(trajectory) or context == "full"


def test_demonstrations_on_real_text_are_learnt_from(config: Recipe, policy: Policy):
    assert config.sft is not None
    source = config.tasks.source("train", PAPER)
    run = make_rollout(config, policy, source)
    shown = demonstrate(config, run, source, PAPER)
    assert all(t.reward is not None and len(t.turns) > t.task.objectives for t in shown if t.task)
    assert sum(len(t.turns) for t in shown) > 2 + 2 + 3 + 3, "some look for a second passage"
    sft = SftStage(policy, config.sft.model_copy(update={"tokens": 20_000}), lambda: shown, seed=0)
    losses = [sft.step(index)["loss"] for index in range(2)]
    assert isinstance(losses[0], float) and isinstance(losses[1], float)
    assert losses[1] < losses[0]


def test_a_step_of_reinforcement_learning_works_on_real_text(config: Recipe, policy: Policy):
    assert config.rl is not None
    source = config.tasks.source("train", PAPER)
    stage = RlStage(policy, config.rl, make_rollout(config, policy, source), source, seed=0)
    groups = stage.sample(0)
    assert [g.trajectories[0].task.objectives for g in groups if g.trajectories[0].task] == [1, 2]
    # a random model earns nothing: say that the first attempt of each group was the better one
    graded = [
        Group(trajectories=tuple(replace(t, reward=1.0 - i) for i, t in enumerate(g.trajectories))) for g in groups
    ]
    before = [p.detach().clone() for p in policy.model.parameters()]
    row = stage.update(graded, 0)
    assert row["groups_with_variance"] == 1.0
    assert isinstance(row["grad_norm"], float) and row["grad_norm"] > 0
    limit = rounding(policy.model, tokens=1000, magnitude=10.0)
    assert isinstance(row["sampler_trainer_max"], float) and row["sampler_trainer_max"] < limit
    assert not all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))


def test_composition_never_crosses_the_border_of_the_split(config: Recipe):
    ids = {half: {q.id for q in read_questions(SHARED_QA / f"{half}.jsonl")} for half in ("train", "test")}
    assert (len(ids["train"]), len(ids["test"])) == (6199, 1763)
    for split, half in (("train", "train"), ("evaluation", "test")):
        source = config.tasks.source("train" if split == "train" else "evaluation", PAPER)
        tasks = [t for n in (1, 2, 8) for t in source.tasks(objectives=n, count=50, seed=5)]
        drawn = [q.id for t in tasks for q in t.questions]
        assert len(drawn) == 550 and set(drawn) <= ids[half]
        assert all(len({q.id for q in t.questions}) == t.objectives for t in tasks)


def test_any_real_text_comes_back_from_the_tokenizer(policy: Policy, questions: dict[str, Question]):
    texts = [q.text for q in questions.values()] + [a for q in questions.values() for a in q.answers]
    assert len(texts) > 3000 and any(not text.isascii() for text in texts)
    assert all(policy.codec.decode(policy.codec.encode(text)) == text for text in texts)


def test_the_shared_files_are_where_the_recipe_looks_for_them():
    root = Path(__file__).parents[2]
    recipe = (root / "recipes" / "multihop-smoke.toml").read_text()
    paths = [line.split('"')[1] for line in recipe.splitlines() if '"../shared' in line]
    assert len(paths) == 3
    assert all((root / path).is_file() for path in paths)
