"""Tokens that a prompt has besides its text: under [chat] the model's template writes schemas of tools around it.

framing(recipe of a folder with Qwen2.5's tokenizer, vocabulary "paper")    ->  what the template writes, counted
framing(recipe of a model that is not at hand)                              ->  188, from the length of the schemas
framing(recipe without [chat], or with chat.calls = "tags")                 ->  0
"""

from __future__ import annotations

import json
from contextlib import suppress
from functools import lru_cache

from mem1.dialogue import offered
from mem1.engines.chat_config import Chat
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.policy.folders import SHIPPED, policy_folder
from mem1.protocol import Tags, vocabulary
from mem1.recipe.recipe import Recipe

EXPLANATION = 525
"""Characters that the template of Qwen2.5 writes around the schemas and the user's message."""
CHARACTERS_PER_TOKEN = 4
"""Of such English and JSON."""


def framing(config: Recipe) -> int:
    """Tokens around the text of a prompt. Tools that an environment or an agent brings along are not known here."""
    if config.chat is None or config.chat.calls == "tags":
        return 0
    return _framing(config.model.path or SHIPPED, config.chat.model_dump_json(), vocabulary(config.vocabulary))


@lru_cache(maxsize=16)  # advice plans a recipe many times
def _framing(model: str, chat: str, tags: Tags) -> int:
    folder, tools = policy_folder(model), offered(tags)
    with suppress(UserError):  # the folder is not there yet; what is wrong with one is told by a dry run
        messages = Chat.model_validate_json(chat).messages(folder, Codec.load(folder), tags)
        return len(messages.encode([{"role": "user", "content": ""}], tools))
    return round((EXPLANATION + sum(len(json.dumps(tool)) for tool in tools)) / CHARACTERS_PER_TOKEN)
