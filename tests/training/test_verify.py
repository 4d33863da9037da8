"""The checks of `mem1 verify`: they pass on what is right, and each of them fails on something wrong."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from builders import trajectory
from tag_sets import PAPER_BELIEF, PAPER_NOTES, PAPER_SUMMARY
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from mem1.algorithms.channels import Channels
from mem1.dialogue import TagDialogue
from mem1.engines.base import Sampling, ScriptedEngine
from mem1.engines.codec import Codec
from mem1.engines.local import LocalEngine
from mem1.envs.atlas import AtlasTasks
from mem1.envs.base import TaskSource
from mem1.errors import UserError
from mem1.memory import memory_policy
from mem1.packing import TokenTree, pack, visible
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import atlas_tokenizer, bpe_tokenizer
from mem1.protocol import PAPER, RELEASED, SUMMARY, Tags
from mem1.recipe.model import TinyModel
from mem1.records import Ended, Group, Trajectory
from mem1.rollout import Budget, Rollout
from mem1.tasks.atlas import Expert, Laziness
from mem1.tasks.prompts import TurnLimit
from mem1.training.checks import (
    Check,
    causality_checks,
    gradient_check,
    micro_batch_check,
    once_check,
    packed_check,
    reencoding_check,
    relative_difference,
    rounding_limit,
    sampler_checks,
    wrong_targets,
)
from mem1.training.logprobs import completion_logprobs, flat_logprobs
from mem1.training.verify import Forced, algorithms, compute, halves, verify

CODEC = Codec(atlas_tokenizer(PAPER))
SHAPE = TinyModel(hidden_size=32, layers=2, heads=2, feed_forward=48)
OF_STEPS = [f"{name}: {what}" for name in ("grpo", "ppo") for what in ("small packs", "other order", "more contexts")]
OF_STEPS += ["channels: small packs", "channels: other order"]
TURNS = trajectory(([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6, 7]))
"""prompt 1 2, sampled 3 4, result 5, sampled 6 7"""


@pytest.fixture(scope="module")
def source() -> TaskSource:
    return AtlasTasks(entities=40, worlds=1, questions_per_world=40, hops=(2,)).source("evaluation", PAPER)


@pytest.fixture
def model() -> PreTrainedModel:
    return new_model(SHAPE, vocab_size=CODEC.vocab_size, seed=0).eval()


def expert_groups(model: PreTrainedModel, source: TaskSource) -> list[Group]:
    """Two attempts that differ from the first search on, with the log-probs of this model."""
    tasks = source.tasks(objectives=2, count=1, seed=0)
    attempts = []
    for shortcut in (0.0, 1.0):
        expert = Expert(tags=PAPER, laziness=Laziness(shortcut=shortcut))
        rollout = Rollout(
            engine=ScriptedEngine(CODEC, expert),
            dialogue=TagDialogue(CODEC),
            environment=source.environment,
            context=memory_policy("constant"),
        )
        attempts.append(rollout(tasks, sampling=Sampling()))
    return [Group(trajectories=tuple(_with_logprobs(model, t) for t in pair)) for pair in zip(*attempts, strict=True)]


def _with_logprobs(model: PreTrainedModel, one: Trajectory) -> Trajectory:
    ((*values,),) = completion_logprobs(model, [one], packed=False)
    turns = zip(one.turns, values, strict=True)
    return replace(one, turns=tuple(replace(turn, logprobs=tuple(value.tolist())) for turn, value in turns))


def failed(checks: Sequence[Check]) -> set[str]:
    return {check.name for check in checks if check.verdict == "failed"}


@pytest.mark.numeric
def test_training_in_bf16_is_compared_with_the_copy_that_samples_and_a_wrong_one_fails(
    model, source, monkeypatch: pytest.MonkeyPatch
):
    groups = expert_groups(model, source)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    (of_half,) = [check for check in verify(model, groups, half=True) if "bf16" in check.name]
    assert of_half.verdict == "passed" and of_half.measured > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    copied = copy.deepcopy

    def stale(thing: object, memo: Any = None) -> object:
        """A copy that missed an update."""
        made = copied(thing, memo)
        if isinstance(made, nn.Module):
            made.get_parameter("model.norm.weight").data.mul_(1.2)
        return made

    monkeypatch.setattr("mem1.training.verify.copy.deepcopy", stale)
    assert "sampler and trainer in bf16, mean" in failed(verify(model, groups, half=True))


@pytest.mark.numeric
def test_every_check_is_made_and_passes_on_trajectories_of_several_turns(model, source):
    groups = expert_groups(model, source)
    assert min(len(t.turns) for g in groups for t in g.trajectories) >= 3
    checks = verify(model, groups)
    assert {check.name: check.verdict for check in checks} == {
        "sampler and trainer, largest": "passed",
        "sampler and trainer, mean": "passed",
        "packed log-probs, float64": "passed",
        "packed log-probs, float32": "passed",
        "packed gradient, float64": "passed",
        "packed gradient, float32": "passed",
        "micro-batches add up": "passed",
        **dict.fromkeys(OF_STEPS, "passed"),
        "tokens trained exactly once": "passed",
        "re-encoded tokens": "passed",
        "causality": "passed",
        "branches are separate": "passed",
    }
    assert all(p.grad is None for p in model.parameters()) and model.dtype == torch.float32


def channels_of(groups: list[Group]) -> list[str]:
    return [channel.name for a in algorithms(groups) if isinstance(a, Channels) for channel in a.channels]


def test_whole_steps_have_every_channel_that_the_attempts_have(model, source):
    (group,) = expert_groups(model, source)
    assert channels_of([group]) == ["outcome", "objectives", "memory_length"]
    without_task = Group(trajectories=tuple(replace(t, task=None) for t in group.trajectories))
    assert channels_of([without_task]) == ["outcome"]


def test_the_local_engines_own_log_probs_pass_at_the_temperature_of_sampling_and_at_no_other(model, source):
    rollout = Rollout(
        engine=LocalEngine(model, CODEC, PAPER.stop_strings),
        dialogue=TagDialogue(CODEC),
        environment=source.environment,
        context=memory_policy("constant"),
        budget=Budget(completion_extra=1),
    )
    attempts = rollout(source.tasks(objectives=2, count=2, seed=0), sampling=Sampling(temperature=0.7))
    groups = [Group(trajectories=(t,)) for t in attempts]
    assert failed(verify(model, groups, temperature=0.7)) == set()
    assert failed(verify(model, groups)) == {"sampler and trainer, largest", "sampler and trainer, mean"}


def test_a_log_prob_that_the_sampler_recorded_wrongly_fails(model, source):
    trajectories = expert_groups(model, source)[0].trajectories
    logprobs_M = flat_logprobs(model, pack(trajectories), temperature=1.0)
    assert failed(sampler_checks(trajectories, logprobs_M)) == set()
    first = trajectories[0].turns[0]
    wrong = replace(first, logprobs=(first.logprobs[0] - 0.25, *first.logprobs[1:]))
    mutated = [replace(trajectories[0], turns=(wrong, *trajectories[0].turns[1:])), *trajectories[1:]]
    largest, mean = sampler_checks(mutated, logprobs_M)
    assert largest.verdict == mean.verdict == "failed"
    assert largest.measured == pytest.approx(0.25, abs=1e-5)
    assert mean.measured == pytest.approx(0.25 / len(logprobs_M), abs=1e-5)


def test_trajectories_without_log_probs_of_their_sampler_are_refused():
    with pytest.raises(ValueError, match="no log-probs of its sampler"):
        sampler_checks([TURNS], torch.zeros(4))


def test_a_hidden_dropout_fails_every_comparison_of_two_passes(model, source):
    groups = expert_groups(model, source)
    model.get_input_embeddings().register_forward_hook(lambda _m, _i, out: functional.dropout(out, 0.1))
    torch.manual_seed(0)
    assert failed(verify(model, groups)) == {
        "sampler and trainer, largest",
        "sampler and trainer, mean",
        "packed log-probs, float64",
        "packed log-probs, float32",
        "packed gradient, float64",
        "packed gradient, float32",
        "micro-batches add up",
        *OF_STEPS,
        "causality",
        "branches are separate",
    }


def test_halves_with_a_denominator_each_do_not_add_up(model, source):
    groups = [group.trajectories for group in expert_groups(model, source)]
    parts = halves(groups)
    assert [len(part) for part in parts] == [1, 1]
    whole = compute(model, groups, temperature=1.0, packed=True).gradient
    together = compute(model, parts, temperature=1.0, packed=True).gradient
    assert micro_batch_check(together, whole, batches=1).verdict == "passed"
    apart = [compute(model, [part], temperature=1.0, packed=True).gradient for part in parts]
    summed = [torch.stack(tensors).sum(0) for tensors in zip(*apart, strict=True)]
    assert micro_batch_check(summed, whole, batches=1).verdict == "failed"


def test_a_gradient_may_be_as_far_off_as_the_precision_makes_unpacked_turns_but_no_further():
    # a policy that is sure of its tokens: 1 - p has few digits left in float32
    gap = torch.tensor([1e-5, 3e-5, 7e-5], dtype=torch.float64)
    exact = [gap]
    alone = [(1 - (1 - gap).float()).double()]
    noise = relative_difference(alone, exact)
    assert 2.5e-5 < noise < 1e-2
    assert rounding_limit(alone, exact) == pytest.approx(max(1e-4, 4 * noise))
    assert rounding_limit(exact, exact) == 1e-4
    assert rounding_limit([0.5 * gap], exact) == 1e-2, "no rounding does that"
    packed, wrong = [2 * exact[0] - alone[0]], [1.05 * gap]
    limit = rounding_limit(alone, exact)
    assert gradient_check(packed, alone, precision="float32", limit=limit).passed
    assert gradient_check(wrong, alone, precision="float32", limit=limit).failed
    assert micro_batch_check(packed, alone, batches=1, limit=limit).passed


def test_differences_by_hand():
    packed = packed_check(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -2.5]), precision="float64", limit=0.4)
    assert (packed.measured, packed.compared, packed.verdict) == (0.5, 2, "failed")
    wanted = [torch.tensor([3.0, 0.0]), torch.tensor([4.0])]
    assert relative_difference([torch.tensor([3.0, 0.5]), torch.tensor([4.0])], wanted) == pytest.approx(0.1)
    gradient = gradient_check([torch.tensor([3.0, 0.5]), torch.tensor([4.0])], wanted, precision="float32", limit=0.1)
    assert gradient.compared == 3


def test_a_gradient_of_nothing_and_a_nan_fail():
    zero, nan = [torch.zeros(2)], torch.tensor([math.nan])
    gradient = gradient_check(zero, zero, precision="float32", limit=1e-4)
    assert (gradient.measured, gradient.verdict) == (math.inf, "failed")
    broken = packed_check(nan, torch.zeros(1), precision="float32", limit=1e-4)
    assert broken.verdict == "failed"
    assert broken.as_dict()["measured"] is None and broken.as_dict()["verdict"] == "failed"


def test_nothing_to_compare_is_neither_passed_nor_failed():
    check = reencoding_check([trajectory(([1], [2, 3]))])
    assert (check.measured, check.compared, check.verdict) == (0, 0, "not tested")
    assert not check.passed and not check.failed


def test_every_sampled_token_has_one_target_of_its_own():
    tree = pack([TURNS])
    assert tree.target_node.tolist() == [2, 3, 5, 6]
    assert wrong_targets(tree, [TURNS]) == 0
    check = once_check([(tree, [TURNS])])
    assert (check.compared, check.verdict) == (4, "passed")


@pytest.mark.parametrize(
    ("targets", "wrong"),
    [
        ([2, 3, 5], 3),  # one missing, so the last turn's path ends too early
        ([2, 3, 5, 6, 6], 1),  # the last one twice
        ([2, 2, 5, 6], 2),  # the first twice, the second not at all
        ([2, 3, 4, 6], 1),  # the result in place of a sampled token
    ],
)
def test_targets_that_are_missing_repeated_or_misplaced_are_counted(targets, wrong):
    tree = replace(pack([TURNS]), target_node=torch.tensor(targets))
    check = once_check([(tree, [TURNS])])
    assert (check.measured, check.verdict) == (wrong, "failed")


def test_a_sampled_token_after_another_context_than_the_samplers_is_counted():
    tree = pack([TURNS])
    ids = tree.input_ids.clone()
    ids[4] = 9  # the result, which stands before the second turn only
    assert wrong_targets(replace(tree, input_ids=ids), [TURNS]) == 2


def test_a_state_that_was_encoded_again_fails():
    first, second = TURNS.turns
    first = replace(first, observation_ids=(5,))
    assert reencoding_check([replace(TURNS, turns=(first, second))]).verdict == "passed"
    drifted = replace(TURNS, turns=(first, replace(second, context_ids=(1, 2, 3, 9, 5))))
    check = reencoding_check([drifted])
    assert (check.measured, check.compared, check.verdict) == (0.5, 2, "failed")


def masked_score(model: PreTrainedModel, tree: TokenTree, mask_TT: Tensor) -> Tensor:
    """Log-probs of the sampled tokens, the mask given to transformers' own attention as it is."""
    logits = model(
        input_ids=tree.input_ids[None], position_ids=tree.position_ids[None], attention_mask=mask_TT[None, None]
    ).logits[0, tree.parent[tree.target_node]]
    return logits.log_softmax(-1).gather(-1, tree.input_ids[tree.target_node][:, None])[:, 0]


