"""Stop strings where a server leaves them out, ignores them, or was interrupted inside one.

    complete("<IS> a </IS> <query> Oslo", ["</query>"], stopped=True)      "<IS> a </IS> <query> Oslo</query>"
    concat(abc, de, codec, stops)       "abc" by weights 3, "de" by weights 4: abcde by ((3, 3), (4, 2))

Each token of a concatenation has the log-probability of the weights that sampled it, given everything before it, as if
two policies had written one after the other (partial rollouts: Kimi k1.5, arXiv 2501.12599).
"""

from __future__ import annotations

from collections.abc import Sequence

from mem1.engines.base import Completion
from mem1.engines.codec import Codec

MOST_TOKENS, _MOST_CHARACTERS = 24, 40
"""Longest stop string: a tag is shorter, even byte by byte."""


def met(sampled: Sequence[int], stops: Sequence[str], codec: Codec) -> bool:
    """Whether these tokens end with a stop string."""
    tail = codec.decode(sampled[-MOST_TOKENS:])[-_MOST_CHARACTERS:]
    return any(stop in tail for stop in stops)


def openings(stops: Sequence[str]) -> dict[str, str]:
    """Opening tag -> the stop string that closes it.   ["</query>"]  ->  {"<query>": "</query>"}"""
    return {stop.replace("</", "<", 1): stop for stop in stops}


def opened(context: str, stops: Sequence[str]) -> str:
    """The opening tag at the end of a context, which the completion continues; empty: none."""
    end = context.rstrip()
    return next((opening for opening in openings(stops) if end.endswith(opening)), "")


def complete(text: str, stops: Sequence[str], *, stopped: bool, named: str | None = None, opening: str = "") -> str:
    """The text up to and including its stop string, as a model that stops there would have written it.

    stopped   the server reports that the model ended by itself
    named     the stop string that the server reports; empty: none, the model ended its text; None: the server does not
              report it, and the tag that is still open is closed
    opening   the tag at the end of the context
    """
    ends = [text.index(stop) + len(stop) for stop in stops if stop in text]
    if ends:
        return text[: min(ends)]
    if not stopped:
        return text
    if named is not None:
        return text + named
    whole = opening + text
    position, stop = max((whole.rfind(tag), stop) for tag, stop in openings(stops).items())
    return text if position < 0 else text + stop


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
