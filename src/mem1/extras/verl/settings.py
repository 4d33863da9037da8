"""verl's configuration and data: its section `mem1`, the values that other keys must have, and its rows of tasks.

    mem1:
      recipe: /shared/recipes/qwen2.5-7b-multihop/grpo.toml
      overrides: ["tasks.top_k=5"]
      concurrency: 256

The recipe supplies tasks, memory, protocol and budget; verl's own configuration supplies
model, algorithm and sampling. Most of verl's defaults pass `check_trainer`; a wrong value would silently train on
different numbers:

    check_trainer({"algorithm": {"adv_estimator": "grpo", ...}, ...}, Budget())
    -> UserError: ... algorithm.adv_estimator is 'grpo'; it must be one of mem1_grpo, ...

A row of the Parquet file holds the whole task as JSON, so that ids, gold answers, turn limit and collection come back
unchanged; verl requires the column `prompt`, but the policy is shown the task's own:

    data_source "mem1-n2", prompt [{"role": "user", "content": "Answer ..."}],
    extra_info {"index": 0, "split": "train", "task": '{"id": "n2-seed0-0", "questions": [...], ...}'}
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pydantic
from pydantic import Field

from mem1.configuration import Config, load_toml
from mem1.dialogue import Dialogue
from mem1.engines.base import Engine
from mem1.envs.base import TaskSource
from mem1.errors import UserError
from mem1.extras.verl.advantages import ALGORITHMS
from mem1.memory import MemoryPolicy
from mem1.parquet import write_rows
from mem1.policy.protocol import resolve
from mem1.protocol import SUMMARY
from mem1.recipe.recipe import Recipe
from mem1.recipe.rollouts import recipe_rollout
from mem1.records import Task, task_from_json, task_to_json
from mem1.rollout import Budget, RolloutPort
from mem1.tasks.compose import Split


class VerlSettings(Config):
    """The section `mem1`."""

    recipe: str
    """Path of a recipe (TOML) that the processes of every node can read."""
    overrides: tuple[str, ...] = ()
    """Changes to the recipe, as dotted key=value."""
    concurrency: int = Field(default=256, ge=1, le=10_000)
    """Attempts that one agent-loop worker runs at a time, each in a thread."""

    @property
    def opened(self) -> Recipe:
        """The recipe, read once per process. Raises UserError if that fails."""
        return _recipe(self.recipe, self.overrides)

    def rollout(self, engine: Engine, dialogue: Dialogue, split: Split) -> RolloutPort:
        """The rollout over tasks of one half; indexes and worlds are opened once per process."""
        source = _source(self.recipe, self.overrides, split)
        return recipe_rollout(self.opened, engine=engine, dialogue=dialogue, source=source)


def read_settings(section: Mapping[str, Any] | None) -> VerlSettings:
    """Validate verl's section, given as plain values. Raises UserError if it is missing or wrong."""
    if section is None:
        raise UserError("verl's configuration has no section mem1; give mem1.recipe=FILE.toml")
    try:
        return VerlSettings.model_validate(dict(section))
    except pydantic.ValidationError as error:
        known = ", ".join(VerlSettings.model_fields)
        raise UserError(f"section mem1 of verl's configuration (its keys are {known}): {error}") from error


@cache
def _recipe(path: str, overrides: tuple[str, ...]) -> Recipe:
    recipe = load_toml(path, Recipe, overrides)
    if recipe.agent is not None:
        raise UserError(f"{path} has [agent], which is for mem1 train; with verl leave it out")
    return recipe


@cache
def _source(path: str, overrides: tuple[str, ...], split: Split) -> TaskSource:
    config = _recipe(path, overrides)
    speaks = resolve(config)
    return speaks.tasks.source(split, speaks.tags)


AGENT = "mem1"
"""Name of our agent loop in verl."""
_ROLLOUT = "actor_rollout_ref.rollout"
_ACTOR = "actor_rollout_ref.actor"
_NO_CUT = "truncated sampling biases importance ratios"
_ALLOWED: tuple[tuple[str, tuple[Any, ...], str], ...] = (
    ("trainer.use_v1", (True,), "the older trainer accepts only one output per trajectory"),
    (
        "trainer.v1.trainer_mode",
        ("sync", "colocate_async"),
        "separate_async uses a fixed number of contexts per optimiser step",
    ),
    (
        "algorithm.adv_estimator",
        tuple(ALGORITHMS),
        "verl's own estimators count contexts, or use only one per trajectory",
    ),
    ("algorithm.use_kl_in_reward", (False,), f"set {_ACTOR}.use_kl_loss for a KL penalty"),
    (f"{_ROLLOUT}.name", ("vllm",), "the names of stop strings in a request are vLLM's"),
    (f"{_ROLLOUT}.agent.default_agent_loop", (AGENT,), "only that agent loop builds our contexts"),
    (f"{_ROLLOUT}.calculate_log_probs", (True,), "every sampled token needs its log-probability"),
    (f"{_ROLLOUT}.logprobs_mode", ("processed_logprobs",), "log-probabilities must be at the sampling temperature"),
    (f"{_ROLLOUT}.top_p", (1,), _NO_CUT),
    (f"{_ROLLOUT}.top_k", (-1, 0), _NO_CUT),
    (f"{_ROLLOUT}.val_kwargs.top_p", (1,), "the agent loop cannot tell validation attempts apart"),
    (f"{_ROLLOUT}.val_kwargs.top_k", (-1, 0), "the agent loop cannot tell validation attempts apart"),
    (
        f"{_ACTOR}.loss_agg_mode",
        ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm"),
        "a mean over each context's own tokens gives tokens of short contexts more weight",
    ),
)
"""Key, its allowed values, reason."""


