"""Processes that sample begin without the script that started them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mem1.engines.workers import _without_script

SCRIPT = """
import mem1
print("begun", flush=True)
recipe = mem1.load_recipe("atlas-quick", "workers=2", "tasks.worlds=1")
print("done", [row.tasks for row in mem1.evaluate(recipe, "shipped", objectives=(1,), tasks=2)])
"""


STARTS_ONE = """
from mem1.engines.workers import PROCESSES, _without_script
PROCESSES.set_forkserver_preload([])  # torch, for seconds
print("begun", flush=True)
process = PROCESSES.Process(target=print, args=("there",))
with _without_script():
    process.start()

process.join()
"""
"""What starts a worker, without its work."""


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        pytest.param(["train.py"], SCRIPT, "done [2]", id="script"),
        pytest.param(["-m", "train"], STARTS_ONE, "there", id="module", marks=pytest.mark.slow),
        pytest.param(["-"], STARTS_ONE, "there", id="stdin", marks=pytest.mark.slow),
        pytest.param(["-i"], STARTS_ONE, "there", id="typed", marks=pytest.mark.slow),
    ],
)
def test_workers_do_not_run_the_script_again(form: list[str], text: str, said: str, tmp_path: Path):
    (tmp_path / "train.py").write_text(text)
    command = [sys.executable, *form]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["begun", said], done.stderr


def test_the_script_is_known_again_once_the_workers_are_there():
    main = sys.modules["__main__"]
    known = {name: getattr(main, name, None) for name in ("__file__", "__spec__")}
    with _without_script():
        assert not hasattr(main, "__file__") and main.__spec__ is None
    assert {name: getattr(main, name, None) for name in known} == known
