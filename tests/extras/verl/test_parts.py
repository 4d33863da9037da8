"""The verl adapter without verl: tasks as rows, the engine over a server's client, outputs, rows into groups, checks.

`tests/extras/verl/test_agent_loop.py` has what needs verl itself.
"""

from __future__ import annotations

import asyncio
import json
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner
from verl_client import ScriptedClient, ScriptedOutput
from worlds import CODEC, SAMPLING, SMALL, replay, rollout, shelf, task

from mem1.algorithms.group import Grpo, ReinforcePlusPlus
from mem1.cli.main import app
from mem1.configuration import load_toml
from mem1.engines.base import Sampling, Script
from mem1.errors import UserError
from mem1.extras.verl.advantages import ALGORITHMS, RowGroup, estimators, row_advantages, row_groups, trajectory_name
from mem1.extras.verl.engine import ServerEngine, asked_temperature, turn_outputs
from mem1.extras.verl.settings import check_one_step, check_trainer, read_row, read_settings, write_tasks
from mem1.memory import memory_policy
from mem1.parquet import read_rows
from mem1.protocol import PAPER
from mem1.recipe.recipe import Recipe
from mem1.records import Ended
from mem1.rollout import Budget, Rollout

RECIPE = Path(__file__).parents[3] / "recipes" / "qwen2.5-7b-multihop"
SEARCH = "<IS> now Q1 a mayor ? </IS> <query> a mayor </query>"
RIGHT = "<IS> Sela Prand . done </IS> <answer> Sela Prand </answer>"
ASKED = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


# tasks


def test_a_task_comes_back_whole_from_the_row_that_verl_reads(tmp_path: Path):
    pytest.importorskip("pyarrow")
    asked = replace(task("Oslo", "Ber;gen »", turns=7), corpus="w", seed=4)
    write_tasks(tmp_path / "t.parquet", [asked, task("x")], split="evaluation")
    rows = [row for _, row in read_rows(tmp_path / "t.parquet")]
    assert [row["prompt"] for row in rows] == [[{"role": "user", "content": "Q1 a mayor ?"}]] * 2
    assert [row["extra_info"]["index"] for row in rows] == [0, 1]
    assert rows[0]["data_source"] == "mem1-n2"
    assert read_row(rows[0]["extra_info"]) == (asked, "evaluation")


@pytest.mark.parametrize("extra_info", [None, {}, {"task": "{}", "split": "train"}, {"task": "no", "split": "train"}])
def test_a_row_of_another_file_is_refused_with_what_writes_the_right_one(extra_info: dict[str, str] | None):
    with pytest.raises(UserError, match="mem1 data --verl"):
        read_row(extra_info)


def test_the_command_writes_the_tasks_of_a_recipe_in_turn_by_size(tmp_path: Path):
    pytest.importorskip("pyarrow")
    out = tmp_path / "t.parquet"
    small = [f"tasks.{key}" for key in ("entities=60", "worlds=2", "questions_per_world=120")]
    command = ["data", "atlas-quick", "--verl", "--split", "train", "--out", str(out), "--limit", "3", "--json"]
    command += [*small, "--objectives", "1,2"]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    told = {"out": str(out), "tasks": 6, "objectives": [1, 2], "split": "train", "passages": 0}
    assert json.loads(done.stdout) == told
    tasks = [read_row(row["extra_info"])[0] for _, row in read_rows(out)]
    source = SMALL.source("train", PAPER)
    assert tasks[::2] == source.tasks(objectives=1, count=3, seed=0)
    assert tasks[1::2] == source.tasks(objectives=2, count=3, seed=0)


