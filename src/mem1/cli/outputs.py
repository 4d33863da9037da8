"""Files that `--out` names: a new one is written, and one that stands there is never replaced.

new_file(Path("tasks.jsonl"))  ->  Path("tasks.jsonl"), or UserError: tasks.jsonl exists and is not replaced; ...
"""

from __future__ import annotations

import os
from pathlib import Path

from mem1.errors import UserError


def new_file(path: Path) -> Path:
    """The path, if nothing is there. Raises UserError else: who wrote what is there cannot be seen."""
    if os.path.lexists(path):
        raise UserError(f"{path} exists and is not replaced; delete it or choose another name")
    return path
