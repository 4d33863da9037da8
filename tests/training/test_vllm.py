"""Training through a real vLLM on the CPU, which the run starts itself. `make test-vllm` runs this."""

from __future__ import annotations

import copy
import math
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import httpx
import pytest
import torch
from chat_engines import SMOLLM2_FOLDER
from transformers import PreTrainedModel

from mem1.configuration import load_toml
from mem1.engines.base import Completion, Sampling
from mem1.engines.launched import Launch
from mem1.engines.local import LocalEngine
from mem1.engines.weight_update import PublishedWeights, ServerFailed, WeightRoutes
from mem1.envs.atlas import AtlasTasks
from mem1.policy.policy import Policy, make_policy
from mem1.recipe.model import Lora, ModelConfig
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl, ServerRollouts
from mem1.records import Trajectory, Turn
from mem1.run_folder import read_metrics
from mem1.training.logprobs import completion_logprobs
from mem1.training.ranks.adapters import with_adapters
from mem1.training.sampling.served import VLLM_LOG, weight_sync
from mem1.training.sampling.weight_sync import WeightSync
from mem1.training.train import train

if "MEM1_VLLM" not in os.environ:
    pytest.skip("MEM1_VLLM names no interpreter: run make test-vllm", allow_module_level=True)
PYTHON = os.environ["MEM1_VLLM"]
LARGEST = 1e-3
"""Largest difference of a log-probability, server and trainer, both in float32."""
TEXTS = ("The capital of Norway is", "Once upon a time there was a", "def f(x):\n", "Dear Sir or Madam,")
pytestmark = pytest.mark.timeout(900)


def rollouts(folder: Path) -> ServerRollouts:
    launch = Launch(python=PYTHON, cpu_cache_gb=1)
    return ServerRollouts(kind="vllm", launch=launch, publish_dtype="float32", weights_folder=str(folder), poll_s=0.2)


@pytest.fixture(scope="module")
def smollm2() -> Path:
    found = subprocess.run([PYTHON, "-c", SMOLLM2_FOLDER], check=True, stdout=subprocess.PIPE, text=True)
    return Path(found.stdout.split()[-1])


