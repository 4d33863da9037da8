"""Attempts for planning: of given sizes, or those of a run; and what a step of them counts.

    sizes prompt 300, state 100, action 30, result 350, 6 turns; constant; 64 tasks with one attempt each
    ->  tokens of the trees of all packs, the sampled ones among them, the work of sampling, and the largest pack

Invented attempts are token lists under the recipe's memory, which the recipe's own packing packs, so the
training code itself counts. Of many tasks only so many are made that a pack is full, and their counts are scaled.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from mem1.dialogue import offered
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.evaluation.tokens import Sizes, TurnSizes, even_sizes
from mem1.memory import MemoryPolicy, memory_policy, next_context
from mem1.packing import Pack, split_into_packs
from mem1.policy.folders import SHIPPED, policy_folder
from mem1.policy.protocol import resolve
from mem1.protocol import NOTE, SUMMARY
from mem1.recipe.protocol import TAGS
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Rl
from mem1.recipe.supervised import TURNS_PER_PIECE
from mem1.records import Trajectory, Turn

_NOTE_TOKENS = 32
"""Assumed length of a note, at most all of the memory that a turn writes."""
TASKS_MADE = 4
"""Fewest tasks that represent all tasks of a step."""
EXPLANATION = 525
"""Characters that the template of Qwen2.5 writes around the schemas and the user's message."""
CHARACTERS_PER_TOKEN = 4
"""Of such English and JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """Known sizes of the attempts at a task; without any, attempts use everything the recipe allows."""

    sizes: Sizes | None = None
    recorded: tuple[Trajectory, ...] = ()
    """Attempts of a run, instead of sizes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTokens:
    """Tokens of one rollout and of the passes over it; each sampled token is trained once."""

    attempts: int
    sampled: int
    longest: int
    """Tokens of the longest context with its completion."""
    trained: int
    """Tokens of all packs, shared ones once where they are packed."""
    largest_pack: int
    """Tokens of the largest pack."""
    packs: int = 1
    calls: int = 0
    """Model calls, one per turn and summary."""
    prefill: int = 0
    """Context tokens, without reuse of cached prefixes."""
    prefill_pairs: int = 0
    """(token, visible token) pairs of the contexts."""
    sampled_pairs: int = 0
    """(token, visible token) pairs of the sampled tokens."""


def framing(config: Recipe) -> int:
    """Tokens that calls of tools write around the text of a prompt: the model's template, and schemas of tools.

    Counted with the tokenizer in the model's folder, without one estimated from the length of the schemas. Tools that
    an environment or an agent brings along are not known here.
    """
    speaks = resolve(config)
    if not speaks.calls_tools:
        return 0
    folder, tools = policy_folder(config.model.path or SHIPPED), offered(speaks.tags)
    with suppress(UserError):  # the folder is not there yet; what is wrong with one is told by a dry run
        messages = speaks.messages(Codec.load(folder), folder)
        return len(messages.encode([{"role": "user", "content": ""}], tools))
    return round((EXPLANATION + sum(len(json.dumps(tool)) for tool in tools)) / CHARACTERS_PER_TOKEN)


def limits(config: Recipe, objectives: int) -> Sizes:
    """Sizes of an attempt that uses everything the recipe allows: all turns, full completions and results."""
    speaks = resolve(config)
    general = speaks.kind != TAGS or speaks.in_messages or speaks.tasks.explains_tags
    budget = config.budget.completion(objectives, general=general)
    turns, (text, result) = config.tasks.turns(objectives), config.tasks.text_sizes(objectives)
    prompt = text + framing(config)
    room = config.budget.context - prompt - 2 * budget
    return even_sizes(
        prompt=prompt, state=budget // 2, action=budget - budget // 2, result=max(1, min(result, room)), turns=turns
    )


def largest_attempt(config: Recipe) -> Sizes:
    """The same for the largest tasks of its reinforcement learning, or of its demonstrations."""
    trained = [n for phase in config.rl.curriculum for n in phase.objectives] if config.rl is not None else ()
    return limits(config, max(trained or config.demonstrated or config.evaluation.objectives))


def made_groups(
    policy: MemoryPolicy, sizes: Sizes, *, groups: int, attempts: int, within: int | None = None
) -> list[list[Trajectory]]:
    """Attempts of these sizes; those of one group share only their prompt.

    `within`: tokens of a context and a completion, at which an attempt ends, if not with its first turn; None: any.
    """
    tokens = itertools.count()
    made = []
    for _ in range(groups):
        prompt = _take(tokens, sizes.prompt)
        made.append([_attempt(policy, prompt, sizes, tokens, within) for _ in range(attempts)])
    return made


