"""`local`: a transformers model in this process, sampled in batches, with log-probabilities.

    step 1   a1 a1 a1            each step takes every live row (`mem1.engines.rows`) one token further
    step 2   a1 b1 b1 b1         a context joins as soon as there is room for it
    step 3   b1 b1 c2 c2         the reply to an attempt that has ended its turn; c2 begins like its row of the last

Where rows are few, a step also computes guesses at what comes next, and takes rows as far as those are right
(`mem1.engines.lookahead`). The random number of a token depends only on its context's seed and its place in the
completion, not on what else is sampled. Tokens are drawn from the whole softmax at the sampling temperature; top-p or
top-k would make the importance ratios of training wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from mem1.engines.base import Completion, Follow, Request, Sampling
from mem1.engines.codec import Codec
from mem1.engines.device import flushed_denormals, with_float64
from mem1.engines.lookahead import Lookahead, guesses_each
from mem1.engines.rows import KeptRows, Row, Rows, check_rows
from mem1.heap import keep_freed

Steering = Callable[[Sequence[int], Sequence[int], int, int], int]
"""(context, sampled so far, drawn token, token budget) -> the token that replaces the drawn one."""
Finished = list[tuple[Request, Completion]]


class LocalEngine:
    """Samples from `model`; a completion ends after one of `stop_strings`, an end of the model's own, or with its token
    budget."""

    def __init__(
        self,
        model: PreTrainedModel,
        codec: Codec,
        stop_strings: Sequence[str],
        *,
        batch_tokens: int = 24576,
        interrupt: Tensor | None = None,
        steering: Steering | None = None,
    ) -> None:
        """A sampler of completions.

        batch_tokens    most rows times tokens of the longest context when a row joins; affects memory, not results
        interrupt       a boolean scalar in shared memory: as soon as another thread or process sets it, completions
                        end where they are; None: they are never interrupted
        steering        replaces drawn tokens, for checks; its tokens get log-probabilities like any others

        Raises UserError for a model whose attention this process cannot compute (`check_rows`).
        """
        check_rows(model)
        self.interrupt = interrupt
        self.steering = steering
        self.model = model
        self.codec = codec
        self.stop_strings = tuple(stop_strings)
        # elsewhere a text may also end within a token
        whole = codec.unknown_id is not None or all(stop in codec.added_tokens for stop in stop_strings)
        ids = codec.single_tokens(stop_strings) if whole else None
        self.stop_ids = None if ids is None or codec.unknown_id in ids else ids
        """Ids of the stop strings where they are words or added tokens; None: the text is looked at."""
        self.end_ids = _ends(model, codec)
        """Added tokens that the model's configuration names as its ends: servers stop there, too."""
        self.batch_tokens = batch_tokens
        self.kept = KeptRows(limit=2 * batch_tokens)
        self._session: int | None = None
        """Session of what is kept."""

    def complete(
        self, contexts: Sequence[Sequence[int]], *, max_tokens: Sequence[int], sampling: Sampling
    ) -> list[Completion]:
        """One completion per context, each of at most its own `max_tokens`."""
        return completed(self.stream, contexts, max_tokens, sampling)

    def stream(self, requests: Sequence[Request], follow: Follow, *, sampling: Sampling) -> None:
        """Complete these requests and those that `follow` returns; it is called after each step that ends some."""
        with self.opened(sampling) as batch:
            batch.add(requests)
            while batch.busy:
                if finished := batch.step():
                    batch.add(follow(finished))

    @contextmanager
    def opened(self, sampling: Sampling, *, keep: bool = False) -> Iterator[Batch]:
        """A batch that one adds to and takes steps of oneself.

        keep        rows that end are kept as in a session, as what follows them is added some steps later
        """
        if sampling.session is None or sampling.session != self._session:
            self.kept.clear()
        self._session = sampling.session
        if self.model.device.type == "cpu":
            keep_freed()
        was_training = self.model.training
        self.model.eval()
        batch = Batch(self, sampling.temperature, keep=keep or sampling.session is not None)
        try:
            yield batch
            batch.close()
        finally:
            self.model.train(was_training)
            if sampling.session is None:
                self.kept.clear()

    @property
    def interrupted(self) -> bool:
        """Whether completions under way must end now."""
        return self.interrupt is not None and bool(self.interrupt)

    def stops(self, token: int, sampled: Sequence[int]) -> bool:
        """Whether `token`, the last of `sampled`, ends the completion."""
        if token in self.end_ids:
            return True
        if self.stop_ids is not None:
            return token in self.stop_ids
        return self.codec.meets(sampled, self.stop_strings)


def _ends(model: PreTrainedModel, codec: Codec) -> frozenset[int]:
    """A configuration that nobody wrote names an id of its own, which is a word in another vocabulary."""
    given: Any = getattr(model.generation_config, "eos_token_id", None)
    return frozenset(given if isinstance(given, list) else [given]) & frozenset(codec.added_tokens.values())


