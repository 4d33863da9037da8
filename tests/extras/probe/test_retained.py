"""What a text keeps of facts: forms as whole words, near their subject; stale values; what nobody said."""

from __future__ import annotations

import pytest

from mem1.extras.probe.retained import Text, Verdict, invented, verdict
from mem1.extras.probe.transcripts import Fact

HOST = Fact(kind="correction", cloze="It is ____.", forms=("host-2.internal",), message=0, stale=("host-1.internal",))
YEAR = Fact(kind="date", cloze="Elmwick was founded in ____.", forms=("1871",), message=0, subject="Elmwick")

LIMIT = Fact(kind="number", cloze="It holds ____.", forms=("48,213",), message=0, subject="mail queue")
PRICE = Fact(kind="number", cloze="It costs ____.", forms=("99",), message=0, subject="price")


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
        (YEAR, "Elmwick and others\n1871", Verdict.LOST),
        (YEAR, f"1871 {'and so on ' * 60} Elmwick", Verdict.RETAINED),
        (LIMIT, f"the mail queue {'and so on ' * 60} 48,213", Verdict.LOST),
        (LIMIT, "the mail queue\n\nholds 48213", Verdict.RETAINED),
        (PRICE, "the price is 99 EUR", Verdict.RETAINED),
        (PRICE, "the price is 19.99 EUR", Verdict.LOST),
        (PRICE, "the price is -99 EUR", Verdict.LOST),
    ],
)
def test_a_form_counts_as_whole_words_near_its_subject(fact: Fact, text: str, found: Verdict):
    assert verdict(fact, Text(text)) is found


def test_what_stands_behind_a_handle_is_recoverable():
    assert verdict(HOST, Text("[abc] run", behind="the host is host-2.internal")) is Verdict.RECOVERABLE
    assert verdict(HOST, Text("host-1.internal [abc]", behind="host-2.internal")) is Verdict.STALE


def test_invented_words_are_exact_ones_that_nobody_said():
    source = Text("Ticket OPS-17: the limit of 1,200 is in /srv/eu/limits.toml.")
    assert invented(Text("OPS-17, 1200, limits.toml and /srv/eu/limits.toml"), source) == ()
    day = Text("It is due on 3 May 2027.")
    assert invented(Text("due 2027-05-03"), day) == () and invented(Text("due 2027-05-04"), day) == ("2027-05-04",)
    assert invented(Text("OPS-18 and 1300 in /srv/limits.toml"), source) == ("/srv/limits.toml", "1300", "ops-18")
    assert invented(Text("audit: May 3, 2027 and May 14, 2027"), day) == ("14",)
    assert invented(Text("OPS-17's limit, OPS-18's"), source) == ("ops-18's",)


def test_a_number_ends_with_its_line():
    source = Text("It has 7 floors. It is 205 m high.")
    assert invented(Text("floors: 7\n205 m: the height"), source) == ()
    assert invented(Text("floors: 7 205 m: the height"), source) == ("205",)
