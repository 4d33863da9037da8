"""Pages of reports, and rows of their tables."""

from __future__ import annotations

import base64
import dataclasses
import gzip
import json
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from reports import HOSTILE, decode_words, hostile_attempt, run_of

from mem1.evaluation.metrics import Judged, summarize
from mem1.evaluation.report.page import report
from mem1.evaluation.report.rows import ReportRow, Run
from mem1.pages import page as pages
from mem1.pages.page import LARGEST

STATIC = Path(pages.__file__).parent / "static"
JUDGED = Judged(model="m", version="1", correct=0.5, judged=0.98, agreement=0.875, kappa=0.7, failures={"x": 2})


class Page(HTMLParser):
    """Elements and attributes as a browser would see them, and the texts of the scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: dict[str, str] = {}
        self.shown = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts[dict(attrs).get("id") or "page"] = ""

    def handle_data(self, data):
        if self.tags and self.lasttag == "script" and self.cdata_elem == "script":
            *_, last = self.scripts
            self.scripts[last] += data
        else:
            self.shown += data


def render(runs: Sequence[Run], *, title: str, largest: int = LARGEST) -> str:
    return pages.render(report(runs, title=title), largest=largest)


def write_page(path: Path, runs: Sequence[Run], *, title: str) -> None:
    pages.write_page(path, report(runs, title=title))


def unpacked(text: str):
    return json.loads(gzip.decompress(base64.b64decode(text)))


@pytest.fixture(scope="module")
def html() -> str:
    tried = [("base <x>", [hostile_attempt(em=0.0)]), ("trained", [hostile_attempt()])]
    run = run_of(*tried, name=f"run {HOSTILE}", decode=decode_words)
    return render([dataclasses.replace(run, facts={"note": HOSTILE})], title=f"a <run> {HOSTILE}")


@pytest.fixture(scope="module")
def page(html) -> Page:
    return Page(html)


def row(policy: str = "trained", n: int = 1, em: float | None = 1.0, **more) -> ReportRow:
    attempts = [hostile_attempt(em=em or 0.0, objectives=n)] * 3
    measured = ReportRow.of(summarize(attempts, policy=policy, context="constant", objectives=n))
    return replace(measured, **({"em": em} if em is None else {}), **more)


def seeds() -> list[ReportRow]:
    """Two seeds of one family and a run of another."""
    return [
        row(em=0.5, run="s0", family="a"),
        row(em=1.0, run="s1", family="a"),
        row(em=0.25, run="other", family="b"),
    ]