def completed(
    stream: Callable[..., None], contexts: Sequence[Sequence[int]], max_tokens: Sequence[int], sampling: Sampling
) -> list[Completion]:
    """One completion per context, by an engine that streams."""
    fields = zip(contexts, max_tokens, sampling.seeds_for(len(contexts)), strict=True)
    requests = [
        Request(context=context, max_tokens=most, seed=seed, key=key)
        for key, (context, most, seed) in enumerate(fields)
    ]
    found: dict[int, Completion] = {}

    def collect(finished: Finished) -> Sequence[Request]:
        found.update((request.key, completion) for request, completion in finished)
        return ()

    stream(requests, collect, sampling=sampling)
    return [found[key] for key in range(len(requests))]


def draw_noise(seeds: Sequence[int], length: int, start: int = 0) -> Tensor:
    """Random numbers in [0, 1) of places from `start` on, (rows, length), float64: each a function of its row's seed
    and its place alone.

    SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014), which is cheap to
    restart for each row and computes the number at any place directly.
    """
    places_T = np.arange(start + 1, start + length + 1, dtype=np.uint64)
    mixed_BT = np.array(seeds, dtype=np.uint64)[:, None] + places_T * np.uint64(0x9E3779B97F4A7C15)
    mixed_BT = (mixed_BT ^ (mixed_BT >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed_BT = (mixed_BT ^ (mixed_BT >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed_BT ^= mixed_BT >> np.uint64(31)
    return torch.from_numpy((mixed_BT >> np.uint64(11)) * 2.0**-53)


def drawn(logprobs_nV: Tensor, noise_n: Tensor) -> Tensor:
    """Tokens (n,) at which the sum of probabilities passes the noise, in [0, 1), float64; none of probability 0.

    First the run of tokens in which it does, then the token: only sums of runs, and one run, are added up in float64.
    """
    probs_nV = logprobs_nV.exp()
    runs_nrw = F.pad(probs_nV, (0, -probs_nV.shape[1] % _RUN)).unflatten(1, (-1, _RUN))
    sums_nr = runs_nrw.sum(-1, dtype=torch.float64)
    up_to_nr = sums_nr.cumsum(-1)
    threshold_n = noise_n * up_to_nr[:, -1]
    run_n1 = _passed(up_to_nr, threshold_n)
    left_n = threshold_n - (up_to_nr - sums_nr).gather(1, run_n1)[:, 0]
    chosen_nw = runs_nrw.gather(1, run_n1[:, :, None].expand(-1, 1, _RUN))[:, 0]
    return (run_n1 * _RUN + _passed(chosen_nw.double().cumsum(-1), left_n))[:, 0]


def _passed(cumulated_nk: Tensor, threshold_n: Tensor) -> Tensor:
    """The places (n, 1) at which these sums pass the threshold, rounded as it may be."""
    total_n = cumulated_nk[:, -1]
    within_n = torch.minimum(threshold_n, torch.nextafter(total_n, torch.zeros_like(total_n)))
    return torch.searchsorted(cumulated_nk, within_n[:, None], right=True)


_RUN = 256
"""Tokens."""
_NOISE = 256
"""Places of a row whose random numbers are drawn at a time."""


@dataclass(eq=False, kw_only=True)
class _Sampled(Row):
    """A row whose `ids` go on with what was sampled, but for a last token that ends it."""

    request: Request
    noise: list[float]
    """Random numbers in [0, 1), one for each of the first places."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    stopped: bool = False
    lookahead: Lookahead = field(default_factory=Lookahead)

    def next_noise(self) -> list[float]:
        """Random numbers of the next place and of one for each guess."""
        start, stop = len(self.tokens), len(self.tokens) + 1 + len(self.guesses)
        while len(self.noise) < stop:
            self.noise += draw_noise([self.request.seed], _NOISE, start=len(self.noise))[0].tolist()
        return self.noise[start:stop]

    def finished(self) -> tuple[Request, Completion]:
        return self.request, Completion(
            token_ids=tuple(self.tokens),
            logprobs=tuple(self.logprobs),
            stopped=self.stopped,
            interrupted=not self.stopped and len(self.tokens) < self.request.max_tokens,
        )


class Batch:
    """What is being sampled: live rows, and requests that wait for room."""

    def __init__(self, engine: LocalEngine, temperature: float, *, keep: bool) -> None:
        self.engine, self.temperature, self.keep = engine, temperature, keep
        self.rows: Rows[_Sampled] = Rows(engine.model, engine.kept)
        self.waiting: list[Request] = []
        self.ended: dict[int, _Sampled] = {}
        """Rows whose completions have ended, by key: the next context of the same key takes their place."""

    @property
    def busy(self) -> bool:
        """Whether anything is left to sample."""
        return bool(self.waiting) or len(self.ended) < len(self.rows.live)

    def add(self, requests: Sequence[Request]) -> None:
        """Let these requests join; the shortest come first, which makes for full batches where they wait for room."""
        self.waiting += sorted(requests, key=lambda request: len(request.context))

    @torch.inference_mode()
    @flushed_denormals()
    def step(self) -> Finished:
        """Sample a token for each row, or several, after those that wait have joined, and return what has ended."""
        if self.engine.interrupted:
            return self._broken_off()
        self._join()
        self._guess()
        return self._sample(self.rows.logits())

    @torch.inference_mode()
    def close(self) -> None:
        """End all rows."""
        for row in self.ended.values():
            self.rows.end(row, keep=self.keep)

    def _broken_off(self) -> Finished:
        rows = [row for row in self.rows.live if self.ended.get(row.request.key) is not row]
        for row in rows:
            del row.ids[row.held :]
        self.ended.update((row.request.key, row) for row in rows)
        left = [_Sampled(ids=[], request=request, noise=[]) for request in self.waiting]
        self.waiting = []
        return [row.finished() for row in (*rows, *left)]

    def _join(self) -> None:
        """Let rows that are over go, and requests join as far as there is room, first those that have a row."""
        free, self.ended = self.ended, {}
        active = [len(row.ids) for row in self.rows.live if free.get(row.request.key) is not row]
        count, longest = len(active), max(active, default=0)
        joining: list[Request] = []
        left: list[Request] = []
        for request in sorted(self.waiting, key=lambda request: request.key not in free):
            wide = max(longest, len(request.context))
            if left or (count and (count + 1) * wide > self.engine.batch_tokens):
                left.append(request)
            else:
                joining.append(request)
                count, longest = count + 1, wide
        self.waiting = left
        staying = {request.key for request in joining}
        for key, row in free.items():
            if key not in staying:
                self.rows.end(row, keep=self.keep or bool(left))  # what waits may begin alike
        if joining:
            self._add(joining, free, count, longest)

    def _add(self, joining: Sequence[Request], free: dict[int, _Sampled], count: int, longest: int) -> None:
        self.rows.reserve(count, longest)
        most = max(request.max_tokens for request in joining)
        noise = draw_noise([request.seed for request in joining], min(most, _NOISE))
        for request, numbers in zip(joining, noise.tolist(), strict=True):
            row = _Sampled(ids=list(request.context), request=request, noise=numbers)
            self.rows.add(row, instead_of=free.get(request.key))

    def _guess(self) -> None:
        if self.engine.steering is not None:  # what it makes of a place depends on the tokens before
            return
        rows = self.rows.live
        most = guesses_each(len(rows), self.engine.model.device.type)
        for row in rows:
            left = row.request.max_tokens - len(row.tokens) - 1
            row.guesses = row.lookahead.guess(row.ids, min(most, left))

    def _sample(self, logits_NV: Tensor) -> Finished:
        """A token for each row, and those after guesses that were right; returns what has ended."""
        device, rows = logits_NV.device, self.rows.live
        wide = with_float64(device)
        logprobs_NV = torch.log_softmax(logits_NV / (self.temperature or 1.0), dim=-1)
        if self.temperature == 0:
            tokens_N = logprobs_NV.argmax(dim=-1)
        else:
            noise_N = torch.tensor([x for row in rows for x in row.next_noise()], dtype=torch.float64)
            tokens_N = drawn(logprobs_NV.to(wide), noise_N.to(wide, non_blocking=True)).to(device)
        if self.engine.steering is not None:
            steered = [
                self.engine.steering(row.request.context, row.tokens, drawn, row.request.max_tokens)
                for row, drawn in zip(rows, tokens_N.tolist(), strict=True)
            ]
            tokens_N = torch.tensor(steered).to(device, non_blocking=True)
        chosen_N = logprobs_NV.gather(1, tokens_N[:, None])[:, 0]
        # the only wait for a GPU: both at once, and exactly, as fp64 holds every id
        tokens, chosen = torch.stack([x.to(wide).double() for x in (tokens_N, chosen_N)]).tolist()
        drawn_N = zip(map(int, tokens), chosen, strict=True)
        ended = [row for row in rows if self._take(row, list(islice(drawn_N, 1 + len(row.guesses))))]
        self.ended.update((row.request.key, row) for row in ended)
        return [row.finished() for row in ended]

    def _take(self, row: _Sampled, drawn: Sequence[tuple[int, float]]) -> bool:
        """The tokens drawn after a row's last one and after its guesses, up to the first that was not guessed; whether
        the row ends with one."""
        guesses, row.guesses = row.guesses, []
        if guesses:
            pairs = enumerate(zip(guesses, drawn, strict=False))
            row.lookahead.learn(next((at for at, (guess, (token, _)) in pairs if guess != token), len(guesses)))
        for number, (token, logprob) in enumerate(drawn):
            row.tokens.append(token)
            row.logprobs.append(logprob)
            row.stopped = self.engine.stops(token, row.tokens)
            if row.stopped or len(row.tokens) >= row.request.max_tokens:
                return True
            row.ids.append(token)
            if guesses[number : number + 1] != [token]:
                return False
            row.held += 1
        return False
