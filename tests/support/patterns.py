"""Every regular expression of mem1's sources, and the texts on which each of them is slowest.

uses()                                   one Use per pattern: where it stands, compiled, how it is called
repeats_against(re.compile("<a>(.*?)</a>"))
                                         "<a><a><a>...", "<a>" and spaces, "</a></a>...", and so on, of any size
"""

from __future__ import annotations

import ast
import importlib
import re
import string
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import mem1

SOURCES = Path(mem1.__file__).parent
METHODS = ("match", "fullmatch", "search", "findall", "finditer", "split", "sub", "subn")
FUNCTIONS = {f"re.{how}" for how in ("compile", *METHODS)}
_MAY_USE = re.compile(rf"\bre\b|\.({'|'.join(METHODS)})\(")


@dataclass(frozen=True)
class Use:
    """A pattern, and how it is called."""

    name: str
    """messages.assembly._NOTE, or, where it has no name, agent.tools: "[a-z]+"."""
    pattern: re.Pattern[Any] | None
    """None: it is made of what its function is given."""
    methods: frozenset[str]


def uses() -> list[Use]:
    """All patterns of the sources, in the order of their modules."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCES.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in texts.items() if _MAY_USE.search(text)}
    nodes = {path: list(ast.walk(tree)) for path, tree in trees.items()}
    calls = [(path, node) for path, found in nodes.items() for node in found if _method(node)]
    return [use for path, tree in trees.items() for use in _uses_of(path, tree, nodes[path], calls)]


def _method(node: ast.AST) -> str:
    """The method of a pattern, or function of re, that a node calls; empty: it calls none."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return ""
    return node.func.attr if node.func.attr in METHODS else ""


def _uses_of(
    path: Path, tree: ast.Module, nodes: Sequence[ast.AST], calls: Sequence[tuple[Path, Any]]
) -> Iterator[Use]:
    assert not any(isinstance(node, ast.ImportFrom) and node.module == "re" for node in nodes), path
    room = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
    assigned = [node for node in nodes if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)]
    variables = {id(node.value): ast.unparse(node.targets[0]) for node in assigned}
    constants = {id(node.value) for node in assigned if node in tree.body}
    for node in nodes:
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if ast.unparse(node.func) not in FUNCTIONS:
            continue
        how, own = ast.unparse(node.func).removeprefix("re."), variables.get(id(node))
        if own is not None and how == "compile":
            seen = [(p, call) for p, call in calls if ast.unparse(call.func.value) == own]
            methods = {_method(call) for p, call in seen if p == path or not own.startswith("_")}
        else:
            methods = {_method(call) for _, call in calls if call.func.value is node} if how == "compile" else {how}
        flags = [argument for argument in node.args[1:] if ast.unparse(argument).startswith("re.")]
        flags += [word.value for word in node.keywords if word.arg == "flags"]
        name = f"{room}.{own}" if id(node) in constants else f"{room}: {ast.unparse(node.args[0])}"
        yield Use(name, _compiled(room, node.args[0], flags), frozenset(methods or set(METHODS)))


def _compiled(room: str, pattern: ast.expr, flags: Sequence[ast.expr]) -> re.Pattern[Any] | None:
    space = vars(importlib.import_module(f"mem1.{room}".removesuffix(".__init__")))
    try:
        text, *numbers = (eval(compile(ast.Expression(part), room, "eval"), space) for part in (pattern, *flags))
    except NameError:
        return None
    return re.compile(text, *numbers)


