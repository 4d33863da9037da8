"""Tokens of a step: invented attempts of given sizes, or recorded ones, packed by the recipe's own packing.

    sizes prompt 300, state 100, action 30, result 350, 6 turns; constant; 64 tasks with one attempt each
    ->  tokens of the trees of all packs, the sampled ones among them, visible pairs, and the work of sampling

Attempts are token lists, so the training code itself counts every context policy. Of many tasks only a few are made,
and their counts are scaled.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mem1.contexts import ContextPolicy, context_policy, next_context
from mem1.evaluation.tokens import Sizes, TurnSizes, even_sizes
from mem1.packing import TokenTree, split_into_packs
from mem1.packing.blocks import cut
from mem1.planning.activations import Load
from mem1.records import Trajectory, Turn
from mem1.training.loop.recipe import Recipe

TASKS_MADE = 4
"""Tasks that represent all tasks of a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """Tokens of one rollout and of the passes over it; each sampled token is trained once."""

    attempts: int
    calls: int
    """Model calls, one per turn."""
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
    budget = config.budget.completion(objectives, general=config.model.chat_template or config.tasks.explains_tags)
    turns, (prompt, result) = config.tasks.turns(objectives), config.tasks.text_sizes(objectives)
    room = config.budget.context - prompt - 2 * budget
    return even_sizes(
        prompt=prompt, state=budget // 2, action=budget - budget // 2, result=max(1, min(result, room)), turns=turns
    )


def made_groups(policy: ContextPolicy, sizes: Sizes, *, groups: int, attempts: int) -> list[list[Trajectory]]:
    """Attempts of these sizes; those of one group share only their prompt."""
    tokens = itertools.count()
    made = []
    for _ in range(groups):
        prompt = _take(tokens, sizes.prompt)
        made.append([_attempt(policy, prompt, sizes, tokens) for _ in range(attempts)])
    return made


def _attempt(policy: ContextPolicy, prompt: tuple[int, ...], sizes: Sizes, tokens: Iterator[int]) -> Trajectory:
    turns: list[Turn] = []
    for size in sizes.turns:
        context = next_context(policy, prompt, turns).ids
        turns.append(_turn(context, size, tokens))
    return Trajectory(turns=tuple(turns), context=policy.name)


def _turn(context: tuple[int, ...], size: TurnSizes, tokens: Iterator[int]) -> Turn:
    thought, state = size.thought, size.state
    spans = {"thought": (0, thought)} if thought else {}
    spans |= {"state": (thought, thought + state), "state_text": (thought, thought + state)} if state else {}
    return Turn(
        context_ids=context,
        completion_ids=_take(tokens, thought + state + size.action),
        completion_spans=spans,
        observation_ids=_take(tokens, size.result),
    )


def _take(tokens: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(itertools.islice(tokens, count))


def step_tokens(
    config: Recipe, sizes: Sizes, *, groups: int, attempts: int, pack_tokens: int, packed: bool = True
) -> StepTokens:
    """Tokens of a step whose attempts all have these sizes."""
    made = min(groups, TASKS_MADE)
    policy = context_policy(config.context)
    some = made_groups(policy, sizes, groups=made, attempts=attempts)
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