def additive(visible_TT: Tensor) -> Tensor:
    return torch.zeros(visible_TT.shape).masked_fill(~visible_TT, torch.finfo(torch.float32).min)


def test_the_published_mask_of_zeros_and_ones_hides_nothing_and_fails(model, source):
    trees = [pack(group.trajectories) for group in expert_groups(model, source)]

    def check(mask) -> list[str]:
        checks = causality_checks(
            lambda tree: masked_score(model, tree, mask(visible(tree))), trees, vocabulary=CODEC.vocab_size
        )
        assert min(c.compared for c in checks) > 0
        return [c.verdict for c in checks]

    assert check(additive) == ["passed", "passed"]
    assert check(lambda visible_TT: visible_TT.float()) == ["failed", "failed"]


def test_packing_with_a_causal_mask_alone_mixes_branches_and_fails(model, source):
    trees = [pack(group.trajectories) for group in expert_groups(model, source)]

    def score(tree: TokenTree) -> Tensor:
        return masked_score(model, tree, additive(torch.ones(len(tree), len(tree), dtype=torch.bool).tril()))

    causality, branches = causality_checks(score, trees, vocabulary=CODEC.vocab_size)
    assert (causality.verdict, branches.verdict) == ("passed", "failed")


def test_a_change_that_moves_nothing_shows_nothing(model):
    checks = causality_checks(lambda tree: torch.zeros(len(tree.target_node)), [pack([TURNS])], vocabulary=10)
    assert [check.verdict for check in checks] == ["not tested", "not tested"]


