"""Sampling from a transformers model, in one process and in several: what is sampled, with what odds, when it stops."""

from __future__ import annotations

import copy
import os
import platform
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from local_models import MODEL, fresh
from precision import rounding
from transformers import GenerationConfig, PreTrainedModel
from worlds import CODEC

from mem1.engines.base import Completion, Sampling
from mem1.engines.codec import Codec
from mem1.engines.device import flushed_denormals
from mem1.engines.local import LocalEngine, draw_noise, drawn
from mem1.engines.openai import concat
from mem1.engines.workers import ParallelEngine, local_engine
from mem1.errors import UserError
from mem1.interrupts import interruptible
from mem1.policy.policy import load_policy
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER
from mem1.records import Trajectory, Turn
from mem1.training.logprobs import completion_logprobs

pytestmark = pytest.mark.numeric


WORDS = CODEC.decode(list(range(2, 42))).split()
"""A random model writes one of these 40 of 538 words every 13 tokens or so."""
ENDLESS = ("</answer> </answer>",)
"""Stop string of two tokens that a random model does not write."""
ROUNDING = rounding(MODEL, tokens=70, magnitude=10.0)
"""Nats that two orders of addition may make of a log-prob here: a context has up to 30 tokens, a completion 40."""


def some_contexts(count: int = 8, seed: int = 0) -> list[tuple[int, ...]]:
    rng = random.Random(seed)
    return [tuple(rng.randrange(2, 500) for _ in range(rng.randint(3, 30))) for _ in range(count)]


def sample(
    contexts: Sequence[Sequence[int]],
    *,
    stops: Sequence[str] = WORDS,
    budget: int = 30,
    temperature: float = 1.0,
    seed: int = 5,
    batch_tokens: int = 8192,
    model: PreTrainedModel = MODEL,
) -> list[Completion]:
    engine = LocalEngine(model, CODEC, stops, batch_tokens=batch_tokens)
    sampling = Sampling(temperature=temperature, seed=seed)
    return engine.complete(contexts, max_tokens=[budget] * len(contexts), sampling=sampling)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_are_those_of_a_plain_forward_pass(temperature: float):
    contexts = some_contexts()
    completions = sample(contexts, temperature=temperature)
    assert len({len(c.token_ids) for c in completions}) > 3, "rows must end at different times"
    turns = [Turn(context_ids=ids, completion_ids=c.token_ids) for ids, c in zip(contexts, completions, strict=True)]
    (plain,) = completion_logprobs(MODEL, [Trajectory(turns=tuple(turns))], temperature=temperature, packed=False)
    for completion, expected in zip(completions, plain, strict=True):
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected.detach(), rtol=0, atol=ROUNDING)


def test_the_size_of_a_batch_changes_nothing_that_is_sampled():
    contexts = some_contexts()
    together = sample(contexts)
    for batch_tokens in (1, 60):  # one row a batch; two to twenty
        assert [c.token_ids for c in sample(contexts, batch_tokens=batch_tokens)] == [c.token_ids for c in together]


def test_rows_that_are_done_leave_the_batch_and_change_nothing_for_the_others():
    contexts = some_contexts()
    stopping, endless = sample(contexts), sample(contexts, stops=ENDLESS)
    assert sum(c.stopped for c in stopping) > 0 and min(len(c.token_ids) for c in stopping) < 10
    for short, long in zip(stopping, endless, strict=True):
        assert short.token_ids == long.token_ids[: len(short.token_ids)]
        assert short.logprobs == pytest.approx(long.logprobs[: len(short.logprobs)], abs=ROUNDING)


def test_the_same_seed_samples_the_same_and_another_seed_does_not():
    contexts = some_contexts()
    assert sample(contexts) == sample(contexts)
    assert sample(contexts, seed=6) != sample(contexts)


def test_random_numbers_are_those_of_splitmix64():
    # the reference program's first three numbers for the state 1234567
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    noise_BT = draw_noise([1234567, 2**63 - 1], 5)
    assert noise_BT[0, :3].tolist() == [(n >> 11) / 2**53 for n in known]
    assert noise_BT.dtype == torch.float64 and noise_BT.shape == (2, 5)
    assert len(set(noise_BT.flatten().tolist())) == 10


