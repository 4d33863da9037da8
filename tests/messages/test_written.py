"""What a budget leaves of notes, and what a writer sees of its own."""

from __future__ import annotations

import random

import pytest

from mem1.memory.notes import read_note
from mem1.memory.notes import standing as standing_in_turns
from mem1.messages.written import WrittenNote, about, checked, kept_of, sight, standing, within
from mem1.records import Turn


def notes(*lines: str) -> list[WrittenNote]:
    return [WrittenNote(line) for line in lines]


@pytest.mark.parametrize(
    ("written", "left"),
    [
        (["limit: 3", "port: 8", "Limit: 4"], ["port: 8", "Limit: 4"]),
        (["limit: 3 !", "limit: 4"], ["limit: 4 !"]),
        (["limit: 3", "limit:"], []),
        (["limit: 3 !", "limit:"], ["limit: 3 !"]),
        (["limit: 3 !", "limit: !"], []),
        (["rule: never delete !", "rule: stay below 300 !"], ["rule: never delete !", "rule: stay below 300 !"]),
        (["Error: port 8443 is taken", "Error: disk is full"], ["Error: port 8443 is taken", "Error: disk is full"]),
        (
            ["constraint: never delete !", "constraint: be brief"],
            ["constraint: never delete !", "constraint: be brief"],
        ),
        (["Rules: never delete !", "Rules: be brief"], ["Rules: never delete !", "Rules: be brief"]),
        (["ticket: OPS-1 open", "ticket: OPS-2 closed"], ["ticket: OPS-1 open", "ticket: OPS-2 closed"]),
        (["user prefers: tea", "User prefers: no sugar"], ["user prefers: tea", "User prefers: no sugar"]),
        (["Q3 budget: 120 kEUR", "Q3 headcount: 14"], ["Q3 budget: 120 kEUR", "Q3 headcount: 14"]),
        (["host: eu-7 !", "host"], ["host: eu-7 !", "host"]),
        (["all is well", "port: 8", "all is well"], ["port: 8", "all is well"]),
    ],
)
def test_what_later_notes_do_to_earlier_ones(written: list[str], left: list[str]):
    assert standing(notes(*written)) == left


def test_a_long_note_does_not_push_out_all_others():
    written = notes("key: KX-77 !", "limit: 300", f"story: {'long ' * 200}!")
    assert within(written, 80) == ["key: KX-77 !", "limit: 300"]
    assert within(notes("a: 1", "b: 2", "c: 3 !"), 8, len) == ["c: 3 !"]


def test_what_is_not_kept_stays_in_sight_alone():
    found = list(checked(["port: 8443", "port: 9999", " limit:  300 !"], "the port is 8443, the limit 300", 2))
    assert [note.text for note in found] == ["port: 8443", "port: 9999", "limit: 300 !"]
    assert [note.kept for note in found] == ["port: 8443", "", "limit: 300 !"]
    assert [(note.part, note.place) for note in found] == [(2, 0), (2, 1), (2, 2)]
    assert standing(found) == ["port: 8443", "limit: 300 !"]


@pytest.mark.parametrize("line", ["x " * 300, "<think> so", "so </think> it is", "`</think>` ends", "", " !", "``` !"])
def test_lines_that_are_no_notes(line: str):
    assert kept_of(line, about(line)) == ""


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("table: users_eu", '{"stdout": "tables:\\nusers_eu\\n"}'),
        ("file: /srv/eu/limits.toml", 'cat({"command": "cd /srv\\n/srv/eu/limits.toml\\n"})'),
        ("port: 8080", '{"out": "port\\t8080"}'),
        ("path: C:\\Users\\x1", '{"path": "C:\\\\Users\\\\x1"}'),
        ("starts at 10:00:00Z", "2027-05-03T10:00:00Z"),
        ("version 1.2.3", "nginx v1.2.3"),
        ("needs 512 MB", "needs 512MB"),
    ],
)
def test_what_json_times_versions_and_units_join_is_found(line: str, text: str):
    assert kept_of(line, about(text)) == line
    assert kept_of(f"1. {line}", about(text)) == kept_of(f"- {line}", about(text)) == line


