"""`[chat]` of a recipe: the model speaks its own protocol, in messages and calls of tools.

[chat]
calls = "hermes"                        how it writes calls: see mem1.engines.tool_calls
thoughts = "drop"                       whether later contexts hold what it thought
template = { enable_thinking = false }  variables of its chat template
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mem1.configuration import Config
from mem1.engines.tool_calls import call_format
from mem1.errors import UserError
from mem1.protocol import PAPER, Tags

if TYPE_CHECKING:
    from mem1.engines.chat_messages import ChatMessages
    from mem1.engines.codec import Codec


class Chat(Config):
    """How messages and tool calls are written."""

    calls: Annotated[str, AfterValidator(lambda name: call_format(name, PAPER) and name)] = "hermes"
    """hermes: JSON in <tool_call>, with the model's chat template (Qwen2.5, Qwen3 and others). tags: the actions of the
    recipe's vocabulary, without a template. Or a registered name, or package.module:Name."""
    thoughts: Literal["drop", "keep"] = "drop"
    """Whether later contexts keep <think> blocks. They are trained either way."""
    template: dict[str, bool | int | float | str] = Field(default_factory=dict)
    """Variables of the chat template, such as enable_thinking."""

    def messages(self, source: Path | Any, codec: Codec, tags: Tags, *, where: str = "") -> ChatMessages:
        """For the model in a folder, or with a transformers tokenizer that comes from `where`; None: it has none.

        Raises UserError where its template cannot be used.
        """
        from mem1.engines.chat_messages import ChatMessages
        from mem1.engines.chat_template import template_tokenizer

        if self.calls == "tags":
            return ChatMessages.in_tags(codec, tags)
        if source is None:
            raise UserError(f"the model has no folder with a chat template for chat.calls = {self.calls!r}")
        tokenizer, where = (template_tokenizer(source), str(source)) if isinstance(source, Path) else (source, where)
        calls = call_format(self.calls, tags)
        return ChatMessages.of(
            tokenizer, codec, where=where, calls=calls, thoughts=self.thoughts, options=self.template
        )
