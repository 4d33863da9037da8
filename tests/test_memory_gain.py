"""What a memory is worth to the policy: which text is scored, and that its number is that of a plain forward pass."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from builders import tiny_model
from ranks import on_ranks
from torch import Tensor
from transformers import PreTrainedModel
from worlds import CODEC, SAMPLING, replay, rollout, shelf, task

from mem1.algorithms.base import Attempt
from mem1.algorithms.channels import Channels, MemoryGain, Outcome
from mem1.configuration import load_toml
from mem1.dialogue import TagDialogue
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.protocol import PAPER, PAPER_NOTES, PAPER_SUMMARY, Tags
from mem1.records import Group, Trajectory, Turn
from mem1.training.gradients.actor_critic import ActorCritic
from mem1.training.gradients.memory_scores import memories, memory_logprobs, scored_texts
from mem1.training.gradients.samples import make_samples
from mem1.training.loop.recipe import Recipe
from mem1.training.loop.rl import RlStage
from mem1.training.loop.rl_config import Phase, Rl
from mem1.training.ranks.placement import SINGLE_PROCESS, Placement
from mem1.training.ranks.processes import joined
from mem1.training.weights.policy import SHIPPED, Policy, load_policy
from mem1.training.weights.tokenizers import atlas_tokenizer

pytestmark = pytest.mark.numeric

QUICK = Path(__file__).parents[1] / "recipes" / "atlas-quick.toml"
GOLD, OTHER = "Lina Stind", "Duna Chestov"
PROMPT = "Q1 Fana Grell 's birthplace ? Q2 Mana Stork 's employer ?"
ASK = "<query> Fana Grell </query>"
ANSWER = "<answer> Q1 Mana </answer>"
DIALOGUE = TagDialogue(CODEC)


def attempt(*completions: str, context: str = "constant", tags: Tags = PAPER, golds: Sequence[str] = (GOLD, OTHER)):
    """An attempt that writes these texts; each search finds the first gold answer."""
    codec = CODEC if tags == PAPER else Codec(atlas_tokenizer(tags))
    rolled = rollout(replay(*completions), shelf(f"Fana Grell {GOLD} ."), context=context, codec=codec, tags=tags)
    (made,) = rolled([task(*golds, turns=6, prompt=PROMPT)], sampling=SAMPLING)
    turns = tuple(replace(turn, logprobs=(-1.0,) * len(turn.completion_ids)) for turn in made.turns)
    return replace(made, turns=turns)


def keeps(state: str, **options: Any) -> Trajectory:
    """Writes nothing, then this, then nothing new."""
    state = f"<IS> {state} </IS>"
    return attempt(ASK, f"{state} {ASK}", f"{state} {ANSWER}", **options)


def group() -> list[Trajectory]:
    """Of different lengths and worth."""
    return [
        keeps(f"Q1 {GOLD}"),
        keeps(f"Q1 {OTHER}"),
        attempt(f"<IS> Fana </IS> {ASK}", *[f"<IS> Q2 {OTHER} Q1 {GOLD} </IS> {ASK}"] * 3, ANSWER),
        attempt(ANSWER),
    ]


def networks(model: PreTrainedModel, **options: Any) -> ActorCritic:
    made: dict[str, Any] = {"placement": SINGLE_PROCESS, "threads": 1}
    made |= {name: options.pop(name) for name in tuple(options) if name in made}
    config = Rl(curriculum=(Phase(steps=1),), algorithm=Channels(channels=(MemoryGain(),)), **options)
    return ActorCritic.make(config, model, dialogue=DIALOGUE, **made)


def scores(found: ActorCritic, attempts: Sequence[Trajectory]) -> list[tuple[float, ...]]:
    (stats,) = found.old_policy_stats([attempts])
    return [x.memory_logprobs for x in stats if x.memory_logprobs is not None]


def small(dtype: torch.dtype = torch.float64) -> PreTrainedModel:
    return tiny_model("llama", dtype=dtype, vocab_size=CODEC.vocab_size, initializer_range=0.1)


def one_at_a_time(model: PreTrainedModel, t: Trajectory, temperature: float) -> list[float]:
    """Every text by itself, in the model's own forward pass."""
    found = []
    for memory in scored_texts(t, DIALOGUE):
        by_question = []
        for turn in memory:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([turn.context_ids + turn.completion_ids])).logits[0] / temperature
            places = range(len(turn.context_ids) - 1, len(turn.context_ids) + len(turn.completion_ids) - 1)
            chosen = [float(logits[i].log_softmax(-1)[t]) for i, t in zip(places, turn.completion_ids, strict=True)]
            by_question.append(sum(chosen) / len(chosen))
        found.append(sum(by_question) / len(by_question))
    return found


