"""Settings and fixtures of all tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from sites import Site, site

# how long an example takes says how busy the machine is, not whether the code is right
settings.register_profile("mem1", deadline=None)
settings.load_profile("mem1")


def pytest_configure(config: pytest.Config) -> None:
    """The tests compute on the CPU of every machine, but for those that are marked `gpu` and asked for."""
    if "not gpu" in str(config.getoption("markexpr")):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


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
