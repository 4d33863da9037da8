"""Imports point one way, and importing mem1 is quick and free of heavy libraries."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "mem1"
ROOMS = (
    "version",
    "errors",
    "durable",
    "registry",
    "lock",
    "interrupts",
    "jsonl",
    "lexical",
    "parquet",
    "configuration",
    "model_folder",
    "run_folder",
    "net",
    "records",
    "trajectory_files",
    "sanitize",
    "protocol",
    "prices",
    "memory",
    "messages",
    "scoring",
    "tasks",
    "retrieval",
    "envs",
    "engines",
    "dialogue",
    "agent",
    "rollout",
    "endpoint",
    "packing",
    "algorithms",
    "recipe",
    "policy",
    "evaluation",
    "training",
    "planning",
    "api",
    "bench",
    "extras",
    "cli",
    "__main__",
)
"""A room may import itself and the rooms before it."""
FILES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")
LIGHT = [
    "mem1",
    "mem1.records",
    "mem1.trajectory_files",
    "mem1.protocol",
    "mem1.scoring",
    "mem1.memory",
    "mem1.tasks.cloze.making",
    "mem1.tasks.compose",
    "mem1.tasks.datasets",
    "mem1.tasks.atlas",
    "mem1.retrieval",
    "mem1.retrieval.corpus",
    "mem1.retrieval.documents",
    "mem1.retrieval.index_folder",
    "mem1.envs.search",
    "mem1.envs.webshop",
    "mem1.engines.base",
]
HEAVY = ["torch", "transformers", "numpy", "bm25s", "sentence_transformers", "faiss", "pyarrow", "pypdf"]


def room_of(module: str) -> str:
    """mem1.tasks.atlas.world -> tasks; mem1 itself -> the empty string."""
    return module.partition(".")[2].partition(".")[0]


@cache
def imported_modules(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, wherever in the file it does."""
    return tuple(_imported_modules(path))


def _imported_modules(path: Path) -> Iterator[str]:
    package = ("mem1", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_there_are_files_and_imports_to_check():
    assert len(FILES) > 20
    assert "mem1.records.Turn" in set(imported_modules(SOURCE / "memory" / "contexts.py"))


def test_a_file_imports_only_its_own_room_and_those_before_it():
    found = {}
    for path in FILES:
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        assert own in ROOMS, f"{own} is a new room: put it at its place in ROOMS"
        rooms = {room_of(m) for m in imported_modules(path) if m == "mem1" or m.startswith("mem1.")}
        later = sorted(room for room in rooms if room in ROOMS and ROOMS.index(room) > ROOMS.index(own))
        if later:
            found[str(path.relative_to(SOURCE))] = later
    assert not found, f"files that import later rooms: {found}"


@pytest.mark.parametrize("package", ["mem1", "mem1.cli"])
def test_importing_the_package_takes_no_heavy_library_and_few_modules(package: str):
    code = f"import sys, {package}; print(len(sys.modules), [m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules, heavy = done.stdout.strip().split(" ", 1)
    assert heavy == "[]"
    assert int(modules) < 120


VERLS = {"verl", "ray", "transfer_queue", "hydra", "omegaconf", "tensordict"}
NEED_VERL = {"agent_loop.py", "register.py"}


def test_bm25s_is_imported_in_one_place_which_hides_jax_from_it():
    importing = [p.name for p in FILES if any(m.partition(".")[0] == "bm25s" for m in imported_modules(p))]
    assert importing == ["lexical.py"]


def test_verl_is_imported_by_the_files_that_it_loads_alone():
    for path in FILES:
        modules = set(imported_modules(path))
        allowed = path.parent == SOURCE / "extras" / "verl" and path.name in NEED_VERL
        found = {module.partition(".")[0] for module in modules} & VERLS
        assert bool(found) == allowed, f"{path.relative_to(SOURCE)} imports {sorted(found)}"


def test_the_core_imports_no_extras_and_only_the_command_line_uses_them():
    for path in FILES:
        if path.is_relative_to(SOURCE / "extras") or path.is_relative_to(SOURCE / "cli"):
            continue
        found = sorted(module for module in imported_modules(path) if room_of(module) == "extras")
        assert not found, f"{path.relative_to(SOURCE)} imports {found}"


def test_light_rooms_load_no_heavy_library():
    code = f"import sys, {', '.join(LIGHT)}; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_search_recipes_and_evaluations_load_no_torch():
    code = (
        "import sys, mem1.api, mem1.evaluation.agents, mem1.recipe.recipe, mem1.recipe.rollouts; "
        "from mem1.retrieval import BM25; "
        "print(BM25.__name__, [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "BM25 []"
