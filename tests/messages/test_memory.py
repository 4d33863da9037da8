"""A memory at work: states asked for, kept and found again, events, failures of the model, and what folding costs."""

from __future__ import annotations

import asyncio
import json
import weakref
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pydantic
import pytest
from transcripts import FORMS, conversation, prefixes

from mem1.errors import UserError
from mem1.messages import Bounds, Event, Memory, check, fold, with_state
from mem1.messages.bounds import cut_state, tokens_of
from mem1.messages.cost import HORIZON, Sizes, best_k, break_even
from mem1.messages.transcript import ASK
from mem1.prices import PRICE_CLASSES, PrefixCache, PriceClass, Prices

TASK = {"role": "user", "content": "Find the mayor of Oslo."}
LONG = "Oslo has a mayor. " * 100


def call(number: int) -> list[dict[str, Any]]:
    function = {"name": "search", "arguments": f'{{"q": {number}}}'}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    said = {"role": "assistant", "content": None, "tool_calls": calls}
    return [said, {"role": "tool", "tool_call_id": f"c{number}", "content": LONG}]


class Model:
    """Writes numbered states; keeps what it was asked."""

    def __init__(self, *replies: Any) -> None:
        self.replies = list(replies)
        self.requests: list[list[Any]] = []

    def __call__(self, messages: list[Any]) -> Any:
        self.requests.append(messages)
        reply = self.replies.pop(0) if self.replies else f"state {len(self.requests)}"
        if isinstance(reply, Exception):
            raise reply
        return reply


def run(memory: Memory, exchanges: int) -> list[list[Any]]:
    """What the model sees before each turn; the client keeps and sends its whole history."""
    messages, shown = [TASK], []
    for number in range(1, exchanges + 1):
        shown.append(memory.prompt(messages))
        messages += call(number)
    shown.append(memory.prompt(messages))
    return shown


def test_the_prompt_stays_bounded_and_each_state_is_written_from_the_messages_shown_before():
    model, events = Model(), list[Event]()
    shown = run(Memory("fold(2)", write=model, on_event=events.append), 9)
    assert [len(messages) for messages in shown] == [1, 3, 5, 3, 5, 3, 5, 3, 5, 3]
    for messages in shown:
        check(messages)
    assert shown[5][0]["content"] == f"{TASK['content']}\n\n<memory>\nstate 2\n</memory>"
    for request in model.requests:
        assert request[-1]["content"].startswith(ASK) and len(request) == 8
    assert model.requests[1][:-3] == shown[4]  # the request begins with what the cache holds
    assert [(e.kind, e.exchange, e.state_before, e.state_after) for e in events[:2]] == [
        ("state", 3, None, "state 1"),
        ("state", 5, "state 1", "state 2"),
    ]
    assert events[1].tokens_before > events[1].tokens_after > 450 and len(events[1].left_out) == 2
    assert 0 < events[1].cached_tokens < 15  # the task, behind which another state stands


def test_a_new_process_with_the_kept_states_shows_the_same_and_asks_nothing_again():
    states: dict[str, str] = {}
    first, second = Model(), Model()
    shown = run(Memory("fold(2)", write=first, states=states), 5)
    assert len(states) == 2
    messages = [TASK, *(message for number in range(1, 6) for message in call(number))]
    assert Memory("fold(2)", write=second, states=states).prompt(messages) == shown[-1]
    assert second.requests == []


def test_conversations_do_not_mix():
    memory = Memory("fold(1)", write=Model())
    other = {"role": "user", "content": "Another task."}
    history = [*call(1), *call(2)]
    one, two = memory.prompt([TASK, *history]), memory.prompt([other, *history])
    assert "state 1" in one[0]["content"] and "state 2" in two[0]["content"]
    assert memory.prompt([TASK, *history]) == one


def test_a_second_run_of_a_task_whose_ids_are_counted_anew_does_not_find_the_states_of_the_first():
    model = Model()
    memory = Memory("fold(1)", write=model)
    memory.prompt([TASK, *call(1), *call(2)])
    changed = {**call(2)[1], "content": "Oslo has a new mayor."}
    assert "state 2" in memory.prompt([TASK, *call(1), call(2)[0], changed])[0]["content"]
    clock = {"role": "system", "content": "It is 9:41."}
    assert "state 3" in memory.prompt([clock, TASK, *call(1), *call(2)])[1]["content"]


