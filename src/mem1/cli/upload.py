"""`mem1 train --upload COMMAND`: what is done with every checkpoint once it is in place.

--upload "rclone copy {} far:runs"      runs   rclone copy runs/a/checkpoints/checkpoint-000040 far:runs
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from mem1.errors import UserError


class Upload:
    """Called with the path of a checkpoint; no shell is involved. A command that fails is told of and no more."""

    def __init__(self, command: str, tell: Callable[[str], None]) -> None:
        """Raises UserError where the command is no command, or has no place for the path."""
        self.tell = tell
        self.words = self._words(command)

    @staticmethod
    def _words(command: str) -> Sequence[str]:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"--upload {command!r}: {error}") from error
        if not any("{}" in word for word in words):
            raise UserError(
                f"--upload {command!r} has no {{}}, which stands for the checkpoint: 'rclone copy {{}} far:'"
            )
        return words

    def __call__(self, checkpoint: Path) -> None:
        words = [word.replace("{}", str(checkpoint)) for word in self.words]
        try:
            done = subprocess.run(words, capture_output=True, text=True, check=False)
        except OSError as error:
            self.tell(f"{checkpoint.name} was not uploaded: {error}")
            return
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            self.tell(f"{checkpoint.name} was not uploaded (exit code {done.returncode}): {last[0]}")
