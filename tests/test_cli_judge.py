"""`mem1 eval` with a judge beside exact match, and with what its model computes."""
# ruff: noqa: F811 (a fixture that is imported)

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

from chat_servers import chat_server
from test_cli import Terminal, terminal  # noqa: F401
from test_judge import honest

ATLAS = ("eval", "--task", "atlas", "--objectives", "1", "--limit", "3")
SCRIPT = ("--script", "Q1 nobody")


def test_a_judge_stands_in_the_row_and_below_the_table_and_a_repeat_asks_nobody(terminal: Terminal, tmp_path: Path):
    with chat_server(honest) as server:
        asked = (*ATLAS, *SCRIPT, "--out", tmp_path, "--judge-url", server.url, "--judge-model", "m")
        code, out, _ = terminal(*asked, "--json")
        judge = json.loads(out)["rows"][0]["judge"]
        assert (code, len(server.requests)) == (0, 3)
    assert (judge["model"], judge["correct"], judge["judged"], judge["agreement"]) == ("m", 0.0, 1.0, 1.0)
    code, out, _ = terminal(*asked)
    assert code == 0 and "it judged 100% of them" in " ".join(out.split())


def test_the_tables_of_a_report_keep_the_flops_and_the_verdict_of_the_evaluation(terminal: Terminal, tmp_path: Path):
    with chat_server(honest) as server:
        asked = (*ATLAS, "--out", tmp_path, "--judge-url", server.url, "--judge-model", "m", "--json")
        (row,) = json.loads(terminal(*asked)[1])["rows"]
    assert row["flops"] and row["judge"]["judged"] == 1.0
    (line,) = csv.DictReader(io.StringIO(terminal("report", tmp_path, "--format", "csv")[1]))
    assert float(line["flops_cached"]) == row["flops_cached"]
    assert (line["judge.model"], float(line["judge.agreement"])) == ("m", row["judge"]["agreement"])
    table = terminal("report", tmp_path, "--format", "latex")[1]
    assert f"{row['flops']:.3g}" in table and "it judged 100% of them" in table
    assert not terminal(*asked)[0] and not terminal("report", tmp_path)[0]
    assert "the judge m accepts" in (tmp_path / "report.html").read_text()


def test_half_a_judge_is_refused_before_anything_is_run(terminal: Terminal):
    assert "both --judge-url and --judge-model" in terminal.error(*ATLAS, *SCRIPT, "--judge-model", "m")


def test_flops_are_those_of_the_model_and_a_script_has_none(terminal: Terminal):
    scripted, shipped = (json.loads(terminal(*ATLAS, *script, "--json")[1])["rows"][0] for script in (SCRIPT, ()))
    assert (scripted["flops"], scripted["judge"]) == (None, None)
    # at least every token through every matrix of the shipped policy, and the attention is less than that again
    matrices = 2 * 851968 * shipped["total_tokens"]
    assert matrices < shipped["flops_cached"] + 2 * 851968 * shipped["cached_tokens"] < shipped["flops"] < 2 * matrices
    assert shipped["fresh_tokens"] + shipped["cached_tokens"] + shipped["output_tokens"] == shipped["total_tokens"]
