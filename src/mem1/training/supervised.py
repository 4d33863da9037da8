"""The stages before reinforcement learning: associative recall, and imitation of an expert or of recorded attempts.

Recall gives a small transformer its copying heads. It contains nothing about any task:

    a b X Y  c d Z W  |  c d -> Z W  a b -> X Y

K pairs of a two-token key and a two-token value, then the same pairs in another order; only the values of the second
half are predicted.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import fmean

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from mem1.algorithms.losses import negative_log_likelihood
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.out_of_memory import RECALLING, TRAINING, memory_named
from mem1.envs.base import TaskSource
from mem1.envs.tasks import Excerpts, made_tasks
from mem1.errors import UserError
from mem1.interrupts import stopped_while
from mem1.memory import memory_policy
from mem1.packing import Pack, split_into_packs
from mem1.packing.attention import unpackable
from mem1.policy.policy import Policy
from mem1.protocol import Tags
from mem1.recipe.recipe import Recipe
from mem1.recipe.supervised import TURNS_PER_PIECE, Recall, Sft
from mem1.records import Ended, Task, Trajectory
from mem1.rollout import RolloutPort
from mem1.training.gradients.pack_workers import UNPACKED_ALONE, PackWorkers
from mem1.training.logprobs import flat_logprobs, score
from mem1.training.monitoring.metrics_log import Metrics
from mem1.training.ranks.optimizers import Optimizers, adamw, muon, warmup, warmup_decay
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement
from mem1.training.ranks.processes import as_forward

log = logging.getLogger(__name__)

FIRST_TOKEN = 2
"""Padding and the unknown token, which come first, are never drawn."""


@dataclass
class RecallStage:
    """Associative recall on random tokens; step i is a pure function of the weights, the seed and i."""

    policy: Policy
    config: Recall
    seed: int
    placement: Placement = SINGLE_PROCESS
    name: str = "recall"
    untouched: bool = True
    modules: Mapping[str, nn.Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = self.placement.trained(self.policy.model)
        self.optimizers = muon(self.model, self.config.learning_rate, self.config.adam_learning_rate)

    @property
    def steps(self) -> int:
        return self.config.steps

    def step(self, index: int) -> Metrics:
        """One optimiser step."""
        seed = self.seed * 1_000_003 + index
        ids_BT, predicted_BT = recall_batch(self.config, self.policy.codec.vocab_size, seed=seed)
        rows, share = self._share(len(ids_BT))
        with memory_named("training associative recall", RECALLING):
            with self.placement.passes(self.model):
                loss, right = recall_loss(self.model, ids_BT[rows], predicted_BT[rows])
            (loss * share).backward()
            self.untouched = False
            norm = self.optimizers.step(scale=warmup(index, self.config.warmup))
        parts = self.placement.ranks.gather_json([share * x for x in torch.stack([loss.detach(), right]).tolist()])
        losses, shares_right = zip(*parts, strict=True)
        return {"loss": sum(losses), "token_accuracy": sum(shares_right), "grad_norm": norm}

    def validated(self, done: int) -> None:
        """No validation is ever due."""

    def _share(self, rows: int) -> tuple[slice, float]:
        """This rank's rows and their share of all rows, which have equally many tokens to predict."""
        rank, size = self.placement.ranks.rank, self.placement.ranks.size
        start, stop = rows * rank // size, rows * (rank + 1) // size
        if start == stop:  # fewer rows than ranks: compute the first with weight 0, as every rank must take part
            return slice(0, 1), 0.0
        return slice(start, stop), (stop - start) / rows


