"""Writes the turns of an attempt in tokens: in tags, or in the model's own messages and tool calls."""

from mem1.dialogue.base import Dialogue, Shown, turn_of
from mem1.dialogue.native import NativeDialogue, offered
from mem1.dialogue.tagged import TagDialogue

__all__ = ["Dialogue", "NativeDialogue", "Shown", "TagDialogue", "offered", "turn_of"]
