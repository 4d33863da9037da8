r"""Chat messages as the tokens of one model, exactly: its own protocol, written by its chat template.

    chat = ChatMessages.of(tokenizer, codec, where="the model's folder")
    chat.encode([{"role": "user", "content": "Who is it?"}], tools)     the tokens of the model's first context
    chat.read("Oslo first.\n<tool_call>...</tool_call><|im_end|>")      Said(text="Oslo first.", calls=(Asked(...),))
    chat.encode([{"role": "user", ...}, Sampled(ids), {"role": "tool", "content": "Doc 1 ..."}], tools)

What the model sampled is never written again by the template, nor encoded again: a `Sampled` message stands in a later
context with the tokens that were sampled. The template writes what is around it, which is encoded once, as a server of
the model would encode it. Text of messages cannot form a special token: `mem1.sanitize.break_tokens`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple
from uuid import uuid4

from mem1.engines.chat_template import limited, why
from mem1.engines.codec import Codec
from mem1.engines.tool_calls import HERMES, CallFormat, Said, TagCalls
from mem1.errors import UserError
from mem1.protocol import Tags, tagged
from mem1.records import Span
from mem1.sanitize import break_tokens

Message = Mapping[str, Any]
"""In the form of OpenAI's chat completions."""
Write = Callable[[list[dict[str, Any]], list[dict[str, Any]], bool], str]
"""Text of messages with these tools; True: followed by the head of the model's next message. May raise anything."""
Thoughts = Literal["drop", "keep"]
_LIMIT_S = 5.0
_TIMES = 20
"""How many times longer than its messages a template's text may be, and 100,000 characters on top."""
_ROLES = {"developer": "system", "function": "tool"}


