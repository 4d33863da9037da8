"""A recipe: the policy, its tasks, and the stages that train it, in one TOML file per experiment.

    seed = 0                        [model]         path = "models/Qwen2.5-0.5B"
    context = "constant"            [tasks]         kind = "multihop", ...
                                    [rl]            curriculum = [{ steps = 100 }]

A stage without a section is skipped. Stages run in this order: recall, sft, rl. A recipe without any stage serves
`mem1 eval`. Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from mem1.configuration import Config
from mem1.configuration.model import MOST_TASKS, MOST_TOKENS, MOST_WORKERS, GreedyOrWarm, Seed, Sizes
from mem1.configuration.vocabulary import VocabularyChoice
from mem1.endpoint.config import AgentConfig
from mem1.engines.chat_config import Chat
from mem1.engines.config import Engines, LocalModel
from mem1.envs.tasks import Tasks
from mem1.memory import memory_policy
from mem1.protocol import vocabulary
from mem1.registry import register
from mem1.rollout import Budget, check_vocabulary
from mem1.tasks.prompts import LABELS, PromptFile, instructs
from mem1.training.loop.rl_config import ContextName, LocalRollouts, Rl, Rollouts
from mem1.training.loop.run_warnings import RunWarnings
from mem1.training.loop.supervised_config import Recall, Sft


class Distributed(Config):
    """`[distributed]`: how the networks are sharded over the ranks. Only `mixed_precision` changes what is learnt."""

    mixed_precision: Literal["bf16"] | None = None
    """Precision of weights and activations in the forward and backward pass; gradient sums, the optimiser and the
    weights that it updates stay in fp32. None: everything in the model's own type."""
    activation_checkpointing: bool = False
    """Recompute each layer in the backward pass instead of keeping its activations: less memory, a third more work."""
    cpu_offload: bool = False
    """Keep weights, gradients and optimiser states in the computer's memory, not on the GPU; no effect on a CPU."""
    reference_offload: bool = False
    """`cpu_offload` for the frozen reference policy alone."""
    reshard_after_forward: bool = True
    """Free a layer's gathered weights between forward and backward pass. False: faster, with more memory."""


BLOCK = 64
"""Weights of a row that share a scale when they are quantised."""


class Lora(Config):
    """`[lora]`: `[sft]` and `[rl]` train adapters beside the layers, not the layers."""

    rank: int = Field(default=16, ge=1, le=65_536)
    """Rank of the adapters: rows of A, columns of B."""
    alpha: float = Field(default=32.0, gt=0)
    """Scale of the adapters, times the rank: the product B A is multiplied by alpha / rank."""
    layers: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Last parts of the names of linear layers, such as q_proj; None: all of them but the head."""
    quantize: Literal["nf4"] | None = None
    """Hold the frozen linear layers, except the head, in 4 bits per weight (QLoRA); None: as they are. The policy that
    samples gets the quantised weights too, so both are the same policy. Needs mem1-agents[qlora]."""


DeviceName = Annotated[str, Field(pattern=r"^(auto|cpu|mps|cuda(:\d{1,3})?)$")]
"""auto: CUDA where there is one, else the CPU, or for sampling and evaluation alone Apple's GPU."""
DtypeName = Literal["auto", "float32", "bfloat16"]
"""auto: see `mem1.engines.device.sampling_dtype`."""
AttentionName = Literal["auto", "blocks", "flex"]
"""auto: see `mem1.packing.attention.choose_attention`."""


