"""What the viewer shows of a trajectory: exact contexts in pieces, what was dropped, the state's words, the facts."""

from __future__ import annotations

import base64
import gzip
import json
import time
from collections.abc import Sequence

import pytest
from builders import POLICIES
from hypothesis import given, settings
from hypothesis import strategies as st
from reports import CODEC, HOSTILE, atlas, attempts, decode_words, hostile_attempt
from tag_sets import PAPER_SUMMARY
from worlds import SAMPLING, replay, rollout, shelf, task

from mem1.engines.codec import Codec
from mem1.evaluation.fact_retention import facts_of
from mem1.evaluation.report.token_attribution import Piece, cut, dropped, texts_between
from mem1.evaluation.report.viewer_data import PageData, changes, facts_by_turn
from mem1.memory import Capped, Full, MemoryPolicy, NoMemory, next_context
from mem1.pages.page import compressed, inflated
from mem1.policy.folders import SHIPPED, SHIPPED_SHOP, policy_folder
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.records import Question, Task, Trajectory, Turn


def read(data: PageData, flat: list[int]) -> list[Piece]:
    """The pieces of the page's data, as the viewer reads them."""
    strings, roles = data.strings.values, data.roles.values
    return [
        Piece(roles[role], strings[text], tokens, turn or None)
        for role, text, tokens, turn in zip(*[iter(flat)] * 4, strict=True)
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_data_hold_exactly_what_the_tokenizer_makes_of_each_context_completion_and_result(policy):
    trajectories = attempts(atlas(), 4, context=policy)
    data = PageData()
    data.add_group("x", 1)
    for trajectory in trajectories:
        data.add(trajectory, CODEC.decode)
    compared = 0
    for trajectory, shown in zip(trajectories, data.as_json()["trajectories"], strict=True):
        for turn, written in zip(trajectory.turns, shown["turns"], strict=True):
            for name, ids in (
                ("context", turn.context_ids),
                ("completion", turn.completion_ids),
                ("result", turn.observation_ids),
            ):
                pieces = read(data, written[name])
                assert "".join(piece.text for piece in pieces) == CODEC.decode(ids)
                assert sum(piece.tokens for piece in pieces) == len(ids)
                compared += len(ids)
    assert compared > 3000


@pytest.mark.parametrize(
    ("policy", "kept"),
    [("constant", {5}), ("full", {1, 2, 3, 4, 5}), ("window(2)", {4, 5}), ("fold(2)", {5}), ("fold(3)", {4, 5})],
)
def test_the_turns_that_a_policy_keeps_are_named(policy, kept):
    (trajectory,) = [t for t in attempts(atlas(), 4, context=policy) if len(t.turns) >= 6][:1]
    pieces = cut(trajectory.turns, CODEC.decode)
    assert {p.turn for p in pieces[5].context if p.turn} == kept
    assert [p.role for p in pieces[5].context] == ["prompt"] + ["state", "query", "result"] * len(kept)
    gone = {p.turn for p in dropped(pieces[4], pieces[5].context)}
    before = {p.turn for p in pieces[4].context if p.turn} | {5}
    assert gone == before - kept


def test_what_constant_drops_is_the_turn_before_the_last_one():
    (trajectory,) = [t for t in attempts(atlas(), 2) if len(t.turns) >= 3][:1]
    one, two, three = cut(trajectory.turns, CODEC.decode)[:3]
    assert dropped(one, two.context) == []
    gone = dropped(two, three.context)
    assert [(p.role, p.turn) for p in gone] == [("state", 1), ("query", 1), ("result", 1)]


def first_turn(*completion: int, result: tuple[int, ...], **spans: tuple[int, int]) -> Turn:
    return Turn(
        context_ids=(0,),
        completion_ids=completion,
        observation_ids=result,
        context_spans={"prompt": (0, 1)},
        completion_spans=spans,
    )


def numbers(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def following(policy: MemoryPolicy, *turns: Turn) -> Turn:
    """The turn that a policy's next context begins."""
    context = next_context(policy, (0,), turns)
    origins = context.origins
    return Turn(context_ids=context.ids, completion_ids=(9,), context_spans=context.spans, context_origins=origins)


def test_equal_turns_are_told_apart():
    again = first_turn(1, 2, result=(3,))
    other = first_turn(1, 2, result=(3,))
    context = cut((again, other, following(Full(), again, other)), numbers)[2].context
    assert [(p.turn, p.role, p.tokens) for p in context if p.turn] == [
        (1, "text", 2), (1, "result", 1), (2, "text", 2), (2, "result", 1),
    ]  # fmt: skip


def test_a_thought_that_does_not_survive_is_dropped_and_the_rest_is_found():
    first = first_turn(1, 2, 3, 4, 5, 6, result=(7, 8), thought=(0, 2), state=(2, 4), action=(4, 6))
    before, after = cut((first, following(Full(), first)), numbers)
    assert after.context == [
        Piece("prompt", "0", 1, None),
        Piece("state", " 3 4", 2, 1),
        Piece("query", " 5 6", 2, 1),
        Piece("result", " 7 8", 2, 1),
    ]
    assert dropped(before, after.context) == [Piece("thought", "1 2", 2, 1)]


def test_of_a_state_that_is_capped_the_copy_is_found_and_the_rest_is_dropped():
    #                  <IS> a b c d </IS>  query
    first = first_turn(
        50, 1, 2, 3, 4, 51, 60, 61, result=(70, 71), state=(0, 6), state_text=(1, 5), action=(6, 8)
    )  # fmt: skip
    before, after = cut((first, following(Capped(2), first)), numbers)
    assert after.context == [
        Piece("prompt", "0", 1, None),
        Piece("state", " 50 1 2 51", 4, 1),
        Piece("query", " 60 61", 2, 1),
        Piece("result", " 70 71", 2, 1),
    ]
    assert [(p.role, p.text.strip(), p.tokens, p.turn) for p in dropped(before, after.context)] == [
        ("state", "3 4", 2, 1)
    ]


def test_a_state_that_none_keeps_is_dropped_whole():
    first = first_turn(1, 2, 3, 4, result=(), state=(0, 2), action=(2, 4))
    before, after = cut((first, following(NoMemory(), first)), numbers)
    assert [(p.role, p.turn) for p in after.context] == [("prompt", None), ("query", 1)]
    assert [(p.role, p.tokens, p.turn) for p in dropped(before, after.context)] == [("state", 2, 1)]


def test_a_summary_is_found_with_its_tag_and_is_not_dropped_while_it_stands_there():
    searches = [f"<IS> now Q{i} </IS> <query> city {i} </query>" for i in (1, 2, 3)]
    completions = [*searches[:2], "Q1 then Q2 </summary>", searches[2], "<IS> done </IS> <answer> Q1 city </answer>"]
    codec = Codec(atlas_tokenizer(PAPER_SUMMARY))
    run = rollout(replay(*completions), shelf("a book ."), context="summary(30)", codec=codec, tags=PAPER_SUMMARY)
    (trajectory,) = run([task("city", turns=6)], sampling=SAMPLING)
    assert [turn.action for turn in trajectory.turns] == ["search", "search", "summary", "search", "answer"]
    pieces = cut(trajectory.turns, codec.decode)
    assert [(p.role, p.turn) for p in pieces[4].context] == [
        ("prompt", None), ("state", 3), ("result", 3), ("state", 4), ("query", 4), ("result", 4),
    ]  # fmt: skip
    assert pieces[4].context[1].text == " <summary> Q1 then Q2 </summary>"
    assert [(p.role, p.text) for p in pieces[2].completion] == [("state", "Q1 then Q2 </summary>")]
    gone = dropped(pieces[2], pieces[3].context)
    assert [(p.role, p.turn) for p in gone] == [(role, n) for n in (1, 2) for role in ("state", "query", "result")]
    assert dropped(pieces[3], pieces[4].context) == []


def test_tokens_of_no_turn_have_the_role_that_was_recorded_or_none():
    spans = {"prompt": (0, 1), "notes": (1, 3)}
    turn = Turn(context_ids=(0, 1, 2, 3, 4), completion_ids=(5,), context_spans=spans, prefilled=False)
    assert [(p.role, p.tokens) for p in cut((turn,), str)[0].context] == [("prompt", 1), ("notes", 2), ("text", 2)]


def test_a_trajectory_by_hand():
    first, second = cut(hostile_attempt().turns, decode_words)
    assert [(p.role, p.tokens) for p in first.completion] == [("state", 3), ("action", 3)]
    assert [(p.role, p.tokens, p.turn) for p in second.context] == [
        ("prompt", 1, None), ("state", 3, 1), ("query", 3, 1), ("result", 2, 1), ("forced", 1, None),
    ]  # fmt: skip
    assert second.context[3].text == f" found-it {HOSTILE}"


def byte_pairs() -> Codec:
    """A byte-level tokenizer without merges: a letter beyond ASCII is several tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return Codec(tokenizer)


BYTES = byte_pairs()


@settings(max_examples=30)
@given(text=st.text(min_size=1, max_size=30), data=st.data())
def test_texts_between_borders_join_to_the_whole_even_where_a_border_cuts_a_letter(text, data):
    ids = BYTES.encode(text)
    stops = sorted({*data.draw(st.lists(st.integers(1, len(ids)), max_size=4)), len(ids)})
    texts = texts_between(ids, stops, BYTES.decode)
    assert "".join(texts) == BYTES.decode(ids)
    assert len(texts) == len(stops)


@pytest.mark.parametrize("name", [SHIPPED, SHIPPED_SHOP])
def test_pieces_of_ordinary_text_are_the_texts_of_their_tokens(name):
    codec = Codec.load(policy_folder(name))
    ids = codec.encode("<IS> now Q1 </IS> <query> mayor of it ? </query>")
    texts = texts_between(ids, [2, 5, len(ids)], codec.decode)
    assert [t.strip() for t in texts] == [codec.decode(ids[a:b]) for a, b in ((0, 2), (2, 5), (5, len(ids)))]


def search(state: str, observation: str) -> Turn:
    return Turn(context_ids=(0,), completion_ids=(1,), state=state, observation=observation)


def statuses(
    turns: list[Turn], *questions: Question, prompt: str = "?"
) -> list[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    task = Task(id="t", questions=questions, prompt=prompt, turn_limit=9)
    return [(f.status, f.gained, f.lost) for f in facts_by_turn(facts_of(task), turns)]


def test_facts_are_seen_gained_and_lost_turn_by_turn():
    questions = [Question(id=str(i), text="?", answers=a) for i, a in enumerate([("Oslo", "Kristiania"), ("17",)])]
    turns = [
        search("oslo, perhaps", "The capital is Oslo."),  # a guess before it was seen is no fact
        search("Q1 kristiania!", "population 117"),  # an alias counts; 117 is not 17
        search("", "the 17"),  # no state: nothing is lost
        search("Q2 17", ""),
        search("Q1 Oslo Q2 17", ""),
    ]
    assert statuses(turns, *questions) == [
        ("..", (), ()),
        ("h.", (0,), ()),
        ("-.", (), ()),
        ("lh", (1,), (0,)),
        ("hh", (0,), ()),
    ]


def test_what_leads_to_an_answer_is_a_fact_until_the_answer_is_seen():
    question = Question(
        id="1", text="Who is the mayor of the seat of Alvex?", answers=("Sela Prand",), titles=("Alvex", "Bergen")
    )
    turns = [
        search("now Q1", "Alvex sits in Bergen."),
        search("Q1 Bergen", "The mayor of Bergen is Sela Prand."),
        search("Q1 Sela Prand", ""),
    ]
    found = statuses(turns, question, prompt="Who is the mayor of the seat of Alvex?")
    assert found == [("..", (), ()), (".h", (1,), ()), ("hp", (0,), ())], (
        "Bergen is not lost: it is not needed any more"
    )


def test_what_the_prompt_names_is_no_fact():
    question = Question(id="1", text="Oslo or Bergen?", answers=("Oslo",))
    assert statuses([search("Oslo", "Oslo.")], question, prompt="Oslo or Bergen?") == [("", (), ())]


def test_the_words_of_a_state_against_the_last_one():
    assert changes("a b c", "a x c d") == [("=", "a"), ("-", " b"), ("+", " x"), ("=", " c"), ("+", " d")]
    assert changes("", "a b") == [("+", "a b")]
    assert changes("a", "") == [("-", "a")]
    assert changes("a b", "a b") == [("=", "a b")]


def test_states_that_repeat_themselves_are_compared_in_no_time():
    began = time.process_time()
    found = changes(f"Q1 is {'Oslo is ' * 9_000}. End", f"Q1 is {'Rome is ' * 9_000}. End")
    assert time.process_time() - began < 5
    assert [kind for kind, _ in found] == ["=", "-", "+", "="] and found[-1] == ("=", " is . End")


@settings(max_examples=50)
@given(st.text(alphabet="ab \n", max_size=20), st.text(alphabet="ab \n", max_size=20))
def test_what_stayed_and_what_came_are_the_new_state(last, state):
    found = changes(last, state)
    assert "".join(text for kind, text in found if kind != "-") == state
    kept_and_gone = [w for kind, text in found if kind != "+" for w in text.split()]
    assert kept_and_gone == last.split()


def test_the_page_data_of_a_trajectory_by_hand():
    data = PageData()
    data.add_group("x", 1)
    data.add(hostile_attempt(), decode_words)
    (shown,) = data.as_json()["trajectories"]
    first, second = shown["turns"]
    assert (first["sizes"], second["sizes"]) == ([1, 6, 7], [10, 1, 11])
    assert read(data, first["changes"] and first["completion"])[0] == Piece("state", "<IS> Oslo </IS>", 3, 1)
    assert (first["facts"], second["facts"]) == (".", ".")
    assert shown["answers"] == ["Bergen"] and shown["ended"] == "answered"
    assert (shown["result"], shown["solved"], shown["length"]) == ("1/1", True, "2 turns")
    assert shown["about"] == "after 2 turns of at most 2, memory constant, reward 1"
    assert data.as_json()["tasks"] == [
        {"id": "t", "questions": (("Q1", "Where 0 <b>?", "Oslo"),), "facts": (("Q1", "Oslo", False),)}
    ]


def test_a_trajectory_without_task_turns_and_scores_has_its_place():
    data = PageData()
    data.add_group("x", 1)
    data.add(Trajectory(turns=()), decode_words)
    (shown,) = data.as_json()["trajectories"]
    assert (shown["turns"], shown["metrics"], shown["result"]) == ([], {}, "\u2013")
    assert shown["about"] == "after 0 turns, memory , never scored"


def test_attempts_at_one_task_have_one_task_and_others_another():
    data = PageData()
    data.add_group("x", 1)
    for trajectory in (hostile_attempt(), hostile_attempt(em=0.0), hostile_attempt(objectives=2)):
        data.add(trajectory, decode_words)
    assert [t["task"] for t in data.as_json()["trajectories"]] == [0, 0, 1]


@settings(max_examples=30)
@given(st.lists(st.text() | st.integers()))
def test_compressed_data_are_letters_and_come_back_as_they_were(value):
    text = compressed(value)
    assert json.loads(gzip.decompress(base64.b64decode(text))) == inflated(text) == value
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=")
