"""`openai`: a model on any server that speaks OpenAI's protocol, hosted or your own (docs/model-servers.md).

    engine = OpenAIEngine.open(ModelServer(urls=("http://127.0.0.1:8000/v1",), model="qwen"), codec, stop_strings)
    engine.dialect      /completions, token ids, with vLLM's fields

With token ids, a completion that was interrupted for new weights is continued from its last token. Thread-safe. A
context whose completion failed gives a `Completion` with the reason; the others of its call are not affected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace

from mem1.engines.base import Completion, Sampling, derived_seed
from mem1.engines.codec import Codec, most_tokens
from mem1.engines.dialects import PROBE, CompletionRequest, ContextIds, Text, dialects
from mem1.engines.servers import EngineFailed, ModelServer, Refused, Servers
from mem1.errors import UserError
from mem1.net.spending import LimitReached, Spending, Usage
from mem1.net.threads import in_parallel

_LOOK_S = 10.0
"""Longest wait, in seconds, for each answer of one of several servers that are looked at before they are used."""


class OpenAIEngine:
    """Completes contexts on a server; a completion ends after one of `stop_strings` or with its token budget."""

    def __init__(
        self,
        servers: Servers,
        config: ModelServer,
        dialect: Text,
        codec: Codec,
        stop_strings: Sequence[str],
        *,
        published: Callable[[], int] | None = None,
        reports_version: bool = True,
    ) -> None:
        """`dialect` is what the server speaks; `open` finds it.

        published           returns the version of the weights that the servers should have now: an answer by weights
                            older than at its request, or newer than at its arrival, has failed; None: any will do
        reports_version     the servers report the version with each answer, and an answer without it has failed. False:
                            an answer is marked with the version at the time of its request, and one that may have
                            waited for newer weights is asked for again
        """
        self.dialect = dialect
        self._published, self._reports_version = published, reports_version
        self._servers, self._config = servers, config
        self.codec, self._stops = codec, tuple(stop_strings)
        self._slots = threading.BoundedSemaphore(config.concurrency)

    @classmethod
    def open(
        cls, config: ModelServer, codec: Codec, stop_strings: Sequence[str], *, own_tokenizer: bool = True
    ) -> OpenAIEngine:
        """Request one token to find the server's dialect. `own_tokenizer`: `codec` is the served model's.

        Raises UserError where no server answers, and where one refuses, has another tokenizer, or is not like the rest.
        """
        servers = Servers(config)
        dialect = _find_dialect(servers, config, codec, stop_strings, own_tokenizer=own_tokenizer)
        if len(config.urls) > 1:
            _check_alike(dialect, config, codec, stop_strings, own_tokenizer=own_tokenizer)
        return cls(servers, config, dialect, codec, stop_strings)

    @property
    def identity(self) -> str:
        """Tells the model and how it is called from others."""
        return f"{self._config.model} by {self.dialect},"

    @property
    def spending(self) -> Spending:
        """Tokens and money spent so far."""
        return self._servers.spending

    @property
    def concurrency(self) -> int:
        """Most requests under way at the same time."""
        return self._config.concurrency

    def close(self) -> None:
        """End the connections."""
        self._servers.close()

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context, in order; `failed` holds the reason of those that failed."""
        # attempts at one task share a context, so each row has a seed of its own
        rows = list(zip(contexts, max_tokens, sampling.seeds_for(len(contexts)), strict=True))

        def complete(row: tuple[Sequence[int], int, int]) -> Completion:
            with self._slots:
                return self._complete(*row, temperature=sampling.temperature)

        return in_parallel(complete, rows, threads=self.concurrency)

    def _complete(self, context: Sequence[int], max_tokens: int, seed: int, *, temperature: float) -> Completion:
        whole = Completion(token_ids=(), stopped=False, interrupted=True)
        fruitless = 0
        while whole.interrupted:
            done = len(whole.token_ids)
            request = self.dialect.request(
                self.codec,
                [*context, *whole.token_ids],
                model=self._config.model,
                max_tokens=max_tokens - done,
                temperature=temperature,
                seed=derived_seed(seed, done) if done else seed,
                stops=self._stops,
            )
            part = self._part(request)
            if part.failed is not None:
                return part
            whole = concat(whole, part, self.codec, self._stops)
            fruitless += part.interrupted and not part.token_ids
            if fruitless == self._config.tries:
                return _failed(f"it was interrupted {fruitless} times before any token was sampled")
        return whole

    def _part(self, request: CompletionRequest) -> Completion:
        """A completion, or the part of it that was sampled until the server was interrupted."""
        published = None if self._published is None else self._published()

        def read(body: bytes) -> tuple[Completion, Usage]:
            response = self.dialect.read(body, self._stops)
            completion = self.dialect.completion(
                response, request, self.codec, processed_logprobs=self._config.processed_logprobs
            )
            used = response.usage or Usage(len(request.context_ids), len(completion.token_ids))
            return self._with_version(completion, response.weights_version, published), used

        at_most = Usage(len(request.context_ids), request.max_tokens)
        try:
            return self._servers.ask(self.dialect.path, self.dialect.encode(request), read, at_most=at_most)
        except (EngineFailed, LimitReached) as error:
            return _failed(str(error))

    def _with_version(self, completion: Completion, reported: int | None, published: int | None) -> Completion:
        """The completion, if its weights are `published` at its request or any later version that is published now.

        Raises ValueError for other weights.
        """
        if published is None or self._published is None:
            return completion
        newest = self._published()
        if reported is None and not self._reports_version:
            if newest != published and not completion.interrupted:  # it may have waited for the new ones: ask again
                return Completion(token_ids=(), stopped=False, interrupted=True)
            tokens = len(completion.token_ids)
            return replace(completion, weights_versions=((published, tokens),) if tokens else ())
        if reported is None or not published <= reported <= newest:
            wanted = str(newest) if newest == published else f"{published} to {newest}"
            raise ValueError(f"the answer is by weights {reported}, not by {wanted}; this server is out of date")
        return completion