# engine and outputs


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """verl's side: an event loop that runs while attempts wait in threads."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def served(client: Any, loop: asyncio.AbstractEventLoop) -> ServerEngine:
    return ServerEngine(client=client, loop=loop, codec=CODEC, stop_strings=PAPER.stop_strings, request_id="a")


def attempt(client: Any, *, context: str = "constant", budget: Budget | None = None):
    """(trajectory, engine) of one attempt at a task of one question."""
    with loop_in_a_thread() as loop:
        engine = served(client, loop)
        run: Rollout = rollout(engine, shelf("Sela Prand is a mayor ."), context=context, budget=budget)
        (trajectory,) = run([task("Sela Prand")], sampling=SAMPLING)
    return trajectory, engine


def scripted(script: Script) -> ScriptedClient:
    return ScriptedClient(CODEC, [script], weights_step=5)


def test_an_attempt_over_a_server_is_the_attempt_by_the_same_script_here():
    trajectory, engine = attempt(scripted(replay(SEARCH, RIGHT)))
    (same,) = rollout(replay(SEARCH, RIGHT), shelf("Sela Prand is a mayor ."))([task("Sela Prand")], sampling=SAMPLING)
    assert trajectory.reward == same.reward == 1.0
    assert len(trajectory.turns) == 2
    for ours, theirs in zip(trajectory.turns, same.turns, strict=True):
        assert (ours.context_ids, ours.completion_ids) == (theirs.context_ids, theirs.completion_ids)
    first, second = (turn.logprobs for turn in trajectory.turns)
    assert [*first, *second] == pytest.approx([-0.001 * (i + 1) for i in range(len(first) + len(second))])
    assert (engine.oldest, engine.newest) == (5, 5)


def test_a_request_has_the_stop_strings_the_budget_and_no_cut_of_the_distribution():
    client = scripted(replay(RIGHT))
    with loop_in_a_thread() as loop:
        served(client, loop).complete([CODEC.encode("Q1")], max_tokens=[40], sampling=Sampling(temperature=0.7))
    assert client.asked == [
        {
            "temperature": 0.7,
            "top_p": 1.0,
            "top_k": -1,
            "repetition_penalty": 1.0,
            "logprobs": True,
            "max_tokens": 40,
            "stop": list(PAPER.stop_strings),
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
        }
    ]


def test_one_output_a_turn_has_exactly_its_tokens_and_the_reward_of_the_whole():
    trajectory, engine = attempt(scripted(replay(SEARCH, SEARCH, RIGHT)))
    outputs = turn_outputs(trajectory, engine)
    assert len(outputs) == len(trajectory.turns) == 3
    for output, turn in zip(outputs, trajectory.turns, strict=True):
        assert output["prompt_ids"] == list(turn.context_ids)
        assert output["response_ids"] == list(turn.completion_ids)
        assert output["response_mask"] == [1] * len(turn.completion_ids)
        assert output["response_logprobs"] == list(turn.logprobs)
        assert output["reward_score"] == 1.0
        assert output["extra_fields"]["min_global_steps"] == 5
    assert outputs[0]["extra_fields"]["reward_extra_info"] == {
        "acc": 1.0,
        "f1": 1.0,
        "answered": 1.0,
        "turns": 3.0,
        "peak_tokens": max(turn.num_tokens for turn in trajectory.turns),
    }


class Broken:
    """A server that answers wrongly, or not at all."""

    def __init__(self, answer: ScriptedOutput | Exception) -> None:
        self.answer = answer

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> ScriptedOutput:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (ConnectionError("no route"), "ConnectionError: no route"),
        (ScriptedOutput(token_ids=[], log_probs=[], stop_reason="aborted"), "0 tokens"),
        (ScriptedOutput(token_ids=[1, 2], log_probs=[-1.0, -1.0], stop_reason="aborted"), "aborted"),
    ],
)
def test_an_attempt_whose_server_failed_says_nothing_of_the_policy_and_has_no_outputs(answer: Any, why: str):
    trajectory, engine = attempt(Broken(answer))
    assert trajectory.ended is Ended.ENGINE_FAILED
    assert why in trajectory.detail
    assert turn_outputs(trajectory, engine) == []


@pytest.mark.parametrize("logprobs", [None, [-1.0]])
def test_a_server_without_a_log_probability_for_each_token_is_an_error_and_no_ending(logprobs: list[float] | None):
    with pytest.raises(UserError, match="calculate_log_probs"):
        attempt(Broken(ScriptedOutput(token_ids=[1, 2], log_probs=logprobs)))


def test_a_completion_that_used_its_budget_without_a_tag_ended_for_lack_of_tokens():
    trajectory, _ = attempt(scripted(replay("<IS> " + "mayor " * 30)), budget=Budget(completion_extra=4))
    assert trajectory.ended is Ended.OUT_OF_TOKENS


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"top_p": 0.9}, "top_p=0.9"),
        ({"top_k": 50}, "top_k=50"),
        ({"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ({"min_p": 0.1}, "min_p=0.1"),
        ({"logprobs": False}, "no log-probabilities"),
    ],
)
def test_sampling_that_would_bias_the_training_is_refused(changed: dict[str, Any], named: str):
    assert asked_temperature(ASKED) == 1.0
    with pytest.raises(UserError, match=named):
        asked_temperature({**ASKED, **changed})


# rows and advantages

Rows = tuple[list[str], list[float], list[bool]]


def make_rows(rewards_by_group: Sequence[Sequence[float]], contexts: Sequence[Sequence[int]], seed: int) -> Rows:
    """So many rows an attempt, and three of padding, in an order of their own: names, rewards, trained."""
    rows = [
        (trajectory_name(f"g{g}", a), reward, True)
        for g, rewards in enumerate(rewards_by_group)
        for a, reward in enumerate(rewards)
        for _ in range(contexts[g][a])
    ]
    rows += [("pad9c", 0.0, False)] * 3
    random.Random(seed).shuffle(rows)
    return [name for name, _, _ in rows], [reward for _, reward, _ in rows], [trained for _, _, trained in rows]


def test_rows_are_put_together_by_attempt_and_group():
    names = ["b/0", "a/1", "a/0", "pad9c", "a/1"]
    assert row_groups(names, [3.0, 1.0, 0.0, 0.0, 1.0], [True, True, True, False, True]) == [
        RowGroup(rewards_G=(0.0, 1.0), rows_G=((2,), (1, 4))),
        RowGroup(rewards_G=(3.0,), rows_G=((0,),)),
    ]


def test_rows_that_do_not_say_their_attempt_are_refused():
    with pytest.raises(UserError, match="ContextLoopManager"):
        row_groups(["a", "a"], [1.0, 0.0], [True, True])


def test_rows_of_one_attempt_with_different_rewards_are_refused():
    with pytest.raises(UserError, match="use_kl_in_reward"):
        row_groups(["a/0", "a/0"], [1.0, 0.99], [True, True])


def test_an_attempt_counts_once_however_many_contexts_it_had():
    #                    attempt 0 (three contexts)   1        padding
    names, rewards = ["a/0", "a/0", "a/0", "a/1", "pad9c"], [1.0, 1.0, 1.0, 0.0, 0.0]
    found = row_advantages(Grpo(), names, rewards, [True] * 4 + [False])
    assert found == pytest.approx([1.0, 1.0, 1.0, -1.0, 0.0], abs=3e-4)  # by rows it would be 0.58 and -1.73
    assert found[4] == 0.0


REWARDS = [[1.0, 0.0, 0.0, 2.0], [0.5, 0.5, 0.5, 0.5], [0.0, 1.0, 1.0, 0.25]]
CONTEXTS = [[[1] * 4] * 3, [[6, 1, 2, 1], [1, 5, 1, 1], [2, 3, 4, 5]]]


def check_rows(advantages_of: Any, name: str, contexts: Sequence[Sequence[int]], seed: int) -> None:
    """Every row has the advantage that `mem1 train` gives its trajectory, padding has 0."""
    names, rewards, trained = make_rows(REWARDS, contexts, seed)
    expected = ALGORITHMS[name].step_advantages(REWARDS)
    by_name = {trajectory_name(f"g{g}", a): x for g, group in enumerate(expected) for a, x in enumerate(group)}
    found = advantages_of(ALGORITHMS[name], names, rewards, trained)
    assert len(found) == sum(map(sum, contexts)) + 3
    assert found == [by_name.get(row, 0.0) for row in names]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("contexts", CONTEXTS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_advantages_do_not_depend_on_contexts_or_on_the_order_of_rows(
    name: str, contexts: Sequence[Sequence[int]], seed: int
):
    check_rows(row_advantages, name, contexts, seed)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_check_fails_on_a_mutant_that_counts_every_row_as_an_attempt(name: str):
    def by_rows(algorithm: Any, names: Sequence[str], rewards: Any, trained: Any) -> list[float]:
        groups = [n.partition("/")[0] for n in names]
        each = [trajectory_name(g, i) if t else g for i, (g, t) in enumerate(zip(groups, trained, strict=True))]
        return row_advantages(algorithm, each, rewards, trained)

    check_rows(by_rows, name, CONTEXTS[0], seed=0)  # one context each: rows are attempts
    with pytest.raises(AssertionError):
        check_rows(by_rows, name, CONTEXTS[1], seed=0)


def test_a_group_of_which_one_attempt_is_left_teaches_nothing_where_attempts_are_compared():
    names, rewards = ["a/0", "b/0", "b/1"], [1.0, 1.0, 0.0]
    assert row_advantages(Grpo(), names, rewards, [True] * 3)[0] == 0.0
    assert row_advantages(ReinforcePlusPlus(), names, rewards, [True] * 3)[0] > 0.5


def test_an_estimator_puts_the_advantage_on_sampled_tokens_alone():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]])
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    advantages, returns = estimators()["mem1_dr_grpo"](
        token_level_rewards=rewards, response_mask=mask, index=["a/0", "a/1", "a/0", "pad9c"], config=None
    )
    assert advantages.tolist() == [[0.5, 0.5, 0.0], [-0.5, 0.0, 0.0], [0.5, 0.5, 0.5], [0.0, 0.0, 0.0]]
    assert torch.equal(advantages, returns)


# configuration


def shipped() -> dict[str, Any]:
    """The shipped file, with those of verl's defaults that it leaves as they are."""
    config = yaml.safe_load((RECIPE / "verl.yaml").read_text())
    config["trainer"] |= {"use_v1": True, "v1": {"trainer_mode": "sync"}}
    data, sampler = config["data"], config["actor_rollout_ref"]["rollout"]
    sampler |= {"logprobs_mode": "processed_logprobs", "max_model_len": None}
    sampler |= {"prompt_length": data["max_prompt_length"], "response_length": data["max_response_length"]}
    return config


