"""Rollouts ahead of the trainer: how far, by which weights each token is, and what interrupted completions become."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from model_servers import COMPLETIONS
from policies import SHAPE, assert_sampled_by, policy_server, tiny
from precision import rounding
from servers import wait_for
from sites import as_json, site
from worlds import CODEC

from mem1.algorithms.losses import Importance
from mem1.configuration import load_toml
from mem1.engines.base import Completion, Sampling
from mem1.engines.dialects import TokenIds
from mem1.engines.local import LocalEngine
from mem1.engines.openai import OpenAIEngine, concat
from mem1.engines.policy_sampler import BatchOptions, Sampler
from mem1.engines.request_queue import RequestQueue, Row
from mem1.engines.servers import ModelServer, Servers
from mem1.engines.workers import local_engine
from mem1.envs.atlas import AtlasTasks
from mem1.errors import UserError
from mem1.recipe.model import ModelConfig
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl, ServerRollouts
from mem1.records import Group, Trajectory, Turn
from mem1.rollout import Budget, Rollout
from mem1.run_folder import read_metrics
from mem1.training import rl
from mem1.training.gradients.samples import sampled_by
from mem1.training.monitoring.validation import rollout_metrics
from mem1.training.rl import staleness
from mem1.training.sampling.group_sampling import Cancelled, GroupSampler, RolloutPrefetcher
from mem1.training.sampling.weight_sync import WeightSync
from mem1.training.train import Progress, train

CONTEXT = [5, 9, 20, 7, 5]
BUDGET = 24


class Interrupting(LocalEngine):
    """Is interrupted by the token of its first row whose number is `after`."""

    def __init__(self, *args: Any, after: int, **kwargs: Any) -> None:
        super().__init__(*args, interrupt=torch.zeros((), dtype=torch.bool), **kwargs)
        self.after = after

    def stops(self, token: int, sampled: Sequence[int]) -> bool:
        if len(sampled) == self.after and self.interrupt is not None:
            self.interrupt.fill_(True)
        return super().stops(token, sampled)


def sampled_in_pieces(models: Sequence[Any], after: int, *, seed: int = 3) -> Completion:
    """By each model until it has sampled `after` tokens, by the last one to the end."""
    whole = Completion(token_ids=(), stopped=False, interrupted=True)
    for version, model in enumerate(models):
        last = version == len(models) - 1
        engine: LocalEngine = LocalEngine(model, CODEC, []) if last else Interrupting(model, CODEC, [], after=after)
        (piece,) = engine.complete(
            [[*CONTEXT, *whole.token_ids]],
            max_tokens=[BUDGET - len(whole.token_ids)],
            sampling=Sampling(seeds=(seed + version,)),
        )
        marked = Completion(
            token_ids=piece.token_ids,
            logprobs=piece.logprobs,
            stopped=piece.stopped,
            interrupted=piece.interrupted,
            weights_versions=((version, len(piece.token_ids)),),
        )
        whole = concat(whole, marked, CODEC, [])
    return whole


def assert_each_token_is_by_its_weights(model_of: Callable[[int], Any], context: Sequence[int], turn: Any) -> None:
    """`turn` has token ids, log-probabilities and versions: a turn or a completion."""
    ids = turn.completion_ids if isinstance(turn, Turn) else turn.token_ids
    start = 0
    for version, tokens in turn.weights_versions:
        stop = start + tokens
        assert_sampled_by(model_of(version), [*context, *ids[:start]], ids[start:stop], turn.logprobs[start:stop])
        start = stop
    assert start == len(ids)


class TestPieces:
    def test_an_interrupted_completion_ends_where_it_is_and_is_gone_on_with_by_other_weights(self):
        whole = sampled_in_pieces([tiny(0), tiny(1), tiny(2)], after=5)
        assert whole.weights_versions == ((0, 5), (1, 5), (2, BUDGET - 10))
        assert (whole.stopped, whole.interrupted) == (False, False)
        assert_each_token_is_by_its_weights(tiny, CONTEXT, whole)

    def test_rows_that_have_ended_are_not_called_interrupted(self):
        engine = Interrupting(tiny(), CODEC, [], after=4)
        rows = engine.complete([CONTEXT, CONTEXT], max_tokens=[2, 9], sampling=Sampling())
        assert [(len(row.token_ids), row.interrupted) for row in rows] == [(2, False), (4, True)]

    def test_an_engine_that_is_interrupted_already_samples_nothing(self):
        engine = LocalEngine(tiny(), CODEC, [], interrupt=torch.ones((), dtype=torch.bool))
        (done,) = engine.complete([CONTEXT], max_tokens=[9], sampling=Sampling())
        assert (done.token_ids, done.interrupted, done.stopped) == ((), True, False)

    def test_the_flag_reaches_the_other_processes_that_sample(self):
        flag = torch.zeros((), dtype=torch.bool).share_memory_()
        engine = local_engine(tiny(), CODEC, [], workers=2, interrupt=flag)
        asked = {"max_tokens": [9] * 4, "sampling": Sampling()}
        assert not any(done.interrupted for done in engine.complete([CONTEXT] * 4, **asked))
        flag.fill_(True)
        assert all(done.interrupted for done in engine.complete([CONTEXT] * 4, **asked))

    def test_a_stop_string_across_the_border_ends_the_whole(self):
        ids = CODEC.encode("a city now a mayor now a book")
        cut = next(n for n in range(2, len(ids)) if "city now" in CODEC.decode(ids[:n]))
        first = Completion(
            token_ids=ids[: cut - 1], logprobs=(-1.0,) * (cut - 1), stopped=False, weights_versions=((1, cut - 1),)
        )
        rest = Completion(
            token_ids=ids[cut - 1 :],
            logprobs=(-2.0,) * (len(ids) - cut + 1),
            stopped=False,
            interrupted=True,
            weights_versions=((2, len(ids) - cut + 1),),
        )
        whole = concat(first, rest, CODEC, ["city now"])
        assert CODEC.decode(whole.token_ids).endswith("city now") and (whole.stopped, whole.interrupted) == (
            True,
            False,
        )
        assert whole.weights_versions == ((1, cut - 1), (2, 1)) and len(whole.logprobs) == cut
        assert concat(first, rest, CODEC, ["</query>"]).token_ids == ids

    def test_runs_of_the_same_weights_are_one_and_missing_log_probabilities_stay_missing(self):
        a = Completion(token_ids=(1, 2), logprobs=(-1.0, -1.0), interrupted=True, weights_versions=((4, 2),))
        b = Completion(token_ids=(3,), logprobs=(-1.0,), weights_versions=((4, 1),))
        assert concat(a, b, CODEC, []).weights_versions == ((4, 3),)
        assert concat(a, Completion(token_ids=(3,)), CODEC, []).logprobs == ()


class TestOnAServer:
    def test_a_pause_that_aborts_returns_the_completions_in_progress(self):
        sampler = Sampler(tiny(), CODEC)
        sampler.version = 2
        began = threading.Event()
        inside = LocalEngine(sampler.model, CODEC, [], interrupt=sampler._interrupt)

        class Slow(LocalEngine):
            def stops(self, token: int, sampled: Sequence[int]) -> bool:
                began.set()
                wait_for(lambda: bool(sampler._interrupt))
                return False

        inside.__class__ = Slow
        sampler._engines[()] = inside
        call = RequestQueue(sampler, size=1).submit([Row((5, 9), 400, 1)], BatchOptions(1.0, ()))
        assert began.wait(60)
        sampler.pause(abort=True)
        done = call.results.result(60)
        assert done[0].interrupted and 0 < len(done[0].token_ids) < 400
        assert done[0].weights_versions == ((2, len(done[0].token_ids)),)
        assert not sampler._interrupt, "what comes after resume() is sampled to its end"

    def test_updates_under_load_leave_no_completion_short_and_no_token_unmarked(self, tmp_path):
        (tmp_path / "weights").mkdir()
        models = cache(tiny)
        with ExitStack() as stack:
            servers = [stack.enter_context(policy_server(tmp_path / "weights"))[0] for _ in range(2)]
            config = ServerRollouts(servers=tuple(servers), weights_folder=str(tmp_path / "weights"), poll_s=0.02)
            sync = stack.enter_context(WeightSync(config, CODEC, []))
            sync.push_weights(models(0), 0)
            done: list[Completion] = []

            def sample() -> None:
                for seed in itertools.count():
                    done.extend(sync.engine.complete([CONTEXT] * 4, max_tokens=[60] * 4, sampling=Sampling(seed=seed)))
                    if over.is_set():
                        return

            over = threading.Event()
            work = threading.Thread(target=sample)
            work.start()
            for version in range(1, 100):
                sync.push_weights(models(version), version)
                if any(len(completion.weights_versions) > 1 for completion in list(done)):
                    break
            over.set()
            work.join(120)
        assert {completion.failed for completion in done} == {None}
        assert all(len(completion.token_ids) == 60 for completion in done)
        several = [completion for completion in done if len(completion.weights_versions) > 1]
        assert several, "no update came while a completion was sampled"
        for completion in [*several, *done[:4]]:
            versions = [version for version, _ in completion.weights_versions]
            assert versions == sorted(versions)
            assert_each_token_is_by_its_weights(models, CONTEXT, completion)

    @pytest.mark.parametrize(("said", "good"), [(3, True), (4, True), (5, False), (2, False), (None, False)])
    def test_an_answer_may_be_by_any_weights_between_its_question_and_itself(self, said, good):
        """Two versions are published while the answer is made: 3 before, 4 after."""
        published = iter([3, *[4] * 99])
        done = self.answered([7], "length", said, lambda: next(published))
        assert (done.failed is None) is good
        if good:
            assert done.weights_versions == ((said, 1),)
        else:
            assert done.failed is not None and "not by 3 to 4" in done.failed

    def test_a_server_that_interrupts_for_ever_has_failed(self):
        done = self.answered([], "abort", 3, lambda: 3)
        assert done.failed is not None and "interrupted 4 times" in done.failed

    def answered(self, ids: list[int], reason: str, version: int | None, published: Callable[[], int]) -> Completion:
        """The completion from a server that always gives this answer."""
        choice = {"text": "", "finish_reason": reason, "token_ids": ids, "prompt_token_ids": CONTEXT}
        choice |= {"logprobs": {"token_logprobs": [-0.5] * len(ids)}, "weights_version": version}
        with site({COMPLETIONS: as_json({"choices": [choice]})}) as running:
            config = ModelServer(
                urls=(f"{running.url}/v1",), model="m", tries=4, first_wait_s=0.0, processed_logprobs=True
            )
            engine = OpenAIEngine(Servers(config), config, TokenIds(), CODEC, [], published=published)
            return engine.complete([CONTEXT], max_tokens=[9], sampling=Sampling())[0]


class TestAhead:
    def made(
        self, *, steps: int = 6, staleness: int = 2, fails_at: int | None = None
    ) -> tuple[RolloutPrefetcher, list[int]]:
        begun: list[int] = []

        def sample(step: int) -> list[Group]:
            if step == fails_at:
                raise UserError("the world ends")
            begun.append(step)
            return [Group(trajectories=(Trajectory(turns=(), attempt=step),))]

        return RolloutPrefetcher(sample, steps=steps, staleness=staleness), begun

    def test_rollouts_come_in_order_and_none_is_begun_before_its_weights_are_there(self):
        ahead, begun = self.made()
        for step in range(6):
            ahead.published(step)
            (group,) = ahead.take(step)
            assert group.trajectories[0].attempt == step
            wait_for(lambda step=step: len(begun) == min(6, step + 3))
            time.sleep(0.02)
            assert begun == list(range(min(6, step + 3))), "at most two steps ahead"

    def test_a_resumed_run_begins_with_its_own_step(self):
        ahead, begun = self.made(staleness=1)
        ahead.published(4)
        assert ahead.take(4)[0].trajectories[0].attempt == 4
        wait_for(lambda: len(begun) == 2)
        assert begun == [4, 5]

    def test_an_error_of_the_thread_is_raised_by_take(self):
        ahead, _ = self.made(fails_at=1)
        ahead.published(0)
        ahead.take(0)
        with pytest.raises(UserError, match="the world ends"):
            ahead.take(1)

    def test_no_rollout_begins_once_the_run_has_ended(self):
        config = Rl(curriculum=(Phase(steps=9),), importance=Importance(), max_staleness=1)
        ended: Any = SimpleNamespace(closed=True, sleeps=False)
        nothing: Any = None
        sampler = GroupSampler(nothing, config, nothing, nothing, seed=0, sync=ended)
        assert sampler._prefetcher is not None
        sampler._prefetcher.published(0)
        with pytest.raises(Cancelled):
            sampler._prefetcher.take(0)


def test_staleness_is_counted_by_tokens():
    turn = Turn(context_ids=(1,), completion_ids=(1, 2, 3, 4, 5), weights_versions=((6, 3), (7, 2)))
    other = Turn(context_ids=(1,), completion_ids=(1, 2), weights_versions=((8, 2),))
    trajectory = Trajectory(turns=(turn, other))
    assert staleness([trajectory], 8) == {2: 3, 1: 2, 0: 2}
    assert list(sampled_by(trajectory, 7)) == [False] * 3 + [True] * 2 + [False] * 2
    alone = Trajectory(turns=(other,))
    assert [rollout_metrics([t])["mixed_weights_share"] for t in (trajectory, alone)] == [1.0, 0.0]


STEPS = 3


def ahead_by_one(servers: ServerRollouts) -> Recipe:
    return Recipe(
        model=ModelConfig(new=SHAPE),
        tasks=AtlasTasks(entities=40, worlds=1, questions_per_world=50),
        budget=Budget(completion_extra=24, context=400),
        # the entropy bonus moves the weights although a policy that knows nothing earns nothing
        rl=Rl(
            curriculum=(Phase(steps=STEPS, objectives=(1,)),),
            tasks_per_step=2,
            group_size=3,
            warmup=0,
            learning_rate=0.01,
            entropy=0.1,
            importance=Importance(),
            max_staleness=1,
        ),
        rollout=servers,
        checkpoint_every=1,
        writers=(),
    )


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[ServerRollouts]:
    (tmp_path / "weights").mkdir()
    with ExitStack() as stack:
        started = [stack.enter_context(policy_server(tmp_path / "weights"))[0] for _ in range(2)]
        yield ServerRollouts(servers=tuple(started), weights_folder=str(tmp_path / "weights"), poll_s=0.05)


class TestRuns:
    def test_a_run_ahead_trains_every_rollout_once_and_none_is_older_than_allowed(self, servers, tmp_path, monkeypatch):
        trained: list[tuple[int, list[Turn]]] = []
        update = rl.RlStage.update

        def recording(stage: rl.RlStage, groups: Sequence[Group], index: int) -> Any:
            trained.append((index, [turn for g in groups for t in g.trajectories for turn in t.turns]))
            models[index] = {k: v.clone() for k, v in stage.policy.model.state_dict().items()}
            return update(stage, groups, index)

        models: dict[int, Any] = {}
        monkeypatch.setattr(rl.RlStage, "update", recording)
        train(ahead_by_one(servers), tmp_path / "run", command=["mem1"])
        assert [index for index, _ in trained] == list(range(STEPS))
        rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
        assert all(row["staleness_max"] <= 1 for row in rows) and rows[0]["staleness_max"] == 0
        assert any(row["staleness_max"] == 1 for row in rows), "nothing was sampled ahead"
        limit = rounding(tiny(), tokens=400, magnitude=10.0)
        assert all(row["sampler_trainer_max"] is None or row["sampler_trainer_max"] < limit for row in rows)

        def by(version: int) -> Any:
            model = tiny()
            model.load_state_dict(models[version])
            return model

        for index, turns in trained:
            for turn in turns[::6]:
                assert {version for version, _ in turn.weights_versions} <= {index - 1, index}
                assert_each_token_is_by_its_weights(by, turn.context_ids, turn)

    def test_a_stopped_run_continues_with_its_next_step_and_misses_no_task(self, servers, tmp_path, monkeypatch):
        asked: list[list[str]] = []
        call = Rollout.__call__

        def recording(rollout: Rollout, tasks: Any, **options: Any) -> Any:
            asked.append([task.id for task in tasks])
            return call(rollout, tasks, **options)

        def stop(progress: Progress) -> None:
            if progress.step == 2:
                raise KeyboardInterrupt

        monkeypatch.setattr(Rollout, "__call__", recording)
        config = ahead_by_one(servers)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", command=["mem1"], on_step=stop)
        before = len(asked)
        assert train(config, tmp_path / "run", command=["mem1"], resume=True).complete
        rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
        assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
        done = STEPS - len(asked[before:])
        assert done >= 1, "what has a checkpoint is not done again"
        assert asked[before] == asked[done], "the rollout that was made ahead is made again, of the same tasks"

    def test_staleness_without_importance_weights_or_servers_is_refused(self, tmp_path):
        with pytest.raises(ValueError, match=r"max_staleness = 2.*\[rl\.importance\]"):
            Rl(curriculum=(Phase(steps=1),), max_staleness=2)
        path = tmp_path / "r.toml"
        path.write_text(
            '[tasks]\nkind = "atlas"\n[rl]\nmax_staleness = 1\n'
            "[[rl.curriculum]]\nsteps = 1\n[rl.importance]\ncap = 2.0\n"
        )
        with pytest.raises(UserError, match=r"needs servers that sample.*serve-policy"):
            load_toml(path, Recipe)
