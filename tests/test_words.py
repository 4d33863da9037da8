# ruff: noqa: RUF001  (letters that look alike)
"""The words of a text in any script, and what BM25 finds by them."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tongues import TONGUES, people

from mem1.memory.recall import WordIndex
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.words import words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The cats, asleep", ["the", "cats", "asleep"]),
        ("Norway's vitamin C", ["norway", "vitamin", "c"]),
        ("O\u2019Brien doesn't", ["obrien", "brien", "doesnt", "doesn"]),
        ("U.S.A. AT&T", ["usa", "att", "at"]),
        ("____ ... -- ?!", []),
        ("C# C++ F#, Disney+", ["c#", "c++", "f#", "disney+", "disney"]),
        ("(.NET) end. Next...", [".net", "net", "end", "next"]),
        ("node.js", ["nodejs", "node", "js"]),
        ("v3.11.2", ["v3.11.2", "3.11.2", "3.11", "11"]),
        ("1,234,567 3,5 1'000", ["1234567", "234", "567", "3.5", "1000", "000"]),
        ("getUserName", ["getusername", "get", "user", "name"]),
        ("get_user-name", ["getusername", "get", "user", "name"]),
        ("HTTPServer B2B", ["httpserver", "http", "server", "b2b"]),
        ("std::vector", ["std/vector", "std", "vector"]),
        ("src/a.py", ["src/apy", "src", "apy", "py"]),
        ("ann.lee@x.org", ["annlee/xorg", "annlee", "ann", "lee", "xorg", "org"]),
        ("Zürich Łódź", ["zürich", "zurich", "łódź", "lodz"]),
        ("Straße ＡＢＣ ﬁne m²", ["strasse", "abc", "fine", "m2"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("Ёлка", ["ёлка", "елка"]),
        ("كِتَاب كتـاب", ["كِتَاب", "كتاب", "كتاب"]),
        ("שָׁלוֹם", ["שָׁלוֹם", "שלום"]),
        ("می\u200cخواهم ٢٠٢٤ २०२४", ["میخواهم", "2024", "2024"]),
        ("東京都。水", ["東京", "京都", "東", "京", "都", "水"]),
        ("C++入門 3月", ["c++", "入門", "入", "門", "3", "月"]),
        ("マリー・キュリー", ["マリ", "リー", "マ", "リ", "ー", "キュ", "ュリ", "リー", "キ", "ュ", "リ", "ー"]),
        ("서울은", ["서울", "울은", "서", "울", "은"]),
        ("ก่อน", ["ก่อน", "ก่อ", "อน", "ก่", "อ", "น"]),
    ],
)
def test_the_words_of_a_text(text: str, words: list[str]):
    assert words_of(text) == [unicodedata.normalize("NFKC", word) for word in words]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        *(("東京都", ["東京", "京都"]), ("水", ["水"]), ("犬は", ["犬は", "犬"])),
        *(("กมลา", ["กมล", "มลา"]), ("กม", ["กม"]), ("a C#", ["a", "c#"])),
    ],
)
def test_a_query_takes_the_longest_of_scripts_without_blanks(query: str, words: list[str]):
    assert words_of(query, asked=True) == words


@settings(max_examples=50)
@given(st.text(max_size=20), st.sampled_from(["NFC", "NFD"]))
def test_no_text_fails_and_what_is_asked_is_among_what_is_found(text: str, form: str):
    assert set(words_of(text, asked=True)) <= set(words_of(text))
    plain = unicodedata.normalize("NFC", "".join(c for c in text if c.isalpha() and "À" <= c <= "ɏ"))
    assert words_of(unicodedata.normalize(form, plain)) == words_of(plain)


FACTS = {
    "c": "The language C was written for Unix.",
    "c#": "The language C# was written for Windows.",
    "c++": "The language C++ was written for Unix.",
    "f#": "The language F# was written for Windows.",
    "net": "The platform .NET runs on Windows.",
    "fish": "The fishing net is on the platform.",
    "node": "The server node.js runs on Unix.",
    "3.11.2": "Version 3.11.2 runs on Unix.",
    "3.11.7": "Version 3.11.7 runs on Unix.",
    "3.12": "Version 3.12 runs on Unix.",
    "mail": "Write to ann.lee@example.com about Unix.",
    "mail2": "Write to ann.low@example.com about Unix.",
    "camel": "Call getUserName for Windows.",
    "path": "The file src/mem1/words.py is for Unix.",
    "money": "It cost 1,234,567 crowns in Windows.",
    "cafe": "A Cafe\u0301 in Orle\u0301ans for Unix.",
    "obrien": "Mr O’Brien wrote for Windows.",
    "hindi": "हिन्दी भारत की भाषा है",
    "russian": "Ёлка стоит в Москве",
    "arabic": "القَاهِرَة مدينة كبيرة",
    "hebrew": "ירושלים עיר גדולה",
    "water": "水は透明である。",
}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        *(("C", "c"), ("C#", "c#"), ("c++", "c++"), ("F#?", "f#"), (".NET", "net"), ("NodeJS", "node")),
        *(("3.11.2", "3.11.2"), ("v3.11.7", "3.11.7"), ("ann.low@example.com", "mail2"), ("Ann Lee", "mail")),
        *(("get_user_name", "camel"), ("user name", "camel"), ("words.py", "path"), ("src\\mem1\\words.py", "path")),
        *(("1234567", "money"), ("café", "cafe"), ("Orleans", "cafe"), ("OBrien", "obrien"), ("o'brien", "obrien")),
        *(("भाषा", "hindi"), ("елка", "russian"), ("القاهرة", "arabic"), ("ירושלים", "hebrew"), ("水", "water")),
    ],
)
def test_the_right_passage_comes_first(query: str, found: str):
    index = BM25.build([Passage(name, "", text) for name, text in FACTS.items()])
    assert index.search([query], 1)[0][0][0].id == found


@pytest.mark.parametrize("language", TONGUES)
def test_passages_of_scripts_without_blanks_are_found_among_such_as_share_most_words(language: str):
    made = people(language)
    assert len({passage.title for passage, _ in made}) == len(made) == 200
    results = BM25.build([passage for passage, _ in made]).search([question for _, question in made], 1)
    first = [found[0][0].id == passage.id for found, (passage, _) in zip(results, made, strict=True)]
    assert sum(first) / len(first) >= 0.9


def test_a_memory_recalls_what_was_said_in_chinese():
    scores = WordIndex(["王建国是画家", "李秀英是医生", "Ann"]).scores("李秀英的职业")
    assert scores[1] > scores[0] == scores[2] == 0
