"""No command imports jax, which takes three quarters of a GPU's memory as soon as it computes anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
JAX = """
import os, traceback
with open(os.environ["JAX_IMPORTED_BY"], "a") as file:
    file.write("".join(traceback.format_stack()))
"""
"""A package that records who imports it."""
BROKEN = "raise AttributeError('this numba does not fit this numpy')"
FEW = "rl.tasks_per_step=2 rl.group_size=2 rl.curriculum=[{steps=1,objectives=[1]}] workers=2"
COMMANDS = (
    "index notes --out notes-index",
    f"train atlas-quick {FEW} evaluation.tasks=1 evaluation.objectives=[1] --out run",
    "export run/checkpoints/checkpoint-000001 exported",
    "eval run/config.toml --model exported --limit 1 --objectives 1 --out run/again",
    "eval memory=external(3) --limit 1 --objectives 1 --json",
    "verify --limit 1 --attempts 6 --json",
    "run --objectives 1",
    "report run --out report.html",
    "bench --script 200 --memory constant --families chain",
    "probe recency --count 1 --exchanges 20",
)
PROGRAM = """
import importlib, json, pkgutil, sys
import mem1
from mem1.cli.main import main
from mem1.errors import UserError

assert "torch" not in sys.modules and "bm25s" not in sys.modules
for command in json.loads(sys.argv[1]):
    print(command, file=sys.stderr)
    try:
        main(command.split(" "))
    except SystemExit as ended:
        assert not ended.code, command
modules = 0
for module in pkgutil.walk_packages(mem1.__path__, "mem1."):
    if module.name != "mem1.__main__":
        try:
            importlib.import_module(module.name)
            modules += 1
        except (ImportError, UserError):  # of a package that only some users have
            continue
assert "bm25s" in sys.modules and modules > 200, modules
"""


def test_no_command_and_no_module_imports_jax_or_a_numba_that_is_broken(tmp_path: Path):
    packages = {"jax": JAX, "numba": BROKEN}
    for name, text in packages.items():
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").write_text(text)
    (tmp_path / "packages" / "jax" / "lax.py").write_text("def top_k(array, k): return array, array")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "shops.txt").write_text("The shop of Alva Falk stands in Bergen.\n")
    recorded = tmp_path / "imported"
    path = os.pathsep.join([str(tmp_path / "packages"), str(SOURCE)])
    variables = {**os.environ, "PYTHONPATH": path, "JAX_IMPORTED_BY": str(recorded), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(COMMANDS)],
        env=variables,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert not recorded.exists(), recorded.read_text()
    subprocess.run([sys.executable, "-c", "import jax"], env=variables, check=True)
    assert recorded.exists(), "the package that records is the one that would have been imported"
