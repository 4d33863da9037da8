"""`openai`: a model on any server that speaks OpenAI's protocol, hosted or one's own (docs/model-servers.md).

    engine = OpenAIEngine.open(ModelServer(urls=("http://127.0.0.1:8000/v1",), model="qwen"), codec, stop_strings)
    engine.wire      /completions, token ids, with vLLM's fields

With token ids both ways, contexts and completions are exactly the server's, and a completion that new weights have
interrupted is gone on with from its last token. Without, a context goes as its text, in which no document can write a
special token, and the completion's text is encoded once. Safe to use from many threads; a context whose completion
failed for good is a `Completion` that says so, and the others of its call go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mem1.engines.base import Completion, Sampling, derived_seed
from mem1.engines.codec import Codec
from mem1.engines.dialects import CompletionRequest, CompletionResponse, Dialect, encode, encode_probe, read
from mem1.engines.servers import EngineFailed, ModelServer, Refused, Servers
from mem1.engines.stop_strings import complete, concat, opened
from mem1.errors import UserError
from mem1.net.spending import LimitReached, Spending, Usage
from mem1.net.threads import Pool

_PROBE = "The capital of Norway is Oslo; 12 + 30 = 42. <think> ... </think>"
"""Enough to tell tokenizers apart."""
_WIRES: dict[str, tuple[Dialect, ...]] = {
    "completions": (Dialect("completions", extras=True), Dialect("completions")),
    "chat": (Dialect("chat", extras=True), Dialect("chat")),
}
_SEEDS = 1 << 31
"""Seeds of servers of which nothing is known; those that speak token ids take any that we have."""


class OpenAIEngine:
    """Completes contexts on a server; a completion ends after one of `stop_strings` or with its token budget."""

    def __init__(
        self,
        servers: Servers,
        config: ModelServer,
        wire: Dialect,
        codec: Codec,
        stop_strings: Sequence[str],
        *,
        published: Callable[[], int] | None = None,
        says_version: bool = True,
    ) -> None:
        """`wire` is what the server was found to speak; `open` finds it.

        published       version of the weights that the servers have at this moment: an answer by others than those
                        between its question and itself has failed; None: any will do
        says_version    the servers say it of each answer; one that does not has failed. False: an answer is marked with
                        the version of the moment of its question, the oldest that it can be
        """
        self.wire = wire
        self._published, self._says_version = published, says_version
        self._servers, self._config = servers, config
        self._codec, self._stops = codec, tuple(stop_strings)
        self._pool = Pool(config.concurrency)

    @classmethod
    def open(
        cls, config: ModelServer, codec: Codec, stop_strings: Sequence[str], *, own_tokenizer: bool = True
    ) -> OpenAIEngine:
        """Ask the server for a token, to see what it speaks. `own_tokenizer`: `codec` is the served model's.

        Raises UserError where it does not answer, refuses, or has another tokenizer.
        """
        servers = Servers(config)
        wire = _find_wire(servers, config, codec, stop_strings, own_tokenizer=own_tokenizer)
        return cls(servers, config, wire, codec, stop_strings)

    @property
    def spending(self) -> Spending:
        """What was used so far."""
        return self._servers.spending

    def close(self) -> None:
        """End threads and connections."""
        self._pool.close()
        self._servers.close()

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion a context, in order; those that could not be had say why in `failed`."""
        # attempts at one task share a context, so each row has a seed of its own
        seeds = sampling.context_seeds(len(contexts))
        if not self.wire.token_ids:
            seeds = [seed % _SEEDS for seed in seeds]
        rows = list(zip(contexts, max_tokens, seeds, strict=True))
        return self._pool.map(lambda row: self._complete(*row, temperature=sampling.temperature), rows)

    def _complete(self, context: Sequence[int], max_tokens: int, seed: int, *, temperature: float) -> Completion:
        whole = Completion(token_ids=(), stopped=False, interrupted=True)
        fruitless = 0
        while whole.interrupted:
            done = len(whole.token_ids)
            piece = self._piece(
                [*context, *whole.token_ids],
                max_tokens - done,
                derived_seed(seed, done) if done else seed,
                temperature=temperature,
            )
            if piece.failed is not None:
                return piece
            whole = concat(whole, piece, self._codec, self._stops)
            fruitless += piece.interrupted and not piece.token_ids
            if fruitless == self._config.tries:
                return _failed(f"it was interrupted {fruitless} times before it had sampled anything")
        return whole

    def _piece(self, context: Sequence[int], max_tokens: int, seed: int, *, temperature: float) -> Completion:
        """A completion, or the part of it that was sampled until the server was interrupted."""
        text = self._codec.decode(context)
        published = None if self._published is None else self._published()
        ask = CompletionRequest(
            model=self._config.model,
            context=text if self.wire.token_ids else self._codec.text_for_server(context),
            context_ids=context,
            opening=opened(text, self._stops),
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stops=self._stops,
        )
        try:
            return self._servers.ask(
                self.wire.path,
                encode(self.wire, ask),
                lambda body: self._read(body, ask, published),
                at_most=Usage(len(context), max_tokens),
            )
        except (EngineFailed, LimitReached) as error:
            return _failed(str(error))

    def _read(self, body: bytes, ask: CompletionRequest, published: int | None) -> tuple[Completion, Usage]:
        """The completion and what it used. Raises ValueError for an answer that is not one to what was asked."""
        answer = read(body, self.wire, self._stops)
        completion = self._by_tokens(answer, ask, published) if self.wire.token_ids else self._by_text(answer, ask)
        return completion, answer.usage or Usage(len(ask.context_ids), len(completion.token_ids))

    def _by_tokens(self, answer: CompletionResponse, ask: CompletionRequest, published: int | None) -> Completion:
        ids = answer.token_ids
        if ids is None or answer.prompt_token_ids is None:
            raise ValueError("the answer has no token ids")
        if answer.prompt_token_ids != tuple(ask.context_ids):
            raise ValueError("the answer is to another context than was sent")
        if len(ids) > ask.max_tokens or any(i >= self._codec.vocab_size for i in ids):
            raise ValueError(f"the answer has {len(ids)} tokens where {ask.max_tokens} were asked for, or unknown ones")
        version = self._version(answer, published)
        # vLLM's log-probabilities are by default those at temperature 1, which ours at temperature 0 are as well
        processed = self._config.processed_logprobs
        exact = (processed or ask.temperature in (0, 1)) and len(answer.logprobs) == len(ids)
        if processed and not exact:
            raise ValueError(f"the answer has {len(answer.logprobs)} log-probabilities for {len(ids)} tokens")
        return Completion(
            token_ids=ids,
            logprobs=answer.logprobs if exact else (),
            stopped=answer.stopped,
            interrupted=answer.interrupted and len(ids) < ask.max_tokens,
            weights_versions=((version, len(ids)),) if version is not None and ids else (),
        )

    def _version(self, answer: CompletionResponse, published: int | None) -> int | None:
        """Of the weights behind an answer to a question that was asked when `published` was the version."""
        said = answer.weights_version
        if published is None or self._published is None:
            return said
        if said is None and not self._says_version:
            return published
        newest = self._published()
        if said is None or not published <= said <= newest:
            wanted = str(newest) if newest == published else f"{published} to {newest}"
            raise ValueError(f"the answer is by weights {said} where {wanted} were wanted; this server is behind")
        return said

    def _by_text(self, answer: CompletionResponse, ask: CompletionRequest) -> Completion:
        if answer.interrupted:
            raise ValueError("the answer was interrupted, and cannot be gone on with by its text")
        text = answer.text
        if self.wire.endpoint == "chat" and ask.opening:
            # a server that does not go on from the opened tag begins with it once more
            text = text.lstrip().removeprefix(ask.opening)
        text = complete(text, self._stops, stopped=answer.stopped, named=answer.stop, opening=ask.opening)
        # a server that does not know stop strings goes on after one, if need be until its tokens are used
        stopped = answer.stopped or text.endswith(self._stops)
        ids = self._codec.encode(text)
        return Completion(token_ids=ids[: ask.max_tokens], stopped=stopped and len(ids) <= ask.max_tokens)


