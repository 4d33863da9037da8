"""One optimiser step of verl's own training engine (FSDP2) on CPUs, started by torchrun: see test_verl_training.py.

    torchrun --nproc-per-node 2 verl_step.py MODEL ROWS.json OUT      (with the plug-ins of verl_cpu.py)

Each rank takes its share of the rows, writes their log-probs to OUT/logprobs-RANK.json, takes a step with verl's policy
loss, and saves verl's checkpoint under OUT/actor.
"""

# pyright: reportMissingImports=false, reportIncompatibleMethodOverride=false
from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import distributed
from verl.trainer.config import CheckpointConfig
from verl.utils import tensordict_utils
from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry
from verl.workers.utils.losses import ppo_loss
from verl.workers.utils.padding import no_padding_2_padding

PRECISE = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}


def engine(model: str) -> Any:
    made = EngineRegistry.new(
        model_type="language_model",
        backend="fsdp2",
        # FlashAttention, verl's default, is for GPUs
        model_config=HFModelConfig(path=model, override_config={"attn_implementation": "sdpa"}),
        engine_config=FSDPEngineConfig(
            strategy="fsdp2",
            dtype="float32",
            mixed_precision=PRECISE,
            use_torch_compile=False,
            use_dynamic_bsz=False,
            micro_batch_size_per_gpu=1,
        ),
        optimizer_config=FSDPOptimizerConfig(lr=1e-2, weight_decay=0.0, clip_grad=1e9, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    made.initialize()
    return made


def nested(rows: list[Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged)


def batch(rows: list[dict[str, Any]], attempts: int) -> TensorDict:
    """Rows as verl's trainer hands them to its workers: without padding."""
    whole = [row["prompt"] + row["response"] for row in rows]
    fields = {
        "input_ids": nested(whole, torch.long),
        "position_ids": nested([range(len(ids)) for ids in whole], torch.long),
        "prompts": nested([row["prompt"] for row in rows], torch.long),
        "responses": nested([row["response"] for row in rows], torch.long),
        "response_mask": nested([[1] * len(row["response"]) for row in rows], torch.long),
        "loss_mask": nested([[1] * len(row["response"]) for row in rows], torch.long),
        "advantages": nested([[row["advantage"]] * len(row["response"]) for row in rows], torch.float32),
    }
    made = TensorDict(fields, batch_size=len(rows))
    options = {"temperature": 1.0, "use_dynamic_bsz": False, "micro_batch_size_per_gpu": 1, "use_remove_padding": False}
    tensordict_utils.assign_non_tensor(made, **options, use_fused_kernels=False, global_batch_size=attempts)
    return made


def main(model: str, rows: str, out: str) -> None:
    distributed.init_process_group("gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    everything = json.loads(Path(rows).read_text())
    data = batch(everything[rank::size], len(everything))
    trainer = engine(model)
    with trainer.eval_mode():
        found = trainer.infer_batch(data.clone())["model_output"]
    logprobs = no_padding_2_padding(found["log_probs"], data)
    lengths = [len(row["response"]) for row in everything[rank::size]]
    shown = [row[:length].tolist() for row, length in zip(logprobs, lengths, strict=True)]
    Path(out, f"logprobs-{rank}.json").write_text(json.dumps(shown))
    data["old_log_probs"] = nested(shown, torch.float32)
    actor = ActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_mini_batch_size=len(everything), ppo_micro_batch_size_per_gpu=1
    )
    with trainer.train_mode():
        trainer.train_batch(data, loss_function=partial(ppo_loss, actor))
    trainer.save_checkpoint(str(Path(out, "actor")), global_step=1)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
