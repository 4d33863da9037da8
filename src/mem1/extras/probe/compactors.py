"""What a probe compares, and the model that writes for all of it.

fold(8)     a memory of ours
langchain   one of another package (`mem1.extras.probe.packages`)
module:f    a function of your own, from a list of OpenAI chat messages to a shorter one

States, summaries and notes are written by a model behind a server, or by a stand-in without one. The stand-in is no
language model. It copies sentences, the newest as far as the words allow, and skips lines of logs. So it shows what a
form of memory costs and keeps, with the same careful writer for every one; how well a language model writes is measured
with a language model.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mem1.errors import UserError, suggestion
from mem1.extras.probe.packages import OTHERS, conversation_in
from mem1.extras.probe.probing import NOTE_WISH, Compactor, Ours, Replacing, Write
from mem1.memory import STATE, memory_policy
from mem1.memory.policies import POLICIES
from mem1.messages import Bounds
from mem1.messages.transcript import ASK, Message, texts
from mem1.net.exchange import TryFailed, exchange, read_json, read_key
from mem1.net.failover import Retry, is_http
from mem1.protocol import NOTE, SUMMARY
from mem1.registry import load

_SENTENCE = re.compile(r"^(?:- |Human: |AI: |Tool: )?([A-Z][^.!?\n]*(?:\.[^\s.][^.!?\n]*)*[.!?])", re.MULTILINE)
_WORDS = re.compile(r"at most (\d+) words")


def stand_in(words: int) -> Write:
    """A writer that copies sentences, each once and in order; the newest ones, as far as the words allow.

    `words`: for a request that names no number of words itself.
    """

    def write(messages: list[Mapping[str, Any]]) -> str:
        allowed = _WORDS.search(texts(messages[-1].get("content")))
        left = int(allowed[1]) if allowed else words
        sentences: dict[str, None] = {}
        for message in messages:
            text = texts(message.get("content"))
            if message.get("role") != "system" and not text.startswith((ASK, NOTE_WISH)):
                sentences |= dict.fromkeys(_SENTENCE.findall(conversation_in(text)))
        kept: list[str] = []
        for sentence in reversed(sentences):
            left -= len(sentence.split())
            if left < 0:
                break
            kept.append(sentence)
        return "\n".join(reversed(kept)) or "Nothing yet."

    return write


def served(base_url: str, model: str, timeout_s: float = 300.0) -> Write:
    """A model behind a chat server, at temperature 0; the key is OPENAI_API_KEY. Raises UserError if it fails."""
    import httpx

    if not is_http(base_url):
        raise UserError(f"--base-url {base_url!r}: give an address such as http://127.0.0.1:8000/v1")
    key = read_key("OPENAI_API_KEY")
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    client = httpx.Client(headers=headers, timeout=timeout_s)
    retry, address = Retry(), f"{base_url.rstrip('/')}/chat/completions"

    def write(messages: list[Mapping[str, Any]]) -> str:
        body = json.dumps({"model": model, "messages": messages, "temperature": 0}).encode()
        try:
            reply = retry(lambda: exchange(client, address, body, timeout_s=timeout_s, now=time.monotonic))
            text = read_json(reply)["choices"][0]["message"]["content"]
        except TryFailed as error:
            raise UserError(f"{base_url}: {error}; is it a chat server with the model {model!r}?") from error
        except (ValueError, LookupError, TypeError) as error:
            raise UserError(f"{base_url} does not answer with chat completions; check --base-url") from error
        return text if isinstance(text, str) else ""

    return write


def compactor_of(name: str, write: Write | None, bounds: Bounds) -> Compactor:
    """The memory of this name. Raises UserError for an unknown one, and where its package is not installed."""
    if name in OTHERS:
        return OTHERS[name](write)
    if ":" in name and "(" not in name:
        thing = load(name)
        if callable(thing) and not hasattr(thing, "select"):
            return Replacing(name, cast("Callable[[list[Message]], Sequence[Message]]", thing))
    if name.partition("(")[0] not in POLICIES and ":" not in name:
        known = (*POLICIES, *OTHERS)
        raise UserError(
            f"unknown memory {name!r}{suggestion(name, known)}; known: {', '.join(known)}, or package.module:function"
        )
    ours = Ours(name, write, bounds)
    if write is None and memory_policy(name).asks & {STATE, NOTE, SUMMARY}:
        raise UserError(f"{name} needs a model that writes states")
    return ours
