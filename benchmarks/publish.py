"""Rates at which weights are published on this machine: written for the servers, summed, and read by one of them.

    python benchmarks/publish.py --folder /dev/shm/weights        1.0 GB in bf16 and 2.0 GB in fp32, one core each

The functions of `mem1 train` and `mem1 serve-policy` on random weights of a known shape, in a folder of this run's own;
the best of the repeats counts. `mem1 plan` assumes WRITTEN_GB_S and SUMMED_GB_S (mem1/planning/step_time.py).

    written             converted from fp32 and written by rank 0, synchronised with the disk
    written and summed  the same with the checksum that `mem1 serve-policy` compares
    summed              the checksum of a file
    read                a server reads the file and copies the weights into its model
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from gpu import SHAPES
from machine import commit, hardware
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, PreTrainedModel

from mem1.engines.weights import checksum, put
from mem1.planning.networks import Network, transformers_config
from mem1.training.sampling.weight_sync import write_weights


def seconds(work: Callable[[], object], repeats: int) -> float:
    """Of the fastest repeat."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def built(network: Network, dtype: torch.dtype) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(transformers_config(network), dtype=dtype)


def rates(network: Network, dtype: torch.dtype, folder: Path, repeats: int) -> tuple[int, dict[str, float]]:
    """Bytes of the file, and GB per second of each part."""
    trained, server = built(network, torch.float32), built(network, dtype)
    path = write_weights(folder, trained, 0, dtype=dtype, summed=False).path
    parts: dict[str, Callable[[], object]] = {
        "written": lambda: write_weights(folder, trained, 0, dtype=dtype, summed=False),
        "written and summed": lambda: write_weights(folder, trained, 0, dtype=dtype),
        "summed": lambda: checksum(path),
        "read": lambda: put(load_file(path), server),
    }
    size = path.stat().st_size
    return size, {name: size / 1e9 / seconds(work, repeats) for name, work in parts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="0.5B")
    parser.add_argument("--folder", type=Path, help="where weights_folder would be; default: a temporary one")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"commit {commit()}; {hardware()}; {given.shape}, GB per second\n")
    print("| precision | GB | written | written and summed | summed | read |\n|---|--:|--:|--:|--:|--:|")
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
    for name in ("bfloat16", "float32"):
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            size, found = rates(SHAPES[given.shape], getattr(torch, name), Path(folder), given.repeats)
        print(f"| {name} | {size / 1e9:.2f} | {' | '.join(f'{rate:.2f}' for rate in found.values())} |", flush=True)


if __name__ == "__main__":
    main()
