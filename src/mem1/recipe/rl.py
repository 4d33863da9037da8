"""`[rl]` of a recipe: which algorithm, on how many attempts, with what regularisation; and `[rollout]`: who samples.

    [rl]                            [rl.algorithm]              [[rl.curriculum]]
    tasks_per_step = 12             name = "ppo"                steps = 40
    group_size = 8                  critic = "separate"         objectives = [2]

    [rollout]
    engine = "servers"
    servers = ["http://127.0.0.1:8001", "http://127.0.0.1:8002"]
    weights_folder = "runs/weights"
    # kind = "vllm", launch = {}      instead of servers: the run starts vLLM itself, and ends it
    # engine = "auto"                 alone: that, on a GPU with vLLM; elsewhere "local"

The keys of `[rl.algorithm]` are those of the algorithm that it names (`mem1.algorithms`); all others are common to all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from mem1.algorithms.base import Algorithm
from mem1.algorithms.group import Grpo
from mem1.algorithms.losses import Importance, Kl
from mem1.configuration import Config
from mem1.configuration.by_name import ByName
from mem1.configuration.model import MOST_TOKENS, LearningRate, Sizes, Temperature
from mem1.engines.launched import Launch
from mem1.engines.servers import ModelServer, base_address
from mem1.engines.weight_update import ServerKind
from mem1.errors import UserError
from mem1.memory import memory_policy
from mem1.registry import register

MemoryName = Annotated[str, AfterValidator(lambda name: memory_policy(name) and name)]
"""A name that `mem1.memory.memory_policy` knows."""


class Phase(Config):
    """Some steps of reinforcement learning on tasks of the same sizes."""

    steps: int = Field(ge=1)
    objectives: Sizes = (2,)
    """Numbers of objectives; the tasks of a step take them in turn."""


class Rl(Config):
    """Reinforcement learning on the outcome, over the token tree."""

    curriculum: tuple[Phase, ...] = Field(min_length=1)
    """Phases of the stage, in order."""
    tasks_per_step: int = Field(default=12, ge=1, le=100_000)
    """Tasks drawn for each step, each attempted by a group."""
    group_size: int = Field(default=8, ge=1, le=100_000)
    """Attempts at each task (G)."""
    temperature: Temperature = 1.0
    learning_rate: LearningRate = 3e-4
    warmup: int = Field(default=5, ge=0)
    """Steps over which the learning rates rise."""
    decay: float = Field(default=0.0, ge=0, le=1)
    """Share of the steps, at the end, over which the learning rates fall linearly towards 0, at most to a twentieth."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """AdamW's decay rate of the running mean of squared gradients, of policy and critic."""
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    """AdamW's decay of matrices, times the learning rate; biases and norms do not decay."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    epochs: int = Field(default=1, ge=1)
    """Passes over the attempts of a step."""
    minibatches: int = Field(default=1, ge=1)
    """Optimiser steps per epoch, each on its own part of the trajectories."""
    entropy: float = Field(default=0.0, ge=0)
    """Weight of the bonus on the mean entropy of the sampled tokens, in nats."""
    pack_tokens: int = Field(default=8192, ge=64, le=MOST_TOKENS)
    """Most tokens in the token tree of a micro-batch; without effect on the gradient."""
    packed: bool = True
    """False: one context per row, as models that cannot be packed exactly are trained in any case."""
    algorithm: Annotated[Algorithm, ByName(register.algorithm, key="name")] = Grpo()
    kl: Kl | None = None
    """None: no penalty, and no copy of the policy."""
    old_logprobs_from: Literal["sampler", "trainer"] = "sampler"
    """Source of the old policy's log-probs, by which the ratio divides. trainer: computed before the first update in
    another forward pass, for an engine whose log-probs are not exactly the trainer's."""
    importance: Importance | None = None
    """Weights for the difference between sampler and trainer; the ratio then divides by the trainer's log-probs."""
    max_staleness: int = Field(default=0, ge=0)
    """Steps by which rollouts may run ahead of the trainer. This needs servers that sample ([rollout]) and
    `importance`, which corrects for older weights. 0: each step samples, then trains."""

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.curriculum)

    @property
    def updates(self) -> int:
        """Optimiser steps on each rollout."""
        return self.epochs * self.minibatches

    @property
    def recomputes_old_logprobs(self) -> bool:
        """Whether the old policy's log-probs are the trainer's, and not the sampler's own."""
        return self.old_logprobs_from == "trainer" or self.importance is not None

    def phase_at(self, step: int) -> tuple[int, Phase]:
        """The number of steps before the phase of this step, counted from 0, and the phase."""
        before = 0
        for phase in self.curriculum:
            if step < phase.steps:
                return before, phase
            step, before = step - phase.steps, before + phase.steps
        raise IndexError("past the last phase")

    def objectives(self, step: int) -> tuple[int, ...]:
        """Numbers of objectives at this step, counted from 0."""
        return self.phase_at(step)[1].objectives

    def version_at(self, step: int) -> int:
        """Optimiser steps taken by the policy when this step begins; `version_at(steps)` is the trained policy's."""
        return self.algorithm.policy_steps(step) * self.updates

    @model_validator(mode="after")
    def _fits_the_algorithm(self) -> Rl:
        algorithm, name, attempts = self.algorithm, self.algorithm.name, self.tasks_per_step * self.group_size
        if self.group_size < algorithm.min_attempts_per_task:
            raise ValueError(f"{name} compares the attempts at a task; set group_size to 2 or more, or take ppo")
        if attempts < algorithm.min_attempts_per_step:
            raise ValueError(f"{name} compares the attempts of a step; set tasks_per_step or group_size to 2 or more")
        if algorithm.one_update_per_rollout and self.updates > 1:
            raise ValueError(
                f"{name} has no ratio to the old policy, so it takes one update per rollout; set epochs and "
                "minibatches to 1, or take grpo or reinforce_pp"
            )
        if algorithm.imitates and (self.importance or (self.kl and self.kl.where == "reward")):
            raise ValueError(f"{name} takes neither importance weights nor a KL penalty in the reward")
        if self.kl is not None and self.kl.where == "reward" and not algorithm.pays_kl:
            raise ValueError(
                f'{name} has no channel that the KL penalty is subtracted from; add "outcome", or set kl.where = "loss"'
            )
        if algorithm.policy_steps(self.steps) == 0:
            raise ValueError(
                f"the critic warms up in all {self.steps} steps, so the policy would not be trained; set critic_warmup "
                "below that, or add steps"
            )
        if self.max_staleness and self.importance is None:
            raise ValueError(
                f"max_staleness = {self.max_staleness} trains on tokens sampled by older weights, which "
                "[rl.importance] must correct for; add that section (it may be empty), or set max_staleness to 0"
            )
        if self.minibatches > attempts:
            raise ValueError(f"{self.minibatches} minibatches of {attempts} attempts: some would be empty")
        return self


