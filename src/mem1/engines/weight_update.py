"""Gives a server of the policy new weights over its own routes, and reads which weights it has.

    routes.update("http://127.0.0.1:8001/v1", weights)
        mem1    pause, start_weight_update, update_weights, finish_weight_update, reset_prefix_cache, resume
        vllm    pause, collective_rpc reload_weights, reset_prefix_cache, update_weight_version, resume
                by NCCL: pause, what `mem1.extras.nccl` does, reset_prefix_cache, resume

Without NCCL both read the weights from a folder that they share with the trainer. vLLM's routes are those of its
development mode (vllm/entrypoints/serve/dev/rlhf/api_router.py and .../rpc/api_router.py at 0100a21).
"""

from __future__ import annotations

import contextlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from mem1.engines.codec import Codec
from mem1.engines.dialects import Text, TokenIds
from mem1.errors import UserError
from mem1.net.exchange import TryFailed, exchange, read_json
from mem1.registry import load

ServerKind = Literal["mem1", "vllm"]
Transfer = Literal["folder", "nccl"]
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


class Ask(Protocol):
    """A request to a route of a server, with JSON both ways; raises ServerFailed."""

    def __call__(self, method: str, url: str, path: str, value: Any = None, *, patient: bool = False) -> Any: ...


class WeightTransfer:
    """Gives new weights to a server that is paused."""

    def __init__(self, ask: Ask, *, timeout_s: float) -> None:
        self._ask, self._timeout_s = ask, timeout_s

    @abstractmethod
    def send(self, url: str, weights: PublishedWeights) -> None:
        """Raises ServerFailed where the server did not take them."""
        ...

    def close(self) -> None:
        """Leave the servers."""


class Mem1Folder(WeightTransfer):
    """`mem1 serve-policy`, with --weights-folder, which reads the weights from the shared folder."""

    def send(self, url: str, weights: PublishedWeights) -> None:
        self._ask("POST", url, "/start_weight_update", {})
        where = {"path": weights.name, "checksum": weights.checksum}
        self._ask("POST", url, "/update_weights", {"update_info": where}, patient=True)
        self._ask("POST", url, "/finish_weight_update", {"weight_version": str(weights.version)}, patient=True)
        self._ask("POST", url, "/reset_prefix_cache", {})


class VllmFolder(WeightTransfer):
    """vLLM in its development mode, on a machine that has the folder under the same name."""

    def send(self, url: str, weights: PublishedWeights) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(weights.path.parent.resolve())}}
        self._ask("POST", url, "/collective_rpc", reload, patient=True)
        self._ask("POST", url, "/reset_prefix_cache", {})
        with contextlib.suppress(NoSuchRoute):  # an older vLLM: then only the trainer knows which weights it has
            self._ask("POST", url, "/update_weight_version", {"new_version": str(weights.version)})


TRANSFERS: Mapping[tuple[ServerKind, Transfer], str] = {
    ("mem1", "folder"): f"{__name__}:Mem1Folder",
    ("vllm", "folder"): f"{__name__}:VllmFolder",
    ("vllm", "nccl"): "mem1.extras.nccl:NcclTransfer",
}
"""Kind of server and way of the weights -> class of the WeightTransfer, imported when it is used."""


class WeightRoutes:
    """Client of the routes for weights. Thread-safe."""

    def __init__(
        self, kind: ServerKind, *, model: str, token: str | None, timeout_s: float, transfer: Transfer = "folder"
    ) -> None:
        """`timeout_s`: time limit of each step of an update, such as ending the batch in work or reading the weights.

        Raises UserError where this machine cannot send weights by `transfer`.
        """
        import httpx

        self._model, self._timeout_s = model, timeout_s
        headers = {"accept-encoding": "identity", "content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._client = httpx.Client(headers=headers, trust_env=False)
        self.transfer: WeightTransfer = load(TRANSFERS[kind, transfer])(self.ask, timeout_s=timeout_s)

    def close(self) -> None:
        """End the connections."""
        self.transfer.close()
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
        self.ask("POST", url, "/pause?mode=abort", {}, patient=True)
        try:
            self.transfer.send(url, weights)
        finally:
            self.ask("POST", url, "/resume", {})

    def admit(self, url: str, codec: Codec, stops: Sequence[str]) -> None:
        """Raises ServerFailed where the server does not speak token ids, or those of another tokenizer."""
        probe = Text(extras=True)
        try:
            body = self._send("POST", f"{url}/completions", probe.probe(self._model, stops), patient=True)
            found = probe.after_probe(probe.read(body, stops), codec)
        except (ValueError, UserError) as error:
            raise ServerFailed(f"{url}: {error}") from error
        if found != SPOKEN:
            raise ServerFailed(f"{url}: it speaks {found}, but training needs {SPOKEN}")

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
