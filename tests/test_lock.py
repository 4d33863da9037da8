"""One command at a time writes into a folder; a killed one holds nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mem1 import lock
from mem1.cli.main import app
from mem1.errors import UserError
from mem1.lock import alone_in

HOLD = "import sys, time, pathlib; from mem1.lock import alone_in\nwith alone_in(pathlib.Path(sys.argv[1])):"


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that holds the folder from now on."""
    code = f"{HOLD}\n    print('held', flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


@pytest.mark.skipif(sys.platform == "win32", reason="no flock")
def test_another_process_is_named_and_its_death_frees_the_folder(tmp_path: Path):
    other = holder(tmp_path)
    try:
        with pytest.raises(UserError, match="another command is writing into") as refused, alone_in(tmp_path):
            pass
        if Path("/proc/locks").exists():
            assert f"(process {other.pid} on this machine)" in str(refused.value)
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    with alone_in(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_one_process_does_not_hold_a_folder_twice_and_others_are_free(tmp_path: Path):
    with alone_in(tmp_path / "a"), alone_in(tmp_path / "a" / "evaluation"), alone_in(tmp_path / "b"):
        with pytest.raises(UserError, match="another command is writing into"), alone_in(tmp_path / "a"):
            pass
        (tmp_path / "a" / "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["a"], "an empty folder that the lock made goes with it"
    with alone_in(tmp_path / "a"):
        pass


def test_a_folder_that_was_replaced_meanwhile_is_locked_anew(tmp_path: Path):
    folder, entered = tmp_path / "index", threading.Event()

    def second() -> None:
        with alone_in(folder, wait=True):
            entered.set()
            assert folder.is_dir() and (folder / "new").exists()

    thread = threading.Thread(target=second)
    with alone_in(folder):
        thread.start()
        assert not entered.wait(0.1)
        folder.rename(tmp_path / "old")
        folder.mkdir()
        (folder / "new").touch()
    thread.join(60)
    assert entered.is_set()


def test_a_folder_that_its_last_holder_removes_just_then_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    opened = os.open

    def late(path: Path, flags: int) -> int:
        monkeypatch.undo()
        path.rmdir()
        return opened(path, flags)

    monkeypatch.setattr(os, "open", late)
    with alone_in(tmp_path / "index", wait=True):
        assert (tmp_path / "index").is_dir()
    assert os.open is opened, "it was removed"


@pytest.mark.parametrize("why", ["no flock at all", "a drive without locks"])
def test_a_warning_appears_where_the_system_has_no_locks(why: str, tmp_path: Path, monkeypatch, caplog):
    class NoLocks:
        LOCK_EX = LOCK_NB = 0

        @staticmethod
        def flock(place: int, how: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock, "fcntl", None if why == "no flock at all" else NoLocks)
    with alone_in(tmp_path), alone_in(tmp_path):
        pass
    assert "make sure that no other command writes into" in caplog.text


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file is a file; give a folder"), alone_in(tmp_path / "file"):
        pass
    with pytest.raises(UserError, match=r"cannot make .*: .*; give another folder"), alone_in(tmp_path / "file" / "x"):
        pass


CORPUS = '{"id": "a", "title": "Oslo", "text": "Oslo lies in Norway."}\n'
COMMANDS = {
    "train": ["train", "atlas-quick", "--out", "{}"],
    "train --resume": ["train", "atlas-quick", "--resume", "--out", "{}"],
    "quickstart": ["quickstart", "--out", "{}"],
    "eval": ["eval", "engine.kind=script", "engine.answer=x", "--limit", "1", "--out", "{}"],
    "index": ["index", "CORPUS", "--out", "{}"],
    "data": ["data", "tasks.kind=cloze", "--corpus", "CORPUS", "--out", "{}"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_writes_a_folder_leaves_a_held_one_alone(command: str, tmp_path: Path):
    (tmp_path / "corpus.jsonl").write_text(CORPUS)
    folder = tmp_path / "out"
    names = {"{}": str(folder), "CORPUS": str(tmp_path / "corpus.jsonl")}
    with alone_in(folder):
        result = CliRunner().invoke(app, [names.get(word, word) for word in COMMANDS[command]])
        assert isinstance(result.exception, UserError)
        assert "another command is writing into" in str(result.exception)
        assert list(folder.iterdir()) == []
