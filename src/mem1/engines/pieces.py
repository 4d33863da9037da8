"""A completion that new weights have interrupted, and what was sampled after it: one completion.

    a b c by version 3   +   d e by version 4   ->   a b c d e, versions ((3, 3), (4, 2))

Each token has the log-probability of the weights that sampled it, given everything before it, so the two halves are
exactly what two policies would have written one after the other (partial rollouts: Kimi k1.5, arXiv 2501.12599).
"""

from __future__ import annotations

from collections.abc import Sequence

from mem1.engines.base import Completion
from mem1.engines.codec import Codec
from mem1.engines.stops import MOST_TOKENS, met


def joined(first: Completion, rest: Completion, codec: Codec, stops: Sequence[str]) -> Completion:
    """`rest` goes on where `first` was interrupted.

    A stop string that begins in the one and ends in the other ends the whole: who sampled the rest could not see it.
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
    """Tokens up to the end of a stop string that lies across the border; None: there is none."""
    ends = range(border + 1, min(border + MOST_TOKENS, len(ids)) + 1 if border else 0)
    return next((end for end in ends if met(ids[:end], stops, codec)), None)


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
