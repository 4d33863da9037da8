"""Known defects of other frameworks, each as a deliberate mutant of our own code.

A mutant wraps one function of ours while it is applied: `broken(right, *arguments)` is called in its place, with
the right one as first argument. `tests/house/test_mutants.py` shows that the named check fails on it.

    with applied(mutant) as calls: ...      calls: one entry each time that the mutant was reached

research/defects.md lists them. Where a defect was reported: "MEM1, n" is number n of the defects of the published
code there; the others are issues of the projects named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import accumulate, chain, pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from mem1.algorithms.base import Advantages, Attempt
from mem1.algorithms.group import normalised_advantages
from mem1.engines.codec import Codec
from mem1.memory.contexts import Context
from mem1.packing import Pack, TokenTree, visible
from mem1.packing.attention import Dense
from mem1.packing.blocks import Part
from mem1.packing.tree import Trie
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER
from mem1.records import Ended, Trajectory, Turn
from mem1.scoring import Scores, exact_match
from mem1.training.gradients.samples import TrainingSample

BPE = Codec(bpe_tokenizer(["Q1 mayor of Oslo done"] * 3, vocab_size=300, tags=PAPER))
"""Has whole words, so that a word spelled by letters is not what it would write."""
TOP_P = 0.8
CUT = 60
"""Tokens to which the mutant that cuts contexts cuts them."""

Broken = Callable[..., Any]
"""The right function and its arguments -> what it returns instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One defect."""

    name: str
    reported: str
    """Where; "-": a way to go wrong that nobody reported."""
    target: str
    """The function it stands in for, as module:name where that is looked up."""
    broken: Broken
    check: str
    """Key of `test_mutants.CHECKS`: what fails on it."""
    raises: type[Exception] = AssertionError
    """How it fails; another than AssertionError where the defect is a crash."""


@contextmanager
def applied(mutant: Mutant) -> Iterator[list[str]]:
    """Inside, our code has this defect."""
    module, _, path = mutant.target.partition(":")
    *owners, name = path.split(".")
    owner: Any = import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    right = getattr(owner, name)
    calls: list[str] = []

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return mutant.broken(right, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, stand_in)
        yield calls


# Advantages and weights


def last_context_only(right: Broken, advantage: float, trajectory: Trajectory) -> Tensor:
    row = right(advantage, trajectory)
    row[: len(row) - len(trajectory.turns[-1].completion_ids)] = 0
    return row


def times_contexts(right: Broken, advantage: float, trajectory: Trajectory) -> Tensor:
    return right(advantage * len(trajectory.turns), trajectory)


def statistics_over_rows(right: Broken, algorithm: Any, groups: Sequence[Sequence[Attempt]]) -> Any:
    """Each context a row with the reward of its trajectory."""

    def of_rows(group: Sequence[Attempt]) -> list[float]:
        turns = [len(x.trajectory.turns) for x in group]
        rows = normalised_advantages([x.shaped_reward for x, n in zip(group, turns, strict=True) for _ in range(n)])
        return [rows[sum(turns[:i])] for i in range(len(turns))]

    found: list[list[Advantages]] = right(algorithm, groups)
    return [
        [replace(x, advantages_K=torch.full_like(x.advantages_K, a)) for x, a in zip(row, of_rows(group), strict=True)]
        for row, group in zip(found, groups, strict=True)
    ]


def answered_only(right: Broken, algorithm: Any, groups: Sequence[Sequence[Attempt]]) -> Any:
    """Attempts that failed are dropped before the group is compared."""
    answered = [[x for x in group if x.trajectory.ended is Ended.ANSWERED] for group in groups]
    found = [iter(row) for row in right(algorithm, answered)]
    return [
        [next(row) if x.trajectory.ended is Ended.ANSWERED else None for x in group]
        for row, group in zip(found, groups, strict=True)
    ]


def restarted(right: Broken, algorithm: Any, groups: Sequence[Sequence[Attempt]]) -> Any:
    """Each context an episode of its own; only the last one is paid."""
    contexts = [[c for x in group for c in _contexts(x)] for group in groups]
    found = [iter(row) for row in right(algorithm, contexts)]
    return [
        [_joined([next(row) for _ in x.trajectory.turns]) for x in group]
        for row, group in zip(found, groups, strict=True)
    ]


def _contexts(x: Attempt) -> list[Attempt]:
    assert x.values_K is not None
    values = x.values_K.split([len(turn.completion_ids) for turn in x.trajectory.turns])
    cut = [
        replace(x, trajectory=replace(x.trajectory, turns=(turn,)), shaped_reward=0.0) for turn in x.trajectory.turns
    ]
    cut[-1] = replace(cut[-1], shaped_reward=x.shaped_reward)
    return [replace(one, values_K=v) for one, v in zip(cut, values, strict=True)]


def _joined(parts: Sequence[Advantages]) -> Advantages:
    returns = [part.returns_K for part in parts if part.returns_K is not None]
    return Advantages(advantages_K=torch.cat([part.advantages_K for part in parts]), returns_K=torch.cat(returns))


def paid_at_each_reset(right: Broken, algorithm: Any, groups: Sequence[Sequence[Attempt]]) -> Any:
    """The reward also at the last token of each context but the last; the chain is not cut."""

    def paid(x: Attempt) -> Attempt:
        lengths = [len(turn.completion_ids) for turn in x.trajectory.turns]
        penalty_K = torch.zeros(sum(lengths))
        penalty_K[[stop - 1 for stop in accumulate(lengths[:-1])]] = -x.shaped_reward
        return replace(x, kl_penalty_K=penalty_K)

    return right(algorithm, [[paid(x) for x in group] for group in groups])


def padded_denominator(right: Broken, algorithm: Any, trajectories: Sequence[Trajectory]) -> float:
    """Rows as long as the longest."""
    del right, algorithm
    rows = [len(turn.completion_ids) for t in trajectories for turn in t.turns]
    return float(len(rows) * max(rows))


def denominator_per_micro_batch(
    right: Broken,
    networks: Any,
    samples: Sequence[TrainingSample],
    pack: Pack,
    _denominator: float,
    _tokens: float,
    *rest: Any,
) -> Any:
    tokens = float(sum(piece.tokens[1] - piece.tokens[0] for piece in pack.pieces))
    return right(networks, samples, pack, tokens, tokens, *rest)


def a_step_for_each_turn(right: Broken, groups: Sequence[Sequence[TrainingSample]], **settings: Any) -> Iterator[Any]:
    turns = max(len(lesson.trajectory.turns) for group in groups for lesson in group)
    for part in right(groups, **settings):
        yield from [part] * turns


# The packed pass


def label_roll(right: Broken, *args: Any) -> TokenTree:
    """The token before in the layout for the one before in the context."""
    tree: TokenTree = right(*args)
    return replace(tree, parent=torch.arange(-1, len(tree) - 1))


def positions_run_on(right: Broken, *args: Any) -> TokenTree:
    tree: TokenTree = right(*args)
    return replace(tree, position_ids=torch.arange(len(tree)))


def added_mask(_right: Broken, part: Part, like: Tensor) -> Tensor | None:
    """1 is added to the score of a visible key, 0 to that of a hidden one."""
    return None if part.hidden is None else (~part.hidden).to(like.dtype)[None, None]


def both_ways(_right: Broken, tree: TokenTree, **_: Any) -> Dense:
    """Every token sees what comes after it in its context, too."""
    visible_TT = visible(tree)
    return Dense(visible=visible_TT | visible_TT.T)


@dataclass(frozen=True)
class Rewrite:
    """Nodes of one turn: of what it sampled, and of what its context keeps of the turn before."""

    sampled: Tensor
    original: Tensor
    """What the turn before sampled, where it was sampled."""
    copy: Tensor
    """The same in this turn's context."""
    result: Tensor
    """What stands between that copy and the first sampled token."""