def test_no_sampled_token_is_an_error(model):
    with pytest.raises(UserError, match="no token was sampled"):
        verify(model, [Group(trajectories=(Trajectory(turns=()),))])


def steered(
    model: PreTrainedModel,
    codec: Codec,
    source: TaskSource,
    tags: Tags = PAPER,
    budget: Budget | None = None,
    context: str = "constant",
) -> list[Trajectory]:
    return Rollout(
        engine=LocalEngine(model, codec, tags.stop_strings, steering=Forced(TagDialogue(codec, tags))),
        dialogue=TagDialogue(codec, tags),
        environment=source.environment,
        context=memory_policy(context),
        budget=budget or Budget(),
    )(source.tasks(objectives=2, count=1, seed=0) * 2, sampling=Sampling())


@pytest.mark.parametrize("tags", [PAPER, RELEASED], ids=lambda tags: tags.name)
def test_a_model_that_has_not_learned_the_tags_is_steered_through_turns_with_its_own_log_probs(tags):
    codec = Codec(bpe_tokenizer(["nothing of the tags"], vocab_size=300, tags=RELEASED if tags is PAPER else PAPER))
    assert codec.single_tokens([f"<{tags.state}>"]) is None, "the tags are letters to this model"
    model = new_model(SHAPE, vocab_size=codec.vocab_size, seed=0).eval()
    source = AtlasTasks(entities=40, worlds=1, questions_per_world=40).source("evaluation", tags)
    attempts = steered(model, codec, source, tags)
    assert [t.ended for t in attempts] == [Ended.ANSWERED] * 2
    assert {len(t.turns) for t in attempts} == {9}, "three turns per question and three more"
    assert len({turn.completion_ids for t in attempts for turn in t.turns}) == 18, "what is inside the tags is sampled"
    checks = verify(model, [Group(trajectories=tuple(replace(t, turns=t.turns[:2]) for t in attempts))])
    assert {check.name: check.verdict for check in checks if check.verdict != "passed"} == {}
    assert {"re-encoded tokens", "branches are separate"} <= {check.name for check in checks}


