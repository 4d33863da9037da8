"""What a probe compares: memories of other packages, each with the same model as ours, and that model.

langchain   SummarizationMiddleware of langchain: a summary in the place of old messages, from a number of tokens on
openai      ToolOutputTrimmer of openai-agents: previews in the place of old results
module:f    a function of your own, from a list of OpenAI chat messages to a shorter one

States, summaries and notes are written by a model behind a server, or by a stand-in without one. The stand-in is no
language model. It copies sentences, the newest as far as the words allow, and skips lines of logs. So it shows what a
form of memory costs and keeps, with the same careful writer for every one; how well a language model writes is measured
with a language model.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from mem1.errors import UserError, suggestion
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
_LANGCHAIN = "Messages to summarize:"
"""Behind this, LangChain's request has the conversation; before it, instructions."""


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
                sentences |= dict.fromkeys(_SENTENCE.findall(text.partition(_LANGCHAIN)[2] or text))
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


OTHERS = ("langchain", "openai")
_SUMMARISE_FROM = 4_000
"""Tokens from which LangChain's middleware summarises."""


def compactor_of(name: str, write: Write | None, bounds: Bounds) -> Compactor:
    """The memory of this name. Raises UserError for an unknown one, and where its package is not installed."""
    if name == "langchain":
        return Replacing("langchain summarization", _langchain(write))
    if name == "openai":
        return Replacing("openai-agents trimmer", _openai())
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


def _langchain(write: Write | None) -> Any:
    try:
        from langchain.agents.middleware import SummarizationMiddleware
        from langchain_core.language_models import SimpleChatModel
        from langchain_core.messages import RemoveMessage, convert_to_messages, convert_to_openai_messages
    except ImportError as error:
        raise UserError(f"langchain is not installed ({error}); pip install langchain") from error
    if write is None:
        raise UserError("langchain needs a model that writes summaries")

    class Writer(SimpleChatModel):
        """The probe's model, as LangChain calls one."""

        @property
        def _llm_type(self) -> str:
            return "probe"

        def _call(self, messages: list[Any], *arguments: Any, **settings: Any) -> str:
            return write(convert_to_openai_messages(messages))  # type: ignore[arg-type]

    middleware = SummarizationMiddleware(Writer(), trigger=("tokens", _SUMMARISE_FROM), keep=("messages", 4))

    def shorten(history: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        messages = convert_to_messages([dict(message) for message in history])
        changed = middleware.before_model({"messages": messages}, None)  # type: ignore[arg-type, typeddict-item]
        if changed is None:
            return history
        left = [message for message in changed["messages"] if not isinstance(message, RemoveMessage)]
        return convert_to_openai_messages(left)  # type: ignore[return-value]

    return shorten


def _openai() -> Any:
    try:
        from agents.extensions import ToolOutputTrimmer
        from agents.run_config import CallModelData, ModelInputData
    except ImportError as error:
        raise UserError(f"openai-agents is not installed ({error}); pip install openai-agents") from error
    trimmer = ToolOutputTrimmer()

    def shorten(history: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        items = _items(history)
        data = CallModelData(model_data=ModelInputData(input=items, instructions=None), agent=None, context=None)  # type: ignore[arg-type]
        outputs = {item["call_id"]: item["output"] for item in trimmer(data).input if "output" in item}  # type: ignore[typeddict-item, index]
        return [
            {**message, "content": outputs[message["tool_call_id"]]} if message["role"] == "tool" else message
            for message in history
        ]

    return shorten


def _items(history: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Chat messages as items of the Responses API."""
    items: list[Any] = []
    for message in history:
        if message["role"] == "tool":
            items.append(
                {"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]}
            )
            continue
        if message.get("content"):
            items.append({"role": message["role"], "content": message["content"]})
        for call in message.get("tool_calls") or ():
            items.append({"type": "function_call", "call_id": call["id"], **call["function"]})
    return items
