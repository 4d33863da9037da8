"""`benchmarks/cost.py`, as it is called."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from cost import main

from mem1.errors import UserError
from mem1.prices import PRICE_CLASSES
from mem1.records import Trajectory, Turn
from mem1.trajectory_files import write_trajectories

SIZES = ["--prompt", 100, "--state", 20, "--action", 10, "--result", 50, "--turns", 3]
OWN = ["--fresh", 10, "--cached", 1, "--write", 12, "--output", 50]


def call(*arguments: object) -> str:
    """What the command prints. Raises UserError with what it says instead."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            main(list(map(str, arguments)))
    except SystemExit as ended:
        raise UserError(str(ended.code)) from ended
    return printed.getvalue()


def priced(*arguments: object) -> list[dict[str, Any]]:
    return json.loads(call(*arguments, "--json"))["prices"]


def attempt(turns: int, context: str = "full") -> Trajectory:
    """Under `full`: prompt 2, each turn 3 tokens of which 2 are its state, results of 4."""
    return Trajectory(
        turns=tuple(
            Turn(
                context_ids=(0,) * (2 + 7 * number),
                completion_ids=(0,) * 3,
                observation_ids=(0,) * 4,
                completion_spans={"state": (0, 2)},
                context_spans={"prompt": (0, 2)},
            )
            for number in range(turns)
        ),
        context=context,
    )


class TestSizes:
    def test_the_worked_example_of_the_documentation(self):
        #  in its third turn fold(2) writes nothing to the cache, as it is about to drop what it has
        (own,) = priced(*SIZES, *OWN)
        costs = {row["context"]: row["cost"] for row in own["rows"]}
        assert costs == pytest.approx({"full": 0.0044, "constant": 0.0053, "fold(2)": 0.00428, "fold(3)": 0.0044})
        assert own["best"] == "fold(2)"
        assert own["rows"][1]["by_turn"] == pytest.approx([0.0017, 0.0029, 0.0053])
        assert (own["rows"][1]["fresh"], own["rows"][1]["cached"], own["rows"][1]["written"]) == (140, 200, 100)

    def test_break_even_is_looked_for_beyond_the_turns_that_are_priced(self):
        row = priced(*SIZES, *OWN)[0]["rows"][1]
        #  (T - 2) (10 + 50) 20 - (T - 1) (12 - 10) 60 - (T - 1) (T - 2) / 2 * 60 < 0 from T = 37 on
        assert row["break_even"] == 37

    def test_the_cache_of_a_class_can_be_overruled(self):
        cached = [priced(*SIZES, "--prices", "hosted-50", *more)[0]["rows"][0]["cached"] for more in ([], _ANY_PREFIX)]
        assert cached == [0, 100 + 160]

    def test_thoughts_make_full_write_too(self):
        assert [priced(*SIZES, *OWN, "--thoughts", t)[0]["rows"][0]["output"] for t in (0, 0.5, 1)] == [30, 60, 90]

    def test_all_classes_are_compared_without_prices_and_the_tables_fit_80_columns(self):
        printed = call(*SIZES)
        assert all(name in printed for name in ("hosted-90", "hosted-50", "open-weights", "self-hosted"))
        assert "https://openai.com/index/api-prompt-caching/ (2024-10-01)" in " ".join(printed.split())
        assert "an example, not a price list" in " ".join(printed.split())
        assert max(map(len, printed.splitlines())) <= 80
        large = call("--prompt", 9999, "--state", 9999, "--action", 999, "--result", 9999, "--turns", 40, *OWN)
        assert max(map(len, large.splitlines())) <= 80 and "…" not in large

    def test_the_tables_of_the_documentation_are_what_the_command_prints(self):
        text = (Path(__file__).parents[2] / "docs" / "cost.md").read_text(encoding="utf-8")
        section = text.partition("## Examples")[2].partition("## Price classes")[0]
        commands = [line.split()[2:] for line in section.splitlines() if line.startswith("python benchmarks/cost.py ")]
        tables = [part.split("```")[0] for part in section.split("|---|---|---|---|---|---|---|\n")[1:]]
        assert len(commands) == len(tables) == 1
        for arguments, table in zip(commands, tables, strict=True):
            rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("|")]
            assert len(rows) == 5
            printed = [line.split() for line in call(*arguments).splitlines()]
            assert all(row in printed for row in rows)


