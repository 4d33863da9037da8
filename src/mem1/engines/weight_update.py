"""New weights for a server of the policy, over its own routes, and which weights it has.

    routes.update("http://127.0.0.1:8001/v1", weights)
        mem1    pause, start_weight_update, update_weights, finish_weight_update, reset_prefix_cache, resume
        vllm    pause, collective_rpc reload_weights, reset_prefix_cache, update_weight_version, resume
                by NCCL: pause, what `weight_broadcasts` does, reset_prefix_cache, resume

Without NCCL both read the weights from a folder that they share with the trainer. vLLM's routes are those of its
development mode (vllm/entrypoints/serve/dev/rlhf/api_router.py and .../rpc/api_router.py at 0100a21).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mem1.engines.codec import Codec
from mem1.engines.dialects import Dialect, read
from mem1.engines.openai import probe, with_token_ids
from mem1.errors import UserError
from mem1.net.api_keys import redact
from mem1.net.post import one_line, read_json

if TYPE_CHECKING:
    import httpx


_NCCL = "mem1.extras.nccl"
ServerKind = Literal["mem1", "vllm"]
Transfer = Literal["folder", "nccl"]
SPOKEN = Dialect("completions", token_ids=True, extras=True)
"""What a server must speak to sample for training."""
_LARGEST_ANSWER = 1 << 20
_CONNECT_S = 5.0
_CHECK_S = 15.0
"""For an answer that takes no work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedWeights:
    """Weights in the shared folder."""

    version: int
    path: Path
    """Of the file, in a folder of its own in the shared one."""
    checksum: str

    @property
    def name(self) -> str:
        """Relative to the shared folder: weights-000003/model.safetensors"""
        return f"{self.path.parent.name}/{self.path.name}"


class ServerFailed(Exception):
    """A server did not do what it was asked; the message says what it answered."""


class NotSaid(Exception):
    """A server has no route that says which weights it has."""


class Ask(Protocol):
    """A request to a server; raises ServerFailed (`WeightRoutes`)."""

    def __call__(self, method: str, url: str, path: str, value: Any = None, *, patient: bool = False) -> Any: ...


class WeightTransfer(Protocol):
    """Gives a paused server new weights."""

    def send(self, url: str, weights: PublishedWeights) -> None:
        """Raises ServerFailed where the server could not take them."""
        ...

    def close(self) -> None: ...


