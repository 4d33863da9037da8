"""Rows without what time changes."""

from __future__ import annotations

import re
from pathlib import Path

from mem1.run_folder import RESOLVED


def without_timings(folder: Path) -> dict[str, str]:
    """Every file of the folder but the command that was given; seconds, which never repeat, as 0."""
    files = sorted(file for file in folder.iterdir() if file.name != RESOLVED)
    return {p.name: re.sub(r'"seconds(_p95)?":[^,}]*', '"seconds":0', p.read_text()) for p in files}
