"""Messages of Anthropic's API, whose blocks are calls and results.

    assistant: [thinking, text, tool_use a]     user: [tool_result a, text]
    assistant: [server_tool_use s, tool_use b]  user: [tool_result b]  assistant: [web_search_tool_result s, text]

The server answers its own calls (server_tool_use, mcp_tool_use), in the same message or, where the client is asked for
something meanwhile, in a later one: until then the turn goes on. Messages of one role behind one another are one turn
(a paused one goes on in the next message), results stand before texts, and no text is empty.
Source: platform.claude.com/docs, pages on tool use, server tools, thinking and mid-conversation system messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mem1.errors import UserError
from mem1.messages.drafts import Draft, Drafts
from mem1.messages.transcript import NO_RESULT, Call, Exchange, Message, Transcript, User, message_at

Blocks = Sequence[Mapping[str, Any]]
_USE, _RESULT = "_tool_use", "_tool_result"
"""Ends of the types of what the server calls and answers itself."""


def read(messages: Sequence[Message]) -> Transcript:
    """The parts of a conversation. Raises UserError, naming the message that the API would refuse."""
    drafts = Drafts()
    closed = _answered_by_server(messages)
    for at in range(len(messages)):
        message = message_at(messages, at)
        role = message.get("role")
        if role == "system":
            drafts.add_system(message, at)
            continue
        if role not in ("user", "assistant"):
            raise UserError(f"messages[{at}]: unknown role {role!r}; known: user, assistant, system")
        message, blocks = _without_empty(message)
        if not blocks:
            continue
        if role == "assistant":
            draft = _draft_for(drafts)
            calls = [_call(block, at) for block in blocks if block.get("type") == "tool_use"]
            draft.say(message, calls, at)
            for block in blocks:
                _note_server(draft, block)
            continue
        results = [block for block in blocks if block.get("type") == "tool_result"]
        turn = None
        for block in results:
            turn = drafts.answer(block.get("tool_use_id"), block, at)
        if not results:
            drafts.add_user(User(message=message, end=at + 1), lambda id, at=at: closed.get(id, -1) > at)
            continue
        if turn is not None and turn.envelope is None:
            turn.envelope = message
        if len(results) < len(blocks):
            others = [block for block in blocks if block.get("type") != "tool_result"]
            user = User({**message, "content": others}, after_results=turn is drafts.open, end=at + 1)
            drafts.add_user(user, lambda id, at=at: closed.get(id, -1) > at)
    return drafts.transcript(_settle)


def _answered_by_server(messages: Sequence[Message]) -> Mapping[str, int]:
    """Id of a call of the server's -> the last message with its answer."""
    found: dict[str, int] = {}
    for at in range(len(messages)):
        message = message_at(messages, at)
        content = message.get("content")
        if message.get("role") == "assistant" and not isinstance(content, str):
            for block in content or ():
                if str(block.get("type")).endswith(_RESULT) and isinstance(block.get("tool_use_id"), str):
                    found[block["tool_use_id"]] = at
    return found


def _note_server(draft: Draft, block: Mapping[str, Any]) -> None:
    """Keep whether the server still owes an answer."""
    type = str(block.get("type"))
    if type.endswith(_USE) and isinstance(block.get("id"), str):
        draft.owed[block["id"]] = Call(block["id"], str(block.get("name")), "")
    elif type.endswith(_RESULT):
        draft.owed.pop(block.get("tool_use_id"), None)  # type: ignore[arg-type]  # any other value is no key


def _draft_for(drafts: Drafts) -> Draft:
    """The turn that the assistant's next message belongs to."""
    draft = drafts.open
    if draft is None:
        return drafts.begin()
    if draft.steps[-1].calls:
        if draft.owed:
            draft.go_on()
            return draft
        return drafts.begin()
    return drafts.begin() if drafts.ends_with_state else draft


def _without_empty(message: Message) -> tuple[Message, Blocks]:
    """(the message, its blocks), without texts that the API refuses as empty."""
    content = message.get("content")
    if isinstance(content, str):
        return message, [{"type": "text", "text": content}] if content.strip() else ()
    blocks = content or ()
    if not any(_is_empty(block) or _is_empty_within(block) for block in blocks):
        return message, blocks
    kept = [
        {**block, "content": [each for each in block["content"] if not _is_empty(each)]}
        if _is_empty_within(block)
        else block
        for block in blocks
        if not _is_empty(block)
    ]
    return {**message, "content": kept}, kept


def _is_empty(block: Mapping[str, Any]) -> bool:
    return block.get("type") == "text" and not str(block.get("text") or "").strip()


def _is_empty_within(block: Mapping[str, Any]) -> bool:
    """Whether a result has an empty text among its parts."""
    content = block.get("content") if block.get("type") == "tool_result" else None
    return isinstance(content, list | tuple) and any(_is_empty(each) for each in content)


def _call(block: Mapping[str, Any], at: int) -> Call:
    if not isinstance(block.get("id"), str):
        raise UserError(f"messages[{at}]: a tool_use needs an id; this one is {block!r:.80}")
    given = block.get("input")
    arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
    return Call(id=block["id"], name=str(block.get("name")), arguments=arguments)


def _settle(draft: Draft, last: bool) -> None:
    for _, call in draft.missing(last):
        draft.results[call.id] = {
            "type": "tool_result",
            "tool_use_id": call.id,
            "content": NO_RESULT,
            "is_error": True,
        }


def write(transcript: Transcript) -> list[Message]:
    """The messages of the parts."""
    written: list[Message] = []
    system = list(one_system(transcript.system))
    own_results: Message | None = None
    """The message that the text of the user after it can join."""
    for part in transcript.parts:
        if isinstance(part, Exchange):
            written += system  # only behind a message of the user
            system.clear()
            envelope = part.envelope or {"role": "user"}
            for said, results in part.steps():
                written += said
                own_results = None
                if results:
                    own_results = {**envelope, "content": [result.message for result in results]}
                    written.append(own_results)
                    envelope = {"role": "user"}
        elif part.after_results and own_results is not None:
            written[-1] = {**own_results, "content": [*own_results["content"], *_blocks(part.message)]}
            own_results = None
        else:
            written.append(part.message)
            own_results = None
    return _without_space_at_end([*written, *system])


def _blocks(message: Message) -> Blocks:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else content or ()


def one_system(system: Sequence[Message]) -> Sequence[Message]:
    """One message with all blocks, as none may follow another."""
    if len(system) < 2:
        return system
    return [{**system[0], "content": [block for message in system for block in _blocks(message)]}]


def _without_space_at_end(messages: list[Message]) -> list[Message]:
    """A last message of the assistant, which the model goes on with, must not end in white space."""
    if not messages or messages[-1].get("role") != "assistant":
        return messages
    message = messages[-1]
    *before, last = _blocks(message)
    text = last.get("text") if last.get("type") == "text" else None
    if isinstance(text, str) and text != text.rstrip():
        own = isinstance(message["content"], str)
        content = text.rstrip() if own else [*before, {**last, "text": text.rstrip()}]
        messages[-1] = {**message, "content": content}
    return messages