def written(t: Trajectory, codec: Codec = CODEC) -> list[str]:
    return [codec.decode(memory) for memory in memories(t)]


# The text


def test_what_is_scored_is_each_gold_answer_behind_the_prompt_and_the_memory_alone():
    shown = [
        [(CODEC.decode(turn.context_ids), CODEC.decode(turn.completion_ids)) for turn in memory]
        for memory in scored_texts(keeps(f"Q1 {GOLD}"), DIALOGUE)
    ]
    without = [(f"{PROMPT} <answer> Q1", GOLD), (f"{PROMPT} <answer> Q2", OTHER)]
    kept = f"<IS> Q1 {GOLD} </IS>"
    with_it = [(f"{PROMPT} {kept} <answer> Q1", GOLD), (f"{PROMPT} {kept} <answer> Q2", OTHER)]
    assert shown == [without, without, with_it, with_it]


def test_questions_have_the_labels_of_the_prompt():
    labelled = keeps("Fana")
    assert labelled.task is not None
    labelled = replace(labelled, task=replace(labelled.task, labels=(3, 7)))
    assert [CODEC.decode(turn.context_ids[-1:]) for turn in scored_texts(labelled, DIALOGUE)[0]] == ["Q3", "Q7"]


def test_the_first_gold_answer_with_a_letter_is_scored():
    several = keeps("Fana")
    assert several.task is not None
    first, second = several.task.questions
    several = replace(
        several, task=replace(several.task, questions=(replace(first, answers=(" ", GOLD, OTHER)), second))
    )
    assert [CODEC.decode(turn.completion_ids) for turn in scored_texts(several, DIALOGUE)[0]] == [GOLD, OTHER]


@pytest.mark.parametrize(
    ("context", "wanted"),
    [
        ("constant", ["", "<IS> Fana Grell </IS>", "<IS> Mana </IS>", "", "<IS> Stork </IS>"]),
        ("capped(1)", ["", "<IS> Fana </IS>", "<IS> Mana </IS>", "", "<IS> Stork </IS>"]),
        ("none", [""] * 5),
        (
            "window(2)",
            [
                "",
                "<IS> Fana Grell </IS>",
                "<IS> Fana Grell </IS> <IS> Mana </IS>",
                "<IS> Mana </IS>",
                "<IS> Stork </IS>",
            ],
        ),
    ],
)
def test_the_memory_is_the_states_that_the_next_context_would_hold(context: str, wanted: list[str]):
    states = f"<IS> Fana Grell </IS> {ASK}", f"<IS> Mana </IS> {ASK}", ASK, f"<IS> Stork </IS> {ANSWER}"
    made = attempt(*states, context=context)
    assert len(made.turns) == 4 and written(made) == wanted


@pytest.mark.parametrize("context", ["full", "masked"])
def test_results_and_queries_are_no_memory_where_the_context_keeps_them(context: str):
    made = attempt(f"<IS> Fana </IS> {ASK}", f"<IS> Mana </IS> {ASK}", ANSWER, context=context)
    assert GOLD in CODEC.decode(made.turns[2].context_ids)
    both = "<IS> Fana </IS> <IS> Mana </IS>"
    assert written(made) == ["", "<IS> Fana </IS>", both, both]


def test_notes_stay_and_replace_one_another():
    tags, note = PAPER_NOTES, "<note> Q1 {} </note>".format
    made = attempt(
        f"<IS> Fana </IS> {note('Mana')} {ASK}", f"{note('Stork')} {ASK}", ANSWER, context="notes", tags=tags
    )
    assert written(made, Codec(atlas_tokenizer(tags))) == [
        "",
        f"<IS> Fana </IS> {note('Mana')}",
        note("Stork"),
        note("Stork"),
    ]


def test_a_summary_is_memory_with_its_tags():
    made = attempt(f"<IS> Fana </IS> {ASK}", "Mana Stork </summary>", ANSWER, context="summary(2)", tags=PAPER_SUMMARY)
    codec = Codec(atlas_tokenizer(PAPER_SUMMARY))
    assert [turn.action for turn in made.turns] == ["search", "summary", "answer"]
    assert written(made, codec) == ["", "<IS> Fana </IS>", *["<summary> Mana Stork </summary>"] * 2]