def recall_batch(config: Recall, vocab_size: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences (B, 8K) and a mask of the tokens to predict, of the same shape."""
    pairs = random.Random(f"recall/{seed}").choice(config.pairs)
    generator = torch.Generator().manual_seed(seed)
    rows = max(1, config.tokens // (8 * pairs))
    shown_BK4 = torch.randint(FIRST_TOKEN, vocab_size, (rows, pairs, 4), generator=generator)
    order_BK = torch.rand(rows, pairs, generator=generator).argsort(dim=1)
    shuffled_BK4 = shown_BK4.gather(1, order_BK[:, :, None].expand(-1, -1, 4))
    ids_BT = torch.cat([shown_BK4.flatten(1), shuffled_BK4.flatten(1)], dim=1)
    predicted_BT = torch.zeros_like(ids_BT, dtype=torch.bool)
    predicted_BT[:, 4 * pairs :] = torch.tensor([False, False, True, True]).repeat(pairs)
    return ids_BT, predicted_BT


def recall_loss(model: PreTrainedModel, ids_BT: Tensor, predicted_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross-entropy of the tokens to predict, and the share that is predicted correctly, both scalars."""
    at_M = predicted_BT[:, 1:].flatten().nonzero()[:, 0]
    sent = {"device": model.device, "non_blocking": True}
    targets_M, places_M = ids_BT[:, 1:].flatten()[at_M].to(**sent), at_M.to(**sent)

    def logits() -> Tensor:
        head = model.get_output_embeddings()
        assert head is not None  # a causal language model has one
        hidden_BTD = model.get_decoder()(input_ids=ids_BT.to(**sent), use_cache=False).last_hidden_state
        return head(hidden_BTD[:, :-1].flatten(0, 1).index_select(0, places_M)).float()

    logits_MV = as_forward(model, logits)
    right = (logits_MV.argmax(-1) == targets_M).float().mean()
    return torch.nn.functional.cross_entropy(logits_MV, targets_M), right


@dataclass
class SftStage:
    """Maximum likelihood of demonstrated or recorded completions, over the token tree."""

    policy: Policy
    config: Sft
    demonstrations: Callable[[], Sequence[Trajectory]]
    """Called once, when the stage begins."""
    seed: int
    workers: int = 1
    """Packs that are trained at a time."""
    placement: Placement = SINGLE_PROCESS
    name: str = "sft"
    untouched: bool = True
    modules: Mapping[str, nn.Module] = field(default_factory=dict)
    _full_step: float = field(init=False, default=0.0)
    """Trained tokens of a full step, the mean over those of the first epoch: the divisor of the loss of every step."""

    def __post_init__(self) -> None:
        self.packed = not unpackable(self.policy.model)
        if self.placement.spread and not self.packed:
            raise UserError(UNPACKED_ALONE)
        self.model = self.placement.trained(self.policy.model)
        (rate, adam_rate), weight_decay = self.config.rates, self.config.weight_decay
        self.optimizers: Optimizers = (
            muon(self.model, rate, adam_rate, weight_decay)
            if self.config.optimizer == "muon"
            else adamw(self.model, rate, weight_decay)
        )

    @property
    def steps(self) -> int:
        return self.config.steps

    @cached_property
    def _batches(self) -> list[list[Trajectory]]:
        """One batch a step: epochs over the demonstrations, each in its own seeded order."""
        with stopped_while("making demonstrations"):
            pieces = [p for t in self.demonstrations() for p in _pieces(t)]
        batches: list[list[Trajectory]] = []
        epoch = 0
        while len(batches) < self.steps:
            order = random.Random(f"{self.seed}/sft/{epoch}").sample(range(len(pieces)), len(pieces))
            shuffled = [pieces[i] for i in order]
            packs = split_into_packs(shuffled, max_tokens=self.config.tokens, whole=True)
            batches += [list(pack.trajectories) for pack in packs]
            if not epoch:
                self._full_step = fmean(map(sampled_tokens, batches[:-1] or batches))
            epoch += 1
        return batches

    def step(self, index: int) -> Metrics:
        """One optimiser step on `config.tokens` tokens of demonstrations."""
        model, batch, attention = self.model, self._batches[index], self.placement.attention
        sampled = sampled_tokens(batch)

        def loss_of(pack: Pack) -> tuple[Tensor, Mapping[str, Tensor | float]]:
            with self.placement.passes(model):
                logprobs_M = (
                    as_forward(model, lambda: flat_logprobs(model, pack.tree, temperature=1.0, backend=attention))
                    if self.packed
                    else score(model, pack, temperature=1.0, packed=False).logprobs_M
                )
            # not by the tokens of this step: those of the last one of an epoch, which is smaller, would weigh more
            loss = negative_log_likelihood(logprobs_M, denominator=self._full_step)
            return loss, {"loss": loss.detach(), "tokens": len(pack.tree)}

        packs = split_into_packs(batch, max_tokens=self.config.pack_tokens, whole=True, ranks=self.placement.ranks.size)
        workers = PackWorkers(models=[model] if self.packed else [], placement=self.placement, threads=self.workers)
        scale = warmup_decay(index, steps=self.steps, warmup_steps=self.config.warmup, decay=self.config.decay)
        with memory_named("training on demonstrations", TRAINING.format(stage="sft")):
            passes = workers.backward(packs, loss_of, self.optimizers.parameters)
            self.untouched = False
            norm = self.optimizers.step(scale=scale)
        return {
            "loss": sum(one["loss"] * self._full_step / sampled for one in passes),
            "grad_norm": norm,
            "tokens": float(sum(one["tokens"] for one in passes)),
        }

    def validated(self, done: int) -> None:
        """No validation is ever due."""


def sampled_tokens(batch: Sequence[Trajectory]) -> int:
    """Number of tokens that are trained."""
    return sum(t.num_completion_tokens for t in batch)


def _pieces(trajectory: Trajectory) -> Iterator[Trajectory]:
    """The trajectory in pieces of a few turns; each token stays in one piece."""
    for start in range(0, len(trajectory.turns), TURNS_PER_PIECE):
        yield replace(trajectory, turns=trajectory.turns[start : start + TURNS_PER_PIECE])


def demonstrate(config: Recipe, rollout: RolloutPort, source: TaskSource, tags: Tags) -> list[Trajectory]:
    """Trajectories of the scripted expert, scored like any others. Raises UserError where the budget cuts
    them all, or the expert does not write what the memory asks for."""
    assert config.sft is not None
    tasks = [
        task
        for number, objectives in enumerate(config.demonstrated)
        for task in made_tasks(
            source, objectives=objectives, count=config.sft.tasks, seed=config.seed + 17 + number, exactly=False
        )
    ]
    dialogue = rollout.dialogue
    expert = config.tasks.expert(tasks, source.environment, tags, seed=config.seed)
    if isinstance(expert, Excerpts):
        tasks = [expert.placed(task) for task in tasks]
    rng = random.Random(f"{config.seed}/cut_short")
    tasks = [_cut_short(task, rng) if rng.random() < config.sft.cut_short else task for task in tasks]
    engine = ScriptedEngine(dialogue.codec, expert, dialogue.chat_template)
    contexts = [memory_policy(name) for name in config.sft.memories or (config.memory,)]
    demonstrations: list[Trajectory] = []
    for number, context in enumerate(contexts):
        scripted = rollout.under(context, engine=engine)
        demonstrations += scripted(tasks[number :: len(contexts)], sampling=Sampling(seed=config.seed))
    failed = [t.detail for t in demonstrations if not t.ended.scorable]
    if failed:
        raise UserError(f"{len(failed)} of {len(demonstrations)} demonstrations could not search: {failed[0]}")
    broken = [t for t in demonstrations if t.ended is Ended.BAD_TAGS]
    if broken:
        raise UserError(
            f"{len(broken)} of {len(demonstrations)} demonstrations break the protocol ({broken[0].detail}): the "
            f"expert of these tasks does not write what the memory {broken[0].context} asks for; take another memory"
        )
    unanswered = [t for t in demonstrations if t.ended is not Ended.ANSWERED]
    if 2 * len(unanswered) > len(demonstrations) > len(unanswered):
        ends = ", ".join(f"{count} {ended}" for ended, count in Counter(t.ended for t in unanswered).most_common())
        log.warning(
            "%d of %d demonstrations end without an answer (%s): the memory loses what the tasks need, or the "
            "budget is too small for them",
            len(unanswered), len(demonstrations), ends,
        )  # fmt: skip
    if len(unanswered) == len(demonstrations):
        first = demonstrations[0]
        raise UserError(
            f"none of the {len(demonstrations)} demonstrations answers; the first ended with {first.ended} "
            f"({first.detail}); raise budget.completion_extra or budget.context"
        )
    return [expert.shown(t) for t in demonstrations] if isinstance(expert, Excerpts) else demonstrations


def _cut_short(task: Task, rng: random.Random) -> Task:
    """The task with a limit between 2 turns and about 1.5 per objective (N), where 3N + 3 is usual."""
    enough = task.objectives + task.objectives // 2
    return replace(task, turn_limit=min(task.turn_limit, rng.randint(2, max(2, enough))))
