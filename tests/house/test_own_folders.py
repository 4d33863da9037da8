"""The guard on the home and the checkout notices what a test writes there, itself or through a child, and names it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import own_folders
import pytest

TESTS = Path(__file__).parents[1]
LEAVING = """
import os, sqlite3, subprocess, sys
from pathlib import Path

HOME, CHECKOUT = Path(os.environ["REAL"]), Path(__file__).parents[1]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "HOME"}

def test_a_file(): (HOME / ".leftover").write_text("x")
def test_a_folder(): (HOME / ".cache" / "mem1").mkdir(parents=True)
def test_a_database(): sqlite3.connect(HOME / "web.sqlite").close()
def test_a_rename(tmp_path): (tmp_path / "a").touch(); (tmp_path / "a").rename(CHECKOUT / "a")
def test_a_removal(): (CHECKOUT / "README.md").unlink()
def test_a_child(): subprocess.run([sys.executable, "-c", f"open({str(CHECKOUT / 'runs')!r}, 'w')"], check=True)
def test_a_child_with_the_home_of_the_user(): subprocess.run(["true"], env=ENVIRONMENT, check=True)
"""
STAYING = """
import os, subprocess, sys
from pathlib import Path

def test_stays(tmp_path):
    (Path.home() / ".cache" / "mem1").mkdir()
    (tmp_path / "file").touch()
    (Path(__file__).parent / "__pycache__").mkdir(exist_ok=True)
    Path(os.environ["REAL"]).mkdir(exist_ok=True)
    assert os.listdir(os.environ["REAL"]) == [] and Path(__file__).read_text()
    subprocess.run([sys.executable, "-c", "from pathlib import Path; (Path.home() / 'mine').touch()"], check=True)
"""


def session(folder: Path, tests: str) -> subprocess.CompletedProcess[str]:
    """A session of its own, with our conftest.py, in a checkout and a home that are empty."""
    (folder / "checkout" / "tests").mkdir(parents=True)
    (folder / "home").mkdir()
    (folder / "checkout" / "README.md").touch()
    (folder / "checkout" / "pytest.ini").write_text(f"[pytest]\npythonpath = {TESTS / 'support'}\n")
    (folder / "checkout" / "tests" / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "checkout" / "tests" / "test_it.py").write_text(tests)
    mine = (own_folders.FOLDER, own_folders.GUARDED, own_folders.FREE, "PYTEST_CURRENT_TEST", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if name not in mine}
    environment |= {"HOME": str(folder / "home"), "REAL": str(folder / "home")}
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(words, cwd=folder / "checkout", env=environment, capture_output=True, text=True, check=False)


def test_every_way_out_fails_the_session_and_is_named(tmp_path: Path):
    done = session(tmp_path, LEAVING)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED and "7 passed" in done.stdout, done.stdout + done.stderr
    said = done.stdout.splitlines()
    for test, where in {
        "a_file": tmp_path / "home" / ".leftover",
        "a_folder": tmp_path / "home" / ".cache",
        "a_database": tmp_path / "home" / "web.sqlite",
        "a_rename": tmp_path / "checkout" / "a",
        "a_removal": tmp_path / "checkout" / "README.md",
        "a_child": tmp_path / "checkout" / "runs",
        "a_child_with_the_home_of_the_user": own_folders.home_of_the_user(),
    }.items():
        assert any(f"::test_{test}: " in line and line.endswith(f" {where}") for line in said), (test, done.stdout)


DEPRECATED = """
import logging

def test_calls(): logging.getLogger("transformers.models").warning("`past_key_values` is deprecated")
def test_is_fine(): logging.getLogger("transformers.models").warning("no weights")
"""


def test_a_deprecated_call_of_transformers_fails_its_test(tmp_path: Path):
    done = session(tmp_path, DEPRECATED)
    assert "ERROR tests/test_it.py::test_calls" in done.stdout and "2 passed, 1 error" in done.stdout, done.stdout


def test_what_stays_inside_is_fine(tmp_path: Path):
    done = session(tmp_path, STAYING)
    assert (done.returncode, done.stdout.count("1 passed")) == (0, 1), done.stdout + done.stderr
    assert list((tmp_path / "home").iterdir()) == []
