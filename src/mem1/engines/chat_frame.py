r"""The tokens that a model's chat template puts around what the user says, for models that were trained on chats.

    ChatFrame.load(folder, codec)    before: <|im_start|>user\n    after: <|im_end|>\n<|im_start|>assistant\n

The prompt is then what the user says, and everything after it (states, queries, results) the reply that the model goes
on with: so MEM1's released checkpoint was trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.engines.codec import Codec

_PLACE = "mem1-what-the-user-says"


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Token ids before and after a prompt."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    def around(self, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt in its frame."""
        return self.before + prompt_ids + self.after

    @classmethod
    def load(cls, folder: Path, codec: Codec) -> ChatFrame:
        """That of the chat template in a model's folder. Raises UserError where there is none, or it fails."""
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            text = tokenizer.apply_chat_template(
                [{"role": "user", "content": _PLACE}], tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # a template is a program: it can raise anything
            raise UserError(f"{folder} has no chat template that can be used: {error}") from error
        before, place, after = str(text).partition(_PLACE)
        if not place:
            raise UserError(f"the chat template in {folder} leaves out what the user says")
        return cls(codec.encode(before), codec.encode(after))
