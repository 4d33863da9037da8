"""What the state did with the facts: which were seen, are held, were lost; and its words against the last.

result of turn 1 has "Oslo" (gold of Q1)    state of turn 2 has it    state of turn 3 does not
->  status  "."  "h"  "l"       gained at turn 2: fact 0        lost at turn 3: fact 0

What a fact is, and when it is needed, `mem1.evaluation.fidelity` says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from mem1.evaluation.fidelity import Fact, Step, follow
from mem1.records import Turn

UNSEEN, HELD, LOST, UNWRITTEN, PAST = ".", "h", "l", "-", "p"
"""Of one fact at one turn: not needed yet; needed and in what was written; needed and not in it; needed, but nothing
was written; not needed any more, as the answer that it leads to has been shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts at one turn, by their places in the list of facts."""

    status: str
    """One of UNSEEN, HELD, LOST, UNWRITTEN, PAST for each fact."""
    gained: tuple[int, ...]
    """Those that this turn's text keeps and the last one's did not."""
    lost: tuple[int, ...]
    """Those that the last text kept, that are still needed and that are not in this one."""


def facts_by_turn(facts: Sequence[Fact], turns: Sequence[Turn]) -> list[Facts]:
    """One entry a turn. A turn that wrote neither state nor answer neither gains nor loses."""
    past: set[Fact] = set()
    held: frozenset[Fact] = frozenset()
    found: list[Facts] = []
    for step in follow(facts, turns):
        past |= set(step.needed)
        now = held if step.kept is None else step.kept
        found.append(
            Facts(
                status="".join(_status(fact, step, past) for fact in facts),
                gained=tuple(i for i, fact in enumerate(facts) if fact in now - held),
                lost=tuple(i for i, fact in enumerate(facts) if fact in held - now and fact in step.needed),
            )
        )
        held = now
    return found


def _status(fact: Fact, step: Step, past: set[Fact]) -> str:
    if fact not in step.needed:
        return PAST if fact in past else UNSEEN
    if step.kept is None:
        return UNWRITTEN
    return HELD if fact in step.kept else LOST


Change = tuple[str, str]
"""("=", words of both states), ("-", words of the last one alone) or ("+", words of the new one alone)."""


def changes(last: str, state: str) -> list[Change]:
    """How `state` came out of `last`, word by word; its "=" and "+" joined are `state`."""
    old, new = (re.findall(r"\s*\S+|\s+$", text) for text in (last, state))
    matcher = SequenceMatcher(None, [w.strip() for w in old], [w.strip() for w in new], autojunk=False)
    found: list[Change] = []
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind == "equal":
            found.append(("=", "".join(new[c:d])))
            continue
        found += [("-", "".join(old[a:b]))] if b > a else []
        found += [("+", "".join(new[c:d]))] if d > c else []
    return found
