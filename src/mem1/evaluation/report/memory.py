"""What the state did with the facts: which gold answers were seen, are held, were lost; and its words against the last.

    result of turn 1 has "Oslo" (gold of Q1)    state of turn 2 has it    state of turn 3 does not
    ->  facts  "."  "h"  "l"        gained at turn 2: Q1        lost at turn 3: Q1

A gold answer is in a text if the words of one of its aliases, normalised as by the scorer, stand there in a row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from mem1.records import Question, Turn
from mem1.scoring import normalize

UNSEEN, HELD, LOST, UNWRITTEN = ".", "h", "l", "-"
"""Of one gold answer at one turn: in no result yet; seen and in the state; seen and not in it; no state was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The gold answers at one turn."""

    status: str
    """One of UNSEEN, HELD, LOST, UNWRITTEN for each question."""
    gained: tuple[int, ...]
    """Numbers of the questions (from 1) whose answer is in this state and was not held in the last one."""
    lost: tuple[int, ...]
    """Numbers of the questions whose answer was held in the last state and is not in this one."""


def facts(turns: Sequence[Turn], questions: Sequence[Question]) -> list[Facts]:
    """One entry a turn. A turn without a state neither gains nor loses."""
    aliases = [[words for answer in q.answers if (words := _words(answer)).strip()] for q in questions]
    seen = [False] * len(questions)
    held = [False] * len(questions)
    found: list[Facts] = []
    for turn in turns:
        if not turn.state:
            status = "".join(UNWRITTEN if s else UNSEEN for s in seen)
            found.append(Facts(status=status, gained=(), lost=()))
        else:
            state = _words(turn.state)
            now = [s and any(a in state for a in of) for s, of in zip(seen, aliases, strict=True)]
            found.append(
                Facts(
                    status="".join(HELD if h else LOST if s else UNSEEN for h, s in zip(now, seen, strict=True)),
                    gained=tuple(i for i, (a, b) in enumerate(zip(held, now, strict=True), start=1) if b and not a),
                    lost=tuple(i for i, (a, b) in enumerate(zip(held, now, strict=True), start=1) if a and not b),
                )
            )
            held = now
        result = _words(turn.observation)
        seen = [s or any(a in result for a in of) for s, of in zip(seen, aliases, strict=True)]
    return found


def _words(text: str) -> str:
    return f" {normalize(text)} "


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
