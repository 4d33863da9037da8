"""Rows share what they have in common, and neither that nor who samples beside them changes what is sampled."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from local_models import MODEL as WIDER
from local_models import counted
from precision import rounding
from transformers import (
    AutoModelForCausalLM,
    DiffLlamaConfig,
    DogeConfig,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    NemotronConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from worlds import CODEC, SMALL

from mem1.dialogue import TagDialogue
from mem1.engines.base import Completion, Request, Sampling, Streaming, new_session
from mem1.engines.local import Batch, LocalEngine
from mem1.engines.rows import KeptRows
from mem1.engines.workers import local_engine
from mem1.errors import UserError
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
Contexts = Sequence[tuple[int, ...]]


def words(count: int, seed: int) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(2, 500) for _ in range(count))


def local(model: PreTrainedModel = MODEL, batch_tokens: int = 24576) -> LocalEngine:
    return LocalEngine(model, CODEC, (), batch_tokens=batch_tokens)


def sample(engine: LocalEngine, contexts: Contexts, session: int | None = None) -> list[Completion]:
    sampling = Sampling(seed=3, session=session)
    return engine.complete(contexts, max_tokens=[BUDGET] * len(contexts), sampling=sampling)


def assert_alike(found: Sequence[Completion], wanted: Sequence[Completion]) -> None:
    assert [c.token_ids for c in found] == [c.token_ids for c in wanted]
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=0, atol=ROUNDING)


PROMPTS = [words(40 + 3 * i, seed=i) for i in range(4)]
FIRST = [(*prompt, *words(5 + i, seed=10 + i)) for i, prompt in enumerate(PROMPTS)]
REWRITTEN = [(*prompt, *words(9 - i, seed=20 + i)) for i, prompt in enumerate(PROMPTS)]
APPENDED = [(*context, *words(4 + i, seed=30 + i)) for i, context in enumerate(FIRST)]


def new(contexts: Contexts, shared: Sequence[int]) -> int:
    return sum(len(context) - same for context, same in zip(contexts, shared, strict=True))


@pytest.fixture
def nothing_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass computes one token of each row that decodes (`tests/engines/test_lookahead.py` is about guesses)."""
    monkeypatch.setattr("mem1.engines.local.guesses_each", lambda rows, kind: 0)


@pytest.mark.usefixtures("nothing_guessed")
class TestInASession:
    @pytest.mark.parametrize(
        ("second", "computed"),
        [
            (REWRITTEN, new(REWRITTEN, list(map(len, PROMPTS)))),
            (APPENDED, new(APPENDED, list(map(len, FIRST)))),
            (FIRST, 4),
            (REWRITTEN[1:3], new(REWRITTEN[1:3], list(map(len, PROMPTS[1:3])))),
            ([*REWRITTEN[:3], words(8, seed=40)], new(REWRITTEN[:3], list(map(len, PROMPTS[:3]))) + 8),
        ],
        ids=["rewritten", "appended", "the same", "fewer", "with a new one"],
    )
    def test_a_second_call_computes_only_what_is_new_and_samples_the_same(self, second: Contexts, computed: int):
        wanted = sample(local(), second)
        engine, session = local(), new_session()
        with counted(MODEL) as tokens:
            sample(engine, FIRST, session)
            first = tokens[0]
            tokens.clear()
            found = sample(engine, second, session)
        assert_alike(found, wanted)
        assert (first, tokens[0]) == (sum(map(len, FIRST)), computed)
        assert tokens[1:] == [len(second)] * (BUDGET - 1)

    def test_a_few_equal_tokens_are_computed_again(self):
        others = [(*prompt[:10], *words(40, seed=50 + i)) for i, prompt in enumerate(PROMPTS)]
        engine, session = local(), new_session()
        sample(engine, FIRST, session)
        with counted(MODEL) as tokens:
            found = sample(engine, others, session)
        assert tokens[0] == 4 * 50
        assert_alike(found, sample(local(), others))

    def test_another_session_knows_nothing_of_the_last_whose_weights_were_others(self):
        model = fresh()
        engine = local(model)
        sample(engine, FIRST, new_session())
        model.load_state_dict(fresh(seed=1).state_dict())
        assert_alike(sample(engine, APPENDED, new_session()), sample(local(fresh(seed=1)), APPENDED))

    def test_calls_without_a_session_keep_nothing(self):
        model = fresh()
        engine = local(model)
        sample(engine, FIRST, new_session())
        assert engine.kept.tokens == sum(map(len, FIRST)) + 4 * (BUDGET - 1)
        model.load_state_dict(fresh(seed=1).state_dict())
        assert_alike(sample(engine, APPENDED), sample(local(fresh(seed=1)), APPENDED))
        assert engine.kept.tokens == 0

    def test_no_more_tokens_are_kept_than_the_limit_and_the_oldest_are_forgotten(self):
        engine, session = local(), new_session()
        engine.kept = KeptRows(limit=150)  # two contexts of 54 and 58 tokens, with completions
        sample(engine, FIRST, session)
        assert 100 < engine.kept.tokens <= 150
        with counted(MODEL) as tokens:
            found = sample(engine, REWRITTEN, session)
        lost = [len(context) for context in REWRITTEN[:2]]
        assert tokens[0] == sum(lost) + new(REWRITTEN[2:], list(map(len, PROMPTS[2:])))
        assert_alike(found, sample(local(), REWRITTEN))