def recipe() -> Recipe:
    return load_toml(RECIPE / "grpo.toml", Recipe)


def test_the_shipped_configuration_says_the_same_as_the_recipe_that_it_names():
    ours, theirs = recipe(), shipped()
    rl, actor, sampler = ours.rl, theirs["actor_rollout_ref"]["actor"], theirs["actor_rollout_ref"]["rollout"]
    assert rl is not None and rl.kl is not None and rl.importance is not None and isinstance(rl.algorithm, Grpo)
    correction = theirs["algorithm"]["rollout_correction"]
    assert theirs["mem1"]["recipe"].endswith("qwen2.5-7b-multihop/grpo.toml")
    assert theirs["actor_rollout_ref"]["model"]["path"] == ours.model.path
    assert theirs["data"]["max_prompt_length"] + theirs["data"]["max_response_length"] == ours.budget.context
    assert (theirs["data"]["train_batch_size"], sampler["n"]) == (rl.tasks_per_step, rl.group_size)
    assert (actor["clip_ratio_low"], actor["clip_ratio_high"]) == (rl.algorithm.clip_low, rl.algorithm.clip_high)
    assert (actor["kl_loss_coef"], actor["kl_loss_type"]) == (rl.kl.coefficient, rl.kl.loss_estimator)
    assert (correction["rollout_is"], correction["rollout_is_threshold"]) == (rl.importance.level, rl.importance.cap)
    assert (float(actor["optim"]["lr"]), actor["optim"]["lr_warmup_steps"]) == (rl.learning_rate, rl.warmup)
    assert (actor["grad_clip"], actor["entropy_coeff"]) == (rl.max_grad_norm, rl.entropy)
    assert (sampler["temperature"], theirs["trainer"]["total_training_steps"]) == (rl.temperature, rl.steps)
    assert theirs["algorithm"]["adv_estimator"] == f"mem1_{rl.algorithm.name}"
    assert theirs["trainer"]["save_freq"] == ours.checkpoint_every


