"""The servers of one model: addresses, patience, key, and requests that are retried until one server answers.

    servers.ask("/completions", body, read, at_most=Usage(100, 20))     what `read` makes of the first good answer

A try asks the addresses in turn until one answers. A request that failed at all of them is retried after a wait; after
the last try it raises EngineFailed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode, urlsplit

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
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
_SECRET = re.compile(r"auth|cookie|credential|key|pass|secret|signature|token|^sig$", re.IGNORECASE)
"""Names of what may hold a key."""
_ESCAPED = 8
"""Most characters that one of a key becomes in an answer that repeats it escaped."""
T = TypeVar("T")


class EngineFailed(Exception):
    """No server gave a completion; the rollout records it as `Ended.ENGINE_FAILED`."""


class BrokeOff(EngineFailed):
    """A streamed answer broke off after its first part; another try may bring a whole one."""


class Refused(EngineFailed):
    """Every server refused permanently: another try would fail alike."""

    def __init__(self, why: str, *, status: int | None = None, detail: str = "") -> None:
        super().__init__(why)
        self.status, self.detail = status, detail
        """HTTP status, and the server's own words; untrusted."""


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
    headers: Mapping[str, str] = {}
    """Sent with every request beside the key; $NAME or ${NAME} in a value is an environment variable. Never shown."""
    query: Mapping[str, str] = {}
    """Parameters after the ? of every address, such as {"api-version": "2024-10-21"}."""
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

    @field_validator("headers")
    @classmethod
    def _lines(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        for name, value in headers.items():
            if not _HEADER.fullmatch(name):
                raise UserError(f"headers: {name!r} cannot be the name of a header")
            if not (value.isascii() and value.isprintable()):
                raise UserError(f"headers: the value of {name} contains characters that no header has; give another")
        return headers

    @field_validator("query")
    @classmethod
    def _open(cls, query: Mapping[str, str]) -> Mapping[str, str]:
        if secret := next((name for name in query if may_be_secret(name)), None):
            raise UserError(
                f"query: {secret} would put a key into addresses, which servers and proxies log; send it as a header, "
                'headers = {"..." = "$NAME"}'
            )
        return query

    @field_validator("endpoint")
    @classmethod
    def _known(cls, endpoint: str) -> str:
        dialects(endpoint)
        return endpoint

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, dict.fromkeys(value, "***") if name == "headers" else value

    def sent_headers(self) -> dict[str, str]:
        """The headers by name in lower case, with the key. Raises UserError where a variable is missing."""
        sent = {"content-type": "application/json"}
        if (key := api_key(self.api_key_env)) is not None:
            sent["authorization"] = f"Bearer {key}"
        for name, value in self.headers.items():
            sent[name.lower()] = _VARIABLE.sub(lambda found: api_key(found[1] or found[2]) or "", value)
        return sent

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no answer may repeat: the key, and headers that may hold one."""
        sent = self.sent_headers()
        own = [name.lower() for name, value in self.headers.items() if "$" in value or may_be_secret(name)]
        return tuple(sent[name].removeprefix("Bearer ") for name in {"authorization", *own} if name in sent)


def may_be_secret(name: str) -> bool:
    """Whether a header or a parameter of this name may hold a key."""
    return bool(_SECRET.search(name))


def base_address(url: str) -> str:
    """The address before /completions; /v1 is added to a bare host. Raises UserError for anything else than http(s)."""
    if any(mark in url for mark in "@?#"):
        raise UserError(
            "the address of a model server contains a user name, a password or a query, which would be written into "
            "every run; leave it out, pass a key with api_key_env, and an API version with query"
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
        lasting: Callable[[str], bool] = lambda detail: False,
        transport: httpx.BaseTransport | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """Connects with the first request. Raises UserError where the key is missing.

        addresses   of servers that come and go; None: the configuration's
        spending    kept together with others; None: by itself, within the configuration's limit
        lasting     of a refusal's body: whether another try would be refused alike, whatever its status says
        """
        from mem1.net.transport import Client

        self._config, self._clock, self._lasting = config, clock, lasting
        self._secrets = config.secrets
        self._query = f"?{urlencode(config.query)}" if config.query else ""
        self._addresses = addresses or Addresses(config.urls, now=clock.now)
        self._retry = Retry(
            tries=config.tries,
            first_wait_s=config.first_wait_s,
            longest_wait_s=config.longest_wait_s,
            longest_server_wait_s=config.longest_wait_s,
            clock=clock,
        )
        self.spending = Spending(config.limit) if spending is None else spending
        # proxies for the open web do not reach a server of your own
        hosted = all(url.startswith("https:") for url in config.urls)
        self._client = Client(config.concurrency, config.sent_headers(), proxies=hosted, transport=transport)

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
        self,
        path: str,
        body: bytes,
        read: Callable[[Iterator[bytes]], Iterator[T]],
        used: Callable[[T | None], Usage],
        *,
        at_most: Usage,
        within_s: float | None = None,
    ) -> Iterator[T]:
        """What `read` makes of the first answer whose first part it can read, as it comes.

        `read` raises TryFailed for a bad answer; `used` is asked at the end, with the last part.
        Raises as `ask` does, and BrokeOff where an answer breaks off: what has come cannot be taken back.
        """

        def begun(url: str) -> tuple[T, Iterator[T]]:
            self.spending.claim(at_most)
            spent: Usage | None = at_most
            try:
                answer = pieces(
                    self._client,
                    url + self._query,
                    body,
                    timeout_s=timeout_s,
                    now=self._clock.now,
                    largest=_LARGEST_ANSWER,
                )
                parts = iter(read(self._without_secrets(answer)))
                for first in parts:
                    spent = None
                    return first, parts
                raise TryFailed("the answer is empty")
            except TryFailed as failure:
                spent = at_most if failure.worked else Usage()
                raise self._told(failure) from failure
            finally:
                if spent is not None:
                    self.spending.settle(at_most, spent)

        timeout_s = self._timeout_s(within_s)
        last, parts = self._first(begun, path, within_s)
        try:
            yield last
            for last in parts:
                yield last
        except TryFailed as failure:
            kind = EngineFailed if failure.for_good else BrokeOff
            raise kind(f"the answer broke off: {failure.quoted}") from failure
        finally:
            self.spending.settle(at_most, used(last))

    def _without_secrets(self, answer: Iterator[bytes]) -> Iterator[bytes]:
        """The pieces of an answer. Raises TryFailed where it repeats a key, which may lie in two of them."""
        seen, longest = "", max(map(len, self._secrets), default=0)
        for piece in answer:
            if longest:
                seen = seen[-_ESCAPED * longest :] + piece.decode("utf-8", "replace")
                if any(repeats(seen, secret) for secret in self._secrets):
                    raise TryFailed("the answer repeats the API key")
            yield piece

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _told(self, failure: TryFailed) -> TryFailed:
        """The failure with the server's own words."""
        failure.for_good = failure.for_good or self._lasting(failure.detail)
        return failure.named(failure.quoted)

    def _timeout_s(self, within_s: float | None) -> float:
        return self._config.timeout_s if within_s is None else min(self._config.timeout_s, within_s)

    def _first(self, ask: Callable[[str], T], path: str, within_s: float | None) -> T:
        retry = self._retry if within_s is None else replace(self._retry, deadline_s=within_s)
        try:
            return retry(lambda: self._addresses.first_answer(ask, path=path))
        except TryFailed as failure:
            if failure.for_good:
                raise Refused(str(failure), status=failure.status, detail=failure.detail) from failure
            raise EngineFailed(str(failure)) from failure

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
                url + self._query,
                body,
                timeout_s=timeout_s,
                now=self._clock.now,
                largest=_LARGEST_ANSWER,
                method=method,
            )
            text = data.decode("utf-8", "replace")
            if any(repeats(text, secret) for secret in self._secrets):
                raise TryFailed("the answer repeats the API key")
            answer, used = read(data)
            return answer
        except TryFailed as failure:
            used = at_most if failure.worked else Usage()
            raise self._told(failure) from failure
        finally:
            self.spending.settle(at_most, used)
