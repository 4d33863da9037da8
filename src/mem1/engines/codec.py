"""Text to tokens and back, exactly: what the sampler wrote is never encoded again.

`Codec` wraps a fast tokenizer (the `tokenizers` library, so that no model library is loaded). Text from the
environment is encoded once and by itself, without beginning-of-sequence tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from mem1.errors import UserError
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
