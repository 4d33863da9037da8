"""The dialogue of a recipe with a model whose tokenizer is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mem1.dialogue.base import Dialogue
from mem1.dialogue.native import NativeDialogue
from mem1.dialogue.tagged import TagDialogue
from mem1.engines.chat_config import Chat
from mem1.engines.chat_template import ChatTemplate
from mem1.engines.codec import Codec
from mem1.protocol import Tags


def open_dialogue(
    codec: Codec, tags: Tags, *, chat: Chat | None, framed: bool, source: Path | Any, where: str = ""
) -> Dialogue:
    """In the model's own protocol, or in tags.

    chat        the recipe's [chat]; None: tags
    framed      the recipe's model.chat_template: tags in a chat template
    source      the model's folder, or its transformers tokenizer, which comes from `where`

    Raises UserError where the template is missing or cannot be used.
    """
    if chat is not None:
        return NativeDialogue(chat.messages(source, codec, tags, where=where), tags)
    if not framed:
        return TagDialogue(codec, tags)
    template = ChatTemplate.load(source, codec) if isinstance(source, Path) else None
    return TagDialogue(codec, tags, template or ChatTemplate.of(source, codec, where=where))
