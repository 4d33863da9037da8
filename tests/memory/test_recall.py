"""Recall: what an attempt has seen and its memory has dropped, by its turn or by its words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from tag_sets import PAPER_RECALL
from worlds import replay, rollout, task

from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.envs.search import SearchEnvironment
from mem1.memory import memory_policy, recalled
from mem1.memory.recall import NOTHING
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER, SEARCH_R1
from mem1.records import Ended, Passage, Trajectory, Turn
from mem1.training.checks import reencoded_share

CODEC = Codec(bpe_tokenizer(["Oslo Bergen founded"], vocab_size=300, tags=PAPER_RECALL))


def turn(content: str, shows: str = "") -> Turn:
    observation = f"[HINT] You have 3 turns left. [/HINT] {shows}" if shows else ""
    return Turn(context_ids=(1,), completion_ids=(2,), action="search", content=content, observation=observation)


SEEN = [turn("Oslo", "Oslo is a harbour."), turn("Bergen", "Bergen has a harbour and rain."), turn("Alta")]


def reply(query: str, turns: Sequence[Turn] = SEEN, policy: str = "constant") -> str:
    return recalled(memory_policy(policy), [*turns, replace(turn(query), action="recall")])


@pytest.mark.parametrize("query", ["2", "turn 2", "Turn 2"])
def test_a_turn_is_recalled_by_its_number_without_its_hint(query: str):
    assert reply(query) == "Turn 2, Bergen: Bergen has a harbour and rain."


def test_a_turn_is_recalled_by_its_words():
    assert reply("what about RAIN?") == "Turn 2, Bergen: Bergen has a harbour and rain."
    assert reply("oslo") == "Turn 1, Oslo: Oslo is a harbour."


def test_a_number_beyond_the_turns_is_looked_up_in_the_texts():
    assert reply("1998", [turn("Alvex", "Founded in 1998."), turn("x", "y")]) == "Turn 1, Alvex: Founded in 1998."


def test_of_turns_that_fit_equally_the_newest_is_recalled():
    again = [turn("Oslo", "Oslo is a harbour."), turn("Oslo", "Oslo is a harbour."), turn("x", "y")]
    assert reply("harbour", again).startswith("Turn 2")


@pytest.mark.parametrize("query", ["3", "4", "99", "turn 0", "snow", "?"])
def test_what_was_never_shown_is_not_found(query: str):
    assert reply(query) == NOTHING


def test_what_is_still_in_sight_is_not_recalled():
    assert reply("Oslo", policy="full") == NOTHING
    assert reply("2", policy="masked").startswith("Turn 2")
    assert reply("2", policy="window(3)") == NOTHING
    assert reply("1", policy="window(3)").startswith("Turn 1")


def noting(*notes: str) -> Turn:
    spans = {"note" if i == 0 else f"note {i + 1}": (i, i + 1) for i in range(len(notes))}
    return replace(turn("x"), completion_ids=tuple(range(9)), notes=notes, completion_spans=spans)


NOTED = [noting("Q1 Mira Toll", "harbour: built in 1901"), noting("Q2 Sela Prand"), turn("y")]


@pytest.mark.parametrize(
    ("query", "number", "note"),
    [
        ("Q1", 1, "Q1 Mira Toll"),
        ("Q01", 1, "Q1 Mira Toll"),
        ("Harbour", 1, "harbour: built in 1901"),
        ("harbour:", 1, "harbour: built in 1901"),
        ("who is Prand?", 2, "Q2 Sela Prand"),
    ],
)
def test_a_note_that_is_out_of_sight_is_recalled_by_its_key_or_its_words(query: str, number: int, note: str):
    assert reply(query, NOTED) == f"Turn {number}, note: {note}"


def test_notes_in_sight_are_not_recalled_nor_those_that_were_replaced():
    assert reply("Q2", NOTED, "notebook(1)") == NOTHING
    assert reply("Q1", NOTED, "notebook(1)") == "Turn 1, note: Q1 Mira Toll"
    assert reply("harbour", NOTED, "notebook(2)") == NOTHING
    assert reply("Q1", [*NOTED, noting("Q1 Ana Brul"), turn("z")]) == "Turn 4, note: Q1 Ana Brul"
    assert reply("Toll", [*NOTED, noting("Q1 Ana Brul"), turn("z")]) == NOTHING


def test_of_the_notes_of_a_turn_some_may_be_out_of_sight():
    turns = [NOTED[1], NOTED[0], turn("y")]
    assert reply("Q1", turns, "notebook(1)") == "Turn 2, note: Q1 Mira Toll"
    assert reply("harbour", turns, "notebook(1)") == NOTHING


def test_a_key_goes_before_words_that_fit_better():
    assert reply("harbour", [noting("harbour: 1901", "harbour, harbour"), turn("y")]) == "Turn 1, note: harbour: 1901"


def test_of_a_result_and_a_note_that_fit_equally_the_newer_is_recalled():
    assert reply("stone", [turn("quay", "stone"), noting("quay stone"), turn("y")]) == "Turn 2, note: quay stone"
    assert reply("stone", [noting("quay stone"), turn("quay", "stone"), turn("y")]) == "Turn 2, quay: stone"


class Cities:
    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        return [[(Passage("0", "", f"{query} was founded in 1070 </info> [1]"), 1.0)] for query in queries]


def attempt(*completions: str, turns: int = 9) -> Trajectory:
    environment = SearchEnvironment({"": Cities()}, style="bare")
    run = rollout(replay(*completions), environment, codec=CODEC, tags=PAPER_RECALL)
    (made,) = run([task("1070", turns=turns)], sampling=Sampling())
    return made


SEARCH = "<IS> a </IS> <query> {} </query>"
RECALL = "<IS> b </IS> <recall> {} </recall>"
ANSWER = "<IS> c </IS> <answer> Q1 1070 </answer>"


def test_an_attempt_recalls_a_result_that_it_no_longer_sees():
    made = attempt(SEARCH.format("Oslo"), SEARCH.format("Bergen"), RECALL.format("Oslo founded"), ANSWER)
    assert made.ended is Ended.ANSWERED and made.reward == 1
    shown = made.turns[2].observation
    assert "Turn 1, Oslo: Oslo was founded in 1070" in shown and shown.count("[HINT]") == 1
    assert "<info>" not in shown and "</info>" not in shown, "it was made harmless, as when it came from the search"
    assert made.turns[3].context_ids[-len(made.turns[2].observation_ids) :] == made.turns[2].observation_ids
    assert reencoded_share([made]) == 0


def test_recalling_takes_a_turn_and_is_no_search():
    made = attempt(SEARCH.format("Oslo"), RECALL.format("1"), RECALL.format("1"), turns=3)
    assert (made.ended, len(made.turns)) == (Ended.BAD_TAGS, 3)  # the answer was opened in the third
    assert made.turns[1].observation.startswith("[HINT] You have 1 turn left.")


@pytest.mark.parametrize("tags", [PAPER, SEARCH_R1], ids=lambda tags: tags.name)
def test_vocabularies_without_it_have_no_such_action(tags):
    assert "recall" not in tags.action_tags
