"""A policy on a server: what it answers and refuses, and how new weights come in between two batches."""

from __future__ import annotations

import copy
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from policies import CHAT, assert_sampled_by, tiny
from safetensors.torch import save_file
from servers import CommandProcess, app_in_a_thread
from transformers import MistralConfig, MistralForCausalLM, PreTrainedModel, StableLmConfig, StableLmForCausalLM
from worlds import CODEC

from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.engines.local import LocalEngine
from mem1.engines.policy_sampler import Sampler, ScriptedSampler
from mem1.engines.policy_server import make_app, serve
from mem1.engines.request_queue import RequestQueue
from mem1.engines.stand_in import stand_in, stand_in_chat
from mem1.engines.weights import checksum, untied
from mem1.errors import UserError
from mem1.protocol import PAPER

TOKEN = "sesame-7"
STOPS = list(PAPER.stop_strings)
CONTEXT = [5, 9, 20, 7, 5]


class Served:
    """A server in a thread, its folder of weights, and who asks it."""

    def __init__(self, folder: Path, address: str, sampler: Sampler) -> None:
        self.folder, self.address, self.sampler = folder, address, sampler
        headers = {"authorization": f"Bearer {TOKEN}"}
        self.client = httpx.Client(base_url=address, headers=headers, trust_env=False, timeout=60)

    def post(self, path: str, body: Any = None) -> httpx.Response:
        return self.client.post(path, json={} if body is None else body)

    def complete(self, **fields: Any) -> Any:
        """The first choice of a completion."""
        asked = {"prompt": CONTEXT, "max_tokens": 12, "seed": 3, "logprobs": 0, "return_token_ids": True, **fields}
        response = self.post("/v1/completions", asked)
        assert response.status_code == 200, response.text
        return response.json()["choices"][0]

    def write(self, name: str, model: PreTrainedModel) -> str:
        """The checksum of the weights that are written below the folder."""
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        save_file(untied(model.state_dict()), path)
        return checksum(path)

    def change(self, name: str, model: PreTrainedModel, version: int) -> None:
        summed = self.write(name, model)
        for path, body in (
            ("/start_weight_update", {}),
            ("/update_weights", {"update_info": {"path": name, "checksum": summed}}),
            ("/finish_weight_update", {"weight_version": str(version)}),
        ):
            response = self.post(path, body)
            assert response.status_code == 200, response.text


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("weights")
    sampler = Sampler(tiny(), CODEC)
    with app_in_a_thread(make_app(sampler, chat=CHAT, weights_folder=folder, token=TOKEN)) as address:
        yield Served(folder, address, sampler)


@pytest.fixture
def served(running: Served) -> Served:
    """With the weights of `tiny()` again, and none staged."""
    if running.sampler.version != 0:
        running.change("weights-000000/model.safetensors", tiny(), 0)
    running.post("/start_weight_update")
    return running


@pytest.fixture(scope="module")
def bad_files(running: Served) -> None:
    """Files in the folder, and outside it, that a server must not take."""
    good, folder = untied(tiny(1).state_dict()), running.folder
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    for path in (outside / "outside.safetensors", folder.parent / "outside.safetensors"):
        save_file(good, path)
    (folder / "link").symlink_to(outside)
    for bad in ("pickled.bin", "pickled.safetensors"):
        torch.save(good, folder / bad)
    save_file({"model.norm.weight": torch.ones(32)}, folder / "other.safetensors")
    save_file(good | {"model.norm.weight": torch.full((32,), torch.nan)}, folder / "nan.safetensors")
    with (folder / "large.safetensors").open("wb") as file:
        file.truncate(1 << 30)


def assert_by(model: PreTrainedModel, choice: Any, temperature: float = 1.0) -> None:
    logprobs = choice["logprobs"]["token_logprobs"]
    assert_sampled_by(model, choice["prompt_token_ids"], choice["token_ids"], logprobs, temperature=temperature)