_ANY_PREFIX = ["--cache-minimum", 0, "--cache-step", 1]


class TestRecorded:
    @pytest.fixture
    def run(self, tmp_path) -> Path:
        """Attempts of three turns and of one, and one that made no call."""
        never = Trajectory(turns=(), context="full")
        write_trajectories(tmp_path / "trajectories.jsonl", [attempt(3), attempt(1), never])
        return tmp_path

    def test_a_file_and_its_folder_are_priced_alike_as_means_over_attempts(self, run):
        (own,) = priced(run / "trajectories.jsonl", *OWN, "--thoughts", 1)
        assert own["rows"] == priced(run, *OWN, "--thoughts", 1)[0]["rows"]
        full = own["rows"][0]
        assert (full["written"], full["cached"], full["output"]) == ((16 + 2) / 2, (2 + 9) / 2, (9 + 3) / 2)
        assert full["peak_tokens"] == (19 + 5) / 2
        assert [row["context"] for row in own["rows"]] == ["full", "constant", "fold(2)", "fold(3)"]

    def test_a_folder_with_several_files_names_them(self, run):
        (run / "evaluation").mkdir()
        write_trajectories(run / "evaluation" / "base-2.jsonl", [attempt(1)])
        with pytest.raises(UserError, match=r"holds 2 files .*evaluation/base-2\.jsonl, trajectories\.jsonl"):
            call(run, *OWN)

    def test_mistakes_are_explained(self, run, tmp_path):
        with pytest.raises(UserError, match=r"--prompt: .*trajectories.jsonl has its own sizes"):
            call(run / "trajectories.jsonl", "--prompt", 3)
        write_trajectories(tmp_path / "none.jsonl", [Trajectory(turns=())])
        with pytest.raises(UserError, match="has no attempt with a model call"):
            call(tmp_path / "none.jsonl")
        with pytest.raises(UserError, match="no such file"):
            call(tmp_path / "missing.jsonl")


class TestPlot:
    def test_the_page_draws_the_lines_of_every_class_by_itself(self, tmp_path):
        call(*SIZES, "--plot", tmp_path / "cost.html")
        page = (tmp_path / "cost.html").read_text()
        figures, _ = json.JSONDecoder().raw_decode(page, page.rindex('[{"data"'))
        assert [figure["layout"]["title"]["text"] for figure in figures] == list(PRICE_CLASSES)
        (full, constant, *_), rows = figures[0]["data"], priced(*SIZES)[0]["rows"]
        assert [line["name"] for line in (full, constant)] == ["full", "constant"]
        assert full["y"] == rows[0]["by_turn"] and full["x"] == list(range(1, 1 + len(full["y"])))
        assert page.startswith("<!doctype html>") and not re.search(r"<(script|link|img)[^>]+(src|href)=", page)

    def test_another_ending_is_explained_and_a_missing_folder_is_made(self, tmp_path):
        with pytest.raises(UserError, match=r"ends in \.html"):
            call(*SIZES, *OWN, "--plot", tmp_path / "cost.png")
        call(*SIZES, *OWN, "--plot", tmp_path / "new" / "cost.html")
        with pytest.raises(UserError, match=r"cost\.html: its folder cannot be made \(Not a directory\)"):
            call(*SIZES, *OWN, "--plot", tmp_path / "new" / "cost.html" / "again" / "cost.html")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "missing: --prompt, --state, --action, --result, --turns"),
        (SIZES[:8], "missing: --turns"),
        ([*SIZES[:8], "--turns", 501], "--turns takes 1 to 500, not 501"),
        ([*SIZES, "--thoughts", 2], "--thoughts takes a share, from 0 to 1, not 2.0"),
        ([*SIZES, "--fresh", "nan", "--cached", 1, "--write", 1, "--output", 1], "'fresh' must be a number"),
        ([*SIZES, "--prices", "cheap"], "unknown price class 'cheap'; known: hosted-90"),
        ([*SIZES, "--fresh", 1, "--cached", 1], "missing: --write, --output"),
        ([*SIZES, *OWN, "--prices", "hosted-50"], "use either --prices, or your own"),
        ([*SIZES, "--fresh", 1, "--cached", -1, "--write", 1, "--output", 1], "'cached' must be a number"),
    ],
)
def test_mistakes_in_the_options_are_explained(options, message):
    with pytest.raises(UserError, match=message):
        call(*options)
