"""`mem1 report --from-mem1 FILE`: a result file of MEM1's released code, scored again, beside what it says itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mem1.extras.mem1_release.rescore import Rescored


def rescore_file(file: Path, *, tokenizer: Path | None, inference: str | None, as_json: bool) -> None:
    """Print the scores, as tables or as one JSON object.

    Tokens are counted where `tokenizer` is a folder with a tokenizer.json. Raises UserError for a file that is not of
    that format, and for a tokenizer without a known inference type.
    """
    from mem1.engines.codec import Codec
    from mem1.errors import UserError
    from mem1.extras.mem1_release.reader import read_released
    from mem1.extras.mem1_release.rescore import rescore
    from mem1.extras.mem1_release.tokens import checked_inference, inference_of
    from mem1.training.weights.policy import policy_folder

    if tokenizer is None and inference is not None:
        raise UserError("--inference says in which contexts tokens are counted, so it goes with --tokenizer FOLDER")
    attempts = read_released(file)
    codec = kind = None
    if tokenizer is not None:
        codec = Codec.load(policy_folder(tokenizer))
        kind = inference_of(file.name) if inference is None else checked_inference(inference)
    results = rescore(attempts, codec=codec, inference=kind)
    if as_json:
        print(json.dumps({"file": file.name, "inference": kind, "rows": [asdict(result) for result in results]}))
    else:
        _print(results)


def _print(results: Sequence[Rescored]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    for result in results:
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        table.add_column(f"N = {result.objectives}, {result.attempts} attempts")
        for heading in ("in the file", "released\nevaluator", "mem1"):
            table.add_column(heading, justify="right", vertical="bottom", no_wrap=True)
        for name, *values in _lines(result):
            table.add_row(name, *("" if value is None else value for value in values))
        console.print(table)
        console.print(" ".join(_notes(result)))


def _lines(result: Rescored) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    """(what, in the file, by the released evaluator, by mem1); None: it does not say."""
    said = result.published
    interval = f"{result.em:.3f} [{result.em_low:.3f}, {result.em_high:.3f}]"
    yield "exact matches a task", _number(said.exact_match), _number(said.em), _number(result.em_summed)
    yield "F1 summed over a task", None, _number(said.f1), _number(result.f1_summed)
    yield "exact match per objective", None, None, interval
    yield "F1 per objective", None, None, _number(result.f1)
    yield "judged right by a model", _number(said.estimated), None, None
    yield "peak tokens", None, None, _tokens(result.peak_tokens)
    yield "peak without the prompt", None, _tokens(said.peak_tokens), _tokens(result.peak_tokens_without_prompt)
    failed = result.endings["tool_failed"]
    counted, peaks = str(result.attempts - failed), str(said.peak_attempts)
    yield "attempts scored", str(result.attempts), counted, str(result.attempts)
    if result.peak_tokens is not None:
        yield "attempts in the peak", None, peaks, str(result.attempts)


def _notes(result: Rescored) -> Iterator[str]:
    yield (
        "In the file: an answer counts where it holds the first gold alias or is held by it, and the model's judgement "
        "is 1 for every attempt that did not fail. The released evaluator: no point unless there are as many answers "
        "as questions, ten turns, words as sets; peaks of attempts with a match alone, the state counted twice."
    )
    yield "mem1: every attempt, all turns, answers by position, SQuAD's normalisation."
    if result.peak_tokens is None:
        yield "Tokens are not counted: give --tokenizer FOLDER (one that holds a tokenizer.json)."
    else:
        yield "Tokens of both are those of the given tokenizer, without the chat template, which the file does not say."
    endings = ", ".join(f"{name} {count}" for name, count in result.endings.items() if count)
    yield f"Endings: {endings}."
    if result.endings["tool_failed"]:
        yield "tool_failed: the line holds an error alone; the released evaluator stops at such a line."


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def _tokens(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"