class TestCompletions:
    @pytest.mark.parametrize("temperature", [1.0, 0.6])
    def test_tokens_and_log_probabilities_are_those_of_the_engine_and_of_the_trainer(self, served, temperature):
        choice = served.complete(temperature=temperature, stop=STOPS)
        (ours,) = LocalEngine(tiny(), CODEC, STOPS).complete(
            [CONTEXT], max_tokens=[12], sampling=Sampling(temperature=temperature, seeds=(3,))
        )
        assert (choice["prompt_token_ids"], choice["token_ids"]) == (CONTEXT, list(ours.token_ids))
        assert_by(tiny(), choice, temperature)
        assert choice["weights_version"] == 0

    def test_a_text_is_encoded_as_the_tokenizer_does_and_several_prompts_are_several_choices(self, served):
        one = served.complete(prompt="Q1 a city")
        assert one["prompt_token_ids"] == list(CODEC.encode("Q1 a city"))
        assert one["text"] == CODEC.decode(one["token_ids"])
        body = {"prompt": [CONTEXT, CONTEXT], "max_tokens": 12, "seed": 3, "return_token_ids": True}
        answer = served.post("/v1/completions", body).json()
        first, second = answer["choices"]
        assert (first["index"], second["index"]) == (0, 1)
        assert first["token_ids"] != second["token_ids"], "each has a seed of its own"
        assert (first["logprobs"], answer["usage"]["prompt_tokens"]) == (None, 10)

    def test_samples_do_not_depend_on_concurrent_requests(self, served):
        alone = [served.complete(seed=seed)["token_ids"] for seed in range(6)]
        with ThreadPoolExecutor(6) as pool:
            together = list(pool.map(lambda seed: served.complete(seed=seed)["token_ids"], range(6)))
        assert together == alone and len(set(map(tuple, alone))) > 3

    def test_a_stop_string_ends_a_completion_and_is_in_the_text_on_request(self, served):
        whole = served.complete(max_tokens=40)
        word = CODEC.decode(whole["token_ids"][4:5])
        stopped = served.complete(max_tokens=40, stop=word, include_stop_str_in_output=True)
        assert (
            whole["token_ids"][: len(stopped["token_ids"])] == stopped["token_ids"] and len(stopped["token_ids"]) <= 5
        )
        assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", word)
        assert (whole["finish_reason"], whole["stop_reason"]) == ("length", None)
        bare = served.complete(max_tokens=40, stop=[word])
        assert bare["text"] + word == stopped["text"] and bare["token_ids"] == stopped["token_ids"]

    def test_without_a_seed_every_request_has_another(self, served):
        assert len({tuple(served.complete(seed=None)["token_ids"]) for _ in range(4)}) > 1

    def test_models_and_health(self, served):
        (card,) = served.client.get("/v1/models").json()["data"]
        assert (card["id"], card["max_model_len"]) == ("policy", 512)
        assert served.client.get("/health").json() == {"status": "ok"}
        assert "mem1_policy_prompts_total" in served.client.get("/metrics").text


