"""Where a run goes on that is resumed, and under which settings.

reached(out, resume=True)           {"path": "runs/a/checkpoints/checkpoint-000040", "step": 40, "stage": 1, ...}
as_begun(config, out, computed)     the recipe in the folder's own words, where it says the same in others
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mem1.configuration import read_toml
from mem1.engines.device import Computed
from mem1.errors import UserError
from mem1.policy.folders import policy_digest
from mem1.recipe.recipe import Recipe
from mem1.run_folder import METRICS, RunFolder, read_metrics, read_resolved
from mem1.training.runs.checkpoint import latest_checkpoint, read_state

NOT_FINGERPRINTED = (
    "evaluation",
    "trajectories",
    "workers",
    "checkpoint_every",
    "checkpoint_minutes",
    "model.device",
    "model.attention",
    "model.activation_checkpointing",
    "model.compile",
    "writers",
    "warnings",
    "tasks.retriever",
    "rollout",
    "agent.concurrency",
    "rl.pack_tokens",
    "sft.pack_tokens",
    "distributed",
)
"""Settings that may differ on resume, because they do not change the training but for rounding."""


def reached(out: Path, *, resume: bool) -> dict[str, Any]:
    """Where a run goes on: "path" of its last checkpoint (None: it begins), its "step", "stage", steps "done" in it,
    digest of the "metrics" up to there, and the step that is "unrecorded" where its validation was broken off.

    Raises UserError where the checkpoint is damaged, or there is none although the run had got as far as one.
    """
    path = latest_checkpoint(RunFolder(path=out, fingerprint="").checkpoints) if resume else None
    if path is None:
        if resume:
            _check_not_begun(out)
        return {"path": None, "step": 0, "stage": 0, "done": 0, "metrics": None, "unrecorded": None}
    state = read_state(path)
    return {"path": str(path), "step": state["step"], "unrecorded": None, **state["extra"]}


def _check_not_begun(out: Path) -> None:
    """A run that has lost its checkpoints would begin anew, and throw away what it has recorded."""
    if (out / "policy" / "config.json").is_file():
        what = f"{out} holds a finished run without checkpoints to resume it from; use its policy, {out / 'policy'}"
    elif any(start["after_step"] for start in read_resolved(out).get("starts", [])) or _recorded_saved(out):
        what = f"{out} had checkpoints, and has none now; restore them"
    else:
        return
    raise UserError(f"{what}, or start a new run with another --out")


def _recorded_saved(out: Path) -> bool:
    """Whether so many steps are recorded that a checkpoint was complete: the second waits for the first."""
    if not (out / "config.toml").is_file() or not (out / METRICS).is_file():
        return False
    every = read_toml(out / "config.toml").get("checkpoint_every")
    return isinstance(every, int) and len(read_metrics(out / METRICS)) >= 2 * every


def as_begun(config: Recipe, out: Path, computed: Computed) -> Recipe:
    """The recipe with the folder's own values of two keys, where they say the same: `model.path` of a policy of mem1's
    that lies elsewhere now, `model.training_dtype` of the same precision.

    Raises UserError where the run was computed in another precision.
    """
    began, known = read_toml(out / "config.toml").get("model", {}), read_resolved(out)
    changed: dict[str, Any] = {}
    path = config.model.path
    if path is not None and "path" in began and known.get("policy", "") == policy_digest(path):
        changed["path"] = began["path"]
    if known.get("computed"):
        there, here = (_training_precision(dtype) for dtype in (known["computed"][-1]["dtype"], computed.dtype))
        if there != here:
            raise UserError(
                f"{out} was trained in {there} and would go on in {here}: "
                f"set model.training_dtype={there}, or start a new run with another --out"
            )
        changed["training_dtype"] = began.get("training_dtype", config.model.training_dtype)
    return config.model_copy(update={"model": config.model.model_copy(update=changed)})


def _training_precision(dtype: str) -> str:
    """Of the passes of training, in the words of `Placement.computed`: "float32, training in bfloat16"."""
    return "bfloat16" if "training in bfloat16" in dtype else "float32"
