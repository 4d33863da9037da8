"""What samples for `[rollout] engine = "auto"`: vLLM on the trainer's own GPU, or this process.

    decided(config, Path("runs/a"), device=choose("auto", Machine(gpus=("NVIDIA H100",))))
    ->  the recipe with     kind = "vllm", launch = {}, sleep = true, weights_folder = "runs/a-weights"
        rollout.engine = auto: vLLM samples, with 0.4 of the memory of cuda:0 (NVIDIA H100), in turn with the trainer

    decided(config, Path("runs/a"), device=ON_CPU)
    ->  the recipe with     engine = "local"
        rollout.engine = auto: this process samples: vLLM would need a GPU of CUDA, and it computes on cpu

A run that goes on samples as it did, whatever machine it is on now.
"""

from __future__ import annotations

from pathlib import Path

from mem1.engines.device import Device
from mem1.errors import UserError
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import AutoRollouts, LocalRollouts
from mem1.run_folder import sampled_by


def decided(
    config: Recipe, out: Path, *, device: Device, processes: int = 1, resume: bool = False
) -> tuple[Recipe, str]:
    """The recipe with the engine that "auto" means for the run in `out`, and a line for the user.

    device      where this process trains
    processes   that train together
    resume      the engine is that of the run, if there is one

    A recipe that names its engine is returned as it is, with "".
    """
    auto = config.rollout
    if not isinstance(auto, AutoRollouts):
        return config, ""
    began = sampled_by(out) if resume else None
    why_not = _why_not(config, auto, device, processes) if began is None else "as before"
    if began == "servers" or not why_not:
        rollout, share = auto.served(f"{out}-weights"), f"{auto.launch.gpu_memory:g} of the memory of {device}"
        said = f"vLLM samples, with {share}, in turn with the trainer" + (": as before" if began else "")
    else:
        rollout, said = LocalRollouts(), f"this process samples: {why_not}"
    return config.model_copy(update={"rollout": rollout}), f"rollout.engine = auto: {said}"


def _why_not(config: Recipe, auto: AutoRollouts, device: Device, processes: int) -> str:
    """Why vLLM cannot sample; empty: it can."""
    if config.rl is None:
        return "there is no [rl]"
    if not device.name.startswith("cuda"):
        return f"vLLM would need a GPU of CUDA, and it computes on {device}"
    if processes > 1:
        return f"{processes} processes train, and each samples on its own GPU"
    if config.rl.temperature > 2:
        return f"vLLM samples at temperatures up to 2, not at rl.temperature = {config.rl.temperature:g}"
    if config.model.dtype == "bfloat16":
        return "model.dtype = bfloat16 is for a policy that samples in this process"
    try:
        auto.launch.check()
    except UserError as error:
        return str(error)
    return ""