@pytest.fixture(scope="module")
def recipe(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """That of `mem1 real`, with the model as it is."""
    found = load_toml(Path(__file__).parents[2] / "recipes" / "smollm2" / "train.toml", Recipe)
    changes = {
        "model": ModelConfig(path=str(smollm2)),
        "rollout": rollouts(tmp_path_factory.mktemp("weights")),
        "workers": 1,
    }
    return found.model_copy(update={**changes, "writers": ()})


@pytest.fixture(scope="module")
def policy(recipe: Recipe) -> Policy:
    return make_policy(recipe)


@pytest.fixture(scope="module")
def sync(recipe: Recipe, policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WeightSync]:
    with weight_sync(recipe, policy) as found:
        assert found is not None
        found.start(tmp_path_factory.mktemp("run") / VLLM_LOG)
        yield found


VERSIONS = iter(range(1_000))


def moved(policy: Policy, seed: int) -> PreTrainedModel:
    """The policy with other weights, which say other things."""
    model = copy.deepcopy(policy.model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.003)
    return model


def contexts(policy: Policy) -> list[tuple[int, ...]]:
    return [policy.codec.encode(text) for text in TEXTS]


def sample(
    sync: WeightSync, contexts: Sequence[Sequence[int]], *, tokens: int = 24, temperature: float = 1.0
) -> list[Completion]:
    sampling = Sampling(seed=3, temperature=temperature)
    found = sync.engine.complete(contexts, max_tokens=[tokens] * len(contexts), sampling=sampling)
    assert [done.failed for done in found] == [None] * len(contexts)
    return found


def differences(
    models: dict[int, PreTrainedModel],
    contexts: Sequence[Sequence[int]],
    sampled: Sequence[Completion],
    *,
    temperature: float = 1.0,
) -> list[float]:
    """Of every token's log-probability from the trainer's, by the weights with which it is marked."""
    turns = [
        Trajectory(turns=(Turn(context_ids=tuple(context), completion_ids=done.token_ids),))
        for context, done in zip(contexts, sampled, strict=True)
    ]
    ours = {
        version: [own[0].detach() for own in completion_logprobs(model, turns, temperature=temperature)]
        for version, model in models.items()
    }
    found: list[float] = []
    for number, done in enumerate(sampled):
        assert sum(tokens for _, tokens in done.weights_versions) == len(done.token_ids) == len(done.logprobs) > 0
        marks = [version for version, tokens in done.weights_versions for _ in range(tokens)]
        found += [
            abs(float(ours[version][number][at]) - logprob)
            for at, (version, logprob) in enumerate(zip(marks, done.logprobs, strict=True))
        ]
    return found


def address(sync: WeightSync) -> str:
    (url,) = sync._addresses_now()
    return url.removesuffix("/v1")


def metric(sync: WeightSync, name: str) -> float:
    text = httpx.get(f"{address(sync)}/metrics", timeout=30).text
    return sum(float(value) for value in re.findall(rf"^vllm:{name}\{{.*\}} (\S+)$", text, re.MULTILINE))


def wait_for(happened: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.05)


def test_sampled_tokens_have_the_log_probabilities_of_the_trainer(sync: WeightSync, policy: Policy):
    version = next(VERSIONS)
    sync.push_weights(policy.model, version)
    asked = contexts(policy)
    for temperature in (1.0, 0.7, 0.0):
        sampled = sample(sync, asked, temperature=temperature)
        assert max(differences({version: policy.model}, asked, sampled, temperature=temperature or 1.0)) <= LARGEST


def test_after_an_update_nothing_is_said_or_weighed_by_the_old_weights_even_where_the_cache_knew_the_context(
    sync: WeightSync, policy: Policy
):
    version = next(VERSIONS)
    sync.push_weights(policy.model, version)
    # long enough for whole blocks of the cache
    asked = [policy.codec.encode(" ".join([text] * 40)) for text in TEXTS]
    before = sample(sync, asked, temperature=0.0)
    hits = metric(sync, "prefix_cache_hits_total")
    assert sample(sync, asked, temperature=0.0) == before and metric(sync, "prefix_cache_hits_total") > hits
    other, newer = moved(policy, 1), next(VERSIONS)
    sync.push_weights(other, newer)
    after = sample(sync, asked, temperature=0.0)
    assert max(differences({newer: other}, asked, after)) <= LARGEST
    assert policy.speaks is not None
    stops = policy.dialogue(policy.speaks).stop_strings
    local = LocalEngine(other, policy.codec, stops).complete(
        asked, max_tokens=[24] * len(asked), sampling=Sampling(seed=3, temperature=0.0)
    )
    assert [done.token_ids for done in after] == [done.token_ids for done in local]
    assert max(differences({newer: policy.model}, asked, after)) > 100 * LARGEST, "the update changes what is said"


def test_an_update_while_it_samples_marks_every_token_with_the_weights_that_sampled_it(
    sync: WeightSync, policy: Policy
):
    old, new = next(VERSIONS), next(VERSIONS)
    sync.push_weights(policy.model, old)
    other, updated = moved(policy, 2), threading.Event()
    asked, found = list[tuple[int, ...]](), list[Completion]()

    def keep_asking(context: tuple[int, ...]) -> None:
        while not updated.is_set():
            done = sample(sync, [context], tokens=100)
            with lock:
                asked.append(context)
                found.extend(done)

    lock = threading.Lock()
    rollouts = [threading.Thread(target=keep_asking, args=(context,)) for context in contexts(policy)]
    generated = metric(sync, "generation_tokens_total")
    for rollout in rollouts:
        rollout.start()
    wait_for(lambda: metric(sync, "generation_tokens_total") > generated + 20)
    sync.push_weights(other, new)
    updated.set()
    for rollout in rollouts:
        rollout.join(300)
    assert {version for done in found for version, _ in done.weights_versions} == {old, new}
    assert any(len(done.weights_versions) == 2 for done in found), "one was interrupted, and continued"
    assert max(differences({old: policy.model, new: other}, asked, found)) <= LARGEST


def test_adapters_are_published_merged_and_are_exact(sync: WeightSync, policy: Policy):
    model = with_adapters(copy.deepcopy(policy.model), Lora(rank=4))
    with torch.no_grad():
        changed = [p for name, p in model.named_parameters() if "lora_B" in name]
        for number, parameter in enumerate(changed):
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.02)
    assert changed
    version, asked = next(VERSIONS), contexts(policy)
    sync.push_weights(model, version)
    sampled = sample(sync, asked)
    assert max(differences({version: model}, asked, sampled)) <= LARGEST
    assert max(differences({version: policy.model}, asked, sampled)) > 100 * LARGEST, "the adapters change what is said"