class TestWeights:
    def test_after_an_update_log_probabilities_are_those_of_the_new_weights(self, served):
        before = served.complete(stop=STOPS)
        served.change("weights-000007/model.safetensors", tiny(1), 7)
        after = served.complete(stop=STOPS)
        assert (before["weights_version"], after["weights_version"]) == (0, 7)
        assert served.client.get("/weight_info").json() == {"weight_version": "7"}
        assert_by(tiny(0), before)
        assert_by(tiny(1), after)
        with pytest.raises(AssertionError):
            assert_by(tiny(0), after)

    def test_weights_that_are_read_but_not_finished_are_not_used(self, served):
        summed = served.write("new.safetensors", tiny(1))
        served.post("/start_weight_update")
        assert served.post("/update_weights", info("new.safetensors", summed)).status_code == 200
        assert_by(tiny(0), served.complete())
        served.post("/start_weight_update")
        response = served.post("/finish_weight_update", {"weight_version": "9"})
        assert (response.status_code, served.complete()["weights_version"]) == (409, 0)

    def test_no_batch_sees_two_weights_and_every_token_is_marked_with_its_own(self, served):
        models = {version: tiny(version % 2) for version in range(1, 5)}
        over = threading.Event()

        def ask(number: int) -> list[Any]:
            choices = []
            while not over.is_set() or not choices:
                choices.append(served.complete(seed=number * 1000 + len(choices), max_tokens=6))
            return choices

        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(ask, number) for number in range(4)]
            for version, model in models.items():
                served.change(f"weights-{version:06d}/model.safetensors", model, version)
            over.set()
            choices = [choice for future in asked for choice in future.result(60)]
        seen = {choice["weights_version"] for choice in choices}
        assert len(seen) > 1
        models[0] = tiny(0)
        for choice in choices:
            assert_by(models[choice["weights_version"]], choice)

    @pytest.mark.parametrize(
        ("name", "status", "why"),
        [
            ("../outside.safetensors", 403, "is outside the folder"),
            ("/etc/passwd", 403, "is outside the folder"),
            ("link/outside.safetensors", 403, "is outside the folder"),
            ("a\0b.safetensors", 404, "cannot be read"),
            ("x" * 4000 + ".safetensors", 404, "is not a .safetensors file|cannot be read"),
            ("pickled.bin", 404, "is not a .safetensors file"),
            ("no.safetensors", 404, "is not a .safetensors file"),
            ("pickled.safetensors", 422, "is not a safetensors file"),
            ("other.safetensors", 422, r"does not fit the model.*model\."),
            ("nan.safetensors", 422, r"the weights model\.norm\.weight contain NaN or infinity"),
            ("large.safetensors", 413, "larger than the weights"),
        ],
        ids=lambda value: repr(value)[:30],
    )
    @pytest.mark.usefixtures("bad_files")
    def test_forbidden_or_unreadable_weights_are_refused_and_the_old_ones_stay(self, served, name, status, why):
        path = served.folder / name if "\0" not in name and len(name) < 200 else served.folder
        summed = checksum(path) if path.is_file() and path.stat().st_size < 1 << 25 else "0" * 32
        served.post("/start_weight_update")
        response = served.post("/update_weights", info(name, summed))
        assert response.status_code == status, response.text
        assert re.search(why, response.json()["detail"]), response.text
        assert served.post("/finish_weight_update", {"weight_version": "1"}).status_code == 409
        assert_by(tiny(0), served.complete())

    def test_a_file_that_is_not_as_it_was_written_is_refused(self, served):
        summed = served.write("new.safetensors", tiny(1))
        damaged = bytearray((served.folder / "new.safetensors").read_bytes())
        damaged[-1] ^= 1
        (served.folder / "new.safetensors").write_bytes(damaged)
        response = served.post("/update_weights", info("new.safetensors", summed))
        assert (response.status_code, "checksum of the request" in response.text) == (422, True)

    def test_a_paused_server_answers_when_it_is_resumed(self, served):
        assert served.post("/pause?mode=wait").json() == {"status": "paused"}
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(served.complete)
            served.change("weights-000002/model.safetensors", tiny(1), 2)
            assert not asked.done() and served.client.get("/is_paused").json() == {"is_paused": True}
            served.post("/resume")
            assert asked.result(30)["weights_version"] == 2
        assert served.post("/reset_prefix_cache").status_code == 200
        assert served.post("/pause?mode=keep").status_code == 422

    def test_a_client_that_hangs_up_holds_nobody_up(self, served, monkeypatch: pytest.MonkeyPatch):
        asked, before = threading.Event(), RequestQueue.abandon

        def abandon(queue: RequestQueue, call: Any) -> None:
            before(queue, call)
            asked.set()

        monkeypatch.setattr(RequestQueue, "abandon", abandon)
        with pytest.raises(httpx.TimeoutException), httpx.Client(trust_env=False, timeout=0.3) as client:
            body = {"prompt": [[5, 9]] * 250, "max_tokens": 500, "seed": 1}
            client.post(f"{served.address}/v1/completions", json=body, headers=served.client.headers)
        assert asked.wait(30) and served.complete()["finish_reason"] == "length"

    def test_a_model_that_cannot_be_sampled_is_refused_at_once(self):
        config = StableLmConfig(
            vocab_size=CODEC.vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2,
        )  # fmt: skip
        with pytest.raises(UserError, match="StableLmForCausalLM cannot be sampled in this process"):
            Sampler(StableLmForCausalLM(config), CODEC)

    def test_no_more_tokens_are_taken_than_the_model_sees_at_once(self):
        config = MistralConfig(
            vocab_size=CODEC.vocab_size, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, sliding_window=16,
        )  # fmt: skip
        with app_in_a_thread(make_app(Sampler(MistralForCausalLM(config), CODEC), chat=CHAT)) as address:
            for tokens, status in (15, 200), (16, 400):
                body = {"prompt": [5] * tokens, "max_tokens": 1}
                assert httpx.post(f"{address}/v1/completions", json=body, trust_env=False).status_code == status

    def test_what_goes_wrong_in_sampling_is_told_in_the_form_of_the_protocol(self, monkeypatch: pytest.MonkeyPatch):
        sampler = Sampler(tiny(), CODEC)

        def stream(*_: Any) -> None:
            raise UserError("a sampling process ended")

        monkeypatch.setattr(sampler, "stream", stream)
        with app_in_a_thread(make_app(sampler, chat=CHAT)) as address:
            answer = httpx.post(f"{address}/v1/completions", json={"prompt": [5]}, trust_env=False)
        assert (answer.status_code, answer.json()["error"]["message"]) == (500, "a sampling process ended")

    def test_a_script_takes_chat_messages_only(self):
        chat = stand_in_chat()
        with app_in_a_thread(make_app(ScriptedSampler(chat.codec, stand_in), chat=chat)) as address:
            response = httpx.post(f"{address}/v1/completions", json={"prompt": "Q1"}, trust_env=False)
            assert (response.status_code, "/v1/chat/completions" in response.json()["error"]["message"]) == (404, True)

    def test_a_server_that_is_stopped_while_it_samples_ends_at_once_and_well(self):
        server = CommandProcess("serve-policy", "shipped", "--port", "0")
        with pytest.raises(httpx.TimeoutException):
            body = {"prompt": "Q1 Duna", "max_tokens": 3_000, "seed": 1}
            httpx.post(f"{server.address}/v1/completions", json=body, timeout=1, trust_env=False)
        code, said = server.stop()
        assert code == 0 and said.endswith("Stopped.\n") and "Traceback" not in said

    def test_without_a_folder_no_weights_are_taken(self):
        with app_in_a_thread(make_app(Sampler(tiny(), CODEC), chat=CHAT)) as address:
            served = Served(Path(), address, Sampler(tiny(), CODEC))
            response = served.post("/update_weights", info("a.safetensors", "0" * 32))
            assert (response.status_code, "--weights-folder" in response.text) == (403, True)


