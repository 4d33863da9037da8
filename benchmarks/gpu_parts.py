"""The parts of `benchmarks/gpu.py` that time the model: each writes a row as soon as it has one."""

from __future__ import annotations

import contextlib
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gpu_checks
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, PreTrainedModel, Qwen2Config

from mem1.api import load_recipe
from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.engines.device import Device, release_unused
from mem1.engines.local import LocalEngine
from mem1.evaluation.tokens import Sizes, config_shape, even_sizes, forward_flops
from mem1.memory import memory_policy
from mem1.packing import pack
from mem1.packing.attention import Backend, choose_attention, tree_attention
from mem1.planning.attempts import Attempts, made_groups
from mem1.planning.fakes import counted
from mem1.planning.models import known
from mem1.planning.plan import make_plan
from mem1.planning.steps import fake_buffers
from mem1.policy.policy import Policy
from mem1.policy.protocol import resolve
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.supervised import Sft
from mem1.records import Task, Trajectory
from mem1.training.logprobs import completion_logprobs, flat_logprobs
from mem1.training.ranks.layers import recomputed
from mem1.training.ranks.placement import Placement, joined_for
from mem1.training.ranks.processes import Ranks
from mem1.training.rl import RlStage
from mem1.training.supervised import SftStage
from mem1.training.train import make_rollout
from mem1.training.verify import Forced, has_gradients

