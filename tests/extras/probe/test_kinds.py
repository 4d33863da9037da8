"""Transcripts of every kind: what their facts promise, and what the splits do not share."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest

from mem1.errors import UserError
from mem1.extras.probe.kinds import FEWEST, KINDS, Settings, Wordings, make_transcript
from mem1.extras.probe.kinds.planting import PLANTED, Planted, plant
from mem1.extras.probe.kinds.search import facts_of
from mem1.extras.probe.kinds.wordings import OVERTAKEN, SENTENCES
from mem1.extras.probe.retained import Text, retains
from mem1.extras.probe.transcripts import FACTS, Fact, Transcript, check_fact, read_transcripts
from mem1.jsonl import write_objects
from mem1.messages import check
from mem1.tasks.english import names

SPLITS = ("development", "test")
GIT = shutil.which("git")
needs_git = pytest.mark.skipif(not GIT, reason="needs git")
kinds = pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[needs_git] if kind == "software" else []) for kind in KINDS],
)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("probe")
    corpus = folder / "corpus.jsonl.gz"
    write_objects(corpus, map(passage, range(300)))
    repository = folder / "repository"
    if GIT:
        make_repository(repository)
    return Settings(exchanges=60, corpus=corpus, repository=repository)


def passage(number: int) -> dict[str, str]:
    random = Random(number)
    title = f"{random.choice(names.towns('train'))} {random.choice(names.rivers('train'))} {number}"
    founder = f"{random.choice(names.FIRST_NAMES)[0]} {random.choice(names.LAST_NAMES)}"
    text = (
        f"This bridge was opened on {random.randint(1, 28)} May {random.randint(1800, 1999)} after long talks with the "
        f"owners of the land and was built by {founder} for the sum of {random.randint(1000, 90000):,} pounds, which "
        "the towns on either side of the water paid together."
    )
    return {"id": f"p{number}", "title": title, "text": text}


def make_repository(folder: Path) -> None:
    """A repository of 22 commits, some of which delete files."""
    folder.mkdir()
    git(folder, "init", "-q")
    for number in range(10):
        for part in ("alpha", "beta"):
            path = folder / "src" / f"part_{number}" / f"{part}_{number}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            filler = "# a line of a comment that fills the file\n" * (100 + 3 * number)
            path.write_text(f"LIMIT_{part.upper()} = {3_000 + number}\n{filler}def {part}_of_{number}():\n    pass\n")
            (folder / f"{part}-{number}.md").write_text(f"word\nThe {part} is not Python.\n")
        commit(folder, f"Part {number} with its limit")
    for number in range(6):
        (folder / f"gone_{number}.txt").write_text(f"soon gone {number}\n")
        commit(folder, f"Trial {number}")
    for number in range(6):
        (folder / f"gone_{number}.txt").unlink()
        commit(folder, f"Trial {number} is over")


def commit(folder: Path, message: str) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message, "--date=2026-05-03T12:00:00")


def git(folder: Path, *arguments: str) -> str:
    own = ["-c", "user.name=Ann Reader", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *own, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


def texts(transcript: Transcript) -> list[str]:
    """Each message with the arguments of its calls."""
    return [
        " ".join((message["content"] or "", *(call["function"]["arguments"] for call in message.get("tool_calls", ()))))
        for message in transcript.messages
    ]


def near(fact: Fact, forms: tuple[str, ...], text: str) -> bool:
    return fact.subject.lower() in text.lower() and any(form.lower() in text.lower() for form in forms)


@kinds
@pytest.mark.parametrize("split", SPLITS)
def test_a_transcript_is_a_conversation_that_states_each_of_its_facts_once_it_says_so_and_not_before(
    kind: str, split: Any, settings: Settings, tmp_path: Path
):
    made = make_transcript(kind, split, 3, settings)
    check(made.messages)
    assert [message["role"] for message in made.messages[:3]] == ["system", "user", "assistant"]
    assert sum(message["role"] == "tool" for message in made.messages) == settings.exchanges
    assert 0.4 * settings.exchanges <= len(made.facts) <= 0.65 * settings.exchanges
    said = texts(made)
    for fact in made.facts:
        check_fact(fact, made.messages)
        assert near(fact, fact.forms[:1], said[fact.message]), fact
        assert not any(near(fact, fact.forms, text) for text in said[: fact.message]), fact
    write_objects(tmp_path / "made.jsonl", [made.as_dict()])
    (read,) = read_transcripts(tmp_path / "made.jsonl")
    assert read.facts == made.facts


@kinds
def test_a_correction_overtakes_a_fact_stated_before(kind: str, settings: Settings):
    found = 0
    for number in range(3):
        facts = make_transcript(kind, "test", number, settings).facts
        ends = {fact.until: fact for fact in facts if fact.until is not None}
        corrections = [fact for fact in facts if fact.kind == "correction"]
        assert len(ends) == len(corrections)
        for fact in corrections:
            before = ends[fact.message]
            assert (fact.stale, fact.subject) == (before.forms, before.subject) and before.message < fact.message
            assert not set(fact.forms) & set(fact.stale) and fact.cloze != before.cloze
        assert all(not fact.stale for fact in facts if fact.kind != "correction")
        found += len(corrections)
    assert found > 3


@kinds
def test_facts_are_of_all_kinds_and_spread_over_the_transcript_and_a_third_are_planted(kind: str, settings: Settings):
    made = make_transcript(kind, "development", 0, Settings(**{**vars(settings), "exchanges": 100}))
    counts = Counter(fact.kind for fact in made.facts)
    assert counts.keys() >= set(FACTS) - {"name", "date"} and max(counts.values()) < len(made.facts) / 3
    quarter = len(made.messages) // 4
    assert all(7 <= n <= 18 for n in Counter(min(3, fact.message // quarter) for fact in made.facts).values())
    planted = list(filter(is_planted, made.facts))
    assert len(planted) >= len(made.facts) / 3
    assert {made.messages[fact.message]["role"] for fact in made.facts} == {"user", "assistant", "tool"}
    assert all(made.messages[f.message]["role"] == "user" for f in made.facts if f.kind in ("rule", "decision"))


@kinds
def test_results_are_about_as_long_as_they_may_be_at_most(kind: str, settings: Settings):
    for words in (60, 300):
        made = make_transcript(kind, "test", 0, Settings(**{**vars(settings), "result_words": words}))
        lengths = [len(message["content"].split()) for message in made.messages if message["role"] == "tool"]
        assert sum(length > words + 20 for length in lengths) <= len(lengths) / 4 and max(lengths) < words + 60


@kinds
def test_the_same_arguments_give_the_same_transcript_and_others_another(kind: str, settings: Settings):
    made = make_transcript(kind, "test", 5, settings)
    assert make_transcript(kind, "test", 5, settings) == made
    assert make_transcript(kind, "test", 6, settings).messages != made.messages


@kinds
def test_development_and_test_share_no_planted_value_and_no_subject(kind: str, settings: Settings):
    values, subjects = [], []
    for split in SPLITS:
        facts = [fact for number in range(3) for fact in make_transcript(kind, split, number, settings).facts]
        values.append({form for fact in facts if is_planted(fact) for form in fact.forms})
        subjects.append({fact.subject for fact in facts if not is_planted(fact)} - {""})
        assert values[-1] and subjects[-1]
    assert not values[0] & values[1] and not subjects[0] & subjects[1]
    calls = [{str(call) for call in asked(make_transcript(kind, split, 0, settings))} for split in SPLITS]
    assert kind == "office" or not calls[0] & calls[1]  # mails have numbers


def is_planted(fact: Fact) -> bool:
    """What is planted is about a system and a part of it."""
    return fact.subject.islower() and len(fact.subject.split()) == 2


def asked(made: Transcript) -> list[dict[str, Any]]:
    calls = [call for message in made.messages for call in message.get("tool_calls", ())]
    return [json.loads(call["function"]["arguments"]) for call in calls]


def commands(made: Transcript) -> list[str]:
    return [arguments["command"] for arguments in asked(made)]


@pytest.mark.parametrize("wordings", get_args(Wordings))
def test_values_that_are_planted_belong_to_one_half(wordings: Wordings):
    drawn: list[Mapping[str, Planted]] = []
    for half in ("train", "evaluation"):
        random = Random(half)
        made = [plant(random, half, kind, wordings) for _ in range(200) for kind in PLANTED]
        drawn.append({planted.told.forms[0]: planted for planted in made})
        assert len(drawn[-1]) > 1300
        assert all(planted.told.forms[0] in planted.sentence for planted in made)
    assert not drawn[0].keys() & drawn[1].keys()


def test_other_wordings_share_no_sentence_with_the_usual_ones(settings: Settings):
    said: list[set[str]] = []
    for sentences, overtaken in zip(SENTENCES.values(), OVERTAKEN.values(), strict=True):
        assert {made for kind in sentences.values() for made, _, _ in kind} == {
            "path", "host", "product", "ticket", "number"
        }  # fmt: skip
        found = [sentence for kind in sentences.values() for _, _, sentence in kind]
        found += [sentence for _, _, _, first, later in overtaken for sentence in (first, *later)]
        assert len(set(found)) == len(found) and all("{topic}" in one and "{value}" in one for one in found)
        said.append(set(found))
    assert not said[0] & said[1]
    usual, other = (
        make_transcript("atlas", "test", 0, Settings(**{**vars(settings), "wordings": one}))
        for one in get_args(Wordings)
    )
    clozes = [{fact.cloze for fact in made.facts if is_planted(fact)} for made in (usual, other)]
    assert len(clozes[1]) > 10 and not clozes[0] & clozes[1]
    assert all(retained_in(fact, other) for fact in other.facts)


def retained_in(fact: Fact, made: Transcript) -> bool:
    """Whether the exchange that states it would be recognised as doing so."""
    told = [piece.text for one in made.exchanges for piece in one if piece.message == fact.message]
    return retains(fact.forms, fact.subject, Text("\n".join(told)))


@kinds
def test_two_thousand_exchanges_take_seconds(kind: str, settings: Settings):
    begun = time.process_time()
    made = make_transcript(kind, "development", 1, Settings(**{**vars(settings), "exchanges": 2_000}))
    assert time.process_time() - begun < 30
    assert 900 <= len(made.facts) <= 1_100
    assert len({form for fact in made.facts if not fact.subject for form in fact.forms[:1]}) == sum(
        not fact.subject for fact in made.facts
    )


@needs_git
def test_commands_of_software_say_what_they_would_say_in_a_shell_and_write_nothing(settings: Settings):
    folder = settings.repository
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    made = make_transcript("software", "test", 0, settings)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    assert str(folder) not in json.dumps(made.as_dict()) and str(Path.home()) not in json.dumps(made.as_dict())
    results = [message["content"] for message in made.messages if message["role"] == "tool"]
    tools = Counter()
    for command, result in zip(commands(made), results, strict=True):
        tool = command.split()[0]
        if tools[tool] < 3 and tool != "python" and "# note" not in result:
            tools[tool] += 1
            done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True)
            assert (done.stdout + done.stderr).rstrip("\n") == result.rstrip("\n"), command
    assert tools.keys() >= {"git", "grep", "sed"}
    errors = [result for command, result in zip(commands(made), results, strict=True) if "py_compile" in command]
    assert errors and all("SyntaxError" in result and 'File "' in result for result in errors)


def test_search_takes_whole_dates_apart_and_leaves_out_what_is_in_the_title(tmp_path: Path):
    text = "The Alvex Bridge was opened by Mira Toll on May 3, 1961 and cost 4,250 pounds, as the old Alvex Bridge had."
    told = {fact.kind: fact for fact in facts_of("Alvex Bridge (Oslo)", text)}
    assert told["date"].forms == ("May 3, 1961", "3 May 1961", "1961-05-03")
    assert told["name"].forms == ("Mira Toll",) and told["number"].forms == ("4,250", "4250")
    assert {fact.subject for fact in told.values()} == {"Alvex Bridge"} and len(told) == 3


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("poetry", {}, "unknown kind of transcript 'poetry'; known: search, atlas, software, office"),
        ("office", {"exchanges": FEWEST - 1}, "at least 20 exchanges, not 19"),
        ("search", {"corpus": None}, "need a corpus"),
        ("search", {"corpus": Path("nowhere.jsonl")}, "no file nowhere.jsonl"),
        pytest.param("software", {"repository": Path("nowhere")}, "is no checkout", marks=needs_git),
        pytest.param("software", {"repository": Path(__file__).parent}, "checkout", marks=needs_git),
    ],
)
def test_what_cannot_be_made_is_an_error(kind: str, change: dict[str, Any], message: str, settings: Settings):
    with pytest.raises(UserError, match=message):
        make_transcript(kind, "test", 0, Settings(**{**vars(settings), **change}))


def test_a_corpus_that_is_too_small_is_an_error(tmp_path: Path):
    write_objects(tmp_path / "small.jsonl", map(passage, range(2)))
    with pytest.raises(UserError, match="give more"):
        make_transcript("search", "test", 0, Settings(corpus=tmp_path / "small.jsonl"))
    write_objects(tmp_path / "odd.jsonl", [{"id": "1", "title": "No text"}])
    with pytest.raises(UserError, match=r"odd\.jsonl:1: a passage has a title and a text"):
        make_transcript("search", "test", 0, Settings(corpus=tmp_path / "odd.jsonl"))
