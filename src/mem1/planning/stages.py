"""The stages of a recipe for planning: tokens of a step, passes over them, and what needs memory.

    sizes prompt 300, state 100, action 30, result 350, 6 turns; constant; 64 tasks with one attempt each
    ->  tokens of the trees of all packs, the sampled ones among them, visible pairs, and the work of sampling

Attempts of given sizes are invented, or those of a run are taken. They are token lists, which the recipe's own packing
packs, so the training code itself counts every memory. Of many tasks only a few are made, and their counts are
scaled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from mem1.evaluation.tokens import Sizes, TurnSizes, even_sizes
from mem1.memory import MemoryPolicy, memory_policy, next_context
from mem1.packing import TokenTree, split_into_packs
from mem1.packing.blocks import cut
from mem1.planning.memory import Load, Needs
from mem1.planning.networks import Setup
from mem1.planning.prompts import framing
from mem1.protocol import NOTE, SUMMARY
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Rl
from mem1.recipe.supervised import TURNS_PER_PIECE, Recall
from mem1.records import Trajectory, Turn

_NOTE_TOKENS = 32
"""Assumed length of a note, at most all of the memory that a turn writes."""
TASKS_MADE = 4
"""Tasks that represent all tasks of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """Tokens of one rollout and of the passes over it; each sampled token is trained once."""

    attempts: int
    calls: int
    """Model calls, one per turn and summary."""
    prefill: int
    """Context tokens, without reuse of cached prefixes."""
    sampled: int
    prefill_pairs: int
    """(token, visible token) pairs of the contexts."""
    sampled_pairs: int
    """(token, visible token) pairs of the sampled tokens."""
    longest: int
    """Tokens of the longest context with its completion."""
    trained: int
    """Tokens of all packs."""
    pairs: int
    """Visible pairs of all packs."""
    packs: int
    load: Load
    """The largest pack."""


def limits(config: Recipe, objectives: int) -> Sizes:
    """Sizes of an attempt that uses everything the recipe allows: all turns, full completions and results."""
    general = config.chat is not None or config.model.chat_template or config.tasks.explains_tags
    budget = config.budget.completion(objectives, general=general)
    turns, (text, result) = config.tasks.turns(objectives), config.tasks.text_sizes(objectives)
    prompt = text + framing(config)
    room = config.budget.context - prompt - 2 * budget
    return even_sizes(
        prompt=prompt, state=budget // 2, action=budget - budget // 2, result=max(1, min(result, room)), turns=turns
    )


def made_groups(policy: MemoryPolicy, sizes: Sizes, *, groups: int, attempts: int) -> list[list[Trajectory]]:
    """Attempts of these sizes; those of one group share only their prompt."""
    tokens = itertools.count()
    made = []
    for _ in range(groups):
        prompt = _take(tokens, sizes.prompt)
        made.append([_attempt(policy, prompt, sizes, tokens) for _ in range(attempts)])
    return made


def _attempt(policy: MemoryPolicy, prompt: tuple[int, ...], sizes: Sizes, tokens: Iterator[int]) -> Trajectory:
    turns: list[Turn] = []
    for size in sizes.turns:
        context = next_context(policy, prompt, turns)
        if context.requested_action is not None:
            turns.append(_summary(context.ids, size, tokens))
            context = next_context(policy, prompt, turns)
        turns.append(_turn(context.ids, size, tokens, notes=NOTE in policy.asks))
    return Trajectory(turns=tuple(turns), context=policy.name)


def _turn(context: tuple[int, ...], size: TurnSizes, tokens: Iterator[int], *, notes: bool) -> Turn:
    """`notes`: the last of its memory's tokens are a note."""
    thought, state = size.thought, size.state
    spans = {"thought": (0, thought)} if thought else {}
    spans |= {"state": (thought, thought + state), "state_text": (thought, thought + state)} if state else {}
    if notes and state:
        note = min(state, _NOTE_TOKENS)
        spans |= {"note": (thought + state - note, thought + state), "state": (thought, thought + state - note)}
    written = _take(tokens, thought + state + size.action)
    return Turn(
        context_ids=context,
        notes=(str(written[spans["note"][0]]),) if "note" in spans else (),  # no two are alike
        completion_ids=written,
        completion_spans=spans,
        observation_ids=_take(tokens, size.result),
    )


def _summary(context: tuple[int, ...], size: TurnSizes, tokens: Iterator[int]) -> Turn:
    """A call of its own, as long as the memory that a turn writes; its tags and the hint after it are left out."""
    written = max(1, size.state)
    return Turn(
        context_ids=context,
        completion_ids=_take(tokens, written),
        completion_spans={"state_text": (0, written)},
        action=SUMMARY,
    )


