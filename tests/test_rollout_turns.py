"""What each turn of our loop is drawn with, what is still called after an end, and summaries that nobody asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from native_dialogues import END, Noting, call, dialogue, native
from tag_sets import PAPER_SUMMARY
from worlds import CODEC, SAMPLING, contexts, replay, rollout, shelf, task

from mem1.engines.base import Completion, Sampling, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.envs.base import Action, Observation
from mem1.memory import Kept, Selection
from mem1.memory.selection import E, Exchange
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import SUMMARY
from mem1.records import Ended, Task, Turn

WITH_SUMMARY = Codec(atlas_tokenizer(PAPER_SUMMARY))
SEARCH = "<IS> now Q1 </IS> <query> city </query>"
ANSWER = "<IS> done </IS> <answer> Q1 city </answer>"
UNASKED = "<IS> now Q1 </IS> <summary> a city </summary>"


class Drawing(ScriptedEngine):
    """Summarises where that is asked for, else searches; keeps the seed of every row and whether it was a summary."""

    def __init__(self) -> None:
        super().__init__(WITH_SUMMARY, self.says)
        self.drawn: list[tuple[bool, int]] = []

    @staticmethod
    def says(context: str) -> str:
        if context.endswith("<summary>"):
            return "a city </summary>"
        return "Q1 city </answer>" if context.endswith("<answer>") else SEARCH

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        for context, seed in zip(contexts, sampling.seeds_for(len(contexts)), strict=True):
            self.drawn.append((WITH_SUMMARY.decode(context).endswith("<summary>"), seed))
        return super().complete(contexts, max_tokens=max_tokens, sampling=sampling)


def test_no_two_calls_share_a_seed_summaries_included():
    engine = Drawing()
    run = rollout(engine, shelf("a book ."), context="summary(5)", codec=WITH_SUMMARY, tags=PAPER_SUMMARY)
    tasks = [task("city"), task("city"), replace(task("city"), id="other")]
    found = run(tasks, sampling=SAMPLING)
    kinds = ["search", SUMMARY, "search", SUMMARY, "search", SUMMARY, "answer"]
    assert [[turn.action for turn in one.turns] for one in found] == [kinds] * 3
    assert {one.ended for one in found} == {Ended.ANSWERED}
    assert sum(summary for summary, _ in engine.drawn) == 9
    assert len({seed for _, seed in engine.drawn}) == len(engine.drawn) == 21
    engine.drawn.clear()
    assert run(tasks[1:2], numbers=[1], sampling=SAMPLING)[0].turns == found[1].turns
    run(tasks[1:2], numbers=[1], sampling=replace(SAMPLING, seed=SAMPLING.seed + 1))
    assert len({seed for _, seed in engine.drawn}) == 14


class Rewritten:
    """The last turn, which is to be summarised as long as it has more than four tokens."""

    name = "rewritten"
    asks = frozenset({SUMMARY})

    def select(self, turns: Sequence[E]) -> Selection[E]:
        over = turns[-1].said_tokens > 4
        return Selection(kept=(Kept(turn=turns[-1]),), requested_action=SUMMARY if over else None)

    def filled(self, turns: Sequence[Exchange]) -> None:
        return None


def test_summaries_of_summaries_use_up_turns():
    script = ScriptedEngine(WITH_SUMMARY, lambda c: "Q1 city Q1 city </summary>" if c.endswith("<summary>") else SEARCH)
    run = rollout(script, shelf("a book ."), codec=WITH_SUMMARY, tags=PAPER_SUMMARY)
    (found,) = replace(run, context=Rewritten())([task("city", turns=3)], sampling=SAMPLING)
    assert [turn.action for turn in found.turns] == ["search", SUMMARY, SUMMARY, SUMMARY]
    assert found.ended is Ended.OUT_OF_TURNS


@pytest.mark.parametrize("context", ["constant", "summary(1000)"])
@pytest.mark.parametrize("before", [(), (SEARCH,)])
def test_a_summary_that_was_not_asked_for_ends_the_attempt(context: str, before: tuple[str, ...]):
    environment = Noting()
    script = replay(*before, UNASKED, ANSWER)
    run = rollout(script, environment, context=context, codec=WITH_SUMMARY, tags=PAPER_SUMMARY)
    (found,) = run([task("Q1 city", turns=9)], sampling=SAMPLING)
    assert (found.ended, found.detail) == (Ended.BAD_TAGS, "a summary that was not asked for")
    assert (len(found.turns), len(environment.seen), found.answer, found.reward) == (
        len(before) + 1,
        len(before),
        "",
        0,
    )
    assert found.turns[-1].observation == ""


@dataclass
class Shop(Noting):
    """The action "buy" is the last, and what is bought the answer; "break" breaks it."""

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        made = super().observe(actions)
        kinds = {
            "buy": Observation(text="", answer="bought", ended=True),
            "break": Observation(text="", failed="the shop is closed"),
            "choose": Observation(text="chosen", answer="chosen"),
        }
        return [kinds.get(action.argument, reply) for action, reply in zip(actions, made, strict=True)]


@pytest.mark.parametrize(
    ("last", "ended", "answer", "detail", "reward"),
    [
        ("buy", Ended.ANSWERED, "bought", "", 1.0),
        ("break", Ended.TOOL_FAILED, "chosen", "the shop is closed", None),
    ],
)
def test_no_call_is_made_after_one_that_ended_the_attempt(
    last: str, ended: Ended, answer: str, detail: str, reward: float | None
):
    """The calls of one message are made one after the other; those beside it, of another attempt, go on."""
    speaks, world = dialogue(), Shop()
    by_task = {
        "ends": [f"{call('choose')}{call(last)}{call('a')}{call('b')}{END}"],
        "goes on": [f"{call('1')}{call('2')}{call('3')}{call('4')}{END}", f"other{END}"],
    }
    left = {name: iter(texts) for name, texts in by_task.items()}
    run = native(lambda context: next(left["ends" if "ends" in context else "goes on"]), world, speaks)
    tasks = [task("bought", prompt="Q1 ends ?"), replace(task("other"), id="other")]
    one, other = run(tasks, sampling=SAMPLING)
    assert [argument for _, argument, _ in world.seen] == ["choose", "1", last, "2", "3", "4"]
    assert (one.ended, one.answer, one.detail, one.reward) == (ended, answer, detail, reward)
    assert (len(one.turns), one.turns[0].observation, one.turns[0].observation_ids) == (1, "", ())
    assert (other.ended, other.reward, len(other.turns)) == (Ended.ANSWERED, 1.0, 2)
    assert "found 4" in other.turns[0].observation


@dataclass
class Failing:
    """An engine whose server is gone from the second round on."""

    rounds: int = 0
    rows: list[int] = field(default_factory=list)

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        self.rows.append(len(contexts))
        if len(self.rows) > 1:
            return [Completion(token_ids=(), failed="no server") for _ in contexts]
        return [Completion(token_ids=tuple(CODEC.encode(SEARCH))) for _ in contexts]


def test_an_engine_that_fails_ends_the_attempt_after_the_turns_that_it_took_and_is_not_scored():
    engine, told = Failing(), list[tuple[Task, Turn]]()
    run = replace(rollout(engine, shelf("a book .")), on_turn=lambda task, turn: told.append((task, turn)))
    one = task("city")
    (found,) = run([one], sampling=SAMPLING)
    assert (found.ended, found.detail, found.reward, found.metrics) == (Ended.ENGINE_FAILED, "no server", None, {})
    assert told == [(one, found.turns[0])] and "a book" in found.turns[0].observation
    assert engine.rows == [1, 1]


def test_an_attempt_that_is_over_is_neither_sampled_nor_called_again():
    """Three attempts of one round: one answers, one writes no tags, one goes on alone."""
    environment = Noting()
    firsts = iter([ANSWER, "<IS> done </IS>", SEARCH, SEARCH, ANSWER])
    rows: list[int] = []

    class Counting(ScriptedEngine):
        def complete(
            self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
        ) -> list[Completion]:
            rows.append(len(contexts))
            return super().complete(contexts, max_tokens=max_tokens, sampling=sampling)

    found = rollout(Counting(CODEC, lambda _: next(firsts)), environment)([task("Q1 city")] * 3, sampling=SAMPLING)
    assert [one.ended for one in found] == [Ended.ANSWERED, Ended.BAD_TAGS, Ended.ANSWERED]
    assert rows == [3, 1, 1]
    assert [history for _, _, history in environment.seen] == [0, 1]
    assert [len(one) for one in map(contexts, found)] == [1, 1, 3]
