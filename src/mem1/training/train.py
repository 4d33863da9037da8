"""One run from a recipe: stages in order, metrics and checkpoints on the way, exact resume.

The state of a run is its weights, its optimisers and two numbers (stage, step in the stage); everything else is a
function of the seed and the step. A run killed at any moment continues from its last checkpoint and writes the same
metrics as an unbroken one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from torch import nn
from transformers import PreTrainedModel

from mem1.configuration import plain
from mem1.engines.base import Engine
from mem1.engines.codec import Codec, check_words
from mem1.engines.device import flushed_denormals
from mem1.engines.launched import GivenUp
from mem1.engines.out_of_memory import NETWORKS, memory_named
from mem1.engines.workers import local_engine
from mem1.envs.base import TaskSource
from mem1.envs.tasks import made_tasks
from mem1.errors import UserError
from mem1.heap import give_back, keep_freed
from mem1.interrupts import GRACE_S, Interrupted, Stop, interruptible, stopped_while
from mem1.lock import alone_in
from mem1.packing.attention import unpackable
from mem1.policy.folders import policy_digest
from mem1.policy.policy import Policy, check_sampled, make_policy
from mem1.policy.protocol import resolve
from mem1.protocol import Tags
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.recipe.rollouts import recipe_rollout
from mem1.records import Group, Trajectory
from mem1.rollout import RolloutPort
from mem1.run_folder import BEST, METRICS, RunFolder, pin_model
from mem1.training.monitoring.metrics_log import KeptAttempts, Metrics, MetricsLog
from mem1.training.monitoring.run_warnings import Watch
from mem1.training.monitoring.validation import BestPolicy, Validation
from mem1.training.monitoring.writers import Writers, check_writers
from mem1.training.ranks.optimizers import Optimizers
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement, joined_for
from mem1.training.ranks.processes import Ranks
from mem1.training.recorded import Recorded, read_recorded
from mem1.training.rl import RlStage
from mem1.training.runs.checkpoint import BackgroundSaves, load_checkpoint
from mem1.training.runs.resume import NOT_FINGERPRINTED, as_begun, reached
from mem1.training.runs.snapshot import Snapshot
from mem1.training.sampling.automatic import decided
from mem1.training.sampling.served import VLLM_LOG, weight_sync
from mem1.training.sampling.weight_sync import WeightSync
from mem1.training.supervised import RecallStage, SftStage, demonstrate

log = logging.getLogger(__name__)


class Stage(Protocol):
    """A part of a run with its own optimisers."""

    name: str
    model: PreTrainedModel
    """The trained model: the policy's, or a copy that is sharded over the ranks."""
    optimizers: Optimizers
    untouched: bool
    """Whether the step under way, for which it is set, has changed nothing that a checkpoint holds."""

    @property
    def modules(self) -> Mapping[str, nn.Module]:
        """Networks that a checkpoint must hold besides the policy."""
        ...

    @property
    def steps(self) -> int: ...

    def step(self, index: int) -> Metrics:
        """One optimiser step, counted from 0; returns what to log."""
        ...

    def validated(self, done: int) -> Metrics | None:
        """Metrics of the validation that is due after `done` steps, which changes nothing; None: none is due."""
        ...


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Argument of `on_step` after every step."""

    stage: str
    step: int
    """Steps of the stage that are done."""
    steps: int
    """Steps of the stage."""
    metrics: Metrics
    seconds: float
    """Duration of this step."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Result of a run."""

    policy: Policy
    complete: bool
    """False: stopped on request; a checkpoint was written, and `--resume` continues."""
    where: str
    """Its last progress: "after step 12 of 40 of [sft]"."""


def make_rollout(config: Recipe, policy: Policy, source: TaskSource, *, engine: Engine | None = None) -> RolloutPort:
    """The rollout of a recipe with this policy, sampled by `engine`; None: in this process, by `config.workers`."""
    dialogue = policy.dialogue(resolve(config))
    sampler = engine or local_engine(policy.model, policy.codec, dialogue.stop_strings, workers=config.workers)
    return recipe_rollout(config, engine=sampler, dialogue=dialogue, source=source)