def test_a_day_is_no_number_of_a_list():
    source = about("On 12. March 2027 is the audit, 1. Maintenance")
    assert kept_of("12. March 2027: audit", source) == "12. March 2027: audit"
    assert kept_of("1. Maintenance", source) == "Maintenance"


@pytest.mark.parametrize(("line", "text"), [("uses bm25", "jax no longer starts bm25s"), ("at 1.5", "in x1.5s")])
def test_a_name_that_ends_like_a_unit_is_whole(line: str, text: str):
    assert kept_of(line, about(text)) in ("", f"{line}s"), "dropped or repaired"


def test_backticks_of_a_note_are_its_own():
    assert kept_of("run `make test` now", about("run `make test` now")) == "run `make test` now"
    assert kept_of("run ```make test``` now", about("run make test now")) == "run `make test` now"
    assert kept_of("run ``make test`` or ```", about("run make test or")) == "run make test or"
    line = 'ticks: re.compile("`{2,}")'
    assert kept_of(line, about(line)) == "", "without the one inside it, the word stands nowhere"


def test_a_writer_sees_what_a_policy_trained_under_a_notebook_sees():
    rng = random.Random(0)
    lines = [*(f"{key}: {value}" for key in ("a", "b", "Q3", "c d") for value in ("1", "2", "")), "Q3 x", "plain", "a"]
    for _ in range(300):
        turns = [tuple(rng.choices(lines, k=rng.randrange(4))) for _ in range(rng.randrange(1, 8))]
        numbered = [(text, part, place) for part, of_it in enumerate(turns) for place, text in enumerate(of_it)]
        written = [WrittenNote(*one) for one in numbered]
        older, latest = sight(reversed(written), len(turns), 4)
        assert [note.text for note in latest] == list(turns[-1])
        made = [Turn(context_ids=(1,), completion_ids=(), logprobs=(), notes=of_it) for of_it in turns]
        stands = standing_in_turns(made)
        before = [turns[at][place] for at, places in stands.items() if at < len(turns) - 1 for place in places]
        assert [note.text for note in older] == before[-4:]
        assert all(read_note(note.text).value for note in older)


@pytest.mark.parametrize(
    ("note", "source"),
    [
        ("closes at 14:00", "Open 12:30\u201314:00 on weekdays."),
        ("hours: 12:30\u201314:00", "Open 12:30\u201314:00 on weekdays."),
        ("takes 3-5 days, at most 5", "It takes 3\u20135 days."),
        ("war: 1939 to 1945", "The war (1939\u20131945) ended."),
        ("visitors: 5,000 to 10,000", "It draws 5,000\u201310,000 people."),
        ("price: $20 to $30, 10% to 15% off", "$20\u2013$30, 10%\u201315% off"),
        ("from v1.2 to v1.4, a_1 to a_9", "for v1.2\u2013v1.4, a_1\u2013a_9."),
    ],
)
def test_both_ends_of_a_range_are_words(note: str, source: str):
    assert kept_of(note, about(source)) == note


@pytest.mark.parametrize(
    ("note", "source"),
    [
        ("call: 199", "Call 555\u2013199 at noon."),
        ("ticket: 1471", "Ticket OPS\u20131471 is open."),
        ("port: 123", "Call 555\u2013123\u20134567 at noon."),
        ("room: 4567", "Call 555-123\u20134567 at noon."),
        ("temperature: -5", "It takes 3\u20135 days."),
        ("takes 35 days", "It takes 3\u20135 days."),
    ],
)
def test_what_a_dash_joins_otherwise_is_one_word(note: str, source: str):
    assert kept_of(note, about(source)) == ""
