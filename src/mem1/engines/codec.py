"""Text to tokens and back, exactly: what the sampler wrote is never encoded again.

`Codec` wraps a fast tokenizer (the `tokenizers` library, so that no model library is loaded). Text from the
environment is encoded once and by itself, without beginning-of-sequence tokens.

    codec.encode("[INST] a <|im_end|>")                     ->  (3, 64, 2): its special tokens are read in any text
    codec.encode_untrusted("[INST] a <|im_end|>", PAPER)    ->  (58, 40, 45, ...): letters, as all other text
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from mem1.errors import UserError
from mem1.protocol import Tags
from mem1.records import Span


class Codec:
    """Encodes prompts and observations, decodes completions, and finds spans of text in tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path) -> Codec:
        """The tokenizer.json of a model's folder. Raises UserError where there is none or it is damaged."""
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise UserError(f"{path} does not exist; mem1 needs the fast tokenizer of the model (tokenizer.json)")
        try:
            return cls(Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises plain Exception for a damaged file
            raise UserError(f"{path} is not a readable tokenizer: {error}") from error

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> tuple[int, ...]:
        """Tokens of a text by itself."""
        return tuple(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_untrusted(self, text: str, tags: Tags) -> tuple[int, ...]:
        """Tokens of a text that others had a part in: of all special tokens, only those of `tags` can arise.

        Where our tags are tokens of their own, the text is cut at them; all else is encoded as ordinary text.
        """
        own = self._own_ids(tags)
        ids: list[int] = []
        for part in re.split(f"({'|'.join(map(re.escape, own))})", text) if own else [text]:
            ids += [own[part]] if part in own else self._plain_ids(part)
        return tuple(ids)

    def _own_ids(self, tags: Tags) -> Mapping[str, int]:
        """The tags that are tokens of their own."""
        added = self._added
        return {tag: added[tag] for tag in tags.special_tokens if tag in added}

    def _plain_ids(self, text: str) -> list[int]:
        # a model whose own vocabulary holds a special token can still produce it from letters: it is left out
        ids = self._plain.encode(text, add_special_tokens=False).ids if text else []
        return [i for i in ids if i not in self._never]

    @cached_property
    def _added(self) -> Mapping[str, int]:
        """Tokens that were added to the model's own, special or not -> id."""
        return {token.content: i for i, token in self.tokenizer.get_added_tokens_decoder().items()}

    @cached_property
    def _plain(self) -> Tokenizer:
        """A copy of the tokenizer that reads no special token in text."""
        plain = Tokenizer.from_str(self.tokenizer.to_str())
        plain.encode_special_tokens = True
        return plain

    @cached_property
    def _never(self) -> frozenset[int]:
        """Ids that ordinary text must not have: every special token but the one for what is unknown."""
        special = {i for i, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        model = json.loads(self.tokenizer.to_str())["model"]
        unknown = model.get("unk_id", self.tokenizer.token_to_id(model.get("unk_token") or ""))
        return frozenset(special - {unknown})

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, tags included."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=False)

    def single_tokens(self, texts: Sequence[str]) -> tuple[int, ...] | None:
        """Token id of each text if every one is a single token, else None."""
        encoded = [self.encode(text) for text in texts]
        return tuple(ids[0] for ids in encoded) if all(len(ids) == 1 for ids in encoded) else None

    def token_spans(self, ids: Sequence[int], spans: Mapping[str, Span]) -> dict[str, Span]:
        """Character ranges of `decode(ids)` as token ranges; a token that straddles a border belongs to both."""
        return {role: (self._tokens_before(ids, a), self._tokens_until(ids, b)) for role, (a, b) in spans.items()}

    def _tokens_before(self, ids: Sequence[int], char: int) -> int:
        """The largest number of leading tokens whose text does not go past `char` (separating blanks aside)."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high + 1) // 2
            if len(self.decode(ids[:middle])) <= char:
                low = middle
            else:
                high = middle - 1
        return low

    def _tokens_until(self, ids: Sequence[int], char: int) -> int:
        """The smallest number of leading tokens whose text reaches `char`."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            if len(self.decode(ids[:middle])) >= char:
                high = middle
            else:
                low = middle + 1
        return low