def make_stages(
    config: Recipe,
    policy: Policy,
    placement: Placement = SINGLE_PROCESS,
    *,
    sync: WeightSync | None = None,
    recorded: Recorded | None = None,
) -> list[Callable[[], Stage]]:
    """Factories of the recipe's stages in order; a stage is made when it begins.

    sync        servers that sample
    recorded    the attempts that [sft] trains; None: it demonstrates
    """
    recall, sft, rl = config.recall, config.sft, config.rl
    stages: list[Callable[[], Stage]] = []
    if recall is not None:
        stages.append(lambda: RecallStage(policy, recall, config.seed, placement=placement))
    if sft is None and rl is None:
        return stages
    speaks = resolve(config)
    config, tags = speaks.applied(config), speaks.tags
    source = config.tasks.source("train", tags)
    _check_tasks(config, source, policy.codec, tags)
    workers = placement.ranks.device.workers(config.workers)
    few = config.model_copy(update={"workers": workers})
    rollout = make_rollout(few, policy, source, engine=None if sync is None else sync.engine)
    if sft is not None:

        def shown() -> Sequence[Trajectory]:
            return demonstrate(config, rollout, source, tags) if recorded is None else recorded.trajectories

        stages.append(lambda: SftStage(policy, sft, shown, config.seed, workers, placement))
    if rl is not None:
        validation = Validation.of(config, rollout, tags, policy.codec)
        if config.evaluation.every > rl.steps:
            log.warning(
                "evaluation.every = %d never comes in %d steps of [rl]: nothing is validated, and there is no %s",
                config.evaluation.every, rl.steps, BEST,
            )  # fmt: skip
        stages.append(lambda: RlStage(policy, rl, rollout, source, config.seed, workers, placement, sync, validation))
    return stages


def _check_tasks(config: Recipe, source: TaskSource, codec: Codec, tags: Tags) -> None:
    """Draw a task of each size: faulty files, impossible sizes, unknown words and what an algorithm needs and attempts
    lack must fail before training starts."""
    results = config.tasks.results
    sampled = {n for phase in (config.rl.curriculum if config.rl is not None else ()) for n in phase.objectives}
    for objectives in sorted(sampled.union(config.demonstrated)):
        (task,) = made_tasks(source, objectives=objectives, count=1, seed=config.seed)
        check_words(codec, [task], tags, whose=config.model.name, results=results)
        results = tuple  # they are said once
        if config.rl is not None and config.agent is None and objectives in sampled:  # an agent measures by itself
            config.rl.algorithm.check(task, partial(config.tasks.measured, source, task, tags))


def _warn_unpacked(config: Recipe, model: PreTrainedModel) -> None:
    packs = config.sft is not None or (config.rl is not None and config.rl.packed)
    if packs and (why := unpackable(model)):
        log.warning("%s; it is trained one context a row, which is slower", why)


def _recorded(config: Recipe, policy: Policy, reached: Mapping[str, Any]) -> Recorded | None:
    """The recorded attempts of [sft]; None: it has none, or it is over."""
    if config.sft is None or config.sft.trajectories is None:
        return None
    if (reached["stage"], reached["done"]) >= (int(config.recall is not None), config.sft.steps):
        return None
    found = read_recorded(config.sft, policy.dialogue(resolve(config)))
    log.log(
        logging.WARNING if found.left_out or found.encoded_anew or found.reframed else logging.INFO, "[sft] %s", found
    )
    return found


