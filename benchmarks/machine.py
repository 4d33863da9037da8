"""Where and on what a benchmark ran, for the line above its table."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import torch


def hardware() -> str:
    """Processor, threads and versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    name = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def commit() -> str:
    """The commit that is checked out; "-dirty" if files were changed since."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