def info(name: str, summed: str) -> dict[str, Any]:
    return {"update_info": {"path": name, "checksum": summed}}


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "status", "why"),
        [
            (b'{"prompt": [5', 400, "Invalid JSON"),
            (b"\xff\xfe", 400, "Invalid JSON"),
            (b"[" * 100_000, 400, "Invalid JSON"),
            (b"[1]", 400, "valid dictionary|an object"),
            (b"{}", 400, "prompt: Field required"),
            ({"prompt": []}, 400, "at least one token"),
            ({"prompt": ""}, 400, "at least one token"),
            ({"prompt": [[5], []]}, 400, "at least one token"),
            ({"prompt": [5, -1]}, 400, "prompt"),
            ({"prompt": [5, True]}, 400, "prompt"),
            ({"prompt": [5, 10**30]}, 400, "prompt|no token"),
            ({"prompt": [5, 10**6]}, 400, "token 1000000 does not exist"),
            ({"prompt": [5] * 511, "max_tokens": 2}, 400, "exceed the model's 512"),
            ({"prompt": [5], "max_tokens": 0}, 400, "max_tokens"),
            ({"prompt": [5], "max_tokens": 10**9}, 400, "exceed the model's 512"),
            ({"prompt": [[5]] * 1025}, 413, "at most 1,024"),
            ({"prompt": [5], "temperature": -1}, 400, "temperature"),
            ({"prompt": [5], "temperature": 1e-38}, 400, "must be 0, which is greedy, or at least 1e-06"),
            (b'{"prompt": [5], "temperature": NaN}', 400, "temperature|Invalid JSON"),
            ({"prompt": [5], "seed": 1 << 63}, 400, "seed"),
            ({"prompt": [5], "stop": ["x"] * 17}, 400, "stop"),
            ({"prompt": [5], "stop": [""]}, 400, "stop"),
            ({"prompt": [5], "stop": "x" * 41}, 400, "stop"),
            ({"prompt": [5], "top_p": 0.9}, 400, "top_p"),
            ({"prompt": [5], "top_k": 40}, 400, "top_k"),
            ({"prompt": [5], "n": 2}, 400, "n: "),
            ({"prompt": [5], "stream": True}, 400, "stream"),
            ({"prompt": [5], "repetition_penalty": 1.1}, 400, "repetition_penalty"),
            ({"prompt": [5], "logit_bias": {}}, 400, "logit_bias: Extra inputs"),
            ({"prompt": [5], "model": "gpt"}, 404, "model is 'policy', not 'gpt'"),
            (b" " * ((8 << 20) + 1), 413, "larger than 8,388,608 bytes"),
        ],
        ids=lambda value: repr(value)[:36],
    )
    def test_a_wrong_request_is_refused_with_a_reason(self, served, body, status, why):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        response = served.client.post("/v1/completions", content=content, headers={"content-type": "application/json"})
        assert response.status_code == status, response.text
        assert any(part in response.json()["error"]["message"] for part in why.split("|")), response.text
        assert served.complete()["finish_reason"] == "length"

    @pytest.mark.parametrize("authorization", [None, "Bearer sesame-8", "Bearer", f"Basic {TOKEN}", "Bearer \xe9"])
    def test_without_the_token_nothing_is_answered_but_health(self, served, authorization):
        headers = {} if authorization is None else {"authorization": authorization.encode("latin-1")}
        with httpx.Client(base_url=served.address, headers=headers, trust_env=False) as stranger:
            for path in ("/v1/models", "/weight_info", "/docs", "/nowhere"):
                assert stranger.get(path).status_code == 401
            for path in ("/v1/completions", "/update_weights", "/pause", "/finish_weight_update"):
                assert stranger.post(path, json={}).status_code == 401
            assert stranger.get("/health").status_code == 200
        assert served.client.get("/is_paused").json() == {"is_paused": False}

    @pytest.mark.parametrize(
        "body",
        [{}, {"update_info": 1}, {"update_info": {"path": "a", "checksum": "../"}}, {"update_info": {"path": ""}}],
    )
    def test_a_wrong_update_is_refused(self, served, body):
        assert served.post("/update_weights", body).status_code == 422

    @pytest.mark.parametrize("version", [3, "", "-1", "3.0", "9" * 19, "\u0663"])
    def test_a_version_that_is_not_a_number_is_refused(self, served, version):
        assert served.post("/finish_weight_update", {"weight_version": version}).status_code == 422


class TestStarting:
    def start(self, model: PreTrainedModel, codec: Codec, **options: Any) -> None:
        given = {"host": "127.0.0.1", "port": 0, "token": None, "weights_folder": None, **options}
        serve(Sampler(model, codec), CHAT, name="policy", listening=print, **given)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
    def test_others_may_ask_only_with_a_token(self, host):
        with pytest.raises(UserError, match=r"needs a token.*--token-env"):
            self.start(copy.deepcopy(tiny()), CODEC, host=host)

    def test_a_folder_that_is_not_there_is_named(self, tmp_path: Path):
        with pytest.raises(UserError, match="not a folder; create it"):
            self.start(tiny(), CODEC, weights_folder=tmp_path / "weights")