class TinyModel(Config):
    """`[model.new]`: a small Qwen2 made from scratch."""

    hidden_size: int = Field(default=128, gt=0, le=65_536)
    layers: int = Field(default=4, gt=0, le=1_000)
    heads: int = Field(default=4, gt=0, le=1_000)
    feed_forward: int = Field(default=384, gt=0, le=1_000_000)
    max_positions: int = Field(default=8192, gt=0, le=MOST_TOKENS)
    rope_theta: float = Field(default=10000.0, gt=0)
    look_back: tuple[Annotated[int, Field(ge=1, le=10_000)], ...] = (1, 2)
    """Distances, in tokens, at which heads of layers 0 and 1 look back, one head per distance; empty: none."""
    look_back_strength: float = Field(default=3.0, gt=0)
    """Scale of the look-back biases; attention scores grow with its square."""
    induction: bool = False
    """Start with heads that copy what followed the same tokens before (`mem1.training.weights.tiny_model`). Needs at
    least three layers and four heads, and look_back = [1, 2, 5, 6]; works best with a look_back_strength of about 6 and
    a rope_theta of about 1e6."""
    tokenizer: Literal["atlas", "shop", "bpe"] = "atlas"
    """atlas, shop: a token per word of the invented worlds or shops; bpe: byte-level, trained on the tasks' texts."""
    labels: int = Field(default=LABELS, ge=1, le=1000)
    """Questions whose labels have tokens in atlas, beginning with Q1."""
    vocab_size: int = Field(default=2000, ge=300, le=1_000_000)
    """Number of tokens of a bpe tokenizer; the other tokenizers have a fixed number."""

    @model_validator(mode="after")
    def _heads_have_room(self) -> TinyModel:
        if self.hidden_size % (2 * self.heads):
            raise ValueError(f"hidden_size {self.hidden_size} must be an even number of times heads {self.heads}")
        if self.induction and (self.layers < 3 or self.heads < 4 or self.look_back != (1, 2, 5, 6)):
            raise ValueError("induction needs layers = 3 or more, heads = 4 or more, and look_back = [1, 2, 5, 6]")
        return self


class ModelConfig(Config):
    """`[model]`: which weights, and what computes with them. Give `path`, `new`, or neither for the shipped policy."""

    path: str | None = None
    """Folder of a transformers model with safetensors weights and tokenizer.json."""
    new: TinyModel | None = None
    chat_template: bool = False
    """Put every prompt into the chat template of the model's folder; everything after it is the model's reply. For
    models that were trained on chats. The template's tokens are part of the contexts and are never trained."""
    device: DeviceName = "auto"
    """auto, cpu, cuda, cuda:N or mps. Under torchrun, auto and cuda mean the GPU of each process's own rank."""
    dtype: DtypeName = "auto"
    """Precision of the policy that samples and is evaluated: auto, float32 or bfloat16. Trained weights are float32;
    with bfloat16 a copy of the policy samples."""
    attention: AttentionName = "auto"
    """Attention over the token tree in training: blocks, flex (FlexAttention, on CUDA), or auto: flex on CUDA, blocks
    elsewhere."""

    @property
    def name(self) -> str:
        """Name of the model in messages."""
        return "the recipe's new model" if self.new is not None else self.path or "the shipped policy"

    @model_validator(mode="after")
    def _one_of_them(self) -> ModelConfig:
        if self.path is not None and self.new is not None:
            raise ValueError("give model.path or model.new, not both; model.new=null drops the recipe's new model")
        if self.chat_template and self.new is not None:
            raise ValueError("model.new has no chat template; leave out model.chat_template, or give model.path")
        return self


WriterName = Annotated[str, AfterValidator(lambda name: register.writer.get(name) and name)]


class Evaluation(Config):
    """`[evaluation]`: what is measured, on the evaluation half of the tasks."""

    objectives: Sizes = (1, 2, 4, 8, 16)
    tasks: int = Field(default=100, ge=1, le=MOST_TASKS)
    """Tasks per number of objectives."""
    temperature: GreedyOrWarm = 0.0
    """0: greedy."""
    seed: Seed = 0
    every: int = Field(default=0, ge=0)
    """Steps of [rl] between validations, which attempt development tasks greedily while the run trains; 0: none."""
    validation_objectives: Sizes | None = None
    """Numbers of objectives of the validation; None: those of the last phase of rl.curriculum."""
    validation_tasks: int = Field(default=50, ge=1, le=MOST_TASKS)
    """Development tasks per number of objectives."""