def rewrites(tree: TokenTree) -> Iterator[Rewrite]:
    """Of a tree of constant memory, every turn but the first."""
    before = visible(tree)
    for turns in tree.split(tree.target_node):
        start = int(before[turns[0][0]].sum()) - 1  # the prompt
        for original, sampled in pairwise(turns):
            path, stop = before[sampled[0]].nonzero()[:-1, 0], start + len(original)
            yield Rewrite(sampled, original, path[start:stop], path[stop:])


def hidden_state(_right: Broken, tree: TokenTree, **_: Any) -> Dense:
    visible_TT = visible(tree)
    for turn in rewrites(tree):
        visible_TT[turn.sampled[:, None], turn.copy] = False
    return Dense(visible=visible_TT)


def stale_keys(_right: Broken, tree: TokenTree, **_: Any) -> Dense:
    """What is kept is seen where it was sampled, with the context that stood before it there."""
    visible_TT = visible(tree)
    for turn in rewrites(tree):
        visible_TT[turn.sampled[:, None], turn.copy] = False
        visible_TT[turn.sampled[:, None], turn.original] = True
    return Dense(visible=visible_TT)


def lonely_results(_right: Broken, tree: TokenTree, **_: Any) -> Dense:
    """Tokens of a result see one another only."""
    visible_TT = visible(tree)
    for turn in rewrites(tree):
        outside = torch.ones(len(tree), dtype=torch.bool)
        outside[turn.result] = False
        visible_TT[turn.result] &= ~outside
    return Dense(visible=visible_TT)