def _failed(why: str) -> Completion:
    return Completion(token_ids=(), stopped=False, failed=why)


def _find_wire(
    servers: Servers, config: ModelServer, codec: Codec, stops: Sequence[str], *, own_tokenizer: bool
) -> Dialect:
    """The first form of request that the server does not refuse."""
    kinds = ("completions", "chat") if config.endpoint == "auto" else (config.endpoint,)
    refusals: list[str] = []
    for wire in (wire for kind in kinds for wire in _WIRES[kind]):
        try:
            answer = servers.ask(
                wire.path,
                probe(wire, config.model, stops),
                lambda body, wire=wire: (read(body, wire, stops), Usage()),
                at_most=Usage(),
            )
        except Refused as error:
            refusals.append(str(error))
        except EngineFailed as error:
            raise UserError(f"no model server answers: {error}; start one, or give another --base-url") from error
        else:
            return with_token_ids(wire, answer, codec) if own_tokenizer else wire
    raise UserError(f"the model server refuses every form of request: {'; then '.join(refusals)}")


def probe(wire: Dialect, model: str, stops: Sequence[str]) -> bytes:
    """The body of a request for one token, which shows what a server speaks."""
    opening = next(iter(stops), "").replace("</", "<", 1) if wire.endpoint == "chat" else ""
    ask = CompletionRequest(
        model=model,
        context=_PROBE + opening,
        context_ids=(),
        opening=opening,
        max_tokens=1,
        temperature=0.0,
        seed=0,
        stops=stops,
    )
    return encode_probe(wire, ask)


def with_token_ids(wire: Dialect, answer: CompletionResponse, codec: Codec) -> Dialect:
    """The same with token ids, where the server gave those of the probe. Raises UserError where they are others."""
    theirs, ours = answer.prompt_token_ids, codec.encode(_PROBE)
    if wire.endpoint == "chat" or theirs is None or answer.token_ids is None:
        return wire
    if theirs != ours:
        raise UserError(
            f"the server's tokenizer is another than the one given: it makes {len(theirs)} tokens of a text of which "
            f"--tokenizer makes {len(ours)}, or others; give the folder of the model that is served"
        )
    return Dialect(wire.endpoint, token_ids=True, extras=True)
