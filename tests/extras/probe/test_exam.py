"""The examination: counts by hand, rows over transcripts, memories of others, and the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chat_servers import chat_server
from probed import HEAD, as_lines, jobs, moved
from server_replies import Reply
from terminals import Terminal

from mem1.errors import UserError
from mem1.extras.probe.compressors import Kept
from mem1.extras.probe.exam import compressor_of, examine, rows
from mem1.extras.probe.packages import OTHERS
from mem1.extras.probe.page import kind_columns
from mem1.extras.probe.pieces import Piece, pieces_of
from mem1.extras.probe.transcripts import Fact, Transcript, read_transcripts

JOBS = jobs(40)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(capsys, monkeypatch)


class Own:
    """A compressor of one's own, which keeps what it was told to."""

    text = ""

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Kept:
        return Kept(self.text)


own = Own()


class Wrong(Own):
    """Made anew for each transcript."""

    def compress(self, kept: Kept, pieces: Sequence[Piece], tokens: int) -> Any:
        return "a text"


def kept(text: str, **given: Any) -> Any:
    own.text = text
    return examine(given.pop("transcript", JOBS), f"{__name__}:own", share=1.0, cycles=given.pop("cycles", 1), **given)


def test_everything_retains_everything_and_nothing_retains_nothing():
    everything = examine(JOBS, "full", share=0.1, cycles=4)
    assert (everything.recall, everything.middle, everything.together, everything.invented) == (1, 1, 1, ())
    assert everything.answered > 0.9 and 0.9 < everything.tokens <= 1.1 and everything.facts == 44
    nothing = kept("")
    assert (nothing.recall, nothing.together, nothing.answered, nothing.exact) == (0, 0, 0, 0)
    assert nothing.middle is None and nothing.stale is None


def test_facts_are_counted_as_they_stand_in_what_is_kept():
    hosts = [fact.forms[0] for fact in JOBS.facts if fact.kind == "identifier"]
    half = kept("\n".join(f"The host of job {2 * at} is {host}" for at, host in enumerate(hosts[::2])))
    assert half.recall == half.answered == 20 / 44 and 0 < half.together < 0.3
    assert kept("host-77.internal and OPS-9 " + hosts[0]).invented == ("host-77.internal", "ops-9")


def test_a_value_that_was_overtaken_is_no_fact_but_may_be_stale():
    only_old = kept("host-1.internal", transcript=moved())
    assert (only_old.facts, only_old.recall, only_old.stale) == (1, 0, 1)
    both = kept("host-1.internal, now host-2.internal", transcript=moved())
    assert (both.recall, both.stale) == (1, 0)
    half_way = kept("host-1.internal", transcript=moved(), cycles=2)
    assert half_way.middle == 1, "the value holds by then"


def test_a_compressor_of_ones_own_keeps_to_the_rules():
    with pytest.raises(UserError, match=r":own kept \d+ tokens where it may keep \d+"):
        kept("many words " * 2_000)
    with pytest.raises(UserError, match="returned str; compress returns mem1"):
        examine(JOBS, f"{__name__}:Wrong", share=0.1, cycles=1)


def test_a_model_may_read():
    answers = examine(JOBS, "full", share=0.1, cycles=1, reads=lambda messages: "host-1000.internal")
    assert answers.answered == 1 / 44


def test_more_cycles_than_exchanges_are_refused():
    with pytest.raises(UserError, match="20 cycles need as many exchanges; the transcript has 4"):
        examine(moved(), "recency", share=0.1, cycles=20)


def test_rows_are_means_over_transcripts_and_differences_are_of_pairs():
    taken = [
        examine(jobs(number), name, share=share, cycles=1, number=number)
        for number in (20, 40, 60)
        for name in ("recency", "index")
        for share in (0.1, 0.3)
    ]
    found = {(row["memory"], row["share"]): row for row in rows(taken)}
    assert len(found) == 4 and all(row["transcripts"] == 3 and row["facts"] == 132 for row in found.values())
    index, recency = found["index", 0.3], found["recency", 0.3]
    assert index["ahead"] == pytest.approx(index["recall"] - recency["recall"]) and "ahead" not in recency
    assert index["ahead_low"] < index["ahead"] < index["ahead_high"] and index["recall_low"] < index["recall"]
    alone = rows([one for one in taken if one.name == "index"])
    assert all("ahead" not in row for row in alone)
    fewer = [one for one in taken if one.name == "index" or one.number == 20]
    assert all("ahead" not in row for row in rows(fewer)), "recency did not take all of them"