def copy_trained(right: Broken, trie: Trie, trajectories: Sequence[Trajectory]) -> TokenTree:
    """The state that a context begins with is a target like the one that was sampled."""

    def with_copy(before: Turn, turn: Turn) -> list[Turn]:
        end = len(turn.context_ids) - len(before.observation_ids)
        start = end - len(before.completion_ids)
        return [Turn(context_ids=turn.context_ids[:start], completion_ids=turn.context_ids[start:end]), turn]

    def all_of(t: Trajectory) -> tuple[Turn, ...]:
        return (t.turns[0], *chain(*(with_copy(*pair) for pair in pairwise(t.turns))))

    copied = [replace(t, turns=all_of(t)) for t in trajectories]
    twice = Trie()
    twice.add(turn for t in copied for turn in t.turns)
    return right(twice, copied)


# Sampler and trainer


def no_temperature(right: Broken, logits: Tensor, targets: Tensor, _temperature: float, entropy: Any) -> Tensor:
    return right(logits, targets, 1.0, entropy)


def top_p(right: Broken, batch: Any, logits_nV: Tensor) -> Any:
    """Only the likeliest tokens that make up TOP_P are sampled from."""
    probabilities, order = (logits_nV / batch.temperature).softmax(-1).sort(dim=-1, descending=True)
    dropped = torch.zeros_like(logits_nV, dtype=torch.bool)
    dropped.scatter_(1, order, probabilities.cumsum(-1) - probabilities >= TOP_P)
    return right(batch, logits_nV.masked_fill(dropped, -torch.inf))


def no_stop_token(right: Broken, *given: Any, **fields: Any) -> Turn:
    turn: Turn = right(*given, **fields)
    return replace(turn, completion_ids=turn.completion_ids[:-1], logprobs=turn.logprobs[:-1], weights_versions=())


def encoded_again(right: Broken, policy: Any, prompt_ids: Sequence[int], turns: Sequence[Turn]) -> Context:
    """What was sampled enters the next context as the tokenizer would have written it."""
    texts = [
        replace(t, completion_ids=BPE.encode(t.text), logprobs=(), completion_spans={}, weights_versions=())
        for t in turns
    ]
    return right(policy, prompt_ids, texts)


def cut_silently(right: Broken, policy: Any, prompt_ids: Sequence[int], turns: Sequence[Turn]) -> Context:
    context: Context = right(policy, prompt_ids, turns)
    return replace(context, ids=context.ids[-CUT:])


# Scores and evaluation


def pays_every_answer(
    _right: Broken, answer: str, golds: Sequence[Sequence[str]], _labels: Sequence[int], **_: Any
) -> Scores:
    """A question is right if any of the answers is."""
    right = [float(max(exact_match(piece, g) for piece in answer.split(";"))) for g in golds]
    return Scores(em=right, f1=right)


def needs_every_answer(_right: Broken, answer: str, labels: Sequence[int], _golds: Any = (), **_: Any) -> list[str]:
    pieces = answer.split(";")
    return [pieces[i].strip() for i in range(len(labels))]


def compares_letters(
    _right: Broken, answer: str, golds: Sequence[Sequence[str]], _labels: Sequence[int], **_: Any
) -> Scores:
    pieces = zip(answer.split(";"), golds, strict=True)
    right = [float(piece.strip() in gold) for piece, gold in pieces]
    return Scores(em=right, f1=right)


def successes_only(right: Broken, trajectories: Sequence[Trajectory], **row: Any) -> Any:
    return right([t for t in trajectories if t.ended is Ended.ANSWERED], **row)


def ten_turns_only(right: Broken, trajectory: Trajectory) -> int:
    return right(replace(trajectory, turns=trajectory.turns[:10]))


