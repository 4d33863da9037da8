"""Forward and backward of the token tree against other ways to train, on the same tokens.

    python benchmarks/packing.py --quick          prints a markdown table, in under a minute
    python benchmarks/packing.py                  the whole table: turns 2 to 32, prompts of 100 to 2,000, groups to 16
    python benchmarks/packing.py --hidden 512     a model in which attention is a smaller part of the work
    python benchmarks/packing.py --groups         what a group shares: attempts of the shipped policy at tasks of Atlas
    python benchmarks/packing.py --memory         a long trajectory in packs, against one pack of it alone

One group of attempts with constant memory; every variant computes the log-prob of every sampled token and its
gradient, alternately in one process; the best of the repeats counts. Turns, prompt and group are varied one at a time,
the others at 8 turns, a prompt of 300 and one attempt.

    tree       the token tree by blocks, the default on CPU
    dense      the same tree with a T x T mask
    turns      each turn alone, unpadded, with the model's ordinary attention
    padded     all turns as one right-padded batch
    stitched   one sequence an attempt with MEM1's two-dimensional mask: other numbers (benchmarks/stitched.py)

dense and stitched are left out (-) where their sequences are longer than --dense-tokens. MB: largest resident memory
while a variant ran, over that before it; - where the system does not tell.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from machine import commit, hardware
from stitched import stitched_logprobs
from stitching import stitch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling
from mem1.engines.local import LocalEngine
from mem1.envs.atlas import AtlasTasks
from mem1.memory import memory_policy, next_context
from mem1.packing import pack, split_into_packs
from mem1.policy.policy import load_policy
from mem1.protocol import PAPER
from mem1.records import Trajectory, Turn
from mem1.rollout import Rollout
from mem1.training.logprobs import completion_logprobs, flat_logprobs

VOCABULARY, HEAD = 512, 32


def build_model(hidden: int) -> PreTrainedModel:
    """At a width of 128, 0.9 M parameters: the shape of the shipped policy. Wider ones are of the same proportions."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=4,
            num_attention_heads=hidden // HEAD,
            num_key_value_heads=hidden // HEAD,
            tie_word_embeddings=True,
        )
    )


