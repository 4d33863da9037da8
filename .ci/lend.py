"""Links into an environment with mem1 alone the packages that mem1 needs, and no others, from the one that runs this.

    .venv/bin/python -m venv --without-pip .venv-dist
    .venv/bin/python -m pip --python .venv-dist/bin/python install --no-deps dist/*.whl
    .venv/bin/python .ci/lend.py .venv-dist                 ->  53 packages: absl-py, annotated-doc, ..., typer

Nothing comes along that only an extra or the development wants, so what mem1 forgets to name is missing. Installing the
same versions again would show no more, and take minutes.
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

Extras = dict[str, frozenset[str]]
"""Canonical name -> the extras that are asked for."""


def needed(requirements: list[str], extras: frozenset[str], found: Extras) -> Extras:
    """All that these need in turn, added to `found`. Raises PackageNotFoundError for what is not installed."""
    for text in requirements:
        asked = Requirement(text)
        key = canonicalize_name(asked.name)
        if asked.marker and not any(asked.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        if key not in found or not asked.extras <= found[key]:
            found[key] = found.get(key, frozenset()) | asked.extras
            needed(metadata.requires(key) or [], found[key], found)
    return found


def lend(environment: Path) -> list[str]:
    """Names of the packages that were linked."""
    (packages,) = environment.glob("lib/python*/site-packages")
    (mem1,) = metadata.distributions(name="mem1", path=[str(packages)])
    names = sorted(needed(mem1.requires or [], frozenset(), {}))
    for name in names:
        package = metadata.distribution(name)
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).is_symlink():
                (packages / top).symlink_to(Path(str(package.locate_file(top))).resolve())
    return names


if __name__ == "__main__":
    lent = lend(Path(sys.argv[1]))
    print(f"{len(lent)} packages: {', '.join(lent)}")
