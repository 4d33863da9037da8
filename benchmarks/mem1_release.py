"""Result files of MEM1's released code, scored again: every attempt counts, with mem1's scorer, on all turns.

    python benchmarks/mem1_release.py results/..._mem1.jsonl                           EM and F1, without tokens
    python benchmarks/mem1_release.py results/..._mem1.jsonl --tokenizer FOLDER        peaks too, in its tokens
    python benchmarks/mem1_release.py FILE --tokenizer FOLDER --inference normal --json

Beside them the scores of MEM1's released evaluator, which are sums over objectives, of at most ten turns:

    golds [["Mira Toll"], ["Bergen"]]      released     mem1
    "Mira Toll; Bergen"                    EM 2.0       EM 1 1
    "Mira Toll"                            EM 0.0       EM 1 0      wrong number of answers
    "The Mira Toll; Bergen"                EM 1.0       EM 1 1      articles count
    "Mira Mira; Bergen"                    F1 1.67      F1 0.5 1    sets of words, not counts

Its peak excludes the prompt, counts the state twice, and is None if "Exact_match" in the file is 0. An attempt that
failed stops that evaluator, so it has no scores. Source: MIT-MI/MEM1 at 6f22061, Mem1/inference/eval.py.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import get_args

from mem1_release_files import Inference, ReleasedAttempt, ReleasedTurn, inference_of, read_released, trajectory
from rich.console import Console

from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.evaluation.intervals import mean_interval
from mem1.evaluation.metrics import peak_tokens
from mem1.pages.table import printed
from mem1.protocol import RELEASED, blocks
from mem1.records import Ended
from mem1.scoring import Scores, score_answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Scores in the file and of the released evaluator, by their own definitions."""

    exact_match: float
    """Mean of the file's "Exact_match" over all lines: objectives where one text contains the other."""
    estimated: float
    """Mean of the file's "Model_estimated_match" over all lines."""
    em: float | None
    """The evaluator's EM, summed over objectives, mean over attempts that did not fail; None: all did."""
    f1: float | None
    """The evaluator's F1, likewise."""
    peak_tokens: float | None
    """The evaluator's peak, mean over attempts with a non-zero "Exact_match"; None: there are none, or no tokenizer."""
    peak_attempts: int
    """Attempts in that mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """The attempts at tasks of N objectives. Means are over all of them, failed ones included."""

    objectives: int
    attempts: int
    em: float
    """Exact match per objective, in [0, 1]."""
    em_low: float
    """Lower end of the 95 % interval of `em` over tasks."""
    em_high: float
    em_summed: float
    """Exact matches per task, in [0, N], as in the paper."""
    f1: float
    """F1 per objective, in [0, 1]."""
    f1_summed: float
    peak_tokens: float | None
    """Mean of the largest context + completion, in tokens, 0 for attempts that failed; None: no tokenizer was given."""
    peak_tokens_without_prompt: float | None
    endings: dict[str, int]
    """Attempts by how they ended; every value of `Ended` is a key. "tool_failed": the line holds an error alone."""
    published: Published


def rescore(
    attempts: Sequence[ReleasedAttempt], *, codec: Codec | None = None, inference: Inference | None = None
) -> list[Rescored]:
    """One entry for each number of objectives, in rising order.

    Raises ValueError for a codec without an inference type, and UserError if a failed attempt has no gold answers and
    the other lines disagree on their number.
    """
    if codec is not None and inference is None:
        raise ValueError("counting tokens needs the inference type; pass inference=...")
    sizes = {len(attempt.golds) for attempt in attempts if attempt.golds is not None}
    by_size: dict[int, list[ReleasedAttempt]] = {size: [] for size in sorted(sizes)}
    for attempt in attempts:
        if attempt.golds is None and len(sizes) != 1:
            raise UserError(
                f"{attempt.where}: a failed attempt without its gold answers, and the other lines have "
                f"{sorted(sizes) or 'no'} objectives; give a file of tasks of one size"
            )
        by_size[len(attempt.golds) if attempt.golds is not None else next(iter(sizes))].append(attempt)
    return [_rescored(size, group, codec, inference) for size, group in by_size.items()]


def _rescored(
    size: int, attempts: Sequence[ReleasedAttempt], codec: Codec | None, inference: Inference | None
) -> Rescored:
    scores = [_scores(attempt, size) for attempt in attempts]
    em, f1 = [_mean(s.em) for s in scores], [_mean(s.f1) for s in scores]
    low, high = mean_interval(em)
    peaks = without_prompt = None
    if codec is not None and inference is not None:
        tried = [trajectory(attempt, codec, inference) for attempt in attempts]
        peaks = _mean([peak_tokens(t) for t in tried])
        without_prompt = _mean([peak_tokens(t, prompt=False) for t in tried])
    return Rescored(
        objectives=size,
        attempts=len(attempts),
        em=_mean(em),
        em_low=low,
        em_high=high,
        em_summed=_mean(em) * size,
        f1=_mean(f1),
        f1_summed=_mean(f1) * size,
        peak_tokens=peaks,
        peak_tokens_without_prompt=without_prompt,
        endings={ended.value: sum(a.ended is ended for a in attempts) for ended in Ended},
        published=_published(attempts, codec, inference),
    )


def _scores(attempt: ReleasedAttempt, size: int) -> Scores:
    if attempt.golds is None:
        return Scores(em=[0.0] * size, f1=[0.0] * size)
    return score_answers(attempt.answer, attempt.golds)


def _published(attempts: Sequence[ReleasedAttempt], codec: Codec | None, inference: Inference | None) -> Published:
    scores = [released_scores(attempt) for attempt in attempts if attempt.ended is not Ended.TOOL_FAILED]
    peaks: list[float] = []
    if codec is not None:

        def count(text: str) -> int:
            return len(codec.encode_untrusted(text, RELEASED))

        found = [released_peak(a, count, appended=inference == "normal") for a in attempts if a.turns]
        peaks = [peak for peak in found if peak is not None]
    return Published(
        exact_match=_mean([attempt.exact_match for attempt in attempts]),
        estimated=_mean([attempt.estimated for attempt in attempts]),
        em=_mean([em for em, _ in scores]) if scores else None,
        f1=_mean([f1 for _, f1 in scores]) if scores else None,
        peak_tokens=_mean(peaks) if peaks else None,
        peak_attempts=len(peaks),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


TURNS = 10
"""Maximum number of turns that it reads."""
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
    answers = [*blocks(text, "answer")]
    paired = text.count("<answer>") == text.count("</answer>") and text.rfind("</answer>") > text.rfind("<answer>")
    return answers[-1].content if answers and paired else None


def _normalize(text: str) -> str:
    return " ".join(text.lower().translate(_BLANKS).split())


def _f1(answer: str, golds: Sequence[str]) -> float:
    words = set(answer.split())
    return max((_overlap(words, set(gold.split())) for gold in golds), default=0.0)


def _overlap(words: set[str], gold: set[str]) -> float:
    return 2 * len(words & gold) / (len(words) + len(gold)) if words & gold else 0.0


def show(results: Sequence[Rescored]) -> None:
    """Print a table for each number of objectives."""
    console = Console(highlight=False)
    for result in results:
        name = f"N = {result.objectives}, {result.attempts} attempts"
        console.print(printed((name, "in the file", "released\nevaluator", "mem1"), list(_lines(result))))
        console.print(" ".join(_notes(result)))


def _lines(result: Rescored) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    """(measure, in the file, by the released evaluator, by mem1); None: not given."""
    published = result.published
    interval = f"{result.em:.3f} [{result.em_low:.3f}, {result.em_high:.3f}]"
    yield "exact matches per task", _number(published.exact_match), _number(published.em), _number(result.em_summed)
    yield "F1 summed per task", None, _number(published.f1), _number(result.f1_summed)
    yield "exact match per objective", None, None, interval
    yield "F1 per objective", None, None, _number(result.f1)
    yield "judged correct by a model", _number(published.estimated), None, None
    yield "peak tokens", None, None, _tokens(result.peak_tokens)
    yield "peak without the prompt", None, _tokens(published.peak_tokens), _tokens(result.peak_tokens_without_prompt)
    failed = result.endings["tool_failed"]
    counted, peaks = str(result.attempts - failed), str(published.peak_attempts)
    yield "attempts scored", str(result.attempts), counted, str(result.attempts)
    if result.peak_tokens is not None:
        yield "attempts in the peak", None, peaks, str(result.attempts)


def _notes(result: Rescored) -> Iterator[str]:
    yield (
        "In the file: an answer counts if it contains the first gold alias or is contained in it, and the model's "
        "judgement is 1 for every attempt that did not fail. The released evaluator: no points unless answers and "
        "questions are equally many, ten turns, words as sets; peaks of attempts with a match, the state twice."
    )
    yield "mem1: every attempt, all turns, answers by position, SQuAD's normalisation."
    if result.peak_tokens is None:
        yield "Tokens are not counted: give --tokenizer FOLDER (one with a tokenizer.json)."
    else:
        yield "Both count tokens with the given tokenizer, without the chat template, which the file does not record."
    endings = ", ".join(f"{name} {count}" for name, count in result.endings.items() if count)
    yield f"Endings: {endings}."
    if result.endings["tool_failed"]:
        yield "tool_failed: the line holds only an error; the released evaluator stops at such a line."


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _tokens(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Rescores what the arguments say (None: those of the process); a mistake is one message."""
    parser = argparse.ArgumentParser(description="Score a result file of MEM1's released code again.")
    parser.add_argument("file", type=Path, help="the .jsonl that generate_rollout.py wrote")
    parser.add_argument("--tokenizer", type=Path, help="folder with a tokenizer.json, to count tokens")
    parser.add_argument(
        "--inference",
        choices=get_args(Inference),
        help="contexts in which tokens are counted; default: as the file's name ends",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    if given.tokenizer is None and given.inference is not None:
        parser.error("--inference determines the contexts in which tokens are counted; give --tokenizer FOLDER too")
    try:
        attempts = read_released(given.file)
        codec = kind = None
        if given.tokenizer is not None:
            codec = Codec.load(given.tokenizer)
            kind = given.inference or inference_of(given.file.name)
        results = rescore(attempts, codec=codec, inference=kind)
    except UserError as error:
        sys.exit(f"error: {error}")
    if given.json:
        printed = {"file": given.file.name, "inference": kind, "rows": [asdict(result) for result in results]}
        print(json.dumps(printed))
    else:
        show(results)


if __name__ == "__main__":
    main()
