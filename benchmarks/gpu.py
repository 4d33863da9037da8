"""What one GPU does with a policy of real size: training on the token tree against one turn at a time, and sampling.

    python benchmarks/gpu.py                                              0.5B, 1.5B and 7B, bf16, on cuda
    python benchmarks/gpu.py --shapes tiny --device cpu --repeats 1       that it runs

Random weights, attempts of given sizes with constant memory (`mem1 plan` makes them the same way). Each variant
computes the log-prob of every sampled token of a group and its gradient; the best of the repeats counts, after one
that does not.

    blocks      the token tree, attention by blocks: the trainer's default
    flex        the token tree, FlexAttention, compiled
    compiled    flex, and the model itself under torch.compile
    turns       each turn alone, unpadded, one after the other

Tokens a second are those of contexts and completions as a model without sharing would read them, so that all variants
count the same work; TFLOPS and their share of the ceiling count what was computed (three times the forward pass). The
ceiling is the rate of a product of two square bf16 matrices in the same run. Memory is the most that torch had
allocated. Sampling: the local engine, all attempts of the group at their last context.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from machine import commit, hardware
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from mem1.contexts import context_policy
from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.engines.local import LocalEngine
from mem1.evaluation.tokens import Sizes, even_sizes
from mem1.packing import TokenTree, pack
from mem1.planning.networks import KNOWN, Network, transformers_config
from mem1.planning.stages import counted, made_groups
from mem1.planning.step_time import forward_flops
from mem1.protocol import PAPER
from mem1.records import Trajectory
from mem1.training.logprobs import completion_logprobs, flat_logprobs
from mem1.training.weights.tokenizers import atlas_tokenizer

TINY = Network(
    kind="qwen2",
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_size=16,
    feed_forward=128,
    vocabulary=32768,
    tied=True,
    biases=True,
)
VARIANTS = ("blocks", "flex", "compiled", "turns")
SHAPES = {"tiny": TINY, "0.5B": KNOWN["qwen2.5-0.5b"], "1.5B": KNOWN["qwen2.5-1.5b"], "7B": KNOWN["qwen2.5-7b"]}


@dataclass(frozen=True, kw_only=True)
class Machine:
    device: torch.device
    repeats: int

    def clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    def best(self, work: Callable[[], object]) -> float:
        """Seconds of the fastest repeat; the first run is left out, as kernels are compiled and tuned in it."""
        work()
        seconds = []
        for _ in range(self.repeats):
            start = self.clock()
            work()
            seconds.append(self.clock() - start)
        return min(seconds)

    @contextmanager
    def peak(self) -> Iterator[Callable[[], str]]:
        """Inside, the most that torch has allocated in the meantime, in GB; - where it does not count."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            yield lambda: f"{torch.cuda.max_memory_allocated() / 1e9:.1f}"
        else:
            yield lambda: "-"

    def ceiling(self, size: int) -> float:
        """FLOPs a second of a matrix product."""
        a, b = (torch.randn(size, size, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        return 2 * size**3 / self.best(lambda: a @ b)


def built(network: Network, device: torch.device) -> PreTrainedModel:
    """Random weights, made where they are to be."""
    with torch.device(device):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(transformers_config(network), dtype=torch.bfloat16).eval()


def group_of(network: Network, sizes: Sizes, attempts: int) -> list[Trajectory]:
    """Attempts whose tokens the network knows."""
    (made,) = made_groups(context_policy("constant"), sizes, groups=1, attempts=attempts)
    largest = max(token for t in made for turn in t.turns for token in turn.context_ids + turn.completion_ids)
    if largest >= network.vocabulary:
        raise SystemExit(
            f"the attempts have {largest + 1:,} tokens, all different; the network knows fewer: ask for less"
        )
    return made


def variants(model: PreTrainedModel, group: list[Trajectory]) -> dict[str, Callable[[], Tensor]]:
    """Each computes log-probs (M,) of all sampled tokens."""
    tree: TokenTree = pack(group)
    compiled = torch.compile(model)

    def turns() -> Tensor:
        return torch.cat([x for turns in completion_logprobs(model, group, packed=False) for x in turns])

    return {
        "blocks": lambda: flat_logprobs(model, tree, temperature=1.0),
        "flex": lambda: flat_logprobs(model, tree, temperature=1.0, backend="flex"),
        "compiled": lambda: flat_logprobs(compiled, tree, temperature=1.0, backend="flex"),  # type: ignore[arg-type]
        "turns": turns,
    }


def trained(name: str, network: Network, machine: Machine, ceiling: float, given: argparse.Namespace) -> Iterator[str]:
    """A row of the table for each variant, and one for sampling."""
    model = built(network, machine.device)
    sizes = even_sizes(
        prompt=given.prompt, state=given.state, action=given.action, result=given.result, turns=given.turns
    )
    group = group_of(network, sizes, given.attempts)
    tokens = sum(turn.num_tokens for t in group for turn in t.turns)
    shared, alone = (counted([group], pack_tokens=sys.maxsize, packed=packed) for packed in (True, False))
    for variant, logprobs in variants(model, group).items():
        if variant not in given.variants:
            continue

        def step(logprobs: Callable[[], Tensor] = logprobs) -> None:
            model.zero_grad(set_to_none=True)
            logprobs().sum().backward()

        with machine.peak() as peak:
            try:
                seconds = machine.best(step)
            except torch.OutOfMemoryError:
                yield f"| {name} | {variant} | out of memory | | | |"
                continue
        work = alone if variant == "turns" else shared
        flops = 3 * forward_flops(network, tokens=work.trained, rows=work.sampled, pairs=work.pairs) / seconds
        yield (
            f"| {name} | {variant} | {tokens / seconds:,.0f} | {flops / 1e12:.1f} | {flops / ceiling:.2f} | {peak()} |"
        )
    model.zero_grad(set_to_none=True)
    yield sampling(name, model, group, machine)


def sampling(name: str, model: PreTrainedModel, group: list[Trajectory], machine: Machine) -> str:
    """Contexts of the last turn, as many new tokens as that turn has; nothing stops before its budget."""
    contexts = [t.turns[-1].context_ids for t in group]
    budgets = [len(t.turns[-1].completion_ids) for t in group]
    engine = LocalEngine(model, Codec(atlas_tokenizer(PAPER)), ["a stop string that never comes"])
    engine.stops = lambda token, sampled: False  # type: ignore[method-assign]
    with machine.peak() as peak:
        seconds = machine.best(lambda: engine.complete(contexts, max_tokens=budgets, sampling=Sampling()))
        return f"| {name} | sampling, tokens written | {sum(budgets) / seconds:,.0f} | | | {peak()} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.5B", "1.5B", "7B"])
    parser.add_argument(
        "--variants", nargs="+", help="default: all; on a CPU, whose FlexAttention has no gradient, two"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--attempts", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=300)
    parser.add_argument("--state", type=int, default=100)
    parser.add_argument("--action", type=int, default=30)
    parser.add_argument("--result", type=int, default=350)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--product", type=int, default=8192, help="rows and columns of the ceiling's matrices")
    given = parser.parse_args()
    given.variants = given.variants or (["blocks", "turns"] if given.device == "cpu" else list(VARIANTS))
    machine = Machine(device=torch.device(given.device), repeats=given.repeats)
    on = torch.cuda.get_device_name() if machine.device.type == "cuda" else hardware()
    ceiling = machine.ceiling(given.product)
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {on}, torch {torch.__version__}; bf16")
    print(f"ceiling: {ceiling / 1e12:.2f} TFLOPS\n")
    print("| shape | variant | tokens/s | TFLOPS | of the ceiling | peak, GB |\n|---|---|--:|--:|--:|--:|")
    for name in given.shapes:
        for row in trained(name, SHAPES[name], machine, ceiling, given):
            print(row, flush=True)


if __name__ == "__main__":
    main()