class Sampled(NamedTuple):
    """A message that the model wrote: the tokens of its completion, or what is kept of them."""

    ids: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class ChatMessages:
    """One model's way of writing messages."""

    codec: Codec
    write: Write
    calls: CallFormat
    end: str = ""
    """Text that the template puts after a message of the model; it ends a completion. May be empty."""
    other_ends: tuple[str, ...] = ()
    """Further special tokens, at some of which the model ends."""
    opened: str = ""
    """Text that the template puts between the head of the model's next message and the completion: "<think>\\n"."""
    thoughts: Thoughts = "drop"
    """Whether the thoughts of earlier messages stay in later contexts."""
    where: str = "the chat template"
    """For messages."""
    name: str = ""
    """Tells it from others, in records."""

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        codec: Codec,
        *,
        where: str,
        calls: CallFormat = HERMES,
        thoughts: Thoughts = "drop",
        options: Mapping[str, Any] | None = None,
    ) -> ChatMessages:
        """The protocol of the model with this transformers tokenizer, which comes from `where`.

        options     further variables of the template, such as {"enable_thinking": False}

        Raises UserError where the template fails, or writes the model's messages in different ways.
        """

        def write(messages: list[dict[str, Any]], tools: list[dict[str, Any]], prompt: bool) -> str:
            return tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, add_generation_prompt=prompt, **(options or {})
            )

        ends = tuple(
            token
            for token in codec.special_tokens
            if token not in (*calls.own, *calls.stop_strings)
            and (not token.startswith("</") or token in (tokenizer.eos_token, tokenizer.pad_token))
        )
        where = f"the chat template in {where}"
        made = cls(codec=codec, write=write, calls=calls, other_ends=ends, thoughts=thoughts, where=where)
        end, opened = made._frame()
        name = f"messages, thoughts {thoughts}" + "".join(f", {key} {value}" for key, value in (options or {}).items())
        return replace(made, end=end, opened=opened, name=name)

    @classmethod
    def in_tags(cls, codec: Codec, tags: Tags) -> ChatMessages:
        """For a policy that speaks in tags and has no template: its actions are calls of tools."""

        def write(messages: list[dict[str, Any]], tools: list[dict[str, Any]], prompt: bool) -> str:
            del tools, prompt  # the prompt names the actions
            return "".join(_in_tags(message, tags) for message in messages)

        return cls(codec=codec, write=write, calls=TagCalls(tags), where=f"the tags {tags.name}", name="messages")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts after which a completion ends."""
        return (*((self.end,) if self.end else ()), *self.calls.stop_strings)

    @cached_property
    def shows_tools(self) -> bool:
        """Whether the model learns which tools it may call. Tags need no list: they are the calls."""
        return isinstance(self.calls, TagCalls) or self._written(_BEFORE, ()) != self._written(_BEFORE, (_TOOL,))

    def encode(
        self, messages: Sequence[Message | Sampled], tools: Sequence[Message] = (), *, opened: bool = True
    ) -> tuple[int, ...]:
        """The context in which the model writes its next message.

        opened      whether it ends with what the template puts before the completion

        Raises UserError where the template fails or leaves a sampled message out.
        """
        mark = uuid4().hex
        given = [
            {"role": "assistant", "content": f"{mark}{number:06d}"} if isinstance(message, Sampled) else message
            for number, message in enumerate(messages)
        ]
        text = self._written(given, tools)
        first, *rest = re.split(f"{mark}([0-9]{{6}})", text)
        if not rest:
            return self.codec.with_bos(self._end(first, opened))
        ids = list(self.codec.with_bos(self.codec.encode(first)))
        sampled = [(n, message.ids) for n, message in enumerate(messages) if isinstance(message, Sampled)]
        if [int(number) for number in rest[::2]] != [number for number, _ in sampled]:
            raise UserError(f"{self.where} leaves out or repeats what the model has said")
        for (number, said), after in zip(sampled, rest[1::2], strict=True):
            after = self._behind(said, after)
            ids += (*said, *(self._end(after, opened) if number == sampled[-1][0] else self.codec.encode(after)))
        return tuple(ids)

    def after(self, said: Sequence[int], messages: Sequence[Message], *, opened: bool = True) -> tuple[int, ...]:
        """Text that follows a completion in the next context: these messages, and the head of the model's next one.

        The messages are results of tools or of the user.
        """
        text = self._written([*_BEFORE, {"role": "assistant", "content": _PLACE}, *messages], ())
        return self._end(self._behind(said, text.partition(_PLACE)[2]), opened)

    def read(self, text: str) -> Said:
        """The parts of a completion, with its end. Never raises."""
        body = self.body(text)
        said = self.calls.read(body, self.opened)
        if self.thoughts == "drop" or "thought" not in said.spans:
            return said
        spans: dict[str, Span] = {role: span for role, span in said.spans.items() if role != "thought"}
        if said.calls or "action" not in spans:  # a kept thought belongs to the state
            stop = spans.get("action", (len(body), 0))[0]
            spans |= {"state": (0, stop), "state_text": (0, len(body[:stop].rstrip()))}
        return Said(text=said.text, thought=said.thought, calls=said.calls, spans=spans)

    def body(self, text: str) -> str:
        """A completion without the special token that ended it: the template's, or another end of the model's."""
        ends = (self.end, *self.other_ends)
        return next((text.removesuffix(end) for end in ends if end and text.endswith(end)), text)

    def kept(self, ids: tuple[int, ...]) -> Sampled:
        """The part of a completion that later contexts hold: all of it, or all but its thought."""
        opened = () if self.thoughts == "drop" else self.opened_ids
        text = self.codec.decode(ids)
        thought = self.read(text).spans.get("thought")
        if thought is None:
            return Sampled(opened + ids)
        return Sampled(ids[self.codec.token_spans(ids, text, {"thought": thought})["thought"][1] :])

    @cached_property
    def opened_ids(self) -> tuple[int, ...]:
        """The tokens of `opened`."""
        return self.codec.encode(self.opened)

    def _behind(self, said: Sequence[int], text: str) -> str:
        """Text that the template writes behind a completion: the end of the message only where it was cut off."""
        return text.removeprefix(self.end) if self.end and self.codec.decode(said[-1:]) == self.end else text

    def _end(self, text: str, opened: bool) -> tuple[int, ...]:
        head = self.codec.encode(text.removesuffix(self.opened))
        return head + self.opened_ids if opened and text.endswith(self.opened) else head

    def _frame(self) -> tuple[str, str]:
        """(end, opened), from what the template writes around a message in the middle of a conversation."""
        before, place, after = self._written([*_BEFORE, _SAYS, *_BEFORE], (), prompt=False).partition(_PLACE)
        prompt = self._written(_BEFORE, ())
        if not place or not prompt.startswith(before):
            raise UserError(f"{self.where} writes the head of the model's messages in different ways; give another")
        added = sorted(self.codec.added_tokens, key=len, reverse=True)
        end = next((token for token in added if after.startswith(token)), "")
        if not end:
            raise UserError(
                f"{self.where} puts no special token after the model's messages, so nothing ends a completion; give "
                "a template that does"
            )
        return end, prompt[len(before) :]

    def _written(self, messages: Sequence[Message], tools: Sequence[Message], *, prompt: bool = True) -> str:
        given = [self._prepared(message) for message in messages]
        offered = [self._broken(tool) for tool in tools]
        most = _TIMES * len(json.dumps([given, offered])) + 100_000
        try:
            with limited(_LIMIT_S):
                text = str(self.write(given, offered, prompt))
        except Exception as error:  # a template is a program: it can raise anything
            raise UserError(f"{self.where} fails: {why(error)}") from error
        if len(text) > most:
            raise UserError(f"{self.where} writes {len(text):,} characters for a conversation")
        return text

    def _prepared(self, message: Message) -> dict[str, Any]:
        """The message as templates take it, without text that is a special token."""
        role = _ROLES.get(message.get("role", ""), message.get("role"))
        content = _text(message.get("content"))
        if role == "tool":
            content = self.calls.harmless(content)
        rest = {key: value for key, value in message.items() if key not in ("role", "content", "tool_calls") and value}
        made = {"role": role, "content": self._broken(content), **self._broken(rest)}
        if calls := message.get("tool_calls"):
            made["tool_calls"] = [self._broken(_call(call)) for call in calls]
        return made

    @cached_property
    def _breakable(self) -> tuple[str, ...]:
        return tuple(token for token in self.codec.breakable if token not in self.calls.own)

    def _broken(self, value: Any) -> Any:
        if isinstance(value, str):
            return break_tokens(value, self._breakable)
        if isinstance(value, Mapping):
            return {self._broken(key): self._broken(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._broken(part) for part in value]
        return value


_PLACE = "mem1-what-the-model-says"
_BEFORE: tuple[Message, ...] = ({"role": "user", "content": "mem1-what-the-user-says"},)
_TOOL: Message = {
    "type": "function",
    "function": {"name": "mem1", "description": "mem1", "parameters": {"type": "object", "properties": {}}},
}
_SAYS: Message = {"role": "assistant", "content": _PLACE}


def _text(content: Any) -> str:
    """Raises UserError for anything but text."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence) or not all(
        isinstance(part, Mapping) and isinstance(part.get("text", part.get("refusal")), str) for part in content
    ):
        raise UserError("a message has a content other than text; this model reads text alone")
    return "\n".join(part.get("text", part.get("refusal")) for part in content)


def _call(call: Any) -> dict[str, Any]:
    """A call as templates take it, with its arguments as an object where they are one."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise UserError("a message has a tool call without a function")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return {**call, "function": {**function, "arguments": arguments if arguments is not None else {}}}


def _in_tags(message: Message, tags: Tags) -> str:
    if message["role"] == "tool":
        return tagged(message["content"], tags)
    calls = [call["function"] for call in message.get("tool_calls", ())]
    names = tags.action_tags
    written = (
        f" <{names.get(call['name'], call['name'])}> {' '.join(map(str, dict(call['arguments']).values()))} "
        f"</{names.get(call['name'], call['name'])}>"
        for call in calls
    )
    return f"{message['content']}{''.join(written)}"