def test_random_numbers_are_even_and_those_of_neighbouring_seeds_have_nothing_to_do_with_each_other():
    noise_BT = draw_noise(range(2000), 50)
    # of 100,000 even numbers in ten bins of 10,000, each within five standard deviations of 95
    assert ((noise_BT.flatten() * 10).long().bincount() - 10_000).abs().max() < 475
    assert abs(torch.corrcoef(torch.stack([noise_BT[:-1].flatten(), noise_BT[1:].flatten()]))[0, 1]) < 5 / 100_000**0.5


def test_samples_depend_only_on_the_seed_of_their_context():
    contexts, seeds = some_contexts(5), (11, 12, 13, 14, 15)
    engine = LocalEngine(MODEL, CODEC, WORDS)

    def drawn(places: Sequence[int], budget: int) -> list[tuple[int, ...]]:
        sampling = Sampling(seeds=tuple(seeds[i] for i in places))
        budgets = [budget + place for place in range(len(places))]
        found = engine.complete([contexts[i] for i in places], max_tokens=budgets, sampling=sampling)
        return [c.token_ids[:20] for c in found]

    together = drawn(range(5), 40)
    assert drawn([3, 1], 20) == [together[3], together[1]]
    assert engine.complete(contexts[:1], max_tokens=[20], sampling=Sampling(seeds=(12,)))[0].token_ids != together[0]
    with pytest.raises(ValueError, match="2 contexts have 1 seeds"):
        engine.complete(contexts[:2], max_tokens=[20, 20], sampling=Sampling(seeds=(12,)))


def test_the_same_context_twice_is_sampled_twice():
    first, second = sample([some_contexts()[0]] * 2)
    assert first.token_ids != second.token_ids


@settings(max_examples=50)
@given(st.integers(1, 2_000), st.integers(0, 10**6), st.floats(0, 1, exclude_max=True))
def test_a_token_is_drawn_where_the_cumulated_probability_passes_the_noise(vocabulary: int, seed: int, noise: float):
    logits_nV = 8 * torch.randn(3, vocabulary, generator=torch.Generator().manual_seed(seed))
    logprobs_nV = logits_nV.log_softmax(-1)
    cumulated_nV = logprobs_nV.double().exp().cumsum(-1)
    tokens_n = drawn(logprobs_nV, torch.full((3,), noise, dtype=torch.float64))
    threshold_n = noise * cumulated_nV[:, -1]
    after_n = cumulated_nV.gather(1, tokens_n[:, None])[:, 0]
    before_n = after_n - logprobs_nV.double().exp().gather(1, tokens_n[:, None])[:, 0]
    assert bool((before_n - 1e-6 <= threshold_n).all() and (threshold_n <= after_n + 1e-6).all())


def test_a_token_of_no_probability_is_never_drawn_whatever_is_rounded():
    logprobs_nV = torch.full((4, 700), -torch.inf)
    logprobs_nV[:, 3] = logprobs_nV[:, 600] = float(torch.tensor(0.5).log())
    noise_n = torch.tensor([0.0, 0.4999, 0.5001, 1 - 2**-53], dtype=torch.float64)
    assert drawn(logprobs_nV, noise_n).tolist() == [3, 3, 600, 600]


def test_samples_follow_the_softmax():
    context = some_contexts()[0]
    firsts = [c.token_ids[0] for c in sample([context] * 1500, budget=1, temperature=0.2)]
    with torch.no_grad():
        odds_V = torch.softmax(MODEL(torch.tensor([context])).logits[0, -1] / 0.2, dim=-1)
    counts_V = torch.bincount(torch.tensor(firsts), minlength=len(odds_V))
    top = odds_V.argsort(descending=True)[:5]
    # five standard deviations of a count of 1500 draws
    deviation = 5 * (1500 * odds_V[top] * (1 - odds_V[top])).sqrt()
    assert bool(((counts_V[top] - 1500 * odds_V[top]).abs() < deviation).all())
    assert int(counts_V[top].sum()) > 40


