"""Guesses at what a row samples next save passes, and change nothing that is sampled."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from local_models import MODEL, counted
from precision import rounding
from transformers import LlamaConfig, LlamaForCausalLM
from worlds import CODEC

from mem1.engines.base import Completion, Request, Sampling, new_session
from mem1.engines.local import LocalEngine
from mem1.engines.lookahead import Lookahead, guesses_each
from mem1.engines.rows import KeptRows, Row, Rows
from mem1.policy.tiny_model import new_model
from mem1.recipe.model import TinyModel

pytestmark = pytest.mark.numeric

ROUNDING = rounding(MODEL, tokens=120, magnitude=10.0)


class TestGuesses:
    def test_are_what_followed_the_longest_last_tokens_the_last_time_they_came(self):
        ids = [1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3]
        assert Lookahead().guess(ids, 3) == [4, 9, 2]  # after 1 2 3; 2 3 came later, with 5 after it
        assert Lookahead().guess([7, *ids[1:]], 3) == [5, 1, 2]
        assert Lookahead().guess([1, 2, 1, 3, 1], 2) == [3, 1]

    def test_are_as_many_as_asked_for_and_go_round_where_the_tokens_end(self):
        assert Lookahead().guess([1, 2, 1], 4) == [2, 1, 2, 1]
        assert Lookahead().guess([3, 4, 4], 3) == [4, 4, 4]
        assert Lookahead().guess([1, 2, 1], 1) == [2]
        assert Lookahead().guess([1, 2, 1], 0) == []
        assert Lookahead().guess([1, 2, 3], 5) == []
        assert Lookahead().guess([], 5) == []

    def test_follow_a_sequence_that_grows(self):
        rng = random.Random(0)
        lookahead, ids = Lookahead(), []
        for _ in range(300):
            ids += [rng.randrange(5) for _ in range(rng.randint(1, 3))]
            assert lookahead.guess(ids, 4) == Lookahead().guess(ids, 4)  # as nothing was learnt

    def test_are_fewer_where_they_were_wrong_and_more_where_they_were_right(self):
        lookahead, ids = Lookahead(), [4, 7] * 20
        numbers = []
        for right in [0] * 20 + [9] * 20:
            numbers.append(len(guessed := lookahead.guess(ids, 6)))
            if guessed:
                lookahead.learn(min(right, len(guessed)))
        assert numbers[:2] == [4, 3] and sum(numbers[10:20]) <= 3  # one is tried from time to time
        assert numbers[-1] == 6
        ids.append(99)
        assert lookahead.guess(ids, 6) == []

    @pytest.mark.parametrize(
        ("rows", "kind", "each"),
        [(1, "cpu", 6), (6, "cpu", 6), (12, "cpu", 3), (24, "cpu", 1), (25, "cpu", 0), (64, "cuda", 3)],
    )
    def test_are_few_where_rows_are_many(self, rows: int, kind: str, each: int):
        assert guesses_each(rows, kind) == each
        assert guesses_each(0, kind) == 6


@pytest.mark.parametrize("one_kernel", [True, False])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_logits_of_guesses_are_those_of_the_tokens_themselves(
    key_heads: int, one_kernel: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("mem1.engines.rows.fused", lambda kind, softcap: one_kernel)  # a GPU's is none
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=CODEC.vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=key_heads,
    )  # fmt: skip
    model = LlamaForCausalLM(shape)
    rng = random.Random(0)
    rows: Rows[Row] = Rows(model, KeptRows(0))
    rows.reserve(3, 80)
    for turn in range(40):
        if turn in (0, 3, 9):  # joins while others decode
            rows.add(Row(ids=[rng.randrange(2, 500) for _ in range(rng.randint(1, 30))]))
        for row in rows.live:
            row.guesses = [rng.randrange(2, 500) for _ in range(rng.randrange(4))]
        with torch.inference_mode():
            found_NV = rows.logits()
            at = 0
            for row in rows.live:
                ids = torch.tensor([[*row.ids, *row.guesses]])
                wanted_KV = model(input_ids=ids).logits[0, len(row.ids) - 1 :]
                torch.testing.assert_close(found_NV[at : at + len(wanted_KV)], wanted_KV, rtol=0, atol=1e-5)
                at += len(wanted_KV)
                right = rng.randrange(len(row.guesses) + 1)
                row.held += right
                row.ids += [*row.guesses[:right], rng.randrange(2, 500)]
                row.guesses = []
        assert at == len(found_NV)


BUDGETS = [9, 1, 14, 22]
STOPS = CODEC.decode(list(range(2, 22))).split()
"""A random model writes one of these 20 of 538 words every 27 tokens or so."""


def contexts(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(2, 500) for _ in range(rng.randint(3, 40))] for _ in BUDGETS]


def sample(asked: Sequence[Sequence[int]], *, temperature: float = 1.0, stops: Sequence[str] = ()) -> list[Completion]:
    engine = LocalEngine(MODEL, CODEC, stops)
    return engine.complete(asked, max_tokens=BUDGETS, sampling=Sampling(seed=3, temperature=temperature))


def guessing(monkeypatch: pytest.MonkeyPatch, truth: dict[tuple[int, ...], tuple[int, ...]], right: float) -> None:
    """Each guessed token is what will be sampled with this probability, else another."""
    rng = random.Random(0)

    def guess(_: Lookahead, ids: Sequence[int], most: int) -> list[int]:
        (context,) = (c for c in truth if tuple(ids[: len(c)]) == c)
        coming = truth[context][len(ids) - len(context) :][:most]
        return [token if rng.random() < right else rng.randrange(2, 500) for token in coming]

    monkeypatch.setattr(Lookahead, "guess", guess)


@pytest.mark.parametrize("right", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_right_and_wrong_guesses_change_nothing_that_is_sampled(
    monkeypatch: pytest.MonkeyPatch, seed: int, temperature: float, right: float
):
    asked = contexts(seed)
    with monkeypatch.context() as patch:
        patch.setattr("mem1.engines.local.guesses_each", lambda rows, kind: 0)
        with counted(MODEL) as before:
            wanted = sample(asked, temperature=temperature, stops=STOPS)
    guessing(monkeypatch, {tuple(c): w.token_ids for c, w in zip(asked, wanted, strict=True)}, right)
    with counted(MODEL) as after:
        found = sample(asked, temperature=temperature, stops=STOPS)
    for one, other in zip(found, wanted, strict=True):
        assert (one.token_ids, one.stopped) == (other.token_ids, other.stopped)
        torch.testing.assert_close(torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=0, atol=ROUNDING)
    assert len(after) < len(before) if right == 1 else len(after) <= len(before)
    if right == 0:
        assert sum(after) > sum(before)


def test_a_row_that_guessed_is_taken_over_as_any_other(monkeypatch: pytest.MonkeyPatch):
    (first, *_), session = contexts(0), new_session()
    engine = LocalEngine(MODEL, CODEC, ())
    with monkeypatch.context() as patch:
        patch.setattr("mem1.engines.local.guesses_each", lambda rows, kind: 0)
        (wanted,) = LocalEngine(MODEL, CODEC, ()).complete([first], max_tokens=[22], sampling=Sampling(seed=3))
        on = [*first, *wanted.token_ids, 5, 6]
        (then,) = LocalEngine(MODEL, CODEC, ()).complete([on], max_tokens=[9], sampling=Sampling(seed=4))
    monkeypatch.setattr(Lookahead, "guess", lambda _, ids, most: [7] * most)  # none is right: they must leave no trace
    with counted(MODEL) as tokens:
        (found,) = engine.complete([first], max_tokens=[22], sampling=Sampling(seed=3, session=session))
        computed = len(tokens)
        (again,) = engine.complete([on], max_tokens=[9], sampling=Sampling(seed=4, session=session))
    assert (found.token_ids, again.token_ids) == (wanted.token_ids, then.token_ids)
    assert tokens[computed] == 1 + 2 + 6  # its last token, what is new, and guesses


def test_steered_tokens_are_not_guessed_at():
    def steer(context: Sequence[int], sampled: Sequence[int], drawn: int, budget: int) -> int:
        return context[len(sampled) % len(context)]  # copies, so that guesses would be right

    engine = LocalEngine(MODEL, CODEC, (), steering=steer)
    with counted(MODEL) as tokens:
        (found,) = engine.complete([[5, 6, 7] * 4], max_tokens=[9], sampling=Sampling(seed=0))
    assert found.token_ids == (5, 6, 7) * 3 and tokens == [12, *[1] * 8]


def test_what_repeats_itself_takes_fewer_passes():
    """A model that repeats its last token with near certainty."""
    model = new_model(TinyModel(hidden_size=32, layers=1, feed_forward=48), vocab_size=CODEC.vocab_size, seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers" in name:
                parameter.zero_()
        model.get_output_embeddings().weight.copy_(50 * model.get_input_embeddings().weight)
    engine = LocalEngine(model, CODEC, ())
    with counted(model) as tokens, engine.opened(Sampling(seed=0)) as batch:
        batch.add([Request(context=[9, 8, 9], max_tokens=50, seed=1, key=0)])
        while batch.busy:
            finished = batch.step()
    ((_, completion),) = finished
    assert completion.token_ids == (9,) * 50
    assert len(tokens) < 12 and max(tokens[1:]) == 7
