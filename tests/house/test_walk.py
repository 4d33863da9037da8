"""The walk of CONTRIBUTING.md names modules and objects that exist, and at most 13 of them."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
WALK = PAGE.split("### From the command line to the loss\n")[1].split("\n## ")[0]


def test_every_module_and_object_of_the_walk_exists_and_there_are_at_most_13():
    stations = re.findall(r"^\d+\. `([\w.]+)` `(\w+)`", WALK, flags=re.M)
    assert 10 <= len(stations) <= 13
    assert len({module for module, _ in stations}) == len(stations)
    for module, name in [*stations, ("mem1.algorithms.ppo", "Ppo")]:
        assert hasattr(import_module(module), name), f"{module} has no {name}"
    for module in re.findall(r"`(mem1\.[\w.]+)`", WALK):
        import_module(module)


def test_the_trainer_never_looks_at_the_class_of_an_algorithm():
    source = Path(import_module("mem1").__file__ or "").parent
    names = "Grpo|DrGrpo|Rloo|Reinforce|ReinforcePlusPlus|Dapo|Rejection|Gspo|Cispo|Ppo|Algorithm|ClippedAlgorithm"
    branch = re.compile(rf"isinstance\([^)]*\b(?:{names})\b|case (?:{names})\(")
    for path in sorted(source.rglob("*.py")):
        assert not branch.search(path.read_text(encoding="utf-8")), path
