"""Weights on their way to servers: who has which, who is asked, and that none is asked who has others."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from model_servers import COMPLETIONS, Model
from policies import assert_sampled_by, policy_server, tiny
from precision import rounding
from safetensors.torch import load_file
from servers import CommandProcess, wait_for
from sites import as_json, site, status
from small_runs import SMALL_RL
from transformers import AutoModelForCausalLM, AutoTokenizer
from vllms import Vllm, posts
from worlds import CODEC, SMALL, rollout, shelf, task

from mem1.cli.eval import evaluate_policy
from mem1.configuration import load_toml, to_toml
from mem1.engines.base import Completion, Sampling
from mem1.engines.device import ON_CPU
from mem1.engines.local import LocalEngine
from mem1.engines.openai import OpenAIEngine
from mem1.engines.policy_sampler import Sampler
from mem1.engines.servers import ModelServer
from mem1.engines.weight_update import PublishedWeights, ServerFailed, VersionUnknown, WeightRoutes
from mem1.engines.weights import checksum, num_bytes, put, untied
from mem1.envs.atlas import AtlasTasks
from mem1.errors import UserError
from mem1.planning.models import known
from mem1.policy.policy import load_policy, make_policy
from mem1.protocol import PAPER
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.model import Distributed, Lora, ModelConfig
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, ServerRollouts
from mem1.records import Ended, Trajectory, Turn
from mem1.rollout import Budget
from mem1.run_folder import read_metrics
from mem1.training.ranks.adapters import merged
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import joined
from mem1.training.sampling.published import published_shapes, remove_others, write_model, write_weights
from mem1.training.sampling.weight_sync import WeightSync
from mem1.training.train import make_rollout, train
from mem1.trajectory_files import read_trajectories

CONTEXTS = [CODEC.encode(text) for text in ("Q1 a city", "Q1 a book", "Q1 a mayor of a city")] * 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


Start = Callable[[], tuple[str, Sampler]]


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts servers that live as long as the test."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(policy_server(folder))


@pytest.fixture
def synced(folder: Path) -> Iterator[Callable[..., WeightSync]]:
    """Makes what publishes to servers; closed with the test."""
    with ExitStack() as stack:

        def make(*servers: str, **options: Any) -> WeightSync:
            quick = {"poll_s": 0.05, "update_timeout_s": 60.0, "timeout_s": 60.0, **options}
            given = {"servers": servers, **quick} if servers else quick
            config = ServerRollouts.model_validate({"weights_folder": str(folder), **given})
            return stack.enter_context(WeightSync(config, CODEC, PAPER.stop_strings))

        yield make


def sample(sync: WeightSync, *, seed: int = 0, temperature: float = 1.0) -> list[Completion]:
    completions = sync.engine.complete(
        CONTEXTS, max_tokens=[8] * len(CONTEXTS), sampling=Sampling(seed=seed, temperature=temperature)
    )
    assert [c.failed for c in completions] == [None] * len(CONTEXTS)
    return completions


def versions(sampled: Sequence[Completion | Turn]) -> set[int]:
    """Of all weights that sampled a token of them."""
    return {version for one in sampled for version, _ in one.weights_versions}


class TestPublishing:
    def test_log_probabilities_are_the_trainers_before_and_after_an_update_and_turns_name_their_version(
        self, start, synced
    ):
        (one, _), (other, _) = start(), start()
        sync = synced(one, other)
        for version, temperature in ((0, 1.0), (0, 0.7), (1, 1.0), (1, 0.7)):
            model = tiny(version)
            sync.push_weights(model, version)
            done_here = LocalEngine(model, CODEC, PAPER.stop_strings).complete(
                CONTEXTS, max_tokens=[8] * len(CONTEXTS), sampling=Sampling(temperature=temperature)
            )
            sampled = sample(sync, temperature=temperature)
            assert [done.token_ids for done in sampled] == [done.token_ids for done in done_here]
            for context, done in zip(CONTEXTS, sampled, strict=True):
                assert done.weights_versions == ((version, len(done.token_ids)),)
                assert_sampled_by(model, context, done.token_ids, done.logprobs, temperature=temperature)

    def test_turns_are_marked_with_the_weights_that_sampled_them_whatever_the_caller_believes(self, start):
        address, sampler = start()
        engine = OpenAIEngine.open(ModelServer(urls=(address,), model="policy"), CODEC, PAPER.stop_strings)
        for version, marked in ((None, 7), (3, 3)):  # of the weights that it was started with, a server does not know
            sampler.version = version
            run = rollout(engine, shelf("a book ."), budget=Budget(completion_extra=8))
            (attempt,) = run([task("city", turns=2)], sampling=Sampling(), weights_version=7)
            assert versions(attempt.turns) == {marked}

    def test_the_same_version_is_written_and_pushed_once(self, start, synced, folder):
        sync = synced(start()[0])
        sync.push_weights(tiny(), 3)
        written = (folder / "weights-000003" / "model.safetensors").stat().st_mtime_ns
        sync.push_weights(tiny(1), 3)
        assert (folder / "weights-000003" / "model.safetensors").stat().st_mtime_ns == written

    def test_old_versions_are_removed_and_other_files_stay(self, start, synced, folder):
        (folder / "notes.txt").write_text("mine")
        (folder / ".tmp-weights-000001").mkdir()
        sync = synced(start()[0])
        for version in (1, 2):
            sync.push_weights(tiny(version), version)
        assert sorted(path.name for path in folder.iterdir()) == ["notes.txt", "weights-000002"]

    def test_a_version_that_a_server_has_from_another_run_is_not_trusted(self, start, synced):
        address, sampler = start()
        sampler.version = 5  # of a run that was killed after the checkpoint from which this one goes on
        sync = synced(address)
        sync.push_weights(tiny(1), 5)
        done = sample(sync)[0]
        assert_sampled_by(tiny(1), CONTEXTS[0], done.token_ids, done.logprobs)

    def test_a_server_that_a_killed_trainer_has_left_paused_is_woken(self, start, synced):
        address, sampler = start()
        sampler.pause()
        sync = synced(address)
        sync.push_weights(tiny(1), 1)
        assert versions(sample(sync)) == {1}

    def test_a_server_refuses_the_weights_of_another_model_with_the_reason(self, start, synced):
        sync = synced(start()[0], update_timeout_s=0.5)
        with pytest.raises(UserError, match=r"no server took the weights of version 1.*does not fit.*--resume"):
            sync.push_weights(torch.nn.Linear(2, 2), 1)

    def test_without_any_server_the_error_names_the_command_to_start_one(self, synced):
        sync = synced("http://127.0.0.1:9", update_timeout_s=0.2)
        with pytest.raises(UserError, match=r"version 0 within 0.2 s.*127.0.0.1:9.*mem1 serve-policy"):
            sync.push_weights(tiny(), 0)


class TestComingAndGoing:
    def test_a_dead_server_is_left_out_and_a_restarted_one_is_used_with_the_current_weights(self, start, synced):
        (address, sampler), (other, _) = start(), start()
        sync = synced(address, other, "http://127.0.0.1:9")
        sync.push_weights(tiny(1), 1)
        put(tiny(99).state_dict(), sampler.model)  # as after a restart: the first weights, and it says so
        sampler.version = None
        assert versions(sample(sync)) == {1}, "no stale token"
        wait_for(lambda: sampler.version == 1)
        for context, done in zip(CONTEXTS, sample(sync), strict=True):
            assert_sampled_by(tiny(1), context, done.token_ids, done.logprobs)

    def test_servers_join_and_leave_by_the_file_and_a_broken_file_changes_nothing(self, start, synced, tmp_path):
        (one, first), (two, second) = start(), start()
        listing = tmp_path / "servers.txt"
        listing.write_text(f"{one}   # the first\n\n")
        sync = synced(servers_file=str(listing))
        sync.push_weights(tiny(1), 1)
        assert (first.version, second.version) == (1, None)
        write(listing, f"{two}\n")
        wait_for(lambda: second.version == 1)
        wait_for(lambda: sync._addresses.order() == [f"{two}/v1"])
        write(listing, "ftp://nowhere\n")
        time.sleep(0.1)
        first.version = second.version = None  # one that is not looked after stays as it is
        wait_for(lambda: second.version == 1)
        assert first.version is None
        assert versions(sample(sync)) == {1}

    def test_requests_wait_for_the_first_server_that_joins(self, start, synced, tmp_path):
        listing = tmp_path / "servers.txt"
        with ExitStack() as stack:
            address, _ = stack.enter_context(policy_server(tmp_path / "weights"))
            listing.write_text(address)
            sync = synced(servers_file=str(listing))
            sync.push_weights(tiny(1), 1)
        wait_for(lambda: not sync._held)
        done: list[list[Completion]] = []
        waiting = threading.Thread(target=lambda: done.append(sample(sync)))
        waiting.start()
        write(listing, start()[0])
        waiting.join(90)
        assert versions(done[0]) == {1}


def write(path: Path, text: str) -> None:
    """Whole at once, as an editor does."""
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


class TestVllm:
    def routes(self) -> WeightRoutes:
        return WeightRoutes("vllm", model="m", token=None, timeout_s=5)

    def weights(self, folder: Path) -> PublishedWeights:
        return PublishedWeights(version=3, path=folder / "weights-000003" / "model.safetensors", checksum="0" * 32)

    def test_its_workers_reload_the_folder_while_it_is_paused_and_its_cache_is_emptied(self, folder):
        with site(Vllm().pages) as running:
            self.routes().update(f"{running.url}/v1", self.weights(folder))
            assert posts(running) == [
                "/pause?mode=abort",
                "/collective_rpc",
                "/reset_prefix_cache",
                "/update_weight_version",
                "/resume",
            ]
            assert json.loads(running.asked[1][3]) == {
                "method": "reload_weights",
                "kwargs": {"weights_path": str(folder / "weights-000003")},
            }
            assert self.routes().version(f"{running.url}/v1") == 3

    def test_a_server_that_does_not_report_its_version_is_alive(self, folder):
        with site(Vllm(without=("/weight_info", "/update_weight_version")).pages) as running:
            self.routes().update(f"{running.url}/v1", self.weights(folder))
            assert posts(running)[-1] == "/resume"
            with pytest.raises(VersionUnknown):
                self.routes().version(f"{running.url}/v1")
        with site({}) as nothing, pytest.raises(ServerFailed, match="/health: status 404"):
            self.routes().version(f"{nothing.url}/v1")

    def test_one_that_fails_to_reload_is_resumed_and_has_failed(self, folder):
        with site({**Vllm().pages, "/collective_rpc": status(500)}) as running:
            with pytest.raises(ServerFailed, match="/collective_rpc: status 500"):
                self.routes().update(f"{running.url}/v1", self.weights(folder))
            assert posts(running)[-1] == "/resume"

    @pytest.mark.parametrize("without", [(), ("/weight_info", "/update_weight_version")])
    def test_its_completions_are_marked_with_the_version_that_it_was_given(self, synced, without):
        with site(Vllm(without=without).pages) as running:
            sync = synced(running.url, kind="vllm", model="m")
            sync.push_weights(tiny(), 4)
            run = rollout(sync.engine, shelf("a book ."), budget=Budget(completion_extra=120))
            (attempt,) = run([task("city", turns=2)], sampling=Sampling(), weights_version=4)
            assert attempt.ended is not Ended.ENGINE_FAILED, attempt.detail
            assert versions(attempt.turns) == {4}
            assert attempt.turns[0].logprobs == (-0.5,) * len(attempt.turns[0].completion_ids)

    def test_one_whose_answers_have_no_log_probabilities_is_of_no_use_for_training(self, synced):
        class Bare(Model):
            def completion(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                code, said = super().completion(body)
                said["choices"][0]["logprobs"] = None
                return code, said

        with site(Vllm(Bare).pages) as running:
            sync = synced(running.url, kind="vllm", model="m", tries=1)
            sync.push_weights(tiny(), 4)
            (done,) = sync.engine.complete([CONTEXTS[0]], max_tokens=[40], sampling=Sampling())
            assert done.failed is not None and "0 log-probabilities for 6 tokens" in done.failed

    def test_on_the_trainers_gpu_it_sleeps_in_the_trainers_turn_and_wakes_weights_before_the_cache(self, synced):
        vllm = Vllm()
        with site(vllm.pages) as running:
            sync = synced(running.url, kind="vllm", model="m", sleep=True)
            for version in (4, 5, 5):  # the last time, no weights are new
                sync.push_weights(tiny(version), version)
                assert not vllm.asleep
                (done,) = sync.engine.complete([CONTEXTS[0]], max_tokens=[40], sampling=Sampling())
                assert done.failed is None and versions([done]) == {version}
                sync.sleep()
                assert vllm.asleep == {"weights", "kv_cache"}
                time.sleep(0.15)  # who looks after servers lets them sleep
                assert vllm.asleep == {"weights", "kv_cache"}
            update = [
                *("/wake_up?tags=weights", "/pause?mode=abort", "/collective_rpc", "/reset_prefix_cache"),
                *("/update_weight_version", "/wake_up?tags=kv_cache", "/resume"),
            ]
            asked = [path for path in posts(running) if path != COMPLETIONS]
            assert asked == [*update, "/sleep?level=1"] * 3

    @pytest.mark.parametrize(
        ("without", "message"),
        [
            ("/wake_up", r"/wake_up\?tags=weights: status 404.*VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode.*or set"),
            ("/collective_rpc", r"/collective_rpc: status 404.*start vLLM with VLLM_SERVER_DEV_MODE=1, in a version"),
            ("/pause", r"/pause\?mode=abort: status 404.*start vLLM with VLLM_SERVER_DEV_MODE=1, in a version"),
        ],
    )
    def test_one_without_a_route_is_named_with_what_to_do(self, synced, without, message):
        with site(Vllm(without=(without,)).pages) as running:
            sync = synced(running.url, kind="vllm", model="m", sleep=True, update_timeout_s=2)
            with pytest.raises(UserError, match=f"(?s)no server took the weights.*{message}") as raised:
                sync.push_weights(tiny(), 4)
            assert "\n" not in str(raised.value)

    @pytest.mark.parametrize("fault", ["no route", "no --enable-sleep-mode"])
    def test_one_that_stays_awake_ends_the_run_with_one_line(self, synced, fault):
        vllm = Vllm(without=("/sleep",) if fault == "no route" else ())
        if fault != "no route":
            vllm.pages["/sleep"] = status(200)
        with site(vllm.pages) as running:
            sync = synced(running.url, kind="vllm", model="m", sleep=True)
            sync.push_weights(tiny(), 4)
            with pytest.raises(UserError, match=r"keeps the GPU that the trainer needs.*--enable-sleep-mode"):
                sync.sleep()
        sync.sleep()  # one that is gone keeps nothing

    def test_one_with_the_log_probabilities_of_temperature_1_is_refused(self, synced):
        class Raw(Model):
            def _logprob(self, top_k: int) -> float:
                return -20.0

        with site(Vllm(Raw).pages) as running:
            sync = synced(running.url, kind="vllm", model="m", update_timeout_s=2)
            with pytest.raises(UserError, match=r"not those at the sampling temperature.*processed_logprobs"):
                sync.push_weights(tiny(), 4)

    def test_a_request_that_waited_for_newer_weights_is_asked_again_and_marked_with_them(self, synced):
        vllm, found = Vllm(), list[Completion]()
        with site(vllm.pages) as running:
            sync = synced(running.url, kind="vllm", model="m")
            sync.push_weights(tiny(), 4)
            reload = vllm.pages["/collective_rpc"]

            def reload_with_one_waiting(handler: Any) -> None:
                asked.start()
                wait_for(lambda: vllm.waiting == 1)
                reload(handler)

            def ask() -> None:
                sync._addresses.use([f"{running.url}/v1"])  # as a request that was on its way when the update began
                found.extend(sync.engine.complete([CONTEXTS[0]], max_tokens=[40], sampling=Sampling()))

            asked = threading.Thread(target=ask)
            running.pages["/collective_rpc"] = reload_with_one_waiting
            published = sync.engine._published
            first = iter([4])
            sync.engine._published = lambda: next(first, None) or published()
            sync.push_weights(tiny(1), 5)
            asked.join(60)
            assert versions(found) == {5} and len(found[0].token_ids) > 0
            asked_for = [path for path in posts(running) if path == COMPLETIONS]
            assert len(asked_for) >= 2 + 2 + 2, "twice to admit it after each update, and twice for the completion"

    def test_one_that_keeps_its_cache_is_not_used(self, synced):
        vllm = Vllm()
        vllm.pages["/reset_prefix_cache"] = as_json({"success": False})
        with site(vllm.pages) as running:
            sync = synced(running.url, kind="vllm", model="m", update_timeout_s=2)
            with pytest.raises(UserError, match=r"it keeps what it has computed with the old weights"):
                sync.push_weights(tiny(), 4)

    def test_on_a_cpu_one_that_was_started_by_others_is_refused_for_tied_embeddings_alone(self, synced):
        with site(Vllm(device="cpu").pages) as running:
            sync = synced(running.url, kind="vllm", model="m", update_timeout_s=2)
            with pytest.raises(UserError, match=r"on a CPU does not reload the output layer.*rollout\.launch"):
                sync.push_weights(tiny(), 4)
            apart = tiny()
            apart.lm_head.weight = torch.nn.Parameter(apart.lm_head.weight.detach().clone())
            sync.push_weights(apart, 5)

    def test_one_with_another_tokenizer_is_left_out(self, synced):
        class Other(Model):
            def completion(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
                code, said = super().completion(body)
                said["choices"][0]["prompt_token_ids"] = [5, 5]
                return code, said

        with site(Vllm(Other).pages) as running:
            sync = synced(running.url, kind="vllm", model="m", update_timeout_s=0.5)
            with pytest.raises(UserError, match=r"the server's tokenizer is not the one given"):
                sync.push_weights(tiny(), 4)


class TestFolder:
    def test_a_version_is_replaced_whole_and_others_are_removed(self, folder):
        first = write_weights(folder, tiny(0), 12)
        second = write_weights(folder, tiny(1), 12)
        assert (first.name, first.checksum != second.checksum) == ("weights-000012/model.safetensors", True)
        third = write_weights(folder, tiny(0), 13)
        assert third.checksum == first.checksum
        remove_others(folder, third)
        assert [path.name for path in folder.iterdir()] == ["weights-000013"]

    def test_the_file_is_that_of_safetensors_in_the_precision_of_publishing(self, folder):
        model = tiny(0)
        written = write_weights(folder, model, 1, dtype=torch.bfloat16)
        assert written.checksum == checksum(written.path)
        found, wanted = load_file(written.path), untied(model.state_dict())
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], weight.bfloat16()) for name, weight in wanted.items())
        header = written.path.stat().st_size - num_bytes(published_shapes(model, torch.bfloat16))
        assert header == 8 + int.from_bytes(written.path.read_bytes()[:8], "little")

    def test_a_matrix_with_two_names_may_be_written_under_both(self, folder):
        model = tiny(0)
        found = load_file(write_weights(folder, model, 1, untied=True).path)
        assert found.keys() == model.state_dict().keys() > untied(model.state_dict()).keys()
        assert torch.equal(found["lm_head.weight"], found["model.embed_tokens.weight"])

    @pytest.mark.parametrize("apart", [False, True])
    def test_a_server_starts_from_a_folder_with_the_policys_own_tokenizer_and_ends(self, folder, apart):
        policy = make_policy(SMALL_RL)
        write_model(folder / "model", policy, dtype=torch.bfloat16, untied=apart)
        config = json.loads((folder / "model" / "config.json").read_text())
        assert (config["architectures"], config["tie_word_embeddings"]) == (["Qwen2ForCausalLM"], not apart)
        ends = json.loads((folder / "model" / "generation_config.json").read_text())["eos_token_id"]
        assert ends == policy.model.generation_config.eos_token_id is not None
        found = load_file(folder / "model" / "model.safetensors")
        assert ("lm_head.weight" in found) == apart
        assert all(torch.equal(found[name], policy.model.state_dict()[name].bfloat16()) for name in found)
        tokenizer = AutoTokenizer.from_pretrained(folder / "model" / "tokenizer")
        text = "Q1 a city <think> a book </think>"
        assert tuple(tokenizer(text, add_special_tokens=False).input_ids) == policy.codec.encode(text)

    @pytest.mark.parametrize(("dtype", "size"), [(torch.bfloat16, 15_231_233_024), (None, 30_462_466_048)])
    def test_a_publish_of_7b_writes_15_gigabytes_and_twice_that_in_fp32(self, dtype, size):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(known("Qwen2.5-7B"), dtype=torch.float32)
        assert num_bytes(published_shapes(model, dtype)) == size

    def test_each_kind_of_server_gets_the_precision_that_it_computes_in(self, folder, start, synced):
        with site(Vllm().pages) as running:
            synced(running.url, kind="vllm", model="m").push_weights(tiny(), 4)
        assert {w.dtype for w in load_file(folder / "weights-000004" / "model.safetensors").values()} == {
            torch.bfloat16
        }
        url, _ = start()
        synced(url).push_weights(tiny(), 5)
        assert {w.dtype for w in load_file(folder / "weights-000005" / "model.safetensors").values()} == {torch.float32}
        half = synced(url, publish_dtype="bfloat16", update_timeout_s=0.5)
        message = r"published in bfloat16 and this server computes in float32: set rollout.publish_dtype = 'float32'"
        with pytest.raises(UserError, match=message):
            half.push_weights(tiny(), 6)


@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_with_servers_the_trained_model_takes_the_weights_over_and_gives_them_back(lora):
    placement = Placement(served=True, lora=lora, config=None if lora else Distributed())
    policy, wanted = tiny(), tiny().state_dict()
    with joined(grouped=True):
        trained = placement.trained(policy)
        assert {p.device.type for p in policy.parameters()} == {"meta"}
        assert all(torch.equal(weight, wanted[name]) for name, weight in merged(trained))
        placement.hand_back(trained, policy)
    assert policy.state_dict().keys() == wanted.keys()
    assert all(torch.equal(weight, wanted[name]) for name, weight in policy.state_dict().items())
    tied = [policy.get_parameter(name) for name in ("lm_head.weight", "model.embed_tokens.weight")]
    assert tied[0] is tied[1]


class TestSettings:
    def test_only_vllm_sleeps_and_none_that_samples_ahead(self):
        given = {"servers": ["http://a:1"], "weights_folder": "w", "sleep": True}
        with pytest.raises(ValueError, match="sleep = true works with kind = 'vllm' only"):
            ServerRollouts.model_validate(given)
        rollout = {"engine": "servers", "kind": "vllm", **given}
        rl = {"curriculum": [{"steps": 1}], "max_staleness": 1, "importance": {}}
        with pytest.raises(ValueError, match="servers that sleep cannot sample ahead"):
            Recipe.model_validate({"tasks": {"kind": "atlas"}, "rollout": rollout, "rl": rl})

    def test_a_run_that_launches_vllm_has_no_other_servers(self):
        launching = {"weights_folder": "w", "launch": {}, "kind": "vllm"}
        config = ServerRollouts.model_validate(launching)
        assert config.launch is not None and config.launch.python is None and "vllm.log" in config.start_one
        with pytest.raises(ValueError, match=r"give either servers .* or launch"):
            ServerRollouts.model_validate({**launching, "servers": ["http://a:1"]})
        with pytest.raises(ValueError, match="launch starts vLLM: set kind = 'vllm'"):
            ServerRollouts.model_validate({**launching, "kind": "mem1"})

    def test_vllm_samples_at_temperatures_up_to_2(self):
        rollout = {"engine": "servers", "servers": ["http://a:1"], "weights_folder": "w", "kind": "vllm"}
        for temperature, kind in ((2.0, "vllm"), (2.5, "mem1")):
            rl = {"curriculum": [{"steps": 1}], "temperature": temperature}
            Recipe.model_validate({"tasks": {"kind": "atlas"}, "rollout": {**rollout, "kind": kind}, "rl": rl})
        with pytest.raises(ValueError, match=r"rl\.temperature = 2\.5: vLLM samples at temperatures up to 2"):
            rl = {"curriculum": [{"steps": 1}], "temperature": 2.5}
            Recipe.model_validate({"tasks": {"kind": "atlas"}, "rollout": rollout, "rl": rl})

    def test_servers_or_a_file_of_them(self, tmp_path):
        for given in ({}, {"servers": ("http://a",), "servers_file": "b"}):
            with pytest.raises(ValueError, match=r"give either servers .* or servers_file"):
                ServerRollouts(weights_folder="w", **given)
        with pytest.raises(ValueError, match="is not the address"):
            ServerRollouts(weights_folder="w", servers=("nowhere",))
        listed = ServerRollouts(weights_folder="w", servers_file=str(tmp_path / "servers.txt"))
        with pytest.raises(UserError, match=r"cannot read rollout\.servers_file"):
            listed.listed()
        (tmp_path / "servers.txt").write_text("# none yet\n")
        with pytest.raises(UserError, match="has no address"):
            listed.listed()
        (tmp_path / "servers.txt").write_text("http://a:1\nhttp://b:2/v1 # twice\nhttp://b:2\n")
        assert listed.listed() == ("http://a:1/v1", "http://b:2/v1")

    def test_rollout_names_the_sampler_and_defaults_to_this_process(self, tmp_path):
        path = tmp_path / "r.toml"
        path.write_text(
            '[tasks]\nkind = "atlas"\n[rollout]\nengine = "servers"\nservers = ["http://a:1"]\nweights_folder = "w"'
        )
        config = load_toml(path, Recipe)
        assert isinstance(config.rollout, ServerRollouts) and config.rollout.kind == "mem1"
        path.write_text(to_toml(config))
        assert load_toml(path, Recipe) == config
        assert Recipe(tasks=SMALL).rollout.engine == "local"


def test_a_run_through_servers_samples_the_tokens_and_logs_the_numbers_of_one_in_this_process(start, folder, tmp_path):
    (one, _), (other, sampler) = start(), start()
    rollouts = ServerRollouts(servers=(one, other), weights_folder=str(folder), poll_s=0.05)
    assert SMALL_RL.rl is not None
    # The servers' batches differ, and so do the last digits of their log-probs; by the trainer's own, the same tokens
    # make the same step to the last bit.
    rl = SMALL_RL.rl.model_copy(update={"old_logprobs_from": "trainer"})
    validated = Evaluation(every=2, validation_tasks=2)
    config = SMALL_RL.model_copy(update={"rl": rl, "evaluation": validated})
    train(config, tmp_path / "local", command=["mem1"])
    train(config.model_copy(update={"rollout": rollouts}), tmp_path / "served", command=["mem1"])
    local, served = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("local", "served"))
    assert len(local) == len(served) == 2
    for ours, theirs in zip(local, served, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            if not name.startswith("sampler_trainer"):
                assert theirs[name] == value, name
        assert (
            theirs["sampler_trainer_max"] < rounding(tiny(), tokens=400, magnitude=10.0)
            and theirs["staleness_max"] == 0
        )
    assert "validation" not in served[0] and served[1]["validation"]["turns"] > 0
    assert sampler.version == 2, "what the validation after the second step sampled with"
    trained = [load_policy(tmp_path / name / "policy").model.state_dict() for name in ("local", "served")]
    moved = tiny().state_dict()
    for name, weights in trained[0].items():
        assert torch.equal(trained[1][name], weights), name
    assert any((trained[0][name] - moved[name]).abs().max() > 1e-4 for name in moved)


def test_a_run_and_a_vllm_take_turns_on_one_gpu(folder, tmp_path):
    assert SMALL_RL.rl is not None
    vllm = Vllm()
    with site(vllm.pages) as running:
        rollouts = ServerRollouts(
            servers=(running.url,), weights_folder=str(folder), kind="vllm", sleep=True, poll_s=0.05, tries=1
        )
        rl = SMALL_RL.rl.model_copy(update={"old_logprobs_from": "trainer"})
        train(SMALL_RL.model_copy(update={"rl": rl, "rollout": rollouts}), tmp_path / "run", command=["mem1"])
        assert [path for path in posts(running) if path.startswith("/sleep")] == ["/sleep?level=1"] * 2
    rows = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(rows) == 2 and all("engine_failed" not in row["endings"] for row in rows)
    (computed,) = json.loads((tmp_path / "run" / "resolved.json").read_text())["computed"]
    assert computed["dtype"] == "float32, sampling in bfloat16 on servers"


def test_servers_that_sampled_for_training_evaluate_the_final_weights(start, folder, tmp_path):
    url, sampler = start()
    assert SMALL_RL.rl is not None
    one_step = SMALL_RL.rl.model_copy(update={"curriculum": (Phase(steps=1, objectives=(1,)),)})
    measured = SMALL_RL.model_copy(update={"rl": one_step, "evaluation": Evaluation(objectives=(1,), tasks=3)})
    rollouts = ServerRollouts(servers=(url,), weights_folder=str(folder), poll_s=0.05, concurrency=2)
    config = measured.model_copy(update={"rollout": rollouts})
    policy = train(config, tmp_path / "run", command=["mem1"]).policy
    assert sampler.version == 0, "what the only step sampled with"
    found = []
    for name, c in (("served", config), ("local", measured)):
        evaluate_policy(c, policy, ON_CPU, name=name, folder=tmp_path / "evaluation")
        found.append(read_trajectories(tmp_path / "evaluation" / f"{name}-1.jsonl"))
    assert sampler.version == 1, "the step precedes the weights that were evaluated"
    served, local = ([turn for t in attempts for turn in t.turns] for attempts in found)
    assert versions(served) == {1} and versions(local) == {0}
    assert [turn.completion_ids for turn in served] == [turn.completion_ids for turn in local] != []
    headers = [json.loads((tmp_path / "evaluation" / f"{name}-1.json").read_text()) for name in ("served", "local")]
    assert [header.get("devices") for header in headers] == [None, ["cpu"]]


@pytest.mark.slow
def test_servers_are_killed_and_others_join_under_load_and_no_attempt_is_lost(folder, tmp_path, monkeypatch):
    """Real processes, with a token: of two the first is killed, a third joins, then the second is killed too."""
    monkeypatch.setenv("POLICY_TOKEN", "sesame-7")
    listing = tmp_path / "servers.txt"
    processes = started("shipped", folder, count=2)
    policy = load_policy("shipped")
    config = SMALL_RL.model_copy(
        update={"model": ModelConfig(), "budget": Budget(), "tasks": AtlasTasks(entities=60, worlds=1)}
    )
    rollouts = ServerRollouts(
        servers_file=str(listing), weights_folder=str(folder), poll_s=0.1, token_env="POLICY_TOKEN"
    )
    listing.write_text("\n".join(process.address for process in processes))
    source = config.tasks.source("train", PAPER)
    tasks = [t for t in source.tasks(objectives=2, count=10, seed=1) for _ in range(2)]
    attempts: list[Trajectory] = []
    try:
        with WeightSync(rollouts, policy.codec, PAPER.stop_strings) as sync:
            run = make_rollout(config, policy, source, engine=sync.engine)

            def one_batch(seed: int, progress: Callable[[Sequence[int]], None] | None = None) -> None:
                nonlocal attempts
                attempts += run(tasks, sampling=Sampling(seed=seed), weights_version=7, progress=progress)

            sync.push_weights(policy.model, 7)
            third = threading.Thread(target=lambda: processes.extend(started("shipped", folder, count=1)))
            # a moment after the first round, so that requests of the second are under way
            kills = [threading.Timer(0.05, process.kill) for process in processes]
            rounds = iter([kills[0].start, third.start])
            one_batch(0, lambda *_: next(rounds, lambda: None)())
            third.join(300)
            kills[0].join()
            listing.write_text("\n".join(process.address for process in processes))
            wait_for(lambda: f"{processes[2].address}/v1" in sync._held)
            rounds = iter([kills[1].start])
            one_batch(1, lambda *_: next(rounds, lambda: None)())
            kills[1].join()
            assert [process.process.poll() is None for process in processes] == [False, False, True]
            one_batch(2)
            with torch.no_grad():
                for parameter in policy.model.parameters():
                    parameter.mul_(1.01)
            sync.push_weights(policy.model, 8)
            changed = run(tasks[:4], sampling=Sampling(seed=3), weights_version=8)
    finally:
        for process in processes:
            if process.process.poll() is None:
                process.kill()
    assert len(attempts) == 3 * len(tasks) and all(attempt.ended.scorable for attempt in attempts)
    assert versions([turn for attempt in attempts for turn in attempt.turns]) == {7}
    assert_by(policy.model, changed)
    assert versions([turn for attempt in changed for turn in attempt.turns]) == {8}
    assert_by(load_policy("shipped").model, attempts)


def assert_by(model: Any, attempts: list[Trajectory]) -> None:
    for turn in (turn for attempt in attempts[::7] for turn in attempt.turns):
        assert_sampled_by(model, turn.context_ids, turn.completion_ids, turn.logprobs)


def started(policy: str, folder: Path, *, count: int) -> list[CommandProcess]:
    """`count` processes of `mem1 serve-policy`, started at the same time."""
    made: list[CommandProcess] = []
    threads = [
        threading.Thread(
            target=lambda: made.append(
                CommandProcess(
                    "serve-policy", policy, "--port", "0", "--token-env", "POLICY_TOKEN", "--weights-folder", folder
                )
            )
        )
        for _ in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert len(made) == count
    return made
