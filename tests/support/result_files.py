"""Result files as benchmarks/compare.py leaves them."""

from __future__ import annotations

import json
from pathlib import Path


def saved(path: Path, result: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"commit": "x", "hardware": "y", "result": result}), encoding="utf-8")
