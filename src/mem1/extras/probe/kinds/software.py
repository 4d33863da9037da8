"""A software agent, whose results are those of real tools on a repository.

    assistant   run({"command": "grep -HnE '^(class|def) ' src/mem1/jsonl.py"})
    tool        src/mem1/jsonl.py:30:def read_objects(path: str | os.PathLike[str]) -> Iterator[...]:
    fact        In src/mem1/jsonl.py, read_objects begins on line ____.         30, near read_objects

git and Python run once for many files, and what a command shows is cut from that; what grep and sed would say is
read from the files themselves. Nothing is written: git takes no locks, and Python compiles without running or saving.
Results have no times of files, owners, or paths outside the repository, so that any clone gives the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from mem1.errors import UserError
from mem1.extras.probe.kinds.parts import Exchange, Scene, Split, Told, Wanted, cut_lines, dated, plain, split_of
from mem1.tasks.english.world import MONTHS

_SECONDS = 60
"""Longest time that a tool may take."""
_COMMITS, _FILES = 4_000, 1_500
"""Most commits and files that are looked at."""
_COMMITS_A_PAGE, _LINES_A_PAGE = 16, 30
_LONGEST_LINE, _MOST_LINES = 160, 3_000
"""Characters of a line, and lines; files with longer or more lines are not shown."""
_SETTINGS = ("core.quotePath=false", "core.fsmonitor=false", "log.showSignature=false", "diff.external=")
"""Of git: a repository's own configuration could name programs that git would start."""
_DEFINES = ("def ", "class ", "async def ")
_SHORTEST_NAME = 5
"""Characters of a name that tells what a number is."""
_COMPILE_ALL = """
import json, sys, traceback
shown = {}
for path in json.load(sys.stdin):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        compile(text, path, "exec")
    except Exception as error:
        shown[path] = "".join(traceback.format_exception_only(error))
json.dump(shown, sys.stdout)
"""


@dataclass(frozen=True, slots=True)
class _Checkout:
    """The raw material of a repository."""

    files: Mapping[str, Sequence[str]]
    """Path -> its lines, of text files whose lines are not too long."""
    sizes: Mapping[str, tuple[str, str]]
    """Path -> (line of ls-tree, size in bytes) of its committed form."""
    commits: Sequence[tuple[str, str, str, str, Sequence[str]]]
    """(hash, day, author, subject, lines of --stat), the latest first."""
    deletions: Sequence[tuple[str, str, Sequence[str]]]
    """(hash, subject, paths) of commits that deleted files."""
    gone: frozenset[str]
    """Paths that were deleted and do not exist."""
    errors: Mapping[str, str]
    """Path that is no Python -> what Python says of it."""


def make_software(wanted: Wanted) -> Scene:
    """See `KINDS`. Raises UserError where the repository is no checkout, or git is missing."""
    settings = wanted.settings
    pages = _pages_of(settings.repository.resolve(), settings.result_words, wanted.split)
    if not pages:
        raise UserError(f"{settings.repository} has too few files and commits for transcripts of software")
    return Scene(
        system="You are a software engineer with a shell, in a checkout of a repository. You only read.",
        task="Get to know this repository: its history, its files, what they define and what is broken. Later I will "
        "ask for commits, paths, lines and sizes, and for all that we agree on along the way.",
        note="# note: {}",
        exchanges=_exchanges(wanted, pages),
    )


@lru_cache(maxsize=8)
def _pages_of(repository: Path, words: int, split: Split) -> Sequence[Exchange]:
    """The pages of a split, with those facts that are of the split too: others may tell of the same file or commit."""
    found: list[Exchange] = []
    for page in _pages(_gathered(repository), words):
        if split_of(page.arguments["command"]) == split:
            told = tuple(told for told in page.told if split_of(told.subject or told.forms[0]) == split)
            found.append(replace(page, told=told))
    return found


def _exchanges(wanted: Wanted, pages: Sequence[Exchange]) -> Iterator[Exchange]:
    """The tools in turn, each with its pages in a new order."""
    random = wanted.random
    by_tool: defaultdict[str, list[Exchange]] = defaultdict(list)
    for page in pages:
        by_tool[page.tool].append(page)
    left: dict[str, list[Exchange]] = {tool: [] for tool in by_tool}
    while True:
        for tool in random.sample(sorted(by_tool), len(by_tool)):
            if not left[tool]:
                left[tool] = random.sample(by_tool[tool], len(by_tool[tool]))
            page = left[tool].pop()
            yield Exchange("run", page.arguments, page.result, page.told)


