"""The servers of one model: addresses, patience, key, and requests that are retried until one server answers.

    servers.ask("/completions", body, read, at_most=Usage(100, 20))     what `read` makes of the first good answer

A try asks the addresses in turn until one answers. A request that failed at all of them is retried after a wait; after
the last try it raises EngineFailed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from mem1.configuration import Config
from mem1.engines.dialects import dialects
from mem1.errors import UserError
from mem1.net.exchange import TryFailed, exchange, pieces, read_key, repeats
from mem1.net.failover import CLOCK, Addresses, Clock, Retry, is_http
from mem1.net.spending import Spending, SpendingLimit, Usage

if TYPE_CHECKING:
    import httpx

_LARGEST_ANSWER = 16 << 20
"""Bytes; a thousand tokens with log-probabilities are about 100,000."""
_ESCAPED = 8
"""Most characters that one of a key becomes in an answer that repeats it escaped."""
T = TypeVar("T")


class EngineFailed(Exception):
    """No server gave a completion; the rollout records it as `Ended.ENGINE_FAILED`."""


class Refused(EngineFailed):
    """Every server refused permanently: another try would fail alike."""


class ModelServer(Config):
    """Where a model is served in OpenAI's protocol, and how patient its clients are."""

    urls: tuple[str, ...] = Field(min_length=1)
    """One base address such as http://127.0.0.1:8000/v1, or several of the same model; /v1 is added to a bare host."""
    model: str = Field(min_length=1)
    """The model's name on the server."""
    endpoint: str = "auto"
    """completions or chat; auto: completions where the server has them; package.module:Name: a dialect of your own."""
    api_key_env: str | None = None
    """Environment variable with the API key; None: no key is sent."""
    concurrency: int = Field(default=16, ge=1, le=10_000)
    """Most requests under way at the same time."""
    tries: int = Field(default=6, ge=1)
    """Attempts per request; each tries every address until one answers."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Time limit of one request at one address, up to the end of the answer."""
    first_wait_s: float = Field(default=1.0, ge=0)
    """Longest wait after the first failed try; doubled after each further one."""
    longest_wait_s: float = Field(default=60.0, gt=0)
    """Longest wait after any try; a server that asks for a longer one has failed."""
    processed_logprobs: bool = False
    """The server's log-probabilities are those at the sampling temperature, and answers without any are rejected. Set
    it for vLLM with --logprobs-mode processed_logprobs; `mem1 serve-policy` always returns these."""
    limit: SpendingLimit = SpendingLimit()

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(base_address, urls))

    @field_validator("endpoint")
    @classmethod
    def _known(cls, endpoint: str) -> str:
        dialects(endpoint)
        return endpoint


