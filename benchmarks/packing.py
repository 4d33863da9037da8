"""Forward and backward of the token tree against per-turn training, on the same tokens.

    python benchmarks/packing.py                         prints a markdown table, in under a minute
    python benchmarks/packing.py --turns 32 --prompt 1000 --group 8 --repeats 5

One trajectory (or a group of attempts) with constant memory; every variant computes the log-prob of every sampled
token and its gradient, alternately in one process; the best of the repeats counts. "per turn" runs each turn alone
and unpadded, "padded" all turns as one right-padded batch, both with the model's ordinary attention.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from mem1.contexts import context_policy, next_context
from mem1.packing import pack
from mem1.records import Trajectory, Turn
from mem1.training.logprobs import completion_logprobs

VOCABULARY = 512


def build_model() -> PreTrainedModel:
    """0.9 M parameters, the shape of the shipped policy."""
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=4,
            tie_word_embeddings=True,
        )
    )


def build_trajectory(rng: random.Random, prompt: tuple[int, ...], turns: int, part: int) -> Trajectory:
    """Constant memory; completions and results of `part` tokens, give or take a quarter."""

    def tokens() -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(rng.randint(part * 3 // 4, part * 5 // 4)))

    done: list[Turn] = []
    for _ in range(turns):
        context = next_context(context_policy("constant"), prompt, done)
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


def flat(logprobs: list[list[Tensor]]) -> Tensor:
    return torch.cat([x for turns in logprobs for x in turns])


def measure(
    variants: dict[str, Callable[[], Tensor]], model: nn.Module, repeats: int, clock: Callable[[], float]
) -> tuple[dict[str, float], float]:
    """Best seconds a variant, alternately; and the largest difference between their log-probs."""
    best, found = dict.fromkeys(variants, float("inf")), {}
    for _ in range(repeats):
        for name, variant in variants.items():
            model.zero_grad()
            start = clock()
            found[name] = variant()
            found[name].sum().backward()
            best[name] = min(best[name], clock() - start)
    values = torch.stack([x.detach() for x in found.values()])
    return best, float((values - values[0]).abs().max())


def run_case(model: PreTrainedModel, prompt: int, turns: int, args: argparse.Namespace) -> str:
    rng = random.Random(0)
    ids = tuple(rng.randrange(VOCABULARY) for _ in range(prompt))
    group = [build_trajectory(rng, ids, turns, args.part) for _ in range(args.group)]
    variants = {
        "tree": lambda: flat(completion_logprobs(model, group)),
        "turns": lambda: flat(completion_logprobs(model, group, packed=False)),
        "padded": lambda: padded_logprobs(model, group),
    }
    clock = time.process_time if args.cpu_time else time.perf_counter
    seconds, difference = measure(variants, model, args.repeats, clock)
    unpacked, packed = sum(turn.num_tokens for t in group for turn in t.turns), len(pack(group))
    return (
        f"| {prompt} | {turns} | {unpacked:,} | {packed:,} | {unpacked / packed:.2f} | {seconds['tree']:.2f} "
        f"| {seconds['turns']:.2f} | {seconds['padded']:.2f} | {seconds['turns'] / seconds['tree']:.2f} "
        f"| {seconds['padded'] / seconds['tree']:.2f} | {difference:.0e} |"
    )


def hardware() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description="Token tree against per-turn training on the same tokens.")
    parser.add_argument("--turns", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--prompt", type=int, nargs="+", default=[300, 700], help="tokens of the prompt")
    parser.add_argument("--part", type=int, default=75, help="tokens of a completion, and of a result")
    parser.add_argument("--group", type=int, default=1, help="attempts at the same prompt")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true", help="processor time, for a busy machine; with --threads 1")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = build_model()
    run_case(model, 50, 2, args)  # loads kernels
    unit = "processor seconds" if args.cpu_time else "seconds"
    print(f"{hardware()}; commit {commit()}; group of {args.group}, best of {args.repeats}, {unit}\n")
    print("| prompt | turns | tokens | in the tree | ratio | tree | per turn | padded | per turn / tree |", end="")
    print(" padded / tree | largest difference |\n|" + "--:|" * 11)
    for prompt in args.prompt:
        for turns in args.turns:
            print(run_case(model, prompt, turns, args), flush=True)


if __name__ == "__main__":
    main()