def test_greedy_takes_the_likeliest_token_and_gives_its_logprob_at_temperature_one():
    context = some_contexts()[3]
    (completion,) = sample([context], temperature=0.0, stops=ENDLESS, budget=8)
    assert completion.token_ids == sample([context], temperature=0.0, stops=ENDLESS, budget=8, seed=9)[0].token_ids
    with torch.no_grad():
        logits_TV = MODEL(torch.tensor([context + completion.token_ids])).logits[0, len(context) - 1 : -1]
    assert logits_TV.argmax(-1).tolist() == list(completion.token_ids)
    assert completion.logprobs == pytest.approx(logits_TV.log_softmax(-1).amax(-1).tolist(), abs=ROUNDING)


def test_each_row_has_a_budget_of_its_own():
    contexts = some_contexts(3)
    engine = LocalEngine(MODEL, CODEC, ENDLESS)
    completions = engine.complete(contexts, max_tokens=[1, 7, 30], sampling=Sampling())
    assert [len(c.token_ids) for c in completions] == [1, 7, 30]
    assert [len(c.logprobs) for c in completions] == [1, 7, 30]
    assert not any(c.stopped for c in completions)


def test_a_completion_ends_with_its_first_stop_token():
    stops = set(CODEC.single_tokens(WORDS) or ())
    assert len(stops) == 40
    ended = [c for c in sample(some_contexts()) if c.stopped]
    assert len(ended) > 5
    for completion in ended:
        assert completion.token_ids[-1] in stops
        assert not stops & set(completion.token_ids[:-1])


def test_a_stop_on_the_last_token_of_the_budget_still_counts_as_stopped():
    context = some_contexts()[0]
    (completion,) = sample([context])
    assert completion.stopped
    (again,) = sample([context], budget=len(completion.token_ids))
    assert again == completion


def test_a_stop_string_of_several_tokens_is_found_in_the_text():
    context = some_contexts()[1]
    (free,) = sample([context], stops=ENDLESS)
    assert not free.stopped
    stop = CODEC.decode(free.token_ids[10:12])  # what it wrote as its 11th and 12th token
    assert stop not in CODEC.decode(free.token_ids[:11])
    (cut,) = sample([context], stops=[stop])
    assert cut.token_ids == free.token_ids[:12]
    assert cut.stopped


def test_a_stop_string_that_no_word_of_the_vocabulary_is_ends_a_completion_within_a_word():
    context = some_contexts()[1]
    (free,) = sample([context], stops=ENDLESS)
    word = next(w for w in CODEC.decode(free.token_ids).split() if len(w) > 3 and w.isalpha())
    stop = word[1:]
    assert CODEC.encode(stop) == (CODEC.unknown_id,)
    (cut,) = sample([context], stops=[stop])
    assert cut.stopped and CODEC.decode(cut.token_ids).endswith(word)


def test_a_tag_written_letter_by_letter_is_a_stop_string_too():
    plain = Codec(bpe_tokenizer(["x"], vocab_size=300, tags=PAPER))
    letters = [i for c in "Oslo</answer>" for i in plain.encode(c)]
    engine = LocalEngine(MODEL, plain, ["</answer>", "two words"])
    assert engine.stop_ids is None
    assert not engine.stops(letters[-2], letters[:-1])
    assert engine.stops(letters[-1], letters)


def test_a_completion_ends_at_the_other_ends_that_the_models_configuration_names_where_they_are_added_tokens():
    plain = Codec(bpe_tokenizer(["x"], vocab_size=300, tags=PAPER))
    model = copy.deepcopy(MODEL)
    end, word = plain.added_tokens["</query>"], plain.encode("x")[0]
    model.generation_config = GenerationConfig(eos_token_id=[end, word])
    engine = LocalEngine(model, plain, ["</answer>"])
    assert engine.stops(end, [word, end])
    assert not engine.stops(word, [end, word])
    model.generation_config = GenerationConfig(eos_token_id=end)
    assert LocalEngine(model, plain, ["</answer>"]).end_ids == frozenset([end])
    assert not LocalEngine(MODEL, plain, ["</answer>"]).stops(end, [end])


def test_the_model_is_left_in_the_mode_in_which_it_was():
    attention = MODEL.config._attn_implementation
    for mode in (True, False):
        MODEL.train(mode)
        sample(some_contexts(2), budget=3)
        assert MODEL.training is mode
        assert MODEL.config._attn_implementation == attention


def test_nothing_in_nothing_out():
    assert sample([]) == []


SEEDED = Sampling(seed=5)


