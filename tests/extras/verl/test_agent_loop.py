"""The contract with verl 0.9.1: what it loads of ours, hands to ours, and makes of what ours returns.

Runs where mem1-agents[verl] is installed, in an environment of its own, on a CPU; skipped without. Everything
between the server's client and the optimiser is verl's own code here: configuration, data set, agent-loop worker in a
Ray cluster of two nodes on this machine, TransferQueue, padding, the trainer's step that computes advantages.

The client follows scripts here; `test_verl_training.py` has verl's workers, its training and its checkpoints.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("verl", reason="needs mem1-agents[verl] in an environment of its own (verl.md)")
pytest.importorskip("transfer_queue", reason="needs TransferQueue: pip install 'mem1-agents[verl]' (verl.md)")

import numpy as np
import ray
import torch
import transfer_queue as tq
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from ray.cluster_utils import Cluster
from tensordict import TensorDict
from transformers import LlamaConfig, PreTrainedTokenizerFast
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import agg_loss, get_adv_estimator_fn, register_adv_est
from verl.trainer.ppo.metric_utils import process_validation_metrics
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils import tensordict_utils
from verl.utils.config import validate_config
from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn
from verl_client import ScriptedClient
from worlds import CODEC, SMALL, rollout

from mem1.engines.base import Sampling, Script
from mem1.errors import UserError
from mem1.extras.verl.advantages import ALGORITHMS, trajectory_name
from mem1.extras.verl.agent_loop import ContextLoop, ContextLoopManager
from mem1.extras.verl.settings import write_tasks
from mem1.protocol import PAPER
from mem1.recipe.scripted import search_then_answer
from mem1.records import Task

pytestmark = pytest.mark.verl

RECIPE = Path(__file__).parents[3] / "recipes" / "qwen2.5-7b-multihop"
TOML = '[tasks]\nkind = "atlas"\nentities = 60\nworlds = 2\nquestions_per_world = 120\n'
ATTEMPTS = 4
END = 0
"""Token that verl's padding is made of."""


def configuration(*overrides: str) -> DictConfig:
    """The shipped file, composed as verl's trainer composes it."""
    with initialize_config_dir(str(RECIPE), version_base=None):
        return compose("verl", overrides=list(overrides))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, its tasks as Parquet, and a model's folder without weights."""
    folder = tmp_path_factory.mktemp("verl")
    (folder / "recipe.toml").write_text(TOML)
    write_tasks(folder / "train.parquet", tasks(), split="train")
    LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=CODEC.vocab_size).save_pretrained(folder / "model")
    end = CODEC.tokenizer.id_to_token(END)
    saved = PreTrainedTokenizerFast(tokenizer_object=CODEC.tokenizer, eos_token=end, pad_token=end)
    saved.save_pretrained(folder / "model")
    return folder


def tasks() -> list[Task]:
    return SMALL.source("train", PAPER).tasks(objectives=1, count=2, seed=0)


def small(folder: Path, *overrides: str) -> DictConfig:
    """The shipped configuration on those files."""
    config = configuration(
        f"mem1.recipe={folder}/recipe.toml",
        f"actor_rollout_ref.model.path={folder}/model",
        f"data.train_files={folder}/train.parquet",
        f"+data.cache_dir={folder}/cache",
        "data.train_batch_size=2",
        f"actor_rollout_ref.rollout.n={ATTEMPTS}",
        "actor_rollout_ref.rollout.agent.num_workers=1",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
        *overrides,
    )
    OmegaConf.resolve(config)
    return config


def scripts(task: Task) -> list[Script]:
    """Attempts of two turns, of six (the most), and twice of one; the first is right about this task."""
    gold = task.questions[0].answers[0]

    def searches(context: str) -> str:
        forced = context.rstrip().endswith("<answer>")
        return f"Q1 {gold} </answer>" if forced else "<IS> now Q1 </IS> <query> mayor </query>"

    return [
        search_then_answer(f"Q1 {gold}", state="IS", search="query"),
        searches,
        lambda _: "<IS> now Q1 </IS> <answer> Q1 mayor </answer>",
        lambda _: "<IS> done </IS> <answer> Q1 mayor </answer>",
    ]


# configuration and registration


def test_the_shipped_file_is_a_configuration_of_verls_trainer():
    config = configuration()
    validate_config(config, need_reference_policy(config), need_critic(config))
    assert need_reference_policy(config) and not need_critic(config)
    assert config.actor_rollout_ref.actor.ppo_mini_batch_size == 96
    assert config.transfer_queue.backend.storage_backend == "SimpleStorage"  # a default of verl's, so they are there