@flushed_denormals()
def train(
    config: Recipe,
    out: Path,
    *,
    command: Sequence[str],
    resume: bool = False,
    on_step: Callable[[Progress], None] | None = None,
    on_saved: Callable[[Path], None] | None = None,
    ranks: Ranks | None = None,
) -> Finished:
    """Run the recipe into the folder `out`; the trained policy is saved in `out/policy`.

    on_step     called after every step, on rank 0
    on_saved    called with the path of every finished checkpoint, on rank 0, in the thread that writes them
    ranks       the processes that train together; each calls `train`, and only rank 0 writes metrics and policy;
                None: torchrun's processes, else this one alone, on the device that `model.device` names

    Raises UserError for a recipe without stages, a folder that is in use or holds something else, a checkpoint of
    another configuration, or a full disk.
    """
    if config.recall is None and config.sft is None and config.rl is None:
        raise UserError("the recipe has no stage to train: [recall], [sft] or [rl]; one without is for mem1 eval")
    if ranks is None:
        with joined_for(config) as found:
            return train(config, out, command=command, resume=resume, on_step=on_step, on_saved=on_saved, ranks=found)
    check_writers(config.writers)
    config, chosen = decided(config, out, device=ranks.device, processes=ranks.size, resume=resume)
    if chosen:
        log.info("%s", chosen)
    placement = Placement.of(config, ranks)
    if ranks.device.is_cpu:
        keep_freed()
    with ExitStack() as held:
        ranks.on_rank_zero(lambda: held.enter_context(alone_in(out)))
        if resume:
            pin_model(out)
        policy, speaks = make_policy(config), resolve(config)
        if config.rl is not None and not isinstance(config.rollout, ServerRollouts):
            check_sampled(policy.model, config)
        if ranks.rank == 0:
            _warn_unpacked(config, policy.model)
        elsewhere = placement.separate and isinstance(config.rollout, ServerRollouts)
        if not elsewhere and not placement.applied:  # which moves once it is quantised
            with memory_named("loading the policy", NETWORKS):
                policy.model.to(ranks.device.at)  # type: ignore[arg-type]  # transformers' own signature takes less
        at = ranks.on_rank_zero(lambda: reached(out, resume=resume))
        recorded = _recorded(config, policy, at)
        sync = held.enter_context(weight_sync(config, policy, ranks))
        makers = make_stages(config, policy, placement, sync=sync, recorded=recorded)

        def open_folder() -> str:
            if resume and (out / "config.toml").is_file():
                begun = as_begun(config, out, placement.computed)
                folder = RunFolder.open(out, begun, exclude=NOT_FINGERPRINTED)
            else:
                folder = RunFolder.create(out, config, command=command, exclude=NOT_FINGERPRINTED)
            folder.note_computed(placement.computed.record())
            folder.note_protocol(speaks.record())
            folder.note_model(config.model.path)
            folder.note_policy(None if config.model.path is None else policy_digest(config.model.path))
            folder.note_sampler(config.rollout.engine)
            folder.note_start(after_step=at["step"], ranks=ranks.size)
            if recorded is not None:
                folder.note_trajectories(recorded.record())
            if config.rl is not None or config.demonstrated:
                folder.note_tasks(config.tasks.trained_on())
            return folder.fingerprint

        folder = RunFolder(path=out, fingerprint=ranks.on_rank_zero(open_folder))
        ranks.on_rank_zero(lambda: sync.start(out / VLLM_LOG) if sync is not None else None)
        watch = Watch(config, out, device=ranks.device, alert=lambda text: writers.alert(text))
        writers = Writers(config.writers, out, config=plain(config), tell=watch.writer_failed)
        ranks.on_each_rank(folder.check_seen)
        alone = ranks.size == 1  # others would wait for a rank that breaks off a step
        notice = f"Stopping: this step has {GRACE_S:.0f} seconds to finish; " if alone else "Finishing this step; "
        notice = f"{notice}press Ctrl-C again to stop at once." if ranks.rank == 0 else ""
        with (
            interruptible(notice, breakable=alone) as stop,
            BackgroundSaves(folder.checkpoints, ranks, on_saved=on_saved) as saves,
            MetricsLog(out, writers) as rows,
        ):
            run = _Run(config, folder, at, policy, placement, saves, rows, watch, on_step, stop)
            complete = run.run(makers)
        if complete and ranks.rank == 0:
            policy.save_sealed(out / "policy")
        if complete and ranks.any(stop.requested):
            raise Interrupted("after the last step")
        if placement.sampling is not None:  # evaluate in the precision of sampling
            policy.model.to(placement.sampling)  # type: ignore[arg-type]
        return Finished(policy=policy, complete=complete, where=run.where)


