"""Writes constraints.txt: versions of what mem1-agents[dev,docs,release] pulls in, from the environment that runs this.

    make constraints     # installs the newest that the ranges allow into an environment of its own first

Many packages have stopped releasing for Python 3.10, so it has lines of its own. A run renews the lines of its own
Python, 3.10 or the later ones, and keeps those of the other. What torch alone brings (CUDA, Triton) is left to it: its
own metadata pins that, and on other machines it is not there.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

FILE = Path(__file__).parents[1] / "constraints.txt"
HEADER = """\
# Versions that work together:  make test PIP_ARGS="-c constraints.txt"
# CI runs the tests with them on Python 3.11. Those of Python 3.10 are what pip resolves there; CI does not run them.
# The ranges are in pyproject.toml; `make constraints` renews this file (.ci/constraints.py).
"""
OLD, NEW = "python_version < '3.11'", "python_version >= '3.11'"
OF_TORCH = re.compile(r"nvidia-|cuda-|triton$")

Pins = dict[str, str]
"""Version by canonical name."""


def installed(name: str, extras: frozenset[str], found: dict[str, frozenset[str]] | None = None) -> Pins:
    """Versions of all that a package with these extras needs in this environment, without itself."""
    found = {} if found is None else found
    for text in metadata.requires(name) or ():
        needed = Requirement(text)
        key = canonicalize_name(needed.name)
        if needed.marker and not any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        if OF_TORCH.match(key) or (key in found and needed.extras <= found[key]):
            continue
        found[key] = found.get(key, frozenset()) | needed.extras
        installed(key, found[key], found)
    return {key: Version(metadata.version(key)).public for key in found if key != "mem1-agents"}


def read(text: str) -> tuple[Pins, Pins]:
    """The pins of Python 3.10, and of the later ones."""
    old, new = Pins(), Pins()
    for line in text.splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            (specifier,) = pin.specifier
            for pins, python in ((old, "3.10"), (new, "3.11")):
                if pin.marker is None or pin.marker.evaluate({"python_version": python}):
                    pins[canonicalize_name(pin.name)] = specifier.version
    return old, new


def written(old: Pins, new: Pins) -> str:
    """The file; a line has a marker where the two differ."""
    lines = []
    for name in sorted({*old, *new}):
        if old.get(name) == new.get(name):
            lines.append(f"{name}=={old[name]}")
            continue
        lines += [f"{name}=={pins[name]}; {marker}" for pins, marker in ((old, OLD), (new, NEW)) if name in pins]
    return HEADER + "\n".join(lines) + "\n"


def main() -> None:
    old, new = read(FILE.read_text()) if FILE.exists() else (Pins(), Pins())
    here = installed("mem1-agents", frozenset({"dev", "docs", "release"}))
    FILE.write_text(written(here, new) if sys.version_info < (3, 11) else written(old, here))


if __name__ == "__main__":
    main()
