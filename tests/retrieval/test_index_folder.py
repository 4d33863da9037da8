"""What stands where an index is to be written: nothing of anybody else's is removed, and no kill loses the old one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from corpora import TOWNS

from mem1.durable import MANIFEST
from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.retrieval.bm25 import FILES
from mem1.retrieval.index_files import read_folder, save_folder
from mem1.retrieval.index_folder import open_passages, open_retriever, read_corpus


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write_tree(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


WEB_APP = json.dumps({"name": "shop", "icons": [], "start_url": "/"})
CHECKPOINT = json.dumps({"format": 1, "crc32": {"model/model.safetensors": 3420012277}})
FORGED = json.dumps({"kind": "bm25", "format": 2, "facts": {"stem": True}, "files": {"thesis.txt": [13, 1]}})
OUTSIDE = json.dumps({"kind": "bm25", "format": 2, "facts": {"stem": True}, "files": {"../thesis.txt": [13, 1]}})


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ({"manifest.json": WEB_APP, ".git/HEAD": "ref: refs/heads/main"}, r"\.git"),
        ({"manifest.json": CHECKPOINT, "state.json": "{}", "model/config.json": "{}"}, "is not a bm25 index"),
        ({"manifest.json": '{"files": []}', "corpus/oslo.md": "# Oslo"}, "it holds corpus"),
        ({"manifest.json": FORGED, "thesis.txt": "years of work"}, r"thesis\.txt is not as mem1 wrote it"),
        ({"manifest.json": OUTSIDE, "thesis.txt": "years of work"}, "is not a bm25 index"),
        ({".git/HEAD": "ref: refs/heads/main"}, r"\.git"),
    ],
    ids=["web app", "checkpoint", "corpus", "forged", "outside", "repository"],
)
def test_a_folder_with_a_manifest_that_is_not_an_index_stays_unchanged(
    tmp_path: Path, files: dict[str, str], named: str
):
    write_tree(tmp_path / "mine", files)
    before = contents(tmp_path)
    with pytest.raises(UserError, match=named):
        BM25.build(TOWNS).save(tmp_path / "mine")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("added", ["notes.txt", ".hidden", "inner/notes.txt"])
def test_an_index_with_a_file_of_somebody_else_is_not_replaced(tmp_path: Path, added: str):
    BM25.build(TOWNS[:1]).save(tmp_path / "index")
    write_tree(tmp_path / "index", {added: "mine"})
    before = contents(tmp_path)
    with pytest.raises(UserError, match=f"holds {added.partition('/')[0]}, which is no part of a bm25 index"):
        BM25.build(TOWNS).save(tmp_path / "index")
    assert contents(tmp_path) == before


def test_a_file_of_an_index_that_was_changed_is_not_replaced(tmp_path: Path):
    BM25.build(TOWNS[:1]).save(tmp_path / "index")
    (tmp_path / "index" / "params.index.json").write_text("notes of my own")
    with pytest.raises(UserError, match=r"params\.index\.json is not as mem1 wrote it"):
        BM25.build(TOWNS).save(tmp_path / "index")
    assert (tmp_path / "index" / "params.index.json").read_text() == "notes of my own"


def test_a_link_to_a_folder_is_not_replaced(tmp_path: Path):
    BM25.build(TOWNS[:1]).save(tmp_path / "index")
    (tmp_path / "link").symlink_to(tmp_path / "index")
    with pytest.raises(UserError, match="exists and is not a bm25 index"):
        BM25.build(TOWNS).save(tmp_path / "link")
    assert len(BM25.load(tmp_path / "index").passages) == 1


def test_a_file_put_beside_the_index_while_it_is_built_stops_the_replacement(tmp_path: Path):
    BM25.build(TOWNS[:1]).save(tmp_path / "index")

    def write(folder: Path) -> None:
        (tmp_path / "index" / "notes.txt").write_text("mine")
        (folder / "vectors.npy").write_bytes(b"")

    with pytest.raises(UserError, match=r"holds notes\.txt"):
        save_folder(tmp_path / "index", kind="bm25", facts={}, write=write)
    assert (tmp_path / "index" / "notes.txt").read_text() == "mine"
    assert len(BM25.load(tmp_path / "index").passages) == 1


# --- a kill between two renames


class Killed(BaseException):
    pass


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_kill_at_any_rename_leaves_the_old_index_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
):
    BM25.build(TOWNS[:1]).save(tmp_path / "index")
    renames = 0

    def killed(path: Path, target: Path, rename=Path.rename) -> Path:
        nonlocal renames
        renames += 1
        if renames == at + 1:
            raise Killed
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", killed)  # what the operating system does, not what we do
        if at < 2:
            with pytest.raises(Killed):
                BM25.build(TOWNS).save(tmp_path / "index")
        else:
            BM25.build(TOWNS).save(tmp_path / "index")
    assert (tmp_path / "index").exists() == (at != 1)
    assert len(open_passages(tmp_path / "index")) == (4 if at == 2 else 1)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


@pytest.mark.parametrize("opened", [open_retriever, open_passages, read_corpus, BM25.load])
def test_every_way_of_opening_puts_back_an_index_that_a_kill_left_aside(tmp_path: Path, opened):
    BM25.build(TOWNS).save(tmp_path / "index")
    (tmp_path / "index").rename(tmp_path / ".index.old-0123abcd")
    opened(tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_an_index_that_a_kill_left_aside_in_a_folder_of_indexes_is_put_back(tmp_path: Path):
    BM25.build(TOWNS).save(tmp_path / "stemmed")
    BM25.build(TOWNS, stem=False).save(tmp_path / "words")
    (tmp_path / "words").rename(tmp_path / ".words.old-0123abcd")
    assert open_retriever(tmp_path).search(["Alvex"], 3)[0][0][1] == 2 / 61
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stemmed", "words"]


def test_an_empty_folder_that_a_lock_made_is_replaced_and_an_old_index_put_back_in_its_place(tmp_path: Path):
    (tmp_path / "index").mkdir()
    BM25.build(TOWNS).save(tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    (tmp_path / "index").rename(tmp_path / ".index.old-0123abcd")
    (tmp_path / "index").mkdir()
    assert len(open_passages(tmp_path / "index")) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_the_only_index_is_not_swept_however_old_it_is(tmp_path: Path):
    BM25.build(TOWNS).save(tmp_path / "index")
    (tmp_path / "index").rename(tmp_path / ".index.old-0123abcd")
    os.utime(tmp_path / ".index.old-0123abcd", (0, 0))
    with pytest.raises(UserError):
        BM25.build([Passage("a", "", "the")]).save(tmp_path / "index")  # nothing to index: it is not written
    assert len(BM25.load(tmp_path / "index").passages) == 4


# --- hand-made manifests


@pytest.mark.parametrize(
    "manifest",
    [
        {"kind": 7, "format": 2, "facts": {}, "files": {}},
        {"kind": "bm25", "format": "2", "facts": {}, "files": {}},
        {"kind": "bm25", "format": 2, "facts": [], "files": {}},
        {"kind": "bm25", "format": 2, "facts": {}, "files": ["passages.jsonl"]},
        {"kind": "bm25", "format": 2, "facts": {}, "files": {"passages.jsonl": None}},
        {"kind": "bm25", "format": 2, "facts": {}, "files": {"passages.jsonl": [1, 2, 3]}},
        {"kind": "bm25", "format": 2, "facts": {}, "files": {"passages.jsonl": [1e999, 2]}},
        {"kind": "bm25", "format": 2, "facts": {}, "files": {"../passages.jsonl": [0, 0]}},
        {"kind": "bm25", "format": 2, "facts": {}, "files": {"/etc/passwd": [0, 0]}},
        {"kind": "bm25", "format": 2, "facts": {}, "files": {"a\0b": [0, 0]}},
        {"kind": "bm25", "format": 2, "facts": {}, "files": {"": [0, 0]}},
        {"kind": "bm25", "format": 2, "facts": {}, "files": {}},
        {"kind": "bm25", "format": 2, "facts": {}, "files": {"passages.jsonl": [10**400, 0]}},
        {"kind": "bm25", "format": 2},
        [],
        None,
    ],
)
def test_a_hand_made_manifest_is_refused_by_a_sentence(tmp_path: Path, manifest: object):
    BM25.build(TOWNS).save(tmp_path / "index")
    (tmp_path / "index" / MANIFEST).write_text(json.dumps(manifest))
    for opened in (open_retriever, BM25.load):
        with pytest.raises(UserError):
            opened(tmp_path / "index")


def test_a_manifest_nested_without_end_is_refused_by_a_sentence(tmp_path: Path):
    BM25.build(TOWNS).save(tmp_path / "index")
    (tmp_path / "index" / MANIFEST).write_text("[" * 100_000)
    with pytest.raises(UserError, match=r"or its manifest\.json is damaged"):
        BM25.load(tmp_path / "index")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"\x93NUMPY\x01\x00v\x00{}", "array"])
def test_hand_made_files_with_a_fitting_manifest_are_refused_by_a_sentence(
    tmp_path: Path, name: str, content: bytes | str
):
    BM25.build(TOWNS).save(tmp_path / "index")

    def write(folder: Path) -> None:
        for path in (tmp_path / "index").iterdir():
            if path.name != MANIFEST:
                (folder / path.name).write_bytes(path.read_bytes())
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            with open(folder / name, "wb") as file:
                np.save(file, np.asarray([99_999_999, -5]))

    save_folder(tmp_path / "forged", kind="bm25", facts=read_folder(tmp_path / "index", kind="bm25"), write=write)
    with pytest.raises(UserError):
        BM25.load(tmp_path / "forged")
    if name in ("passages.jsonl", "offsets.npy"):
        with pytest.raises(UserError):
            list(open_passages(tmp_path / "forged"))
