"""How a run came about, in words, from its config.toml and resolved.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mem1.errors import UserError

_PROGRAM = {"__main__.py": "mem1"}
"""`python -m mem1` calls itself by the name of its file."""


def facts(training: Path) -> dict[str, str]:
    """How the run came about, from its config.toml and resolved.json; what they do not say is left out."""
    from mem1.configuration import read_toml

    config = read_toml(training / "config.toml")
    resolved = _resolved(training / "resolved.json")
    command: list[str] = resolved.get("command", [])
    known = {
        "command": " ".join(_PROGRAM.get(word, word) for word in command),
        "seed": str(config.get("seed", "")),
        "context policy": str(config.get("context", "")),
        "tasks": str(config.get("tasks", {}).get("kind", "")),
        "training": _training(config),
        "versions": ", ".join(f"{name} {version}" for name, version in resolved.get("versions", {}).items()),
        "device": ", ".join(dict.fromkeys(one["device"] for one in resolved.get("computed", []))),
        "hardware": str(resolved.get("hardware", "")),
    }
    return {name: value for name, value in known.items() if value}


def _training(config: Mapping[str, Any]) -> str:
    """The stages of a recipe in words."""
    stages = [f"{stage}, {config[stage]['steps']} steps" for stage in ("recall", "sft") if stage in config]
    rl = config.get("rl")
    if rl is not None:
        phases = "; then ".join(
            f"{phase['steps']} steps on N = {', '.join(map(str, phase['objectives']))}" for phase in rl["curriculum"]
        )
        stages.append(f"rl, {phases} ({rl['tasks_per_step']} tasks, {rl['group_size']} attempts at each, a step)")
    return "; ".join(stages)


def _resolved(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); repair or delete it") from error
