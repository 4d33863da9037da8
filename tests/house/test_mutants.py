"""Every known defect of other frameworks, put into our code on purpose, makes a named check fail.

The checks are those of `mem1 verify` where it has one, else invariances that a user of the trainer relies on.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
import torch
from builders import random_group, random_tokens, tiny_model
from line_mutants import LINE_MUTANTS
from mutant_runs import PACKAGE
from mutants import BPE, MUTANTS, SAMPLER, Mutant, applied
from torch import Tensor
from transformers import PreTrainedModel
from worlds import CODEC, SMALL, replay, rollout, shelf, task

import mem1.evaluation.metrics as metrics
from mem1.engines.base import Completion, Sampling
from mem1.engines.local import LocalEngine
from mem1.memory import memory_policy, next_context
from mem1.packing import pack, split_into_packs
from mem1.policy.policy import Policy
from mem1.protocol import PAPER
from mem1.recipe.rl import Phase, Rl
from mem1.records import Ended, Group, Trajectory, Turn
from mem1.rollout import Budget
from mem1.scoring import score_answers
from mem1.training.checks import (
    EXACT_LIMIT,
    causality_checks,
    once_check,
    packed_check,
    reencoding_check,
    relative_difference,
    sampler_checks,
)
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.samples import make_samples
from mem1.training.gradients.update import PassStats, accumulate
from mem1.training.logprobs import completion_logprobs, flat_logprobs
from mem1.training.rl import RlStage
from mem1.training.verify import compute, step_checks

LIMIT = 1e-10
"""Relative; gradients in float64."""
DOCS = Path(__file__).parents[2] / "research" / "defects.md"
SEARCH = "<IS> Q1 Oslo </IS> <query> mayor of Oslo </query>"
ANSWER = "<IS> done </IS> <answer> Oslo </answer>"


def small_model(dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return tiny_model("qwen2", dtype=dtype, hidden_size=16, intermediate_size=16, **heads).eval()


# mem1 verify


def sampled_group(model: PreTrainedModel, temperature: float) -> Group:
    """Two attempts of three turns with constant memory, sampled by the engine that training samples with."""
    rng = random.Random(0)
    engine, policy = LocalEngine(model, CODEC, ()), memory_policy("constant")
    prompt = random_tokens(rng, 6)
    attempts: list[list[Turn]] = [[], []]
    for number in range(3):
        contexts = [next_context(policy, prompt, turns).ids for turns in attempts]
        sampling = Sampling(temperature=temperature, seed=number)
        completions = engine.complete(contexts, max_tokens=[4, 4], sampling=sampling)
        for turns, ids, completion in zip(attempts, contexts, completions, strict=True):
            turns.append(
                Turn(
                    context_ids=ids,
                    completion_ids=completion.token_ids,
                    logprobs=completion.logprobs,
                    observation_ids=random_tokens(rng, 3),
                )
            )
    return Group(trajectories=tuple(Trajectory(turns=tuple(turns)) for turns in attempts))


@torch.no_grad()
def verified(name: str) -> None:
    """This check of `mem1 verify` passes."""
    model = small_model(torch.float32)
    group, temperature = sampled_group(model, 0.7).trajectories, 0.7
    if name == "causality":
        checks = causality_checks(
            lambda tree: flat_logprobs(model, tree, temperature=temperature),
            [pack(group)],
            vocabulary=model.config.vocab_size,
        )
    elif name == SAMPLER:
        checks = sampler_checks(group, compute(model, [group], temperature=temperature, packed=True).logprobs_M)
    else:
        exact = copy.deepcopy(model).double()
        both = [compute(exact, [group], temperature=temperature, packed=packed).logprobs_M for packed in (True, False)]
        checks = [packed_check(*both, precision="float64", limit=EXACT_LIMIT)]
    (check,) = [c for c in checks if c.name == name]
    assert check.passed, check


def trained_once() -> None:
    """Every sampled token is one target of the tree on which the trainer scores it."""
    group = sampled_group(small_model(), 1.0).trajectories
    check = once_check((packed.tree, packed.trajectories) for packed in split_into_packs(group, max_tokens=10**6))
    assert check.passed, check


# The gradient of an optimiser step


def scored_groups(model: PreTrainedModel, turns: int = 3) -> list[Group]:
    """Two groups of three attempts, their log-probs this model's own; one attempt of each is right."""
    rng = random.Random(1)
    groups = []
    for _ in range(2):
        attempts = random_group(rng, 3, turns=turns, longest=8, prompt=8)
        values = completion_logprobs(model, attempts)
        scored = map(_scored, attempts, values, (1.0, 0.0, 0.0))
        groups.append(Group(trajectories=tuple(scored)))
    return groups