def test_a_model_that_never_writes_a_state_is_asked_ever_less_often():
    model = Model(*[""] * 99)
    run(Memory("fold(1)", write=model), 40)
    asked = [sum("tool_calls" in message for message in request) for request in model.requests]
    assert asked == [2, 2, 4, 4, 8, 8, 16, 16, 32, 32]


@pytest.mark.parametrize(
    "bad", [RuntimeError("503"), "", {"role": "assistant", "tool_calls": call(9)[0]["tool_calls"]}, 7]
)
def test_a_model_that_writes_no_state_is_asked_once_more_and_then_left_in_peace(bad: Any):
    history = [TASK, *call(1), *call(2)]
    model = Model(bad, "late")
    assert "late" in Memory("fold(1)", write=model).prompt(history)[0]["content"]
    model, events = Model(bad, bad), list[Event]()
    assert Memory("fold(1)", write=model, on_event=events.append).prompt(history) == history
    assert len(model.requests) == 2 and events[0].kind == "no_state" and events[0].why


def test_a_coroutine_writes_states_too_and_events_go_to_a_file(tmp_path: Path):
    async def write(messages: list[Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": "from a coroutine"}

    memory = Memory("fold(1)", write=write, events=tmp_path / "events.jsonl")
    seen = asyncio.run(memory.aprompt([TASK, *call(1), *call(2)]))
    assert "from a coroutine" in seen[0]["content"]
    (event,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert event["kind"] == "state" and event["state_after"] == "from a coroutine"


def test_a_state_that_says_what_the_last_one_said_is_told_too():
    model, events = Model(*["the same"] * 9), list[Event]()
    run(Memory("fold(1)", write=model, on_event=events.append), 6)
    assert [event.kind for event in events] == ["state"] * len(model.requests) and len(model.requests) > 2
    assert [event.state_before for event in events] == [None, *["the same"] * (len(events) - 1)]


def test_a_call_may_bring_its_own_writer_and_name_the_prompt_that_the_provider_counted():
    events: list[Event] = []
    memory = Memory("fold(1)", on_event=events.append)
    history = [TASK, *call(1), *call(2)]
    first = memory.prompt(history, write=Model("mine"))
    assert "mine" in first[0]["content"]

    async def write(messages: list[Any]) -> str:
        return "another"

    other = [{"role": "user", "content": "Another task."}, *call(1), *call(2)]
    assert "another" in asyncio.run(memory.aprompt(other, write=write))[0]["content"]
    memory.observe(10 * events[0].tokens_after, first)
    memory.prompt([*history, *call(3)], write=Model())
    assert 20 * events[0].tokens_before > events[-1].tokens_before > 10 * events[0].tokens_after


@pytest.mark.parametrize("counted", [0, 7])
def test_a_count_that_cannot_be_true_changes_nothing(counted: int):
    messages, told = [TASK], list[tuple[Memory, list[Event]]]()
    for _ in range(2):
        events = list[Event]()
        told.append((Memory("fold(auto)", write=Model(), prices="hosted-90", on_event=events.append), events))
    (memory, events), (calm, expected) = told
    for number in range(1, 30):
        messages += call(number)
        assert memory.prompt(messages) == calm.prompt(messages)
        memory.observe(prompt_tokens=counted)
    assert events == expected and [event.kind for event in events].count("state") > 1


def test_tools_that_the_provider_counts_make_no_message_longer():
    """Whether the caller names them or not."""
    told = []
    for beside in (None, 20_000):
        events: list[Event] = []
        memory = Memory("fold(1)", write=Model(), prices="hosted-90", on_event=events.append)
        history = [TASK]
        for number in range(1, 5):
            history += call(number)
            shown = memory.prompt(history, beside=beside)
            memory.observe(tokens_of(shown) + 20_000)
        assert events[-1].tokens_before == pytest.approx(20_000 + tokens_of(history), rel=0.01)
        assert events[-1].tokens_after == pytest.approx(20_000 + tokens_of(shown), rel=0.01)
        told.append(memory.advice(history, beside=beside))
    assert told[0] == told[1]


def test_where_there_are_no_tools_what_the_provider_counts_beyond_the_estimate_is_dense_text():
    events: list[Event] = []
    memory = Memory("fold(1)", write=Model(), on_event=events.append)
    history = [TASK]
    for number in range(1, 5):
        history += call(number)
        shown = memory.prompt(history, beside=0)
        memory.observe(2 * tokens_of(shown))
    assert events[-1].tokens_before == pytest.approx(2 * tokens_of(history), rel=0.01)
    assert events[-1].tokens_after == pytest.approx(2 * tokens_of(shown), rel=0.01)


def test_the_bound_of_the_prompt_holds_in_the_providers_tokens():
    memory, history = Memory("full", bounds=Bounds(prompt=6_000)), [TASK]
    counts = []
    for number in range(1, 30):
        history += call(number)
        shown = memory.prompt(history, beside=500)
        counts.append(2 * (tokens_of(shown) + 500))
        memory.observe(counts[-1])
    assert max(counts[1:]) <= 6_000 and max(counts) > 5_000


def test_a_conversation_that_begins_with_a_state_stays_as_it_is():
    begun = [*with_state([], "the state"), {"role": "user", "content": "Go on."}]
    assert Memory("fold(1)").without_states(begun) == begun


def test_a_state_may_be_a_message_of_a_providers_library():
    class Said(pydantic.BaseModel):
        role: str = "assistant"
        content: str = "of the library"
        refusal: str | None = None

    for said in (Said(), [Said()]):
        shown = Memory("fold(1)", write=lambda messages, said=said: said).prompt([TASK, *call(1), *call(2)])
        assert "of the library" in shown[0]["content"]


def test_recall_serves_the_whole_conversation_and_counts_follow_the_provider():
    events: list[Event] = []
    memory = Memory("archive(1)", on_event=events.append)
    seen = memory.prompt([TASK, *call(1), *call(2)])
    assert memory.recall(seen[2]["content"].partition('recall("')[2][:9]) == LONG
    with pytest.raises(UserError, match="no result has the handle"):
        memory.recall("r1")
    before = events[0].tokens_after
    memory.observe(prompt_tokens=3 * before)
    memory.prompt([TASK, *call(1), *call(2), *call(3)])
    assert events[1].tokens_after > 3 * before


def test_the_bound_of_a_prompt_leaves_room_for_what_the_provider_counts_beside_the_messages():
    memory, history, counted = Memory("full", bounds=Bounds(prompt=3_000)), [TASK], 0
    for number in range(1, 20):
        history += call(number)
        shown = memory.prompt(history)
        counted = tokens_of(shown) + 1_200  # tools
        assert number == 1 or counted <= 3_000
        memory.observe(counted)
    assert counted > 2_500
    # more than the bound leaves is no reason to end: the messages may be what was counted too low
    shown = memory.prompt(history)
    memory.observe(2 * tokens_of(shown) + 2_000)
    assert 200 <= tokens_of(memory.prompt(history)) < tokens_of(shown)
    with pytest.raises(UserError, match="leaves no room for messages: 2,900 are sent beside them"):
        Memory("full", bounds=Bounds(prompt=3_000)).prompt(history, beside=2_900)
    fresh = Memory("full", bounds=Bounds(prompt=3_000))
    assert tokens_of(fresh.prompt(history, beside=1_200)) <= 1_800 < tokens_of(fresh.prompt(history)) <= 3_000


@pytest.mark.parametrize(
    ("policy", "bounds", "shown"),
    [
        ("full", Bounds(), False),
        ("window(900)", Bounds(), False),
        ("fold(3)", Bounds(), False),
        ("archive(900)", Bounds(), True),
        ("notes", Bounds(), True),
        ("notes", Bounds(handles=False), False),
        ("full", Bounds(result=50), True),
        ("full", Bounds(images=0), True),
    ],
)
def test_recall_is_needed_where_the_model_may_see_a_handle(policy: str, bounds: Bounds, shown: bool):
    assert Memory(policy, bounds=bounds).shows_handles == shown


def test_a_conversation_with_its_state_is_all_that_another_process_needs():
    messages = [TASK, *(message for number in range(1, 6) for message in call(number))]
    first, second = Memory("fold(2)", write=Model()), Model()
    shown = first.prompt(messages)
    saved = first.with_state(messages)
    assert len(saved) == len(messages) + 2 and first.with_state(saved) == saved
    assert Memory("fold(2)", write=second).prompt(saved) == shown and second.requests == []


def test_fold_auto_needs_prices_and_folds_as_often_as_they_advise():
    with pytest.raises(UserError, match=r"fold\(auto\) needs prices, such as hosted-90"):
        Memory("fold(auto)", write=Model())
    model = Model()
    memory = Memory("fold(auto)", write=model, prices="open-weights", bounds=Bounds(state=100))
    run(memory, 12)
    cached = Model()
    run(Memory("fold(auto)", write=cached, prices="hosted-90", bounds=Bounds(state=100)), 12)
    assert len(model.requests) > len(cached.requests) > 0
    messages = [TASK, *(message for number in range(5) for message in call(number))]
    assert "is cheaper than appending from exchange" in memory.advice(messages)


def test_a_conversation_is_left_as_it_is_until_folding_would_have_been_cheaper():
    model, events = Model(), list[Event]()
    memory = Memory(
        "fold(auto)", write=model, prices="hosted-90", bounds=Bounds(state=100), only_if_cheaper=True,
        on_event=events.append,
    )  # fmt: skip
    shown = run(memory, 30)
    (told,) = [event for event in events if event.kind == "appends"]
    begins = int(told.why.split()[-2])
    assert told.exchange < begins < 30 and told.tokens_before == told.tokens_after
    assert [len(messages) for messages in shown[:begins]] == [1 + 2 * number for number in range(begins)]
    assert len(shown[begins]) == 3 and len(model.requests) > 1
    free = Prices(fresh=1, cached=0, write=1, output=5)
    never = Model()
    assert len(run(Memory("fold(auto)", write=never, prices=_own(free), only_if_cheaper=True), 30)[-1]) == 61


def _own(prices: Prices) -> PriceClass:
    return PriceClass(name="own", about="own", prices=prices, cache=PrefixCache())


SIZES = Sizes(prompt=3_000, exchange=1_650, action=150, state=500)


@pytest.mark.parametrize("writer", [False, True])
@pytest.mark.parametrize("name", PRICE_CLASSES)
def test_the_best_k_is_the_cheapest_of_a_long_run_played_call_by_call(name: str, writer: bool):
    from mem1.messages.cost import _costs

    prices = PRICE_CLASSES[name].prices
    totals = {k: sum(_costs(SIZES, prices, PrefixCache(), k, writer)) for k in range(1, 40)}
    cheapest = min(totals, key=lambda k: totals[k])
    assert abs(best_k(SIZES, prices, writer=writer) - cheapest) <= max(1, 0.15 * cheapest)


def test_folding_pays_from_some_exchange_on_or_never():
    free = Prices(fresh=1, cached=0, write=1, output=5)
    assert best_k(SIZES, free) == float("inf") and break_even(SIZES, free, PrefixCache(), 10) is None
    dear = Prices(fresh=1, cached=1, write=1, output=4)
    k = round(best_k(SIZES, dear))
    turn = break_even(SIZES, dear, PrefixCache(), k)
    assert turn is not None and k < turn < 4 * k + 5 < HORIZON


@pytest.mark.parametrize("name", PRICE_CLASSES)
def test_states_by_a_writer_pay_earlier_and_are_made_more_often(name: str):
    prices, cache = PRICE_CLASSES[name].prices, PRICE_CLASSES[name].cache
    own, by_writer = (round(best_k(SIZES, prices, writer=writer)) for writer in (False, True))
    assert by_writer < own
    turns = [break_even(SIZES, prices, cache, k, writer=writer) for k, writer in ((own, False), (by_writer, True))]
    assert turns[1] is not None and (turns[0] is None or turns[1] < turns[0])
    messages = [TASK, *(message for number in range(1, 9) for message in call(number))]
    writers: tuple[Any, ...] = (None, SimpleNamespace(write=list))
    said = [Memory("fold(auto)", prices=name, writer=writer).advice(messages) for writer in writers]
    assert said[0] != said[1]


def test_a_state_that_is_due_needs_somebody_who_writes_it():
    for policy in ("fold(4)", "constant", "summary(500)"):
        with pytest.raises(UserError, match=r"nobody can write the states of .*; give Memory or prompt `write`"):
            Memory(policy).prompt([TASK])
    for policy in ("notes", "window(1)"):
        assert Memory(policy).prompt([TASK, *call(1)])


def test_a_call_in_which_nobody_may_be_asked_goes_on_with_the_state_that_there_is():
    history = [TASK, *call(1), *call(2)]
    memory = Memory("fold(1)")
    assert memory.prompt(history, asks=False) == history
    memory.prompt(history, write=Model("mine"))
    longer = [*history, *call(3), *call(4)]
    seen = memory.prompt(longer, write=Model("another"), asks=False)
    assert "mine" in seen[0]["content"] and len(seen) < len(longer)


def test_a_coroutine_function_writes_for_aprompt_alone_and_a_plain_one_for_both():
    async def write(messages: list[Any]) -> str:
        return "awaited"

    history = [TASK, *call(1), *call(2)]
    with pytest.raises(UserError, match="coroutine function, which prompt cannot await; call aprompt"):
        Memory("fold(1)", write=write).prompt(history)
    for writer, said in (write, "awaited"), (lambda messages: "returned", "returned"):
        assert said in asyncio.run(Memory("fold(1)", write=writer).aprompt(history))[0]["content"]


class Message(dict):
    """One that can be watched."""


def test_a_memory_keeps_no_messages_of_conversations_that_are_over():
    memory = Memory("fold(2)", write=Model(), on_event=lambda event: None)
    result = Message(call(1)[1])
    watched = weakref.ref(result)
    memory.prompt([TASK, call(1)[0], result])
    memory.prompt([{"role": "user", "content": "Another task."}])
    assert watched() is result
    del result
    assert watched() is None


def test_what_is_sent_beside_the_messages_makes_states_dearer_and_rarer():
    memory = Memory("fold(auto)", prices="hosted-90")
    messages = [TASK, *(message for number in range(1, 9) for message in call(number))]
    every = [int(memory.advice(messages, beside=beside).split()[2]) for beside in (0, 20_000, 100_000)]
    assert every == sorted(set(every))


def test_a_state_of_many_lines_is_cut_without_counting_it_line_by_line():
    counted = 0

    def count(text: str) -> int:
        nonlocal counted
        counted += 1
        return len(text)

    lines = [f"{number:04}" for number in range(5_000)]
    bounds = Bounds(state=52, count=count)
    assert cut_state("\n".join(lines), bounds, oldest_first=False) == "\n".join(lines[:10])
    assert cut_state("\n".join(lines), bounds, oldest_first=True) == "\n".join(lines[-10:])
    assert cut_state("x" * 60 + "\nshort", bounds, oldest_first=False) == "x" * 52
    assert counted < 60


def test_thousands_of_parallel_calls_are_read_and_checked_in_linear_time():
    numbers = range(20_000)
    calls = [{"id": f"c{n}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for n in numbers]
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": "x"} for n in reversed(numbers)]
    messages = [TASK, {"role": "assistant", "content": None, "tool_calls": calls}, *results]
    check(fold(messages, "window(1)"))


@pytest.mark.parametrize("form", FORMS)
def test_what_is_shown_is_the_fold_of_the_conversation_with_its_state(form: str):
    random, shown = Random(0), 0
    for _ in range(12):
        memory = Memory("fold(2)", form=form, write=Model())
        for messages in prefixes(conversation(random, form, turns=10)):
            seen = memory.prompt(messages)
            with_it = memory.with_state(messages)
            assert seen == fold(with_it, "fold(2)", form=form)
            shown += len(with_it) > len(messages)
    assert shown > 100
