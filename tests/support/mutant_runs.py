"""Run tests on one-line mutants of the package, in about a second each.

One process imports what the tests need and forks for each mutant. In the child the functions of the mutated file get
the code of its mutant, wherever they were imported to; where a line stands outside every function (a default, a
constant), the child imports a copy of the package instead. The test that caught the last mutant of a file runs first.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import resource
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
PACKAGE = TESTS.parent / "src" / "mem1"
LIMIT_S = 400
"""CPU seconds for the tests of one mutant; one that runs on for ever is caught."""


@dataclass(frozen=True, slots=True)
class LineMutant:
    """`before`, which stands once in the file, becomes `after`."""

    file: str
    """Under src/mem1."""
    before: str
    after: str
    tests: tuple[str, ...]
    """Files of tests/, or tests of them, of which one must fail; run in this order."""

    @property
    def path(self) -> Path:
        return PACKAGE / self.file

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def mutated(self) -> str:
        return self.text.replace(self.before, self.after)


@dataclass
class Runner:
    caught_by: dict[str, Counter[str]] = field(default_factory=dict)
    """Per file, the tests that caught its mutants, and how many."""

    def run(self, mutants: Sequence[LineMutant]) -> Iterator[tuple[LineMutant, str, float]]:
        """Each with the test that caught it, "" where none did, and the CPU seconds of that."""
        _warm(sorted({name for m in mutants for name in m.tests}))
        for mutant in mutants:
            found, seconds = self._caught(mutant)
            if found:
                self.caught_by.setdefault(mutant.file, Counter())[found] += 1
            yield mutant, found, seconds

    def _caught(self, mutant: LineMutant) -> tuple[str, float]:
        reader, writer = os.pipe()
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            if child == 0:
                os.close(reader)
                self._test(mutant, Path(folder), writer)
            os.close(writer)
            with open(reader, encoding="utf-8") as pipe:
                said = pipe.read()
            _, status, used = os.wait4(child, 0)
        seconds = used.ru_utime + used.ru_stime
        if said:
            return json.loads(said), seconds
        if os.WIFSIGNALED(status):
            return f"signal {os.WTERMSIG(status)}", seconds
        raise SystemExit(f"no test ran on {mutant.after.strip()!r} of {mutant.file}")

    def _test(self, mutant: LineMutant, folder: Path, writer: int) -> None:
        """In the child: never returns."""
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
            _silence()
            if not _patch(mutant):
                _import_a_copy(mutant, folder)
            first = _First(self.caught_by.get(mutant.file, Counter()))
            code = _pytest("-x", *(str(TESTS / name) for name in mutant.tests), plugins=[first])
            if code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
                os.write(writer, json.dumps(first.failed).encode())
        finally:
            os._exit(0)


class _First:
    """Runs the tests that have caught most first; which one failed."""

    def __init__(self, caught_by: Counter[str]) -> None:
        self.caught_by, self.failed = caught_by, ""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items.sort(key=lambda item: -self.caught_by[item.nodeid])

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def _pytest(*args: str, plugins: Sequence[Any] = ()) -> int:
    return pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", *args], plugins=list(plugins))


def _warm(names: Sequence[str]) -> None:
    """Import what these tests import. Exits where they do not."""
    from transformers import LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM  # noqa: F401

    shown = os.dup(1)
    _silence()
    code = _pytest("--collect-only", *(str(TESTS / name) for name in names))
    os.dup2(shown, 1)
    import mem1

    if code or Path(mem1.__file__).parent != PACKAGE:
        raise SystemExit(f"the tests must be found, and import {PACKAGE}: set PYTHONPATH to {PACKAGE.parent}")


def _silence() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _patch(mutant: LineMutant) -> bool:
    """Give the functions of the file the mutant's code; False where nothing else than functions' code changes it."""
    path = str(mutant.path)
    before, after = (dict(_codes(compile(text, path, "exec"))) for text in (mutant.text, mutant.mutated))
    if _outside_functions(mutant.text) != _outside_functions(mutant.mutated) or before.keys() != after.keys():
        return False
    new = {code: after[name] for name, code in before.items()}
    changed = False
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename == path and thing.__code__ in new:
            code = new[thing.__code__]
            if len(code.co_freevars) != len(thing.__code__.co_freevars):
                return False
            changed = changed or code != thing.__code__
            thing.__code__ = code
    return changed


def _codes(code: CodeType, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], CodeType]]:
    """All code within, by the names that lead to it."""
    seen: Counter[str] = Counter()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            name = (*path, inner.co_name, seen[inner.co_name])
            seen[inner.co_name] += 1
            yield name, inner
            yield from _codes(inner, name)


def _outside_functions(text: str) -> str:
    """The module without the bodies of its functions."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [ast.Pass()]
    return ast.dump(tree)


def _import_a_copy(mutant: LineMutant, folder: Path) -> None:
    """From here on the package is a copy of it with the mutant's line."""
    shutil.copytree(PACKAGE, folder / "mem1")
    (folder / "mem1" / mutant.file).write_text(mutant.mutated, encoding="utf-8")
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == "mem1" or str(getattr(module, "__file__", "")).startswith(str(TESTS)):
            del sys.modules[name]
    sys.path.insert(0, str(folder))
    os.environ["PYTHONPATH"] = str(folder)