def test_a_share_of_no_facts_is_none_and_in_no_mean():
    facts = [replace(JOBS, facts=chosen) for chosen in ((), JOBS.facts[:2], JOBS.facts[-2:])]
    none, few, late = (
        examine(one, "full", share=0.1, cycles=2, number=at, reads=lambda messages: "") for at, one in enumerate(facts)
    )
    assert [none.recall, none.middle, none.together, none.answered, none.recoverable, none.stale] == [None] * 6
    assert (few.recall, few.middle, few.together) == (1, 1, None) and (late.recall, late.middle) == (1, None)
    (row,) = rows([none, few, late])
    assert (row["transcripts"], row["facts"], row["recall"], row["middle"], row["together"]) == (3, 4, 1, 1, None)
    assert row["recall_high"] == 1 and rows([few, late])[0]["recall_low"] == row["recall_low"]
    (empty,) = rows([none])
    assert (empty["recall"], empty["recall_low"], empty["recall_high"]) == (None, None, None)
    assert kind_columns({"a": [row], "b": [empty]})[1] == [["full", "10 %", "2", "1.00", None]]


def test_the_task_is_the_first_message_of_the_user_whatever_stands_before_it():
    messages = [{"role": "user", "content": "Find the limits."}, {"role": "assistant", "content": "On eu-7.internal?"}]
    messages += [{"role": "user", "content": "Yes."}, {"role": "assistant", "content": "They are in /srv/limits.toml."}]
    fact = Fact(kind="identifier", cloze="The host is ____.", forms=("eu-7.internal",), message=1)
    own = Transcript(kind="own", messages=tuple(messages), facts=(fact,))
    assert own.task == "Find the limits." and [piece.message for piece in own.pieces] == [1, 2, 3]
    for name in ("full", "window(3)"):
        assert examine(own, name, share=1.0, cycles=1).recall == 1
    system = {"role": "system", "content": "You act."}
    assert replace(own, messages=(system, *messages)).head == (system, messages[0])


def test_a_transcript_of_which_hardly_anything_may_be_kept_ends_nothing():
    for name in ("recency", "index", "archive", "window(3)", "fold(4)"):
        write = (lambda messages: "All is well.") if name == "fold(4)" else None
        assert examine(JOBS, name, share=0.0001, cycles=2, write=write).tokens < 0.2


def test_memories_of_ours_are_called_before_every_turn():
    window = examine(JOBS, "window(3)", share=0.1, cycles=5)
    assert 0 < window.recall < 0.2 and window.tokens < 0.2
    archive = examine(JOBS, "archive(3)", share=0.1, cycles=5)
    assert archive.recoverable > 0.7 and archive.recall + archive.recoverable == pytest.approx(1)
    wrote: list[int] = []

    def write(messages: list[Any]) -> str:
        wrote.append(len(messages))
        return "The state is all well."

    fold = examine(JOBS, "fold(4)", share=0.1, cycles=5, write=write)
    assert len(wrote) > 5 and fold.read > 0.5 and 0 < fold.written < 0.2


