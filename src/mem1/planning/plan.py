"""What a recipe needs on given GPUs, as `mem1 plan` prints it.

    make_plan(config, gpus=cluster("8xH100"))                   ->  memory, tokens and FLOPs per stage
    make_plan(changed, gpus=cluster("8xH100"), steps=steps)     ->  the same, with the steps that `steps` has already

A step on fake tensors takes seconds for a large model. `steps` keeps what was counted, so that plans of a recipe and of
changes to it take each step once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from mem1.engines.device import ON_CPU
from mem1.engines.lookahead import guesses_each
from mem1.errors import UserError
from mem1.evaluation.tokens import model_shape
from mem1.packing import split_into_packs
from mem1.planning.attempts import Attempts, StepTokens, counted, largest_attempt, rl_attempts, sft_pieces
from mem1.planning.fakes import OPTIMISER
from mem1.planning.gpus import Cluster
from mem1.planning.models import recipe_shape
from mem1.planning.steps import PLANNED_GPU, Measured, measured
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.records import Trajectory
from mem1.training.ranks.placement import samples_in_bfloat16

USABLE = 0.9
"""Assumed share of a GPU's memory that a plan may fill; CUDA, libraries and fragmentation take the rest."""
KEPT_CHECKPOINTS = 3
"""Checkpoints in a run's folder: the last two, and the one being written."""
SAMPLER_TOKENS = 24576
"""Tokens of one batch of `engines/local.py`."""
SAMPLING = "sampling"
_COUNTED_ALL_THE_SAME = {"cpu_offload": False, "reference_offload": False}
"""What a step is not asked about: a plan takes off what is in the machine's main memory."""

Steps = dict[tuple[str, str], Measured]
"""What was counted in a step, by its stage and by the part of the recipe that it depends on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one GPU, or in one process."""

    parts: Mapping[str, int]
    """Bytes by part at the peak, which is their sum."""
    moment: str
    """Moment of the peak."""
    moments: Mapping[str, int]
    """Most bytes at each moment."""
    least: int
    """Bytes of weights, gradients and optimiser states, however short attempts are."""
    host: int = 0
    """Bytes that one rank offloads to the machine's main memory."""

    @property
    def peak(self) -> int:
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage on one rank."""

    name: str
    steps: int
    tokens: StepTokens
    """Tokens of one step."""
    memory: Memory
    flops: Mapping[str, int]
    """FLOPs of a step on all GPUs together, by purpose."""
    server: Mapping[str, int] | None = None
    """Bytes of one server of the policy, by part; None: no server samples."""
    server_least: int = 0
    """Fewest bytes of a server that has GPUs of its own: the weights and one context; 0: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a recipe."""

    config: Recipe
    shape: PretrainedConfig
    source: str
    """Origin of the model's shape."""
    parameters: int
    gpus: Cluster | None
    stages: tuple[StagePlan, ...]
    disk: int
    """Bytes of all checkpoints in a run's folder."""
    published: int | None
    """Bytes that a publish of the weights writes, once for all servers; None: no server samples."""
    sizes: str
    """Origin of the attempts' sizes."""
    server_gpus: int
    """GPUs that only sample."""

    @property
    def usable(self) -> float | None:
        """Usable bytes of one GPU; None: no GPUs were given."""
        return None if self.gpus is None else USABLE * self.gpus.gpu.memory_gb * 1e9

    @property
    def peak(self) -> int:
        return max(stage.memory.peak for stage in self.stages)

    @property
    def fits(self) -> bool | None:
        """Whether the peak is usable; None: no GPUs were given."""
        return None if self.usable is None else self.peak <= self.usable

    @property
    def server_least(self) -> int:
        """Fewest bytes of a server of the policy on GPUs of its own; 0: there is none."""
        return max(stage.server_least for stage in self.stages)

    @property
    def server_fits(self) -> bool | None:
        """Whether that is usable on all GPUs that only sample together; None: no GPUs were given."""
        return None if self.usable is None else self.server_least <= self.usable * self.server_gpus