def _scored(t: Trajectory, values: Sequence[Tensor], reward: float) -> Trajectory:
    turns = tuple(replace(turn, logprobs=tuple(v.tolist())) for turn, v in zip(t.turns, values, strict=True))
    return replace(t, turns=turns, reward=reward, metrics={"em": (reward,), "f1": (reward,)})


def invariant(name: str) -> None:
    """This check of `mem1 verify` passes on a whole optimiser step, in float64 to 1e-10."""
    model = small_model()
    (check,) = [c for c in step_checks(model, scored_groups(model)) if c.name == name]
    assert check.compared > 0 and check.measured < LIMIT, check


def gradient(groups: Sequence[Group], config: Rl) -> list[Tensor]:
    """Of one optimiser step of GRPO on these attempts."""
    model = small_model()
    networks = ActorCritic.make(config, model)
    lessons = make_samples(config, groups, networks.old_policy_stats([g.trajectories for g in groups]))
    assert accumulate(networks, lessons, PassStats())
    return [p.grad for p in model.parameters() if p.grad is not None]


def settings(*, minibatches: int = 1) -> Rl:
    return Rl(curriculum=(Phase(steps=1),), tasks_per_step=2, group_size=3, minibatches=minibatches)


def whatever_the_ending() -> None:
    """A wrong attempt counts the same, whether it answered or failed."""
    groups = scored_groups(small_model())
    failed = [
        Group(trajectories=(*g.trajectories[:-1], replace(g.trajectories[-1], ended=Ended.BAD_TAGS))) for g in groups
    ]
    config = settings()
    assert relative_difference(gradient(failed, config), gradient(groups, config)) < LIMIT


def optimiser_steps() -> None:
    """As many on a rollout of four turns as on one of one turn."""
    for turns in (1, 4):
        model = small_model()
        config = settings(minibatches=2)
        source = SMALL.source("train", PAPER)
        stage = RlStage(Policy(model, CODEC), config, rollout(replay(), source.environment), source, seed=0)
        stage.update(scored_groups(model, turns), 0)
        (optimizer,) = stage.optimizers.members
        assert {int(state["step"]) for state in optimizer.state.values()} == {config.updates} == {2}


# The rollout


class Spelling:
    """An engine that spells its texts letter by letter, as a model may and its tokenizer never would."""

    def __init__(self, *texts: str) -> None:
        self.texts = iter(texts)
        self.sampled: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        """Contexts that it was given, and what it sampled."""

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        del max_tokens, sampling
        completions = [tuple(chain(*map(BPE.encode, next(self.texts)))) for _ in contexts]
        self.sampled += zip(map(tuple, contexts), completions, strict=True)
        return [Completion(token_ids=ids) for ids in completions]


def spelled(engine: Spelling) -> Trajectory:
    made = rollout(engine, shelf("Oslo has a mayor"), codec=BPE, budget=Budget(completion_extra=200))
    (attempt,) = made([task("Oslo")], sampling=Sampling())
    assert len(attempt.turns) == 3
    return attempt


def recorded_as_sampled() -> None:
    """What the engine was given and what it sampled is what is trained, to the last token."""
    engine = Spelling(SEARCH, SEARCH, ANSWER)
    attempt = spelled(engine)
    assert [(turn.context_ids, turn.completion_ids) for turn in attempt.turns] == engine.sampled


def reencoded() -> None:
    check = reencoding_check([spelled(Spelling(SEARCH, SEARCH, ANSWER))])
    assert check.passed, check


def over_the_budget() -> None:
    """An attempt whose context no longer fits ends there, and says so."""
    made = rollout(
        replay(*[SEARCH] * 8, ANSWER),
        shelf("Oslo has a mayor"),
        context="full",
        budget=Budget(context=100, completion_extra=24),
    )
    (attempt,) = made([task("Oslo", turns=12)], sampling=Sampling())
    assert attempt.ended is Ended.OUT_OF_TOKENS and "leaves no room" in attempt.detail
    assert 1 < len(attempt.turns) < 9


