"""The servers of one model: where they are, how patient one is with them, and who is asked next.

One try asks the addresses in turn until one answers. A request that failed everywhere waits, longer each time and at
random (full jitter), or as long as the servers ask for, and is tried again; after the last try it is EngineFailed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from mem1.configuration import Config
from mem1.errors import UserError
from mem1.net.api_keys import read_key, repeats
from mem1.net.failover import Addresses, Clock, is_http
from mem1.net.post import TryFailed, post
from mem1.net.spending import Spending, SpendingLimit, Usage

if TYPE_CHECKING:
    import httpx

Endpoint = Literal["auto", "completions", "chat"]
_CONNECT_S = 10.0
"""At most; a machine that is switched off does not refuse, it is silent."""
_LARGEST_ANSWER = 16 << 20
"""Bytes; a thousand tokens with log-probabilities are some 100,000."""

_CLOCK = Clock()
T = TypeVar("T")


class EngineFailed(Exception):
    """No server gave a completion; the rollout records it as `Ended.ENGINE_FAILED`."""


class Refused(EngineFailed):
    """Every server refused for good: another try would end the same."""


class ModelServer(Config):
    """Where a model is served in OpenAI's protocol, and how patient its clients are."""

    urls: tuple[str, ...] = Field(min_length=1)
    """One base address such as http://127.0.0.1:8000/v1, or several of the same model; a bare host means its /v1."""
    model: str = Field(min_length=1)
    """The model's name on the server."""
    endpoint: Endpoint = "auto"
    """completions or chat; auto: completions where the server has them."""
    api_key_env: str | None = None
    """Environment variable that holds the key; None: none is sent."""
    concurrency: int = Field(default=16, ge=1, le=10_000)
    """Requests that are under way at a time."""
    tries: int = Field(default=6, ge=1)
    """Of one request; a try asks every address that it must."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Of one request at one address, the whole answer."""
    first_wait_s: float = Field(default=1.0, ge=0)
    """Longest wait after the first try that failed; twice as long after each further one."""
    longest_wait_s: float = Field(default=60.0, gt=0)
    """Of any wait; a server that asks for a longer one has failed."""
    processed_logprobs: bool = False
    """The server's log-probabilities are those at the sampling temperature, and an answer without any has failed. vLLM:
    --logprobs-mode processed_logprobs; `mem1 serve-policy` has no others."""
    limit: SpendingLimit = SpendingLimit()

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(base_address, urls))


def base_address(url: str) -> str:
    """The address before /completions: of a bare server, its /v1. Raises UserError for what is no such address."""
    if any(mark in url for mark in "@?#"):
        raise UserError(
            "an address of a model server holds a user name, a password or a query, which would be written into every "
            "run; leave it out, and give a key by --api-key-env"
        )
    if not is_http(url):
        raise UserError(f"{url!r} is no address of a model server; give one such as http://127.0.0.1:8000/v1")
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/') or '/v1'}"


def api_key(variable: str | None) -> str | None:
    """The key in an environment variable. Raises UserError, without the key, where it is missing or no key."""
    if variable is None:
        return None
    key = read_key(variable)
    if not key:
        raise UserError(f"the environment variable {variable} is not set; put the server's API key into it")
    return key


class Servers:
    """Sends requests to the servers of one model. Safe to use from many threads."""

    def __init__(
        self,
        config: ModelServer,
        *,
        addresses: Addresses | None = None,
        transport: httpx.BaseTransport | None = None,
        clock: Clock = _CLOCK,
    ) -> None:
        """Connects when it is first asked. Raises UserError where the key is missing.

        addresses   those of servers that come and go; None: the configuration's
        """
        import httpx

        self._config, self._clock = config, clock
        self._key = api_key(config.api_key_env)
        self._addresses = addresses or Addresses(config.urls, now=clock.now)
        self.spending = Spending(config.limit)
        public = all(url.startswith("https:") for url in config.urls)
        self._client = httpx.Client(
            transport=transport,
            timeout=httpx.Timeout(config.timeout_s, connect=min(_CONNECT_S, config.timeout_s)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=config.concurrency),
            headers={
                "content-type": "application/json",
                "accept-encoding": "identity",  # so that what is read is what was sent, and no larger
                **({} if self._key is None else {"authorization": f"Bearer {self._key}"}),
            },
            # a server of one's own is a neighbour, to which a proxy for the open web does not lead
            trust_env=public,
            # certificates take long to load, and http has none
            verify=addresses is not None or any(url.startswith("https:") for url in config.urls),
        )

    def ask(self, path: str, body: bytes, read: Callable[[bytes], tuple[T, Usage]], *, at_most: Usage) -> T:
        """What `read` makes of the first good answer; it raises ValueError for one that is not good.

        Raises EngineFailed after the last try, Refused where another would end the same, and LimitReached.
        """
        for number in range(self._config.tries):
            failures: list[TryFailed] = []
            for url in self._addresses.order():
                try:
                    answer = self._try(url + path, body, read, at_most)
                except TryFailed as failure:
                    self._addresses.failed(url, rest_s=min(failure.wait_s, self._config.longest_wait_s))
                    failures.append(failure)
                else:
                    self._addresses.answered(url)
                    return answer
            if failures and all(failure.for_good for failure in failures):
                raise Refused(self._told(failures))
            if number + 1 < self._config.tries:
                self._wait(number, failures)
        raise EngineFailed(f"{self._told(failures)}; tried {self._config.tries} times")

    def close(self) -> None:
        """End the connections."""
        self._client.close()

    def _try(self, url: str, body: bytes, read: Callable[[bytes], tuple[T, Usage]], at_most: Usage) -> T:
        self.spending.claim(at_most)
        used = at_most  # of a request that was cut, nobody knows what it cost
        try:
            data = post(
                self._client, url, body, timeout_s=self._config.timeout_s, now=self._clock.now, largest=_LARGEST_ANSWER
            )
            if repeats(data.decode("utf-8", "replace"), self._key):
                raise TryFailed("the answer repeats the API key")
            answer, used = read(data)
            return answer
        except TryFailed as failure:
            used = at_most if failure.worked else Usage()
            raise TryFailed(
                f"{url}: {failure}{f' ({failure.said})' if failure.said else ''}",
                wait_s=failure.wait_s,
                for_good=failure.for_good,
            ) from failure
        except (ValueError, RecursionError) as error:
            raise TryFailed(f"{url}: {error}") from error
        finally:
            self.spending.settle(at_most, used)

    def _wait(self, number: int, failures: Sequence[TryFailed]) -> None:
        asked = min((failure.wait_s for failure in failures), default=0.0)
        if asked > self._config.longest_wait_s:
            raise EngineFailed(f"{self._told(failures)}; it asks for a wait of {asked:.0f} s")
        longest = min(self._config.longest_wait_s, self._config.first_wait_s * 2 ** min(number, 30))
        # those who were sent away together must not come back together: beside a wait that was asked for, too
        self._clock.sleep(asked + longest * self._clock.random())

    def _told(self, failures: Sequence[TryFailed]) -> str:
        return "; ".join(map(str, failures)) or "there is no server to ask"
