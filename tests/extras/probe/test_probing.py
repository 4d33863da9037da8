"""What memories keep: planted facts, verdicts by hand, whole probes, other packages' memories, and the command."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from chat_servers import Reply, chat_server
from terminals import Terminal

from mem1.errors import UserError
from mem1.extras.probe.compactors import compactor_of, served, stand_in
from mem1.extras.probe.packages import OTHERS, conversation_in
from mem1.extras.probe.probing import Calls, Probed, probe
from mem1.extras.probe.transcripts import KINDS, Fact, Transcript, Verdict, make_transcript, read_transcripts, verdicts
from mem1.messages import Bounds, check, fold
from mem1.messages.transcript import ASK
from mem1.net.failover import Retry

WRITE = stand_in(550)
SMALL = make_transcript(seed=0, exchanges=16, facts=24, result_words=60)


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(capsys, monkeypatch)


def run(name: str, transcript: Transcript = SMALL) -> Probed:
    calls = Calls(WRITE)
    return probe(transcript, compactor_of(name, calls, Bounds()), calls)


def test_a_transcript_is_valid_states_every_fact_where_it_says_and_repeats_by_its_seed():
    check(SMALL.messages)
    assert len(SMALL.facts) == 24 and {fact.kind for fact in SMALL.facts} == set(KINDS)
    for fact in SMALL.facts:
        assert fact.value in str(SMALL.messages[fact.message]["content"])
        assert (SMALL.messages[fact.message]["role"] == "user") == (fact.kind == "constraint")
        if fact.old is not None:
            stated = [at for at, message in enumerate(SMALL.messages) if fact.old in str(message["content"])]
            assert stated and max(stated) < fact.message
    assert make_transcript(seed=0, exchanges=16, facts=24, result_words=60) == SMALL != make_transcript(seed=1)
    with pytest.raises(UserError, match="at least 8 exchanges, not 3"):
        make_transcript(seed=0, exchanges=3)


@pytest.mark.parametrize(
    ("fact", "shown", "verdict"),
    [
        (("path", "/srv/eu/limits-7.toml", None), "It lies in /srv/eu/limits-7.toml.", Verdict.RETAINED),
        (("path", "/srv/eu/limits-7.toml", None), "It lies in /srv/eu/limits-1.toml.", Verdict.MUTATED),
        (("path", "/srv/eu/limits-7.toml", None), "It lies somewhere.", Verdict.LOST),
        (("changed", "new-1.internal", "old-1.internal"), "Host new-1.internal, not old-1.internal", Verdict.RETAINED),
        (("changed", "new-1.internal", "old-1.internal"), "Host old-1.internal", Verdict.STALE),
        (("deleted", "/srv/a.toml", None), "Created /srv/a.toml.", Verdict.STALE),
        (("deleted", "/srv/a.toml", None), "Created /srv/a.toml.\n/srv/a.toml is gone.", Verdict.RETAINED),
    ],
)
def test_a_verdict_says_what_became_of_a_fact(fact: tuple[str, str, str | None], shown: str, verdict: Verdict):
    kind, value, old = fact
    facts = [Fact(kind=kind, value=value, old=old, message=0)]
    assert verdicts(facts, [{"role": "user", "content": shown}], []) == [verdict]


def test_a_fact_behind_a_handle_is_recoverable():
    masked = fold(SMALL.messages, "archive(1)")
    found = dict(zip((f.kind for f in SMALL.facts), verdicts(SMALL.facts, masked, SMALL.messages), strict=True))
    assert found["constraint"] is Verdict.RETAINED and found["path"] is Verdict.RECOVERABLE


def test_each_memory_keeps_what_it_promises_and_costs_what_it_sends():
    keep, mask, window, folding, notes = (run(name) for name in ("full", "archive(2)", "window(2)", "fold(4)", "notes"))
    assert keep.share(Verdict.RETAINED) == folding.share(Verdict.RETAINED) == 1
    assert mask.share(Verdict.RECOVERABLE) > 0.6 and mask.share(Verdict.LOST) == 0
    assert window.share(Verdict.LOST) > 0.6 and window.share(Verdict.RETAINED, "constraint") == 1
    assert notes.share(Verdict.RETAINED) > 0.8
    assert keep.folds == 0 and folding.folds == 3
    assert window.peak < folding.peak < keep.peak and keep.prompt_tokens == keep.appended.prompt
    assert folding.output_tokens > keep.output_tokens == keep.appended.output
    assert notes.output_tokens > keep.output_tokens


def last_two(history: list[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """A memory of one's own."""
    return [*history[:2], *history[-2:]] if len(history) > 6 and history[-1]["role"] == "tool" else history


def test_a_function_of_ones_own_goes_on_with_the_history_that_it_returned():
    found = run(f"{__name__}:last_two")
    assert found.name == f"{__name__}:last_two" and found.folds > 3 and found.share(Verdict.LOST) > 0.5


def test_memories_of_other_packages_are_probed_alike():
    pytest.importorskip("langchain")
    pytest.importorskip("agents")
    summarised, trimmed = run("langchain", make_transcript(0)), run("openai", make_transcript(0))
    assert summarised.folds > 2 and 3_000 < summarised.peak < 8_000
    assert trimmed.folds > 2 and trimmed.share(Verdict.LOST) > 0.3


