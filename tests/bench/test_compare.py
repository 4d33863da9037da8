"""`mem1 bench compare`: the tables of two results, of one with two memories, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from bench_results import invented
from terminals import Terminal

from mem1.bench.page import bench_page
from mem1.bench.results import save_result
from mem1.bench.scores import names_of, sides_of
from mem1.bench.tables import score_table
from mem1.cli.bench import record
from mem1.pages.page import Figures

FAMILIES = ("chain", "budget")


def saved(path: Path, *memories: str, tasks: int = 84, **more) -> Path:
    save_result(path, invented(tasks, memories, families=FAMILIES, **more))
    return path


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "120")
    return Terminal(capsys, monkeypatch)


def printed(terminal: Terminal, *arguments: str) -> str:
    code, out, _ = terminal(*arguments)
    assert code == 0
    return out


@pytest.fixture
def both(tmp_path: Path) -> list[str]:
    (tmp_path / "a").mkdir()
    saved(tmp_path / "a" / "result.json", "full", model="a")
    return [str(tmp_path / "a"), str(saved(tmp_path / "b.json", "full", model="b", skill=0.99))]


def test_two_results_are_set_side_by_side(terminal: Terminal, both: list[str]):
    shown = printed(terminal, "bench", "compare", *both)
    for text in ("scores", "differences", "b minus a", "tasks shared", "chain", "budget", "answered"):
        assert text in shown
    record = json.loads(printed(terminal, "bench", "compare", *both, "--json"))
    assert [side["name"] for side in record["sides"]] == ["a", "b"]
    (compared,) = record["comparisons"]
    assert compared["tasks"] == 84 and compared["left_out"] == [0, 0]
    *_, everything = compared["families"]
    values = [side["all"]["area"]["value"] for side in record["sides"]]
    assert everything["difference"]["value"] == pytest.approx(values[1] - values[0])
    assert everything["difference"]["low"] > 0 and f"+{everything['difference']['value']:.2f}" in shown


def test_a_side_that_lacks_a_family_has_no_score_of_all_beside_one_that_has_it():
    sides = [
        *sides_of(invented(84, ("full",), families=FAMILIES)),
        *sides_of(invented(84, ("full",), families=["chain"])),
    ]
    table = score_table(sides)
    assert table.headings[1:] == ("all", *FAMILIES)
    assert [tuple(cell is not None for cell in row[1:]) for row in table.rows] == [(True,) * 3, (False, True, False)]
    assert [side["all"] is None for side in record(sides, [])["sides"]] == [False, True]
    figures = [
        figure
        for section in bench_page(sides, title="a").sections
        for figures in section.parts
        if isinstance(figures, Figures)
        for figure in figures.figures
    ]
    (trade,) = (figure for figure in figures if "tokens per right answer" in figure["title"])
    assert [trace["name"] for trace in trade["data"]] == [names_of(sides)[0]]


def test_memories_of_one_file_are_compared_and_one_can_be_picked(terminal: Terminal, tmp_path: Path, both: list[str]):
    file = saved(tmp_path / "with:colon.json", "full", "fold(auto)", "notes", model="a")
    assert "fold(auto) minus full" in printed(terminal, "bench", "compare", str(file))
    names = [["a, full", "a, notes"], ["full", "fold(auto)"]]
    for arguments, expected in zip(
        ([both[0], f"{file}:notes"], [f"{file}:full", f"{file}:fold(auto)"]), names, strict=True
    ):
        record = json.loads(printed(terminal, "bench", "compare", *arguments, "--json"))
        assert [f"{side['model']}, {side['memory']}" for side in record["sides"]] in (
            expected,
            [f"a, {name}" for name in expected],
        )


def test_five_results_are_readable_in_80_columns(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    families = ("independent", "constraint", "budget")
    for number, letter in enumerate("vwxyz"):
        made = invented(84, ("full",), families=families, model=letter, skill=0.8 + number / 25)
        save_result(tmp_path / f"{letter}.json", made)
    files = [str(tmp_path / f"{letter}.json") for letter in "vwxyz"]
    shown = printed(terminal, "bench", "compare", *files)
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 80 and "…" not in shown
    record = json.loads(printed(terminal, "bench", "compare", *files, "--json"))
    for family in families:
        values = [side["families"][family]["area"] for side in record["sides"]]
        rows = [line.removeprefix(f" {family}") for line in lines if line.startswith(f" {family} ")]
        scores = [cell for row in rows for cell in re.findall(r"  (\d[^\]]*\])", row)]
        assert scores == [f"{one['value']:.2f} [{one['low']:.2f}, {one['high']:.2f}]" for one in values]
        assert sum(row.count("]") for row in rows) == 5 + 4, "scores and differences"
    headings = " ".join(line for line in lines if re.fullmatch(r"( +[v-z]( minus v)?)+", line))
    assert " ".join(headings.split()) == "v w x y z w minus v x minus v y minus v z minus v v w x y z v w x y z"


def test_a_page_is_written_and_never_replaced(terminal: Terminal, tmp_path: Path, both: list[str]):
    page = tmp_path / "new" / "page.html"
    printed(terminal, "bench", "compare", *both, "--plot", str(page))
    assert "<h1>a and b</h1>" in page.read_text("utf-8")
    assert "exists and is not replaced" in terminal.error("bench", "compare", *both, "--plot", str(page))


def test_what_cannot_be_compared_is_refused_in_one_line(terminal: Terminal, tmp_path: Path, both: list[str]):
    other = tmp_path / "other.json"
    save_result(other, replace(invented(7, ("full",), model="c"), seed=5))
    empty = tmp_path / "empty.json"
    save_result(empty, replace(invented(7, ("full",)), attempts=()))
    for arguments, reason in [
        ([both[0]], "give a second result"),
        ([both[0], f"{both[1]}:notes"], "has no memory 'notes'; it has full"),
        ([both[0], str(tmp_path / "none.json")], "does not exist"),
        ([both[0], str(tmp_path)], "result.json does not exist"),
        ([both[0], str(other)], "a, full was run with seed 0, and c, full with 5; only results on the same tasks"),
        ([both[0], str(empty)], "holds no attempts"),
        ([both[0], "x" * 300], "give a shorter path"),
    ]:
        said = terminal.error("bench", "compare", *arguments)
        assert reason in said and said.startswith("error: "), said


def test_names_that_a_terminal_would_obey_are_shown(terminal: Terminal, tmp_path: Path):
    name = "[red]x[/red]\x1b[31m"
    a = saved(tmp_path / "a.json", "full", model=name)
    b = saved(tmp_path / "b.json", "full", model="b")
    shown = printed(terminal, "bench", "compare", str(a), str(b))
    assert "\x1b" not in shown and "[red]x[/red]" in shown
