"""A checkpoint as a transformers folder, whatever number of ranks wrote it; adapters are merged.

export_checkpoint(run / "checkpoints" / "checkpoint-000040", Path("policy"))
"""

from __future__ import annotations

from pathlib import Path

from mem1.configuration import load_toml
from mem1.errors import UserError
from mem1.lock import alone_in
from mem1.protocol import vocabulary
from mem1.training.checkpoints.checkpoint import load_weights
from mem1.training.loop.recipe import TrainConfig
from mem1.training.ranks.placement import Placement
from mem1.training.weights.policy import make_policy


def export_checkpoint(checkpoint: Path, out: Path) -> None:
    """Write config.json, model.safetensors and tokenizer.json to `out`; it needs the checkpoint's run around it.

    Raises UserError where there is no run around it, the checkpoint is damaged, or `out` is not empty.
    """
    recipe = checkpoint.absolute().parent.parent / "config.toml"
    if not recipe.is_file():
        raise UserError(
            f"{checkpoint} is in no run's folder: {recipe} is missing; give a folder such as "
            "runs/quickstart/checkpoints/checkpoint-000040"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} exists and is not empty; give another folder")
    config = load_toml(recipe, TrainConfig)
    policy = make_policy(config, vocabulary(config.vocabulary))
    place = Placement(lora=config.lora)
    trained = place.trained(policy.model)
    load_weights(checkpoint, trained)
    place.sync_to_sampler(trained, policy.model)
    with alone_in(out):
        policy.save(out)
