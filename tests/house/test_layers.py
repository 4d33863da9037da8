"""Imports point one way, and importing mem1 is quick and free of heavy libraries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from api_pages import rooms

SOURCE = Path(__file__).parents[2] / "src" / "mem1"
ROOMS = tuple(rooms())
"""Those that the head of the package lists. A room may import itself and the rooms before it."""
TABLE = ("registry", "mem1.shipped:SHIPPED")
"""The one dotted path to a later room: where the registry finds the table of all others."""
NEVER = [
    ("evaluation", "training"),
    ("evaluation", "endpoint"),
    ("evaluation", "messages"),
    ("policy", "evaluation"),
    ("engines", "tasks"),
    ("engines", "retrieval"),
    ("agent", "retrieval"),
    ("bench", "training"),
    ("training/gradients", "training/sampling"),
    ("training/gradients", "training/monitoring"),
    ("training/gradients", "training/runs"),
    ("training/ranks", "training/gradients"),
    ("training/ranks", "training/sampling"),
    ("training/ranks", "training/monitoring"),
    ("training/ranks", "training/runs"),
]
"""No file of the first imports or names a module of the second."""
NOT_EVEN_THROUGH_OTHERS = [
    ("evaluation", "training"),
    ("evaluation/runner.py", "endpoint"),
    ("evaluation/runner.py", "messages"),
    ("recipe", "evaluation"),
    ("policy", "training"),
    ("engines", "tasks"),
    ("engines", "retrieval"),
    ("agent", "retrieval"),
    ("bench", "training"),
    ("training/gradients", "training/train.py"),
    ("training/ranks", "training/train.py"),
]
"""Nothing that the first imports, at any distance, is a module of the second."""
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
HEAVY = ["torch", "transformers", "numpy", "bm25s", "sentence_transformers", "pyarrow", "pypdf"]


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


@cache
def named_modules(path: Path) -> tuple[str, ...]:
    """Every dotted path in quotes, such as "mem1.envs.atlas:AtlasTasks"."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return tuple(text for text in texts if re.fullmatch(r"mem1(\.\w+)+(:[\w.]+)?", text))


def file_of(dotted: str) -> Path | None:
    """mem1.records.Turn -> src/mem1/records.py; None: it is not ours. "mem1" itself is the package's __init__.py."""
    parts = dotted.replace(":", ".").split(".")
    while parts and parts[0] == "mem1":
        stem = SOURCE.joinpath(*parts[1:])
        for path in (stem.with_suffix(".py"), stem / "__init__.py"):
            if path.is_file() and path != SOURCE.with_suffix(".py"):
                return path
        parts.pop()
    return None


@cache
def graph() -> Mapping[Path, frozenset[Path]]:
    """File -> the files that it imports, in functions and for types alone too."""
    files = (SOURCE / "__init__.py", *FILES)
    return {f: frozenset(to for m in imported_modules(f) if (to := file_of(m)) not in (None, f)) for f in files}


def within(place: str) -> list[Path]:
    """The files of a room, a folder or a file, such as training/ranks."""
    found = [f for f in FILES if f.is_relative_to(SOURCE / place) or f == (SOURCE / place).with_suffix(".py")]
    assert found, f"there is no {place}"
    return found


def reached_from(files: Iterable[Path]) -> dict[Path, Path | None]:
    """Everything that these files import at any distance, and for each which file imports it."""
    found: dict[Path, Path | None] = dict.fromkeys(files)
    queue = list(found)
    while queue:
        importing = queue.pop()
        for path in graph()[importing] - found.keys():
            found[path] = importing
            queue.append(path)
    return found


def test_there_are_files_imports_and_dotted_paths_to_check():
    assert len(FILES) > 20
    assert "mem1.records.Turn" in set(imported_modules(SOURCE / "memory" / "contexts.py"))
    assert "mem1.envs.atlas:AtlasTasks" in named_modules(SOURCE / "shipped.py")
    assert SOURCE / "version.py" in graph()[SOURCE / "__init__.py"]
    assert sum(map(len, graph().values())) > 1000


def test_the_list_at_the_head_of_the_package_has_each_room_once():
    folders = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix == ".py" or has_files(path)}
    assert sorted(ROOMS) == sorted(folders - {"__init__", "__main__"})


def has_files(folder: Path) -> bool:
    return any(folder.glob("*.py"))


def test_a_file_imports_and_names_only_its_own_room_and_those_before_it():
    found = {}
    for path in FILES:
        own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if own == "__main__":
            continue
        named = [m for m in named_modules(path) if (own, m) != TABLE and room_of(m) in ROOMS]
        modules = [m for m in (*imported_modules(path), *named) if m.startswith("mem1.")]
        later = sorted({room for m in modules if ROOMS.index(room := room_of(m)) > ROOMS.index(own)})
        if later:
            found[str(path.relative_to(SOURCE))] = later
    assert not found, f"files that import or name later rooms: {found}"


@pytest.mark.parametrize(("one", "other"), NEVER)
def test_one_room_never_imports_or_names_the_other(one: str, other: str):
    theirs = set(within(other))
    found = [
        f"{path.relative_to(SOURCE)}: {module}"
        for path in within(one)
        for module in (*imported_modules(path), *named_modules(path))
        if file_of(module) in theirs
    ]
    assert not found


@pytest.mark.parametrize(("one", "other"), NOT_EVEN_THROUGH_OTHERS)
def test_one_room_does_not_reach_the_other_through_others(one: str, other: str):
    reached = reached_from(within(one))
    hit = next((path for path in within(other) if path in reached), None)
    way: list[str] = []
    while hit is not None:
        way.append(str(hit.relative_to(SOURCE)))
        hit = reached[hit]
    assert not way, " is imported by ".join(way)


def test_no_file_imports_itself_through_others():
    """Not even in a function or for types alone."""
    left = {path: set(imported) for path, imported in graph().items()}
    while free := [path for path, imported in left.items() if not imported]:
        for path in free:
            del left[path]
        for imported in left.values():
            imported.difference_update(free)
    on_circles = {path for path in left if path in reached_from(left[path])}
    assert not {str(path.relative_to(SOURCE)) for path in on_circles}


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


def test_everybody_is_told_to_install_our_own_distribution():
    """The name mem1 on PyPI belongs to another project."""
    wrong = re.compile(r"(?<![\w./-])mem1\[[a-z]|pip install ['\"]?mem1(?![\w-])")
    root = SOURCE.parents[1]
    found = {
        str(path.relative_to(root))
        for folder in ("src", "docs", "tests", "examples", "recipes", "benchmarks", ".ci", "docker", "research")
        for path in (root / folder).rglob("*")
        if path.suffix in {".py", ".md", ".toml", ".sh", ".txt", ".Dockerfile"}
        and "results" not in path.parts
        and path != Path(__file__)
        and wrong.search(path.read_text(encoding="utf-8"))
    }
    assert not found and wrong.search("pip install 'mem1[train]'") and not wrong.search("pip install 'mem1-agents'")
    assert not any(
        wrong.search((root / name).read_text(encoding="utf-8")) for name in ("README.md", "Makefile", "AGENTS.md")
    )
