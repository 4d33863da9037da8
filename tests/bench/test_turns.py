"""What a run keeps of its attempts turn by turn: exact contexts in tags and in messages, compact, and on its page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench_chats import Answer, completion, drawn, player
from bench_suites import SMALL, suite
from report_pages import Page, unpacked

from mem1.bench.page import bench_page
from mem1.bench.policies import script_player
from mem1.bench.running import ATTEMPTS, Player, run, told_in
from mem1.bench.scores import sides_of
from mem1.bench.scripted import scripted_player
from mem1.bench.suites import Suite
from mem1.errors import UserError
from mem1.evaluation.report.viewer_data import PageData
from mem1.messages.transcript import Message
from mem1.pages import page as pages
from mem1.pages.page import inflated

MEMORIES = ("full", "constant", "fold(2)")


def kept(made: Player, folder: Path, memories: Sequence[str], asked: Suite = SMALL) -> dict[str, dict[str, Any]]:
    """Memory -> task -> its turns, of a run."""
    run(lambda _: made, asked, memories, seed=0, folder=folder)
    return {memory: {task: inflated(text) for task, text in of.items()} for memory, of in told_in(folder).items()}


def texts(told: dict[str, Any], flat: list[int]) -> list[tuple[str, str, int]]:
    """(role, text, turn of origin) of pieces."""
    return [
        (told["roles"][role], told["strings"][text], turn)
        for role, text, _, turn in zip(*[iter(flat)] * 4, strict=True)
    ]


def test_in_tags_every_context_is_kept_as_it_was(tmp_path: Path):
    found = kept(script_player("script", state=None), tmp_path, ("full", "constant"))
    full, constant = (found[memory]["chain-1-n2-seed0-0"] for memory in ("full", "constant"))
    for told in (full, constant):
        for earlier, turn in zip(told["turns"], told["turns"][1:], strict=False):
            context = "".join(text for _, text, _ in texts(told, turn["context"]))
            assert "".join(text for _, text, _ in texts(told, earlier["completion"])).strip() in context
            assert turn["sizes"][0] == sum(turn["context"][2::4])
    last = full["turns"][-1]
    assert {turn for _, _, turn in texts(full, last["context"])} == set(range(len(full["turns"])))
    assert last["action"] == "answer" and last["sizes"][2] == sum(last["sizes"][:2])
    assert constant["turns"][-1]["sizes"][0] < last["sizes"][0]
    assert any(turn["dropped"] for turn in constant["turns"]) and "h" in constant["turns"][-1]["facts"]
    assert [label for label, *_ in full["questions"]] == ["Q1", "Q2"] and all(full["answers"])


def chat(answer: Answer, memory: str = "full") -> dict[str, Any]:
    """The turns of an attempt of a model that is a function of the messages."""
    at = drawn()
    (played,) = player(answer).attempts(at, at.tasks[:1], memory, lambda: False)
    return json.loads(json.dumps(played.told()))


def test_in_messages_each_turn_has_what_the_model_was_shown_and_the_tokens_that_the_provider_counted():
    shown = list[list[Message]]()

    def answer(messages: list[Message]) -> Any:
        shown.append(messages)
        said = completion("I look.", "Alvex", "Moru") if len(shown) < 3 else completion("Q1 a; Q2 b")
        return {**said, "usage": {"prompt_tokens": 100 * len(shown), "completion_tokens": 7}}

    told = chat(answer)
    assert [(turn["action"], turn["sizes"]) for turn in told["turns"]] == [
        ("search", [100, 7, 107]), ("search", [200, 7, 207]), ("answer", [300, 7, 307]),
    ]  # fmt: skip
    for messages, turn in zip(shown, told["turns"], strict=True):
        pieces = texts(told, turn["context"])[1:]  # behind the declared tool
        contents = [message["content"] for message in messages if message["role"] != "assistant"]
        assert [text for role, text, _ in pieces if role in ("prompt", "result")] == contents
    last = texts(told, told["turns"][2]["context"])
    search = 'search({"query": "Alvex"})'
    assert last[2:4] == [("thought", "I look.", 1), ("query", search, 1)]
    assert [(role, turn) for role, _, turn in last[-4:]] == [
        ("query", 2), ("query", 2), ("result", 2), ("result", 2)
    ]  # fmt: skip
    assert texts(told, told["turns"][0]["result"]) == [
        piece for piece in last if piece[0] == "result" and piece[2] == 1
    ]
    assert texts(told, told["turns"][2]["completion"]) == [("action", "Q1 a; Q2 b", 3)]
    assert not any(turn["dropped"] for turn in told["turns"]) and told["answers"] == ["a", "b"]


def test_a_call_for_a_state_is_a_turn_of_its_own_and_the_state_is_found_in_later_contexts(tmp_path: Path):
    told = kept(scripted_player("script", state=200), tmp_path, ("fold(1)",))["fold(1)"]["chain-1-n2-seed0-0"]
    actions = [turn["action"] for turn in told["turns"]]
    assert actions.count("summary") > 1 and actions[-1] == "answer"
    number = len(actions) - actions[::-1].index("summary")
    (written,) = texts(told, told["turns"][number - 1]["completion"])
    (state,) = [piece for piece in texts(told, told["turns"][-1]["context"]) if piece[0] == "state"]
    assert written[1].strip() in state[1] and state[2] == written[2] == number
    folded = told["turns"][number]
    assert {role for role, *_ in texts(told, folded["dropped"])} >= {"query", "result"}


def test_an_attempt_whose_replies_are_of_no_use_has_the_turns_before():
    replies = iter([completion(None, "Alvex"), {"choices": [{"message": {"tool_calls": [3]}}]}])
    told = chat(lambda messages: next(replies))
    assert [turn["action"] for turn in told["turns"]] == ["search"] and told["turns"][0]["result"]


def test_what_is_kept_of_a_long_attempt_is_about_as_long_as_its_conversation(tmp_path: Path):
    long = suite({16: 1}, ("independent",))
    found = kept(scripted_player("script", state=None), tmp_path, ("full",), long)["full"]
    (told,) = found.values()
    ((text,),) = (list(of.values()) for of in told_in(tmp_path).values())
    written = sum(map(len, told["strings"]))
    given = sum(len(piece) for turn in told["turns"] for _, piece, _ in texts(told, turn["context"]))
    assert len(told["turns"]) > 20 and given > 10 * written > 10 * len(text)


@pytest.mark.parametrize("chat", [False, True])
def test_the_page_of_a_run_has_its_turns_and_that_of_a_result_alone_has_none(tmp_path: Path, chat: bool):
    made: Player = (scripted_player if chat else script_player)("script", state=None)
    result = run(lambda _: made, SMALL, ("full", "fold(2)"), seed=0, folder=tmp_path)
    told = told_in(tmp_path)
    html = pages.render(bench_page(sides_of(result, told), title="x"))
    data = unpacked(Page(html).scripts["data"])
    assert [one["result"] for one in data["trajectories"]] == ["1/1"] * 2 + ["2/2"] * 6 + ["1/1"] * 2 + ["2/2"] * 6
    assert [filter["label"] for filter in data["filters"]][:2] == ["memory", "family"]
    tasks = [data["tasks"][one["task"]]["id"] for one in data["trajectories"]]
    assert tasks[:8] == tasks[8:] == [id for cell in SMALL.cells for id in cell.ids(0)]
    first = inflated(told["full"][tasks[0]])
    shown = data["trajectories"][0]
    assert len(shown["turns"]) == len(first["turns"]) > 1 and shown["answers"] == first["answers"]
    for turn, original in zip(shown["turns"], first["turns"], strict=True):
        assert texts(data, turn["context"]) == texts(first, original["context"])
        assert turn["facts"] == original["facts"]
    without = unpacked(Page(pages.render(bench_page(sides_of(result), title="x"))).scripts["data"])
    assert [one["turns"] for one in without["trajectories"]] == [[]] * 16
    assert "attempts are on this page" not in html and not told_in(tmp_path / "elsewhere")


def test_turns_that_do_not_fit_are_left_out_and_their_attempts_stay_in_the_list(tmp_path: Path):
    long = suite({8: 6}, ("independent",))
    result = run(lambda _: script_player("script", state=None), long, ("full",), seed=0, folder=tmp_path)
    page = bench_page(sides_of(result, told_in(tmp_path)), title="x")
    whole = pages.render(page)
    cut = Page(pages.render(page, largest=len(whole) - 10_000))
    turns = [len(one["turns"]) for one in unpacked(cut.scripts["data"])["trajectories"]]
    number = sum(count > 0 for count in turns)
    assert 0 < number < 6 and all(turns[:number]) and not any(turns[number:])
    assert f"The turns of {number} of 6 attempts are on this page" in cut.shown
    assert f"full, independent, N = 8: tasks {number + 1} to 6" in cut.shown


def test_joining_an_attempt_to_a_page_changes_nothing_but_numbers():
    told = chat(lambda messages: completion("Q1 x") if len(messages) > 3 else completion(None, "Alvex"))
    data = PageData({})
    data.strings.number("first")
    data.roles.number("first")
    found = data.joined(told)
    shown = {"strings": data.strings.values, "roles": data.roles.values}
    for turn, original in zip(found, told["turns"], strict=True):
        for name in ("context", "completion", "result", "dropped"):
            assert texts(shown, turn[name]) == texts(told, original[name])
        assert turn["sizes"] == original["sizes"]
    assert found[0]["context"] != told["turns"][0]["context"]


def test_reading_the_turns_of_a_run_that_goes_on_leaves_a_line_that_it_is_writing(tmp_path: Path):
    run(lambda _: script_player("script", state=None), SMALL, ("full",), seed=0, folder=tmp_path)
    file, whole = tmp_path / ATTEMPTS, (tmp_path / ATTEMPTS).read_bytes()
    file.write_bytes(cut := whole[: whole.rindex(b"\n", 0, -1) + 100])
    assert len(told_in(tmp_path)["full"]) == whole.count(b"\n") - 1
    assert file.read_bytes() == cut
    file.write_bytes(whole)
    assert len(told_in(tmp_path)["full"]) == whole.count(b"\n")


def test_a_damaged_line_of_attempts_is_named_and_one_without_turns_is_none(tmp_path: Path):
    result = run(lambda _: script_player("script", state=None), SMALL, ("full",), seed=0, folder=tmp_path)
    first, *rest = (tmp_path / ATTEMPTS).read_text().splitlines(keepends=True)
    bare = json.loads(first)
    del bare["told"]
    (tmp_path / ATTEMPTS).write_text("".join([json.dumps(bare) + "\n", *rest]))
    assert len(told_in(tmp_path)["full"]) == len(result.attempts) - 1
    (tmp_path / ATTEMPTS).write_text('{"attempt": {"task": "x"}}\n')
    with pytest.raises(UserError, match=r"attempts\.jsonl:1: no attempt"):
        told_in(tmp_path)
