"""Gives a server of the policy new weights over its own routes, and reads which weights it has.

    routes.update("http://127.0.0.1:8001/v1", weights)
        mem1    pause, start_weight_update, update_weights, finish_weight_update, reset_prefix_cache, resume
        vllm    pause, collective_rpc reload_weights, reset_prefix_cache, update_weight_version, resume
        asleep: wake_up the weights before all this, and the key-value cache before resume
    routes.sleep("http://127.0.0.1:8001/v1")            vLLM alone: its GPU is free until the next update

Both read the weights from a folder that they share with the trainer. vLLM's routes are those of its development mode
(vllm/entrypoints/serve/dev/rlhf/api_router.py and .../rpc/api_router.py at 0100a21).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mem1.engines.codec import Codec
from mem1.engines.dialects import Text, TokenIds
from mem1.errors import UserError
from mem1.net.exchange import TryFailed, exchange, read_json

ServerKind = Literal["mem1", "vllm"]
SPOKEN = TokenIds()
"""The dialect that a server must speak to sample for training."""
_LARGEST_ANSWER = 1 << 20
_CONNECT_S = 5.0
_CHECK_S = 15.0
"""Time limit of an answer that takes no work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """Weights in the folder that trainer and servers share."""

    version: int
    path: Path
    """The file, in a folder of its own inside the shared one."""
    checksum: str | None
    """None: no server compares it."""

    @property
    def name(self) -> str:
        """Relative to the shared folder: weights-000003/model.safetensors"""
        return f"{self.path.parent.name}/{self.path.name}"


class ServerFailed(Exception):
    """A server did not do what was requested; the message quotes its answer."""


class VersionUnknown(Exception):
    """A server has no route that reports which weights it has."""


class NoSuchRoute(ServerFailed):
    """A server answered 404 or 405."""


class StaysAwake(ServerFailed):
    """A server answers, and keeps its memory on the GPU."""


_LACKING: Mapping[ServerKind, str] = {
    "mem1": "is it mem1 serve-policy?",
    "vllm": "start vLLM with VLLM_SERVER_DEV_MODE=1, in a version that has this route",
}
"""Advice for a server without a route."""
_TO_SLEEP = "start vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode, or set rollout.sleep = false"
_CERTAIN = -1e-3
"""The least log-probability, but for rounding, of the only token that may be sampled."""