class Turns:
    """Attempts of some turns each; each context is that of the turn before, its completion, and a result."""

    def __init__(self, prompts: Contexts, *, turns: Sequence[int], budget: int = BUDGET) -> None:
        self.left, self.budget = list(turns), budget
        self.contexts: list[list[tuple[int, ...]]] = [[prompt] for prompt in prompts]
        self.completions: list[list[Completion]] = [[] for _ in prompts]

    def request(self, key: int) -> Request:
        turn = len(self.completions[key])
        return Request(context=self.contexts[key][turn], max_tokens=self.budget + key, seed=1000 * key + turn, key=key)

    def follow(self, finished: Sequence[tuple[Request, Completion]]) -> list[Request]:
        going_on = []
        for request, completion in finished:
            key = request.key
            self.completions[key].append(completion)
            self.left[key] -= 1
            if self.left[key]:
                result = words(3, seed=self.left[key])
                self.contexts[key].append((*request.context, *completion.token_ids, *result))
                going_on.append(self.request(key))
        return going_on

    def run(self, engine: Streaming) -> Turns:
        engine.stream([self.request(key) for key in range(len(self.left))], self.follow, sampling=Sampling())
        assert not any(self.left)
        return self


TURNS = [3, 1, 4, 2]


def alone(attempts: Turns) -> list[list[Completion]]:
    """The same requests, each by an engine that has sampled nothing before."""
    found = []
    for key, contexts in enumerate(attempts.contexts):
        asked = {"max_tokens": [attempts.budget + key]}
        calls = [(c, Sampling(seeds=(1000 * key + turn,))) for turn, c in enumerate(contexts)]
        found.append([local().complete([context], sampling=sampling, **asked)[0] for context, sampling in calls])
    return found


