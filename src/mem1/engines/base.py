"""The port of every engine: token ids in, sampled token ids with their log-probabilities out.

`ScriptedEngine` follows a script: for tests, demonstrations, warm starts and checks of the accounting.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from mem1.engines.chat_template import ChatTemplate
from mem1.errors import UserError
from mem1.records import VersionRun

if TYPE_CHECKING:
    from mem1.engines.codec import Codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """A sampled continuation of one context."""

    token_ids: tuple[int, ...]
    """The sampled tokens, stop token included."""
    logprobs: tuple[float, ...] = ()
    """Log-probability of each sampled token at the sampling temperature; empty: the engine has none."""
    stopped: bool = True
    """False: the token budget ran out before a stop."""
    failed: str | None = None
    """Why there is no completion (`Ended.ENGINE_FAILED`); None: there is one."""
    interrupted: bool = False
    """True: it was cut short, with budget left, for new weights, and can be continued."""
    weights_versions: tuple[VersionRun, ...] = ()
    """Versions of the weights that sampled its tokens, as reported by a server; empty: not reported."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", tuple(self.token_ids))
        object.__setattr__(self, "logprobs", tuple(self.logprobs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How to sample. There is no top-p or top-k: they bias importance ratios."""

    temperature: float = 1.0
    """0: greedy; log-probabilities are then those at temperature 1."""
    seed: int = 0
    """Seed of the whole call. Engines use `seeds_for`."""
    seeds: tuple[int, ...] = ()
    """One seed per context; empty: derived from `seed` and the context's place in the call."""
    session: int | None = None
    """Number that calls have in common between which the weights do not change, so that an engine may use again what it
    has computed (`new_session`); None: the call stands alone."""

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UserError(f"temperature = {self.temperature!r}: give 0, which is greedy, or a number above it")

    def seeds_for(self, contexts: int) -> tuple[int, ...]:
        """Seeds in [0, 2**63), the only source of random numbers for each context.

        Samples therefore do not depend on the rest of the call. Raises ValueError for another number of seeds.
        """
        if self.seeds and len(self.seeds) != contexts:
            raise ValueError(f"{contexts} contexts have {len(self.seeds)} seeds; give one per context, or none")
        return self.seeds or tuple(derived_seed(self.seed, place) for place in range(contexts))


_SESSIONS = itertools.count()


def new_session() -> int:
    """A number that no other session of this process has."""
    return next(_SESSIONS)


def derived_seed(*parts: int | str) -> int:
    """A seed in [0, 2**63) that depends only on these parts, such as (seed, task, attempt, turn)."""
    digest = hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class Engine(Protocol):
    """Samples completions for a batch of contexts.

    An engine that gains nothing from batches, such as a client of servers that form them, has an attribute
    `concurrency`: that many attempts then advance at the same time, each in its own thread. Without it, all attempts
    take their turns together, or, if it is `Streaming`, each at its own pace.
    """

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context, in order, each of at most its own `max_tokens`; failures are in `failed`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A completion that is asked for."""

    context: Sequence[int]
    max_tokens: int
    seed: int
    """The only source of its random numbers."""
    key: int
    """Whose it is, such as the number of an attempt, which has one at a time; its contexts often begin alike."""


Follow = Callable[[Sequence[tuple[Request, Completion]]], Sequence[Request]]
"""Completions that have ended -> what is asked for next."""


@runtime_checkable
class Streaming(Engine, Protocol):
    """An engine that goes on with others while one attempt waits for its environment."""

    def stream(self, requests: Sequence[Request], follow: Follow, *, sampling: Sampling) -> None:
        """Complete these requests and those that `follow` returns, until none is left.

        `follow` is called with the completions that have ended, each once; the requests that it returns join those
        under way. Of `sampling`, the seeds are not used.
        """
        ...


def stream_rounds(engine: Engine, requests: Sequence[Request], follow: Follow, sampling: Sampling) -> None:
    """`Streaming.stream` by an engine that completes batches: what `follow` returns is the next one.

    Raises UserError for an engine that does not return one completion per context.
    """
    while requests:
        completions = engine.complete(
            [request.context for request in requests],
            max_tokens=[request.max_tokens for request in requests],
            sampling=replace(sampling, seeds=tuple(request.seed for request in requests)),
        )
        found = one_each(completions, len(requests), engine, "complete", "contexts", Completion)
        requests = follow(list(zip(requests, found, strict=True)))


Value = TypeVar("Value")


def one_each(found: Any, wanted: int, thing: object, method: str, inputs: str, kind: type[Value]) -> Sequence[Value]:
    """What a plug-in returned. Raises UserError unless it is one of this kind for each input."""
    said = f"{type(thing).__name__}.{method} returned"
    if not isinstance(found, Sequence):
        raise UserError(f"{said} a {type(found).__name__} for {wanted} {inputs}; it returns a list of {kind.__name__}")
    if len(found) != wanted:
        raise UserError(f"{said} {len(found)} values for {wanted} {inputs}; it returns one {kind.__name__} for each")
    if wrong := [one for one in found if not isinstance(one, kind)]:
        raise UserError(f"{said} {wrong[0]!r:.80}; it returns one {kind.__name__} for each of the {inputs}")
    return found


Script = Callable[[str], str]
"""Text of a context -> text of the completion."""


class ScriptedEngine:
    """Completes each context with what `script` writes for its text; it has no log-probabilities."""

    def __init__(self, codec: Codec, script: Script, chat_template: ChatTemplate | None = None) -> None:
        """`chat_template` surrounds the prompt of every context; the script does not see it."""
        self.codec = codec
        self.script = script
        self.chat_template = chat_template or ChatTemplate()

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context, cut off at its budget like a model's."""
        del sampling  # a script does not sample
        completions = []
        for context, budget in zip(contexts, max_tokens, strict=True):
            read = self.codec.without_bos(self.chat_template.without(tuple(context)))
            ids = self.codec.encode(self.script(self.codec.decode(read)))
            completions.append(Completion(token_ids=ids[:budget], stopped=len(ids) <= budget))
        return completions
