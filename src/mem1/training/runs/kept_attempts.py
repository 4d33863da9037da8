"""Some attempts of each step of [rl], kept in the run's folder for people and reports.

    runs/quick/trajectories/step-000012.jsonl       the first groups of step 12, in the format of every trajectory file
    runs/quick/trajectories/tokenizer.json          the tokenizer of their tokens

A file is there whole or not at all, so the folder can be read while the run goes on. Beyond the size limit the oldest
steps are removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mem1.durable import explain_full_disk, write_file
from mem1.engines.codec import Codec
from mem1.recipe.recipe import Kept
from mem1.records import Group
from mem1.run_folder import TRAJECTORIES, kept_steps
from mem1.trajectory_files import write_trajectories


@dataclass(frozen=True)
class KeptAttempts:
    """The folder of a run."""

    run: Path
    config: Kept
    codec: Codec

    def keep(self, step: int, groups: Sequence[Group]) -> None:
        """Write the first groups of a step. Raises UserError for a full disk."""
        chosen = [t for group in groups[: self.config.groups] for t in group.trajectories]
        if not chosen:
            return
        folder = self.run / TRAJECTORIES
        folder.mkdir(exist_ok=True)
        tokenizer = folder / "tokenizer.json"
        if not tokenizer.exists():
            with explain_full_disk(f"{tokenizer}", "the last checkpoint is intact"):
                write_file(tokenizer, self.codec.tokenizer.to_str().encode())
        write_trajectories(folder / f"step-{step:06d}.jsonl", chosen)
        files = [path for _, path in kept_steps(self.run)]
        sizes = {path: path.stat().st_size for path in files}
        while len(files) > 1 and sum(map(sizes.__getitem__, files)) > self.config.megabytes * 1e6:
            files.pop(0).unlink()

    def truncate_after(self, step: int) -> None:
        """On resume: remove the steps beyond the checkpoint, which come again."""
        for number, path in kept_steps(self.run):
            if number > step:
                path.unlink()