def steered_on_atlas(tags: Tags, *, context: str, single: bool) -> tuple[Any, list[Trajectory]]:
    """A random model and its attempts of four turns; `single`: its tags are single tokens."""
    letters = bpe_tokenizer(["nothing of the tags"], vocab_size=300, tags=RELEASED)
    codec = Codec(atlas_tokenizer(tags) if single else letters)
    model = new_model(SHAPE, vocab_size=codec.vocab_size, seed=0).eval()
    four_turns = TurnLimit(per_objective=0, extra=4)
    asked = AtlasTasks(entities=40, worlds=1, questions_per_world=40, turn_limit=four_turns)
    attempts = steered(model, codec, asked.source("evaluation", tags), tags, context=context)
    return model, attempts


@pytest.mark.parametrize(
    ("context", "single"),
    [("notes", False), ("notes(12)", False), ("notebook(1)", False), ("dropout(50)", False), ("notes(12)", True)],
)
def test_contexts_of_notes_are_trained_exactly_as_they_were_sampled(context: str, single: bool):
    model, attempts = steered_on_atlas(PAPER_NOTES, context=context, single=single)
    assert all(turn.notes for t in attempts for turn in t.turns if turn.action != SUMMARY and not turn.prefilled)
    assert any(turn.action == SUMMARY for t in attempts for turn in t.turns) == (context == "notes(12)")
    roles = [role for t in attempts for _, role, *_ in t.turns[-1].context_origins]
    # of three turns; of one, after a rewrite; of the last and the newest before it; of the last and what was drawn
    shown = {"notes": (6,), "notes(12)": (2,), "notebook(1)": (4,), "dropout(50)": range(2, 6)}
    assert roles.count("note") in shown[context]
    checks = verify(model, [Group(trajectories=tuple(attempts))])
    assert {check.name: check.verdict for check in checks if check.verdict != "passed"} == {}
    assert {"re-encoded tokens", "branches are separate"} <= {check.name for check in checks}


