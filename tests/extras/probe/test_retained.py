"""What a text keeps of facts: forms as whole words, near their subject; stale values; what nobody said."""

from __future__ import annotations

import pytest

from mem1.extras.probe.retained import Text, Verdict, invented, is_exact, normal, verdict
from mem1.extras.probe.transcripts import Fact

HOST = Fact(kind="correction", cloze="It is ____.", forms=("host-2.internal",), message=0, stale=("host-1.internal",))
YEAR = Fact(kind="date", cloze="Elmwick was founded in ____.", forms=("1871",), message=0, subject="Elmwick")


@pytest.mark.parametrize(
    ("fact", "text", "found"),
    [
        (HOST, "the Host-2.internal answers", Verdict.RETAINED),
        (HOST, "host-2.internal, before host-1.internal", Verdict.RETAINED),
        (HOST, "host-1.internal answers", Verdict.STALE),
        (HOST, "host-22.internal or myhost-2.internal", Verdict.LOST),
        (HOST, "(host-2.internal)", Verdict.RETAINED),
        (YEAR, "Elmwick: founded in 1871 on the Calther", Verdict.RETAINED),
        (YEAR, "Dunford was founded in 1871", Verdict.LOST),
        (YEAR, f"Elmwick {'and so on ' * 60} 1871", Verdict.LOST),
        (YEAR, f"1871 {'and so on ' * 60} Elmwick since\n1871", Verdict.RETAINED),
    ],
)
def test_a_form_counts_as_whole_words_near_its_subject(fact: Fact, text: str, found: Verdict):
    assert verdict(fact, Text(text)) is found


def test_what_stands_behind_a_handle_is_recoverable():
    assert verdict(HOST, Text("[abc] run", behind="the host is host-2.internal")) is Verdict.RECOVERABLE
    assert verdict(HOST, Text("host-1.internal [abc]", behind="host-2.internal")) is Verdict.STALE


@pytest.mark.parametrize(
    ("text", "found"),
    [("A  B\nc", "a b c"), ("1,234,567 of 12,34", "1234567 of 12,34"), ("x, 1,234.", "x, 1234."), ("ﬁ５", "fi5")],
)
def test_texts_are_compared_in_one_form(text: str, found: str):
    assert normal(text) == found


@pytest.mark.parametrize("word", ["17", "ops-17", "/srv/eu", "src/x.py", "dead_letters", "3.14"])
def test_exact_words(word: str):
    assert is_exact(word)


@pytest.mark.parametrize("word", ["7", "host", "and/", "well-known", "a_b"])
def test_other_words(word: str):
    assert not is_exact(word)


def test_invented_words_are_exact_ones_that_nobody_said():
    source = Text("Ticket OPS-17: the limit of 1,200 is in /srv/eu/limits.toml.")
    assert invented(Text("OPS-17, 1200, limits.toml and /srv/eu/limits.toml"), source) == ()
    assert invented(Text("OPS-18 and 1300 in /srv/limits.toml"), source) == ("/srv/limits.toml", "1300", "ops-18")
