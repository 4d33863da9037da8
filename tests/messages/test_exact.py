"""Notes that are checked against their source: what is kept, repaired, dropped; nothing exact is ever invented."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from mem1.extras.probe.retained import Text, invented
from mem1.messages.exact import Source, calendar, quotations, verified
from mem1.messages.wholes import CUT, bare, is_exact, normal, with_commas, words
from mem1.messages.written import about

ODD = """\
1,200,300 EUR (1,800 net); 12,34,567 rupees, 17\u2019000 users, 10\u2076 rows, 3\u00bd h, -5.2 %, \u221240 degrees,
555\u20130199, Python >=3.9, ./data/x1, ~/.env/x2, s3://eu/may.tar, anna+b1@x1.org, db-primary, item 11 may be late."""
PARTS_OF_ODD = "3.9 limits-7.toml s3 s3:/ srv/eu/limits-7.toml x1.org x2 ~/.env"

SOURCE = """\
[result of read_file] Ticket OPS-1471: the limit of 1,200 calls is set in /srv/eu/limits-7.toml since 3 May 2027.
The queue dead_letters holds 48,213 messages; "do not purge it" says Anna Berg.
Host eu-7.internal, port 8443, v2.10.3."""


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


@pytest.mark.parametrize(
    "note",
    [
        "The limit is 1200, set in /srv/eu/limits-7.toml",
        "OPS-1471 is about the limit of 1,200",
        "ops-1471 came on May 3, 2027",
        "Since 2027-05-03 on eu-7.internal:",
        'Anna Berg: "do not purge it"',
        "a note without anything exact",
        "two hosts e.g. these",
        "OPS-1471's limit, 1,200 calls a day",
    ],
)
def test_what_the_source_says_is_kept(note: str):
    assert verified(note, SOURCE) == note


@pytest.mark.parametrize(
    ("note", "repaired"),
    [
        ("see `dead_leters`, now", None),
        ("see dead_leters, now", "see dead_letters, now"),
        ("in  (/srv/eu/limit-7.toml).", "in (/srv/eu/limits-7.toml)."),
        ("host eu-7.interna1", None),
    ],
)
def test_a_slip_of_the_pen_is_repaired(note: str, repaired: str | None):
    assert verified(note, SOURCE) == repaired


@pytest.mark.parametrize(
    "note",
    [
        "ticket OPS-9 is open",
        "ticket OPS-1417 is open",
        "ticket OPS-147 is open",
        "port 8444",
        "9 hosts",
        "since 4 May",
        "in June 2027",
        "on 3 Jun 2027",
        "on eu.internal",
        "see CHANGELOG.md",
        "dead_leters replaces dead_letters",
        "in /srv/us/other.toml",
        "on 4 May 2027",
        "on 2027-05-04",
        "limit 99",
        'Anna Berg: "purge it all"',
        "version v2.10.3.1.7.9",
        "it holds 48,213,000 messages",
    ],
)
def test_what_the_source_does_not_say_is_dropped(note: str):
    assert verified(note, SOURCE) is None