def in_parallel(engine: LocalEngine | ParallelEngine, count: int = 13) -> list[Completion]:
    return engine.complete(some_contexts(count), max_tokens=[40 + i % 3 for i in range(count)], sampling=SEEDED)


@pytest.fixture
def engine() -> LocalEngine:
    return LocalEngine(fresh(), CODEC, WORDS)


def assert_same(some: list[Completion], others: list[Completion]) -> None:
    assert [c.token_ids for c in some] == [c.token_ids for c in others]
    assert [c.stopped for c in some] == [c.stopped for c in others]
    for one, other in zip(some, others, strict=True):
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_number_of_workers_changes_nothing_that_is_sampled(engine: LocalEngine, workers: int):
    alone = in_parallel(engine)
    assert len({len(c.token_ids) for c in alone}) > 3
    assert_same(in_parallel(ParallelEngine(engine, workers=workers)), alone)


def test_fewer_contexts_than_workers_start_none(engine: LocalEngine):
    parallel = ParallelEngine(engine, workers=2)
    assert parallel.complete([], max_tokens=[], sampling=SEEDED) == []
    assert_same(in_parallel(parallel, 1), in_parallel(engine, 1))
    assert parallel._helpers == []


def test_a_worker_sees_an_optimiser_step(engine: LocalEngine):
    parallel = ParallelEngine(engine, workers=2)
    before = in_parallel(parallel)
    optimizer = torch.optim.AdamW(engine.model.parameters(), lr=0.05)
    engine.model(input_ids=torch.arange(2, 30)[None]).logits[..., 7].sum().backward()
    optimizer.step()
    after = in_parallel(parallel)
    assert after[-1].token_ids != before[-1].token_ids, "the last rows are sampled by the worker"
    assert_same(after, in_parallel(engine))


def test_a_worker_sees_a_copy_in_another_precision(engine: LocalEngine):
    """As the policy that samples is for a checkpoint, while a copy is trained."""
    parallel = ParallelEngine(engine, workers=2)
    before = in_parallel(parallel)
    for precision in (torch.bfloat16, torch.float32):
        engine.model.to(precision)  # type: ignore[arg-type]
        with torch.no_grad():
            for weight in engine.model.parameters():
                weight.mul_(1.5)
        after = in_parallel(parallel)
        assert after[-1].logprobs != before[-1].logprobs, "the last rows are sampled by the worker"
        if precision is torch.float32:
            assert_same(after, in_parallel(engine))
        before = after


def test_a_model_that_has_scored_turns_alone_still_goes_to_the_workers(engine: LocalEngine):
    turn = Turn(context_ids=(5, 6), completion_ids=(7, 8))
    ((logprobs,),) = completion_logprobs(engine.model, [Trajectory(turns=(turn,))], packed=False)
    assert len(logprobs) == 2
    assert_same(in_parallel(ParallelEngine(engine, workers=2), 3), in_parallel(engine, 3))


def test_two_engines_share_the_processes_and_keep_their_own_weights(engine: LocalEngine):
    other = LocalEngine(fresh(), CODEC, WORDS)
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.5)
    pair = [ParallelEngine(e, workers=2) for e in (engine, other)]
    first, second = (in_parallel(e) for e in pair)
    assert pair[0]._helpers[0].process.pid == pair[1]._helpers[0].process.pid
    assert_same(first, in_parallel(engine))
    assert_same(second, in_parallel(other))


def test_an_error_is_raised_here_and_the_next_call_gets_its_own_answers(engine: LocalEngine):
    parallel = ParallelEngine(engine, workers=2)
    impossible = 10**6
    for contexts in ([(5, 6), (5, impossible)], [(5, impossible), (5, 6)]):  # in the worker, in this process
        with pytest.raises(IndexError):
            parallel.complete(contexts, max_tokens=[4, 4], sampling=SEEDED)
        assert_same(in_parallel(parallel), in_parallel(engine))


def test_a_killed_worker_is_a_clear_error_and_the_next_engine_gets_a_new_one(engine: LocalEngine):
    parallel = ParallelEngine(engine, workers=2)
    in_parallel(parallel)
    pid = parallel._helpers[0].process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(UserError, match="workers = 1"):
        in_parallel(parallel)
    assert_same(in_parallel(ParallelEngine(engine, workers=2)), in_parallel(engine))


