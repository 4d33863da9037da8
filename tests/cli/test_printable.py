"""Names of files and words of servers reach a terminal as text: it obeys no character of them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminals import Terminal
from terminals import terminal as terminal

from mem1.cli.progress import _SafeConsole
from mem1.errors import printable

CLEAR = "\x1b[2J\x07\x9b31m\u202e\r"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("notes/oslo.md", "notes/oslo.md"),
        ("Gr\u00f6\u00dfe \u6771\u4eac", "Gr\u00f6\u00dfe \u6771\u4eac"),
        ("two\nlines\tand", "two\nlines\tand"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\x9b31m\r", "a\\x9b31m\\x0d"),
        ("\u202egpj.exe", "\\u202egpj.exe"),
        ("\udcff.txt", "\\udcff.txt"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_control_characters_are_written_as_escapes(text: str, shown: str):
    assert printable(text) == shown == printable(shown)


@given(st.text())
def test_printed_text_holds_no_control_character_and_can_be_encoded(text: str):
    shown = printable(text)
    shown.encode("utf-8")
    assert not [c for c in shown if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) <= 0x9F]


@pytest.mark.parametrize("name", [f"a{CLEAR}.xyz", "[/bold].xyz", "[link=http://x]a[/].xyz"])
def test_names_of_documents_and_folders_are_printed_as_text(terminal: Terminal, tmp_path: Path, name: str):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / name.replace("/", ":")).write_text("x")
    (tmp_path / "notes" / "good.txt").write_text("Read me, said Mira Toll.")
    out = tmp_path / f"out{CLEAR}"
    code, printed, said = terminal("index", tmp_path / "notes", "--out", out)
    assert code == 0 and "Indexed 1 passages in" in printed
    for text in (printed, said):
        assert not [c for c in text if ord(c) < 32 and c != "\n"] and "\x9b" not in text and "\u202e" not in text
    assert "not a supported type of file" in said.replace("\n", " ")


def test_errors_that_name_a_file_are_printed_as_text(terminal: Terminal, tmp_path: Path):
    code, _, said = terminal("index", tmp_path / f"no{CLEAR}where", "--out", tmp_path / "out")
    assert code == 2 and "\\x1b[2J" in said and "\x1b" not in said and "\x9b" not in said


def test_text_that_looks_like_markup_is_printed_unchanged():
    console = _SafeConsole(file=io.StringIO(), highlight=False, width=80)
    console.print("everything is written to runs/[/]a")
    assert console.file.getvalue() == "everything is written to runs/[/]a\n"  # type: ignore[attr-defined]
