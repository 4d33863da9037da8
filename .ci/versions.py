"""Installs the lowest or the newest versions that pyproject.toml allows into an environment of their own.

    python3 -m venv --without-pip build/versions/lowest
    .venv/bin/python .ci/versions.py lowest build/versions/lowest
        ->  bm25s==0.3.10 httpcore==1 pydantic==2.8 transformers==5.1

lowest    of the dependencies that have a lower bound, those of the extra "train" included
newest    of all of them

All else, and torch, which is large, is found in the environment that runs this: it comes last on the path of the other.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from packaging.requirements import Requirement

from mem1.configuration.model import read_toml

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def wanted(kind: str) -> list[str]:
    """Arguments for pip."""
    project = read_toml(PROJECT)["project"]
    needed = map(Requirement, (*project["dependencies"], *project["optional-dependencies"]["train"]))
    ours = [one for one in needed if one.name != "torch" and (one.marker is None or one.marker.evaluate())]
    if kind == "newest":
        return ["--upgrade", *(f"{one.name}{one.specifier}" for one in ours)]
    return [f"{one.name}=={bound.version}" for one in ours for bound in one.specifier if bound.operator == ">="]


def main(kind: str, environment: Path) -> None:
    (packages,) = environment.glob("lib/python*/site-packages")
    # processed as an environment's own folder, so that what is installed there as editable is found too
    lent = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "lent.pth").write_text(lent, encoding="utf-8")
    asked = wanted(kind)
    print(*asked)
    pip = [sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--no-compile", *asked], check=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