def _attempt(
    policy: MemoryPolicy, prompt: tuple[int, ...], sizes: Sizes, tokens: Iterator[int], within: int | None
) -> Trajectory:
    turns: list[Turn] = []
    for size in sizes.turns:
        room = math.inf if within is None or not turns else within - (size.thought + size.state + size.action)
        context = next_context(policy, prompt, turns)
        if len(context.ids) <= room and context.requested_action is not None:
            turns.append(_summary(context.ids, size, tokens))
            context = next_context(policy, prompt, turns)
        if len(context.ids) > room:
            break
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


def pack_tokens(pack: Pack, *, packed: bool) -> int:
    """Tokens that a pack's passes compute; unpacked, those of every context but its last, which predicts nothing."""
    if packed:
        return len(pack.tree)
    return sum(turn.num_tokens - 1 for t in pack.trajectories for turn in t.turns)


def counted(
    trajectories: Sequence[Trajectory], packs: Sequence[Pack], *, scale: float = 1.0, packed: bool = True
) -> StepTokens:
    """Tokens of these attempts and their packs, each counted `scale` times."""
    calls = [turn for t in trajectories for turn in t.turns]
    contexts = [len(turn.context_ids) for turn in calls]
    completions = [len(turn.completion_ids) for turn in calls]
    sizes, trees = [pack_tokens(pack, packed=packed) for pack in packs], [len(pack.tree) for pack in packs]

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
        trained=times(sum(sizes)),
        # where not all are made, the last of their packs may be half empty, and is not counted so often
        packs=len(packs) if scale == 1 else math.ceil(scale * sum(trees) / max(trees)),
        largest_pack=max(sizes),
    )


def rl_attempts(config: Recipe, rl: Rl, known: Attempts) -> tuple[StepTokens, Pack]:
    """Tokens of a step on the stage's largest tasks, and its largest pack."""
    total = rl.tasks_per_step * rl.group_size
    if known.recorded:
        spread = known.recorded[:: max(1, len(known.recorded) // total)][:total]
        return _step(lambda count: _copied(spread, count), rl, least=len(spread), most=total)
    sizes, policy = known.sizes or largest_attempt(config), memory_policy(config.memory)

    def made(count: int) -> list[Trajectory]:
        tasks = -(-count // rl.group_size)
        groups = made_groups(policy, sizes, groups=tasks, attempts=rl.group_size, within=config.budget.context)
        return [attempt for group in groups for attempt in group]

    return _step(made, rl, least=min(total, TASKS_MADE * rl.group_size), most=total)


def _step(
    attempts_of: Callable[[int], Sequence[Trajectory]], rl: Rl, *, least: int, most: int
) -> tuple[StepTokens, Pack]:
    """Tokens of a step, of whose `most` attempts at least `least` are made: so many that one of the packs is full."""

    def packs_of(attempts: Sequence[Trajectory]) -> list[Pack]:
        return split_into_packs(attempts, max_tokens=rl.pack_tokens, whole=rl.algorithm.needs_whole_trajectories)

    def size(pack: Pack) -> int:
        return pack_tokens(pack, packed=rl.packed)

    made = attempts_of(least)
    packs = packs_of(made)
    needed = min(most, -(-2 * least * rl.pack_tokens // sum(len(pack.tree) for pack in packs)))
    if needed > least:
        made = attempts_of(needed)
        packs = packs_of(made)
    return counted(made, packs, scale=most / len(made), packed=rl.packed), max(packs, key=size)


def _copied(attempts: Sequence[Trajectory], count: int) -> list[Trajectory]:
    """So many attempts: these and copies of them, which share no tokens with each other."""
    beyond = 1 + max(id for t in attempts for turn in t.turns for id in (*turn.context_ids, *turn.completion_ids))

    def moved(ids: Sequence[int], number: int) -> tuple[int, ...]:
        return tuple(id + number * beyond for id in ids)

    def copy(turn: Turn, number: int) -> Turn:
        ids, sampled = moved(turn.context_ids, number), moved(turn.completion_ids, number)
        return replace(turn, context_ids=ids, completion_ids=sampled)

    numbered = ((attempt, number) for number in itertools.count() for attempt in attempts)
    return [
        replace(attempt, turns=tuple(copy(turn, number) for turn in attempt.turns))
        for attempt, number in itertools.islice(numbered, count)
    ]


def sft_pieces(config: Recipe, *, tokens: int) -> list[Trajectory]:
    """Pieces of demonstrations, of the largest tasks, that fill so many tokens."""
    sizes = limits(config, max(config.demonstrated or config.evaluation.objectives))
    sizes = Sizes(prompt=sizes.prompt, turns=sizes.turns[:TURNS_PER_PIECE])
    [[piece]] = made_groups(memory_policy(config.memory), sizes, groups=1, attempts=1)
    [pack] = split_into_packs([piece], max_tokens=1, whole=True)
    groups = made_groups(memory_policy(config.memory), sizes, groups=-(-tokens // len(pack.tree)), attempts=1)
    return [piece for group in groups for piece in group]