class TestWhileOthersGoOn:
    def test_attempts_at_their_own_pace_sample_what_each_context_does_alone(self):
        attempts = Turns(PROMPTS, turns=TURNS).run(local())
        assert [len(found) for found in attempts.completions] == TURNS
        for found, wanted in zip(attempts.completions, alone(attempts), strict=True):
            assert_alike(found, wanted)

    def test_so_do_two_processes(self):
        attempts = Turns(PROMPTS, turns=TURNS).run(local_engine(fresh(), CODEC, (), workers=2))
        for found, wanted in zip(attempts.completions, alone(attempts), strict=True):
            assert_alike(found, wanted)

    @pytest.mark.usefixtures("nothing_guessed")
    def test_a_reply_joins_at_the_next_step_and_only_what_is_new_is_computed(self):
        with counted(MODEL) as tokens:
            Turns(PROMPTS[:2], turns=[2, 1]).run(local())
        # the first attempt has 8 tokens a turn and the second 9; the last token of a completion is new with its reply
        assert tokens == [len(PROMPTS[0]) + len(PROMPTS[1]), *[2] * 7, 4 + 1, *[1] * 7]

    def test_a_rewritten_context_takes_over_its_prompt_from_its_own_row(self):
        def follow(finished: Sequence[tuple[Request, Completion]]) -> list[Request]:
            return [replace(r, context=REWRITTEN[0]) for r, _ in finished if r.context == FIRST[0]]

        request = Request(context=FIRST[0], max_tokens=BUDGET, seed=0, key=0)
        with counted(MODEL) as tokens:
            local().stream([request], follow, sampling=Sampling())
        assert tokens == [len(FIRST[0]), *[1] * 7, len(REWRITTEN[0]) - len(PROMPTS[0]), *[1] * 7]

    @pytest.mark.usefixtures("nothing_guessed")
    def test_attempts_at_one_task_compute_their_prompt_once_whether_they_begin_together_or_later(self):
        contexts = [PROMPTS[0]] * 3
        wanted = [
            [local().complete([PROMPTS[0]], max_tokens=[8 + k], sampling=Sampling(seeds=(1000 * k,)))[0]]
            for k in range(3)
        ]
        for batch_tokens in (24576, 2 * len(PROMPTS[0]) + 4):  # the third waits until the first has ended
            with counted(MODEL) as tokens:
                attempts = Turns(contexts, turns=[1, 1, 1]).run(local(batch_tokens=batch_tokens))
            assert sum(tokens) == len(PROMPTS[0]) - 1 + 8 + 9 + 10
            for found, expected in zip(attempts.completions, wanted, strict=True):
                assert_alike(found, expected)

    def test_rows_that_end_free_their_places_and_no_more_join_than_the_limit_allows(self):
        engine = local(batch_tokens=120)
        most, joined = 0, []
        with engine.opened(Sampling()) as batch:
            batch.add([Request(context=p, max_tokens=2 + i, seed=i, key=i) for i, p in enumerate(PROMPTS)])
            while batch.busy:
                batch.step()
                rows = batch.rows.live
                most = max(most, len(rows))
                joined.append(tuple(row.request.key for row in rows))
                assert len(rows) == 1 or len(rows) * max(len(row.request.context) for row in rows) <= 120
                assert batch.rows.places == len(rows) or batch.rows.places == 2
        assert most == 2
        # the last live row moves into the place of the one that has ended
        assert list(dict.fromkeys(joined)) == [(0, 1), (1, 2), (2, 3), (3,)]
        assert isinstance(batch, Batch) and not batch.rows.live

    @pytest.mark.parametrize("seed", range(8))
    def test_contexts_of_a_step_that_begin_alike_behind_short_prompts_sample_what_each_does_alone(self, seed: int):
        draw = random.Random(seed)
        prompt, second = words(8, seed=seed), words(draw.randint(16, 24), seed=100 + seed)

        def follow(finished: Sequence[tuple[Request, Completion]]) -> list[Request]:
            ended.extend(request for request, _ in finished if len(request.context) == 8)
            found.update((request.key, (request, done)) for request, done in finished if len(request.context) > 8)
            if len(ended) < 4:  # all that follow join in one step
                return []
            asked, ended[:] = list(ended), []
            ends = [words(draw.randint(1, 9), seed=draw.randrange(3)) for _ in asked]
            return [replace(r, context=(*prompt, *second, *end)) for r, end in zip(asked, ends, strict=True)]

        ended, found = list[Request](), dict[int, tuple[Request, Completion]]()
        first = [Request(context=prompt, max_tokens=BUDGET, seed=key, key=key) for key in range(4)]
        local().stream(first, follow, sampling=Sampling())
        assert len(found) == 4
        for request, done in found.values():
            alone = Sampling(seeds=(request.seed,))
            assert_alike([done], local().complete([request.context], max_tokens=[BUDGET], sampling=alone))

    def test_a_context_longer_than_the_limit_is_sampled_by_itself(self):
        engine = local(batch_tokens=10)
        assert_alike(sample(engine, FIRST), sample(local(), FIRST))

    def test_contexts_that_grow_beyond_the_limit_wait_and_lose_nothing(self):
        attempts = Turns(PROMPTS, turns=TURNS).run(local(batch_tokens=230))
        for found, wanted in zip(attempts.completions, alone(attempts), strict=True):
            assert_alike(found, wanted)


