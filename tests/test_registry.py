"""Names of a recipe's things: shipped, registered, dotted paths, entry points of installed packages."""

from __future__ import annotations

import math
import sys
from dataclasses import fields
from importlib import metadata
from pathlib import Path

import pytest

import mem1
from mem1.algorithms.ppo import Ppo
from mem1.configuration import load_toml, to_toml
from mem1.errors import UserError
from mem1.recipe.recipe import Recipe
from mem1.registry import Registry, register
from mem1.shipped import SHIPPED

PLUG_IN = """
import mem1

class MyTasks(mem1.TasksConfig):
    largest: int = 10

    def source(self, split, tags):
        raise mem1.UserError("not now")

broken = 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    (tmp_path / "my_plug_in.py").write_text(PLUG_IN, encoding="utf-8")
    (tmp_path / "fails.py").write_text("1 / 0", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_plug_in", raising=False)
    return tmp_path


def recipe(folder: Path, tasks: str) -> Recipe:
    (folder / "recipe.toml").write_text(f"[tasks]\n{tasks}\n", encoding="utf-8")
    return load_toml(folder / "recipe.toml", Recipe)


def test_a_thing_is_registered_by_a_call_or_a_decorator_and_found_by_its_name():
    algorithms = Registry("algorithm")
    shipped = algorithms.names()
    algorithms("a", 1)

    @algorithms("b")
    def b() -> None: ...

    assert (algorithms.get("ppo"), algorithms.get("a"), algorithms.get("b")) == (Ppo, 1, b)
    assert "ppo" in shipped and algorithms.names() == (*shipped, "a", "b") and algorithms.name_of(b) == "b"
    with pytest.raises(UserError, match="the name is one of mem1's own algorithm"):
        algorithms("ppo", 2)


def test_every_shipped_thing_is_where_the_table_says_and_every_list_of_the_table_is_one_of_the_registry():
    lists = {field.name: getattr(register, field.name) for field in fields(register)}
    assert SHIPPED.keys() <= lists.keys() and all(name == listed.kind for name, listed in lists.items())
    for name in SHIPPED:
        assert lists[name].names() and all(lists[name].get(known) is not None for known in lists[name].names())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("c", r"unknown index 'c'; known: bm25, dense\. Your own: write package\.module:Name"),
        ("nowhere.at_all:x", r"cannot import nowhere\.at_all .*ModuleNotFoundError.*current folder"),
        ("fails:x", r"cannot import fails .*ZeroDivisionError"),
        ("math:tau.x", r"math has no 'tau.x'"),
        ("my_plug_in:Nothing", r"my_plug_in has no 'Nothing' .*it has: MyTasks, broken, mem1"),
        ("a b:c", "is not a dotted path"),
    ],
)
def test_an_unknown_name_says_what_is_known_or_why_it_cannot_be_imported(folder: Path, name: str, why: str):
    with pytest.raises(UserError, match=why):
        Registry("index").get(name)


def test_an_installed_package_gives_names_by_entry_points(monkeypatch):
    point = metadata.EntryPoint(name="tau", value="math:tau", group="mem1.runes")
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == "mem1.runes" else [])
    assert Registry("runes").get("tau") == 6.283185307179586
    assert Registry("runes").names() == ("tau",)


def test_tasks_of_ones_own_are_checked_like_shipped_ones_and_written_back_as_they_were(folder: Path):
    config = recipe(folder, 'kind = "my_plug_in:MyTasks"\nlargest = 3')
    assert (config.tasks.kind, config.tasks.largest) == ("my_plug_in:MyTasks", 3)  # type: ignore[attr-defined]
    (folder / "again.toml").write_text(to_toml(config), encoding="utf-8")
    assert load_toml(folder / "again.toml", Recipe) == config
    with pytest.raises(UserError, match=r"unknown key tasks\.larges; did you mean tasks\.largest\?"):
        recipe(folder, 'kind = "my_plug_in:MyTasks"\nlarges = 3')
    with pytest.raises(UserError, match="tasks 'my_plug_in:broken'"):
        recipe(folder, 'kind = "my_plug_in:broken"')
    with pytest.raises(UserError, match="needs the key kind"):
        recipe(folder, "largest = 3")


def test_tasks_made_in_python_are_written_with_the_name_that_finds_them_again(folder: Path):
    from my_plug_in import MyTasks  # type: ignore[import-not-found]

    assert Recipe(tasks=MyTasks()).tasks.kind == "my_plug_in:MyTasks"
    mem1.register.tasks("mine", MyTasks)
    try:
        config = Recipe(tasks=MyTasks())
        assert config.tasks.kind == "mine" and recipe(folder, 'kind = "mine"') == config
    finally:
        mem1.register.tasks._registered.clear()
    with pytest.raises(UserError, match=r"unknown tasks 'mine'.*call mem1\.register\.tasks\('mine', \.\.\.\) before"):
        recipe(folder, 'kind = "mine"')


def test_a_reward_must_be_known_and_a_function(folder: Path):
    assert recipe(folder, 'kind = "atlas"\nreward = "math:hypot"').tasks.reward_function is math.hypot
    with pytest.raises(UserError, match="the reward must be a function"):
        recipe(folder, 'kind = "atlas"\nreward = "my_plug_in:broken"')
