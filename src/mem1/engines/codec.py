"""Text to tokens and back, exactly: what the sampler wrote is never encoded again.

`Codec` wraps a fast tokenizer (the `tokenizers` library, so that no model library is loaded). Text from the
environment is encoded once and by itself. What a tokenizer puts before every text, such as a beginning-of-sequence
token, stands once in a context, at its start.

    codec.encode("[INST] a <|im_end|>")                     ->  (3, 64, 2): special tokens are recognised in any text
    codec.encode_untrusted("[INST] a <|im_end|>", PAPER)    ->  (58, 40, 45, ...): letters, like any other text
    codec.with_bos((3, 64, 2))                              ->  (1, 3, 64, 2); with_bos((1, 3, 64, 2)) likewise
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate, chain, groupby, takewhile
from math import ceil, inf
from pathlib import Path

from tokenizers import Tokenizer

from mem1.errors import UserError
from mem1.hub import not_here
from mem1.protocol import Tags
from mem1.records import Span, Task
from mem1.sanitize import CONTROL_TOKENS, break_tokens, breakable

_SHORTEST_END = 24
"""Tokens of an end that is looked through at least."""
_NOWHERE = "(?!)"
"""A pattern that matches nothing."""
_NO_LETTER = "\ufffd"
"""Written by decoders for an incomplete character."""


def most_tokens(stops: Sequence[str]) -> int:
    """Tokens at the end of a text in which a stop string lies that it ends with, even byte by byte."""
    return max(_SHORTEST_END, *(len(stop.encode()) for stop in stops), 0)


class Codec:
    """Encodes prompts and observations, decodes completions, and finds spans of text in tokens."""

    def __init__(self, tokenizer: Tokenizer, *, rows: int | None = None) -> None:
        """`rows`: tokens that the model knows, the padding of its vocabulary included; None: not known."""
        self.tokenizer, self.rows = tokenizer, rows
        self._of_tags: dict[Tags, tuple[Mapping[str, Sequence[int]], re.Pattern[str]]] = {}
        self._lengths = _Lookup(self._length)
        self._added_lengths = _Lookup(self._added_length)

    @classmethod
    def load(cls, folder: Path) -> Codec:
        """Load tokenizer.json from a model's folder. Raises UserError where it is missing or damaged."""
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise UserError(
                not_here(str(folder))
                or f"{path} does not exist; mem1 needs the fast tokenizer of the model (tokenizer.json)"
            )
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception for a damaged file
            raise UserError(f"{path} is not a readable tokenizer: {error}") from error
        tokenizer.no_truncation()  # a file may hold what its last user had set
        tokenizer.no_padding()
        return cls(tokenizer)

    def fingerprint(self) -> str:
        """BLAKE2 (hexadecimal) of the tokenizer."""
        return hashlib.blake2b(self.tokenizer.to_str().encode(), digest_size=16).hexdigest()

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of a text by itself."""
        return tuple(_encode(self.tokenizer, [text])[0])

    @cached_property
    def bos_ids(self) -> tuple[int, ...]:
        """Tokens that the tokenizer puts before every text; may be empty."""
        return tuple(takewhile(lambda token: token not in self._letter, self.tokenizer.encode("a").ids))

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """Tokens that the tokenizer puts after every text, which no context has; mostly empty."""
        backwards = reversed(self.tokenizer.encode("a").ids if self._letter else ())
        return tuple(takewhile(lambda token: token not in self._letter, backwards))[::-1]

    @cached_property
    def _letter(self) -> tuple[int, ...]:
        return self.encode("a")

    def with_bos(self, ids: Sequence[int]) -> tuple[int, ...]:
        """A context, or its head, that begins with what the tokenizer puts before every text, once."""
        return self.bos_ids + self.without_bos(ids)

    def without_bos(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The same for whoever puts it there itself: a server that gets the text, or a template."""
        begun = bool(self.bos_ids) and tuple(ids[: len(self.bos_ids)]) == self.bos_ids
        return tuple(ids[len(self.bos_ids) :] if begun else ids)

    def without_added(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Tokens of a text as another program has encoded it, without what the tokenizer puts around every text."""
        inside = self.without_bos(ids)
        ended = bool(self.eos_ids) and inside[-len(self.eos_ids) :] == self.eos_ids
        return inside[: -len(self.eos_ids)] if ended else inside

    def within(self, ids: Sequence[int]) -> bool:
        """Whether the model knows these tokens. Those beyond the tokenizer's own decode to nothing."""
        return self.rows is None or max(ids, default=0) < self.rows

    def encode_untrusted(self, text: str, tags: Tags) -> tuple[int, ...]:
        """Tokens of a text that others may have written: the only special tokens that can result are those of `tags`.

        Where our tags are single tokens, the text is cut at them; everything else is encoded as ordinary text.
        """
        return self.encode_each_untrusted([text], tags)[0]

    def encode_each_untrusted(self, texts: Sequence[str], tags: Tags) -> list[tuple[int, ...]]:
        """`encode_untrusted` of each text; parts between tags that recur, such as a hint, are encoded once."""
        own, borders = self._own_tags(tags)
        parts = [[part for part in borders.split(text) if part] for text in texts]
        plain = [part for part in dict.fromkeys(chain.from_iterable(parts)) if part not in own]
        # a vocabulary that contains a special token can still produce it from letters: it is removed
        encoded = map(self._without_special, _encode(self._plain, plain))
        ids = {**own, **dict(zip(plain, encoded, strict=True))}
        return [tuple(chain.from_iterable(map(ids.__getitem__, of_text))) for of_text in parts]

    def _without_special(self, ids: list[int]) -> list[int]:
        return ids if self._never.isdisjoint(ids) else [i for i in ids if i not in self._never]

    def _own_tags(self, tags: Tags) -> tuple[Mapping[str, Sequence[int]], re.Pattern[str]]:
        """The tags that are single tokens, and a pattern that finds them in a text."""
        if tags not in self._of_tags:
            own = {tag: (self.added_tokens[tag],) for tag in tags.special_tokens if tag in self.added_tokens}
            self._of_tags[tags] = own, re.compile(f"({_one_of(own) or _NOWHERE})")
        return self._of_tags[tags]

    @cached_property
    def added_tokens(self) -> Mapping[str, int]:
        """Tokens added to the model's own, special or not -> id."""
        return {token.content: i for i, token in self.tokenizer.get_added_tokens_decoder().items()}

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """Those of `added_tokens` that are no text."""
        return tuple(token.content for token in self.tokenizer.get_added_tokens_decoder().values() if token.special)

    @cached_property
    def _plain(self) -> Tokenizer:
        """A copy of the tokenizer that recognises no special token in text."""
        plain = Tokenizer.from_str(self.tokenizer.to_str())
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def _never(self) -> frozenset[int]:
        """Ids that ordinary text must not contain: every special token except the one for unknown text."""
        special = {i for i, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        return frozenset(special - {self.unknown_id})

    @cached_property
    def unknown_id(self) -> int | None:
        """Id of the token for unknown text; None: the tokenizer can encode any text."""
        model = json.loads(self.tokenizer.to_str())["model"]
        return model.get("unk_id", self.tokenizer.token_to_id(model.get("unk_token") or ""))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, tags included."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def meets(self, ids: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether these tokens end with a stop string."""
        tail = self.decode(ids[-most_tokens(stops) :])
        return any(stop in tail for stop in stops)

    def text_for_server(self, ids: Sequence[int], *, whole: bool = False) -> str:
        """The text of a context for a server that recognises special tokens in text.

        Special tokens of the context are kept, but for what the server's tokenizer puts before every text itself. Text
        that only looks like one, of this tokenizer or well-known models, came from a document or a prompt, and is
        broken up (`break_tokens`).

        whole       with that, for a server that is told to put nothing there
        """
        ids = tuple(ids) if whole else self.without_bos(ids)
        text = self.decode(ids)
        if break_tokens(text, self.breakable) == text:
            return text
        own = set(self.added_tokens.values())
        parts: list[str] = []
        begun = done = 0  # characters of the text, tokens
        for place in (*(i for i, token in enumerate(ids) if token in own), len(ids)):
            if place > done:
                end = len(self.decode(ids[:place]))
                parts.append(break_tokens(text[begun:end], self.breakable))
                begun = end
            end = len(self.decode(ids[: place + 1]))
            parts.append(text[begun:end])
            begun, done = end, place + 1
        return "".join(parts)

    @cached_property
    def breakable(self) -> tuple[str, ...]:
        """Texts that must not stand in text for a server, or around which a template writes."""
        added = self.tokenizer.get_added_tokens_decoder().values()
        return (*CONTROL_TOKENS, *breakable((token.content, token.special) for token in added))

    def single_tokens(self, texts: Sequence[str]) -> tuple[int, ...] | None:
        """Token id of each text if every one is a single token, else None."""
        encoded = [self.encode(text) for text in texts]
        return tuple(ids[0] for ids in encoded) if all(len(ids) == 1 for ids in encoded) else None

    def token_spans(self, ids: Sequence[int], text: str, spans: Mapping[str, Span]) -> dict[str, Span]:
        """Character ranges of the text, which is `decode(ids)`, as token ranges; a token on a border is in both.

        A range starts after the largest number of leading tokens whose text does not extend past its start, and ends
        with the smallest number whose text reaches its end (ignoring separating blanks).
        """
        reach = self._reach_by_sums(ids, len(text)) or _Prefixes(self, ids, len(text)).reach
        return {role: (reach(a + 1) - 1, min(reach(b), len(ids))) for role, (a, b) in spans.items()}

    def _reach_by_sums(self, ids: Sequence[int], length: int) -> Callable[[int], int] | None:
        """`_Prefixes.reach` where each token always adds the same length; None where lengths do not add up."""
        first = map(self._lengths.__getitem__, ids[:1])  # a blank before it may be left out
        lengths = [0, *accumulate(chain(first, map(self._added_lengths.__getitem__, ids[1:])))]
        return partial(bisect_left, lengths) if lengths[-1] == length else None

    def _length(self, token: int) -> float:
        """Characters of a token by itself."""
        return len(self.decode((token,)))

    def _added_length(self, token: int) -> float:
        """Number of characters that a token adds to a text before it.

        Infinity for a token that begins or ends within a letter: its length depends on its neighbours.
        """
        once, twice = self.decode((token,)), self.decode((token, token))
        return inf if _NO_LETTER in once else len(twice) - len(once)


class _Lookup(dict[int, float]):
    """Cache of a function of tokens."""

    def __init__(self, function: Callable[[int], float]) -> None:
        self.function = function

    def __missing__(self, token: int) -> float:
        return self.setdefault(token, self.function(token))


class _Prefixes:
    """The lengths of the texts of the first n tokens, in characters, each computed when needed."""

    def __init__(self, codec: Codec, ids: Sequence[int], length: int) -> None:
        self.codec, self.ids = codec, ids
        self.lengths = {0: 0, len(ids): length}

    def reach(self, chars: int) -> int:
        """Smallest number of leading tokens whose text has `chars` characters; one more than all tokens if none has.

        The search starts where it would be if all tokens were equally long, which is close: it needs few decodings.
        """
        lengths = self.lengths
        low = max((tokens for tokens, length in lengths.items() if length < chars), default=-1)
        high = min((tokens for tokens, length in lengths.items() if length >= chars), default=len(self.ids) + 1)
        while high - low > 1:
            share = (chars - lengths[low]) / (lengths[high] - lengths[low])
            guess = min(max(low + ceil(share * (high - low)), low + 1), high - 1)
            lengths[guess] = len(self.codec.decode(self.ids[:guess]))
            low, high = (low, guess) if lengths[guess] >= chars else (guess, high)
        return high


def _one_of(texts: Iterable[str]) -> str:
    """A pattern of these texts, by their first characters: of alternatives that begin alike all would be tried."""
    by_first = groupby(sorted(texts), key=lambda text: text[0])
    return "|".join(f"{re.escape(first)}(?:{'|'.join(re.escape(t[1:]) for t in some)})" for first, some in by_first)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    # "fast": without the offsets of the tokens in the text, which are not needed
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


log = logging.getLogger(__name__)
SAMPLE = 8
"""Number of tasks that are checked."""
REFUSED = 0.2
"""Share of unknown tokens from which the tokenizer is refused."""
NAMED = 0.01
"""Share of unknown tokens from which a warning is logged."""


def check_words(
    codec: Codec, tasks: Sequence[Task], tags: Tags, *, whose: str, results: Callable[[], Sequence[str]] = tuple
) -> None:
    """Measure the share of unknown tokens in a sample of questions, of prompts and of what the environment replies.

    Raises UserError if it is REFUSED or more in questions or prompts, and warns from NAMED on. A tokenizer with a token
    for unknown words may know none of them: its policy reads [UNK] in place of every word.

    whose       owner of the tokenizer, for the message
    results     returns texts of the environment (`TasksConfig.results`)
    """
    if codec.unknown_id is None:
        return
    sample = tasks[:SAMPLE]
    asked = unknown_share(codec, [question.text for task in sample for question in task.questions], tags)
    prompted = unknown_share(codec, [task.prompt for task in sample], tags)
    if asked >= REFUSED:
        raise UserError(
            f"{asked:.0%} of the tokens of the questions are unknown to the tokenizer of {whose}, so it cannot read "
            "them; give a model with a tokenizer for any text (--model FOLDER, or model.path in a recipe), train one "
            'with its own tokenizer (model.new.tokenizer = "bpe"), or use engine.kind=script with --tokenizer stand-in'
        )
    if prompted >= REFUSED:
        raise UserError(
            f"{prompted:.0%} of the tokens of the prompt are unknown to the tokenizer of {whose}: it knows the words "
            "of the questions, not the language of the instructions around them. Set tasks.prompt=plain, the questions "
            "alone, or a prompt in its own words"
        )
    for share, what in (asked, "questions"), (prompted, "prompt"), (unknown_share(codec, results(), tags), "results"):
        if share >= NAMED:
            log.warning("%s", unknown_words(share, what, whose))


def unknown_words(share: float, what: str, whose: str) -> str:
    """The finding in words, with what helps."""
    hint = "; tasks.style=bare shows passages without their headings" if what == "results" else ""
    return (
        f"{share:.0%} of the tokens of the {what} are unknown to the tokenizer of {whose}, which reads [UNK] in their "
        f"place{hint}"
    )


def unknown_share(codec: Codec, texts: Sequence[str], tags: Tags) -> float:
    """Share of the tokens of these texts that are the one for unknown text."""
    ids = [token for of_text in codec.encode_each_untrusted(texts, tags) for token in of_text]
    return ids.count(codec.unknown_id) / len(ids) if ids and codec.unknown_id is not None else 0.0