def make_plan(
    config: Recipe,
    *,
    gpus: Cluster | None = None,
    server_gpus: int = 1,
    attempts: Attempts | None = None,
    steps: Steps | None = None,
) -> Plan:
    """The plan of a recipe; `server_gpus` of the GPUs serve where its servers have GPUs of their own.

    `steps`: those counted before, with the same GPUs and attempts; new ones are added.

    Raises UserError where its model is unknown or cannot be packed, it has no stage, or all GPUs serve; and for
    attempts of a recipe without [rl], the only stage that they are of.
    """
    known = attempts or Attempts()
    if config.recall is None and config.sft is None and config.rl is None:
        raise UserError("the recipe has no stage to train ([recall], [sft] or [rl]), so there is nothing to plan")
    if config.rl is None and known != Attempts():
        raise UserError("sizes and runs are those of attempts of [rl], which the recipe does not have; leave them out")
    shape, source = recipe_shape(config)
    planner = _Planner(config, shape, gpus, server_gpus, {} if steps is None else steps)
    stages = tuple(planner.stages(known))
    return Plan(
        config=config,
        shape=shape,
        source=source,
        parameters=planner.parameters,
        gpus=gpus,
        stages=stages,
        # the policy, and where one is chosen the best with the one that takes its place
        disk=KEPT_CHECKPOINTS * planner.checkpoint + (3 if config.evaluation.every else 1) * planner.parameters * 4,
        server_gpus=planner.apart,
        published=None if planner.server is None else planner.parameters * planner.sampling_bytes,
        sizes=_sizes(config, known),
    )


