"""Settings and fixtures of all tests."""

from __future__ import annotations

import functools
import gc
import logging
import os
import pkgutil
import shutil
import signal
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import own_folders

own_folders.move_in(str(Path(__file__).parents[1]))  # before anything asks where the home is

import pytest  # noqa: E402
import typer.testing  # noqa: E402
from hypothesis import settings  # noqa: E402
from sites import Site, site  # noqa: E402

# how long an example takes says how busy the machine is, not whether the code is right
settings.register_profile("mem1", deadline=None)
settings.load_profile("mem1")

# each call of a runner would make the parsers of all commands again, as long as most commands take to run
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]
# likewise the certificates of all authorities for each client, though nothing here leaves the machine
ssl.create_default_context = functools.cache(ssl.create_default_context)
# no test can see a power cut, and thousands of files wait 5 ms each for the disk
os.fsync = lambda file: None


def pytest_configure(config: pytest.Config) -> None:
    """The tests compute on the CPU of every machine, but for those that are marked `gpu` and asked for."""
    if "not gpu" in str(config.getoption("markexpr")):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    if own_folders.written_elsewhere() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if found := own_folders.written_elsewhere():
        terminalreporter.section("written outside the folders of the tests", red=True)
        for line in found:
            terminalreporter.line(line)


TOGETHER = {
    "training/test_distributed.py": "processes",
    "training/test_elastic.py": "processes",
    "training/test_peak_memory.py": "processes",
    "training/test_train.py": "processes",
    "training/test_asynchronous.py": "processes",
    "training/test_invariance.py": "processes",
    "engines/test_local.py": "processes",
    "engines/test_rows.py": "processes",
    "engines/test_workers.py": "processes",
    "training/test_adapters.py": "processes",
    "cli/test_index.py": "sentence encoder",
    "retrieval/test_encoders.py": "sentence encoder",
}
"""Files that share what takes long to start or to load."""
SLOWEST = (
    *TOGETHER,
    "retrieval/test_bm25.py",
    "training/test_update.py",
    "engines/test_device.py",
    "house/test_mutants.py",
    "planning/test_preflight.py",
    "house/test_other_device.py",
    "cli/test_report_run_verify.py",
    "training/test_verify.py",
    "training/test_weight_sync.py",
    "retrieval/test_documents.py",
)
"""They come first, so that all workers are done at about the same time."""


def _file(nodeid: str) -> str:
    """tests/packing/test_tree.py::test_x  ->  packing/test_tree.py"""
    return nodeid.partition("::")[0].removeprefix("tests/")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(SLOWEST)}
    for item in items:
        if item.get_closest_marker("slow") or item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.timeout(0))
    items.sort(key=lambda item: order.get(_file(item.nodeid), len(order)))


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly:
        gc.freeze()  # each full collection would look at torch and at all tests again, for a third of a second


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The tests of a file stay on one worker, and so what its fixtures hold is made once."""
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = _file(nodeid)
            return TOGETHER.get(file, file)

    config.option.loadscopereorder = False  # by the number of tests; ours are in order
    return ByFile(config, log)


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


DEPRECATED: list[str] = []
"""What transformers has logged of calls that it will not take for long."""


class _Deprecations(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if "deprecated" in record.getMessage():
            DEPRECATED.append(record.getMessage())


logging.getLogger("transformers").addHandler(_Deprecations())


@pytest.fixture(autouse=True)
def _no_deprecated_calls() -> Iterator[None]:
    DEPRECATED.clear()
    yield
    assert DEPRECATED == []


@pytest.fixture
def default_handlers() -> Iterator[None]:
    """A test run in the background may have inherited an ignored SIGINT."""
    former = {s: signal.signal(s, signal.default_int_handler) for s in (signal.SIGINT, signal.SIGTERM)}
    yield
    for signum, handler in former.items():
        signal.signal(signum, handler)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium; the test is skipped where there is none, or no playwright."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def watched(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens a written page in which no script may fail and nothing may be asked for elsewhere."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def open_(path: Path, *, until: str, hash: str = "", **options: Any) -> Any:
        context = browser.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(90_000)  # a busy machine is not the page's fault
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: request.url.startswith(allowed) or complaints.append(request.url))
        allowed = (path.as_uri(), "data:,")
        page.goto(path.as_uri() + hash)
        page.wait_for_selector(f"html[{until}]", state="attached")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def _one_site() -> Iterator[Site]:
    with site() as running:
        yield running


@pytest.fixture
def local(_one_site: Site) -> Site:
    """A server on 127.0.0.1 that has no page yet and was asked for nothing."""
    _one_site.pages.clear()
    _one_site.asked.clear()
    return _one_site


@pytest.fixture(autouse=True)
def _own_sys_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plug-ins are imported from the current folder, which mem1 adds to sys.path; no other test must find them."""
    monkeypatch.setattr(sys, "path", list(sys.path))


@pytest.fixture
def ctrl_c(monkeypatch: pytest.MonkeyPatch, default_handlers: None) -> Callable[[str, int], list[int]]:
    """Ctrl-C at the n-th call of a function, whose time to finish is over at once; what comes back counts the calls."""

    def at(name: str, call: int = 1) -> list[int]:
        owner = pkgutil.resolve_name(name.rpartition(".")[0])
        called, calls = getattr(owner, name.rpartition(".")[2]), [0]

        def pressed(*given: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == call:
                signal.raise_signal(signal.SIGINT)  # raises KeyboardInterrupt where nothing waits for a border
                signal.raise_signal(signal.SIGALRM)
            return called(*given, **named)

        monkeypatch.setattr(owner, name.rpartition(".")[2], pressed)
        return calls

    monkeypatch.setattr("mem1.interrupts.GRACE_S", 3600.0)  # by the clock it never ends
    return at