class Repeats(NamedTuple):
    """A text of any size: a beginning, a unit again and again, an end."""

    beginning: str
    unit: str
    end: str

    def text(self, size: int) -> str:
        """Of so many characters."""
        whole = self.beginning + self.unit * (size // len(self.unit))
        return whole[: size - 1] + self.end


def repeats_against(pattern: re.Pattern[Any]) -> list[Repeats]:
    """Texts on which the pattern has most to do: repeats of what it begins with, up to each place in it, and of what
    each of its parts may repeat; with and without an end that fits nothing."""
    tree = re._parser.parse(pattern.pattern, pattern.flags & ~re.DEBUG)  # type: ignore[attr-defined]
    beginnings = list(dict.fromkeys(["", *_beginnings(tree)]))
    repeated = list(dict.fromkeys(filter(None, [*_repeated(tree), *beginnings, " ", "a", "\n", "<"])))
    found = dict[str, Repeats]()
    for beginning in beginnings:
        for piece in repeated:
            for unit in (piece, beginning + piece):
                for end in ("", "\0"):
                    made = Repeats(beginning, unit, end)
                    found.setdefault(made.text(300), made)
    return list(found.values())


def _beginnings(tree: Any) -> Iterator[str]:
    """Beginnings of texts that match, and of its alternatives and groups; words of it are not cut."""
    so_far = ""
    for place, part in enumerate(tree):
        kind, value = str(part[0]), part[1]
        for inner in _inner(kind, value):
            for begun in _beginnings(inner):
                yield so_far + begun
        so_far += _sample([part])
        following = tree[place + 1] if place + 1 < len(tree) else None
        if following is None or str(following[0]) != "LITERAL" or not chr(following[1]).isalnum():
            yield so_far


def _inner(kind: str, value: Any) -> list[Any]:
    """The patterns in a part of a pattern."""
    if kind == "BRANCH":
        return list(value[1])
    if "REPEAT" in kind:
        return [value[2]]
    if kind in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
        return [value[-1]]
    return [value] if kind == "ATOMIC_GROUP" else []


def _sample(tree: Any) -> str:
    """A short text that matches."""
    made = ""
    for kind, value in tree:
        kind = str(kind)
        if kind in ("LITERAL", "NOT_LITERAL"):
            made += chr(value) if kind == "LITERAL" else _other(value)
        elif kind == "ANY":
            made += "x"
        elif kind == "IN":
            made += _members(value)[0]
        elif "REPEAT" in kind:
            made += _sample(value[2]) * max(1, min(value[0], 4))
        elif kind == "SUBPATTERN":
            made += _sample(value[-1])
        elif kind == "ATOMIC_GROUP":
            made += _sample(value)
        elif kind == "BRANCH":
            made += _sample(value[1][0])
    return made


def _repeated(tree: Any) -> Iterator[str]:
    """One character of every set, mark and kind of character, and what may be repeated."""
    for kind, value in tree:
        kind = str(kind)
        if kind == "LITERAL" and not chr(value).isalnum():
            yield chr(value)
        elif kind == "IN":
            yield from _members(value)
        elif kind in ("ANY", "NOT_LITERAL") or "REPEAT" in kind:
            yield _sample([(kind, value)] if "REPEAT" not in kind else value[2])
        for inner in _inner(kind, value):
            yield from _repeated(inner)


_TRIED = (
    string.ascii_lowercase + string.digits + string.ascii_uppercase + " \n_-.,;:<>[](){}'\"/\\|=+&#!?\0\u00e4\u4e2d"
)


def _other(code: int) -> str:
    return next(char for char in _TRIED if ord(char) != code)


def _members(members: Any) -> list[str]:
    """A letter, a digit, a space and a mark of a set, as far as they are in it."""
    whole = re._compiler.compile(_parsed(members))  # type: ignore[attr-defined]
    inside = [char for char in _TRIED if whole.fullmatch(char)]
    inside = inside or [chr(members[0][1] if str(members[0][0]) == "LITERAL" else members[0][1][0])]
    kinds: dict[str, str] = {}
    for char in inside:
        kind = "a" if char.isalpha() else "0" if char.isdigit() else " " if char.isspace() else "."
        kinds.setdefault(kind, char)
    return list(kinds.values())


def _parsed(members: Any) -> Any:
    parsed = re._parser.parse("[a]")  # type: ignore[attr-defined]
    parsed.data[0] = (re._constants.IN, members)  # type: ignore[attr-defined]
    return parsed


def run(pattern: re.Pattern[Any], method: str, text: Any) -> None:
    """Calls a method to its end."""
    empty: Any = b"" if isinstance(text, bytes) else ""
    does: Mapping[str, Callable[[], Any]] = {
        "finditer": lambda: deque(pattern.finditer(text), maxlen=0),
        "sub": lambda: pattern.sub(empty, text),
        "subn": lambda: pattern.subn(empty, text),
    }
    does.get(method, lambda: getattr(pattern, method)(text))()


def slowness() -> float:
    """How much slower this machine is now than an idle one on which limits of time were set; at least 1."""
    text = "some words " * 45_000
    return max(1.0, min(cpu_seconds(lambda: run(re.compile(r"\w+"), "finditer", text)) for _ in range(3)) / 0.010)


def cpu_seconds(work: Callable[[], Any]) -> float:
    """Of this thread."""
    began = time.thread_time()
    work()
    return time.thread_time() - began