def test_deepagents_can_open_what_its_summary_has_lost():
    pytest.importorskip("deepagents")
    found = run("deepagents", make_transcript(0))
    assert found.folds > 2 and 3_000 < found.peak < 8_000
    assert found.share(Verdict.RETAINED) > 0.3 and found.share(Verdict.RECOVERABLE) > 0 == found.share(Verdict.LOST)


@pytest.mark.parametrize(
    ("text", "conversation"),
    [
        ("You are a helpful AI assistant tasked with summarizing conversations. Be short.", ""),
        ("Keep it short.\nMessages to summarize:\nHuman: Oslo rains.", "\nHuman: Oslo rains."),
        ("Oslo rains.", "Oslo rains."),
    ],
)
def test_of_a_packages_request_for_a_summary_the_conversation_is_told_apart(text: str, conversation: str):
    assert conversation_in(text) == conversation


@pytest.mark.filterwarnings(
    "error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning", "ignore::DeprecationWarning:inspect_ai"
)
def test_the_three_compactions_of_inspect():
    pytest.importorskip("inspect_ai")
    summary, edit, trim = (run(f"inspect-{kind}", make_transcript(0)) for kind in ("summary", "edit", "trim"))
    for each in (summary, edit, trim):
        assert each.folds > 2 and each.peak < 8_000 and each.share(Verdict.RETAINED, "constraint") > 0
    assert summary.share(Verdict.RETAINED) > 0.8 and summary.output_tokens > edit.output_tokens == trim.output_tokens
    assert edit.share(Verdict.LOST) > 0.5 and trim.share(Verdict.LOST) > 0.5


@pytest.mark.parametrize("name", OTHERS)
def test_a_package_that_is_missing_is_named(name: str, monkeypatch: pytest.MonkeyPatch):
    for module in ("langchain.agents.middleware", "agents.extensions", "deepagents.backends", "inspect_ai.model"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r"is not installed .* pip install"):
        compactor_of(name, WRITE, Bounds())


def test_a_model_behind_a_server_writes_the_states(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mem1.extras.probe.compactors.Retry", partial(Retry, first_wait_s=0.0))

    def behave(body: dict[str, Any], number: int) -> Reply:
        assert body["messages"][-1]["content"].startswith(ASK) and body["temperature"] == 0
        return Reply(text=f"The state is number {number}.")

    with chat_server(behave) as server:
        calls = Calls(served(server.url, "writer"))
        found = probe(SMALL, compactor_of("fold(4)", calls, Bounds()), calls)
    assert len(server.requests) == 3 and found.share(Verdict.LOST) > 0.5
    with pytest.raises(UserError, match="is it a chat server with the model 'writer'"):
        served("http://127.0.0.1:9/v1", "writer")([])


def test_the_command_prints_a_table_json_and_a_page(terminal: Terminal, tmp_path: Path):
    given = ("probe", "full", "window(2)", "--count", "1", "--exchanges", "10", "--facts", "8")
    code, out, said = terminal(*given, "--plot", tmp_path / "new" / "probe.html")
    assert f"Tables and figures: {tmp_path / 'new' / 'probe.html'}" in said
    assert code == 0 and "window(2)" in out and "100 %" in out
    page = (tmp_path / "new" / "probe.html").read_text("utf-8")
    assert "What memories keep" in page and "Content-Security-Policy" in page
    assert page.count('class="plot"') == 4 and "window(2)" in page
    code, out, _ = terminal(*given, "--json")
    keep, window = json.loads(out)["memories"]
    assert keep["cost_ratio"] == 1 and keep["by_kind"]["path"]["retained"] == 1 and window["lost"] > 0


def test_a_file_of_transcripts_is_read_and_mistakes_in_it_are_named(terminal: Terminal, tmp_path: Path):
    path = tmp_path / "transcripts.jsonl"

    def write(change: Callable[[dict[str, Any]], None]) -> None:
        facts = [{"kind": f.kind, "value": f.value, "message": f.message, "old": f.old} for f in SMALL.facts]
        record = {"messages": list(SMALL.messages), "facts": facts}
        change(record)
        path.write_text(json.dumps(record) + "\n", "utf-8")

    write(lambda record: None)
    assert list(read_transcripts(path)) == [SMALL]
    assert terminal("probe", "full", "--transcripts", path)[0] == 0
    for change, why in (
        (lambda r: r["facts"][0].update(kind="rumour"), "unknown kind 'rumour'; known: identifier"),
        (lambda r: r["facts"][0].update(value="nowhere"), "does not contain 'nowhere'"),
        (lambda r: r["messages"].pop(2), "which nothing called"),
        (lambda r: r.pop("facts"), "'facts'"),
    ):
        write(change)
        code, _, said = terminal("probe", "full", "--transcripts", path)
        assert code == 2 and f"{path}:1: not a transcript with facts" in said and why in said
    path.write_text("")
    code, _, said = terminal("probe", "full", "--transcripts", path)
    assert code == 2 and "holds no transcript" in said


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("folds(3)",), "unknown memory 'folds(3)' (did you mean fold(3)?); known: constant, fold"),
        (("--base-url", "http://127.0.0.1:9/v1"), "--base-url and --model go together"),
        (("--transcripts", "x.jsonl", "--facts", "3"), "--facts: belongs to invented transcripts"),
        (("--prices", "free"), "unknown price class 'free'"),
    ],
)
def test_mistakes_on_the_command_line_are_explained(terminal: Terminal, arguments: tuple[str, ...], why: str):
    code, _, said = terminal("probe", *arguments)
    assert code == 2 and why in " ".join(said.split())