class _Planner:
    """A recipe on the given GPUs."""

    def __init__(
        self, config: Recipe, shape: PretrainedConfig, gpus: Cluster | None, server_gpus: int, steps: Steps
    ) -> None:
        self.config, self.shape, self.gpus, self.steps = config, shape, gpus, steps
        served = isinstance(config.rollout, ServerRollouts) and config.rl is not None
        self.server = config.rollout if isinstance(config.rollout, ServerRollouts) and served else None
        self.apart = server_gpus if self.server is not None and self.server.apart else 0
        """GPUs that only sample."""
        total = 1 if gpus is None else gpus.gpus
        self.ranks = 1 if config.distributed is None or gpus is None else total - self.apart
        if self.ranks < 1:
            raise UserError(f"{self.apart} of {total} GPUs serve, so none trains")
        self.sampling_gpus = self.apart or self.ranks
        self.device = ON_CPU if gpus is None else PLANNED_GPU
        self.checkpoint = 0
        """Bytes of the largest checkpoint of the stages planned so far."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape, trust_remote_code=False)
        self.parameters, self.matrices = sum(p.numel() for p in model.parameters()), model_shape(model)

    @property
    def sampling_bytes(self) -> int:
        """Bytes of a number in the sampling policy."""
        if self.server is not None:
            return 4 if self.server.published_dtype == "float32" else 2
        return 2 if samples_in_bfloat16(self.config, self.device) else 4

    def stages(self, known: Attempts) -> Iterator[StagePlan]:
        """The stages in order, each with its largest tasks."""
        config = self.config
        if (recall := config.recall) is not None:
            # rows with 8 tokens per pair, of which a quarter is predicted
            length, all_tokens = 8 * max(recall.pairs), recall.tokens
            tokens = StepTokens(
                attempts=all_tokens // length,
                sampled=all_tokens // 4,
                longest=length,
                trained=all_tokens,
                largest_pack=all_tokens,
            )
            yield self._planned("recall", recall.steps, tokens, (), more=False)
        if (sft := config.sft) is not None:
            cap = min(sft.tokens, sft.pack_tokens)
            pieces = sft_pieces(config, tokens=cap)
            packs = split_into_packs(pieces, max_tokens=cap, whole=True)
            tokens = counted(pieces, packs, scale=sft.tokens / sum(len(pack.tree) for pack in packs))
            more = -(-sft.tokens // cap) // self.ranks > 1
            pack = max(packs, key=lambda pack: len(pack.tree))
            yield self._planned("sft", sft.steps, tokens, pack.trajectories, more=more)
        if (rl := config.rl) is not None:
            tokens, pack = rl_attempts(config, rl, known)
            more = tokens.packs // rl.minibatches // self.ranks > 1
            yield self._planned("rl", rl.steps, tokens, pack.trajectories, more=more)

    def _planned(
        self, name: str, steps: int, tokens: StepTokens, pack: Sequence[Trajectory], *, more: bool
    ) -> StagePlan:
        step = self._step(name, pack, more=more)
        lasting = sum(size for part, size in step.resident.items() if part != "weights: sampling")
        self.checkpoint = max(self.checkpoint, lasting * self.ranks)
        server, flops = None, self._update_flops(name, tokens, step)
        if name == "rl":
            flops = {**self._sampling_flops(tokens), **flops}
            if self.server is not None:
                server = self._served(-(-tokens.attempts // self.sampling_gpus) * tokens.longest)
        return StagePlan(
            name=name,
            steps=steps,
            tokens=tokens,
            memory=self._memory(step, self._sampling(tokens) if name == "rl" else None),
            flops=flops,
            server=server,
            server_least=sum(self._served(tokens.longest).values()) if name == "rl" and self.apart else 0,
        )

    def _step(self, stage: str, pack: Sequence[Trajectory], *, more: bool) -> Measured:
        """A step of the stage on its largest pack: the same where recipes differ in other stages or in offloading."""
        config = self.config
        distributed = config.distributed and config.distributed.model_copy(update=_COUNTED_ALL_THE_SAME)
        others = {name: None for name in ("recall", "sft", "rl") if name != stage}
        key = stage, config.model_copy(update={"distributed": distributed, **others}).model_dump_json()
        if key not in self.steps:
            on_gpu = self.gpus is not None
            self.steps[key] = measured(config, self.shape, stage, pack, ranks=self.ranks, more=more, gpu=on_gpu)
        return self.steps[key]

    def _keys(self, tokens: int) -> int:
        """Bytes of the keys and values of so many tokens."""
        shape = self.shape
        head = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
        return 2 * shape.num_hidden_layers * shape.num_key_value_heads * head * self.sampling_bytes * tokens

    def _served(self, tokens: int) -> dict[str, int]:
        """Bytes of a server that holds so many tokens."""
        return {"weights": self.parameters * self.sampling_bytes, "keys and values": self._keys(tokens)}

    def _rows(self, tokens: StepTokens) -> int:
        """Contexts that are sampled together."""
        attempts = -(-tokens.attempts // self.sampling_gpus)
        return attempts if self.server is not None else min(attempts, max(1, SAMPLER_TOKENS // tokens.longest))

    def _sampling(self, tokens: StepTokens) -> dict[str, int]:
        """What sampling adds: keys and values, logits of rows and guesses in fp32 and twice in fp64; or a server's."""
        if self.server is None:
            rows = self._rows(tokens)
            logits = rows * (1 + guesses_each(rows, "cpu" if self.gpus is None else "cuda"))
            return {"keys and values": self._keys(rows * tokens.longest), "logits": logits * self.shape.vocab_size * 24}
        if self.server.apart:
            return {}
        held = self._served(tokens.longest)
        if self.server.launch is not None and self.gpus is not None:  # vLLM takes its share, however little it needs
            share = int(self.server.launch.gpu_memory * self.gpus.gpu.memory_gb * 1e9)
            held["keys and values"] = max(held["keys and values"], share - held["weights"])
        return {f"server: {part}": size for part, size in held.items()}

    def _memory(self, step: Measured, sampling: Mapping[str, int] | None) -> Memory:
        gone = self._offloaded()
        resident = {part: size for part, size in step.resident.items() if part not in gone}
        lasting, gradients = sum(resident.values()), step.parts.get("gradients", 0)
        host = sum(step.resident.values()) - lasting
        moments = {moment: most - host for moment, most in step.moments.items()}
        least = lasting + step.gradients
        if "gradients" in gone:  # and the CPU takes the optimiser's step
            moments = {m: most - gradients for m, most in moments.items() if m != OPTIMISER}
            host, least, gradients = host + step.gradients, lasting, 0
        elif self.gpus is not None:  # there AdamW takes the roots of all second moments at once
            moments[OPTIMISER] = max(moments[OPTIMISER], least + step.gradients)
        if sampling is not None:
            moments[SAMPLING] = lasting + sum(sampling.values())
            if (
                self.server is not None and not self.server.sleep
            ):  # what a server holds, if one is on this GPU, it keeps
                others = [moment for moment in moments if moment != SAMPLING]
                moments.update({moment: moments[moment] + sum(sampling.values()) for moment in others})
                resident, least = {**resident, **sampling}, least + sum(sampling.values())
        worst = max(moments, key=lambda moment: moments[moment])
        parts = {**resident, "gradients": step.gradients if worst == OPTIMISER else gradients}
        parts["activations"] = moments[worst] - sum(parts.values())
        if worst == SAMPLING and sampling is not None:
            parts = {**resident, **sampling}
        kept = {part: size for part, size in parts.items() if size}
        return Memory(parts=kept, moment=worst, moments=moments, least=least, host=host)

    def _offloaded(self) -> set[str]:
        """Parts that are kept in the machine's main memory."""
        distributed = self.config.distributed
        if distributed is None or self.gpus is None:
            return set()
        if distributed.cpu_offload:
            return {"weights: policy", "weights: critic", "weights: reference", "optimiser", "gradients"}
        return {"weights: reference"} if distributed.reference_offload else set()

    def _update_flops(self, name: str, tokens: StepTokens, step: Measured) -> dict[str, int]:
        """FLOPs of all passes over the packs, scaled from those of the step on one pack."""
        scale = tokens.trained / tokens.largest_pack
        both = round(scale * sum(step.flops.values()))
        rl = self.config.rl
        if name != "rl" or rl is None:
            return {"update": both}
        critic = rl.algorithm.critic_config
        trunk = critic is not None and critic.critic == "separate"
        scored = (rl.recomputes_old_logprobs or critic is not None) + trunk + (rl.kl is not None)
        before = round(scale * step.flops["forward"] / (1 + trunk) * scored)
        return {**({"before the update": before} if before else {}), "update": rl.epochs * both}

    def _sampling_flops(self, tokens: StepTokens) -> dict[str, int]:
        """FLOPs of the model calls, without reuse of cached prefixes."""
        shape = self.matrices
        if shape is None:
            return {}
        pairs = 4 * shape.layers * shape.width
        written = 2 * (shape.parameters + shape.output_parameters) * tokens.sampled
        return {
            "reading contexts": 2 * shape.parameters * tokens.prefill + pairs * tokens.prefill_pairs,
            "writing": written + pairs * tokens.sampled_pairs,
        }