def test_what_a_cpu_does_not_do_is_refused_and_a_failed_reload_is_made_good_by_the_next(
    sync: WeightSync, policy: Policy, tmp_path: Path
):
    """Its own transfer of weights is for GPUs; temperatures above 2 are refused; a tied output layer stays as it is."""
    url, routes = address(sync), WeightRoutes("vllm", model="policy", token=None, timeout_s=120)
    for path in ("/init_weight_transfer_engine", "/start_weight_update", "/update_weights"):
        info = {"init_info": {}, "update_info": {}}
        answer = httpx.post(url + path, json=info, timeout=60)
        assert answer.status_code == 500 and "Weight transfer not configured" in answer.text
    with pytest.raises(ServerFailed, match="does not reload the output layer of a model whose embeddings are tied"):
        routes.check_reloads_tied(f"{url}/v1")
    (hot,) = sync.engine.complete([[1]], max_tokens=[4], sampling=Sampling(temperature=2.5))
    assert hot.failed is not None and "temperature must be in [0, 2]" in hot.failed
    nowhere = PublishedWeights(version=999, path=tmp_path / "weights-000999" / "model.safetensors", checksum=None)
    with pytest.raises(ServerFailed, match="/collective_rpc: status 500"):
        routes.update(f"{url}/v1", nowhere)
    routes.close()
    version, asked = next(VERSIONS), contexts(policy)
    sync.push_weights(policy.model, version)
    assert max(differences({version: policy.model}, asked, sample(sync, asked))) <= LARGEST


def test_a_server_that_is_killed_in_the_middle_of_a_step_is_started_again_and_nothing_is_lost(
    sync: WeightSync, policy: Policy
):
    version, model = next(VERSIONS), moved(policy, 3)
    sync.push_weights(model, version)
    asked, found, before = contexts(policy), list[Completion](), address(sync)
    rollout = threading.Thread(target=lambda: found.extend(sample(sync, asked, tokens=60)))
    generated = metric(sync, "generation_tokens_total")
    rollout.start()
    wait_for(lambda: metric(sync, "generation_tokens_total") > generated + 20)
    assert sync._launched is not None and sync._launched._process is not None
    os.killpg(sync._launched._process.pid, signal.SIGKILL)
    rollout.join(400)
    assert len(found) == len(asked) and address(sync) != before
    assert {v for done in found for v, _ in done.weights_versions} == {version}
    assert max(differences({version: model}, asked, found)) <= LARGEST


def test_ten_steps_through_it_have_the_metrics_of_ten_in_this_process_within_sampling_noise(tmp_path: Path):
    """The shipped policy of 0.9 million parameters. Of each metric, the means of ten steps may differ by four standard
    errors of the difference, as of independent steps; and the run ends with its server."""
    rl = Rl(
        curriculum=(Phase(steps=10, objectives=(2,)),), tasks_per_step=6, group_size=4, learning_rate=1e-5, warmup=1
    )
    local = Recipe(tasks=AtlasTasks(entities=60, worlds=1), rl=rl, writers=())
    served = local.model_copy(update={"rollout": rollouts(tmp_path / "weights")})
    rows: dict[str, Sequence[dict[str, Any]]] = {}
    for name, config in (("local", local), ("served", served)):
        train(config, tmp_path / name, command=["mem1"])
        rows[name] = read_metrics(tmp_path / name / "metrics.jsonl")
    assert [len(rows[name]) for name in rows] == [10, 10]
    assert all(row["sampler_trainer_max"] <= LARGEST for row in rows["served"])
    assert all(set(row["endings"]) <= {"answered", "out_of_turns", "bad_tags"} for row in rows["served"])
    for metric in ("reward", "turns", "completion_tokens", "peak_tokens", "searches", "entropy"):
        ours, theirs = ([float(row[metric]) for row in rows[name]] for name in ("local", "served"))
        noise = math.sqrt((stdev(ours) ** 2 + stdev(theirs) ** 2) / 10)
        assert noise > 0, metric
        assert abs(fmean(ours) - fmean(theirs)) <= 4 * noise, (metric, fmean(ours), fmean(theirs), noise)
    assert (tmp_path / "served" / VLLM_LOG).stat().st_size > 0
    running = subprocess.run(["ps", "-eo", "args"], check=True, stdout=subprocess.PIPE, text=True).stdout
    assert str(tmp_path / "weights") not in running, "no orphan"


@pytest.mark.slow
@pytest.mark.timeout(3_000)
def test_three_steps_of_smollm2(recipe: Recipe, tmp_path: Path):
    assert recipe.rl is not None
    rl = recipe.rl.model_copy(
        update={"curriculum": (Phase(steps=3, objectives=(2,)),), "tasks_per_step": 2, "group_size": 3}
    )
    config = recipe.model_copy(
        update={
            "rl": rl,
            "rollout": rollouts(tmp_path / "weights"),
            "evaluation": recipe.evaluation.model_copy(update={"every": None}),
        }
    )
    train(config, tmp_path / "run", command=["mem1"])
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == 3 and all(row["sampler_trainer_max"] <= LARGEST for row in rows)
