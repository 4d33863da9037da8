"""A recipe: the policy, its tasks, and the stages that train it, in one TOML file per experiment.

    seed = 0                        [model]         path = "models/Qwen2.5-0.5B"
    context = "constant"            [tasks]         kind = "multihop", ...
                                    [rl]            phases = [{ steps = 100 }]

A stage without a section is skipped. Stages run in this order: recall, sft, rl. A recipe without any stage serves
`mem1 eval --recipe`. Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mem1.configuration import Config
from mem1.configuration.numbers import MOST_TASKS, MOST_TOKENS, MOST_WORKERS, GreedyOrWarm, LearningRate, Seed, Sizes
from mem1.contexts import context_policy
from mem1.envs.tasks import Tasks
from mem1.protocol import vocabulary
from mem1.rollout import Budget
from mem1.training.rl_config import Rl
from mem1.training.rollout_config import LocalRollouts, Rollouts


class Distributed(Config):
    """Of no effect on what is learnt, but for `mixed_precision`."""

    mixed_precision: Literal["bf16"] | None = None
    """Weights and activations of forward and backward pass in it; sums of gradients, optimiser and the weights that
    it moves stay in fp32. None: everything in the model's own type."""
    activation_checkpointing: bool = False
    """Each layer is computed again in the backward pass instead of kept: less memory, a third more work."""
    cpu_offload: bool = False
    """Weights, gradients and optimiser states rest in the computer's memory, not on the GPU; of no effect on a CPU."""
    reference_offload: bool = False
    """The same of the frozen reference policy alone."""
    reshard_after_forward: bool = True
    """Let go of a layer's whole weights between forward and backward pass. False: faster, and more memory."""


BLOCK = 64
"""Weights of a row that share a scale where they are quantised."""


class Lora(Config):
    """Size and place of the adapters."""

    rank: int = Field(default=16, ge=1, le=65_536)
    """Rows of A, columns of B."""
    alpha: float = Field(default=32.0, gt=0)
    """The product B A is scaled by alpha / rank."""
    layers: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Last parts of the names of linear layers, such as q_proj; None: all of them but the head."""
    quantize: Literal["nf4"] | None = None
    """Hold the frozen linear layers, the head aside, in 4 bits a weight (QLoRA); None: as they are. The policy that
    samples gets the quantised weights too, so both are the same policy. Needs mem1[qlora]."""


DeviceName = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d{1,3})?)$")]
"""auto: CUDA where there is one, else the CPU, or for sampling and evaluation alone Apple's GPU."""
DtypeName = Literal["auto", "float32", "bfloat16"]
"""auto: see `mem1.engines.device.sampling_dtype`."""
AttentionName = Literal["auto", "blocks", "flex"]
"""auto: see `mem1.packing.attention.choose_attention`."""


class TinyModel(Config):
    """Shape of a small Qwen2 made from nothing."""

    hidden_size: int = Field(default=128, gt=0, le=65_536)
    layers: int = Field(default=4, gt=0, le=1_000)
    heads: int = Field(default=4, gt=0, le=1_000)
    feed_forward: int = Field(default=384, gt=0, le=1_000_000)
    max_positions: int = Field(default=8192, gt=0, le=MOST_TOKENS)
    rope_theta: float = Field(default=10000.0, gt=0)
    look_back: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = (1, 2)
    """Distances at which heads of layers 0 and 1 look back, one head a distance; empty: none."""
    look_back_strength: float = Field(default=3.0, gt=0)
    """Scale of the biases; the attention scores grow with its square."""
    induction: bool = False
    """Begin with heads that copy what followed the same tokens before (`mem1.training.tiny_model.model`); for three
    layers and four heads or more, with look_back = [1, 2, 5, 6], a strength of about 6 and a rope_theta of about
    1e6."""
    tokenizer: Literal["atlas", "shop", "bpe"] = "atlas"
    """atlas, shop: a token a word of the invented worlds or shops; bpe: byte-level, trained on the tasks' corpus."""
    vocab_size: int = Field(default=2000, ge=300, le=1_000_000)
    """Tokens of a bpe tokenizer; the others have their own number."""

    @model_validator(mode="after")
    def _heads_have_room(self) -> TinyModel:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be an even number of times heads {self.heads}")
        if self.induction and (self.layers < 3 or self.heads < 4 or self.look_back != (1, 2, 5, 6)):
            raise ValueError("induction needs layers = 3 or more, heads = 4 or more, and look_back = [1, 2, 5, 6]")
        return self


class ModelConfig(Config):
    """Which weights, and what computes with them. Give `path`, or `new`, or neither for the shipped policy."""

    path: str | None = None
    """Folder of a transformers model with safetensors weights and tokenizer.json."""
    new: TinyModel | None = None
    chat_template: bool = False
    """Put every prompt into the chat template of the model's folder, and let all that follows be the model's reply: for
    models that were trained on chats. The template's tokens are in the contexts and are never trained."""
    device: DeviceName = "auto"
    """auto, cpu, cuda, cuda:N or mps. Under torchrun auto and cuda are the GPU of each process's own rank."""
    dtype: DtypeName = "auto"
    """Precision of the policy that samples and is evaluated: auto, float32 or bfloat16. What is trained is float32;
    bfloat16 therefore needs [lora], [distributed] or several ranks, where the policy that samples is a copy of it."""
    attention: AttentionName = "auto"
    """Attention over the token tree, in training: blocks, flex (FlexAttention, on CUDA), or auto, which takes flex on
    CUDA and blocks elsewhere."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return "the recipe's new model" if self.new is not None else self.path or "the shipped policy"

    @model_validator(mode="after")
    def _one_of_them(self) -> ModelConfig:
        if self.path is not None and self.new is not None:
            raise ValueError("give model.path or model.new, not both")
        if self.chat_template and self.new is not None:
            raise ValueError("model.new has no chat template; leave out model.chat_template, or give model.path")
        return self


ContextName = Annotated[str, AfterValidator(lambda name: context_policy(name) and name)]
"""A name that `mem1.contexts.context_policy` knows."""
VocabularyName = Annotated[str, AfterValidator(lambda name: vocabulary(name).name)]
"""A name that `mem1.protocol.vocabulary` knows."""


class Recall(Config):
    """How much to exercise."""

    steps: int = Field(default=150, ge=1)
    tokens: int = Field(default=8192, ge=64, le=MOST_TOKENS)
    """Tokens of a step."""
    pairs: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = Field(default=(4, 8, 16, 32), min_length=1)
    """Pairs of a sequence; drawn anew for each step."""
    learning_rate: LearningRate = 0.02
    """Of Muon, on matrices."""
    adam_learning_rate: LearningRate = 3e-3
    """Of AdamW, on everything else."""
    warmup: int = Field(default=10, ge=0)


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
