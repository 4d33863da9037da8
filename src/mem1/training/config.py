"""What a recipe says: the policy, its tasks, and the stages that train it, one TOML an experiment.

A recipe without a stage section skips that stage. Stages run in this order: recall, sft, rl. A recipe without any
is for `mem1 eval --recipe`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from mem1.configuration import Config
from mem1.configuration.numbers import MOST_TASKS, MOST_TOKENS, MOST_WORKERS, GreedyOrWarm, LearningRate, Seed, Sizes
from mem1.contexts import context_policy
from mem1.envs.cloze_source import ClozeTasks
from mem1.envs.source import AtlasTasks, MultihopTasks
from mem1.envs.web_source import WebTasks
from mem1.envs.webshop.laziness import Laziness as ShopLaziness
from mem1.envs.webshop.source import WebShopTasks
from mem1.protocol import vocabulary
from mem1.rollout import Budget
from mem1.tasks.atlas import Laziness
from mem1.training.distributed_config import Distributed
from mem1.training.lora_config import Lora
from mem1.training.model_config import ModelConfig
from mem1.training.recall import Recall
from mem1.training.rl_config import Rl
from mem1.training.rollout_config import LocalRollouts, Rollouts

ContextName = Annotated[str, AfterValidator(lambda name: context_policy(name) and name)]
"""A name that `mem1.contexts.context_policy` knows."""
VocabularyName = Annotated[str, AfterValidator(lambda name: vocabulary(name).name)]
"""A name that `mem1.protocol.vocabulary` knows."""
Tasks = Annotated[AtlasTasks | MultihopTasks | ClozeTasks | WebTasks | WebShopTasks, Field(discriminator="kind")]


class Sft(Config):
    """Supervised fine-tuning on demonstrations by a scripted expert."""

    steps: int = Field(default=400, ge=1)
    objectives: Sizes = (1, 2, 3, 4)
    """Numbers of objectives of the demonstrated tasks."""
    tasks: int = Field(default=2000, ge=1, le=10_000_000)
    """Demonstrated tasks for each number of objectives."""
    contexts: tuple[ContextName, ...] = ()
    """Context policies of the demonstrations, which take the tasks in turn; empty: the recipe's own."""
    cut_short: float = Field(default=0.0, ge=0, le=1)
    """Share of the demonstrations whose turn limit is too low, so that they show the forced answer."""
    laziness: Laziness = Laziness()
    """Habits of the experts of Atlas and of clozes; the latter knows diligent, stop and forget alone. Of no effect on
    real questions, where the expert searches the question itself."""
    shop_laziness: ShopLaziness = ShopLaziness()
    """Habits of the shop's expert."""
    tokens: int = Field(default=8192, ge=64, le=MOST_TOKENS)
    """Tokens of a step, shared ones counted once."""
    pack_tokens: int = Field(default=8192, ge=64, le=MOST_TOKENS)
    """Most tokens of one forward and backward pass; affects memory, speed and the order of addition alone."""
    turns_of_a_piece: int = Field(default=4, ge=1)
    """Long demonstrations are cut into pieces of so many turns, so that a step mixes many tasks."""
    learning_rate: LearningRate = 0.02
    """Of Muon, on matrices."""
    adam_learning_rate: LearningRate = 3e-3
    """Of AdamW, on everything else."""
    warmup: int = Field(default=10, ge=0)
    decay: float = Field(default=0.4, ge=0, le=1)
    """Share of the steps, at the end, over which the learning rates fall to a twentieth."""


class Evaluation(Config):
    """What is measured, on the evaluation half of the tasks."""

    objectives: Sizes = (1, 2, 4, 8, 16)
    tasks: int = Field(default=100, ge=1, le=MOST_TASKS)
    """Tasks for each number of objectives."""
    temperature: GreedyOrWarm = 0.0
    """0: greedy."""
    seed: Seed = 0


class TrainConfig(Config):
    """A recipe."""

    seed: Seed = 0
    vocabulary: VocabularyName = "paper"
    """Tags of the protocol; -web: pages can be opened; -summary: summaries can be asked for; -shop: for a shop."""
    context: ContextName = "constant"
    """Context policy: constant, capped(n), fold(k), full, masked, window(k), summary(n), external(k) or none."""
    model: ModelConfig = ModelConfig()
    tasks: Tasks
    budget: Budget = Budget()
    rollout: Rollouts = LocalRollouts()
    """Who samples for [rl]; whoever it is evaluates the policy when the run has ended, too."""
    workers: int = Field(default=1, ge=1, le=MOST_WORKERS)
    """Processes that sample, and packs that are trained at a time; 2 for a small model on two cores, 1 for a GPU."""
    recall: Recall | None = None
    sft: Sft | None = None
    rl: Rl | None = None
    evaluation: Evaluation = Evaluation()
    lora: Lora | None = None
    """Adapters for reinforcement learning; None: it moves all weights."""
    distributed: Distributed | None = None
    """How the networks are spread over the ranks of torchrun; given, also in one process. None: on several ranks by
    its defaults."""
    checkpoint_every: int = Field(default=20, ge=1)
    """Steps between checkpoints."""
    tensorboard: bool = True

    @model_validator(mode="after")
    def _others_sample_ahead(self) -> TrainConfig:
        if self.rl is not None and self.rl.max_staleness and self.rollout.engine == "local":
            raise ValueError(
                f"rl.max_staleness = {self.rl.max_staleness} needs servers that sample while this process trains: give "
                '[rollout] engine = "servers", and start mem1 serve-policy; or set max_staleness to 0'
            )
        return self

    @model_validator(mode="after")
    def _adapters_learn_from_outcomes(self) -> TrainConfig:
        if self.lora is not None and (self.recall is not None or self.sft is not None):
            raise ValueError("[lora] is for [rl] alone; train [recall] and [sft] in a recipe of their own, without it")
        return self
