"""A step of verl's own training engine (FSDP2, two ranks) on our rows, and its checkpoint merged into our folder.

Runs where verl is installed, on a CPU, in processes of its own (`verl_cpu.py` says what verl lacks there). Engine,
loss, optimiser, checkpoint and merge command are verl's; its Ray workers around the engine are in test_verl_run.py.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("verl", reason="needs mem1-agents[verl] in an environment of its own (verl.md)")

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from worlds import CODEC, SMALL, rollout

from mem1.algorithms.group import Grpo
from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.policy.policy import load_policy
from mem1.protocol import PAPER
from mem1.recipe.scripted import search_then_answer
from mem1.records import Trajectory
from mem1.training.logprobs import completion_logprobs

pytestmark = pytest.mark.verl

PLUGINS = {"VERL_USE_EXTERNAL_MODULES": "verl_cpu,verl_servers", "VERL_PLATFORM": "cpu"}
RATE = 1e-2
"""Learning rate in verl_step.py."""


def attempts() -> list[Trajectory]:
    """A right attempt of two contexts, and a wrong one of two."""
    source = SMALL.source("train", PAPER)
    (task,) = source.tasks(objectives=1, count=1, seed=0)
    found = []
    for answer in (task.questions[0].answers[0], "mayor"):
        script = search_then_answer(f"Q1 {answer}", state="IS", search="query")
        found += rollout(script, source.environment)([task], sampling=Sampling())
    assert [t.reward for t in found] == [1.0, 0.0]
    return found


def run(*command: str, **variables: str) -> None:
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def losses(model: LlamaForCausalLM, made: Sequence[Trajectory], advantages: Sequence[float]) -> torch.Tensor:
    """The policy gradient's loss of our trainer at a ratio of 1: a mean over the sampled tokens."""
    of_turns = [turns for turns in completion_logprobs(model, made, packed=False)]
    tokens = sum(len(turn) for turns in of_turns for turn in turns)
    pairs = zip(of_turns, advantages, strict=True)
    return sum(-advantage * turn.sum() for turns, advantage in pairs for turn in turns) / tokens  # type: ignore[return-value]


def test_verls_engine_computes_our_log_probs_takes_our_step_and_its_checkpoint_becomes_our_folder(tmp_path: Path):
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=64,
        vocab_size=CODEC.vocab_size,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "model")
    end = CODEC.tokenizer.id_to_token(0)
    PreTrainedTokenizerFast(tokenizer_object=CODEC.tokenizer, eos_token=end, pad_token=end).save_pretrained(
        tmp_path / "model"
    )
    made = attempts()
    (advantages,) = Grpo().step_advantages([[t.reward or 0.0 for t in made]])
    rows = [
        {"prompt": list(turn.context_ids), "response": list(turn.completion_ids), "advantage": advantage}
        for t, advantage in zip(made, advantages, strict=True)
        for turn in t.turns
    ]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    here = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    step = str(Path(__file__).parents[2] / "support" / "verl_step.py")
    run(*here, step, str(tmp_path / "model"), str(tmp_path / "rows.json"), str(tmp_path), **PLUGINS)

    theirs: list[list[float]] = [[]] * len(rows)
    for rank in (0, 1):
        theirs[rank::2] = json.loads((tmp_path / f"logprobs-{rank}.json").read_text())
    with torch.no_grad():
        ours = [turn for turns in completion_logprobs(model, made, packed=False) for turn in turns]
    for found, expected in zip(theirs, ours, strict=True):
        torch.testing.assert_close(torch.tensor(found), expected, rtol=0, atol=1e-5)

    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    losses(model, made, advantages).backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    optimizer.step()
    merge = ("-m", "verl.model_merger", "merge", "--backend", "fsdp")
    folders = ("--local_dir", str(tmp_path / "actor"), "--target_dir", str(tmp_path / "policy"))
    run(sys.executable, *merge, *folders)
    merged = load_policy(tmp_path / "policy")
    assert merged.codec.fingerprint() == Codec.load(tmp_path / "model").fingerprint()
    assert {**merged.model.state_dict()}.keys() == before.keys()
    checked = 0
    for name, weight in merged.model.state_dict().items():
        # the first step of AdamW is the sign of the gradient, where that is not almost zero; the merge rounds to bf16
        clear = gradients[name].abs() > 1e-5
        torch.testing.assert_close(weight[clear], model.state_dict()[name][clear], rtol=2**-8, atol=RATE / 10)
        checked += int(clear.sum())
    assert checked > 10_000
