"""A recipe: the policy, its tasks, and the stages that train it, in one TOML file per experiment.

    seed = 0                        [model]         path = "models/Qwen2.5-0.5B"
    memory = "constant"             [tasks]         kind = "multihop", ...
                                    [rl]            curriculum = [{ steps = 100 }]

A stage without a section is skipped. Stages run in this order: recall, sft, rl. A recipe without any stage serves
`mem1 eval`. Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, field_validator, model_validator

from mem1.configuration import Config
from mem1.configuration.model import MOST_WORKERS, Seed
from mem1.endpoint.runs import AgentConfig
from mem1.engines.config import Engines, LocalModel
from mem1.envs.tasks import Tasks
from mem1.recipe.evaluation import Evaluation, JudgeConfig, RunWarnings
from mem1.recipe.model import Distributed, Lora, ModelConfig
from mem1.recipe.protocol import Protocol, ProtocolChoice
from mem1.recipe.rl import LocalRollouts, MemoryName, Rl, Rollouts
from mem1.recipe.supervised import Recall, Sft
from mem1.registry import register
from mem1.rollout import Budget

WriterName = Annotated[str, AfterValidator(lambda name: register.writer.get(name) and name)]


class Kept(Config):
    """`[trajectories]`: attempts of [rl] that are kept in RUN/trajectories."""

    groups: int = Field(default=1, ge=0, le=100_000)
    """Groups kept of each step; 0: none."""
    megabytes: float = Field(default=100.0, gt=0)
    """Largest size of the kept attempts; beyond it the oldest steps are removed."""


class Recipe(Config):
    """A recipe: everything that `mem1 train` and `mem1 eval` need to know."""

    seed: Seed = 0
    memory: MemoryName = "constant"
    """Memory of demonstrations, [rl], validation and evaluation: constant, notes, notes(n), notebook(k),
    dropout(p), capped(n), fold(k), full, masked, window(k), summary(n), belief, external(k), none."""
    model: ModelConfig = ModelConfig()
    protocol: ProtocolChoice = Protocol()
    """How it speaks: auto, tags, framed, tools, or the section with tags of your own."""
    agent: AgentConfig | None = None
    """An agent of your own that makes the attempts, with the model behind an endpoint; None: mem1 makes them."""
    tasks: Tasks
    budget: Budget = Budget()
    engine: Engines = LocalModel()
    """Who answers in `mem1 eval` and `mem1 run`: the model in this process, a server, or a script."""
    rollout: Rollouts = LocalRollouts()
    """What samples for [rl], and evaluates the policy at the end of the run."""
    workers: int = Field(default=1, ge=1, le=MOST_WORKERS)
    """Processes that sample, and packs trained in parallel; 2 for a small model on two cores, 1 for a GPU."""
    recall: Recall | None = None
    sft: Sft | None = None
    rl: Rl | None = None
    evaluation: Evaluation = Evaluation()
    trajectories: Kept = Kept()
    judge: JudgeConfig | None = None
    """None: answers are compared with the gold answers alone."""
    lora: Lora | None = None
    """Adapters that are trained; None: all weights are."""
    distributed: Distributed | None = None
    """How the networks are sharded over the ranks of torchrun, or in one process. None: by the defaults on several
    ranks, not at all on one."""
    checkpoint_every: int = Field(default=20, ge=1)
    """Steps between checkpoints."""
    checkpoint_minutes: float = Field(default=5.0, gt=0)
    """Minutes after which a step is followed by a checkpoint, however few steps there were since the last."""
    writers: tuple[WriterName, ...] = ("tensorboard",)
    """Where numbers go besides metrics.jsonl: tensorboard, wandb, trackio, mlflow, a registered name, or
    package.module:Name; empty: nowhere."""
    warnings: RunWarnings = RunWarnings()

    @property
    def demonstrated(self) -> tuple[int, ...]:
        """Numbers of objectives of the expert's demonstrations; empty: there are none."""
        return () if self.sft is None or self.sft.trajectories is not None else self.sft.objectives

    @model_validator(mode="after")
    def _staleness_needs_servers(self) -> Recipe:
        if self.rl is not None and self.rl.max_staleness and self.rollout.engine != "servers":
            raise ValueError(
                f"rl.max_staleness = {self.rl.max_staleness} needs servers that sample while this process trains: give "
                '[rollout] engine = "servers", and start mem1 serve-policy; or set max_staleness to 0'
            )
        return self

    @field_validator("writers")
    @classmethod
    def _each_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(names)) < len(names):
            raise ValueError("names a writer twice; name each once")
        return names

    @model_validator(mode="after")
    def _validation_needs_rl(self) -> Recipe:
        if self.evaluation.every and self.rl is None:
            raise ValueError(
                f"evaluation.every = {self.evaluation.every} validates during [rl]; add that section, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _vllm_samples_no_warmer(self) -> Recipe:
        served = self.rollout.engine == "servers" and self.rollout.kind == "vllm"
        if self.rl is not None and served and self.rl.temperature > 2:
            raise ValueError(f"rl.temperature = {self.rl.temperature:g}: vLLM samples at temperatures up to 2")
        return self

    @model_validator(mode="after")
    def _sleepers_do_not_sample_ahead(self) -> Recipe:
        if self.rl is not None and self.rl.max_staleness and self.rollout.engine == "servers" and self.rollout.sleep:
            raise ValueError("rollout.sleep = true: servers that sleep cannot sample ahead; set rl.max_staleness to 0")
        return self

    @model_validator(mode="after")
    def _adapters_fit_the_stages(self) -> Recipe:
        if self.lora is None:
            return self
        if self.recall is not None:
            raise ValueError("[lora] is for [sft] and [rl]; train [recall] in a recipe of its own, without it")
        if self.sft is not None and self.sft.optimizer == "muon":
            raise ValueError('[lora]: sft.optimizer = "muon" is for whole matrices; set sft.optimizer = "adamw"')
        if self.sft is not None and self.rl is not None and self.lora.quantize is not None:
            raise ValueError(
                "lora.quantize rounds the model that a recipe starts from: train [sft] and [rl] in two recipes, the "
                "second with the first one's policy as model.path"
            )
        return self