def test_a_worker_that_is_ended_with_this_process_is_a_stop_and_nothing_else(engine: LocalEngine):
    parallel = ParallelEngine(engine, workers=2)
    in_parallel(parallel)
    pid = parallel._helpers[0].process.pid
    assert pid is not None
    with interruptible(), pytest.raises(KeyboardInterrupt):
        os.kill(pid, signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        in_parallel(parallel)


def test_ctrl_c_waits_for_no_worker_and_the_engine_can_be_used_again(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
):
    parallel = ParallelEngine(engine, workers=2)
    in_parallel(parallel)
    (helper,) = parallel._helpers
    monkeypatch.setattr(engine, "stops", raiser(KeyboardInterrupt))
    monkeypatch.setattr(helper, "receive", raiser(AssertionError("it was waited for")))
    with pytest.raises(KeyboardInterrupt):
        in_parallel(parallel)
    assert not helper.process.is_alive()
    monkeypatch.undo()
    assert_same(in_parallel(parallel), in_parallel(engine))


def raiser(error: BaseException | type[BaseException]) -> Callable[..., Any]:
    def fail(*given: Any, **named: Any) -> Any:
        raise error

    return fail


def test_one_worker_is_this_process():
    assert isinstance(local_engine(MODEL, CODEC, WORDS, workers=1), LocalEngine)


can_flush = pytest.mark.skipif(
    not torch.set_flush_denormal(False),  # requests what holds anyway: changes nothing
    reason="this processor cannot take denormal numbers for zero",
)


def flushed() -> bool:
    python = sys.float_info.min / 2 == 0.0
    assert python == (torch.tensor(1e-30) * 1e-10 == 0).item()
    return python


@can_flush
def test_denormals_are_zero_inside_and_as_before_outside_however_it_ends():
    assert not flushed()
    with flushed_denormals():
        assert flushed()
        with flushed_denormals():
            pass
        assert flushed(), "the outer one still holds"
    assert not flushed()
    with pytest.raises(ValueError), flushed_denormals():
        raise ValueError
    assert not flushed()


@can_flush
def test_a_loaded_policy_leaves_the_process_as_it_was_and_sampling_flushes(monkeypatch: pytest.MonkeyPatch):
    load_policy("shipped")
    engine = LocalEngine(MODEL, CODEC, WORDS)
    seen = []
    stops = engine.stops
    monkeypatch.setattr(engine, "stops", lambda *given: seen.append(flushed()) or stops(*given))
    engine.complete(some_contexts(3), max_tokens=[4, 4, 4], sampling=Sampling(seed=0))
    assert seen and all(seen)
    assert not flushed()


MANY_BLOCKS = """
import resource, torch
from mem1.heap import keep_freed
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(10_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
given_back = faults()
keep_freed()
faults()
print(given_back, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to")
def test_memory_that_was_freed_is_used_again_without_asking_the_system():
    done = subprocess.run([sys.executable, "-c", MANY_BLOCKS], capture_output=True, text=True, check=True)
    given_back, kept = map(int, done.stdout.split())
    assert given_back > 10 * kept


@pytest.mark.parametrize("stop", ["STOP", "--- END OF TODAY'S NOTES ---", "以上是今天的全部记录。"])
def test_a_stop_string_of_any_length_ends_a_text_that_is_written_byte_by_byte(stop: str):
    codec = Codec(bpe_tokenizer(["the cat"], vocab_size=300, tags=PAPER))
    text = codec.encode(f"first {stop} and then it goes on")
    ended = len(codec.encode(f"first {stop}"))

    def says(context: Sequence[int], done: Sequence[int], drawn: int, budget: int) -> int:
        return text[len(done)]

    engine = LocalEngine(MODEL, codec, (stop,), steering=says)
    (whole,) = engine.complete([(5, 6)], max_tokens=[len(text)], sampling=Sampling())
    assert whole.stopped and whole.token_ids == text[:ended]
    for border in range(ended - len(codec.encode(stop)) + 1, ended):
        parts = [Completion(token_ids=ids, stopped=False, interrupted=True) for ids in (text[:border], text[border:])]
        assert concat(*parts, codec, (stop,)).token_ids == text[:ended]
