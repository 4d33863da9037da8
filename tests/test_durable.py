"""Files and folders that are replaced whole, and what is cleared up beside them."""

from __future__ import annotations

from pathlib import Path

from mem1.durable import remove_files


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
