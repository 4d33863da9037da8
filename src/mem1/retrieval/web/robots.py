"""What a robots.txt allows (RFC 9309): the groups of our agent, of their rules the longest that matches, `*` and `$`.

rules = read_rules("User-agent: *\\nDisallow: /a/\\nAllow: /a/*.html$", agent="mem1")
rules.allow("/a/b.html"), rules.allow("/a/b.html?c"), rules.allow("/b")     ->  True, False, True
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

_LINE_END = re.compile(r"\r\n|\r|\n")
_AGENT = re.compile(r"[\w-]+|\*")
_ESCAPE = re.compile(r"%[0-9a-fA-F]{2}")
_UNRESERVED = re.compile(r"[\w.~-]", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules for one agent."""

    rules: tuple[tuple[str, bool], ...] = ()
    """(pattern of paths, whether they are allowed); what no pattern matches is allowed."""

    def allow(self, target: str) -> bool:
        """Whether a path with its query may be requested: the longest pattern decides, of two the one that allows."""
        path = _spelt(target)
        matching = [(len(pattern), allowed) for pattern, allowed in self.rules if _matches(pattern, path)]
        return max(matching, default=(0, True))[1]


NOTHING = Rules((("/", False),))
"""Rules that allow nothing."""


def read_rules(text: str, *, agent: str) -> Rules:
    """The rules of all groups that name `agent`, in lower case, else of those of `*`; other lines mean nothing."""
    groups: dict[str, list[tuple[str, bool]]] = {}
    """Rules of `agent` and of `*`, where there are such groups."""
    named: set[str] = set()
    """Which of them the group is for that is being read."""
    begun = False
    for line in _LINE_END.split(text.removeprefix("\ufeff")):
        key, _, value = (part.strip() for part in line.partition("#")[0].partition(":"))
        match key.lower():
            case "user-agent":
                found = _AGENT.match(value)
                name = found[0].lower() if found else ""
                named = (set() if begun else named) | ({name} & {agent, "*"})
                groups |= {name: [] for name in named - groups.keys()}
                begun = False
            case "allow" | "disallow":
                begun = True
                if named and value:
                    rule = _spelt(value), key.lower() == "allow"
                    for name in named:
                        groups[name].append(rule)
            case _:
                pass
    return Rules(tuple(groups.get(agent, groups.get("*", ()))))


def _spelt(path: str) -> str:
    """A path or pattern as they are compared: unreserved characters plain, escapes of others in capitals."""

    def plain(escape: re.Match[str]) -> str:
        character = chr(int(escape[0][1:], 16))
        return character if _UNRESERVED.fullmatch(character) else escape[0].upper()

    return _ESCAPE.sub(plain, quote(path, safe="%/:=&?~+!$,;'@()*[]-._#", errors="replace"))


def _matches(pattern: str, path: str) -> bool:
    """Whether the pattern, where `*` is any text and a last `$` the end, matches the beginning of the path."""
    first, *others = (pattern[:-1] if pattern.endswith("$") else f"{pattern}*").split("*")
    if not others:
        return path == first
    if not path.startswith(first):
        return False
    *middle, last = others
    at = len(first)
    for part in middle:
        found = path.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return path.endswith(last) and at + len(last) <= len(path)
