"""`mem1 webshop` as typed."""

from __future__ import annotations

import json
from pathlib import Path

from terminals import Terminal
from terminals import terminal as terminal
from webshop_originals import ASKED, write_originals
from webshop_samples import SHARED_WEBSHOP, needs_shared_webshop, raw_product, shared_catalogue

from mem1.envs.webshop.files import load


def test_files_are_cleaned_and_counted(terminal: Terminal, tmp_path: Path):
    originals, out = tmp_path / "data", tmp_path / "shop.jsonl.gz"
    originals.mkdir()
    write_originals(originals, [raw_product("B1"), raw_product("B2"), raw_product("B1")])
    code, said, _ = terminal("webshop", "load", originals, "--out", out, "--json")
    assert code == 0
    assert json.loads(said) == {
        "out": str(out),
        "products": 2,
        "human_goals": 1,
        "human_without_attributes": 0,
        "synthetic_goals": 1,
        "synthetic_products": 1,
        "left_out": {"asin stood before": 1},
    }
    assert load(out) == load(originals)


def test_counts_and_what_was_left_out_are_said(terminal: Terminal, tmp_path: Path):
    write_originals(tmp_path, [raw_product("B1"), raw_product("nan"), raw_product("B2")])
    asked = [ASKED, {**ASKED, "instruction_attributes": []}]
    (tmp_path / "items_human_ins.json").write_text(json.dumps({"B2": asked}))
    code, said, err = terminal("webshop", "load", tmp_path, "--out", tmp_path / "shop.jsonl")
    assert (code, said) == (0, "")
    assert "2 products, 1 goals by people and 1 synthetic goals of 1 products, in" in err
    assert "Left out: 1 x no asin" in err
    assert "Left out: 1 x instruction by a person without attributes" in err
    assert "ends in .jsonl or .jsonl.gz" in terminal.error("webshop", "load", tmp_path, "--out", tmp_path / "shop.json")


@needs_shared_webshop
def test_the_small_set_as_cleaned_here(terminal: Terminal, tmp_path: Path):
    code, said, _ = terminal("webshop", "load", SHARED_WEBSHOP, "--out", tmp_path / "shop.jsonl", "--json")
    found = json.loads(said)
    assert (code, found["products"], found["human_goals"], found["synthetic_goals"]) == (0, 1_000, 13, 6_910)
    assert load(tmp_path / "shop.jsonl") == shared_catalogue()