def last_two(history: list[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """A memory of one's own."""
    return [*history[:2], *history[-2:]] if len(history) > 6 and history[-1]["role"] == "tool" else history


def test_a_function_of_ones_own_goes_on_with_the_history_that_it_returned():
    found = examine(JOBS, f"{__name__}:last_two", share=0.1, cycles=5)
    assert 0 < found.recall < 0.2


def seven(history: list[Mapping[str, Any]]) -> Any:
    return 7


def texts(history: list[Mapping[str, Any]]) -> Any:
    return ["a text"]


@pytest.mark.parametrize("name", ["seven", "texts"])
def test_a_function_that_returns_no_messages_is_named(name: str):
    with pytest.raises(UserError, match=rf":{name} returned .* a memory takes a list of chat messages"):
        examine(JOBS, f"{__name__}:{name}", share=0.1, cycles=1)


def test_calls_of_every_kind_are_said_and_what_a_function_returned_is_a_result():
    custom = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    messages: list[Mapping[str, Any]] = [
        {"role": "user", "content": "Go on."},
        {"role": "assistant", "content": None, "tool_calls": [custom]},
        {"role": "tool", "tool_call_id": "c", "content": "eu-7"},
        {"role": "assistant", "content": "And", "function_call": {"name": "run", "arguments": "{}"}},
        {"role": "function", "name": "run", "content": "eu-8"},
    ]
    found = [(piece.role, piece.text) for piece in pieces_of(messages, 1)]
    assert found == [
        ("said", "[assistant] sql(select 1)"),
        ("result", "[result of sql] eu-7"),
        ("said", "[assistant] And run({})"),
        ("result", "[result of run] eu-8"),
    ]


def test_what_the_task_says_is_not_invented():
    assert kept("Repair host-1000.internal, host-9.internal", transcript=asked("host-9.internal")).invented == ()
    assert kept("host-9.internal").invented == ("host-9.internal",)


def asked(name: str) -> Transcript:
    head, task, *others = JOBS.messages
    return replace(JOBS, messages=(head, {**task, "content": f"Repair {name}."}, *others))


def test_memories_of_other_packages_are_examined_alike():
    pytest.importorskip("langchain")
    pytest.importorskip("agents")
    long = jobs(300)
    summarised = examine(long, "langchain", share=0.1, cycles=5, write=lambda messages: "All is well.")
    assert summarised.read > 0.5 and summarised.recall < 0.5
    assert examine(long, "openai", share=0.1, cycles=5).tokens > 0.2


def test_deepagents_can_open_what_its_summary_has_lost():
    pytest.importorskip("deepagents")
    found = examine(jobs(300), "deepagents", share=0.1, cycles=5, write=lambda messages: "All is well.")
    assert found.recoverable > 0.5 and found.recall + found.recoverable > 0.95


@pytest.mark.filterwarnings(
    "error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning:inspect_ai"
)
def test_the_three_compactions_of_inspect():
    pytest.importorskip("inspect_ai")
    found = [
        examine(jobs(200), f"inspect-{kind}", share=0.1, cycles=2, write=lambda messages: "All is well.")
        for kind in ("summary", "edit", "trim")
    ]
    assert all(0 < one.recall < 0.9 for one in found)
    assert found[0].read > 0.3 and found[1].read == found[2].read == 0


@pytest.mark.parametrize("name", OTHERS)
def test_a_package_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch):
    for module in ("langchain.agents.middleware", "agents.extensions", "deepagents.backends", "inspect_ai.model"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"is not installed .* pip install"):
        compressor_of(name, HEAD, 100, lambda messages: "")


@pytest.mark.parametrize("name", ["summary", "summary-sections", "writer", "fold(8)"])
def test_what_needs_a_model_says_so(name: str):
    with pytest.raises(UserError, match=r"needs a model that writes.*give --base-url and --model"):
        compressor_of(name, HEAD, 100, None)


def test_the_command_prints_tables_json_and_a_page(terminal: Terminal, tmp_path: Path):
    path = tmp_path / "transcripts.jsonl"
    path.write_text(as_lines([JOBS, jobs(50)]), "utf-8")
    given = ("probe", "recency", "index", "--transcripts", path, "--share", "0.1", "--share", "0.3", "--cycles", "4")
    code, out, said = terminal(*given, "--plot", tmp_path / "new" / "probe.html")
    assert f"Tables and figures: {tmp_path / 'new' / 'probe.html'}" in said
    assert (
        code == 0
        and "index" in out
        and "30 %" in out
        and "99 facts that hold at the end, 2 transcripts" in " ".join(out.split())
    )
    page = (tmp_path / "new" / "probe.html").read_text("utf-8")
    assert "What memories keep" in page and "Content-Security-Policy" in page
    assert page.count('class="plot"') == 1 and "index" in page
    code, out, _ = terminal(*given, "--json")
    found = json.loads(out)
    assert [row["memory"] for row in found["rows"]] == ["recency", "recency", "index", "index"]
    assert found["writer"] is None and found["rows"][2]["ahead"] > 0 and list(found["by_kind"]) == ["jobs"]


def test_a_model_writes_several_memories_at_a_time_and_each_row_is_its_own(terminal: Terminal, tmp_path: Path):
    path = tmp_path / "transcripts.jsonl"
    path.write_text(as_lines([jobs(20), jobs(40), jobs(60)]), "utf-8")

    def first_words(body: dict[str, Any], number: int) -> Reply:
        return Reply(text=body["messages"][-1]["content"][-400:], hangs_s=0.05)

    with chat_server(first_words) as server:
        given = (
            "--transcripts",
            path,
            "--cycles",
            "2",
            "--base-url",
            server.url,
            "--model",
            "m",
            "--max-tokens",
            "99",
            "--json",
        )
        code, out, _ = terminal("probe", "summary", "writer", "recency", *given)
    found = {row["memory"]: row["recall"] for row in json.loads(out)["rows"]}
    assert code == 0 and [*found] == ["summary", "writer", "recency"] and 2 < server.busiest <= 8
    assert all(request["max_tokens"] == 99 for request in server.requests)

    def write(messages: Sequence[Mapping[str, Any]]) -> str:
        return messages[-1]["content"][-400:]

    for name, recall in found.items():
        alone = [examine(jobs(n), name, share=0.1, cycles=2, write=write).recall or 0 for n in (20, 40, 60)]
        assert recall == pytest.approx(sum(alone) / 3)


def test_a_file_of_transcripts_is_read_and_mistakes_in_it_are_named(terminal: Terminal, tmp_path: Path):
    path = tmp_path / "transcripts.jsonl"

    def write(change: Callable[[dict[str, Any]], None]) -> None:
        record = json.loads(as_lines([JOBS]))
        change(record)
        path.write_text(json.dumps(record) + "\n", "utf-8")

    write(lambda record: None)
    assert list(read_transcripts(path)) == [JOBS]
    assert next(read_transcripts(path)).pieces == JOBS.pieces
    for change, why in (
        (lambda r: r["facts"][0].update(kind="rumour"), "unknown kind 'rumour'; known: identifier"),
        (lambda r: r["facts"][0].update(forms=["nowhere"]), "does not contain 'nowhere'"),
        (lambda r: r["facts"][0].update(forms=[]), "no form fills"),
        (lambda r: r["facts"][0].update(cloze="It is so."), "needs one ____"),
        (lambda r: r["facts"][0].update(cloze=["____"]), "kind, cloze and subject are texts"),
        (lambda r: r["facts"][0].update(subject=None), "kind, cloze and subject are texts"),
        (lambda r: r["facts"][0].update(until=1), "until = 1 is no message after 3"),
        (lambda r: r["messages"].pop(2), "which nothing called"),
        (lambda r: r.pop("facts"), "'facts'"),
        (lambda r: r.update(messages=r["messages"][:1], facts=[]), "no message is the user's"),
    ):
        write(change)
        code, _, said = terminal("probe", "full", "--transcripts", path)
        assert code == 2 and f"{path}:1: not a transcript with facts" in said and why in said
    write(lambda record: record.update(facts=[]))
    code, _, said = terminal("probe", "full", "--transcripts", path)
    assert code == 2 and "no transcript has a fact that holds at its end" in " ".join(said.split())
    path.write_text(path.read_text("utf-8") + as_lines([JOBS]), "utf-8")
    code, out, said = terminal("probe", "full", "--transcripts", path, "--json")
    assert code == 0 and json.loads(out)["rows"][0]["recall"] == 1
    assert "no fact holds at the end of transcript 1, so the recall is that of the others" in " ".join(said.split())
    path.write_text("")
    code, _, said = terminal("probe", "full", "--transcripts", path)
    assert code == 2 and "holds no transcript" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("folds(3)", "--writer", "nowhere"), "unknown memory 'folds(3)'"),  # before a writer reads for minutes
        (("trained-writer",), "trained-writer needs one: give its folder by --writer"),
        (("folds(3)",), "unknown memory 'folds(3)' (did you mean fold(3)?); known: recency, without-results"),
        (("--base-url", "http://127.0.0.1:9/v1"), "--base-url and --model go together"),
        (("--model-reads",), "--model-reads needs a model"),
        (("--max-tokens", "9"), "--max-tokens: belongs to a model of --base-url"),
        (("--transcripts", "x.jsonl", "--count", "3"), "--count: belongs to transcripts that are made"),
        (("--kind", "offices"), "unknown 'offices' (did you mean office?); known: "),
        (("--split", "train"), "unknown 'train'; known: development, test"),
        (("--kind", "search"), "corpus"),
        (("writer",), "writer needs a model that writes: give --base-url and --model"),
    ],
)
def test_mistakes_on_the_command_line_are_explained(terminal: Terminal, arguments: tuple[str, ...], why: str):
    code, _, said = terminal("probe", *arguments)
    assert code == 2 and why in " ".join(said.split())