# Scores


def answers_by_position() -> None:
    """A missing answer is wrong, a surplus one earns nothing."""
    question, environment = task("Oslo", "Bergen"), shelf()
    rewards = {"Oslo ; Bergen": 2, "Oslo": 1, "": 0, "Paris ; Rome ; Oslo ; Bergen": 0, "Oslo ; Bergen ; Rome": 2}
    assert {answer: environment.score(question, answer).reward for answer in rewards} == rewards


def reward_as_evaluated() -> None:
    answer, question = "the oslo. ; BERGEN", task("Oslo", "Bergen")
    evaluated = score_answers(answer, [q.answers for q in question.questions])
    assert shelf().score(question, answer).metrics["em"] == tuple(evaluated.em) == (1.0, 1.0)


def tokens_of_every_turn() -> None:
    """12 turns of 3 + 2 tokens that answer, and one that fails: 32.5 tokens on average."""
    turn = Turn(
        context_ids=(1, 2, 3),
        completion_ids=(4, 5),
        context_spans={"prompt": (0, 1)},
        completion_spans={"state": (0, 1)},
    )
    right = Trajectory(
        turns=(turn,) * 12, task=task("Oslo", turns=12), reward=1.0, metrics={"em": (1.0,), "f1": (1.0,)}
    )
    failure = Trajectory(turns=(turn,), task=task("Oslo", turns=12), ended=Ended.BAD_TAGS)
    row = metrics.summarize([right, failure], policy="p", context="constant", objectives=1)
    assert (row.total_tokens, row.em) == (32.5, 0.5)


VERIFY = ("packed log-probs, float64", "causality", "sampler and trainer, largest")
CHECKS: dict[str, Callable[[], None]] = {
    **{name: partial(verified, name) for name in VERIFY},
    "tokens trained exactly once": trained_once,
    **{name: partial(invariant, name) for name in ("grpo: more contexts", "ppo: more contexts", "grpo: small packs")},
    "any ending": whatever_the_ending,
    "optimiser steps": optimiser_steps,
    "recorded as sampled": recorded_as_sampled,
    "re-encoded tokens": reencoded,
    "over the budget": over_the_budget,
    "answers by position": answers_by_position,
    "reward as evaluated": reward_as_evaluated,
    "tokens of every turn": tokens_of_every_turn,
}


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_passes_on_our_code(name: str):
    CHECKS[name]()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_check_fails_on_the_mutant(mutant: Mutant):
    with applied(mutant) as calls, pytest.raises(mutant.raises):
        CHECKS[mutant.check]()
    assert calls, "the mutant was not reached, so what failed was something else"


def test_a_mutant_is_gone_afterwards_and_one_that_changes_nothing_is_not_caught():
    harmless = replace(MUTANTS[0], broken=lambda right, *args: right(*args))
    with applied(harmless) as calls:
        CHECKS[harmless.check]()
    assert calls
    calls.clear()
    CHECKS[harmless.check]()
    assert not calls


def test_the_docs_list_these_mutants_with_their_checks():
    listed = re.findall(r"^\| (.+) \| .+ \| (.+) \| (.+) \|$", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert listed[1:] == [(m.name, m.reported, m.check) for m in MUTANTS]
    assert {m.check for m in MUTANTS} == set(CHECKS)


def test_every_one_line_mutant_changes_one_place_of_its_file_and_names_tests_that_there_are():
    texts = {file: (PACKAGE / file).read_text(encoding="utf-8") for file in {m.file for m in LINE_MUTANTS}}
    assert {m.before: texts[m.file].count(m.before) for m in LINE_MUTANTS} == dict.fromkeys(
        (m.before for m in LINE_MUTANTS), 1
    )
    for mutant in LINE_MUTANTS:
        compile(texts[mutant.file].replace(mutant.before, mutant.after), mutant.file, "exec")
    tests = Path(__file__).parents[1]
    here = {path.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")}
    assert {name for m in LINE_MUTANTS for name in m.tests} <= here and len(LINE_MUTANTS) > 128