def _pages(checkout: _Checkout, words: int) -> Iterator[Exchange]:
    """All that can be shown; `tool` is the program."""
    yield from _history(checkout, words)
    yield from _listings(checkout, words)
    for path, lines in checkout.files.items():
        yield from _reading(path, lines, words)
    for path, said in checkout.errors.items():
        line = said.partition(f'File "{path}", line ')[2].partition("\n")[0]
        cloze = f"Python cannot compile {path}: it stops at line ____."
        label = f"{path} broken at line"
        told = [Told(kind="number", cloze=cloze, forms=(line,), subject=path, label=label)] if len(line) > 1 else []
        yield _page("python", f"python -m py_compile {path}", said.splitlines(), *told)


def _page(tool: str, command: str, lines: Iterable[str], *told: Told) -> Exchange:
    return Exchange(tool, {"command": command}, "\n".join(lines), told)


def _history(checkout: _Checkout, words: int) -> Iterator[Exchange]:
    for start in range(0, len(checkout.commits), _COMMITS_A_PAGE):
        part = checkout.commits[start : start + _COMMITS_A_PAGE]
        lines = cut_lines([f"{name} {day} {subject}" for name, day, _, subject, _ in part], words)
        told = [fact for name, day, _, subject, _ in part[: len(lines)] for fact in _commit(name, day, subject)]
        options = "--no-merges --format='%h %ad %s' --date=short --abbrev=10"
        command = f"git log {options} --skip={start} -n {len(lines)}"
        yield _page("git log", command, lines, *told)
    for name, day, author, subject, stat in checkout.commits:
        lines = [f"{name} {day} {author}", subject, "", *cut_lines(stat, words)]
        options = "--stat=100 --abbrev=10 --date=short --format='%h %ad %an%n%s'"
        command = f"git show {options} {name} | head -n {len(lines)}"
        _, date = _commit(name, day, subject)
        yield _page("git show", command, lines, date)
    for name, subject, paths in checkout.deletions:
        lines = [f"{name} {subject}", "", *cut_lines(paths, words)]
        folders = Counter(str(Path(path).parent) for path in paths)
        told = [
            Told(
                kind="negative",
                cloze=f"The commit {name} deleted ____; it no longer exists.",
                forms=(path,),
                label=f"{name} deleted",
            )
            for path in lines[2:]
            if path in checkout.gone and folders[str(Path(path).parent)] == 1
        ]
        command = f"git show --diff-filter=D --no-renames --name-only --format='%h %s' --abbrev=10 {name}"
        yield _page("git show -D", f"{command} | head -n {len(lines)}", lines, *told)


def _commit(name: str, day: str, subject: str) -> Iterator[Told]:
    year, month, number = day.split("-")
    days = dated(int(number), MONTHS[int(month) - 1], int(year))
    yield Told(
        kind="identifier", cloze=f'The commit "{subject}" has the hash ____.', forms=(name, name[:7]), label=subject
    )
    forms = tuple(dict.fromkeys((day, *days)))
    yield Told(
        kind="date", cloze=f'The commit {name}, "{subject}", is of ____.', forms=forms, subject=name, label=f"{name} of"
    )