def build_trajectory(rng: random.Random, prompt: tuple[int, ...], turns: int, part: int) -> Trajectory:
    """Constant memory; completions and results of `part` tokens, give or take a quarter."""

    def tokens() -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(part * 3 // 4, part * 5 // 4)))

    done: list[Turn] = []
    for _ in range(turns):
        context = next_context(memory_policy("constant"), prompt, done)
        done.append(Turn(context_ids=context.ids, completion_ids=tokens(), observation_ids=tokens()))
    return Trajectory(turns=tuple(done))


def padded_logprobs(model: PreTrainedModel, trajectories: Sequence[Trajectory]) -> Tensor:
    """All turns as one right-padded batch."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    rows = [torch.tensor(turn.context_ids + turn.completion_ids) for turn in turns]
    ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    hidden = model.get_decoder()(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    predicting = torch.cat(
        [
            row * ids.shape[1] + torch.arange(len(turn.context_ids), turn.num_tokens) - 1
            for row, turn in enumerate(turns)
        ]
    )
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Linear)
    logprobs = head(hidden.flatten(0, 1)[predicting]).log_softmax(-1)
    return logprobs.gather(-1, ids.flatten()[predicting + 1][:, None])[:, 0]


@dataclass(frozen=True)
class Case:
    """What is varied."""

    prompt: int
    turns: int
    group: int


@dataclass
class Cost:
    """Of one variant, the best of its repeats."""

    seconds: float = float("inf")
    megabytes: float | None = None

    def add(self, seconds: float, megabytes: float | None) -> None:
        self.seconds = min(self.seconds, seconds)
        if megabytes is not None:
            self.megabytes = max(megabytes, self.megabytes or 0.0)


VARIANTS = ("tree", "dense", "turns", "padded", "stitched")
EXACT = VARIANTS[:4]


def build_variants(
    model: PreTrainedModel, group: Sequence[Trajectory], dense_tokens: int
) -> dict[str, Callable[[], Tensor]]:
    """Each computes the log-probs (M,) of all sampled tokens of the group."""

    def turns() -> Tensor:
        return torch.cat([x for turns in completion_logprobs(model, group, packed=False) for x in turns])

    variants = {
        "tree": lambda: flat_logprobs(model, pack(group), temperature=1.0),
        "turns": turns,
        "padded": lambda: padded_logprobs(model, group),
    }
    if len(pack(group)) <= dense_tokens:
        variants["dense"] = lambda: flat_logprobs(model, pack(group), temperature=1.0, backend="dense")
    if max(len(stitch(t).input_ids) for t in group) <= dense_tokens:
        variants["stitched"] = lambda: torch.cat([stitched_logprobs(model, t) for t in group])
    return variants


def measure(
    variants: dict[str, Callable[[], Tensor]], model: nn.Module, repeats: int, clock: Callable[[], float]
) -> tuple[dict[str, Cost], float]:
    """Costs of the variants, run alternately; and the largest difference between log-probs that should be equal."""
    costs: dict[str, Cost] = {name: Cost() for name in variants}
    found: dict[str, Tensor] = {}
    for _ in range(repeats):
        for name, variant in variants.items():
            model.zero_grad(set_to_none=True)
            before = _reset_peak()
            start = clock()
            logprobs = variant()
            logprobs.sum().backward()
            seconds = clock() - start
            costs[name].add(seconds, before and (_memory("VmHWM") - before) / 1024)
            found[name] = logprobs.detach()
            del logprobs
    values = torch.stack([found[name] for name in EXACT if name in found])
    return costs, float((values - values[0]).abs().max())


def _reset_peak() -> int | None:
    """Forget the largest resident memory so far; the present one in KiB, None where Linux does not tell."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _memory("VmRSS")


def _memory(name: str) -> int:
    """A line of /proc/self/status, in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def run_case(model: PreTrainedModel, case: Case, args: argparse.Namespace) -> list[str]:
    """One row of the table."""
    rng = random.Random(0)
    ids = tuple(rng.randrange(VOCABULARY) for _ in range(case.prompt))
    group = [build_trajectory(rng, ids, case.turns, args.part) for _ in range(case.group)]
    clock = time.process_time if args.cpu_time else time.perf_counter
    costs, difference = measure(build_variants(model, group, args.dense_tokens), model, args.repeats, clock)
    unpacked, packed = sum(turn.num_tokens for t in group for turn in t.turns), len(pack(group))
    shown = [costs.get(name) for name in VARIANTS]
    return [
        *(str(n) for n in (case.prompt, case.turns, case.group)),
        *(f"{n:,}" for n in (unpacked, packed)),
        f"{unpacked / packed:.2f}",
        f"{costs['turns'].seconds / costs['tree'].seconds:.2f}",
        f"{costs['padded'].seconds / costs['tree'].seconds:.2f}",
        *("-" if cost is None else f"{cost.seconds:.2f}" for cost in shown),
        *("-" if cost is None or cost.megabytes is None else f"{cost.megabytes:,.0f}" for cost in shown),
        f"{difference:.0e}",
    ]


def print_groups(attempts: int = 8) -> None:
    """Tokens of a group's tree over those of its attempts' own trees."""
    policy, source = load_policy("shipped"), AtlasTasks(worlds=4).source("train", PAPER)
    rollout = Rollout(
        engine=LocalEngine(policy.model, policy.codec, PAPER.stop_strings),
        dialogue=TagDialogue(policy.codec),
        environment=source.environment,
        context=memory_policy("constant"),
    )
    print(
        "| N | turns | prompt, share of a context | trees of single attempts / contexts | tree of the group / those |"
    )
    print("|--:|--:|--:|--:|--:|")
    for objectives in (1, 2, 4, 8, 16):
        tasks = [t for t in source.tasks(objectives=objectives, count=4, seed=0) for _ in range(attempts)]
        found = rollout(tasks, sampling=Sampling(seed=0))
        turns = [turn for t in found for turn in t.turns]
        contexts = sum(turn.num_tokens for turn in turns)
        single = sum(len(pack([t])) for t in found)
        together = sum(len(pack(found[i : i + attempts])) for i in range(0, len(found), attempts))
        prompts = sum(turn.prompt_tokens for turn in turns)
        shares = " | ".join(f"{x:.2f}" for x in (prompts / contexts, single / contexts, together / single))
        print(f"| {objectives} | {len(turns) / len(found):.1f} | {shares} |")


def print_memory(model: PreTrainedModel, part: int, turns: int = 32, max_tokens: int = 1024) -> None:
    """Peak of forward and backward: the largest pack alone, all packs one after the other, and the whole tree."""
    rng = random.Random(0)
    prompt = tuple(rng.randrange(VOCABULARY) for _ in range(300))
    trajectory = build_trajectory(rng, prompt, turns, part)
    packs = [[piece.of([trajectory]) for piece in p] for p in split_into_packs([trajectory], max_tokens=max_tokens)]
    largest = max(packs, key=lambda pieces: len(pack(pieces)))
    runs = {"largest pack alone": [largest], "all packs": packs, "one tree": [[trajectory]]}
    megabytes: dict[str, float] = {}
    for name, batches in runs.items():
        model.zero_grad(set_to_none=True)
        before = _reset_peak()
        if before is None:
            raise SystemExit("this system does not tell the peak of its memory: /proc/self/clear_refs")
        for pieces in batches:
            flat_logprobs(model, pack(pieces), temperature=1.0).sum().backward()
        megabytes[name] = (_memory("VmHWM") - before) / 1024
    print(f"{turns} turns, prompt 300, {len(packs)} packs of at most {max_tokens:,} tokens\n")
    print("| | MB | over the largest pack alone |\n|---|--:|--:|")
    for name, peak in megabytes.items():
        print(f"| {name} | {peak:.0f} | {peak / megabytes['largest pack alone']:.2f} |")


def cases(args: argparse.Namespace) -> Iterator[Case]:
    """Each of the three varied alone, no case twice."""
    varied = [Case(300, n, 1) for n in args.turns]
    varied += [Case(n, 8, 1) for n in args.prompt]
    varied += [Case(300, 8, n) for n in args.group]
    yield from dict.fromkeys(varied)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three small cases, once")
    parser.add_argument("--turns", type=int, nargs="*", default=[2, 4, 8, 16, 32])
    parser.add_argument("--prompt", type=int, nargs="*", default=[100, 300, 700, 2000], help="tokens of the prompt")
    parser.add_argument("--group", type=int, nargs="*", default=[1, 4, 8, 16], help="attempts at the same prompt")
    parser.add_argument("--part", type=int, default=75, help="tokens of a completion, and of a result")
    parser.add_argument("--hidden", type=int, default=128, help="width of the model, in heads of 32")
    parser.add_argument("--dense-tokens", type=int, default=2500, help="longest sequence with a T x T mask")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="CPU time, for a busy machine; with --threads 1")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--groups", action="store_true", help="what a group shares; nothing else")
    parser.add_argument("--memory", action="store_true", help="memory in packs; nothing else")
    args = parser.parse_args()
    if args.quick:
        args.turns, args.prompt, args.group, args.repeats = [4, 8], [700], [2], 1
    torch.set_num_threads(args.threads)
    model = build_model(args.hidden)
    run_case(model, Case(50, 2, 1), args)  # loads kernels
    if args.groups or args.memory:
        print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
        print_groups() if args.groups else print_memory(model, args.part)
        return
    unit = "processor seconds" if args.cpu_time else "seconds"
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}; best of {args.repeats}, {unit}\n")
    titles = ["prompt", "turns", "group", "tokens", "in the tree", "ratio", "turns / tree", "padded / tree"]
    titles += [f"{name}, {what}" for what in ("s", "MB") for name in VARIANTS]
    print(f"| {' | '.join([*titles, 'largest difference'])} |\n|" + "--:|" * (len(titles) + 1))
    for case in cases(args):
        print(f"| {' | '.join(run_case(model, case, args))} |", flush=True)


if __name__ == "__main__":
    main()
