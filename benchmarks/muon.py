"""Steps of Muon beside torch's own, which computes in bf16: on the matrices of reader/warm-start, on a CPU.

    OMP_NUM_THREADS=1 python benchmarks/muon.py

Prints the ratio of processor times of a step, each the best of three.
"""

from __future__ import annotations

import time

import torch
from machine import commit, hardware

from mem1.training.ranks.optimizers import Muon

SHAPES = ((256, 256), (256, 256), (256, 256), (256, 256), (768, 256), (768, 256), (256, 768)) * 3
"""Attention and feed-forward of three layers."""


def seconds(kind: type[torch.optim.Optimizer], repeats: int = 3) -> float:
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    optimizer = kind(weights, lr=0.02)  # type: ignore[call-arg]
    times = []
    for _ in range(repeats):
        for weight in weights:
            weight.grad = torch.randn(weight.shape)
        start = time.process_time()
        optimizer.step()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"commit {commit()}; {hardware()}")
    print(f"torch.optim.Muon over mem1's: {seconds(torch.optim.Muon) / seconds(Muon):.1f}")
