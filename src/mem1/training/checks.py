"""The checks of `mem1 verify`: each compares two things that must be equal, and can fail.

    packed_check(tensor([-1.0, -2.0]), tensor([-1.0, -2.5]), precision="float64", limit=1e-5)
    ->  Check(name="packed log-probs, float64", measured=0.5, limit=1e-5, ...), verdict "failed"

A check that had nothing to compare (no second turn, no other branch) is "not tested", which is not passed.

Letters: M sampled tokens, T tokens of a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mem1.packing import TokenTree
from mem1.records import Trajectory, Turn

SAMPLER_LIMIT = 1e-4
"""Nats. The sampler uses batches and a cache, so it adds in another order (float32)."""
EXACT_LIMIT = 1e-5
"""Packed against unpacked in float64: nats for log-probs, relative for gradients."""
ROUNDING_LIMIT = 1e-4
"""The same in the model's own precision. float32 alone moves a trained model's log-probs by 1e-5: two attention
implementations of one library, both on unpacked turns, differ as much."""
HALF_LIMIT = 1e-2
"""Nats, in the mean over tokens, where the sampler's weights and the trainer's passes are in bf16: it has three digits,
so single tokens may differ by tenths, which importance weights are for."""
CAUSALITY_LIMIT = 1e-6
"""Nats; a change to a token that cannot be seen should change nothing."""
CHANGES = 3
"""Number of sampled tokens per tree that are changed, one at a time, and of tokens of any kind."""

Score = Callable[[TokenTree], Tensor]
"""Log-probability (M,) of each sampled token of a tree."""


@dataclass(frozen=True, slots=True)
class Check:
    """One property, its measurement and the verdict."""

    name: str
    measured: float
    """Measurement in `unit`; nan where the model itself gives nan, which fails."""
    limit: float
    """Largest value that passes."""
    unit: str
    compared: int
    """Number of values that were compared."""
    explanation: str

    @property
    def passed(self) -> bool:
        return self.compared > 0 and self.measured <= self.limit

    @property
    def failed(self) -> bool:
        return self.compared > 0 and not self.passed

    @property
    def verdict(self) -> str:
        """ "passed", "failed", or "not tested" where there was nothing to compare."""
        return "passed" if self.passed else "failed" if self.failed else "not tested"

    def as_dict(self) -> dict[str, Any]:
        """The check for JSON, with None for nan and infinity."""
        measured = self.measured if math.isfinite(self.measured) else None
        return {
            "measured": measured,
            **{k: v for k, v in asdict(self).items() if k != "measured"},
            "verdict": self.verdict,
        }


def sampler_checks(trajectories: Sequence[Trajectory], logprobs_M: Tensor) -> list[Check]:
    """The sampler's recorded log-probs against the trainer's, for the same tokens.

    Raises ValueError where the sampler recorded none.
    """
    turns = [turn for t in trajectories for turn in t.turns]
    if any(len(turn.logprobs) != len(turn.completion_ids) for turn in turns):
        raise ValueError("a turn has no log-probs of its sampler; sample with an engine that records them")
    recorded_M = torch.tensor([p for turn in turns for p in turn.logprobs], dtype=torch.float64)
    difference_M = (logprobs_M.detach().cpu().double() - recorded_M).abs()
    explanation = "difference between a token's log-prob when it was sampled and in training"
    return [
        Check(f"sampler and trainer, {name}", measured, SAMPLER_LIMIT, "nats", len(difference_M), explanation)
        for name, measured in (("largest", difference_M.max().item()), ("mean", difference_M.mean().item()))
    ]


def half_check(trained_M: Tensor, sampled_M: Tensor) -> Check:
    """Log-probs of the trainer's passes in bf16, over the token tree, against those of the sampler's bf16 copy."""
    measured = (trained_M.double() - sampled_M.double()).abs().mean().item()
    explanation = "mean difference between a bf16 copy, turn by turn, and the token tree in bf16, as they are trained"
    return Check("sampler and trainer in bf16, mean", measured, HALF_LIMIT, "nats", len(trained_M), explanation)


def packed_check(packed_M: Tensor, alone_M: Tensor, *, precision: str, limit: float) -> Check:
    """Log-probs of the token tree against those of unpacked turns."""
    measured = (packed_M - alone_M).abs().max().item()
    explanation = "largest difference between the token tree and each turn run alone"
    return Check(f"packed log-probs, {precision}", measured, limit, "nats", len(alone_M), explanation)


def gradient_check(packed: Sequence[Tensor], alone: Sequence[Tensor], *, precision: str, limit: float) -> Check:
    """The gradient through the token tree against the sum over turns run alone."""
    compared = sum(p.numel() for p in alone)
    explanation = "norm of the difference from the gradient of each turn run alone, over the norm"
    measured = relative_difference(packed, alone)
    return Check(f"packed gradient, {precision}", measured, limit, "relative", compared, explanation)


def micro_batch_check(
    parts: Sequence[Tensor], whole: Sequence[Tensor], *, batches: int, limit: float = ROUNDING_LIMIT
) -> Check:
    """The gradient of half groups against that of whole groups; `batches` is the number of groups that were cut."""
    explanation = "gradient of each group in two halves, same denominator, against the group as a whole"
    measured = relative_difference(parts, whole)
    return Check("micro-batches add up", measured, limit, "relative", batches, explanation)


def rounding_limit(alone: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """How far a gradient may be from that of unpacked turns in the model's own precision, given the latter in float64.

    A policy that is nearly sure of its tokens has small gradients, sums of numbers that cancel: unpacked turns then
    differ by more than ROUNDING_LIMIT from themselves in float64, and the tree, which adds in another order, as much.
    Beyond a hundredth it is no longer rounding, but two computations.
    """
    return min(max(ROUNDING_LIMIT, 4 * relative_difference(alone, exact)), 1e-2)


def relative_difference(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> float:
    """|got - wanted| / |wanted| over all tensors together; infinity where there is no gradient to compare with."""
    difference = sum((a - b).double().square().sum().item() for a, b in zip(got, wanted, strict=True))
    norm = sum(b.double().square().sum().item() for b in wanted)
    return math.sqrt(difference / norm) if norm else math.inf


def once_check(packed: Iterable[tuple[TokenTree, Sequence[Trajectory]]]) -> Check:
    """Every sampled token is a target of its tree exactly once, after exactly its own context."""
    pairs = list(packed)
    wrong = sum(wrong_targets(tree, trajectories) for tree, trajectories in pairs)
    compared = sum(t.num_completion_tokens for _, trajectories in pairs for t in trajectories)
    explanation = "sampled tokens that are no target, or one twice, or that follow another context in the tree"
    return Check("tokens trained exactly once", wrong, 0, "tokens", compared, explanation)


def wrong_targets(tree: TokenTree, trajectories: Sequence[Trajectory]) -> int:
    """Sampled tokens without exactly one target of their own, on the path of their context."""
    targets, parent, ids = (x.tolist() for x in (tree.target_node, tree.parent, tree.input_ids))
    turns = [turn for t in trajectories for turn in t.turns]
    wrong = abs(len(targets) - sum(len(turn.completion_ids) for turn in turns))
    place = 0
    for turn in turns:
        nodes = targets[place : place + len(turn.completion_ids)]
        wrong += _wrong_in_turn(nodes, turn, parent, ids)
        place += len(turn.completion_ids)
    return wrong


def _wrong_in_turn(nodes: Sequence[int], turn: Turn, parent: Sequence[int], ids: Sequence[int]) -> int:
    path: list[int] = []
    node = nodes[-1] if nodes else -1
    while node >= 0:
        path.append(node)
        node = parent[node]
    path.reverse()
    length = len(turn.completion_ids)
    if tuple(ids[n] for n in path) != turn.context_ids + turn.completion_ids:
        return length
    return sum(a != b for a, b in zip(nodes, path[-length:], strict=True))


def reencoding_check(trajectories: Sequence[Trajectory]) -> Check:
    """Sampled tokens enter the next context unchanged."""
    compared = sum(len(turn.completion_ids) for t in trajectories for turn in t.turns[:-1])
    explanation = "sampled tokens that the next context holds otherwise than they were sampled"
    return Check("re-encoded tokens", reencoded_share(trajectories), 0, "share", compared, explanation)


@torch.no_grad()
def causality_checks(score: Score, trees: Sequence[TokenTree], *, vocabulary: int) -> list[Check]:
    """Change one token of a tree: neither tokens before it nor other branches may change.

    `vocabulary` is the number of tokens. A change that affects nothing at all shows nothing, so it does not count as
    compared.
    """
    earlier: list[Tensor] = []
    elsewhere: list[Tensor] = []
    for tree in trees:
        before_M = score(tree)
        for node in changed_nodes(tree):
            ids = tree.input_ids.clone()
            ids[node] = (ids[node] + 1) % vocabulary
            moved_M = (score(replace(tree, input_ids=ids)) - before_M).abs().cpu()
            target_M = tree.target_node
            below_M = (target_M >= node) & (target_M < tree.end[node])  # `node` and what comes after it
            above_M = (target_M < node) & (tree.end[target_M] > node)
            if (moved_M[below_M] > 0).any():
                earlier.append(moved_M[above_M])
                elsewhere.append(moved_M[~above_M & ~below_M])
    checks: list[Check] = []
    for name, where, moved in (
        ("causality", "of tokens before it", earlier),
        ("branches are separate", "on other branches", elsewhere),
    ):
        values_M = torch.cat([torch.zeros(0), *moved])
        largest = values_M.max().item() if len(values_M) else 0.0
        explanation = f"a changed token moves log-probs {where}"
        checks.append(Check(name, largest, CAUSALITY_LIMIT, "nats", len(values_M), explanation))
    return checks


def changed_nodes(tree: TokenTree) -> list[int]:
    """Nodes to change: evenly spaced over the sampled tokens, and as many over all tokens, which are mostly context."""
    sampled, size = tree.target_node.tolist(), len(tree)
    shares = [(change + 0.5) / CHANGES for change in range(CHANGES)]
    return sorted({sampled[int(len(sampled) * s)] for s in shares} | {int(size * s) for s in shares})


def reencoded_share(trajectories: Sequence[Trajectory]) -> float:
    """Share of the tokens carried from a turn into the next context that are not the sampled ones; must be 0.

    All tokens that were copied from earlier turns are looked up in order among those that their turn sampled; those not
    found have changed. Where origins were not recorded, only the newest turn is compared, of which every memory
    keeps part: from its state to its query, or, where these were not recorded either, the whole completion.
    """
    carried = changed = 0
    for trajectory in trajectories:
        for place in range(1, len(trajectory.turns)):
            for copy, before in _copies(trajectory.turns, place):
                carried += len(copy)
                changed += _not_in_order(copy, before.prefill_ids + before.completion_ids)
    return changed / carried if carried else 0.0


def _copies(turns: Sequence[Turn], place: int) -> Iterator[tuple[tuple[int, ...], Turn]]:
    """(tokens in the context of the turn at `place`, the turn that sampled them)."""
    before, after = turns[place - 1], turns[place]
    if not after.context_origins:
        yield _copy(before, after), before
        return
    for number, role, start, stop in after.context_origins:
        if number and role != "result":
            yield after.context_ids[start:stop], turns[number - 1]


def _copy(before: Turn, after: Turn) -> tuple[int, ...]:
    """The tokens of the newest completion in the next context."""
    spans = [after.context_spans[role] for role in ("state", "query") if role in after.context_spans]
    if spans:
        return after.context_ids[min(start for start, _ in spans) : max(stop for _, stop in spans)]
    stop = len(after.context_ids) - len(before.observation_ids)
    return after.context_ids[max(stop - len(before.completion_ids), after.prompt_tokens) : stop]


def _not_in_order(copy: Sequence[int], sampled: Sequence[int]) -> int:
    """Number of tokens of the copy that are not found, in order, among the sampled ones."""
    missing = position = 0
    for token in copy:
        if token in sampled[position:]:
            position = sampled.index(token, position) + 1
        else:
            missing += 1
    return missing
