"""Recall: an action that is answered from what the attempt itself has seen and its memory has dropped.

    <recall> 3 </recall>                        the result of turn 3
    <recall> where Mira Toll was born </recall>     the dropped result that fits best, by BM25 over its words and query

It takes a turn, as a search does, and finds only what a search has shown before: memory on demand instead of in sight.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mem1.contexts.assembly import ContextPolicy
from mem1.protocol import without_hint
from mem1.records import Turn

NOTHING = "Nothing that was shown before and is no longer in sight fits."
_HANDLE = re.compile(r"(?:turn\s+)?(\d{1,6})", re.IGNORECASE)


def recalled(policy: ContextPolicy, turns: Sequence[Turn]) -> str:
    """The reply to the last of these turns, which asks for something that `policy` has dropped."""
    *earlier, asking = turns
    in_sight = {id(kept.turn) for kept in policy.select(turns).kept if kept.result}
    dropped = {n: turn for n, turn in enumerate(earlier, start=1) if turn.observation and id(turn) not in in_sight}
    handle = _HANDLE.fullmatch(asking.content)
    if handle is not None:
        number = int(handle[1])
        return _shown(number, dropped[number]) if number in dropped else NOTHING
    best = _best(asking.content, list(dropped.values()))
    return NOTHING if best is None else next(_shown(n, turn) for n, turn in dropped.items() if turn is best)


def _shown(number: int, turn: Turn) -> str:
    return f"Turn {number}, {turn.content}: {without_hint(turn.observation).strip()}"


def _best(query: str, turns: Sequence[Turn]) -> Turn | None:
    """The newest of the turns that fit best; None: none has a word of the query."""
    asked = _words(query)
    words = [_words(f"{turn.content} {without_hint(turn.observation).strip()}") for turn in turns]
    if not any(set(asked) & set(of_one) for of_one in words):
        return None
    import bm25s

    index = bm25s.BM25()
    index.index(words, show_progress=False)
    scores = index.get_scores(asked)
    return turns[max(range(len(turns)), key=lambda i: (scores[i], i))]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower()) or [""]
