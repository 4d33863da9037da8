"""One memory, two renderers: of the same exchanges, token contexts and messages keep the same."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from mem1.errors import UserError
from mem1.memory import STATE, MemoryPolicy, memory_policy, next_context
from mem1.memory.policies import POLICIES
from mem1.messages import Bounds, Memory, ask, fold, recall, with_state
from mem1.messages.assembly import without_states
from mem1.messages.forms import CHAT
from mem1.messages.selecting import Retention, selected
from mem1.messages.transcript import Exchange, said, texts
from mem1.protocol import SUMMARY
from mem1.records import Turn, note_role

NAMES = (
    *("constant", "fold(2)", "fold(3)", "full", "window(1)", "window(3)", "masked", "masked(2)", "archive(2)"),
    *("notes", "notes(60)", "notebook(1)", "notebook(3)", "dropout(40)", "discard_all(150)", "summary(150)"),
    *("capped(20)", "belief", "external(1)", "external(3)", "none"),
)
BOUNDS = Bounds(state=100_000, count=lambda text: len(text.split()))
TASK = {"role": "user", "content": "Find the answers."}
WORDS = ["oslo", "bergen", "harbour", "1901", "mayor", "river", "bridge", "north", "tower", "wood"]


def exchange(number: int, random: Random) -> list[dict[str, Any]]:
    keys = random.choices(("", "", "harbour: ", "mayor: "), k=random.randint(1, 2))
    notes = "".join(f"<note>{key}{' '.join(random.choices(WORDS, k=random.randint(1, 9)))}</note>" for key in keys)
    function = {"name": "search", "arguments": random.choice(WORDS)}
    return [
        {"role": "assistant", "content": notes, "tool_calls": [{"id": f"c{number}", "function": function}]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": " ".join(random.choices(WORDS, k=30))},
    ]


def as_turn(messages: list[dict[str, Any]], state: int) -> Turn:
    """A turn of as many tokens as the exchange counts, with the same notes and words, and a state of `state` tokens."""
    (part,) = CHAT.read([TASK, *messages]).parts[1:]
    assert isinstance(part, Exchange)
    one = selected_view(messages)
    spans = {"state_text": (0, state)}
    end = state
    for position in range(len(one.notes)):
        spans[note_role(position)] = (end, end + one.note_tokens(position))
        end += one.note_tokens(position)
    return Turn(
        context_ids=(0,),
        completion_ids=(1,) * one.said_tokens,
        observation_ids=(2,) * one.result_tokens,
        action="search",
        notes=one.notes,
        state=said(part),
        content=" ".join(f"{call.name} {call.arguments}" for call in part.calls),
        observation=" ".join(texts(result.message["content"]) for result in part.results),
        completion_spans=spans,
    )


def selected_view(messages: list[dict[str, Any]]) -> Any:
    """The exchange as memories of chat agents see it."""
    seen: list[Any] = []

    class Spy(MemoryPolicy):
        def select(self, turns):
            seen.extend(turns)
            return memory_policy("full").select(turns)

    selected(CHAT.read([TASK, *messages]).parts, None, 0, Spy(), CHAT, BOUNDS, ())
    return seen[0]


def kept_of_tokens(policy: MemoryPolicy, turns: list[Turn]) -> list[tuple[Any, ...]]:
    """Per turn, what stays of it; summaries are written whenever they are requested."""
    if policy.select(turns).requested_action == SUMMARY:
        length = len(STATE_TEXT.split())
        turns.append(
            Turn(
                context_ids=(0,),
                completion_ids=(3,) * length,
                action=SUMMARY,
                content=STATE_TEXT,
                completion_spans={"state_text": (0, length)},
            )
        )
    kept = {id(one.turn): one for one in policy.select(turns).kept}
    found: list[tuple[Any, ...]] = []
    for turn in turns:
        if turn.action != SUMMARY:
            one = kept.get(id(turn))
            notes = () if one is None or one.only_notes is None else tuple(turn.notes[p] for p in one.only_notes)
            found.append(("nothing",) if one is None else ("notes", *notes) if notes else ("said", one.result))
    return found


def kept_of_messages(policy: MemoryPolicy, messages: list[Any]) -> list[tuple[Any, ...]]:
    """The same of messages, where a state is written whenever one is due."""
    if ask(messages, policy, bounds=BOUNDS) is not None:
        messages[:] = with_state(messages, STATE_TEXT)
        assert ask(messages, policy, bounds=BOUNDS) is None, "a state that was just written is due again"
    parts, state, boundary = without_states(CHAT.read(messages), CHAT)
    chosen = selected(parts, state, boundary, policy, CHAT, BOUNDS, ())
    names = {Retention.NOTHING: ("nothing",), Retention.WHOLE: ("said", True)}
    return [
        ("notes", *chosen.notes[at]) if at in chosen.notes else names.get(stay, ("said", False))
        for at, stay in chosen.stays.items()
    ]


STATE_TEXT = "the state so far, in ten words or so, " * 2


def test_every_memory_that_ships_is_compared():
    assert {name.partition("(")[0] for name in NAMES} == set(POLICIES)


@pytest.mark.parametrize("name", NAMES)
def test_tokens_and_messages_keep_the_same_exchanges(name: str):
    policy, random = memory_policy(name), Random(name)
    different = set()
    for _ in range(6):
        messages: list[Any] = [TASK]
        turns: list[Turn] = []
        for number in range(1, 15):
            new = exchange(number, random)
            messages += new
            turns.append(as_turn(new, state=30))
            mine, theirs = kept_of_tokens(policy, turns), kept_of_messages(policy, messages)
            assert mine == theirs, (number, name)
            different.add(tuple(kind for kind, *_ in mine))
            assert next_context(policy, (7, 7), turns).ids[:2] == (7, 7)
    assert len(different) > 3, "the memory did nothing in all these conversations"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "full"])
def test_a_memory_that_asks_for_nothing_drops_at_once_and_one_of_states_waits_for_them(name: str):
    policy, random = memory_policy(name), Random(1)
    messages: list[Any] = [TASK]
    for number in range(1, 15):
        messages += exchange(number, random)
    parts, state, boundary = without_states(CHAT.read(messages), CHAT)
    stays = set(selected(parts, state, boundary, policy, CHAT, BOUNDS, ()).stays.values())
    assert (stays == {Retention.WHOLE}) == bool(policy.asks in ({STATE}, {SUMMARY}))


def test_the_notes_out_of_sight_can_be_had_back_by_name():
    random, messages = Random(2), [TASK]
    for text in ("harbour: 1901", "oak", "harbour: 1902", "mayor: Anne", "north"):
        call, result = exchange(len(messages), random)
        messages += [{**call, "content": f"<note>{text}</note>"}, result]
    memory = Memory("notebook(2)")
    shown = memory.prompt(messages)
    block = shown[0]["content"].partition("<memory>\n")[2]
    assert [line.partition(" [")[0] for line in block.splitlines()[:-1]] == ["- harbour: 1902", "- mayor: Anne"]
    assert memory.recall("notes") == recall(messages, "notes")
    assert memory.recall("notes").splitlines() == ["- oak", "- harbour: 1902", "- mayor: Anne", "- north"]
    assert recall([TASK], " Notes ") == "nothing was noted yet"


def test_what_is_masked_is_gone_and_what_is_archived_has_a_handle():
    random, messages = Random(3), [TASK]
    for number in range(3):
        messages += exchange(number, random)
    masked, archived = (Memory(name).prompt(messages)[2]["content"] for name in ("masked", "archive(1)"))
    assert masked.endswith("was dropped]") and archived.startswith(masked[:-1]) and "; recall(" in archived


@pytest.mark.parametrize("name", ["archive(2)", "notebook(2)"])
def test_a_memory_that_needs_recall_is_refused_where_nobody_can_call_it(name: str):
    with pytest.raises(UserError, match="needs the tool recall, which nobody can call here"):
        Memory(name, bounds=Bounds(handles=False))


def test_a_capped_state_is_cut_to_its_limit():
    state = " ".join(["word"] * 60)
    random, messages = Random(4), [TASK]
    for number in range(3):
        messages += exchange(number, random)
    messages = with_state(messages, state)
    counted = Bounds(count=lambda text: len(text.split()))
    cut, whole = (
        fold(messages, name, bounds=counted)[0]["content"].partition("<memory>\n")[2].removesuffix("\n</memory>")
        for name in ("capped(20)", "constant")
    )
    assert (len(cut.split()), whole) == (20, state)
