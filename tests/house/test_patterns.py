"""Every regular expression that sees text of models, tools, servers or users takes time linear in it, whatever it is.

A pattern that is new in the sources is tried like the others, unless it is listed here with the reason why no such text
reaches it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from patterns import METHODS, Repeats, Use, cpu_seconds, repeats_against, run, slowness, uses

from mem1.engines.codec import _one_of
from mem1.messages import fold
from mem1.protocol import PAPER, _tag_pattern
from mem1.sanitize import _tokens_pattern
from mem1.tasks.cloze.making import LONGEST_WORD
from mem1.tasks.english.expert import _NOTED, _PLACE
from mem1.tasks.gold_expert import _PLACE as _GOLD_PLACE

EXPERT = "an expert reads its own demonstrations: what it wrote itself, and results of a world that we make"
NAMES = "names of files and folders, of at most 255 characters"
OWN = "text that mem1 has written"
TYPED = "what is typed in a command or a recipe"
NOT_FOREIGN: Mapping[str, str] = {
    "bench.scripted._MEMORY": "messages of a bench whose tools and model are scripted",
    "cli.bench: ',(?![^()]*\\\\))'": TYPED,
    "configuration.toml._SHORT_ARRAY": OWN,
    "hub._NAME": TYPED,
    "memory.catalogue: '([^()]+?)(?:\\\\(([a-z0-9, ]*)\\\\))?'": TYPED,
    "durable._OLD": NAMES,
    "durable._PARTIAL": NAMES,
    "envs.webshop.expert": EXPERT,
    "envs.webshop.tasks: f'\\\\[{self.tags.hint.lower()}\\\\]\\\\D*(\\\\d+)turn'": EXPERT,
    "envs.webshop.thrift": EXPERT,
    "evaluation.report.rows: '(.+)-(\\\\d+)'": NAMES,
    "evaluation.report.run_folders: '[-_. ]*seed[-_ ]?\\\\d+'": NAMES,
    "retrieval.encoders: pattern": TYPED,
    "tasks.atlas.expert": EXPERT,
    "tasks.cloze.expert": EXPERT,
    "tasks.english.frames._CHOICE": OWN,
    "tasks.english.solver": EXPERT,
    "run_folder": NAMES,
    "training.runs.checkpoint": NAMES,
    "training.sampling.published": NAMES,
}
"""Pattern, or module -> why no text of strangers reaches it."""
LONGEST: Mapping[str, int] = {
    "agent.refusals._REFUSING": 2_000,  # of a refusal, of which net.exchange keeps no more
    "agent.refusals._EXTRA": 2_000,
    "agent.refusals._KNOWN": 2_000,
    "agent.refusals._MARK": 60,
    "agent.refusals._OF_THE_REPLY": 2_000,
    "agent.roles._ALTERNATE": 2_000,
    "agent.roles._NO_SYSTEM": 2_000,
    "agent.shapes._IDS": 2_000,
    "agent.shapes._FILLED": 2_000,
    "agent.shapes._TEXT": 2_000,
    "engines.servers._SECRET": 100,  # names of headers and parameters
    "words._COMPOUND": 10_000,
    "words._PART": 10_000,  # of what has no white space, as much as is cut into words at once
    "bench.chat._TOO_LONG": 2_000,  # of a refusal, of which net.exchange keeps no more
    "retrieval.web.transport._META": 4_096,
    "retrieval.web.transport._KNOWN": 40,
    "scoring._LEADING": 100_000,  # an answer, part of a completion
    "scoring: '(?<=\\\\w)[.,;:](?= |$)|(?<=[^\\\\W\\\\d_])[!?](?= |$)'": 100_000,
    "tasks.cloze.making._CORE": LONGEST_WORD,
    "tasks.cloze.making._MARKS": 100 * LONGEST_WORD,  # the words of a cloze
    "tasks.cloze.making._NAME": LONGEST_WORD,
    "tasks.english.families: f'\\\\b{letter}\\\\s?-?\\\\s?{number}\\\\b'": 100_000,  # a query, part of a completion
}
"""Characters of the text that is given to a pattern; else 1 MB."""
MADE: Mapping[str, re.Pattern[str]] = {
    "engines.chat_messages: f'{mark}([0-9]{{6}})'": re.compile("0123456789abcdef([0-9]{6})"),
    "engines.codec: f'({_one_of(own) or _NOWHERE})'": re.compile(f"({_one_of(PAPER.special_tokens)})"),
    "envs.verifiers.messages: f\"\\\\s*({'|'.join(map(re.escape, sorted(names, key=len, reverse=True)))})"
    '\\\\s*\\\\(\\\\s*"': re.compile(r"\s*(search|look)\s*\(\s*"),
    "protocol: f'<(/?)({names})>'": _tag_pattern(PAPER)[0],
    "sanitize: '|'.join((_PIPED, *map(re.escape, longest_first)))": _tokens_pattern(("<|im_end|>", "[INST]", "</s>")),
    "tasks.bridge_questions: f'(?<!\\\\w){re.escape(title)}(?!\\\\w)'": re.compile(r"(?<!\w)Oslo(?!\w)"),
    "tasks.english.families: f'\\\\b{letter}\\\\s?-?\\\\s?{number}\\\\b'": re.compile(r"\bA\s?-?\s?12\b"),
    "tasks.gold_expert: _QUERY.format(tag)": re.compile("<query>([^<]*)</query>"),
    "tasks.gold_expert: _PLACE.format(re.escape(self.tags.state))": re.compile(_GOLD_PLACE.format("IS")),
    "tasks.english.expert: _NOTED.format(tags.note)": re.compile(_NOTED.format("note")),
    "tasks.english.expert: _PLACE.format(tags.state)": re.compile(_PLACE.format("IS")),
}
"""What a pattern looks like that is made in a function."""
ALL = uses()
FOREIGN = [use for use in ALL if not {use.name, re.split(r":|\._", use.name)[0]} & NOT_FOREIGN.keys()]
LIMIT_S = 0.05
"""Below it a pattern is not looked at; ten times as long is too long, linear or not, on an idle machine."""
MOST_GROWTH = 2
"""Of the time for a character from a quarter of a text to the whole of it: 1 if the time is linear, 4 if quadratic."""
SIZES = {20: None, 24: None, 30: None, 36: None, 300: 60, 1_000: 15, 3_000: 6, 10_000: 4, 30_000: 2, 10**6: None}
"""Characters of the texts -> how many of them are tried in the next size, the slowest; None: all."""


def test_every_pattern_is_known():
    names = {use.name for use in ALL}
    modules = {re.split(r":|\._", name)[0] for name in names}
    assert len(FOREIGN) > 60 and len(names) > 120
    unknown = {use.name for use in FOREIGN if use.pattern is None} - MADE.keys()
    assert not unknown, f"made in functions: give an example of each in MADE: {unknown}"
    gone = {*NOT_FOREIGN, *LONGEST, *MADE} - names - modules
    assert not gone, f"listed, but not in the sources: {gone}"


def seconds_of(pattern: re.Pattern[Any], method: str, text: Any) -> float:
    return cpu_seconds(lambda: run(pattern, method, text))


def is_slow(pattern: re.Pattern[Any], method: str, text: Any, quarter: Any, taken: float) -> bool:
    """Whether a method, which has `taken` so long for the text, always takes more than linear time, or far too long.
    What is compared is measured at the same time, so that no machine is too slow for it."""
    short = max(seconds_of(pattern, method, quarter) for _ in range(3))
    allowed = min(MOST_GROWTH * short * len(text) / max(1, len(quarter)), 10 * LIMIT_S * slowness())
    return taken > allowed and all(seconds_of(pattern, method, text) > allowed for _ in range(3))


def too_slow(pattern: re.Pattern[Any], methods: frozenset[str], longest: int = 10**6) -> str:
    """The text on which a method takes longer than it may; empty: there is none."""
    tried = repeats_against(pattern)
    of_bytes = isinstance(pattern.pattern, bytes)
    for size, most in SIZES.items():
        slowest = list[tuple[float, Repeats]]()
        for made in tried:
            text, quarter = made.text(min(size, longest)), made.text(min(size, longest) // 4)
            given, fourth = (t.encode("latin-1", "replace") if of_bytes else t for t in (text, quarter))
            for method in methods:
                taken = seconds_of(pattern, method, given)
                slowest.append((taken, made))
                if taken > LIMIT_S and is_slow(pattern, method, given, fourth, taken):
                    return f"{taken:.2f} s of {method} for {len(text):,} characters: {text[:80]!r}...{text[-20:]!r}"
        tried = list(dict.fromkeys(made for _, made in sorted(slowest, reverse=True)))[:most]
    return ""


@pytest.mark.parametrize("use", FOREIGN, ids=lambda use: use.name)
def test_no_text_makes_a_pattern_slow(use: Use):
    pattern = use.pattern or MADE[use.name]
    methods = use.methods if use.methods < set(METHODS) else frozenset(("match", "finditer"))
    assert not too_slow(pattern, methods, LONGEST.get(use.name, 10**6))


@pytest.mark.parametrize("pattern", ["<note>(.*?)</note>", r"\s+$", "(a|aa)+b", r"(\w+), (\w+)", "```(.*?)\\s*```"])
def test_the_texts_find_what_is_slow(pattern: str):
    assert too_slow(re.compile(pattern, re.DOTALL), frozenset(("search",)), 100_000)


def test_notes_that_are_not_closed_do_not_slow_a_fold():
    """Of a model that loops; a regular expression took 25 minutes for 1 MB."""
    looped = "<note>" * 160_000
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": looped, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "found"},
        {"role": "assistant", "content": "<note> kept </note>" + looped},
        {"role": "user", "content": "on"},
    ]
    assert cpu_seconds(lambda: fold(messages, "notes")) < 20 * LIMIT_S * slowness()
