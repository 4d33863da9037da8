"""Every memory through the whole loop: the expert works with it, and training on its contexts is exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tag_sets import PAPER_SUMMARY
from transformers import PreTrainedModel
from worlds import SAMPLING, contexts, replay, rollout, shelf, task

from mem1.engines.base import Script
from mem1.engines.codec import Codec
from mem1.envs.atlas import AtlasTasks
from mem1.errors import UserError
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import atlas_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.model import TinyModel
from mem1.records import Ended, Group, Trajectory
from mem1.tasks.atlas import Expert
from mem1.training.checks import reencoded_share
from mem1.training.logprobs import completion_logprobs
from mem1.training.verify import verify

CODEC = Codec(atlas_tokenizer(PAPER_SUMMARY))
SOURCE = AtlasTasks(entities=40, worlds=1, questions_per_world=80).source("evaluation", PAPER_SUMMARY)
REMEMBERING = (
    "constant",
    "capped(99)",
    "fold(3)",
    "full",
    "masked",
    "window(2)",
    "summary(60)",
    "belief",
    "external(2)",
)
SHAPE = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48)
EVERY = (*REMEMBERING, "capped(6)", "none", "belief")
SEARCHES = [f"<IS> now Q{i} </IS> <query> city {i} </query>" for i in range(1, 4)]


def expert_attempts(context: str, *, objectives: int = 4, count: int = 6, turns: int | None = None) -> list[Trajectory]:
    tasks = SOURCE.tasks(objectives=objectives, count=count, seed=0)
    tasks = [replace(t, turn_limit=turns or t.turn_limit) for t in tasks]
    run = rollout(Expert(tags=PAPER_SUMMARY), SOURCE.environment, context=context, codec=CODEC, tags=PAPER_SUMMARY)
    return run(tasks, sampling=SAMPLING)


def summarised(*completions: str, turns: int = 4, context: str = "summary(30)") -> Trajectory:
    """A scripted attempt whose two searches have gathered more than 30 tokens."""
    run = rollout(replay(*completions), shelf("a book ."), context=context, codec=CODEC, tags=PAPER_SUMMARY)
    (trajectory,) = run([task("city", turns=turns)], sampling=SAMPLING)
    return trajectory


@pytest.mark.parametrize("context", REMEMBERING)
def test_the_clean_expert_answers_everything(context: str):
    trajectories = expert_attempts(context)
    assert {t.ended for t in trajectories} == {Ended.ANSWERED}
    assert {t.per_objective("em") for t in trajectories} == {(1.0,) * 4}
    assert reencoded_share(trajectories) == 0


@pytest.mark.parametrize("turns", [2, 3, 4, 5])
def test_summaries_do_not_use_up_turns(turns: int):
    plain, summed = expert_attempts("constant", turns=turns), expert_attempts("summary(30)", turns=turns)
    assert [t.answer for t in summed] == [t.answer for t in plain]
    for one, other in zip(plain, summed, strict=True):
        acted = [turn for turn in other.turns if turn.action != "summary"]
        assert [(t.action, t.content) for t in acted] == [(t.action, t.content) for t in one.turns]
        # the hints count turns of the task alone
        assert [t.observation for t in acted] == [t.observation for t in one.turns]
    assert any(t.action == "summary" for one in summed for t in one.turns)


def test_the_contexts_around_a_summary():
    searches, summary = SEARCHES[:2], "Q1 then Q2 </summary>"
    trajectory = summarised(*searches, summary, "<IS> done </IS> <answer> Q1 city </answer>")
    result = ["<info> [HINT] You have 3 turns left . [/HINT] a book . </info>"]
    result += ["<info> [HINT] You have 2 turns left . [/HINT] a book . </info>"]
    whole = f"Q1 a mayor ? {searches[0]} {result[0]} {searches[1]} {result[1]}"
    assert contexts(trajectory, CODEC)[2:] == [
        f"{whole} <summary>",
        "Q1 a mayor ? <summary> Q1 then Q2 </summary> <info> [HINT] You have 2 turns left . [/HINT] </info>",
    ]
    asked, last = trajectory.turns[2:]
    assert (asked.action, asked.content, asked.prefilled, asked.state) == ("summary", "Q1 then Q2", True, "")
    assert CODEC.decode(asked.prefill_ids) == "<summary>"
    assert {role: CODEC.decode(last.context_ids[a:b]) for role, (a, b) in last.context_spans.items()} == {
        "prompt": "Q1 a mayor ?",
        "state": "<summary> Q1 then Q2 </summary>",
        "result": "<info> [HINT] You have 2 turns left . [/HINT] </info>",
    }
    assert (trajectory.ended, trajectory.per_objective("em")) == (Ended.ANSWERED, (1.0,))


def test_a_summary_before_the_last_turn_is_followed_by_a_forced_answer():
    trajectory = summarised(*SEARCHES[:2], "Q1 city </summary>", "Q1 city </answer>", turns=3)
    assert [t.action for t in trajectory.turns] == ["search", "search", "summary", "answer"]
    assert contexts(trajectory, CODEC)[-1] == (
        "Q1 a mayor ? <summary> Q1 city </summary> "
        "<info> [HINT] You have 1 turn left . You must answer now . [/HINT] </info> <answer>"
    )


def test_an_unrequested_summary_is_malformed():
    trajectory = summarised("<summary> Q1 </summary>")
    assert (trajectory.ended, trajectory.detail) == (Ended.BAD_TAGS, "a summary that was not asked for")


@pytest.mark.parametrize("text", ["Q1 <query> city </query>", "</summary>"])
def test_something_else_in_place_of_the_summary_is_malformed(text: str):
    trajectory = summarised(*SEARCHES[:2], text)
    assert trajectory.ended is Ended.BAD_TAGS
    assert len(trajectory.turns) == 3


def test_tags_without_the_one_for_summaries_are_refused():
    with pytest.raises(UserError, match=r"asks for a summary, but the tags 'paper' have none for it"):
        rollout(replay(), shelf("a book ."), context="summary(30)", tags=PAPER)


def written(searches: int) -> Script:
    """Searches so many times with a state that grows, then answers."""

    def script(context: str) -> str:
        if context.endswith("<summary>"):
            return f"Q1 mayor Q2 then Q{searches} </summary>"
        left = int(context.rpartition("You have ")[2].split()[0]) if "You have" in context else 9
        if 9 - left == searches:
            return "<IS> done </IS> <answer> Q1 city </answer>"
        state = " ".join(f"Q{q} city" for q in range(1, 10 - left))
        return f"<IS> now {state} Q9 </IS> <query> mayor Q{10 - left} </query>"

    return script


@pytest.mark.parametrize("context", EVERY)
def test_training_on_its_contexts_is_exact(context: str):
    model = new_model(SHAPE, vocab_size=CODEC.vocab_size, seed=0).eval()
    attempts = []
    for searches in (3, 4):
        run = rollout(written(searches), shelf("a book ."), context=context, codec=CODEC, tags=PAPER_SUMMARY)
        attempts += run([task("city", turns=9)], sampling=SAMPLING)
    assert [len([t for t in a.turns if t.action != "summary"]) for a in attempts] == [4, 5]
    assert reencoded_share(attempts) == 0
    groups = [Group(trajectories=tuple(with_logprobs(model, t) for t in attempts))]
    assert {check.name: check.verdict for check in verify(model, groups) if check.verdict != "passed"} == {}


def with_logprobs(model: PreTrainedModel, one: Trajectory) -> Trajectory:
    """As if this model had sampled it, each turn by itself."""
    ((*values,),) = completion_logprobs(model, [one], packed=False)
    turns = zip(one.turns, values, strict=True)
    return replace(one, turns=tuple(replace(turn, logprobs=tuple(value.tolist())) for turn, value in turns))
