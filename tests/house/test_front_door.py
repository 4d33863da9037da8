"""`import mem1`: every name resolves, and importing is quick and light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mem1


@pytest.mark.parametrize("name", mem1.__all__)
def test_every_name_of_the_front_door_resolves(name: str):
    assert getattr(mem1, name) is not None and name in dir(mem1)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        mem1.trian  # noqa: B018


def test_importing_loads_no_room_and_little_else():
    code = "import sys; before = set(sys.modules); import mem1; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert [name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names] == [
        "mem1",
        "mem1.version",
    ]
    assert len(loaded) < 40, loaded


def test_an_evaluation_of_an_engine_loads_no_torch():
    code = """
import sys, mem1, mem1.engines.openai
from importlib import resources
from pathlib import Path
codec = mem1.Codec.load(Path(str(resources.files("mem1"))) / "assets" / "atlas-warm-start")
engine = mem1.ScriptedEngine(codec, lambda context: "<IS> a </IS> <answer> Q1 a </answer>")
tasks = mem1.AtlasTasks(worlds=1, entities=40, questions_per_world=20)
(row,) = mem1.evaluate(tasks, engine, objectives=(1,), tasks=2)
print(row.tasks, [name for name in ("torch", "transformers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"