def concat(first: Completion, rest: Completion, codec: Codec, stops: Sequence[str]) -> Completion:
    """One completion of `first`, which was interrupted, and its continuation.

    It ends after a stop string that lies across the border, which the sampler of `rest` could not see.
    """
    ids, versions = first.token_ids + rest.token_ids, list(first.weights_versions)
    for version, tokens in rest.weights_versions:
        if versions and versions[-1][0] == version:
            versions[-1] = (version, versions[-1][1] + tokens)
        else:
            versions.append((version, tokens))
    complete = all(len(part.logprobs) == len(part.token_ids) for part in (first, rest))
    whole = Completion(
        token_ids=ids,
        logprobs=first.logprobs + rest.logprobs if complete else (),
        stopped=rest.stopped,
        interrupted=rest.interrupted,
        weights_versions=tuple(versions),
    )
    end = _stop_across(ids, len(first.token_ids), codec, stops)
    return whole if end is None else _cut(whole, end)


def _stop_across(ids: Sequence[int], border: int, codec: Codec, stops: Sequence[str]) -> int | None:
    """Number of tokens up to the end of a stop string across the border; None: there is none."""
    ends = range(border + 1, min(border + most_tokens(stops), len(ids)) + 1 if border else 0)
    return next((end for end in ends if codec.meets(ids[:end], stops)), None)


def _cut(whole: Completion, end: int) -> Completion:
    """Its first `end` tokens, after which it stopped."""
    versions, left = [], end
    for version, tokens in whole.weights_versions:
        if left > 0:
            versions.append((version, min(tokens, left)))
        left -= tokens
    return Completion(
        token_ids=whole.token_ids[:end], logprobs=whole.logprobs[:end], stopped=True, weights_versions=tuple(versions)
    )


def _failed(why: str) -> Completion:
    return Completion(token_ids=(), stopped=False, failed=why)


def _find_dialect(
    servers: Servers, config: ModelServer, codec: Codec, stops: Sequence[str], *, own_tokenizer: bool
) -> Text:
    """The first dialect that the server does not refuse."""
    refusals: list[str] = []
    for dialect in dialects(config.endpoint):
        try:
            response = servers.ask(
                dialect.path,
                dialect.probe(config.model, stops),
                lambda body, dialect=dialect: (dialect.read(body, stops), Usage()),
                at_most=Usage(),
            )
        except Refused as error:
            refusals.append(str(error))
        except EngineFailed as error:
            raise UserError(
                f"no model server answers with a completion: {error}; start one, or set another --base-url"
            ) from error
        else:
            found = dialect.after_probe(response, codec) if own_tokenizer else dialect
            try:
                takes = not isinstance(found, ContextIds) or _takes_ids(servers, config, codec, stops, found)
            except EngineFailed as error:
                raise UserError(f"the model server answers no more: {error}; start it again") from error
            return found if takes else dialect
    raise UserError(f"the model server refuses every form of request: {'; then '.join(refusals)}")


def _check_alike(
    dialect: Text, config: ModelServer, codec: Codec, stops: Sequence[str], *, own_tokenizer: bool
) -> None:
    """Raises UserError where a server that answers does not speak as the others; one that does not may come later."""

    def check(url: str) -> None:
        timeout_s = min(config.timeout_s, _LOOK_S)
        alone = config.model_copy(update={"urls": (url,), "tries": 1, "timeout_s": timeout_s})
        with closing(Servers(alone)) as server:
            try:
                found = _find_dialect(server, alone, codec, stops, own_tokenizer=own_tokenizer)
            except UserError as error:
                if isinstance(error.__cause__, EngineFailed):
                    return
                raise UserError(f"{url}: {error}") from error
        if found != dialect:
            raise UserError(f"{url} speaks {found}, another server {dialect}; give servers that are alike")

    in_parallel(check, config.urls, threads=len(config.urls))


def _takes_ids(servers: Servers, config: ModelServer, codec: Codec, stops: Sequence[str], dialect: ContextIds) -> bool:
    """Whether the server reads contexts as token ids. Raises EngineFailed where it does not answer."""
    ids = codec.encode(PROBE)
    request = dialect.request(codec, ids, model=config.model, max_tokens=1, temperature=0.0, seed=0, stops=stops)
    try:
        return servers.ask(
            dialect.path,
            dialect.encode(request),
            lambda body: (dialect.taken(dialect.read(body, stops), ids), Usage()),
            at_most=Usage(),
        )
    except Refused:
        return False
