"""MkDocs hook: one page of the API reference for each room of src/mem1, written from its docstrings.

A room is a module or a package directly under mem1; its page has every module of it that documents something public.
The order is that of imports: a reader who goes down the list never meets a name before its page.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mem1"


def rooms() -> list[str]:
    """Names of the rooms in import order, as the head of the package lists them."""
    head = ast.get_docstring(ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))) or ""
    listed = re.search(r"Rooms, in the order of the imports: ([\w,\s]+)\.", head)
    if listed is None:
        raise ValueError("the docstring of mem1 no longer lists its rooms")
    return [name.strip() for name in listed[1].split(",")]


def modules(room: str) -> list[str]:
    """Dotted names of a room's modules that define something public."""
    at = SOURCE / room
    paths = sorted(at.rglob("*.py")) if at.is_dir() else [at.with_suffix(".py")]
    return [_dotted(path) for path in paths if _public(path)]


def _dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _public(path: Path) -> bool:
    body = ast.parse(path.read_text(encoding="utf-8")).body
    defines = (ast.FunctionDef, ast.ClassDef, ast.AnnAssign, ast.Assign)
    return any(isinstance(n, defines) and not getattr(n, "name", "x").startswith("_") for n in body)


def _page(room: str) -> str:
    return f"# mem1.{room}\n\n" + "\n\n".join(f"::: {module}" for module in modules(room)) + "\n"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    assert config.nav is not None
    pages = [{f"mem1.{room}": f"reference/{room}.md"} for room in rooms() if modules(room)]
    for section in config.nav:
        if "API reference" in section:
            section["API reference"] += pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File  # here: the test of the layers reads the list of rooms without mkdocs

    for room in rooms():
        if modules(room):
            files.append(File.generated(config, f"reference/{room}.md", content=_page(room)))
    return files
