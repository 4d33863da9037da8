"""constraints.txt: every dependency stands in it, in a version that pyproject.toml allows, for every Python."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from mem1.configuration.toml import read_toml

ROOT = Path(__file__).parents[2]
PROJECT = read_toml(ROOT / "pyproject.toml")["project"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED = [
    needed
    for needed in map(Requirement, (*PROJECT["dependencies"], *EXTRAS["train"], *EXTRAS["dev"]))
    if needed.name != PROJECT["name"]
]
"""Of development, which takes the extra "train" by the name of the project itself."""
PINNED = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]


def pins(name: str, python: str) -> list[str]:
    """Versions under one Python."""
    here = [p for p in PINNED if canonicalize_name(p.name) == canonicalize_name(name)]
    return [
        version.version
        for p in here
        if p.marker is None or p.marker.evaluate({"python_version": python})
        for version in p.specifier
    ]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_dependency_has_one_version_and_it_lies_in_the_range(python: str):
    assert len(NEEDED) > 25
    for needed in NEEDED:
        if needed.marker is None or needed.marker.evaluate({"python_version": python}):
            (version,) = pins(needed.name, python)
            assert needed.specifier.contains(version), f"{needed} is pinned to {version}"


def test_every_line_is_one_exact_version_and_none_belongs_to_cuda():
    assert len(PINNED) > 80
    for pin in PINNED:
        assert [s.operator for s in pin.specifier] == ["=="] and "*" not in str(pin.specifier) and "+" not in str(pin)
        assert not pin.name.startswith(("nvidia-", "cuda-", "triton"))
