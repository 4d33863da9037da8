"""What bf16 gains on this CPU, in one run: products, a step of demonstrations, sampling; SmolLM2-135M's shape.

    python benchmarks/bfloat16.py [--repeats 3]

Weights are random. A step of demonstrations is of some 2,000 tokens: in two packs with a thread each, and in one pack
that both threads compute. Sampling is of 24 contexts of 210 tokens, 45 tokens each, by two processes. Times are the
best of the repeats. On a CPU without units for bf16 (`Machine.here().bfloat16`), mem1 computes in fp32.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Mapping

import torch
from gpu_parts import SMOLLM2
from machine import commit, hardware
from packing import build_trajectory
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from mem1.algorithms.losses import negative_log_likelihood
from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.engines.device import Machine
from mem1.engines.workers import local_engine
from mem1.heap import keep_freed
from mem1.packing import Pack, split_into_packs
from mem1.policy.policy import load_policy
from mem1.training.gradients.pack_workers import PackWorkers
from mem1.training.logprobs import flat_logprobs
from mem1.training.ranks.placement import Placement

ROWS, CONTEXT, COMPLETION = 24, 210, 45
TYPES = (torch.float32, torch.bfloat16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    units = "units for bf16" if Machine.here().bfloat16 else "no units for bf16"
    print(f"commit {commit()}; {hardware()}; {units}\n", flush=True)
    print("| | fp32 | bf16 | ratio |\n|---|--:|--:|--:|", flush=True)
    for rows in (8, ROWS, 1_024):
        show(f"product of {rows:,} x 576 and 576 x 1,536, GFLOP/s", [product(rows, kind, repeats) for kind in TYPES])
    keep_freed()  # as training does
    torch.manual_seed(0)
    model = LlamaForCausalLM(SMOLLM2)
    split = {size: [step(model, size, half, repeats) for half in (False, True)] for size in (1_024, 2_048)}
    show("demonstrations, two packs, tokens/s", split[1_024])
    show("demonstrations, one pack, tokens/s", split[2_048])
    print(f"| one pack in bf16 over two packs in fp32 | | | {split[2_048][1] / split[1_024][0]:.2f} |", flush=True)
    show(f"sampling {ROWS} attempts, tokens/s", [sampling(model.to(kind), repeats) for kind in TYPES])


def show(name: str, found: list[float]) -> None:
    fp32, bf16 = found
    print(f"| {name} | {fp32:,.0f} | {bf16:,.0f} | {bf16 / fp32:.2f} |", flush=True)


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the quickest repeat, after one that is not counted."""
    seconds: list[float] = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds[1:])


def product(rows: int, kind: torch.dtype, repeats: int) -> float:
    one, other = torch.randn(rows, 576, dtype=kind), torch.randn(1_536, 576, dtype=kind)
    times = max(1, 20_000 // rows)

    def work() -> None:
        for _ in range(times):
            torch.nn.functional.linear(one, other)

    return 2 * rows * 576 * 1_536 * times / best(work, repeats) / 1e9


def step(model: PreTrainedModel, pack_tokens: int, half: bool, repeats: int) -> float:
    """Tokens per second, forward and backward."""
    rng = random.Random(0)
    prompt = tuple(rng.randrange(1_000) for _ in range(120))
    attempts = [build_trajectory(rng, prompt, 4, 40) for _ in range(4)]
    packs = split_into_packs(attempts, max_tokens=pack_tokens, whole=True)
    placement = Placement(half=half)
    workers = PackWorkers(models=[model], placement=placement, threads=2)

    def loss_of(pack: Pack) -> tuple[Tensor, Mapping[str, Tensor | float]]:
        with placement.passes(model):
            logprobs_M = flat_logprobs(model, pack.tree, temperature=1.0)
        return negative_log_likelihood(logprobs_M, denominator=1.0), {}

    def work() -> None:
        model.zero_grad()
        workers.backward(packs, loss_of, list(model.parameters()))

    return sum(len(pack.tree) for pack in packs) / best(work, repeats)


def sampling(model: PreTrainedModel, repeats: int) -> float:
    """Sampled tokens per second; no stop string ever comes."""
    codec: Codec = load_policy("shipped").codec
    rng = random.Random(0)
    contexts = [[rng.randrange(300) for _ in range(CONTEXT)] for _ in range(ROWS)]
    engine = local_engine(model, codec, ["a stop string that never comes"], workers=2)

    def work() -> None:
        done = engine.complete(contexts, max_tokens=[COMPLETION] * ROWS, sampling=Sampling(seed=1))
        assert all(len(one.token_ids) == COMPLETION for one in done)

    return ROWS * COMPLETION / best(work, repeats)


if __name__ == "__main__":
    main()