def test_a_turn_that_cannot_be_read_leaves_no_memory():
    made = attempt(f"<IS> Fana </IS> {ASK}", "<IS> Fana")
    assert written(made) == ["", "<IS> Fana </IS>", ""]


# The numbers


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_scores_are_those_of_each_text_by_itself(packed: bool, temperature: float):
    model, attempts = small(), group()
    found = scores(networks(model, packed=packed, temperature=temperature), attempts)
    assert [len(one) for one in found] == [4, 4, 6, 2]
    for one, t in zip(found, attempts, strict=True):
        assert one == pytest.approx(one_at_a_time(model, t, temperature), abs=1e-12)
    assert len({round(value, 6) for one in found for value in one}) > 4
    assert all(p.grad is None for p in model.parameters())


def test_neither_the_size_of_a_pack_nor_other_attempts_nor_threads_change_a_score():
    model, attempts = small(torch.float32), group()
    together = scores(networks(model), attempts)
    apart = [scores(networks(model), [t])[0] for t in attempts]
    in_threads = scores(networks(model, pack_tokens=64, threads=2), attempts)
    rows = scores(networks(model, packed=False), attempts)
    for other in (apart, in_threads, rows):
        for one, wanted in zip(other, together, strict=True):
            assert one == pytest.approx(wanted, abs=1e-5)


def test_a_memory_that_stays_as_it_is_gains_nothing_to_the_digit():
    (found,) = scores(networks(small(torch.float32), pack_tokens=64), [keeps(f"Q1 {GOLD}")])
    first, second, third = (after - before for before, after in pairwise(found))
    assert first == 0.0 == third and second != 0.0


def test_the_gains_of_an_attempt_sum_to_its_last_memory_less_none():
    found = scores(networks(small()), group())
    for one, t in zip(found, group(), strict=True):
        gains = MemoryGain().gains(Attempt(trajectory=t, shaped_reward=0.0, memory_logprobs=one))
        assert len(gains) == len(t.turns)
        assert sum(gains) == pytest.approx(one[-1] - one[0], abs=1e-12)


def test_a_memory_that_states_the_answer_gains_more():
    right, wrong = keeps(f"Q1 {GOLD}"), keeps(f"Q1 {OTHER}")
    model = load_policy(SHIPPED).model
    dialogue = TagDialogue(load_policy(SHIPPED).codec)
    found = replace(networks(model), dialogue=dialogue)
    (stats,) = found.old_policy_stats([[replace(t, turns=_encoded(t, dialogue)) for t in (right, wrong)]])
    good, bad = (x.memory_logprobs for x in stats)
    assert good is not None and bad is not None
    assert good[0] == bad[0]
    assert good[-1] - good[0] > 0.5 > bad[-1] - bad[0]


def _encoded(t: Trajectory, dialogue: TagDialogue) -> tuple[Turn, ...]:
    """The turns in tokens of another tokenizer of the same words."""
    turns = []
    for turn in t.turns:
        ids = dialogue.codec.encode(turn.text)
        assert len(ids) == len(turn.completion_ids)
        turns.append(replace(turn, completion_ids=ids))
    return tuple(turns)


def test_an_attempt_without_turns_has_its_prompt_alone():
    assert len(scores(networks(small()), [replace(keeps("Fana"), turns=())])[0]) == 1
    assert memory_logprobs([], DIALOGUE, lambda turns: torch.zeros(0)) == []


def test_the_mean_is_over_the_tokens_of_an_answer_and_then_over_questions():
    made = attempt(ANSWER, golds=(GOLD, "Oslo"))

    def stub(turns: Sequence[Turn]) -> Tensor:
        assert [len(turn.completion_ids) for turn in turns] == [2, 1]
        return torch.tensor([-1.0, -2.0, -4.0])

    assert memory_logprobs([made], DIALOGUE, stub) == [(-2.75, -2.75)]


# The channel


def scored(*logprobs: float, reward: float = 0.0) -> Attempt:
    """Turns whose state is two of their tokens."""
    t = keeps("Fana") if len(logprobs) == 4 else attempt(*[f"<IS> Fana </IS> {ASK}"] * (len(logprobs) - 2), ANSWER)
    assert len(t.turns) == len(logprobs) - 1
    return Attempt(trajectory=replace(t, reward=reward), shaped_reward=reward, memory_logprobs=logprobs)