class WeightRoutes:
    """Safe to use from many threads."""

    def __init__(
        self, kind: ServerKind, *, model: str, token: str | None, timeout_s: float, transfer: Transfer = "folder"
    ) -> None:
        """`timeout_s` is given to a step of an update: the batch in work to end, the weights to be read."""
        import httpx

        self._kind, self._model, self._token = kind, model, token
        headers = {"accept-encoding": "identity", "content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        self._patient = httpx.Timeout(timeout_s, connect=_CONNECT_S)
        self._client = httpx.Client(
            headers=headers, timeout=httpx.Timeout(_CHECK_S, connect=_CONNECT_S), trust_env=False
        )

        self._broadcasts: WeightTransfer | None = None
        if transfer == "nccl":
            self._broadcasts = import_module(_NCCL).open_transfer(self._ask, timeout_s=timeout_s)

    def close(self) -> None:
        """End the connections."""
        if self._broadcasts is not None:
            self._broadcasts.close()
        self._client.close()

    def version(self, url: str) -> int | None:
        """Version of the weights that the server says it has; None: those that it was started with.

        Raises ServerFailed where it does not answer, NotSaid where it is there and does not know the question.
        """
        try:
            said = self._ask("GET", url, "/weight_info")
        except _NoSuchRoute as error:
            self._ask("GET", url, "/health")
            raise NotSaid(str(error)) from error
        version = said.get("weight_version") if isinstance(said, dict) else None
        return int(version) if isinstance(version, str) and version.isdecimal() and len(version) < 19 else None

    def update(self, url: str, weights: PublishedWeights) -> None:
        """Have the server sample with these from now on; it goes on with the old ones where it cannot.

        What it samples at that moment ends where it is; our client asks for the rest of it (`OpenAIEngine`).

        Raises ServerFailed.
        """
        self._ask("POST", url, "/pause?mode=abort", {}, patient=True)
        try:
            if self._broadcasts is not None:
                self._broadcasts.send(url, weights)
                self._ask("POST", url, "/reset_prefix_cache", {})
            elif self._kind == "mem1":
                self._by_update(url, weights)
            else:
                self._by_reload(url, weights)
        finally:
            self._ask("POST", url, "/resume", {})

    def admit(self, url: str, codec: Codec, stops: Sequence[str]) -> None:
        """Raises ServerFailed where the server does not speak token ids, or those of another tokenizer."""
        asked = Dialect("completions", extras=True)
        try:
            body = self._send("POST", f"{url}/completions", probe(asked, self._model, stops), self._patient)
            found = with_token_ids(asked, read(body, asked, stops), codec)
        except (ValueError, UserError) as error:
            raise ServerFailed(f"{url}: {error}") from error
        if found != SPOKEN:
            raise ServerFailed(f"{url}: it speaks {found}, but training needs {SPOKEN}")

    def _by_update(self, url: str, weights: PublishedWeights) -> None:
        self._ask("POST", url, "/start_weight_update", {})
        where = {"path": weights.name, "checksum": weights.checksum}
        self._ask("POST", url, "/update_weights", {"update_info": where}, patient=True)
        self._ask("POST", url, "/finish_weight_update", {"weight_version": str(weights.version)}, patient=True)
        self._ask("POST", url, "/reset_prefix_cache", {})

    def _by_reload(self, url: str, weights: PublishedWeights) -> None:
        reload = {"method": "reload_weights", "kwargs": {"weights_path": str(weights.path.parent.resolve())}}
        self._ask("POST", url, "/collective_rpc", reload, patient=True)
        self._ask("POST", url, "/reset_prefix_cache", {})
        with contextlib.suppress(_NoSuchRoute):  # an older vLLM; what it has is then known from here alone
            self._ask("POST", url, "/update_weight_version", {"new_version": str(weights.version)})

    def _ask(self, method: str, url: str, path: str, value: Any = None, *, patient: bool = False) -> Any:
        """What the server says, as JSON; None where it says nothing."""
        timeout = self._patient if patient else None
        body = self._send(method, url.removesuffix("/v1") + path, json.dumps(value).encode(), timeout)
        try:
            return read_json(bytes(body)) if body else None
        except ValueError as error:
            raise ServerFailed(f"{url}{path}: the answer is not JSON") from error

    def _send(self, method: str, url: str, body: bytes, timeout: httpx.Timeout | None) -> bytes:
        import httpx

        answer = bytearray()
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        try:
            with self._client.stream(method, url, content=body if method == "POST" else None, **options) as response:
                for piece in response.iter_bytes():
                    answer += piece
                    if len(answer) > _LARGEST_ANSWER:
                        raise ServerFailed(f"{url}: the answer is larger than {_LARGEST_ANSWER:,} bytes")
        except httpx.HTTPError as error:
            raise ServerFailed(f"{url}: {redact(str(error), self._token) or type(error).__name__}") from error
        if response.status_code in (404, 405):
            raise _NoSuchRoute(f"{url}: status {response.status_code}{_shown(answer, self._token)}")
        if response.status_code != 200:
            raise ServerFailed(f"{url}: status {response.status_code}{_shown(answer, self._token)}")
        return bytes(answer)


class _NoSuchRoute(ServerFailed):
    """404 or 405."""


def _shown(answer: bytes | bytearray, token: str | None) -> str:
    """The beginning of what a server says, on one line, without the token."""
    text = one_line(redact(answer.decode("utf-8", "replace"), token))
    return f" ({text})" if text else ""
