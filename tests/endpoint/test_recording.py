"""The record of an agent's calls, call by call in an order of the test's own: numbers, seeds, copies, endings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import pytest
from agent_rollouts import Down, attempt, rollout
from endpoint_agents import result, user
from endpoints import CALL, END, chat_of, letters
from worlds import task

from mem1.endpoint.chat_api import ChatRequest
from mem1.endpoint.recording import OVER, Bounds, Claim, Pending, Recording, Refused, key_of
from mem1.endpoint.rollout import _ending
from mem1.endpoint.runs import Returned, _read_line
from mem1.endpoint.sampling import Closed, JoinedCalls
from mem1.engines.base import Completion, Sampling
from mem1.engines.chat_messages import ChatMessages
from mem1.engines.request_queue import Row
from mem1.envs.base import Action, Observation, Outcome
from mem1.errors import UserError
from mem1.messages import Bounds as MemoryBounds
from mem1.messages import Memory
from mem1.records import Ended, Turn

CHAT = chat_of()
BOUNDS = Bounds(calls=50, completion=200, context=4000)


def recording(says: Callable[[str], str] | None = None, *, chat: ChatMessages = CHAT, **more: Any) -> Recording:
    """An attempt whose policy says what `says` makes of a context, else the seed that it was drawn with."""

    def sample(context: tuple[int, ...], most: int, seed: int) -> Completion:
        text = f"{seed}{END}" if says is None else says(chat.codec.decode(context))
        ids = letters(chat, text)[:most]
        return Completion(token_ids=ids, logprobs=(-0.5,) * len(ids), stopped=len(ids) < most)

    given = {"task": task("Oslo"), "number": 0, "chat": chat, "bounds": BOUNDS, "seed": 0, "sample": sample}
    return Recording(**{**given, **more})


def ask(at: Recording, *messages: Any, claim: Claim | None = None, **more: Any) -> Pending:
    return at.call(ChatRequest(messages=list(messages), **more), claim or Claim())


def hang_up(at: Recording, *messages: Any) -> None:
    """A call whose client is gone when it is answered."""
    claim = Claim()
    ask(at, *messages, claim=claim)
    at.give_up(claim)


def say(at: Recording, *messages: Any, **more: Any) -> dict[str, Any]:
    pending = ask(at, *messages, **more)
    assert at.accept(pending)
    return dict(pending.reply.message)


def copied(turn: Turn) -> list[int]:
    """The turns of which its context holds tokens, in the order in which it does."""
    return [number for number, *_ in turn.context_origins if number]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_turns_stand_in_the_order_of_their_calls_whichever_reply_went_out_first(order: tuple[int, ...]):
    at = recording(lambda context: f"{context.count('?')}{END}")
    waiting = [ask(at, user("?" * number)) for number in (1, 2, 3)]
    for number in order:
        at.accept(waiting[number])
    says = [{"role": "assistant", "content": str(number)} for number in (1, 2, 3)]
    both = say(at, user("?"), says[2], user("and"), says[0])
    turns = at.end()
    assert [turn.text.removesuffix(END) for turn in turns] == ["1", "2", "3", both["content"]]
    assert copied(turns[3]) == [3, 1]


def test_a_place_that_nobody_took_is_given_to_the_next_call_and_no_other():
    """Of four calls of one context the second and the third hang up; the next two get just what these would have."""
    fresh = recording()
    seeds = [ask(fresh, user("same")).place.seed for _ in range(6)]
    assert len(set(seeds)) == 6
    at = recording()
    claims = [Claim() for _ in range(4)]
    first = [ask(at, user("same"), claim=claim) for claim in claims]
    assert [pending.place.seed for pending in first] == seeds[:4]
    for number in (2, 1, 1):
        at.give_up(claims[number])
    assert at._begun == 2
    at.accept(first[3])
    at.accept(first[0])
    again = [ask(at, user("same")) for _ in range(4)]
    assert [pending.place.seed for pending in again] == [seeds[1], seeds[2], seeds[4], seeds[5]]
    for pending in again:
        at.accept(pending)
    assert sorted(turn.text for turn in at.end()) == sorted(f"{seed}{END}" for seed in seeds)


def test_a_call_whose_client_is_gone_is_free_while_it_is_still_sampled():
    begun, done = threading.Event(), threading.Event()

    def sample(context: tuple[int, ...], most: int, seed: int) -> Completion:
        if not begun.is_set():
            begun.set()
            assert done.wait(30)
        return Completion(token_ids=letters(CHAT, f"{seed}{END}"), stopped=True)

    seed = ask(recording(), user("same")).place.seed
    at, claim = recording(sample=sample, bounds=Bounds(calls=1, completion=200, context=4000)), Claim()
    slow = threading.Thread(target=lambda: ask(at, user("same"), claim=claim))
    slow.start()
    assert begun.wait(30)
    at.give_up(claim)
    again = ask(at, user("same"))
    done.set()
    slow.join()
    assert again.place.seed == seed and at.accept(again) and at.trouble is None and len(at.end()) == 1


def test_a_call_whose_client_is_gone_before_it_is_looked_at_takes_up_nothing():
    at, claim = recording(bounds=Bounds(calls=1, completion=200, context=4000)), Claim()
    at.give_up(claim)
    with pytest.raises(Refused, match="hung up"):
        ask(at, user("same"), claim=claim)
    assert say(at, user("same")) and at.trouble is None


def test_a_call_whose_sampling_raised_is_drawn_like_the_first_when_it_comes_again():
    outcomes: Iterator[Any] = iter([RuntimeError("full"), None, None])

    def sample(context: tuple[int, ...], most: int, seed: int) -> Completion:
        if (error := next(outcomes)) is not None:
            raise error
        return Completion(token_ids=letters(CHAT, f"{seed}{END}"), stopped=True)

    fresh = recording()
    seeds = [ask(fresh, user("same")).place.seed for _ in range(2)]
    at = recording(sample=sample)
    with pytest.raises(Refused, match="the engine failed: RuntimeError") as raised:
        ask(at, user("same"))
    assert (raised.value.status, raised.value.ended) == (503, Ended.ENGINE_FAILED)
    assert [ask(at, user("same")).place.seed for _ in range(2)] == seeds


def test_a_seed_is_of_the_run_the_task_the_attempt_the_context_and_its_repetition():
    def seeds(**more: Any) -> list[int]:
        at = recording(**more)
        return [ask(at, user(text)).place.seed for text in ("a", "b", "a")]

    other = task("Oslo")
    object.__setattr__(other, "id", "other")
    found = [seeds(), seeds(seed=1), seeds(number=1), seeds(task=other)]
    assert seeds() == found[0]
    assert len({seed for one in found for seed in one}) == 12


@pytest.mark.parametrize(
    ("refused", "first"),
    [
        (lambda at: ask(at, user("n"), n=2), Ended.AGENT_FAILED),
        (lambda at: ask(at, user("long " * 2000)), Ended.OUT_OF_TOKENS),
        (lambda at: ask(at, {"role": "user", "content": [{"type": "image_url"}]}), Ended.AGENT_FAILED),
        (lambda at: ask(at, user("n"), {"role": "assistant", "content": "x", "tool_calls": 5}), Ended.AGENT_FAILED),
        (lambda at: ask(at, {"role": ["user"], "content": "x"}), Ended.AGENT_FAILED),
        (lambda at: hang_up(at, user("gone")), Ended.OUT_OF_TURNS),
    ],
    ids=["setting", "length", "image", "calls", "role", "hang-up"],
)
def test_a_call_that_is_refused_or_dropped_uses_up_none(refused: Callable[[Recording], Any], first: Ended):
    at = recording(bounds=Bounds(calls=3, completion=200, context=4000))
    for number in range(3):
        for _ in range(2):
            try:
                refused(at)
            except Refused as error:
                assert error.status == 400
        say(at, user(f"{number}"))
    for _ in range(2):
        with pytest.raises(Refused, match="has made its 3 calls") as raised:
            ask(at, user("one more"))
        assert raised.value.ended is Ended.OUT_OF_TURNS
    assert len(at.end()) == 3 and at.trouble is not None and at.trouble[0] is first


def test_a_context_may_fill_the_bound_to_its_last_token():
    at = recording()
    length = len(ask(at, user("hi")).place.context)
    fits = recording(bounds=Bounds(calls=9, completion=30, context=length + 30))
    say(fits, user("hi"))
    tight = recording(bounds=Bounds(calls=9, completion=30, context=length + 29))
    with pytest.raises(Refused, match=f"a context of {length} tokens leaves no room for 30 within {length + 29}"):
        ask(tight, user("hi"))
    say(tight, user("hi"), max_tokens=29)


def test_what_came_back_late_is_told_that_the_attempt_is_over_and_leaves_no_trace():
    at = recording()
    late = ask(at, user("late"))
    say(at, user("in time"))
    assert len(at.end()) == 1
    assert not at.accept(late)
    with pytest.raises(Refused, match=OVER) as raised:
        ask(at, user("later"))
    assert raised.value.status == 409 and at.trouble is None and len(at.end()) == 1


CONTENTS = {
    "role": ({"role": "system", "content": "x"}, {"role": "user", "content": "x"}),
    "content": (user("x"), user("y")),
    "parts": (user("x"), {"role": "user", "content": [{"type": "text", "text": "y"}]}),
    "number": ((user("x"),), (user("x"), user("x"))),
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_of_equal_replies_the_one_after_these_messages_is_copied(kind: str):
    """Whichever was sampled last; where none was sampled after them, the latest is meant."""
    befores: list[list[Any]] = [list(x) if isinstance(x, tuple) else [x] for x in CONTENTS[kind]]
    ok = {"role": "assistant", "content": "ok"}
    for first, second in (befores, befores[::-1]):
        at = recording(lambda _: f"ok{END}")
        for before in (first, second):
            say(at, user("ask"), *before, user("?"))
        for before in (first, second):
            say(at, user("ask"), *before, user("?"), ok, user("well ?"))
        say(at, user("elsewhere"), ok, user("well ?"))
        assert [copied(turn) for turn in at.end()[2:]] == [[1], [2], [4]]


def test_of_equal_calls_the_one_with_this_id_is_copied_and_ids_of_results_tell_apart_what_follows():
    """Two samples of one context make the same call, and the same reply follows both results."""

    def says(context: str) -> str:
        return f"ok{END}" if "<tool_response>" in context else f"{CALL.format('Oslo')}{END}"

    at = recording(says)
    calls = [say(at, user("ask")) for _ in range(2)]
    ids = [said["tool_calls"][0]["id"] for said in calls]
    assert len(set(ids)) == 2
    after = [[user("ask"), said, result(said["tool_calls"][0], "A city.")] for said in calls]
    for messages in after:
        say(at, *messages)
    for messages in reversed(after):
        say(at, *messages, {"role": "assistant", "content": "ok"}, user("well ?"))
    turns = at.end()
    assert [copied(turn) for turn in turns[2:]] == [[1], [2], [2, 4], [1, 3]]
    assert [turn.observation for turn in turns[:3]] == ["A city.", "A city.", ""]


@pytest.mark.parametrize("differ", ["calls", "results"])
def test_ids_of_calls_and_of_results_each_tell_messages_apart(differ: str):
    """Two calls that nobody answered; and the same two results of one message, in either order."""
    two = f"{CALL.format('a')}\n{CALL.format('b')}{END}"
    at = recording(lambda context: f"ok{END}" if "go on" in context else two)
    first, second = (say(at, user("ask")) for _ in range(2))
    made = [result(call, "found") for call in first["tool_calls"]]
    ways = [[first], [second]] if differ == "calls" else [[first, *made], [first, *made[::-1]]]
    for way in ways:
        say(at, user("ask"), *way, user("go on"))
    for way in ways:
        say(at, user("ask"), *way, user("go on"), {"role": "assistant", "content": "ok"}, user("well ?"))
    assert [copied(turn)[-1] for turn in at.end()[4:]] == [3, 4]


def test_a_message_is_known_by_what_it_says_in_whatever_order_a_framework_writes_it():
    def message(arguments: str, id: str = "c1", name: str = "search", content: Any = "hm") -> dict[str, Any]:
        function = {"name": name, "arguments": arguments}
        return {
            "role": "assistant",
            "content": content,
            "tool_calls": [{"id": id, "type": "function", "function": function}],
        }

    one = key_of(message('{"a": {"x": 1, "y": [2, 3]}, "b": "c"}'))
    assert (
        one
        == key_of(message('{"b":"c","a":{"y":[2,3],"x":1}}'))
        == key_of({**message('{ "b": "c", "a": {"x": 1, "y": [2, 3]}}')})
    )
    assert one == key_of(message('{"a": {"x": 1, "y": [2, 3]}, "b": "c"}', content=[{"type": "text", "text": "hm"}]))
    others = [
        message('{"a": {"x": 1, "y": [3, 2]}, "b": "c"}'),
        message('{"a": {"x": 1, "y": [2, 3]}, "b": "c"}', id="c2"),
        message('{"a": {"x": 1, "y": [2, 3]}, "b": "c"}', name="find"),
        message('{"a": {"x": 1, "y": [2, 3]}, "b": "c"}', content="ha"),
        message('{"a": {"x": 1, "y": [2, 3]}}'),
        {"role": "assistant", "content": "hm"},
    ]
    assert len({one, *map(key_of, others)}) == 7
    two = message("{}", id="c1")["tool_calls"] + message("{}", id="c2")["tool_calls"]
    assert key_of({"content": "", "tool_calls": two}) != key_of({"content": "", "tool_calls": two[::-1]})


def test_what_a_call_returned_is_what_came_first_with_its_id_after_its_message():
    two = f"{CALL.format('a')}\n{CALL.format('b')}{END}"
    at = recording(lambda context: f"done{END}" if "<tool_response>" in context else two)
    said = say(at, user("ask"))
    one, other = said["tool_calls"]
    before = result({"id": one["id"]}, "from before")
    stranger = result({"id": "strange"}, "a stranger's")
    say(at, user("ask"), before, said, result(one, "of a"), result(other, "of b"), stranger)
    say(at, user("ask"), said, result(one, "shorter"), result(other, "shorter"))
    turns = at.end()
    assert [turn.observation for turn in turns] == ["of a\nof b", "", ""]
    length = len(turns[1].context_ids) - len(turns[0].context_ids + turns[0].completion_ids)
    assert 0 < len(turns[0].observation_ids) < length


def test_what_a_memory_has_written_costs_no_call_and_has_a_seed_of_its_own():
    drawn: list[int] = []

    def sample(context: tuple[int, ...], most: int, seed: int) -> Completion:
        drawn.append(seed)
        asked = "Write your memory now" in CHAT.codec.decode(context).rpartition("<|im_start|>user")[2]
        text = f"A state.{END}" if asked else f"{CALL.format('Oslo')}{END}"
        return Completion(token_ids=letters(CHAT, text), stopped=True)

    memory = Memory("fold(1)", bounds=MemoryBounds(handles=False))
    at = recording(sample=sample, memory=memory, bounds=Bounds(calls=3, completion=200, context=4000))
    messages: list[Any] = [user("ask")]
    for _ in range(3):
        said = say(at, *messages)
        messages += [said, result(said["tool_calls"][0], "A city.")]
    with pytest.raises(Refused, match="has made its 3 calls"):
        ask(at, *messages)
    turns = at.end()
    assert [turn.action for turn in turns] == ["search", "search", "summary", "search"]
    assert [turn.state for turn in turns] == ["", "", "A state.", ""] and len(set(drawn)) == len(drawn) == 4


def test_a_model_server_that_fails_to_write_a_state_fails_the_attempt_though_it_goes_on():
    def sample(context: tuple[int, ...], most: int, seed: int) -> Completion:
        text = CHAT.codec.decode(context)
        if "Write your memory now" in text.rpartition("<|im_start|>user")[2]:
            return Completion(token_ids=(), failed="no server")
        return Completion(token_ids=letters(CHAT, f"{CALL.format('Oslo')}{END}"), stopped=True)

    at = recording(sample=sample, memory=Memory("fold(1)", bounds=MemoryBounds(handles=False)))
    messages: list[Any] = [user("ask")]
    for _ in range(3):
        said = say(at, *messages)
        messages += [said, result(said["tool_calls"][0], "A city.")]
    assert at.trouble == (Ended.ENGINE_FAILED, "no server")
    assert _ending(at, Returned(answer="Oslo")) == (Ended.ENGINE_FAILED, "no server")


GRAVE = [Ended.TOOL_FAILED, Ended.ENGINE_FAILED]
"""Nobody's fault but the tool's or the server's: such an attempt is not scored, whatever the agent makes of it."""