def test_gains_are_compared_over_the_turns_of_a_group_with_equal_weight_for_each_attempt():
    attempts = [scored(-3.0, -3.0, -1.0, -1.0), scored(-3.0, -2.0, -2.0)]
    # gains 0 2 0 and 1 0, means 2/3 and 1/2, of both 7/12
    mean = 7 / 12
    first, second = MemoryGain(scale=False).by_turn(attempts)
    assert first == pytest.approx([-mean, 2 - mean, -mean]) and second == pytest.approx([1 - mean, -mean])
    (_, most, _), _ = MemoryGain().by_turn(attempts)
    variance = ((2 * mean**2 + (2 - mean) ** 2) / 3 + ((1 - mean) ** 2 + mean**2) / 2) / 2
    assert most == pytest.approx((2 - mean) / variance**0.5, rel=1e-3)


def test_it_lands_on_the_memory_of_the_turn_alone():
    algorithm = Channels(channels=(MemoryGain(scale=False),))
    ((first, second),) = algorithm.advantages([[scored(-3.0, -3.0, -1.0, -1.0), scored(-3.0, -2.0, -2.0)]])
    assert first is not None and second is not None
    # ASK has four tokens, ANSWER five, a state three
    assert first.advantages_K.tolist() == pytest.approx(
        [0.0] * 4 + [17 / 12] * 3 + [0.0] * 4 + [-7 / 12] * 3 + [0.0] * 4
    )
    assert second.advantages_K.tolist() == pytest.approx([5 / 12] * 3 + [0.0] * 4 + [0.0] * 4)


def test_only_an_algorithm_that_asks_has_memories_scored():
    assert Channels(channels=(Outcome(), MemoryGain())).scores_memory
    assert not Channels(channels=(Outcome(),)).scores_memory
    plain = ActorCritic.make(Rl(curriculum=(Phase(steps=1),)), small())
    ((stats,),) = plain.old_policy_stats([[keeps("Fana")]])
    assert stats.memory_logprobs is None
    with pytest.raises(ValueError, match="memory_logprobs"):
        MemoryGain().by_turn([Attempt(trajectory=keeps("Fana"), shaped_reward=0.0)])
    with pytest.raises(ValueError, match="must be in tags"):
        ActorCritic.make(networks(small()).config, small())


def test_a_stage_scores_memories_with_the_weights_before_the_step():
    model = small()
    config = networks(model).config
    rolled = rollout(replay(), shelf("x"))
    stage = RlStage(Policy(model, CODEC), config, rolled, cast(Any, None), seed=0)
    groups = [Group(trajectories=tuple(replace(t, reward=1.0) for t in group()))]
    before = scores(stage.networks, group())
    stats = stage.networks.old_policy_stats([group()])
    (samples,) = make_samples(config, groups, stats)
    assert all(sample.has_gradient for sample in samples)  # although all rewards are equal
    assert stage.update(groups, 0)["grad_norm"]
    assert scores(stage.networks, group()) != before


def on_a_rank(folder: Path) -> None:
    with joined() as ranks:
        found = scores(networks(small(), placement=Placement(ranks=ranks), pack_tokens=64), group())
        (folder / f"{ranks.rank}.json").write_text(json.dumps(found))


def test_every_rank_has_the_scores_of_one_process(tmp_path: Path):
    on_ranks(2, on_a_rank, tmp_path)
    wanted = scores(networks(small(), pack_tokens=64), group())
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for one, other in zip(found, wanted, strict=True):
            assert one == pytest.approx(other, abs=1e-12)


# The recipe


CHANNEL = "rl.algorithm={name='channels', channels=[{name='outcome'}, {name='memory_gain', weight=0.5}]}"


def test_a_recipe_names_it():
    algorithm = load_toml(QUICK, Recipe, [CHANNEL]).rl.algorithm  # type: ignore[union-attr]
    assert algorithm == Channels(channels=(Outcome(), MemoryGain(weight=0.5)))


@pytest.mark.parametrize("setting", ["vocabulary='paper-shop'", "chat={}"])
def test_a_recipe_whose_answers_cannot_be_opened_is_refused(setting: str):
    with pytest.raises(UserError, match=r"memory_gain scores answers in tags: take word_gain"):
        load_toml(QUICK, Recipe, [CHANNEL, setting])