class LocalRollouts(Config):
    """The trainer's own process, and `workers - 1` others."""

    engine: Literal["local"] = "local"


class AutoRollouts(Config):
    """vLLM that the run starts on the trainer's own GPU, if it is installed there; else as "local"."""

    engine: Literal["auto"] = "auto"
    launch: Launch = Launch()

    def served(self, weights_folder: str) -> ServerRollouts:
        """What it means with that vLLM, which sleeps while the trainer trains."""
        return ServerRollouts(kind="vllm", launch=self.launch, weights_folder=weights_folder, sleep=True)


class ServerRollouts(Config):
    """Policy servers; each step pushes its weights to them before it samples."""

    engine: Literal["servers"] = "servers"
    servers: tuple[str, ...] = ()
    """Addresses of the servers; all have the same model."""
    servers_file: str | None = None
    """File with one address per line, instead of `servers`. It is re-read every `poll_s`: servers added to it join the
    run, servers removed from it get no more work."""
    launch: Launch | None = None
    """The run starts a vLLM of its own, instead of `servers`, and ends it; an empty section takes the defaults."""
    weights_folder: str
    """Folder for the current weights, used by no other run. Pass it to `mem1 serve-policy` as --weights-folder; vLLM
    must see it under the same path, other servers need not."""
    kind: ServerKind = "mem1"
    """mem1: `mem1 serve-policy`. vllm: vLLM in development mode, with --logprobs-mode processed_logprobs."""
    sleep: bool = False
    """The servers are vLLM on the trainer's own GPUs, started with --enable-sleep-mode: they sleep while the trainer
    trains, and wake up to sample."""
    publish_dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision in which weights are published, which must be that of a server of kind mem1 (its --dtype). auto:
    bfloat16 for vLLM, which computes in it by default; float32 for mem1, whose samplers then equal the trainer."""
    model: str = "policy"
    """Name of the model on the servers."""
    token_env: str | None = None
    """Environment variable that holds the servers' access token; None: no token is sent."""
    concurrency: int = Field(default=64, ge=1, le=10_000)
    """Most completions in flight at a time."""
    tries: int = Field(default=120, ge=1)
    """Attempts per completion, each trying every server, about 2.5 seconds apart. After the last one (about five
    minutes) the rollout ends with engine_failed."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Longest time for one completion on one server."""
    update_timeout_s: float = Field(default=300.0, gt=0)
    """Longest time for a server to load weights; a slower one is not used until it has them. A step waits as long for
    the first server."""
    poll_s: float = Field(default=1.0, gt=0)
    """Time between two checks of the servers and of `servers_file`."""

    @model_validator(mode="after")
    def _has_servers(self) -> ServerRollouts:
        if [bool(self.servers), self.servers_file is not None, self.launch is not None].count(True) != 1:
            raise ValueError(
                "give either servers (addresses) or servers_file (a file with one address per line), or launch "
                "(the run starts vLLM)"
            )
        if self.launch is not None and self.kind != "vllm":
            raise ValueError("launch starts vLLM: set kind = 'vllm', or leave launch out")
        if self.sleep and self.kind != "vllm":
            raise ValueError("sleep = true works with kind = 'vllm' only; set it, or leave sleep out")
        for url in self.servers:
            base_address(url)
        return self

    @property
    def apart(self) -> bool:
        """Whether the servers have GPUs of their own: one that the run launches sees the trainer's."""
        return not self.sleep and self.launch is None

    @property
    def start_one(self) -> str:
        """What to do where no server runs."""
        if self.launch is not None:
            return "the end of vllm.log says more; set rollout.update_timeout_s if it needs longer"
        if self.kind == "vllm":
            return "start one as docs/model-servers.md says"
        return f"start one with mem1 serve-policy POLICY --weights-folder {self.weights_folder}"

    @property
    def published_dtype(self) -> Literal["float32", "bfloat16"]:
        """Precision of the published weights."""
        if self.publish_dtype == "auto":
            return "bfloat16" if self.kind == "vllm" else "float32"
        return self.publish_dtype

    def listed(self) -> tuple[str, ...]:
        """Addresses of servers that run already. Raises UserError where the file cannot be read or has none."""
        if self.servers_file is None:
            return tuple(dict.fromkeys(map(base_address, self.servers)))
        try:
            lines = Path(self.servers_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read rollout.servers_file {self.servers_file}: {error}") from error
        written = [line.partition("#")[0].strip() for line in lines]
        if not any(written):
            raise UserError(f"rollout.servers_file {self.servers_file} has no address; write one per line")
        return tuple(dict.fromkeys(base_address(url) for url in written if url))

    def model_server(self, urls: tuple[str, ...]) -> ModelServer:
        """Settings of the client that requests completions."""
        return ModelServer(
            urls=urls,
            model=self.model,
            endpoint="completions",
            api_key_env=self.token_env,
            concurrency=self.concurrency,
            tries=self.tries,
            timeout_s=self.timeout_s,
            first_wait_s=0.5,
            longest_wait_s=5.0,
            processed_logprobs=True,
        )


Rollouts = Annotated[LocalRollouts | ServerRollouts | AutoRollouts, Field(discriminator="engine")]