@pytest.mark.parametrize(
    "text", ["1,", "1'", "1-", "1\u2013", "<a", "on 3 ", "1.", "a_", "/a", "2027-05-03", "may 3 ", '"', "`", "<>"]
)
def test_long_hostile_texts_take_time_in_proportion(text: str):
    started = time.process_time()
    source = about(text * (100_000 // len(text)))
    verified('port 1 a_b /a/b 2027-05-04 may 3 "1"', source)
    assert time.process_time() - started < 10, "as anything that grows with its square would"


def test_any_notes_about_any_texts_are_read():
    rng = random.Random(0)
    parts = [
        "may",
        "3",
        "11th",
        "3rd",
        "2027",
        "0930",
        "1,200",
        "-",
        "--",
        ".5",
        "19,99",
        "1'2",
        "a_b",
        "/a/b",
        "x@y.z",
        "2027-05-03",
    ]
    parts += [
        "of",
        '"',
        "`",
        "'s",
        "(",
        "[",
        "]",
        ",",
        "\u00b4",
        "\uff15",
        "\u0663",
        "v1",
        "e-5",
        "C:\\x",
        "T10:00",
        "<",
        "é",
    ]
    for _ in range(20_000):
        note, text = (rng.choice(("", " ")).join(rng.choices(parts, k=rng.randrange(1, 7))) for _ in range(2))
        found = verified(note, text)
        assert found is None or verified(found, text) == found, (note, text)


def test_a_word_near_two_others_is_not_repaired():
    assert verified("host-3.eu", "host-1.eu and host-2.eu") is None


PIECES = {
    "1,200,300": "1,200,300",
    "(1,200": "1,200",
    "12,34,567": "12,34,567",
    "12,345,6": "12 345 6 12,345 345,6 12,345,6",
    "1.234.567,89": "1.234.567,89",
    "17\u2019000": "17\u2019000",
    "10\u2076": "10\u2076",
    "10\u207b\u2076": "10\u207b\u2076",
    "3\u00bd": "3\u00bd",
    "-5.2": "-5.2",
    "-5%": "-5 -5%",
    "\u221240": "\u221240",
    "555\u20130199": "555\u20130199",
    "1e-5": "1e-5",
    ">=3.9": "3.9 >=3.9",
    "[101,102]": "101 102 101,102",
    "10:22:01": "10 10:22 10:22:01",
    "192.168.1.17:8443": "192.168.1.17 8443 192.168.1.17:8443",
    "./data/x1": "./data ./data/x1 data/x1 x1",
    "../data/x1": "../data ../data/x1 data/x1 x1",
    "~/.env/x1": "~/.env ~/.env/x1 .env .env/x1 x1",
    "s3://eu/may.tar": "s3 s3:/ s3://eu s3://eu/may.tar eu/may.tar may.tar",
    "a+b1@x1.org": "a+b1@x1.org x1.org",
    "C:\\Users\\x1": "C:\\Users C:\\Users\\x1 Users\\x1 x1",
    "old_eu_tmp": "old_eu_tmp",
    "x.get_it(51)": "x.get_it get_it x.get_it(51 51",
    f"12{CUT}": "",
}
"""Words of a source -> what a note may say of them."""


@pytest.mark.parametrize("word", PIECES)
def test_no_piece_of_a_word_passes_for_a_word(word: str):
    source = about(f"Here it is: {word} now")
    for start, end in itertools.combinations(range(len(word) + 1), 2):
        piece = bare(with_commas(word[start:end]))
        if is_exact(piece) or piece.isdecimal():
            said = verified(f"it is: {word[start:end]}", source) is not None
            allowed = [bare(with_commas(one)) for one in PIECES[word].split()]
            assert said == (piece in allowed), piece


def test_digits_behind_spaces_are_one_number_or_several():
    for space in " \u00a0\u202f":
        source = about(f"Le montant est de 1{space}200{space}300 EUR.")
        assert verified("montant: 1 200 300 EUR", source) and not verified("montant: 200 300 EUR", source)
        assert not verified("montant: 1 200 EUR", source)
        assert bool(verified("montant: 300 EUR", source)) == (space == " ")
    assert verified("status: 200, 512 bytes", '"GET /x1" 200 512')


@pytest.mark.parametrize(
    ("note", "source"),
    [
        ("Python: <3.9", "Needs Python >=3.9 to run (3.9)."),
        ("timeout: .5 s", "The timeout is 5 s."),
        ("due: 3 May", "Item 3 may be late."),
        ("due: 3 May", "It depends on 3 may be late, by 4 may not."),
        ("due: 20 March", "The 20 march to the capital, 21 may and will."),
        ("set in: .npmrc", "It is set in .env here."),
        ("host: db-replica", "The host is db-primary."),
        ("folder: C:\\Users\\boris\\secret", "It is in C:\\Users\\anna\\work"),
        ("file: ./build/out.bin", "The file is /build/out.bin"),
        ("\u767a\u8a00\uff1a\u300c\u5927\u962a\u300d", "\u5f7c\u306f\u300c\u6771\u4eac\u300d\u3068\u8a00\u3063\u305f"),
        ("sagt: \u201aja\u2018", "Er sagt: \u201anein\u2018"),
    ],
)
def test_signs_names_and_verbs_are_no_numbers_names_and_months_of_another_kind(note: str, source: str):
    assert verified(note, about(source)) is None


@pytest.mark.parametrize(
    ("note", "source"),
    [
        ("Python: >=3.9", "Needs Python >=3.9 to run."),
        ("set in: `.env`", "It is set in .env here."),
        ("item 3 may be late", "Item 3 may be late."),
        ("due: 3 May", "due on the 3rd of May at noon, item 4 may be late"),
        ("flight: 5 May", "My flight is on 5 may with Anna."),
        ("holiday: 20 March to 25 March", "Holiday: 20 march to 25 march"),
        ("meeting: 12 May, noon", "We meet 12 may at noon, item 4 may be late."),
        ("host: db-primary", "The host is db-primary."),
        ("follow-up: call Anna", "Call Anna at db-primary."),
        ("call: 555-0199", "Call 555\u20130199 at noon."),
        ("users: 17000", "17\u2019000 users, 17 000 seats"),
        ("table of CO2", "a table of CO\u2082"),
        ("said: \u300c\u6771\u4eac\u300d", "\u5f7c\u306f\u300c\u6771\u4eac\u300d\u3068\u8a00\u3063\u305f"),
        ("log: .../eu/x1.log", "log: .../eu/x1.log"),
    ],
)
def test_what_has_signs_points_and_hyphens_of_its_own_is_kept(note: str, source: str):
    assert verified(note, about(source)) == note


@pytest.mark.parametrize("note", ["python >=3.10", "python>=3.10", "python >= 3.10"])
@pytest.mark.parametrize("source", ["Needs python>=3.10.", "Needs python >=3.10.", "Needs python >= 3.10, <4."])
def test_comparisons_are_found_with_any_spaces(note: str, source: str):
    assert verified(note, about(source)) == note
    assert verified(note.replace(">", "<"), about(source)) is None


def test_the_end_of_a_tag_is_no_comparison():
    assert verified("limit: >5", about("limit: <b>5</b>, Vec<u8>5, <td id='x'>5</td>, a->5")) is None
    assert verified("limit: >5", about("limit if a <b and c >5")) == "limit: >5"
    assert verified("p <0.05, age >18", about("p<0.05 or age > 18")) == "p <0.05, age >18"


def test_ten_thousand_hostile_notes_invent_nothing():
    """Notes with words swapped, letters changed, numbers grown, dates moved, quotation marks and signs strewn in."""
    rng = random.Random(0)
    text = f"{SOURCE}\n{ODD}"
    source = Source(text)
    flat = text.split()
    alphabet = 'abz019-_/.,:;"`\u201c\u201d \u2028\uff15\u0661é日[]()\u2019\u2076\u00bd\u2212\u00a0~+<>='
    whole = {normal(bare(with_commas(word))) for word in flat} | set(PARTS_OF_ODD.split())
    kept = 0
    for _ in range(10_000):
        note = rng.sample(flat, rng.randrange(1, 12))
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(note))
            word = note[at]
            cut = rng.randrange(len(word) + 1)
            note[at] = rng.choice(
                (
                    word[:cut] + rng.choice(alphabet) + word[cut:],
                    word[:cut] + word[cut + 1 :],
                    word[:cut],
                    word[cut:],
                    word[::-1],
                    f"{rng.randrange(10**5)}",
                    f"{rng.randrange(1, 29)} May {rng.randrange(2020, 2030)}",
                    word + rng.choice(flat),
                )
            )
        found = verified(" ".join(note), source)
        if found is not None:
            kept += 1
            exact = [word for word in words(with_commas(found)) if is_exact(word) or word.isdecimal()]
            assert whole.issuperset(map(normal, exact)), (note, found, set(map(normal, exact)) - whole)
            assert invented(Text(found), source) == (), (note, found)
            assert verified(found, source) == found, "a note that was repaired stays"
    assert kept > 3_000


def test_quotations_and_dates_are_found():
    assert list(quotations('He said "yes, \'now\'" and `x = 1`, “no” or "no”; "open')) == [
        "yes, 'now",
        "x = 1",
        "no",
        "no",
        "open",
    ]
    assert calendar("on 3 may 2027, or may 4, 2027 or 2027-05-06t10") == {
        *((2027, 5, day) for day in (3, 4, 6)),
        *((5, number) for number in (3, 4, 6, 2027)),
    }
    assert calendar("31 june or 3rd of may; jun 2026") == {(6, 31), (5, 3), (6, 2026)}
    assert calendar("may 12345, 1999 maybe 3") == set()
    assert list(words('"Yes," (he) said: — [12].')) == ["Yes", "he", "said", "—", "12"]


@pytest.mark.parametrize(
    ("note", "source"),
    [
        ("price 99 EUR", "19.99 EUR"),
        ("takes 5 hours", "1.5 hours"),
        ("version v2.10", "v2.10.3 is out"),
        ("temperature -5", "rooms 3-5"),
        ("id 8443", "77-8443-99"),
        ("read /etc/passwd", "./fixtures/etc/passwd"),
        ("delete /data/prod", "tmp/data/prod"),
        ("host bank.example.com", "bank.example.com.evil.net"),
        ("mail bob@corp.com", "not.bob@corp.com"),
        ("table users_eu", "old_users_eu_tmp"),
        ("id 101102103", '{"ids":[101,102,103]}'),
        ("limit 200", "a limit of 1,200"),
        ("due 3 May", "due 3 June 2027; you may pay earlier"),
        ("due 14 June", "3 June 2027, 14 May 2027"),
        ("due June 2026", "due June 2027, since 2026"),
        ('Anna: "purge it all', 'Anna: "do not purge it"'),
        ('Anna: \u201cpurge it all"', 'Anna: "do not purge it"'),
        ("Anna: \u201epurge it all\u201c", 'Anna: "do not purge it"'),
        ("port\u00b49999 open", "port 8443 open"),
        ("delete production_users_table", "keep production_orders_table"),
        ("in /srv/us/limits-7.toml", "in /srv/eu/limits-7.toml"),
        ("see user_id_map", "the user_ip_map"),
        ("time: 12:30:45123", "2024-05-01 12:30:45,123 ERROR"),
        ("renewal: May 2027 4711 EUR", "Renewal in May 2027, 1200 EUR"),
        ("call: May 3, 0930", "call on 3 May at 14:00"),
        ("price: 99 EUR", "19,99 EUR"),
        ("price: 19 EUR", "19,99 EUR"),
        ("limit: 5", "it is -5 below"),
        ("rate: 5", "1e-5 or .5"),
        ("sum: 200", "1'200"),
        ('answer: "no"', "It is now known"),
    ],
)
def test_a_piece_of_a_longer_word_or_another_name_is_no_evidence(note: str, source: str):
    assert verified(note, source) is None


@pytest.mark.parametrize(
    ("note", "source"),
    [
        ("INV-1 due: 2027-05-03", '{"id":"INV-1","due":"2027-05-03"}'),
        ("INV-1 due: 3 May 2027", '{"id":"INV-1","due":"3 May 2027"}'),
        ("INV-1 due: 3 May 2027", "INV-1 due=2027-05-03"),
        ("started 2027-05-03", "2027-05-03T10:22:01Z"),
        ("log of 2027-05-03", "/var/log/app-2027-05-03.log"),
        ("due 3 May 2027", "on the 3rd of May 2027"),
        ("ids 101, 102", '{"ids":[101,102]}'),
        ("limits.toml in /srv/eu", "/srv/eu/limits.toml"),
        ("host x.org", "https://x.org/a"),
        ("30 days", "a 30-day window"),
        ("see bank.example.com", "at bank.example.com. Then"),
        ("uses Vec(u8_t)", "uses Vec<u8_t>"),
        ("failed at: 12:30:45", "2024-05-01 12:30:45,123 ERROR"),
        ("deploy date: 2024-05-01", "2024-05-01,123"),
        ("port: 443", "(80,443)"),
        ("size: 640", "resize(640,480)"),
        ("limit: 1,200", "[1,200]"),
        ("calls get_user", "self.get_user(5)"),
        ("price: 19,99 EUR", "19,99 EUR"),
        ("about 30", "about 30-"),
        ("on the 11th, May 3", "on the 11th, May 3"),
        ("the 3rd of May 2027", "3rd of May 2027"),
        ("about 30", "30"),
        ("about 30", "-- 30 --"),
    ],
)
def test_what_stands_in_json_dates_paths_and_addresses_is_found(note: str, source: str):
    assert verified(note, source) == note


@pytest.mark.parametrize(
    ("source", "note", "kept"),
    [
        ("Balance after refund: -$5.00", "balance: $5.00", False),
        ("Balance after refund: -$5.00", "balance: 5.00", False),
        ("Balance after refund: -$5.00", "balance: -$5.00", True),
        ("P&L \u2212\u20ac1,200 today", "P&L: \u20ac1,200", False),
        ("costs (-\xa340)", "costs: \xa340", False),
        ("costs - $40", "costs: $40", True),
    ],
)
def test_an_amount_of_money_keeps_its_minus(source: str, note: str, kept: bool):
    assert (verified(note, source) == note) == kept
