"""How soon a page of `mem1 bench` shows its first figure in Chromium, and how large it is.

    python benchmarks/bench_page.py                          5,000 tasks under two memories
    python benchmarks/bench_page.py --tasks 20000 --memories full notes masked

Prints a Markdown table: medians over the reloads, in milliseconds since the page was requested. Needs playwright, and
Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from machine import commit, hardware

from mem1.bench.page import bench_page
from mem1.bench.scores import sides_of
from mem1.pages.page import write_page

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from bench_results import invented

TIMES = {"firstFigureMs": "first figure", "figuresMs": "all figures", "viewerMs": "list of attempts"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=5000)
    parser.add_argument("--memories", nargs="+", default=["full", "notes"])
    parser.add_argument("--reloads", type=int, default=5)
    given = parser.parse_args()
    print(f"{hardware()}, commit {commit()}; {given.tasks:,} tasks, {len(given.memories)} memories\n")
    sides = sides_of(invented(given.tasks, given.memories))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.html"
        start = time.perf_counter()
        write_page(path, bench_page(sides, title="page"))
        written = time.perf_counter() - start
        size = path.stat().st_size / 1e6
        found = _times(path, given.reloads)
    print(f"| written in | size | first paint | {' | '.join(TIMES.values())} |")
    print(f"|{'--:|' * (3 + len(TIMES))}")
    print(f"| {written:.1f} s | {size:.2f} MB | {' | '.join(f'{statistics.median(of):.0f} ms' for of in found)} |")


def _times(path: Path, reloads: int) -> list[list[float]]:
    """First paint and `TIMES`, each for every reload."""
    from playwright.sync_api import sync_playwright

    found: list[list[float]] = [[] for _ in range(1 + len(TIMES))]
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
        )
        page = browser.new_page()
        for _ in range(reloads):
            page.goto(path.as_uri())
            page.wait_for_selector("html[data-figures-ms]", state="attached")
            painted = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            shown = page.evaluate("({...document.documentElement.dataset})")
            for times, value in zip(found, [painted, *(float(shown[name]) for name in TIMES)], strict=True):
                times.append(value)
        browser.close()
    return found


if __name__ == "__main__":
    main()
