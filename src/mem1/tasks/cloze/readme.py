"""The README of a folder of clozes: statistics and sample questions.

Questions come from documents, so every character that Markdown could interpret is escaped.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from mem1.tasks.cloze.questions import BLANK, Cloze
from mem1.tasks.splits import PARTS

_MARKUP = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~&$:@^])")
_SAMPLES = 8
"""Samples per part."""
_MEANING = {
    "passages": "passages of the corpus",
    "candidates": "names and numbers in them",
    "short": "too few words around the blank",
    "odd": "a mark in the window that prompts are made of, or something too long to be a word",
    "repeated": "the answer, or a word of it, occurs in the window",
    "title": "the passage's title contains the answer",
    "same_answer": "the passage has a question with this answer",
    "over_limit": "the passage has enough questions",
    "near_duplicate": "nearly the same words as an earlier question",
    "ambiguous": "the same words, with another answer elsewhere",
    "not_found": "a search with the window does not find the passage",
    "questions": "**questions**",
}


def statistics(clozes: Sequence[Cloze], counts: Mapping[str, int]) -> dict[str, Any]:
    """Statistics of the questions, ready for JSON."""
    lengths = Counter(len(cloze.text.split()) - 1 for cloze in clozes)
    return {
        "counts": dict(counts),
        "parts": {part: sum(cloze.part == part for cloze in clozes) for part in PARTS},
        "passages": {part: len({c.passage_id for c in clozes if c.part == part}) for part in PARTS},
        "ranks": {str(rank): n for rank, n in sorted(Counter(cloze.rank for cloze in clozes).items()) if rank},
        "window_words": {str(words): n for words, n in sorted(lengths.items())},
        "different_answers": len({cloze.answer for cloze in clozes}),
        "numbers": sum(cloze.answer[0].isdigit() for cloze in clozes),
    }


def readme(clozes: Sequence[Cloze], known: Mapping[str, Any], *, corpus: str, options: Mapping[str, Any]) -> str:
    """The file's text; `known` is the result of `statistics`."""
    lines = [
        f"# Clozes of {_escaped(corpus)}",
        "",
        f"Questions made by `mem1 data cloze`: {BLANK} stands for one to four capitalised words, or a number, of a "
        "passage. A search with the whole question finds the passage. `index/` is the index that was searched.",
        "",
        "| file | questions | passages |",
        "|---|--:|--:|",
        *(f"| {part}.jsonl.gz | {known['parts'][part]:,} | {known['passages'][part]:,} |" for part in PARTS),
        "",
        f"{known['different_answers']:,} different answers; {known['numbers']:,} questions ask for a number. Place of "
        f"the passage in the search: {_listed(known['ranks'])}. Words of the window: {_listed(known['window_words'])}.",
        "",
        "| what became of the names and numbers | |",
        "|---|--:|",
        *(f"| {_MEANING[name]} | {number:,} |" for name, number in known["counts"].items()),
        "",
        f"Options: {', '.join(f'{name} {value}' for name, value in options.items())}.",
    ]
    for part in PARTS:
        samples = [cloze for cloze in clozes if cloze.part == part]
        drawn = random.Random(0).sample(samples, min(_SAMPLES, len(samples)))
        if drawn:
            lines += ["", f"## Some of {part}", "", "| question | answer | passage |", "|---|---|---|"]
            lines += [f"| {' | '.join(map(_escaped, (c.text, c.answer, c.passage_id)))} |" for c in drawn]
    return "\n".join(lines) + "\n"


def _listed(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({number:,})" for name, number in numbers.items())


def _escaped(text: str) -> str:
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