@pytest.mark.parametrize(
    ("context", "tags", "single"),
    [
        ("belief", PAPER_SUMMARY, False),
        ("belief", PAPER_BELIEF, False),
        ("constant", PAPER_BELIEF, False),
        ("belief", PAPER_BELIEF, True),
    ],
)
def test_a_belief_apart_from_reasoning_is_trained_exactly_as_it_was_sampled(context: str, tags: Tags, single: bool):
    model, attempts = steered_on_atlas(tags, context=context, single=single)
    free = [turn for t in attempts for turn in t.turns if not turn.prefilled]
    assert len(free) == 6 and all("state" in turn.completion_spans for turn in free)
    assert all(("thought" in turn.completion_spans) == (tags is PAPER_BELIEF) for turn in free)
    assert [turn.action for turn in attempts[0].turns].count(SUMMARY) == (3 if context == "belief" else 0)
    checks = verify(model, [Group(trajectories=tuple(attempts))])
    assert {check.name: check.verdict for check in checks if check.verdict != "passed"} == {}
    assert {"re-encoded tokens", "branches are separate", "tokens trained exactly once"} <= {c.name for c in checks}


def test_a_budget_without_room_for_the_tags_leaves_the_model_alone(model, source):
    attempts = steered(model, CODEC, source, budget=Budget(completion_per_objective=0, completion_extra=5))
    assert {len(t.turns) for t in attempts} == {1}
    verdicts = {c.name: c.verdict for c in verify(model, [Group(trajectories=(t,)) for t in attempts])}
    assert verdicts["re-encoded tokens"] == "not tested"
