"""Parts of an agent's messages in any form: a system message, messages of the user, and exchanges.

    system | user: find the mayor of Oslo | assistant: search(...) | tool: ...       messages
    system | User                         | Exchange                                 parts

An exchange is what the model said in one turn with the results of all its calls. Providers refuse a call without its
result and a result without its call, so an exchange is kept whole or dropped whole. Messages inside the parts are the
caller's own objects and are never changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

from mem1.errors import UserError
from mem1.messages.digests import add_content, add_texts, hashed
from mem1.messages.thoughts import without_thoughts

Message = Mapping[str, Any]
"""A message as its provider's API takes it; for the Responses API, an item."""
MAPPING = (dict, Mapping)
"""For isinstance: the type of nearly all messages first, and no union made anew in each of thousands of calls."""
Content = str | Sequence[Mapping[str, Any]] | None
"""Text, or parts of texts and images."""
ASK = "Write your memory now."
"""How a request for a state begins, in the user's role."""
PLACE = "mem1_place"
"""Key of a message's place among a framework's own messages."""
_THOUGHTS = ("thinking", "redacted_thinking")
NO_RESULT = "error: this call was never answered"


class Call(NamedTuple):
    """A call of a tool that the caller has to answer."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""


class Result(NamedTuple):
    """The result of a call."""

    call: Call
    message: Message
    """The tool message, output item or tool_result block."""


class User(NamedTuple):
    """A message of the user."""

    message: Message
    after_results: bool = False
    """Whether it stood in one message with the results before it, as Anthropic's API allows."""
    end: int = 0
    """Messages of the conversation up to it."""


class Exchange(NamedTuple):
    """The model's turn and the results of all its calls."""

    said: tuple[Message, ...]
    calls: tuple[Call, ...] = ()
    results: tuple[Result, ...] = ()
    """In the order of the calls; fewer than calls while it is pending."""
    envelope: Message | None = None
    """Anthropic: the user message that holds the results."""
    breaks: tuple[tuple[int, int], ...] = ()
    """(messages, results) that stand before what the model said next, in a turn that went on after results."""
    end: int = 0
    """Messages of the conversation up to its last one."""

    @property
    def pending(self) -> bool:
        """Whether a call still waits for its result."""
        return len(self.results) < len(self.calls)

    def steps(self) -> Iterator[tuple[tuple[Message, ...], tuple[Result, ...]]]:
        """(what the model said, the results behind it), in order."""
        messages = results = 0
        for said, answered in (*self.breaks, (len(self.said), len(self.results))):
            yield self.said[messages:said], self.results[results:answered]
            messages, results = said, answered


Part = User | Exchange


class Transcript(NamedTuple):
    """A conversation in parts."""

    system: tuple[Message, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One provider's form of messages. `mem1.messages.forms` has those that ship."""

    name: str
    text_type: str
    """Type of a part of text in a message of the user."""
    content: Callable[[Message], Content]
    """Text or parts of a result's message, whatever its type."""
    changed: Callable[[Message, Content], Message]
    """The same with other content, in the shape that its type has; the very same one where it has no other."""
    read: Callable[[Sequence[Message]], Transcript]
    """Raises UserError, naming the message, for a conversation that its provider would refuse."""
    write: Callable[[Transcript], list[Message]]

    def content_of(self, result: Result) -> Content:
        """Text or parts of a result."""
        return self.content(result.message)

    def with_content(self, result: Result, content: Content) -> Result:
        """The result with other content; the very same one where it can have no other."""
        message = self.changed(result.message, content)
        return result if message is result.message else Result(result.call, message)

    def with_text(self, message: Message, text: str) -> Message:
        """The message of a user with a text after its content."""
        content = message.get("content")
        if isinstance(content, str):
            return {**message, "content": f"{content}\n\n{text}" if content else text}
        return {**message, "content": [*(content or ()), {"type": self.text_type, "text": text}]}


def message_at(messages: Sequence[Message], at: int) -> Message:
    """The message at this place. Raises UserError where it is none, or its content has no form that an API knows."""
    message = messages[at]
    if not isinstance(message, MAPPING):
        raise UserError(f"messages[{at}] is a {type(message).__name__}; a message is a dictionary with a role")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, list | tuple):
        raise UserError(
            f"messages[{at}]: its content is a {type(content).__name__}; a content is a text or a list of parts"
        )
    for part in content:
        if not isinstance(part, MAPPING):
            raise UserError(
                f"messages[{at}]: a part of its content is {part!r:.40}; a part is a dictionary with a type"
            )
    return message


def texts(content: Content) -> str:
    """All text of a content, its parts joined by line ends."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if isinstance(part.get("text"), str))


def said(exchange: Exchange) -> str:
    """The text that the model wrote beside its calls, without thoughts."""
    words = [texts(message.get("content")) for message in exchange.said if message.get("type") != "reasoning"]
    found = map(without_thoughts, words)
    return "\n".join([text for text in found if text])


def begins_with_thoughts(exchange: Exchange) -> bool:
    """Whether the model's turn begins with a block of signed thoughts."""
    content = exchange.said[0].get("content")
    return bool(content) and not isinstance(content, str) and content[0].get("type") in _THOUGHTS


def images(content: Content) -> int:
    """Number of images and files in a content."""
    return 0 if isinstance(content, str) else sum(is_image(part) for part in content or ())


def is_image(part: Mapping[str, Any]) -> bool:
    """Whether a part of a content is something else than text."""
    return not isinstance(part.get("text"), str)


def digest_of(result: Result, content: Content) -> str:
    """The hash of a call and of all that it returned, the same in every process."""
    digest = sha256()
    add_texts(digest, result.call)
    add_content(digest, content)
    return digest.hexdigest()


def handle(result: Result, content: Content) -> str:
    """A short name of a result, by which `recall` finds it in the whole conversation: the beginning of its hash."""
    return f"r{digest_of(result, content)[:8]}"


def request_of(state: str) -> str:
    """The request that stands before a state in a conversation: it names the state's hash, which no text does that
    merely looks like a request."""
    return f"{ASK} ({hashed(state.strip())[:16]})"


def is_state(part: Part, after: Part) -> bool:
    """Whether two parts are a request of mem1 and the state that answers it."""
    if not isinstance(part, User) or not isinstance(after, Exchange) or after.calls:
        return False
    asked = texts(part.message.get("content"))
    return asked.startswith(ASK) and asked == request_of(said(after))