def _sizes(config: Recipe, known: Attempts) -> str:
    if known.recorded:
        return f"{len(known.recorded)} recorded attempts"
    if config.rl is None:
        return "the recipe's own"
    sizes = known.sizes or largest_attempt(config)
    turn = sizes.turns[0]
    described = (
        f"{len(sizes.turns)} turns; tokens: prompt {sizes.prompt}, state {turn.state}, action {turn.action}, "
        f"result {turn.result}"
    )
    described += f", context at most {config.budget.context}"
    return described if known.sizes is not None else f"the most that the recipe allows: {described}"


def record(plan: Plan) -> dict[str, Any]:
    """The plan as JSON: bytes and FLOPs."""
    distributed, lora = plan.config.distributed, plan.config.lora
    return {
        "parameters": plan.parameters,
        "network": {"source": plan.source, **plan.shape.to_diff_dict()},
        "setup": {
            "distributed": None if distributed is None else distributed.model_dump(),
            "lora": None if lora is None else lora.model_dump(),
            "engine": plan.config.rollout.engine,
        },
        "gpus": None if plan.gpus is None else str(plan.gpus),
        "usable_bytes": plan.usable,
        "peak_bytes": plan.peak,
        "fits": plan.fits,
        "server_least_bytes": plan.server_least or None,
        "server_fits": plan.server_fits if plan.server_least else None,
        "disk_bytes": plan.disk,
        "published_bytes": plan.published,
        "sizes": plan.sizes,
        "stages": [
            {
                "name": stage.name,
                "steps": stage.steps,
                "memory": {**asdict(stage.memory), "peak": stage.memory.peak},
                "server": stage.server,
                "tokens": asdict(stage.tokens),
                "flops": stage.flops,
            }
            for stage in plan.stages
        ],
    }