class WeightRoutes:
    """Client of the routes for weights. Thread-safe."""

    def __init__(
        self,
        kind: ServerKind,
        *,
        model: str,
        token: str | None,
        timeout_s: float,
        sleep: bool = False,
    ) -> None:
        """A client for servers of one kind.

        timeout_s   time limit of each step of an update, such as ending the batch in work or reading the weights
        sleep       servers sleep between updates
        """
        import httpx

        self._kind: ServerKind = kind
        self._model, self._timeout_s, self._sleep = model, timeout_s, sleep
        headers = {"accept-encoding": "identity", "content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._client = httpx.Client(headers=headers, trust_env=False)

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def version(self, url: str) -> int | None:
        """Version of the weights that the server reports; None: those that it was started with.

        Raises ServerFailed where it does not answer, VersionUnknown where it answers but has no such route.
        """
        try:
            info = self.ask("GET", url, "/weight_info")
        except NoSuchRoute as error:
            self.ask("GET", url, "/health")
            raise VersionUnknown(str(error)) from error
        version = info.get("weight_version") if isinstance(info, dict) else None
        return int(version) if isinstance(version, str) and version.isdecimal() and len(version) < 19 else None

    def update(self, url: str, weights: PublishedWeights) -> None:
        """Have the server sample with these weights from now on; raises ServerFailed where it keeps the old ones.

        Completions under way are interrupted; the client requests the rest of them (`OpenAIEngine`).
        """
        self._wake_up(url, "weights")
        try:
            self.ask("POST", url, "/pause?mode=abort", {}, patient=True)
            try:
                self._have_read(url, weights)
                self._wake_up(url, "kv_cache")
            finally:
                self.ask("POST", url, "/resume", {})
        except NoSuchRoute as error:
            raise ServerFailed(f"{error}; {_LACKING[self._kind]}") from error

    def _have_read(self, url: str, weights: PublishedWeights) -> None:
        """Have a server that is paused read these weights from the shared folder."""
        if self._kind == "mem1":
            self.ask("POST", url, "/start_weight_update", {})
            where = {"path": weights.name, "checksum": weights.checksum}
            self.ask("POST", url, "/update_weights", {"update_info": where}, patient=True)
            self.ask("POST", url, "/finish_weight_update", {"weight_version": str(weights.version)}, patient=True)
            self.ask("POST", url, "/reset_prefix_cache", {})
            return
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(weights.path.parent.resolve())}}
        self.ask("POST", url, "/collective_rpc", reload, patient=True)
        emptied = self.ask("POST", url, "/reset_prefix_cache", {})
        if isinstance(emptied, dict) and emptied.get("success") is False:
            raise ServerFailed(f"{url}: it keeps what it has computed with the old weights: /reset_prefix_cache failed")
        with contextlib.suppress(NoSuchRoute):  # an older vLLM: then only the trainer knows which weights it has
            self.ask("POST", url, "/update_weight_version", {"new_version": str(weights.version)})

    def _wake_up(self, url: str, what: str) -> None:
        """Have a server that sleeps bring back its weights or its key-value cache; no-op for one that is awake."""
        if not self._sleep:
            return
        try:
            self.ask("POST", url, f"/wake_up?tags={what}", {}, patient=True)
        except NoSuchRoute as error:
            raise ServerFailed(f"{error}; {_TO_SLEEP}") from error

    def sleep(self, url: str) -> None:
        """Have the server move its weights to its own computer's memory and drop its key-value cache.

        Raises StaysAwake where it answers but does not sleep, ServerFailed where it does not answer.
        """
        try:
            self.ask("POST", url, "/sleep?level=1", {}, patient=True)
            answer = self.ask("GET", url, "/is_sleeping")
        except NoSuchRoute as error:
            raise StaysAwake(f"{error}; {_TO_SLEEP}") from error
        if not (isinstance(answer, dict) and answer.get("is_sleeping") is True):
            raise StaysAwake(f"{url}: it does not sleep when asked to; {_TO_SLEEP}")

    def admit(self, url: str, codec: Codec, stops: Sequence[str]) -> None:
        """Raises ServerFailed where the server does not speak token ids, or those of another tokenizer, and where
        vLLM's log-probabilities are not those at the sampling temperature."""
        probe = Text(extras=True)
        try:
            body = self._send("POST", f"{url}/completions", probe.probe(self._model, stops), patient=True)
            found = probe.after_probe(probe.read(body, stops), codec)
        except (ValueError, UserError) as error:
            raise ServerFailed(f"{url}: {error}") from error
        if found != SPOKEN:
            raise ServerFailed(f"{url}: it speaks {found}, but training needs {SPOKEN}")
        if self._kind == "vllm":
            self._check_logprobs(url, codec)

    def check_reloads_tied(self, url: str) -> None:
        """Raises ServerFailed for a vLLM on a CPU: of a matrix that is both input and output, it samples with the one
        that it was started with (vLLM 0.32)."""
        if self._kind != "vllm":
            return
        with contextlib.suppress(NoSuchRoute):  # an older vLLM
            info = self.ask("GET", url, "/server_info?config_format=json", patient=True)
            config = info.get("vllm_config") if isinstance(info, dict) else None
            device = config.get("device_config") if isinstance(config, dict) else None
            if isinstance(device, dict) and device.get("device") == "cpu":
                raise ServerFailed(
                    f"{url}: vLLM on a CPU does not reload the output layer of a model whose embeddings are tied; set "
                    "rollout.launch, so that the run starts it with them apart"
                )

    def _check_logprobs(self, url: str, codec: Codec) -> None:
        """With top_k = 1 a token has probability 1 of those that may be sampled, and far less of all."""
        context = codec.with_bos(codec.encode("a"))
        options = {"model": self._model, "max_tokens": 8, "temperature": 1.0, "stops": ()}
        request = json.loads(SPOKEN.encode(SPOKEN.request(codec, context, seed=0, **options)))
        try:
            body = self._send("POST", f"{url}/completions", json.dumps({**request, "top_k": 1}).encode(), patient=True)
            logprobs = SPOKEN.read(body, ()).logprobs
        except (ValueError, UserError) as error:
            raise ServerFailed(f"{url}: {error}") from error
        if min(logprobs, default=0.0) < _CERTAIN:
            raise ServerFailed(
                f"{url}: its log-probabilities are not those at the sampling temperature; start vLLM with "
                "--logprobs-mode processed_logprobs"
            )

    def ask(self, method: str, url: str, path: str, value: Any = None, *, patient: bool = False) -> Any:
        """The server's answer, read as JSON; None where it is empty. Raises ServerFailed."""
        body = self._send(method, url.removesuffix("/v1") + path, json.dumps(value).encode(), patient=patient)
        try:
            return read_json(body) if body else None
        except ValueError as error:
            raise ServerFailed(f"{url}{path}: the answer is not JSON") from error

    def _send(self, method: str, url: str, body: bytes, *, patient: bool) -> bytes:
        try:
            return exchange(
                self._client,
                url,
                body if method == "POST" else b"",
                method=method,
                largest=_LARGEST_ANSWER,
                timeout_s=self._timeout_s if patient else _CHECK_S,
                connect_s=_CONNECT_S,
            )
        except TryFailed as failure:
            failed = NoSuchRoute if failure.status in (404, 405) else ServerFailed
            raise failed(f"{url}: {failure.quoted}") from failure