TINY = Qwen2Config(
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=128,
    vocab_size=4096,
    tie_word_embeddings=True,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
SMOLLM2 = LlamaConfig(
    hidden_size=576,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    intermediate_size=1536,
    vocab_size=49152,
    tie_word_embeddings=True,
    pad_token_id=None,
    bos_token_id=None,
    eos_token_id=None,
)
"""SmolLM2-135M's."""
SHAPES = ("0.5B", "1.5B", "7B")
REAL = even_sizes(prompt=300, state=100, action=30, result=350, turns=6)
FEW = even_sizes(prompt=40, state=10, action=6, result=30, turns=2)
EIGHT_TURNS = even_sizes(prompt=300, state=100, action=30, result=350, turns=8)
ATTEMPTS = 8
LONGEST_S = 12.0
"""Seconds after which a measurement is not repeated again."""


@dataclass(frozen=True, kw_only=True)
class Here:
    """What a part is told."""

    part: str
    rows: Path
    scratch: Path
    device: str
    tiny: bool
    ceiling: float | None
    """TFLOPS; None: it was not measured."""

    def row(self, name: str, **values: Any) -> None:
        """Keep what was measured, also if the part does not live to its end."""
        row = {"part": self.part, "name": name, **values}
        with self.rows.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(row, flush=True)

    def rates(self, *, tokens: float, flops: float, seconds: float) -> dict[str, Any]:
        """The columns that every timing has."""
        tflops = flops / seconds / 1e12
        share = tflops / self.ceiling if self.ceiling else None
        return {"seconds": seconds, "tokens_per_second": tokens / seconds, "tflops": tflops, "share": share}

    def clock(self) -> float:
        if self.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()

    def best(self, work: Callable[[], object], *, repeats: int = 3) -> float:
        """Seconds of the fastest repeat; the first run is left out, as kernels are compiled and tuned in it."""
        work()
        seconds: list[float] = []
        while len(seconds) < (1 if self.tiny else repeats) and sum(seconds) < LONGEST_S:
            start = self.clock()
            work()
            seconds.append(self.clock() - start)
        return min(seconds)

    @contextlib.contextmanager
    def peak(self) -> Iterator[Callable[[], dict[str, float]]]:
        """Inside, the most that torch has allocated in the meantime; nothing where it does not count."""
        release_unused()
        if self.device == "cpu":
            yield dict
            return
        torch.cuda.reset_peak_memory_stats()
        yield lambda: {"peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2)}

    def network(self, shape: str) -> PretrainedConfig:
        if self.tiny:
            return TINY
        return SMOLLM2 if shape == "SmolLM2" else known(f"Qwen2.5-{shape}")

    def made(self, network: PretrainedConfig, *, groups: int, sizes: Sizes = REAL) -> list[list[Trajectory]]:
        """Groups of attempts; their tokens, all different, begin anew where the vocabulary ends."""
        sizes, attempts = (FEW, 2) if self.tiny else (sizes, ATTEMPTS)
        found = made_groups(memory_policy("constant"), sizes, groups=groups, attempts=attempts)
        known = network.vocab_size

        def within(ids: Sequence[int]) -> tuple[int, ...]:
            return tuple(i % known for i in ids)

        return [
            [
                replace(
                    t,
                    turns=tuple(
                        replace(x, context_ids=within(x.context_ids), completion_ids=within(x.completion_ids))
                        for x in t.turns
                    ),
                )
                for t in group
            ]
            for group in found
        ]


def ceiling(here: Here) -> None:
    size, times = (256, 1) if here.tiny else (8192, 10)
    a, b = (torch.randn(size, size, device=here.device, dtype=torch.bfloat16) for _ in range(2))

    def products() -> None:
        for _ in range(times):
            torch.mm(a, b)

    seconds = here.best(products, repeats=5) / times
    on = {"gpu": "cpu"}
    if here.device != "cpu":
        about = torch.cuda.get_device_properties(torch.device(here.device))
        on = {"gpu": about.name, "gpu_gb": round(about.total_memory / 1e9, 1)}
    here.row(f"{size} x {size} in bf16", **on, seconds=seconds, tflops=2 * size**3 / seconds / 1e12)


def built(network: PretrainedConfig, device: str, dtype: torch.dtype = torch.bfloat16) -> PreTrainedModel:
    """Random weights, made where they are to be."""
    with torch.device(device):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(network, dtype=dtype).eval()


def flex(shape: str) -> Callable[[Here], None]:
    """The log-probs of a group's sampled tokens and their gradients, computed in three ways."""

    def part(here: Here) -> None:
        network = here.network(shape)
        (group,) = here.made(network, groups=1)
        model = built(network, here.device)
        for way in ("flex", "blocks", "turns"):
            # once more without kept activations where they do not fit
            any(timed(here, model, network, group, way, checkpoints) for checkpoints in (False, True))

    return part


def timed(
    here: Here,
    model: PreTrainedModel,
    network: PretrainedConfig,
    group: Sequence[Trajectory],
    way: str,
    checkpoints: bool,
) -> bool:
    """Write a row of this way; False: the memory ran out."""
    packed = way != "turns"
    gradients = has_gradients("flex" if way == "flex" else "blocks", model)
    tree = pack(group)
    turns = [replace(t, turns=(turn,)) for t in group for turn in t.turns]

    def logprobs(model: PreTrainedModel, backend: Backend) -> Iterator[Tensor]:
        """In the parts that have a backward pass each."""
        if packed:
            yield flat_logprobs(model, tree, temperature=1.0, backend=backend)
            return
        for turn in turns:
            ((found,),) = completion_logprobs(model, [turn], packed=False)
            yield found

    def step(model: PreTrainedModel, backend: Backend) -> None:
        model.zero_grad(set_to_none=True)
        layers = recomputed(model) if checkpoints else contextlib.nullcontext()
        attention = tree_attention(model) if packed else contextlib.nullcontext()
        with layers, attention, torch.set_grad_enabled(gradients):
            for found in logprobs(model, backend):
                if gradients:
                    found.sum().backward()

    about = {"checkpoints": checkpoints, "backward": gradients}
    with here.peak() as peak:
        try:
            seconds = here.best(lambda: step(model, "flex" if way == "flex" else "blocks"))
        except torch.OutOfMemoryError as error:
            here.row(way, out_of_memory=str(error).split(". ")[1], **about)
            return False
        finally:
            model.zero_grad(set_to_none=True)
        with counted() as count:
            fake = AutoModelForCausalLM.from_config(network, dtype=torch.bfloat16).eval()
            fake_buffers(fake)
            step(fake, "blocks")
        tokens = sum(turn.num_tokens for t in group for turn in t.turns)
        rates = here.rates(tokens=tokens, flops=sum(count.flops.values()), seconds=seconds)
        computed = len(tree) if packed else tokens - len(turns)
        here.row(way, tokens=tokens, computed=computed, **rates, **peak(), **about)
    return True


def step(shape: str) -> Callable[[Here], None]:
    """Whole optimiser steps, as `mem1 train` takes them in one process: bf16 products over fp32 weights, and AdamW."""

    def part(here: Here) -> None:
        network = here.network(shape)
        (group,) = here.made(network, groups=1, sizes=EIGHT_TURNS)
        fits = next((again for again in (False, True) if stepped(here, network, group, recompute=again)), None)
        if fits is not None and choose_attention("auto", torch.device(here.device)) == "flex":
            stepped(here, network, group, recompute=fits, compiled=True)

    return part


def stepped(
    here: Here, network: PretrainedConfig, group: Sequence[Trajectory], *, recompute: bool, compiled: bool = False
) -> bool:
    """Write a row of the step, with what it needs by count; False: the memory ran out."""

    def stage(device: str, compiled: bool = False) -> SftStage:
        at = torch.device(device)
        attention = choose_attention("auto", at)
        ranks = Ranks(device=Device(name=device, at=at))
        placement = Placement(ranks=ranks, attention=attention, half=True, recompute=recompute, compile=compiled)
        policy = Policy(built(network, device, torch.float32), Codec(atlas_tokenizer(PAPER)))
        sft = Sft(steps=1, tokens=1 << 20, pack_tokens=16384, optimizer="adamw")
        return SftStage(policy, sft, lambda: group, seed=0, placement=placement)

    with counted() as count:
        fake = stage("cpu")
        fake_buffers(fake.model)
        fake.step(0)
        fake.optimizers.step(scale=0.0)
        count.clear()
        computed = fake.step(0)["tokens"]
    needed = {"recompute": recompute, "compile": compiled, "counted_gb": round(count.peak / 1e9, 2)}
    del fake
    gc.collect()
    with here.peak() as peak:
        try:
            real = stage(here.device, compiled)
            seconds = here.best(lambda: real.step(0))
        except torch.OutOfMemoryError as error:
            here.row("step", out_of_memory=str(error).split(". ")[1], **needed)
            return False
        tokens = sum(turn.num_tokens for t in group for turn in t.turns)
        rates = here.rates(tokens=tokens, flops=sum(count.flops.values()), seconds=seconds)
        here.row("step", tokens=tokens, computed=computed, **rates, **peak(), **needed)
    return True


def sampling(here: Here) -> None:
    """Contexts of the last turn, as many new tokens as that turn has; nothing stops before its budget."""
    for name in SHAPES[:1] if here.tiny else SHAPES:
        network = here.network(name)
        last = [replace(t, turns=t.turns[-1:]) for group in here.made(network, groups=8) for t in group]
        contexts = [t.turns[0].context_ids for t in last]
        budgets = [len(t.turns[0].completion_ids) for t in last]
        model = built(network, here.device)
        engine = LocalEngine(model, Codec(atlas_tokenizer(PAPER)), ["a stop string that never comes"])
        engine.stops = lambda token, sampled: False  # type: ignore[method-assign]
        with here.peak() as peak:
            engine.complete(contexts, max_tokens=[2] * len(contexts), sampling=Sampling())  # kernels are chosen
            start = here.clock()
            engine.complete(contexts, max_tokens=budgets, sampling=Sampling())
            seconds = here.clock() - start
            shape = config_shape(network)
            assert shape is not None
            flops = sum(forward_flops(attempt, shape) for attempt in last)
            rates = here.rates(tokens=sum(budgets), flops=flops, seconds=seconds)
            here.row(name, contexts=len(contexts), read=sum(map(len, contexts)), **rates, **peak())
        del model, engine
        gc.collect()


def every_second(task: Task, attempt: Trajectory) -> float:
    """Reward of attempts that earn none: every second one is right, so that a group has advantages."""
    return float(attempt.attempt % 2)


def rl(here: Here) -> None:
    """Random weights write no tags, so those are written for them; the tokens between them are sampled."""
    network = here.network("0.5B")
    folder = here.scratch / "shape"
    network.save_pretrained(folder)  # all that the plan wants to know
    tasks, steps = (2, 1) if here.tiny else (16, 3)
    recipe = load_recipe(
        "atlas-quick",
        *(f"model.path={folder}", f"model.device={here.device}", "model.dtype=bfloat16", "workers=1"),
        *("model.training_dtype=bfloat16", "tasks.reward=gpu_parts:every_second", "rl.epochs=1"),
        *(f"rl.tasks_per_step={tasks}", "rl.group_size=8", "rl.pack_tokens=16384"),
        f"rl.curriculum=[{{steps={steps},objectives=[{1 if here.tiny else 4}]}}]",
    )
    assert recipe.rl is not None
    tags = resolve(recipe).tags
    with joined_for(recipe) as ranks:
        placement = Placement.of(recipe, ranks)
        policy = Policy(built(network, here.device, torch.float32), Codec(atlas_tokenizer(tags)))
        dialogue, source = policy.dialogue(resolve(recipe)), recipe.tasks.source("train", tags)
        engine = LocalEngine(policy.model, policy.codec, dialogue.stop_strings)
        rollout = make_rollout(recipe, policy, source, engine=engine)
        forced, known = Forced(rollout.dialogue), policy.codec.vocab_size
        engine.steering = lambda context, sampled, drawn, budget: forced(context, sampled, drawn % known, budget)
        stage = RlStage(policy, recipe.rl, rollout, source, recipe.seed, placement=placement)
        for index in range(steps):
            with here.peak() as peak:
                start = here.clock()
                metrics = stage.step(index)
                seconds = here.clock() - start
                attempts = tuple(t for group in stage.groups for t in group.trajectories)
                tokens = sum(turn.num_tokens for t in attempts for turn in t.turns)
                sizes = {"tokens": tokens, "turns": sum(len(t.turns) for t in attempts), "seconds": seconds}
                more = {key: metrics[key] for key in ("grad_norm", "sampler_trainer_mean", "sampler_trainer_max")}
                rate = {"tokens_per_second": tokens / seconds}
                here.row(f"step {index}", **sizes, **rate, **peak(), **stage.timings, **more)
    if not metrics["grad_norm"]:
        raise SystemExit("nothing was trained")
    start = time.perf_counter()  # a plan joins processes of its own, and its step on fake tensors takes half a minute
    (plan,) = make_plan(recipe, attempts=Attempts(recorded=attempts)).stages
    rates = here.rates(tokens=tokens, flops=sum(plan.flops.values()), seconds=seconds)
    took = {"planned_gb": round(plan.memory.peak / 1e9, 2), "planning_s": round(time.perf_counter() - start, 1)}
    here.row(f"plan of step {steps - 1}", sampled=plan.tokens.sampled, **rates, **took)


def part(name: str) -> Callable[[Here], None]:
    """What measures the part of this name."""
    kind, _, of = name.partition("-")
    if kind == "flex":
        return flex(of)
    if kind == "step":
        return step(of)
    if kind == "verify":
        return gpu_checks.verify(of, *(("constant", "full") if of == "flex" else ("constant",)))
    found = (ceiling, sampling, rl, gpu_checks.tests, gpu_checks.resume, gpu_checks.evaluation, gpu_checks.quickstart)
    return {function.__name__: function for function in (*found, gpu_checks.torchrun)}[name]