@pytest.mark.parametrize("grave", GRAVE)
@pytest.mark.parametrize(
    "returned",
    [
        Returned(),
        Returned(answer="Oslo"),
        Returned(reward=1.0),
        Returned(failed=(Ended.AGENT_FAILED, "it raised")),
        Returned(failed=(Ended.OUT_OF_TIME, "too late")),
    ],
)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_what_failed_ends_the_attempt_whatever_was_refused_before_or_after(
    grave: Ended, returned: Returned, order: int
):
    at = recording(bounds=Bounds(calls=0, completion=200, context=4000))
    for step in range(3):
        if step == order:
            at.fail(grave, "down")
        with pytest.raises(Refused):
            ask(at, user("x"), **({"n": 2} if step else {}))
    at.fail(Ended.TOOL_FAILED if grave is Ended.ENGINE_FAILED else Ended.ENGINE_FAILED, "later")
    at.answer = "bought"
    assert _ending(at, returned) == (grave, "down")


@pytest.mark.parametrize(
    ("returned", "bought", "ended"),
    [
        (Returned(), None, (Ended.OUT_OF_TURNS, "calls")),
        (Returned(), "a shoe", (Ended.ANSWERED, "")),
        (Returned(answer=""), None, (Ended.ANSWERED, "")),
        (Returned(reward=0.0), None, (Ended.ANSWERED, "")),
        (Returned(failed=(Ended.AGENT_FAILED, "it raised")), "a shoe", (Ended.OUT_OF_TURNS, "calls")),
        (Returned(failed=(Ended.OUT_OF_TIME, "late")), None, (Ended.OUT_OF_TIME, "late")),
    ],
)
def test_a_mere_refusal_is_the_end_only_of_what_did_not_survive_it(
    returned: Returned, bought: str | None, ended: tuple[Ended, str]
):
    at = recording(answer=bought)
    at.fail(Ended.OUT_OF_TURNS, "calls")
    at.fail(Ended.OUT_OF_TOKENS, "not the first")
    assert _ending(at, returned) == ended
    calm = recording(answer=bought)
    assert _ending(calm, returned) == (returned.failed or (Ended.ANSWERED, ""))


