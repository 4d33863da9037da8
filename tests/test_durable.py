"""Files and folders that are replaced whole, and what is cleared up beside them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from mem1.durable import put_folder, remove_files, restore, seal


def sealed(folder: Path, text: str, *, at: float) -> Path:
    folder.mkdir()
    (folder / "text").write_text(text)
    seal(folder, kind="policy", format=1)
    os.utime(folder / "manifest.json", (at, at))
    return folder


@pytest.mark.parametrize("names", [("00000000", "11111111"), ("11111111", "00000000")])
def test_of_several_folders_that_kills_have_left_the_newest_comes_back(tmp_path: Path, names: tuple[str, str]):
    now = time.time()
    for age, name in zip((20, 10), names, strict=True):
        sealed(tmp_path / f".x.old-{name}", f"of {age} seconds ago", at=now - age)
    restore(tmp_path / "x")
    assert (tmp_path / "x" / "text").read_text() == "of 10 seconds ago"
    put_folder(sealed(tmp_path / "new", "now", at=now), tmp_path / "x")
    assert (tmp_path / "x" / "text").read_text() == "now"
    assert [path.name for path in tmp_path.iterdir()] == ["x"], "older ones can no longer come back"


def test_what_lies_behind_a_link_is_not_removed(tmp_path: Path):
    home, folder = tmp_path / "home", tmp_path / "old"
    (home / "in").mkdir(parents=True)
    (folder / "own").mkdir(parents=True)
    for file in (home / "id", home / "in" / "id", folder / "own" / "a", folder / "b"):
        file.write_text("x")
    (folder / "l").symlink_to(home)
    (folder / "own" / "l").symlink_to(home / "in")
    (folder / "f").symlink_to(home / "id")
    remove_files(folder, ["l/id", "l/in/id", "own/l/id", "f", "own/a", "b"])
    assert (home / "id").exists() and (home / "in" / "id").exists()
    assert sorted(path.name for path in folder.rglob("*") if not path.is_symlink()) == ["own"]
