"""Filling blanks: the extractive reader, a served one, and which answers are right."""

from __future__ import annotations

import pytest

from mem1.extras.probe.readers import Extractive, is_right, served_answer
from mem1.extras.probe.transcripts import Fact

NOTES = """\
Elmwick lies on the Calther and was founded in 1871.
- Dunford: founded in 1902 by Corin Ashmont
The staging host is host-2.internal, the production host is host-9.internal.
From now on never touch dead_letters.
The staging host is host-3.internal."""
FACT = Fact(kind="date", cloze="____", forms=("3 May 2027", "May 3, 2027"), message=0, stale=("1 May 2027",))


@pytest.mark.parametrize(
    ("cloze", "answer"),
    [
        ("Elmwick was founded in ____.", "1871"),
        ("Dunford was founded in ____.", "1902"),
        ("Dunford was founded by ____.", "Corin Ashmont"),
        ("The production host is ____.", "host-9.internal"),
        ("Never touch ____.", "dead_letters"),
        ("The staging host is ____.", "host-3.internal"),
        ("Xylophones weigh ____.", ""),
    ],
)
def test_the_reader_finds_the_line_and_what_stands_at_the_blank(cloze: str, answer: str):
    assert Extractive(NOTES)(cloze) == answer


@pytest.mark.parametrize("answer", ["3 May 2027", "It is on May 3, 2027.", "3  may 2027"])
def test_right_answers(answer: str):
    assert is_right(FACT, answer)


@pytest.mark.parametrize(
    "answer", ["", "2027", "13 May 2027", "3 May 2027, not 1 May 2027", f"3 May 2027 {'and so on ' * 5}"]
)
def test_wrong_answers(answer: str):
    assert not is_right(FACT, answer)


def test_a_model_is_given_notes_and_sentence():
    asked: list[str] = []

    def write(messages: list[dict[str, str]]) -> str:
        asked.append(messages[0]["content"])
        return "1871"

    assert served_answer(write, NOTES, "Elmwick was founded in ____.") == "1871"  # type: ignore[arg-type]
    assert NOTES in asked[0] and "Elmwick was founded in ____." in asked[0]