class Flaky(Down):
    """Fails once, in the middle."""

    def __init__(self) -> None:
        self.asked = 0

    def observe(self, actions: Any) -> list[Observation]:
        self.asked += len(actions)
        return [Observation(text="", failed="down") if self.asked == 2 else Observation(text="found") for _ in actions]

    def score(self, task: Any, answer: str) -> Outcome:
        raise AssertionError("a score would measure the tool")


def test_a_tool_that_failed_once_leaves_the_attempt_unscored_with_the_agents_own_reward_too():
    found = attempt(rollout("asks_thrice", environment=Flaky()))
    assert (found.ended, found.detail, found.reward, found.metrics) == (Ended.TOOL_FAILED, "down", None, {})
    assert found.answer == "found, error: down, found"


def test_calls_that_are_joined_keep_their_contexts_bounds_and_seeds_and_one_bad_action_fails_alone():
    asked: list[Any] = []

    class Noting:
        concurrency = 8

        def complete(self, contexts: Any, *, max_tokens: Any, sampling: Sampling) -> list[Completion]:
            asked.extend(zip(contexts, max_tokens, sampling.seeds_for(len(contexts)), strict=True))
            return [Completion(token_ids=tuple(context[:1])) for context in contexts]

    class Picky(Down):
        def observe(self, actions: Any) -> list[Observation]:
            if any(action.kind == "fly" for action in actions):
                raise UserError("no action 'fly'")
            return [Observation(text=action.argument) for action in actions]

    one = task("Oslo")
    actions = [Action(one, "search", "a"), Action(one, "fly", "b"), Action(one, "search", "c")]
    rows = [Row((number, 1), 10 + number, 20 + number) for number in range(3)]
    with JoinedCalls(Noting(), Picky(), Sampling(seed=9)) as calls:
        found = [calls.complete(row) for row in rows]
        a, b, c = calls._observe(actions, "search")
        with pytest.raises(UserError, match="no action 'fly'"):
            calls.observe(actions[1])
        assert calls.error is None
    assert asked == rows and [one.token_ids for one in found] == [(0,), (1,), (2,)]
    assert (a, c) == (Observation(text="a"), Observation(text="c")) and isinstance(b, UserError)
    with pytest.raises(Closed):
        calls.observe(actions[0])


@pytest.mark.parametrize(
    ("line", "returned"),
    [
        ("", Returned()),
        ("Oslo", Returned(answer="Oslo")),
        ("7", Returned(answer="7")),
        ('{"city": "Oslo"}', Returned(answer='{"city": "Oslo"}')),
        ('{"answer": "Oslo"}', Returned(answer="Oslo")),
        ('{"answer": null}', Returned()),
        ('{"answer": 0.5}', Returned(answer="0.5")),
        ('{"answer": 1901}', Returned(answer="1901")),
        (
            '{"answer": true}',
            Returned(failed=(Ended.AGENT_FAILED, "the agent returned the answer True; it must be text or a number")),
        ),
        ('{"answer": "Oslo", "reward": 0}', Returned(reward=0.0)),
    ],
)
def test_what_the_last_line_of_a_program_says(line: str, returned: Returned):
    assert _read_line(line) == returned