def _listings(checkout: _Checkout, words: int) -> Iterator[Exchange]:
    folders: defaultdict[str, list[str]] = defaultdict(list)
    for path in checkout.sizes:
        folders[str(Path(path).parent)].append(path)
    for folder, paths in folders.items():
        listed = [checkout.sizes[path][0] for path in paths]
        shown = paths[: len(cut_lines(listed, words))]
        told = [
            Told(
                kind="number",
                cloze=f"{path} has ____ bytes.",
                forms=plain(checkout.sizes[path][1]),
                subject=path,
                label=f"{path} bytes",
            )
            for path in shown
            if len(checkout.sizes[path][1]) > 2
        ]
        command = f"git ls-tree -l --abbrev=10 HEAD {folder}/ | grep blob | head -n {len(shown)}"
        yield _page("ls", command, listed[: len(shown)], *told)
        counted = [(path, len(checkout.files[path])) for path in paths if path in checkout.files][: words // 4]
        lengths = [
            Told(
                kind="number",
                cloze=f"{path} has ____ lines.",
                forms=(str(length),),
                subject=path,
                label=f"{path} lines",
            )
            for path, length in counted
            if length > 99
        ]
        if counted:
            command = f"grep -cH '' {' '.join(path for path, _ in counted)}"
            yield _page("count", command, [f"{path}:{length}" for path, length in counted], *lengths)


def _reading(path: str, lines: Sequence[str], words: int) -> Iterator[Exchange]:
    """What grep finds in a file, and its pages."""
    found = [(number, line) for number, line in enumerate(lines, 1) if line.startswith(_DEFINES)]
    if found:
        shown = cut_lines([f"{path}:{number}:{line}" for number, line in found], words)
        told: list[Told] = []
        for number, line in found[: len(shown)]:
            name = line.partition("(")[0].partition(":")[0].split()[-1]
            cloze = f"In {path}, {name} begins on line ____."
            if len(name) >= _SHORTEST_NAME and number > 9:
                label = f"{path} {name} line"
                told.append(Told(kind="number", cloze=cloze, forms=(str(number),), subject=name, label=label))
            cloze = f"On line {number} of {path} begins ____."
            if "_" in name.strip("_"):
                label = f"{path} line {number}"
                told.append(Told(kind="name", cloze=cloze, forms=(name,), subject=path, label=label))
        yield _page("grep", f"grep -HnE -m {len(shown)} '^(class|def|async def) ' {path}", shown, *told)
    for start in range(0, len(lines), _LINES_A_PAGE):
        part = cut_lines(lines[start : start + _LINES_A_PAGE], words)
        values = [
            Told(
                kind="number",
                cloze=f"In {path}, {name} is ____.",
                forms=plain(value),
                subject=name,
                label=f"{path} {name}",
            )
            for name, _, value in (line.partition(" = ") for line in part)
            if name.isidentifier() and name.isupper() and len(name) >= _SHORTEST_NAME
            if value.isdecimal() and int(value) > 9
        ]
        if any(map(str.strip, part)):
            yield _page("sed", f"sed -n '{start + 1},{start + len(part)}p' {path}", part, *values)


@lru_cache(maxsize=4)
def _gathered(repository: Path) -> _Checkout:
    """Runs every tool once."""
    if _git(repository, "rev-parse", "--show-prefix").strip():
        raise UserError(f"{repository} is a folder within a checkout; give the checkout itself")
    listed = _git(repository, "ls-tree", "-r", "-l", "-z", "--abbrev=10", "HEAD")
    sizes: dict[str, tuple[str, str]] = {}
    for entry in filter(None, listed.split("\0")):
        about, _, path = entry.partition("\t")
        _, kind, _, size = about.split()
        if kind == "blob" and not set(path) & set(" '\"\\\n"):
            sizes[path] = entry, size
    files = {path: lines for path in list(sizes)[:_FILES] if (lines := _lines(repository / path))}
    deleting = _log(repository, "--diff-filter=D", "--no-renames", "--name-only")
    deletions = [(name, subject, paths) for name, _, _, subject, paths in deleting]
    other = [path for path in files if not path.endswith(".py")]
    python = [sys.executable, "-I", "-S", "-B", "-W", "ignore", "-c", _COMPILE_ALL]
    return _Checkout(
        files=files,
        sizes=sizes,
        commits=list(_log(repository, "--stat=100")),
        deletions=deletions,
        gone=frozenset(path for *_, paths in deletions for path in paths if not (repository / path).exists()),
        errors=json.loads(_output(repository, python, json.dumps(other))),
    )


def _lines(path: Path) -> list[str]:
    """Of a text that can be shown; else none."""
    try:
        lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError):
        return []
    fits = lines != [""] and len(lines) <= _MOST_LINES and max(map(len, lines)) <= _LONGEST_LINE
    return lines if fits else []


def _log(repository: Path, *options: str) -> Iterator[tuple[str, str, str, str, Sequence[str]]]:
    """(hash, day, author, subject, lines below) of each commit, the latest first."""
    form = ("--abbrev=10", "--date=short", "--format=%x00%h%x01%ad%x01%an%x01%s")
    text = _git(repository, "log", "--no-merges", "--no-ext-diff", "--no-textconv", *form, f"-n{_COMMITS}", *options)
    for entry in text.split("\0")[1:]:
        head, *below = entry.split("\n")
        name, day, author, subject = head.split("\x01")
        yield name, day, author, subject, [line for line in below if line.strip()]


def _git(repository: Path, *arguments: str) -> str:
    try:
        options = [part for setting in _SETTINGS for part in ("-c", setting)]
        return _output(repository, ["git", *options, *arguments])
    except (OSError, subprocess.CalledProcessError) as error:
        raise UserError(
            f"{repository} is no checkout of git with a commit, or git is missing ({error}); give the folder of a clone"
        ) from error


def _output(repository: Path, command: Sequence[str], given: str = "") -> str:
    quiet = {"GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment = {**own, **quiet, "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command,
            cwd=repository,
            env=environment,
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{command[0]} took more than {_SECONDS} s in {repository}") from error
    return done.stdout