def state_counted_twice(right: Broken, trajectory: Trajectory) -> int:
    spans = [turn.completion_spans["state"] for turn in trajectory.turns if "state" in turn.completion_spans]
    return right(trajectory) + sum(stop - start for start, stop in spans)


CUT_CHECK, CUT_CHECK_PPO, PACKS = "grpo: more contexts", "ppo: more contexts", "grpo: small packs"
EXACT, SAMPLER = "packed log-probs, float64", "sampler and trainer, largest"


def _mutant(name: str, reported: str, target: str, broken: Broken, check: str, **more: Any) -> Mutant:
    return Mutant(name=name, reported=reported, target=f"mem1.{target}", broken=broken, check=check, **more)


MUTANTS = (
    _mutant(
        "advantages on the last context only", "SkyRL #1492", "algorithms.base:constant", last_context_only, CUT_CHECK
    ),
    _mutant(
        "statistics over contexts",
        "slime #2230, verl #5969",
        "algorithms.base:Algorithm.advantages",
        statistics_over_rows,
        CUT_CHECK,
    ),
    _mutant("weight by number of contexts", "verl #7580", "algorithms.base:constant", times_contexts, CUT_CHECK),
    _mutant(
        "failed attempts left out of the group",
        "-",
        "algorithms.base:Algorithm.advantages",
        answered_only,
        "any ending",
    ),
    _mutant("padding in the denominator", "-", "algorithms.base:Algorithm.denominator", padded_denominator, CUT_CHECK),
    _mutant("GAE restarted at each reset", "-", "algorithms.ppo:Ppo.advantages", restarted, CUT_CHECK_PPO),
    _mutant("reward paid in each context", "-", "algorithms.ppo:Ppo.advantages", paid_at_each_reset, CUT_CHECK_PPO),
    _mutant("denominator per micro-batch", "-", "training.gradients.update:_loss", denominator_per_micro_batch, PACKS),
    _mutant("a step for each turn", "ROLL #409", "training.rl:minibatches", a_step_for_each_turn, "optimiser steps"),
    _mutant("label roll across branches", "-", "packing.tree:_lay_out", label_roll, EXACT),
    _mutant("positions running on", "MEM1, 2", "packing.tree:_lay_out", positions_run_on, EXACT),
    _mutant("0/1 mask added to scores", "MEM1, 1", "packing.blocks:_bias", added_mask, "causality"),
    _mutant("later tokens seen", "MEM1, 1", "training.logprobs:plan_attention", both_ways, "causality"),
    _mutant("previous state hidden", "MEM1, 2", "training.logprobs:plan_attention", hidden_state, EXACT),
    _mutant("keys of the former context", "MEM1, 2", "training.logprobs:plan_attention", stale_keys, EXACT),
    _mutant("results see themselves only", "MEM1, 2", "training.logprobs:plan_attention", lonely_results, EXACT),
    _mutant("state trained twice", "-", "packing.tree:Trie.lay_out", copy_trained, "tokens trained exactly once"),
    _mutant("no temperature in the trainer", "-", "training.head:columns", no_temperature, SAMPLER),
    _mutant("top-p in the sampler", "TRL #6789", "engines.local:Batch._sample", top_p, SAMPLER),
    _mutant("stop token lost", "-", "rollout:turn_of", no_stop_token, "recorded as sampled"),
    _mutant(
        "tokens encoded again",
        "MEM1, 3; TRL #5224, verl #6501",
        "rollout:next_context",
        encoded_again,
        "re-encoded tokens",
    ),
    _mutant("context cut silently", "MEM1, 6", "rollout:next_context", cut_silently, "over the budget"),
    _mutant("surplus answers paid", "MEM1, 4", "envs.search:score_answers", pays_every_answer, "answers by position"),
    _mutant(
        "a missing answer crashes",
        "MEM1, 4",
        "scoring:split_answers",
        needs_every_answer,
        "answers by position",
        raises=IndexError,
    ),
    _mutant(
        "another normalisation in the reward",
        "MEM1, 4",
        "envs.search:score_answers",
        compares_letters,
        "reward as evaluated",
    ),
    _mutant("failures left out", "MEM1, 5", "evaluation.metrics:summarize", successes_only, "tokens of every turn"),
    _mutant("ten turns read", "MEM1, 5", "evaluation.metrics:total_tokens", ten_turns_only, "tokens of every turn"),
    _mutant(
        "state counted twice", "MEM1, 5", "evaluation.metrics:total_tokens", state_counted_twice, "tokens of every turn"
    ),
)
