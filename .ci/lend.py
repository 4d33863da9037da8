"""Links into an environment with mem1 alone the packages that mem1 needs, and no others, from the one that runs this.

    .venv/bin/python -m venv --without-pip .venv-dist
    .venv/bin/python -m pip --python .venv-dist/bin/python install --no-deps dist/*.whl
    .venv/bin/python .ci/lend.py .venv-dist                 ->  40 packages, 110 MB: annotated-doc, anyio, ..., uvicorn
    .venv/bin/python .ci/lend.py .venv-dist train           ->  as well what the extra "train" needs

Nothing comes along that only another extra or the development wants, so what mem1 forgets to name is missing.
Installing the same versions again would show no more, and take minutes.
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


def lend(environment: Path, extras: frozenset[str]) -> tuple[list[str], int]:
    """Names of the packages that were linked, and their bytes without compiled Python."""
    (packages,) = environment.glob("lib/python*/site-packages")
    (mem1,) = metadata.distributions(name="mem1-agents", path=[str(packages)])
    names = sorted(needed(mem1.requires or [], extras, {}))
    size = 0
    for name in names:
        package = metadata.distribution(name)
        size += sum(file.size or 0 for file in package.files or ())
        for top in {file.parts[0] for file in package.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).is_symlink():
                (packages / top).symlink_to(Path(str(package.locate_file(top))).resolve())
    return names, size


if __name__ == "__main__":
    lent, bytes_of_them = lend(Path(sys.argv[1]), frozenset(sys.argv[2:]))
    print(f"{len(lent)} packages, {bytes_of_them / 1e6:.0f} MB: {', '.join(lent)}")
