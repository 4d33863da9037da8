"""One self-contained HTML page: what it is about, tables, figures, and a viewer of attempts, turn by turn.

    write_page("page.html", Page(
        kind="bench",
        title="qwen",
        facts=[("seed", [("", "0")])],
        sections=[Section("Scores", [table, "The area under accuracy."]), Section("Over N", [Figures([figure])])],
        viewer=lambda room: fit(runs, room),
    ))

A figure is plain data for Plotly, {"title", "data", "layout"}, which the scripts draw in the page's own colours and
fonts; a colour such as "--line-0" is a CSS variable of the page, light or dark:

    over_sizes("accuracy", [trace], {**SHARE_AXIS, "title": {"text": "right"}})      a number over N, on a log axis
    {**line_style(3), "name": plain("notes"), "x": [1], "y": [0.9], "error_y": error_bars([(0.1, 0.05)], 3)}

Headlines and tables are HTML; figures and attempts are compressed data that the page's scripts lay out once it is
shown. Nothing is fetched from anywhere, which the page's content policy forbids, and every text is shown as text:
jinja2 escapes it, or the scripts write it as text nodes.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from mem1.durable import write_file
from mem1.errors import UserError
from mem1.pages.table import Table

Figure = dict[str, Any]
COLORS = 8
"""CSS variables --line-0 to --line-7; further lines reuse the colours with another dash."""
DASHES = ("solid", "dash", "dot", "dashdot")
SHARE_AXIS = {"range": [-0.03, 1.03]}
"""0 and 1 with room for a mark on them."""
LARGEST = 5_000_000
"""Size limit of a page in bytes; the page names the attempts left out to keep it."""
SCRIPTS = (
    "elements.js",
    "inflate.js",
    "theme.js",
    "scroll.js",
    "figures.js",
    "search.js",
    "turn.js",
    "trajectory.js",
    "list.js",
    "start.js",
)
"""The page's own scripts, joined in this order."""
_TITLE_WITHIN = 1 << 16
"""Leading characters of a page that include its title."""
_STATIC = files("mem1.pages") / "static"


@dataclass(frozen=True, slots=True)
class Headline:
    """One large number with a line of explanation."""

    value: str
    label: str


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures side by side."""

    figures: Sequence[Figure]
    kind: ClassVar[str] = "figures"


@dataclass(frozen=True, slots=True)
class Details:
    """Parts behind a summary, which opens them."""

    summary: str
    parts: Sequence[Part]
    kind: ClassVar[str] = "details"


@dataclass(frozen=True, slots=True)
class Terms:
    """Words with their meanings."""

    terms: Sequence[tuple[str, str]]
    kind: ClassVar[str] = "terms"


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with its parts."""

    heading: str
    parts: Sequence[Part]
    kind: ClassVar[str] = "section"


