"""The scores that MEM1's released evaluator gives an attempt, for comparison with mem1's own.

    golds [["Mira Toll"], ["Bergen"]]      released     mem1
    "Mira Toll; Bergen"                    EM 2.0       EM 1 1
    "Mira Toll"                            EM 0.0       EM 1 0      wrong number of answers
    "The Mira Toll; Bergen"                EM 1.0       EM 1 1      articles count
    "Mira Mira; Bergen"                    F1 1.67      F1 0.5 1    sets of words, not counts

Scores are sums over objectives, not means, of at most ten turns. The peak excludes the prompt, counts the state twice,
and is None if "Exact_match" in the file is 0. An attempt that failed stops that evaluator, so it has no scores.

Source: MIT-MI/MEM1 at 6f22061, Mem1/inference/eval.py.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from itertools import zip_longest

from mem1.extras.mem1_release.reader import ReleasedAttempt, ReleasedTurn

TURNS = 10
"""Maximum number of turns that it reads."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_BLANKS = str.maketrans(dict.fromkeys(string.punctuation, " "))


def released_scores(attempt: ReleasedAttempt) -> tuple[float, float]:
    """(EM, F1), both summed over the objectives; (0, 0) for a wrong number of answers."""
    answer = _answer("".join(map(_written, attempt.turns[:TURNS])))
    golds = [[_normalize(gold) for gold in aliases] for aliases in attempt.golds or ()]
    pieces = [] if answer is None else [_normalize(piece) for piece in answer.split(";")]
    if len(pieces) != len(golds):
        return 0.0, 0.0
    pairs = list(zip(pieces, golds, strict=True))
    return float(sum(piece in aliases for piece, aliases in pairs)), sum(_f1(*pair) for pair in pairs)


def released_peak(attempt: ReleasedAttempt, count: Callable[[str], int], *, appended: bool) -> int | None:
    """The evaluator's peak in tokens, by `count`; None if it leaves the attempt out of its mean.

    `appended`: the policy keeps everything, not only the last turn.
    """
    if attempt.exact_match == 0:
        return None
    turns = attempt.turns[:TURNS]
    if appended:
        peak = count("".join(map(_written, turns)))
    else:
        states = [turn.state + (turn.response or "") for turn in turns]
        kept = ["", *(state + turn.result for state, turn in zip(states, turns, strict=True))][:TURNS]
        peak = max(count(before + state) for before, state in zip_longest(kept, states, fillvalue=""))
        if peak == 0:
            return None
    return peak + max((count(memory) for memory in attempt.memories), default=0)


def _written(turn: ReleasedTurn) -> str:
    """A turn as that evaluator reads it, with the state twice, because the response contains it."""
    return turn.state + (turn.response or "") + turn.result


def _answer(transcript: str) -> str | None:
    """The last answer, in lower case; None if tags are unbalanced."""
    text = transcript.lower().rpartition("<|im_start|>assistant")[2]
    answers = _ANSWER.findall(text)
    paired = text.count("<answer>") == text.count("</answer>") and text.rfind("</answer>") > text.rfind("<answer>")
    return answers[-1].strip() if answers and paired else None


def _normalize(text: str) -> str:
    return " ".join(text.lower().translate(_BLANKS).split())


def _f1(answer: str, golds: Sequence[str]) -> float:
    words = set(answer.split())
    return max((_overlap(words, set(gold.split())) for gold in golds), default=0.0)


def _overlap(words: set[str], gold: set[str]) -> float:
    return 2 * len(words & gold) / (len(words) + len(gold)) if words & gold else 0.0
