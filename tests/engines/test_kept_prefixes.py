"""What an engine has computed in a session is used again, and changes nothing that is sampled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from precision import rounding
from transformers import PreTrainedModel
from worlds import CODEC, SMALL

from mem1.dialogue import TagDialogue
from mem1.engines.base import Completion, Sampling, new_session
from mem1.engines.kept_prefixes import KeptPrefixes
from mem1.engines.local import LocalEngine
from mem1.engines.workers import local_engine
from mem1.evaluation.runner import evaluate
from mem1.memory import memory_policy
from mem1.policy.folders import SHIPPED
from mem1.policy.policy import load_policy
from mem1.policy.tiny_model import new_model
from mem1.protocol import PAPER
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.model import TinyModel
from mem1.rollout import Rollout

pytestmark = pytest.mark.numeric

BUDGET = 8


def fresh(seed: int = 0) -> PreTrainedModel:
    return new_model(TinyModel(hidden_size=32, layers=2, feed_forward=64), vocab_size=CODEC.vocab_size, seed=seed)


MODEL = fresh()
ROUNDING = rounding(MODEL, tokens=120, magnitude=10.0)
Contexts = list[tuple[int, ...]]


def words(count: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(2, 500) for _ in range(count))


def sample(engine: LocalEngine, contexts: Contexts, session: int | None) -> list[Completion]:
    sampling = Sampling(seed=3, session=session)
    return engine.complete(contexts, max_tokens=[BUDGET] * len(contexts), sampling=sampling)


@contextmanager
def counted(model: PreTrainedModel) -> Iterator[list[int]]:
    """Tokens of each forward pass, padding included."""
    tokens: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda _m, given, _o: tokens.append(given[0].numel()))
    yield tokens
    hook.remove()


def assert_alike(found: Sequence[Completion], wanted: Sequence[Completion]) -> None:
    assert [c.token_ids for c in found] == [c.token_ids for c in wanted]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=0, atol=ROUNDING)


PROMPTS = [words(40 + 3 * i, seed=i) for i in range(4)]
FIRST = [(*prompt, *words(5 + i, seed=10 + i)) for i, prompt in enumerate(PROMPTS)]
REWRITTEN = [(*prompt, *words(9 - i, seed=20 + i)) for i, prompt in enumerate(PROMPTS)]
APPENDED = [(*context, *words(4 + i, seed=30 + i)) for i, context in enumerate(FIRST)]
FEWER = REWRITTEN[1:3]
WITH_A_NEW_ONE = [*REWRITTEN[:3], words(8, seed=40)]


@pytest.mark.parametrize("second", [REWRITTEN, APPENDED, FIRST, FEWER, WITH_A_NEW_ONE])
def test_a_second_call_computes_only_what_is_new_and_samples_the_same(second: Contexts):
    wanted = sample(LocalEngine(MODEL, CODEC, ()), second, None)
    engine, session = LocalEngine(MODEL, CODEC, ()), new_session()
    with counted(MODEL) as tokens:
        sample(engine, FIRST, session)
        first = tokens[0]
        tokens.clear()
        found = sample(engine, second, session)
    assert_alike(found, wanted)
    assert first == 4 * len(FIRST[-1])
    assert tokens[0] <= len(second) * 9  # of contexts of 45 to 64 tokens


def test_contexts_that_have_little_in_common_with_the_last_are_computed_whole():
    others = [(*prompt[:20], *words(40, seed=50 + i)) for i, prompt in enumerate(PROMPTS)]
    engine, session = LocalEngine(MODEL, CODEC, ()), new_session()
    sample(engine, FIRST, session)
    with counted(MODEL) as tokens:
        found = sample(engine, others, session)
    assert tokens[0] == 4 * 60
    assert_alike(found, sample(LocalEngine(MODEL, CODEC, ()), others, None))


def test_another_session_knows_nothing_of_the_last_whose_weights_were_others():
    model = fresh()
    engine = LocalEngine(model, CODEC, ())
    sample(engine, FIRST, new_session())
    model.load_state_dict(fresh(seed=1).state_dict())
    assert_alike(sample(engine, APPENDED, new_session()), sample(LocalEngine(fresh(seed=1), CODEC, ()), APPENDED, None))


def test_calls_without_a_session_keep_nothing():
    model = fresh()
    engine = LocalEngine(model, CODEC, ())
    sample(engine, FIRST, new_session())
    model.load_state_dict(fresh(seed=1).state_dict())
    wanted = sample(LocalEngine(fresh(seed=1), CODEC, ()), APPENDED, None)
    assert_alike(sample(engine, APPENDED, None), wanted)
    assert engine.kept.tokens == 0
    with counted(model) as tokens:
        sample(engine, FIRST, None)
        tokens.clear()
        sample(engine, APPENDED, None)
    assert tokens[0] == 4 * len(APPENDED[-1])


def test_no_more_tokens_are_kept_than_the_limit_and_the_rest_is_computed():
    engine, session = LocalEngine(MODEL, CODEC, ()), new_session()
    engine.kept = KeptPrefixes(limit=100)  # two contexts of 45 and 49 tokens
    sample(engine, FIRST, session)
    with counted(MODEL) as tokens:
        found = sample(engine, REWRITTEN, session)
        assert tokens[0] == 4 * max(map(len, REWRITTEN))
        tokens.clear()
        sample(engine, FIRST[:2], session)
        assert tokens[0] < 2 * 10
    assert_alike(found, sample(LocalEngine(MODEL, CODEC, ()), REWRITTEN, None))


def test_several_batches_of_a_call_share_what_the_last_call_kept():
    engine, session = LocalEngine(MODEL, CODEC, (), batch_tokens=100), new_session()
    engine.kept = KeptPrefixes(limit=1000)
    sample(engine, FIRST, session)
    assert len(engine._batches(APPENDED)) > 1
    with counted(MODEL) as tokens:
        found = sample(engine, APPENDED, session)
    assert sum(tokens) == 4 + 5 + 6 + 7 + len(APPENDED) * (BUDGET - 1)
    assert_alike(found, sample(LocalEngine(MODEL, CODEC, ()), APPENDED, None))


@pytest.mark.parametrize(("context", "workers"), [("constant", 1), ("fold(2)", 1), ("full", 2)])
def test_an_evaluation_ends_as_one_that_keeps_nothing(context: str, workers: int):
    policy = load_policy(SHIPPED)
    source = SMALL.source("evaluation", PAPER)
    rollout = Rollout(
        engine=local_engine(policy.model, policy.codec, PAPER.stop_strings, workers=workers),
        dialogue=TagDialogue(policy.codec, PAPER),
        environment=source.environment,
        context=memory_policy(context),
    )
    config = Evaluation(objectives=(6,), tasks=4, temperature=1.0)
    _, found = evaluate(rollout, source, config, policy="shipped")
    tasks = source.tasks(objectives=6, count=4, seed=0)
    wanted = rollout(tasks, sampling=Sampling())
    assert max(len(t.turns) for t in wanted) > 2

    def sampled(attempts: Sequence) -> list:
        return [[replace(turn, logprobs=()) for turn in t.turns] for t in attempts]

    assert sampled(found[6]) == sampled(wanted)