def base_address(url: str) -> str:
    """The address before /completions; /v1 is added to a bare host. Raises UserError for anything else than http(s)."""
    if any(mark in url for mark in "@?#"):
        raise UserError(
            "the address of a model server contains a user name, a password or a query, which would be written into "
            "every run; leave it out, and pass a key with engine.api_key_env"
        )
    if not is_http(url):
        raise UserError(f"{url!r} is not the address of a model server; write it as http://127.0.0.1:8000/v1")
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable. Raises UserError, without showing it, where it is missing or malformed."""
    return None if variable is None else read_key(variable, needed_by="the server")


class Servers:
    """Sends requests to the servers of one model. Thread-safe."""

    def __init__(
        self,
        config: ModelServer,
        *,
        addresses: Addresses | None = None,
        spending: Spending | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """Connects with the first request. Raises UserError where the key is missing.

        addresses   of servers that come and go; None: the configuration's
        spending    kept together with others; None: by itself, within the configuration's limit
        """
        from mem1.net.transport import Client

        self._config, self._clock = config, clock
        self._key = api_key(config.api_key_env)
        self._addresses = addresses or Addresses(config.urls, now=clock.now)
        self._retry = Retry(
            tries=config.tries,
            first_wait_s=config.first_wait_s,
            longest_wait_s=config.longest_wait_s,
            longest_server_wait_s=config.longest_wait_s,
            clock=clock,
        )
        self.spending = Spending(config.limit) if spending is None else spending
        headers = {"content-type": "application/json"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        # proxies for the open web do not reach a server of your own
        hosted = all(url.startswith("https:") for url in config.urls)
        self._client = Client(config.concurrency, headers, proxies=hosted, transport=transport)

    def ask(
        self,
        path: str,
        body: bytes,
        read: Callable[[bytes], tuple[T, Usage]],
        *,
        at_most: Usage,
        method: str = "POST",
        within_s: float | None = None,
    ) -> T:
        """The first good answer, read by `read`, which raises ValueError for a bad one; all tries `within_s`.

        Raises EngineFailed after the last try, Refused where another would fail alike, and LimitReached.
        """
        timeout_s = self._timeout_s(within_s)
        return self._first(lambda url: self._try(url, body, read, at_most, method, timeout_s), path, within_s)

    def stream(
        self, path: str, body: bytes, used: Callable[[], Usage], *, at_most: Usage, within_s: float | None = None
    ) -> Iterator[bytes]:
        """The body of the first answer that begins, as it comes; `used` is asked at its end.

        Raises as `ask` does, and EngineFailed where an answer breaks off: what has come cannot be taken back.
        """

        def begun(url: str) -> Iterator[bytes]:
            self.spending.claim(at_most)
            spent: Usage | None = at_most
            try:
                answer = pieces(
                    self._client, url, body, timeout_s=timeout_s, now=self._clock.now, largest=_LARGEST_ANSWER
                )
                first = next(answer, b"")
                spent = None
                return chain((first,), answer)
            except TryFailed as failure:
                spent = at_most if failure.worked else Usage()
                raise _quoted(failure) from failure
            finally:
                if spent is not None:
                    self.spending.settle(at_most, spent)

        timeout_s = self._timeout_s(within_s)
        answer = self._first(begun, path, within_s)
        seen = ""  # a key may lie in two pieces
        try:
            for piece in answer:
                if self._key:
                    seen = seen[-_ESCAPED * len(self._key) :] + piece.decode("utf-8", "replace")
                    if repeats(seen, self._key):
                        raise EngineFailed("the answer repeats the API key")
                yield piece
        except TryFailed as failure:
            raise EngineFailed(f"the answer broke off: {failure.quoted}") from failure
        finally:
            self.spending.settle(at_most, used())

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _timeout_s(self, within_s: float | None) -> float:
        return self._config.timeout_s if within_s is None else min(self._config.timeout_s, within_s)

    def _first(self, ask: Callable[[str], T], path: str, within_s: float | None) -> T:
        retry = self._retry if within_s is None else replace(self._retry, deadline_s=within_s)
        try:
            return retry(lambda: self._addresses.first_answer(ask, path=path))
        except TryFailed as failure:
            raise (Refused if failure.for_good else EngineFailed)(str(failure)) from failure

    def _try(
        self,
        url: str,
        body: bytes,
        read: Callable[[bytes], tuple[T, Usage]],
        at_most: Usage,
        method: str,
        timeout_s: float,
    ) -> T:
        self.spending.claim(at_most)
        used = at_most  # nobody knows what a request that was cut off has cost
        try:
            data = exchange(
                self._client,
                url,
                body,
                timeout_s=timeout_s,
                now=self._clock.now,
                largest=_LARGEST_ANSWER,
                method=method,
            )
            if repeats(data.decode("utf-8", "replace"), self._key):
                raise TryFailed("the answer repeats the API key")
            answer, used = read(data)
            return answer
        except TryFailed as failure:
            used = at_most if failure.worked else Usage()
            raise _quoted(failure) from failure
        finally:
            self.spending.settle(at_most, used)


def _quoted(failure: TryFailed) -> TryFailed:
    return TryFailed(failure.quoted, wait_s=failure.wait_s, for_good=failure.for_good)