def test_the_shipped_configuration_is_accepted_and_its_mini_batch_holds_every_context_of_a_step():
    config, context = shipped(), memory_policy(recipe().memory)
    check_trainer(config, recipe().budget)
    turns = recipe().tasks.turn_limit.turns(2)  # pyright: ignore[reportAttributeAccessIssue]  # not every kind has one
    assert turns == 6
    check_one_step(config, task("x", turns=turns), context)
    with pytest.raises(UserError, match="set it to 112"):
        check_one_step(config, task("x", turns=7), context)
    with pytest.raises(UserError, match="set it to 192"):
        check_one_step(config, task("x", turns=6), memory_policy("summary(100)"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("trainer.use_v1", False),
        ("trainer.v1.trainer_mode", "separate_async"),
        ("algorithm.adv_estimator", "grpo"),
        ("algorithm.adv_estimator", "gae"),
        ("algorithm.use_kl_in_reward", True),
        ("actor_rollout_ref.actor.loss_agg_mode", "seq-mean-token-mean"),
        ("actor_rollout_ref.rollout.name", "sglang"),
        ("actor_rollout_ref.rollout.top_p", 0.95),
        ("actor_rollout_ref.rollout.top_k", 20),
        ("actor_rollout_ref.rollout.val_kwargs.top_p", 0.7),
        ("actor_rollout_ref.rollout.calculate_log_probs", False),
        ("actor_rollout_ref.rollout.logprobs_mode", "raw_logprobs"),
        ("actor_rollout_ref.rollout.agent.default_agent_loop", "single_turn_agent"),
        ("actor_rollout_ref.rollout.prompt_length", 512),
    ],
)
def test_a_configuration_that_would_train_on_other_numbers_is_refused(key: str, value: Any):
    config = shipped()
    *path, last = key.split(".")
    section = config
    for name in path:
        section = section[name]
    section[last] = value
    with pytest.raises(UserError, match="budget.context" if last == "prompt_length" else key):
        check_trainer(config, recipe().budget)


def test_the_section_names_its_keys_where_it_is_wrong():
    assert read_settings({"recipe": "r.toml", "overrides": ["a=1"]}).overrides == ("a=1",)
    with pytest.raises(UserError, match="give mem1"):
        read_settings(None)
    with pytest.raises(UserError, match="recipe, overrides, concurrency"):
        read_settings({"recipes": "r.toml"})