def test_the_manager_refuses_what_verl_accepts_and_would_count_contexts(files: Path):
    wrong = small(files, "algorithm.adv_estimator=rloo", "actor_rollout_ref.rollout.top_p=0.9")
    with pytest.raises(UserError, match=r"adv_estimator is 'rloo'.*top_p is 0.9"):
        ContextLoopManager(wrong, llm_client=None)
    assert ContextLoopManager(small(files), llm_client=None).llm_client is None


@pytest.mark.parametrize("loaded", [True, False])
def test_the_estimators_are_registered_by_verls_environment_variable(loaded: bool):
    code = (
        "import verl; from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY as known; "
        "print(sorted(n for n in known if n.startswith('mem1_')))"
    )
    variables = {"VERL_USE_EXTERNAL_MODULES": "mem1.extras.verl.register"} if loaded else {}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **variables}, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == str(sorted(ALGORITHMS) if loaded else [])


# the agent loop


def test_the_agent_loop_returns_one_output_a_turn_with_the_tokens_of_our_own_rollout(files: Path):
    config, (task, _) = small(files), tasks()
    (row, _) = RLHFDataset(str(files / "train.parquet"), tokenizer(files), config.data)
    script = search_then_answer(f"Q1 {task.questions[0].answers[0]}", state="IS", search="query")
    client = ScriptedClient(CODEC, [script], weights_step=7)
    loop = ContextLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=client,  # pyright: ignore[reportArgumentType]  # ours has the one method that is called
        tokenizer=tokenizer(files),
        processor=None,  # pyright: ignore[reportArgumentType]  # as verl has it for a model of text
        dataset_cls=RLHFDataset,
        data_config=DictConfigWrap(config.data),
    )
    sampling = {"temperature": 1.0, "top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    outputs = asyncio.run(loop.run(sampling, **row, uid="u", session_id=0))

    ours = rollout(script, SMALL.source("train", PAPER).environment)([task], sampling=Sampling())[0]
    assert len(outputs) == len(ours.turns) == 2
    for output, turn in zip(outputs, ours.turns, strict=True):
        assert output.prompt_ids == list(turn.context_ids)
        assert output.response_ids == list(turn.completion_ids)
        assert output.response_mask == [1] * len(turn.completion_ids)
        assert output.reward_score == ours.reward == 1.0
        assert output.num_turns == 2
        assert output.extra_fields["max_global_steps"] == 7
    logprobs = [logprob for output in outputs for logprob in output.response_logprobs or []]
    assert logprobs == pytest.approx([-0.001 * (i + 1) for i in range(ours.num_completion_tokens)])
    assert "prompt" in row and outputs[1].prompt_ids[: len(outputs[0].prompt_ids)] == outputs[0].prompt_ids


def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(folder / "model")


# advantages


REWARDS = [[1.0, 0.0, 0.0, 2.0], [0.5, 0.5, 0.5, 0.5], [0.0, 1.0, 1.0, 0.25]]
EVEN = [[1] * 4] * 3
UNEVEN = [[6, 1, 2, 1], [1, 5, 1, 1], [2, 3, 4, 5]]
WIDTH = 7


def batch(contexts: Sequence[Sequence[int]], seed: int) -> tuple[DataProto, list[str]]:
    """What the trainer has when it computes advantages: padded rows in an order of their own, and their keys."""
    rng = random.Random(seed)
    rows = [
        (f"g{g}_{a}_{turn}", trajectory_name(f"g{g}", a), reward, rng.randint(1, WIDTH))
        for g, rewards in enumerate(REWARDS)
        for a, reward in enumerate(rewards)
        for turn in range(contexts[g][a])
    ]
    rows += [(f"pad9c_{i}_0", "pad9c", 0.0, 0) for i in range(3)]
    rng.shuffle(rows)
    mask = torch.tensor([[1] * length + [0] * (WIDTH - length) for _, _, _, length in rows])
    rewards = torch.zeros(len(rows), WIDTH)
    for row, (_, _, reward, length) in enumerate(rows):
        rewards[row, max(length, 1) - 1] = reward
    tensors = TensorDict({"response_mask": mask, "token_level_rewards": rewards}, batch_size=len(rows))
    data = DataProto(batch=tensors)
    data.non_tensor_batch["uid"] = np.array([name for _, name, _, _ in rows], dtype=object)
    return data, [key for key, _, _, _ in rows]


def check_estimator(estimator: str, ours: str, contexts: Sequence[Sequence[int]], seed: int) -> None:
    """Through verl's own call, every sampled token has the advantage that `mem1 train` gives its trajectory."""
    data, keys = batch(contexts, seed)
    expected = ALGORITHMS[ours].step_advantages(REWARDS)
    by_name = {trajectory_name(f"g{g}", a): x for g, group in enumerate(expected) for a, x in enumerate(group)}
    done = compute_advantage_for_multi_trajectories(data, keys, estimator, config=configuration().algorithm)
    assert len(done) == sum(map(sum, contexts)) + 3
    of_rows = torch.tensor([by_name.get(name, 0.0) for name in done.non_tensor_batch["uid"]])
    torch.testing.assert_close(
        done.batch["advantages"], of_rows.unsqueeze(-1) * done.batch["response_mask"], rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("contexts", [EVEN, UNEVEN])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_advantages_through_verl_are_those_of_our_trainer(name: str, contexts: Sequence[Sequence[int]], seed: int):
    check_estimator(name, name, contexts, seed)


def by_rows(name: str) -> Callable[..., Any]:
    """The mutant: our estimator, told that every row is an attempt of its own."""

    def estimator(*, index: Sequence[str], response_mask: torch.Tensor, **others: Any) -> Any:
        names = [
            trajectory_name(uid.partition("/")[0], row) if mask.any() else uid
            for row, (uid, mask) in enumerate(zip(index, response_mask, strict=True))
        ]
        return get_adv_estimator_fn(name)(index=names, response_mask=response_mask, **others)

    return estimator


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_check_fails_on_a_mutant_that_counts_rows(name: str):
    register_adv_est(f"{name}_by_rows")(by_rows(name))
    check_estimator(f"{name}_by_rows", name, EVEN, seed=0)  # one context each: rows are attempts
    with pytest.raises(AssertionError, match="not close"):
        check_estimator(f"{name}_by_rows", name, UNEVEN, seed=0)


def test_the_denominators_of_the_loss_are_ours_where_a_mini_batch_holds_all_contexts():
    """verl.md says so of grpo and of dr_grpo: tokens of the step, and a budget an attempt."""
    data, _ = batch(UNEVEN, seed=0)
    mask = data.batch["response_mask"]
    values = torch.rand(mask.shape, generator=torch.Generator().manual_seed(0))
    attempts, contexts, budget = sum(map(len, REWARDS)), 6, 510
    common: dict[str, Any] = {"global_batch_size": attempts * contexts, "batch_num_tokens": int(mask.sum())}
    whole = (values * mask).sum()
    torch.testing.assert_close(agg_loss(values, mask, "token-mean", **common), whole / mask.sum())
    normed = agg_loss(values, mask, "seq-mean-token-sum-norm", loss_scale_factor=budget // contexts, **common)
    torch.testing.assert_close(normed, whole / (attempts * budget))


# from the data set to the advantages, through Ray and TransferQueue


@pytest.fixture(scope="module")
def local_ray(files: Path) -> Iterator[DictConfig]:
    """Two nodes, each with an object store and workers of its own, with a worker of agent loops on each."""
    config = small(files, "actor_rollout_ref.rollout.agent.num_workers=2")
    # actors of both ask for CPUs that they hardly use
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 16, "include_dashboard": False})
    cluster.add_node(num_cpus=16)
    here = os.pathsep.join([str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH", "")])
    ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": here}})
    tq.init(config.transfer_queue)
    yield config
    tq.close()
    ray.shutdown()
    cluster.shutdown()


def nodes_of_workers() -> set[str]:
    alive = [actor for actor in ray._private.state.actors().values() if actor["State"] == "ALIVE"]
    return {actor["Address"]["NodeID"] for actor in alive if actor["ActorClassName"] == "ContextLoopWorker"}


def submit(config: DictConfig, folder: Path, uids: Sequence[str], *, validate: bool) -> dict[str, dict[str, Any]]:
    """Hand the tasks to our manager as the trainer does, and wait: key of each row -> its tags."""
    partition = "val" if validate else "train"
    client = ScriptedClient(CODEC, scripts(tasks()[0]), weights_step=3)
    manager = ContextLoopManager.create(
        config=config, llm_client=client, teacher_client=None, reward_loop_worker_handles=None
    )
    rows = RLHFDataset(str(folder / "train.parquet"), tokenizer(folder), config.data)
    columns = collate_fn([rows[i] for i in range(len(uids))])
    columns["uid"] = np.array(uids, dtype=object)
    prompts = tensordict_utils.get_tensordict(columns)
    tensordict_utils.assign_non_tensor_data(prompts, "global_steps", 4)
    if validate:
        tensordict_utils.assign_non_tensor_data(prompts, "validate", True)
    waiting = [{"is_prompt": True, "status": "pending", "global_steps": 4}] * len(uids)
    tq.kv_batch_put(keys=list(uids), partition_id=partition, tags=waiting)
    manager.generate_sequences(prompts)
    until = time.monotonic() + 120
    while time.monotonic() < until:
        entries = tq.kv_list(partition)[partition]
        states = {entries[uid]["status"] for uid in uids}
        if states <= {"finished", "failure"}:
            assert states == {"finished"}
            assert len(nodes_of_workers()) == 2
            return {key: tags for key, tags in entries.items() if key not in uids}
        time.sleep(0.2)
    raise AssertionError("the agent loops did not come to an end")


def test_what_a_step_of_the_trainer_computes_from_our_rows_is_ours(local_ray: DictConfig, files: Path):
    entries = submit(local_ray, files, ["aa", "bb"], validate=False)
    turns = {(uid, a): sum(key.startswith(f"{uid}_{a}_") for key in entries) for uid in ("aa", "bb") for a in range(4)}
    # each task has each script once; which attempt takes which is a matter of time
    for uid in ("aa", "bb"):
        assert sorted(turns[uid, a] for a in range(4)) == [1, 1, 2, 6]
    assert {tags["max_global_steps"] for tags in entries.values()} == {3}

    keys = sorted(entries, key=lambda key: key[::-1])
    made = tq.KVBatchMeta(keys=keys, tags=[entries[key] for key in keys], partition_id="train")
    padded = upsample_batch_to_divisible_size(made, 48, END)
    assert len(keys) == 20 and len(padded.keys) == 48
    # a trainer that computes as the sampler does, of which the step asks nothing but its configuration
    logprobs = tq.kv_batch_get(keys=padded.keys, partition_id="train", select_fields=["rollout_log_probs"])
    logprobs["old_log_probs"] = logprobs.pop("rollout_log_probs")
    tq.kv_batch_put(keys=padded.keys, partition_id="train", fields=logprobs)
    trainer: Any = SimpleNamespace(config=local_ray)
    PPOTrainer._compute_advantage(trainer, padded, metrics={})

    fields = ["uid", "response_mask", "rm_scores", "advantages"]
    data = tq.kv_batch_get(keys=padded.keys, partition_id="train", select_fields=fields)
    names = list(data["uid"])
    scores = [float(row.sum()) for row in data["rm_scores"].unbind()]
    rewards = {(u, a): scores[names.index(trajectory_name(u, a))] for u, a in turns}
    assert sorted(rewards[u, a] for u, a in turns if u == "aa") == [0.0, 0.0, 1.0, 1.0]
    groups = [[rewards[u, a] for a in range(4)] for u in ("aa", "bb")]
    expected = dict(zip(turns, chain.from_iterable(ALGORITHMS["mem1_grpo"].step_advantages(groups)), strict=True))
    assert max(expected.values()) > 0.9
    seen = 0
    for key, name, mask, advantages in zip(
        padded.keys, names, data["response_mask"].unbind(), data["advantages"].unbind(), strict=True
    ):
        uid, attempt, _ = key.rsplit("_", 2)
        if uid.startswith("pad"):
            assert advantages.tolist() == [0.0]
            continue
        assert name == trajectory_name(uid, int(attempt))
        assert mask.all() and len(mask) > 0
        torch.testing.assert_close(advantages, torch.full((len(mask),), expected[uid, int(attempt)]))
        seen += 1
    assert seen == 20


def test_a_validation_is_summed_up_by_the_uids_of_its_tasks_and_a_lost_attempt_is_wrong(
    local_ray: DictConfig, files: Path
):
    entries = submit(local_ray, files, ["cc", "dd"], validate=True)
    keys = sorted(entries)
    data = tq.kv_batch_get(keys=keys, partition_id="val", select_fields=["uid", "extra_fields", "data_source"])
    assert list(data["uid"]) == [key.split("_")[0] for key in keys]
    assert {key.split("_")[1] for key in keys} == {"0"}
    last = {key.rsplit("_", 1)[0]: number for number, key in enumerate(keys)}
    uids, sources = ([list(data[name])[number] for number in last.values()] for name in ("uid", "data_source"))
    infos = [list(data["extra_fields"])[number]["reward_extra_info"] for number in last.values()]
    assert set(infos[0]) == {"acc", "f1", "answered", "turns", "peak_tokens"}
    right = sum(info["acc"] for info in infos)
    assert (len(infos), right) == (2, 1.0)  # the first script is right about the first task alone
    named = {name: [info[name] for info in infos] for name in infos[0]}
    expected = {("mem1-n1", uid): 1 for uid in ("cc", "dd", "lost")}
    measured = process_validation_metrics(sources, uids, named, expected_acc_counts=expected)["mem1-n1"]
    assert measured["acc"]["mean@1"] == pytest.approx(1 / 3)