Part = str | Table | Figures | Details | Terms | Section
"""A remark, or what its class says; a section in a section has a smaller heading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """Attempts, which the scripts show turn by turn; `mem1.evaluation.report.viewer_data` makes the text."""

    text: str
    """The data as written by `compressed`."""
    shown: int
    """Attempts in the text with their turns."""
    of: int
    """Attempts that there are."""
    omissions: Sequence[str] = ()
    """Descriptions of what is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything on a page, from top to bottom."""

    kind: str
    """The command it belongs to: report, bench or probe."""
    title: str
    lead: str = ""
    facts: Sequence[tuple[str, Sequence[tuple[str, str]]]] = ()
    """How the numbers came about: (name, (whose, value) of each; "": the only one, or shared by all)."""
    warnings: tuple[str, Sequence[str]] = ("", ())
    """Their heading, and what must be known before reading on."""
    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    viewer: Callable[[int], Viewer] | None = None
    """The attempts that fit into a number of bytes; None: there are none."""
    closing: Sequence[Section] = ()
    """Sections below the viewer."""
    sources: Sequence[str] = ()
    """Names of the records that it was made of."""


def write_page(path: str | Path, page: Page) -> None:
    """Write the page, replacing an older one atomically.

    Raises UserError if the file cannot be written, or holds something that is no such page.
    """
    path = Path(path)
    if path.exists() and not _is_page(path):
        raise UserError(f"{path} exists and is not a page of mem1; choose another file")
    try:
        write_file(path, render(page).encode("utf-8", errors="replace"))
    except OSError as error:
        raise UserError(f"{path}: cannot write the page ({error.strerror}); choose another folder") from error


def _is_page(path: Path) -> bool:
    """Whether the file begins like a page."""
    try:
        with open(path, encoding="utf-8") as file:
            start = file.read(_TITLE_WITHIN)
    except (OSError, UnicodeDecodeError):
        return False
    head = ("<!doctype html>", 'http-equiv="Content-Security-Policy"', " · mem1</title>")
    return start.lstrip().startswith(head[0]) and all(part in start for part in head)


def render(page: Page, *, largest: int = LARGEST) -> str:
    """The page as one text of at most `largest` bytes, unless it is larger even without attempts."""
    figures = [*_figures(page.sections), *_figures(page.closing)]
    script = _script()
    values: dict[str, Any] = {
        "page": page,
        "policy": _content_policy(script, plotly()),
        "style": Markup(_static("page.css")),  # ours, not data
        "script": Markup(script),
        "plotly": base64.b64encode(_packed_plotly()).decode("ascii") if figures else "",
        "specs": compressed(figures) if figures else "",
    }

    def rendered(viewer: Viewer | None) -> str:
        return _template().render(**values, viewer=viewer)

    text = rendered(None)
    if page.viewer is None:
        return text
    room = largest - _size(text)
    text = rendered(page.viewer(room))
    while _size(text) > largest and room > 0:  # the list of omissions needs room, too
        room -= _size(text) - largest
        text = rendered(page.viewer(room))
    return text


def compressed(data: Any) -> str:
    """JSON, gzipped, in base64: harmless letters in HTML whatever the data hold, and the same for the same data."""
    text = json.dumps(data, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("ascii"), compresslevel=9, mtime=0)).decode("ascii")


def inflated(text: str) -> Any:
    """Inverse of `compressed`."""
    return json.loads(gzip.decompress(base64.b64decode(text)))


def plotly() -> str:
    """plotly.js 4.1.1, the bundle "basic" as published (npm plotly.js-basic-dist-min)."""
    return gzip.decompress(_packed_plotly()).decode("utf-8")


def _figures(parts: Sequence[Part]) -> Iterator[Figure]:
    """Those in the parts, in the order of the page."""
    for part in parts:
        if isinstance(part, Figures):
            yield from part.figures
        elif isinstance(part, (Section, Details)):
            yield from _figures(part.parts)


def _content_policy(*scripts: str) -> str:
    """The Content-Security-Policy: only these scripts, and no network."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii") for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _script() -> str:
    """The scripts as one, which share their names with each other and with nothing else."""
    joined = "\n".join(map(_static, SCRIPTS))
    return f'(() => {{\n"use strict";\n{joined}\n}})();\n'


def _size(page: str) -> int:
    return len(page.encode("utf-8", errors="replace"))


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


def _packed_plotly() -> bytes:
    return (_STATIC / "plotly-basic.min.js.gz").read_bytes()


@lru_cache(maxsize=1)
def _template() -> Any:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_static("page.html.jinja"))


def line_style(number: int) -> Figure:
    """Colour, dash and mark of the line with this number, from 0."""
    color = f"--line-{number % COLORS}"
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "line": {"color": color, "width": 2, "dash": DASHES[number // COLORS % len(DASHES)]},
        "marker": {"color": color, "size": 6},
    }


def error_bars(distances: Sequence[tuple[float, float]], number: int) -> Figure:
    """Intervals of the points of a line, as the distances of their ends from them: (below, above)."""
    how = {"type": "data", "symmetric": False, "thickness": 1.2, "width": 4, "color": f"--line-{number % COLORS}"}
    return {**how, "array": [above for _, above in distances], "arrayminus": [below for below, _ in distances]}


def over_sizes(title: str, traces: Sequence[Figure], y: Figure, of: str = "questions") -> Figure:
    """Lines over N, with a tick at each N."""
    sizes = sorted({n for trace in traces for n in trace["x"]})
    axis = {"type": "log", "tickvals": sizes, "ticktext": list(map(str, sizes)), "title": {"text": f"N, {of}"}}
    return {"title": title, "data": list(traces), "layout": {"xaxis": axis, "yaxis": y}}


def plain(name: str) -> str:
    """The name as Plotly shows it unchanged: it reads a little HTML, and the page takes "--name" for a colour."""
    name = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return f" {name}" if name.startswith("--") else name
