"""Tokenizers for new policies: whole words for Atlas and for the invented shop, byte-level BPE for any other text.

In all of them, every tag of the protocol and both hint brackets are single added tokens. `token_kinds` groups the
tokens of a vocabulary by how they look, for the copying heads of `model.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mem1.engines.codec import Codec
from mem1.envs.webshop.invented import shop_words
from mem1.memory.notes import NOTES
from mem1.memory.recall import NOTHING
from mem1.protocol import RECALL, Tags
from mem1.tasks.atlas.world import FIRST_WORDS, LAST_WORDS, POSSESSIVE, question_words
from mem1.tasks.cloze.expert import FOUND
from mem1.tasks.cloze.questions import BLANK
from mem1.tasks.prompts import LABELS, TurnLimit

MAX_NUMBER = 129
"""Largest number of turns with a token of its own, with LABELS questions or fewer."""
UNKNOWN = "[UNK]"
PAD = "[PAD]"
_REPLY_WORDS = ("No", "passage", "was", "found")
_HINT_WORDS = ("You", "have", "turn", "turns", "left", "must", "answer", "now")
_RECALL_WORDS = tuple(re.findall(r"\w+|[^\w\s]", f"Turn, note: {NOTHING}"))
_SHOP_WORDS = (
    *("you", "have", "turn", "turns", "left", "must", "answer", "finish", "now"),
    *("q", "page", "total", "results", "next", "prev", "back", "search", "buy", "now", "bought", "of", "click"),
    *("description", "features", "reviews", "attributes", "price", "rating", "n"),
    *("goal", "want", "below", "tried", "misses", "try", "check", "need", "read", "take", "choose", "done"),
)
"""Words of hints, of the shop's pages and of the states that its expert writes."""


def words_of(kind: Literal["atlas", "shop"], tags: Tags, labels: int = LABELS) -> Tokenizer:
    """The tokenizer of a world with a fixed number of words (model.new.tokenizer, model.new.labels)."""
    return atlas_tokenizer(tags, labels) if kind == "atlas" else shop_tokenizer(tags)


def atlas_tokenizer(tags: Tags, labels: int = LABELS) -> Tokenizer:
    """One token per word of Atlas: first and last words of names, relations, labels, numbers, tags.

    labels      questions of the largest task
    """
    words = [
        *question_words(),
        *_HINT_WORDS,
        *_REPLY_WORDS,
        *("done", "unknown", "then", "last"),
        *([NOTES] if tags.note else []),
        *(_RECALL_WORDS if RECALL in tags.action_tags else []),
        *(f"Q{i}" for i in range(1, labels + 1)),
        *(str(i) for i in range(max(MAX_NUMBER, TurnLimit().turns(labels)) + 1)),
        *FIRST_WORDS,
        *LAST_WORDS,
    ]
    return _word_tokenizer(words, tags, pre_tokenizers.Whitespace(), added=[POSSESSIVE])


def shop_tokenizer(tags: Tags) -> Tokenizer:
    """One token per word of the invented shop, in lower case; two digits per token: "BALIS17 $24.49" is
    balis 17 $ 24 . 49."""
    words = [
        *shop_words(),
        *_SHOP_WORDS,
        *(str(i) for i in range(100)),
        *(f"0{i}" for i in range(10)),
        *".,:;!?$()[]<>|/\"-+'",
    ]
    pieces = pre_tokenizers.Split(Regex(r"[a-z]+|\d{1,2}|[^\sa-z\d]"), behavior="isolated")
    tokenizer = _word_tokenizer(words, tags, pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pieces]))
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


def _word_tokenizer(
    words: Iterable[str], tags: Tags, splitter: pre_tokenizers.PreTokenizer, *, added: Sequence[str] = ()
) -> Tokenizer:
    vocabulary = {word: i for i, word in enumerate([PAD, UNKNOWN, *dict.fromkeys(words)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = splitter
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in added])
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in (PAD, UNKNOWN, *tags.special_tokens)])
    return tokenizer


def bpe_tokenizer(texts: Iterable[str], *, vocab_size: int, tags: Tags, marks: Sequence[str] = ()) -> Tokenizer:
    """Byte-level BPE trained on `texts`; any text can be encoded and decoded without loss.

    `marks` are strings of prompts and states that get tokens of their own, as the tags do. `vocab_size` counts the 256
    bytes, the tags and the marks; 256 plus the number of tags gives a plain byte tokenizer.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(t, normalized=False) for t in (PAD, *tags.special_tokens)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(marks),
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(mark, normalized=False) for mark in marks])
    return tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenKinds:
    """Kinds of the tokens of one vocabulary."""

    kind: tuple[int, ...] = ()
    """Kind of each token, from 0: how its text begins. Empty: all tokens are of one kind."""
    found: int | None = None
    """The mark that is followed by what a passage has after the words before the mark; None: there is no such token."""
    blank: tuple[int, ...] = ()
    """Tokens that never follow that mark."""


ALIKE = TokenKinds()
"""All tokens are of one kind."""


def token_kinds(codec: Codec) -> TokenKinds:
    """Kinds of all tokens, and the marks that are one token in the vocabulary."""
    found, *blank = (codec.single_tokens([mark]) for mark in (f" {FOUND}", BLANK, f" {BLANK}"))
    return TokenKinds(
        kind=tuple(_kind(codec.decode([token])) for token in range(codec.vocab_size)),
        found=found[0] if found else None,
        blank=tuple(token for tokens in blank for token in tokens or ()),
    )


def _kind(text: str) -> int:
    """Kind by the first letter and by a space before it: "Oslo", " Oslo", "oslo", "1901" and "," differ."""
    first = text.strip()[:1]
    if not first:
        kind = 0
    elif first.isalpha():
        kind = 1 if first.isupper() else 2
    else:
        kind = 3 if first.isdigit() else 4
    return 2 * kind + text.startswith(" ")
