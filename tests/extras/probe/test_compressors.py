"""Compressors without a model: never more tokens than allowed, in one cycle or many, and each keeps what it says."""

from __future__ import annotations

import random

import pytest
from probed import jobs, moved

from mem1.extras.probe.compressors import SIMPLE, Kept, phrases
from mem1.extras.probe.pieces import Piece, newest
from mem1.messages.bounds import estimated, oldest

PIECES = jobs(60).pieces
LONG = jobs(60, filler="The line is quiet and nothing moves there. " * 5).pieces


def compressed(name: str, pieces: tuple[Piece, ...], tokens: int, cycles: int = 1) -> Kept:
    kept, compressor = Kept(), SIMPLE[name]()
    for at in range(cycles):
        kept = compressor.compress(kept, pieces[len(pieces) * at // cycles : len(pieces) * (at + 1) // cycles], tokens)
        assert name == "full" or estimated(kept.text) <= tokens
    return kept


@pytest.mark.parametrize("name", SIMPLE)
@pytest.mark.parametrize("tokens", [30, 300, 3_000])
def test_no_more_is_kept_than_is_allowed(name: str, tokens: int):
    total = sum(piece.tokens for piece in PIECES)
    for cycles in (1, 7):
        found = compressed(name, PIECES, tokens, cycles)
        assert name == "full" or estimated(found.text) > 0.3 * min(tokens, total) or name == "without-results"


def test_hostile_texts_do_not_break_the_limit():
    rng = random.Random(0)
    alphabet = "a b\n\t.,/_-7日é😀\u2028 \n\n[x]"
    for number in range(60):
        texts = ["".join(rng.choices(alphabet, k=rng.randrange(200))) for _ in range(9)]
        pieces = tuple(
            Piece(rng.choice(("user", "said", "result")), text, at)  # type: ignore[arg-type]
            for at, text in enumerate(texts, 2)
        )
        for name in SIMPLE:
            compressed(name, pieces, 10 + number, cycles=3)


def test_what_each_keeps():
    kept = {name: compressed(name, PIECES, 400).text for name in SIMPLE}
    assert "host-1413.internal" in kept["recency"] and "host-1000.internal" not in kept["recency"]
    assert "queue_59" in kept["without-results"] and "host-1" not in kept["without-results"]
    assert "queue_59" in kept["index"] and "quiet" not in kept["index"] and "host-1413.internal" in kept["index"]
    assert kept["index"].count("host-") > 1.5 * kept["recency"].count("host-")
    assert " ... " in compressed("head-tail", LONG, 400).text and kept["textrank"].count("The host of job ") > 20
    assert all(f"host-{1000 + 7 * job}.internal" in kept["full"] for job in range(60))


def test_what_an_archive_drops_stands_behind_it():
    kept = compressed("archive", LONG, 1_000, cycles=5)
    listed = kept.text.partition("\n\n")[0].splitlines()[1:]
    assert len(listed) > 5 and len(kept.behind.splitlines()) == len(listed), "a line each"
    hosts = [f"host-{1000 + 7 * job}.internal" for job in range(60)]
    assert sum(host in kept.behind and host not in kept.text for host in hosts) > 0
    assert hosts[0] not in kept.behind, "its line has left"


def test_textrank_prefers_sentences_that_are_like_others():
    texts = ["Rivers flood the old town. Rivers flood the new town. Xylophones.", "Rivers flood every town."]
    pieces = tuple(Piece("result", text, at) for at, text in enumerate(texts, 2))
    assert "Xylophones" not in compressed("textrank", pieces, 20).text


def test_phrases_are_exact_words_and_names_behind_the_first_word():
    text = "Yesterday Anna Berg moved job_7 to /srv/eu on 3 May 2027. Nothing else, says Anna."
    assert list(phrases(text.split())) == ["Yesterday Anna Berg", "job_7", "/srv/eu", "3 May 2027", "Anna"]


def test_ends_of_texts_begin_and_end_with_words():
    text = "one two three four five six seven eight nine ten"
    for tokens in range(1, 14):
        end, begin = newest(text, tokens), oldest(text, tokens)
        assert text.endswith(end) and text.startswith(begin)
        assert estimated(end) <= tokens and estimated(begin) <= tokens
        assert set(end.split()) | set(begin.split()) <= set(text.split())
    assert newest(text, 3).split()[-1] == "ten" and oldest(text, 3).split()[0] == "one"


def test_pieces_name_the_call_of_a_result():
    first, second, *_ = moved().pieces
    assert (first.text, second.text) == (
        '[assistant] run({"job": 0})',
        "[result of run] The staging host is host-1.internal.",
    )
    assert [piece.role for piece in jobs(10).pieces[-2:]] == ["result", "user"]