def _take(tokens: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(itertools.islice(tokens, count))


@lru_cache(maxsize=16)  # advice plans a recipe many times
def step_tokens(
    context: str, sizes: Sizes, *, groups: int, attempts: int, pack_tokens: int, packed: bool = True
) -> StepTokens:
    """Tokens of a step whose attempts all have these sizes, under the memory of this name."""
    made = min(groups, TASKS_MADE)
    some = made_groups(memory_policy(context), sizes, groups=made, attempts=attempts)
    return counted(some, scale=groups / made, pack_tokens=pack_tokens, packed=packed)


def counted(
    groups: Sequence[Sequence[Trajectory]], *, scale: float = 1.0, pack_tokens: int, packed: bool = True
) -> StepTokens:
    """Tokens of these attempts, each counted `scale` times."""
    trajectories = [t for group in groups for t in group]
    calls = [turn for t in trajectories for turn in t.turns]
    contexts = [len(turn.context_ids) for turn in calls]
    completions = [len(turn.completion_ids) for turn in calls]
    packs = split_into_packs(trajectories, max_tokens=pack_tokens)
    loads: list[Load] = []
    pairs = 0
    for pack in packs:
        load, seen = _packed(pack.tree) if packed else _alone(pack.trajectories)
        loads.append(load)
        pairs += seen

    def times(count: int) -> int:
        return round(scale * count)

    before = sum(n * (n + 1) // 2 for n in contexts)
    whole = sum((c + o) * (c + o + 1) // 2 for c, o in zip(contexts, completions, strict=True))
    return StepTokens(
        attempts=times(len(trajectories)),
        calls=times(len(calls)),
        prefill=times(sum(contexts)),
        sampled=times(sum(completions)),
        prefill_pairs=times(before),
        sampled_pairs=times(whole - before),
        longest=max(c + o for c, o in zip(contexts, completions, strict=True)),
        trained=times(sum(load.tokens for load in loads)),
        pairs=times(pairs),
        packs=max(len(packs), times(len(packs))),
        load=max(loads, key=lambda load: load.tokens),
    )


def _packed(tree: TokenTree) -> tuple[Load, int]:
    """A pack's load and visible pairs: each token sees itself and its ancestors."""
    parts = cut(tree)
    largest = max(
        (p.queries[1] - p.queries[0]) * (p.keys[1] - p.keys[0] if isinstance(p.keys, tuple) else len(p.keys))
        for p in (*parts.first, *parts.later)
    )
    load = Load(tokens=len(tree), sampled=len(tree.target_node.unique()), part=largest)
    return load, int((tree.position_ids + 1).sum())


def _alone(pieces: Sequence[Trajectory]) -> tuple[Load, int]:
    """The same without packing; the last token of a context predicts nothing and is left out."""
    turns = [turn for t in pieces for turn in t.turns]
    lengths = [turn.num_tokens - 1 for turn in turns]
    completions = [len(turn.completion_ids) for turn in turns]
    load = Load(
        tokens=sum(lengths),
        sampled=sum(completions),
        packed=False,
        rows=max(completions),
        contexts=len(turns),
        alone=max(lengths),
    )
    return load, sum(n * (n + 1) // 2 for n in lengths)


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
    """Tokens of a step on the largest tasks of the stage, under the memory that trains on most."""
    if known.recorded:
        groups = [[t] for t in known.recorded]
        scale = rl.tasks_per_step * rl.group_size / len(groups)
        return counted(groups, scale=scale, pack_tokens=rl.pack_tokens, packed=rl.packed)
    sizes = known.sizes or limits(config, max(n for phase in rl.curriculum for n in phase.objectives))
    size = {"groups": rl.tasks_per_step, "attempts": rl.group_size}
    packs = {"pack_tokens": rl.pack_tokens, "packed": rl.packed}
    first = rl.curriculum[0].context or config.context
    names = {first, *(phase.context or first for phase in rl.curriculum)}
    return max((step_tokens(name, sizes, **size, **packs) for name in sorted(names)), key=lambda found: found.trained)


def _sft(config: Recipe) -> Stage:
    sft = config.sft
    assert sft is not None
    sizes = limits(config, max(config.demonstrated or config.evaluation.objectives))
    pieces = replace(sizes, turns=sizes.turns[:TURNS_PER_PIECE])
    cap = min(sft.tokens, sft.pack_tokens)
    [[piece]] = made_groups(memory_policy(config.context), pieces, groups=1, attempts=1)
    one = counted([[piece]], pack_tokens=cap)
    whole = counted([[piece]], scale=sft.tokens / one.trained, pack_tokens=cap)
    share = one.load.sampled / one.load.tokens
    tokens = replace(
        whole,
        packs=-(-sft.tokens // cap),
        load=replace(one.load, tokens=max(cap, one.load.tokens), sampled=round(share * max(cap, one.load.tokens))),
    )
    needs = Needs(
        load=tokens.load,
        packs=tokens.packs,
        at_once=min(config.workers, tokens.packs),
        entropy=False,
        muon=sft.optimizer == "muon",
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