@dataclass
class _Run:
    config: Recipe
    folder: RunFolder
    reached: Mapping[str, Any]
    policy: Policy
    placement: Placement
    saves: BackgroundSaves
    log: MetricsLog
    watch: Watch
    on_step: Callable[[Progress], None] | None
    stop: Stop
    where: str = "before the first step"
    unrecorded: dict[str, Any] | None = None
    """Metrics and timings of the last step, whose validation is to come; None: they are recorded."""

    def run(self, makers: Sequence[Callable[[], Stage]]) -> bool:
        """Run the remaining stages; False where the run was stopped on request."""
        ranks, reached = self.placement.ranks, self.reached
        before = 0  # steps of the earlier stages
        for number, make in enumerate(makers):
            with memory_named("loading the networks", NETWORKS):
                stage = make()
            stopped = False
            done = stage.steps
            if number >= reached["stage"]:
                first = 0
                if number == reached["stage"] and reached["path"] is not None:
                    load_checkpoint(reached["path"], stage.model, stage.optimizers.members, **self._belonging(stage))
                    first, self.unrecorded = reached["done"], reached["unrecorded"]
                ranks.on_rank_zero(lambda kept=before + first: self._forget_after(kept))
                done, stopped = self._train(stage, number, first, before)
            last = number == len(makers) - 1
            self.placement.hand_back(stage.model, self.policy.model, last=last)
            if stopped and (self.unrecorded or not (last and done == stage.steps)):
                return False
            before += stage.steps
        return True

    def _belonging(self, stage: Stage) -> dict[str, Any]:
        """State for a checkpoint besides model and optimisers."""
        return {
            "modules": stage.modules,
            "fingerprint": self.folder.fingerprint,
            "ranks": self.placement.ranks,
        }

    def _train(self, stage: Stage, number: int, first: int, before: int) -> tuple[int, bool]:
        """Take the steps from `first`, with checkpoints; returns the steps done, and whether a stop was requested."""
        self.placement.ranks.on_rank_zero(lambda: self.watch.begin(stage.name, before))
        saved = time.monotonic()
        for index in range(first - bool(self.unrecorded), stage.steps):
            try:
                whole = self._taken(stage, index, before)
            except GivenUp:
                if self._can_be_saved(stage):
                    self._save(stage, number, index + bool(self.unrecorded), before)
                raise
            done = index + (whole or bool(self.unrecorded))
            stopped = not whole or self.placement.ranks.any(self.stop.requested)
            with self.stop.unbroken():
                due = time.monotonic() - saved >= 60 * self.config.checkpoint_minutes
                due = self.placement.ranks.any(due) or done % self.config.checkpoint_every == 0
                if stopped or done == stage.steps or due:
                    saved = time.monotonic()
                    self._save(stage, number, done, before)
            if stopped:
                self.stop.breakable = False  # nothing that follows is worth breaking off
                return done, True
        return stage.steps, False

    def _save(self, stage: Stage, number: int, done: int, before: int) -> None:
        """A checkpoint of the present state, after `done` steps of the stage."""
        rows = self.placement.ranks.on_rank_zero(lambda: self.log.digest(before + done))
        extra = {"stage": number, "done": done, "metrics": rows, "unrecorded": self.unrecorded}
        members, belonging = stage.optimizers.members, self._belonging(stage)
        self.saves.save(partial(Snapshot.take, before + done, stage.model, members, extra=extra, **belonging))

    def _can_be_saved(self, stage: Stage) -> bool:
        """Whether the state is one between two steps, in the middle of a step."""
        return self.placement.ranks.size == 1 and (stage.untouched or self.unrecorded is not None)

    def _taken(self, stage: Stage, index: int, before: int) -> bool:
        """Take a step, unless that is done, validate and record it.

        False: it was broken off, and all is as it was before, or the step is taken and `unrecorded`.
        """
        place = f"step {index + 1} of {stage.steps} of [{stage.name}]"
        try:
            if self.unrecorded is None:
                stage.untouched, started = True, time.perf_counter()
                with stopped_while(f"taking {place}"):
                    metrics = stage.step(index)
                with self.stop.unbroken():
                    self._keep(stage, before + index + 1, metrics, time.perf_counter() - started)
            started = time.perf_counter()
            with stopped_while(f"validating after {place}"):
                validation = stage.validated(index + 1)
        except Interrupted as interrupt:
            if not self._can_be_saved(stage):
                raise
            self.where, self.stop.breakable = interrupt.where, False
            return False
        with self.stop.unbroken():
            self._record_step(stage, index, before, validation, time.perf_counter() - started)
        give_back()
        self.where = f"after {place}"
        return True

    def _keep(self, stage: Stage, step: int, metrics: Metrics, seconds: float) -> None:
        """Hold what a step has given until its validation is there, too. Raises UserError where it has diverged."""
        timings: Mapping[str, float] = {"total": seconds, **getattr(stage, "timings", {})}
        groups: Sequence[Group] = getattr(stage, "groups", ())
        self.placement.ranks.on_rank_zero(lambda: self._kept.keep(step, groups))
        self.placement.ranks.on_rank_zero(lambda: self.log.check(step, metrics, timings))
        self.unrecorded = {"metrics": metrics, "timings": timings}

    def _record_step(self, stage: Stage, index: int, before: int, validation: Metrics | None, seconds: float) -> None:
        assert self.unrecorded is not None
        metrics, timings = self.unrecorded["metrics"], self.unrecorded["timings"]
        if validation is not None:
            metrics = {**metrics, "validation": validation}
            timings = {**timings, "total": timings["total"] + seconds, "validation": seconds}
            self._keep_best(stage, before + index + 1, cast(float, validation["reward"]))
        self.placement.ranks.on_rank_zero(lambda: self._record(before + index + 1, metrics, timings))
        self.unrecorded = None
        if self.on_step is not None and self.placement.ranks.rank == 0:
            total = timings["total"]
            self.on_step(Progress(stage=stage.name, step=index + 1, steps=stage.steps, metrics=metrics, seconds=total))

    def _record(self, step: int, metrics: Metrics, timings: Mapping[str, float]) -> None:
        self.log.append(step, metrics, timings=timings)
        self.watch.look(step, metrics)

    def _forget_after(self, step: int) -> None:
        """Drop what a run that was killed has recorded of the steps after its checkpoint, and open the writers.

        Raises UserError where the steps before it are not as they were recorded.
        """
        recorded = step - bool(self.unrecorded)
        if step == self.reached["step"] and self.reached["metrics"] not in (None, self.log.digest(recorded)):
            raise UserError(
                f"{self.log.path / METRICS} is not as the run has written it: of the steps up to {step}, some are "
                "missing or have changed; restore the file, or start a new run with another --out"
            )
        if dropped := self.log.truncate_after(recorded):
            log.warning("recorded steps after step %d are in no checkpoint, and are taken again: %d", recorded, dropped)
        self._kept.truncate_after(step)
        self.log.open_writers()

    @property
    def _kept(self) -> KeptAttempts:
        return KeptAttempts(self.folder.path, self.config.trajectories, self.policy.codec)

    def _keep_best(self, stage: Stage, step: int, reward: float) -> None:
        """Save the policy if no earlier one had this validation reward. A resumed run meets its own best again."""
        best, ranks = BestPolicy(self.folder.path / BEST, self.config.evaluation), self.placement.ranks
        if ranks.on_rank_zero(lambda: (record := best.record()) is not None and record >= reward):
            return
        weights = self.placement.exact_weights(stage.model, self.policy.model)
        ranks.on_rank_zero(lambda: best.replace(self.policy, step=step, reward=reward, weights=weights))
