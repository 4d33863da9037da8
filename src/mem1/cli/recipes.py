"""Finds a recipe: a file, or the name of one that comes with mem1."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from mem1.errors import UserError


def recipe_folder() -> Path:
    """The shipped recipes: inside the installed package, or at the root of the repository."""
    installed = Path(str(resources.files("mem1"))) / "assets" / "recipes"
    return installed if installed.is_dir() else Path(str(resources.files("mem1"))).parents[1] / "recipes"


def find_recipe(name: str) -> Path:
    """The TOML file called `name`: as a path, else as a shipped recipe. Raises UserError listing the shipped ones."""
    folder = recipe_folder()
    for candidate in (Path(name), folder / name, folder / f"{name}.toml"):
        if candidate.is_file():
            return candidate
    known = ", ".join(sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.toml")))
    raise UserError(f"no recipe {name!r}: neither a file nor one of the shipped recipes ({known})")
