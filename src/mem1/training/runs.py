"""A run's folder: what was asked for, what came out.

runs/quick/
    config.toml          the resolved configuration; `mem1 train runs/quick/config.toml` repeats the run
    resolved.json        command, configuration's fingerprint, versions, devices
    metrics.jsonl        one line a step (see metrics_log.py)
    timings.jsonl        seconds, kept apart because they never repeat
    checkpoints/         see checkpoint.py
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import mem1
from mem1.configuration import Config, fingerprint, flatten, plain, read_toml, to_toml
from mem1.configuration.toml_text import value_text
from mem1.errors import UserError
from mem1.training.files import explain_full_disk, write_atomically


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """A folder that holds exactly one run."""

    path: Path
    fingerprint: str
    """Of the configuration, without the excluded keys; checkpoints carry it."""

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @classmethod
    def create(
        cls, path: str | Path, config: Config, *, command: Sequence[str], exclude: Sequence[str] = ()
    ) -> RunFolder:
        """Make the folder and write down what is about to run.

        command     program and arguments, for the reader; of absolute paths only the last part is kept
        exclude     dotted keys that may differ on resume, such as "display"

        Raises UserError where the folder exists and is not empty, or cannot be made.
        """
        run = cls(path=Path(path), fingerprint=fingerprint(config, exclude))
        run._make()
        resolved = {
            "command": [_portable(argument) for argument in command],
            "fingerprint": run.fingerprint,
            "versions": _versions(),
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        }
        with explain_full_disk(f"{run.path}", "nothing has run yet"):
            write_atomically(run.path / "resolved.json", json.dumps(resolved, indent=2).encode())
            write_atomically(run.config, to_toml(config).encode())
        return run

    @classmethod
    def open(cls, path: str | Path, config: Config, *, exclude: Sequence[str] = ()) -> RunFolder:
        """An existing run, to go on with it under the same configuration.

        Raises UserError where there is no run, or where its configuration differs: lists the keys, both values.
        """
        run = cls(path=Path(path), fingerprint=fingerprint(config, exclude))
        if not run.config.is_file():
            raise UserError(f"{run.path} holds no run to go on with: config.toml is missing; start it without --resume")
        changed = differences(read_toml(run.config), plain(config), exclude)
        if changed:
            lines = "\n".join(f"  {key}: {there} in the folder, {here} now" for key, there, here in changed)
            raise UserError(
                f"{run.path} was started with another configuration:\n{lines}\n"
                "give the folder's values (its config.toml), or start a new run with another --out"
            )
        return run

    def note_computed(self, computed: Mapping[str, str]) -> None:
        """Write down the device, precision and attention from here on; a run that is resumed elsewhere lists all."""
        path = self.path / "resolved.json"
        resolved = json.loads(path.read_bytes()) if path.is_file() else {}
        known = resolved.get("computed", [])
        if known[-1:] == [dict(computed)]:
            return
        with explain_full_disk(f"{self.path}", "the checkpoints are intact"):
            write_atomically(path, json.dumps({**resolved, "computed": [*known, dict(computed)]}, indent=2).encode())

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            taken = any(not p.name.startswith(".tmp-") for p in self.path.iterdir())
        except FileExistsError as error:
            raise UserError(f"{self.path} is a file; give the run a folder with another --out") from error
        except OSError as error:
            raise UserError(f"{self.path} cannot be made ({error.strerror}); give another --out") from error
        if taken:
            raise UserError(
                f"{self.path} exists and is not empty; go on with the run in it by --resume, "
                "or start a new one with another --out"
            )


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], exclude: Sequence[str] = ()
) -> list[tuple[str, str, str]]:
    """(key, value in the folder, value now) of each key that differs, in the order of the keys."""
    old, new = flatten(there), flatten(here)
    keys = [k for k in {**old, **new} if old.get(k) != new.get(k) and not _below(k, exclude)]
    return [(k, _shown(old, k), _shown(new, k)) for k in sorted(keys)]


def _shown(leaves: Mapping[str, Any], key: str) -> str:
    return value_text(leaves[key]) if key in leaves else "not set"


def _below(key: str, sections: Sequence[str]) -> bool:
    return any(key == s or key.startswith(f"{s}.") for s in sections)


def _portable(argument: str) -> str:
    """A record of the run that says nothing of the machine.   out=/home/me/runs/a  ->  out=a"""
    name, equals, value = argument.rpartition("=")
    absolute = PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
    return name + equals + (PureWindowsPath(value).name if absolute else value)


def _versions() -> dict[str, str]:
    """Of mem1, Python and, where they are loaded anyway, of the libraries that decide the numbers."""
    loaded = {n: sys.modules[n] for n in ("torch", "transformers", "numpy") if n in sys.modules}
    libraries = {name: str(module.__version__) for name, module in loaded.items()}
    return {"mem1": mem1.__version__, "python": platform.python_version(), **libraries}
