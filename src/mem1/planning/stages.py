"""The stages of a recipe for planning: tokens of a step, passes over them, and what needs memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mem1.contexts import context_policy
from mem1.evaluation.tokens import Sizes
from mem1.planning.activations import Load
from mem1.planning.peak_memory import Needs
from mem1.planning.placement import Setup
from mem1.planning.token_counts import StepTokens, counted, limits, made_groups, step_tokens
from mem1.records import Trajectory
from mem1.training.loop.recipe import TURNS_PER_PIECE, Recall, Recipe
from mem1.training.loop.rl_config import Rl

SAMPLER_TOKENS = 24576
"""Tokens of one batch of `engines/local.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """How often each network processes the packs of a step."""

    trained: int = 1
    """Forward and backward passes of the policy, and of a separate critic."""
    critic: bool = False
    policy_before: bool = False
    """Whether the policy computes log-probabilities before the first update."""
    reference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage of a recipe."""

    name: str
    steps: int
    tokens: StepTokens
    """Tokens of one step."""
    passes: Passes
    needs: Needs
    """Needs of one rank."""
    samples: bool = False
    """Whether each step samples attempts."""


def stages(config: Recipe, setup: Setup, *, ranks: int = 1, attempts: Attempts | None = None) -> list[Stage]:
    """The stages in order, each with its largest tasks."""
    made: list[Stage] = []
    if config.recall is not None:
        made.append(_recall(config.recall))
    if config.sft is not None:
        made.append(_sft(config))
    if config.rl is not None:
        tokens = _rl_tokens(config, config.rl, attempts or Attempts())
        made.append(rl_stage(config, config.rl, tokens, setup, ranks=ranks))
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Known sizes of the attempts at a task; without any, attempts use everything the recipe allows."""

    sizes: Sizes | None = None
    recorded: tuple[Trajectory, ...] = ()
    """Attempts of a run, instead of sizes."""


def rl_stage(config: Recipe, rl: Rl, tokens: StepTokens, setup: Setup, *, ranks: int = 1) -> Stage:
    """A stage of reinforcement learning with these tokens per step; its needs are those of one of `ranks`."""
    samples = setup.engine == "local"
    rows = min(max(1, SAMPLER_TOKENS // tokens.longest), -(-tokens.attempts // ranks)) if samples else 0
    critic = rl.algorithm.critic_config
    needs = Needs(
        load=tokens.load,
        packs=max(1, tokens.packs // rl.minibatches // ranks),
        at_once=min(config.workers, tokens.packs),
        critic=critic is not None and critic.critic == "separate",
        reference=rl.kl is not None,
        sampled_tokens=rows * tokens.longest,
        sampled_rows=rows,
    )
    passes = Passes(
        trained=rl.epochs,
        critic=needs.critic,
        policy_before=rl.recomputes_old_logprobs or critic is not None,
        reference=needs.reference,
    )
    return Stage(name="rl", steps=rl.steps, tokens=tokens, passes=passes, needs=needs, samples=True)


def _rl_tokens(config: Recipe, rl: Rl, known: Attempts) -> StepTokens:
    """Tokens of a step on the largest tasks of the stage."""
    if known.recorded:
        groups = [[t] for t in known.recorded]
        scale = rl.tasks_per_step * rl.group_size / len(groups)
        return counted(groups, scale=scale, pack_tokens=rl.pack_tokens, packed=rl.packed)
    return step_tokens(
        config,
        known.sizes or limits(config, max(n for phase in rl.curriculum for n in phase.objectives)),
        groups=rl.tasks_per_step,
        attempts=rl.group_size,
        pack_tokens=rl.pack_tokens,
        packed=rl.packed,
    )


def _sft(config: Recipe) -> Stage:
    sft = config.sft
    assert sft is not None
    sizes = limits(config, max(sft.objectives))
    pieces = replace(sizes, turns=sizes.turns[:TURNS_PER_PIECE])
    cap = min(sft.tokens, sft.pack_tokens)
    [[piece]] = made_groups(context_policy(config.context), pieces, groups=1, attempts=1)
    one = counted([[piece]], pack_tokens=cap)
    whole = counted([[piece]], scale=sft.tokens / one.trained, pack_tokens=cap)
    share = one.load.sampled / one.load.tokens
    tokens = replace(
        whole,
        packs=-(-sft.tokens // cap),
        load=replace(one.load, tokens=max(cap, one.load.tokens), sampled=round(share * max(cap, one.load.tokens))),
    )
    needs = Needs(
        load=tokens.load, packs=tokens.packs, at_once=min(config.workers, tokens.packs), entropy=False, muon=True
    )
    return Stage(name="sft", steps=sft.steps, tokens=tokens, passes=Passes(), needs=needs)


def _recall(recall: Recall) -> Stage:
    """Rows with 8 tokens per pair; a quarter of the tokens is predicted, all logits at once."""
    length = 8 * max(recall.pairs)
    sampled = recall.tokens // 4
    pairs = recall.tokens * (length + 1) // 2
    load = Load(tokens=recall.tokens, sampled=sampled, packed=False, rows=sampled, alone=recall.tokens)
    tokens = StepTokens(
        attempts=recall.tokens // length,
        calls=0,
        prefill=0,
        sampled=sampled,
        prefill_pairs=0,
        sampled_pairs=0,
        longest=length,
        trained=recall.tokens,
        pairs=pairs,
        packs=1,
        load=load,
    )
    needs = Needs(load=load, packs=1, entropy=False, muon=True)
    return Stage(name="recall", steps=recall.steps, tokens=tokens, passes=Passes(), needs=needs)