def check_trainer(config: Mapping[str, Any], budget: Budget) -> None:
    """Raises UserError listing every wrong key; `config` is verl's whole configuration as plain values."""
    problems = [*_wrong_values(config), *_too_short(config, budget)]
    if problems:
        raise UserError("verl's configuration is unsuitable for mem1's trajectories: " + "; ".join(problems))


def _wrong_values(config: Mapping[str, Any]) -> Iterator[str]:
    for key, allowed, why in _ALLOWED:
        value = _at(config, key)
        if value not in allowed:
            wanted = (
                f"it must be {allowed[0]}" if len(allowed) == 1 else f"it must be one of {', '.join(map(str, allowed))}"
            )
            yield f"{key} is {value!r}; {wanted}: {why}"


def _too_short(config: Mapping[str, Any], budget: Budget) -> Iterator[str]:
    """A server with less room would silently shorten completions."""
    rollout = _at(config, _ROLLOUT)
    longest = rollout["max_model_len"] or rollout["prompt_length"] + rollout["response_length"]
    if longest < budget.context:
        yield (
            f"servers hold {longest} tokens but the recipe's budget.context is {budget.context}; raise "
            "data.max_prompt_length and data.max_response_length (or max_model_len), or lower budget.context"
        )


def check_one_step(config: Mapping[str, Any], task: Task, context: MemoryPolicy) -> None:
    """Raises UserError unless all contexts of a rollout over tasks like this fit into one optimiser step.

    verl counts a mini-batch in contexts, ppo_mini_batch_size x rollout.n of them. If that is too small, the number of
    optimiser steps grows with the number of turns, and an attempt's contexts are spread over several steps.
    """
    contexts = task.turn_limit * (2 if SUMMARY in context.asks else 1)
    tasks, mini_batch = _at(config, "data.train_batch_size"), _at(config, f"{_ACTOR}.ppo_mini_batch_size")
    if mini_batch < tasks * contexts:
        raise UserError(
            f"{_ACTOR}.ppo_mini_batch_size is {mini_batch}, but a step of {tasks} tasks can have {contexts} contexts "
            f"each; set it to {tasks * contexts} (data.train_batch_size x contexts), with {_ACTOR}.use_dynamic_bsz"
        )


def _at(config: Mapping[str, Any], key: str) -> Any:
    value: Any = config
    for name in key.split("."):
        value = value[name]
    return value


def write_tasks(path: Path, tasks: Sequence[Task], *, split: Split) -> None:
    """One row per task; the old file or the whole new one. Raises UserError where it cannot be written."""
    write_rows(path, [_row(index, task, split) for index, task in enumerate(tasks)], _schema)


def read_row(extra_info: Mapping[str, Any] | None) -> tuple[Task, Split]:
    """The task of a row and its half. Raises UserError for a row that `write_tasks` did not write."""
    try:
        info = dict(extra_info or {})
        task, split = task_from_json(json.loads(info["task"])), info["split"]
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"a row of the data has no mem1 task in extra_info ({error!r}); write the file with `mem1 data --verl`"
        ) from error
    if split != "train" and split != "evaluation":
        raise UserError(f"extra_info.split is {split!r}; it must be train or evaluation")
    return task, split


def _row(index: int, task: Task, split: Split) -> dict[str, Any]:
    return {
        "data_source": f"mem1-n{task.objectives}",
        "prompt": [{"role": "user", "content": task.prompt}],
        "extra_info": {"index": index, "split": split, "task": json.dumps(task_to_json(task), ensure_ascii=False)},
    }


def _schema(pa: Any) -> Any:
    return pa.schema(
        {
            "data_source": pa.string(),
            "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
            "extra_info": pa.struct({"index": pa.int64(), "split": pa.string(), "task": pa.string()}),
        }
    )