class Kept(Config):
    """`[trajectories]`: attempts of [rl] that are kept in RUN/trajectories."""

    groups: int = Field(default=1, ge=0, le=100_000)
    """Groups kept of each step; 0: none."""
    megabytes: float = Field(default=100.0, gt=0)
    """Largest size of the kept attempts; beyond it the oldest steps are removed."""


class JudgeConfig(Config):
    """A language model that judges the answers of `mem1 eval`, beside exact match."""

    url: str
    """Base address of a server that speaks OpenAI's chat protocol; its key is read from MEM1_JUDGE_API_KEY."""
    model: str
    """The judge's name on the server."""


class Recipe(Config):
    """A recipe: everything that `mem1 train` and `mem1 eval` need to know."""

    seed: Seed = 0
    vocabulary: Annotated[VocabularyChoice, AfterValidator(lambda choice: vocabulary(choice) and choice)] = "paper"
    """Tags of the protocol; -web: can open pages; -summary: can write summaries; -notes: can write notes; -belief:
    can reason apart from its memory; -shop: for a shop; published: as the released code words and reads it. Or a table,
    [vocabulary], of your own."""
    context: ContextName = "constant"
    """Memory of demonstrations, validation and evaluation, and of [rl] where no phase of its curriculum names
    another: constant, notes, notes(n), notebook(k), dropout(p), capped(n), fold(k), full, masked, window(k),
    summary(n), belief, external(k), none."""
    model: ModelConfig = ModelConfig()
    chat: Chat | None = None
    """How the model speaks in messages and calls of tools; None: in the tags of the vocabulary, in one text."""
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
        if self.rl is not None and self.rl.max_staleness and self.rollout.engine == "local":
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
    def _agents_speak_in_messages(self) -> Recipe:
        if self.agent is not None and self.chat is None:
            raise ValueError("[agent] needs [chat], which says how messages are written; add it (it may be empty)")
        if self.agent is not None and self.context != "constant":
            raise ValueError("[agent] makes its own contexts: leave out context, or give agent.memory")
        return self

    @model_validator(mode="after")
    def _phases_fit_the_vocabulary(self) -> Recipe:
        phases = self.rl.curriculum if self.rl is not None else ()
        for name in [phase.context for phase in phases if phase.context is not None]:
            if self.agent is not None:
                raise ValueError("[agent] makes its own contexts: leave out context in rl.curriculum")
            check_vocabulary(memory_policy(name), vocabulary(self.vocabulary), in_tags=self.chat is None)
        return self

    @model_validator(mode="after")
    def _chat_explains_itself(self) -> Recipe:
        if self.chat is None:
            return self
        if self.model.chat_template:
            raise ValueError("[chat] puts every message into the chat template; leave out model.chat_template")
        if self.sft is not None and self.sft.trajectories is None:
            raise ValueError("[chat]: the expert demonstrates in tags; give sft.trajectories, or leave out [sft]")
        if self.chat.calls != "tags" and self.model.new is not None:
            raise ValueError(f"a new model has no chat template for chat.calls = {self.chat.calls!r}; give model.path")
        prompt = "" if self.agent is None else "plain"
        prompt = getattr(self.tasks, "prompt", prompt)
        if self.chat.calls != "tags" and not isinstance(prompt, PromptFile) and (not prompt or instructs(prompt)):
            raise ValueError(
                f"[chat]: the prompt {prompt or 'of these tasks'!r} explains tags; set tasks.prompt to tools, "
                "tools-shop, tools-episode or one of your own"
            )
        return self

    @model_validator(mode="after")
    def _validation_needs_rl(self) -> Recipe:
        if self.evaluation.every and self.rl is None:
            raise ValueError(
                f"evaluation.every = {self.evaluation.every} validates during [rl]; add that section, or leave it out"
            )
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
