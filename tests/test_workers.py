"""Sampling in several processes: the same completions, the weights of the moment, and no silent loss."""

from __future__ import annotations

import copy
import os
import signal

import pytest
import torch
from test_local_engine import MODEL, ROUNDING, WORDS, some_contexts
from worlds import CODEC

from mem1.engines.base import Completion, Sampling
from mem1.engines.local import LocalEngine
from mem1.engines.workers import ParallelEngine, local_engine
from mem1.errors import UserError

SAMPLING = Sampling(seed=5)


def sample(engine: LocalEngine | ParallelEngine, count: int = 13) -> list[Completion]:
    return engine.complete(some_contexts(count), max_tokens=[40 + i % 3 for i in range(count)], sampling=SAMPLING)


@pytest.fixture
def engine() -> LocalEngine:
    return LocalEngine(copy.deepcopy(MODEL), CODEC, WORDS)


def assert_same(some: list[Completion], others: list[Completion]) -> None:
    assert [c.token_ids for c in some] == [c.token_ids for c in others]
    assert [c.stopped for c in some] == [c.stopped for c in others]
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_number_of_workers_changes_nothing_that_is_sampled(engine: LocalEngine, workers: int):
    alone = sample(engine)
    assert len({len(c.token_ids) for c in alone}) > 3
    assert_same(sample(ParallelEngine(engine, workers=workers)), alone)


def test_fewer_contexts_than_workers(engine: LocalEngine):
    parallel = ParallelEngine(engine, workers=2)
    assert parallel.complete([], max_tokens=[], sampling=SAMPLING) == []
    assert_same(sample(parallel, 1), sample(engine, 1))


def test_a_worker_sees_an_optimiser_step(engine: LocalEngine):
    parallel = ParallelEngine(engine, workers=2)
    before = sample(parallel)
    optimizer = torch.optim.AdamW(engine.model.parameters(), lr=0.05)
    engine.model(input_ids=torch.arange(2, 30)[None]).logits[..., 7].sum().backward()
    optimizer.step()
    after = sample(parallel)
    assert after[-1].token_ids != before[-1].token_ids, "the last rows are sampled by the worker"
    assert_same(after, sample(engine))


def test_two_engines_share_the_processes_and_keep_their_own_weights(engine: LocalEngine):
    other = LocalEngine(copy.deepcopy(MODEL), CODEC, WORDS)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.5)
    pair = [ParallelEngine(e, workers=2) for e in (engine, other)]
    assert pair[0]._helpers[0].process.pid == pair[1]._helpers[0].process.pid
    first, second = (sample(e) for e in pair)
    assert_same(first, sample(engine))
    assert_same(second, sample(other))


def test_an_error_is_raised_here_and_the_next_call_gets_its_own_answers(engine: LocalEngine):
    parallel = ParallelEngine(engine, workers=2)
    impossible = 10**6
    for contexts in ([(5, 6), (5, impossible)], [(5, impossible), (5, 6)]):  # in the worker, in this process
        with pytest.raises(IndexError):
            parallel.complete(contexts, max_tokens=[4, 4], sampling=SAMPLING)
        assert_same(sample(parallel), sample(engine))


def test_a_killed_worker_is_a_clear_error_and_the_next_engine_gets_a_new_one(engine: LocalEngine):
    parallel = ParallelEngine(engine, workers=2)
    pid = parallel._helpers[0].process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(UserError, match="workers = 1"):
        sample(parallel)
    assert_same(sample(ParallelEngine(engine, workers=2)), sample(engine))


def test_one_worker_is_this_process():
    assert isinstance(local_engine(MODEL, CODEC, WORDS, workers=1), LocalEngine)