def test_a_long_context_is_computed_block_by_block():
    context = words(1100, seed=7)
    engine = local(WIDER)
    (found,) = sample(engine, [context])
    turn_ids = torch.tensor([[*context, *found.token_ids]])
    with torch.no_grad():
        logprobs_TV = WIDER(turn_ids).logits[0, len(context) - 1 : -1].log_softmax(-1)
    wanted = logprobs_TV.gather(1, turn_ids[0, len(context) :, None])[:, 0]
    bound = rounding(WIDER, tokens=1108, magnitude=10.0)
    torch.testing.assert_close(torch.tensor(found.logprobs), wanted, rtol=0, atol=bound)


SHAPE: dict[str, Any] = {
    **{"vocab_size": CODEC.vocab_size, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "num_hidden_layers": 2},
}


def test_scores_that_a_model_caps_are_capped_here():
    torch.manual_seed(0)
    model = Gemma2ForCausalLM(Gemma2Config(**SHAPE, attn_logit_softcapping=0.5, query_pre_attn_scalar=1)).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    (found,) = sample(local(model), [PROMPTS[0]])
    turn_ids = torch.tensor([[*PROMPTS[0], *found.token_ids]])
    with torch.no_grad():
        logprobs_TV = model(turn_ids).logits[0, len(PROMPTS[0]) - 1 : -1].log_softmax(-1)
    wanted = logprobs_TV.gather(1, turn_ids[0, len(PROMPTS[0]) :, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.logprobs), wanted, rtol=0, atol=ROUNDING)


def test_a_model_in_bfloat16_samples_what_it_would_write_by_itself():
    model = fresh().bfloat16()
    request = {"max_tokens": [4], "sampling": Sampling(temperature=0.0)}
    (found,) = local(model).complete([PROMPTS[0]], **request)
    with torch.no_grad():
        logprobs_TV = model(torch.tensor([[*PROMPTS[0], *found.token_ids]])).logits[0, -5:-1].float().log_softmax(-1)
    best = logprobs_TV.gather(1, torch.tensor(found.token_ids)[:, None])[:, 0]
    assert bool((best > logprobs_TV.amax(-1) - 0.1).all())
    torch.testing.assert_close(torch.tensor(found.logprobs), best, rtol=0, atol=0.1)


def test_a_model_with_attention_sinks_is_refused():
    model = GptOssForCausalLM(GptOssConfig(**SHAPE, num_local_experts=2, num_experts_per_tok=1))
    with pytest.raises(UserError, match="cannot be sampled in this process: it has attention sinks"):
        local(model)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (DiffLlamaConfig(**SHAPE), "DiffLlamaForCausalLM cannot be .* a layer attends twice"),
        (NemotronConfig(**SHAPE), "NemotronAttention cannot be .* without what they are given"),
        (DogeConfig(**SHAPE), "DogeAttention cannot be .* by a mask of their own"),
    ],
)
def test_so_is_one_whose_layers_attend_in_another_way(config: PreTrainedConfig, why: str):
    engine = local(AutoModelForCausalLM.from_config(config).eval())
    with pytest.raises(UserError, match=why):
        engine.complete([PROMPTS[0]], max_tokens=[4], sampling=Sampling())


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
