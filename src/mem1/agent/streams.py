"""A streamed chat completion, put together again: text as it comes, then the completion as if it had come whole.

    data: {"choices": [{"delta": {"content": "The mayor"}}]}         "The mayor"
    data: {"choices": [{"delta": {"content": " is"}}]}               " is"
    data: [DONE]                                                     {"choices": [{"message": {"content": ...}}]}

Servers differ in what they stream. Which call a piece belongs to follows from index, id, name, and from whether the
arguments so far are whole: {"index": 0} may stand at every one of three parallel calls. What a provider wants back,
signatures and encrypted thoughts among it, is kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mem1.net.exchange import TryFailed, one_line, read_json, shown

_DONE = b"[DONE]"
_PIECES = frozenset(
    (
        *("arguments", "content", "input", "reasoning", "reasoning_content"),
        *("refusal", "summary", "text", "thinking", "transcript"),
    )
)
"""Keys whose texts come in pieces, wherever they stand."""
_WHOLE = ("format", "id", "model", "name", "object", "signature", "status", "type")
"""Last words of a message's keys whose texts come in one piece, and perhaps again."""
_NEAR = 64
"""Most entries of a list among which the beginning of a piece is looked for."""


def completion_parts(pieces: Iterable[bytes]) -> Iterator[str | Mapping[str, Any]]:
    """The text of an answer as it comes, then the whole completion; also that of a server which does not stream.

    Raises TryFailed for an error in its place, for what is no chat completion, and where it breaks off.
    """
    assembled, done = _Assembled(), False
    for name, data in _events(pieces):
        if data == _DONE:
            done = True
            continue
        try:
            chunk = read_json(data)
            refuse_errors(chunk, name)
            yield from assembled.add(chunk)
        except ValueError as error:
            raise TryFailed(str(error)) from error
        except (LookupError, TypeError, AttributeError) as error:
            raise TryFailed(f"the server sent {shown(chunk)}") from error
    yield assembled.completion(done)


def refuse_errors(chunk: Any, name: str = "") -> None:
    """Raises TryFailed for an error in place of a completion or of a chunk; ValueError for what can be neither."""
    if not isinstance(chunk, Mapping):
        raise ValueError(f"the server sent {shown(chunk)}")
    error, choices = chunk.get("error"), chunk.get("choices")
    if not error and ("error" in (name, chunk.get("object"), chunk.get("type")) or "choices" not in chunk):
        error = chunk if chunk.keys() & {"message", "detail", "msg"} else None
    for choice in choices if isinstance(choices, list) and not error else ():
        if isinstance(choice, Mapping) and (choice.get("error") or choice.get("finish_reason") == "error"):
            error = choice.get("error") or "finish_reason: error"
    if error:
        status = _status(error)
        raise TryFailed(
            "the server sent an error",
            for_good=status is not None and status < 500 and status not in (408, 429),
            status=status,
            detail=one_line(error if isinstance(error, str) else json.dumps(error, ensure_ascii=False), most=2_000),
        )


def _status(error: Any) -> int | None:
    """The HTTP status that an error stands for; None: it does not say."""
    if not isinstance(error, Mapping):
        return None
    for key in ("code", "status", "status_code"):
        code = error.get(key)
        code = int(code) if isinstance(code, str) and code.isdecimal() and len(code) == 3 else code
        if isinstance(code, int) and 400 <= code < 600:
            return code
    return 400 if error.get("type") in ("invalid_request_error", "BadRequestError") else None


def _events(pieces: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """(name, data) of server-sent events; the whole body of a server that does not stream."""
    name, data, plain, streams = "", list[bytes](), list[bytes](), False
    for line in _lines(pieces):
        field, _, value = line.partition(b":")
        value = value.strip()
        if not line.strip():
            if data:
                yield name, b"\n".join(data)
            name, data = "", []
        elif field == b"data":
            streams = True
            # at once: some servers leave out the blank line after an event
            if not data and (value == _DONE or _is_json(value)):
                yield name, value
            else:
                data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field not in (b"", b"id", b"retry"):
            plain.append(line)
    if data:
        yield name, b"\n".join(data)
    elif plain and not streams:
        yield "", b"\n".join(plain)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Lines that end with LF, CRLF or CR, wherever the pieces are cut."""
    left, after_cr, first = bytearray(), False, True
    for piece in pieces:
        if not piece:
            continue
        rest = piece[1:] if after_cr and piece.startswith(b"\n") else piece
        after_cr = piece.endswith(b"\r")
        rest = rest.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        left += rest
        if b"\n" not in rest:
            continue
        *lines, left = left.split(b"\n")
        for line in lines:
            yield bytes(line.removeprefix(b"\xef\xbb\xbf") if first else line)
            first = False
    if left:
        yield bytes(left.removeprefix(b"\xef\xbb\xbf") if first else left)


def _is_json(data: bytes) -> bool:
    try:
        read_json(data)
    except ValueError:
        return False
    return True


class _Assembled:
    """A completion put together from its chunks."""

    def __init__(self) -> None:
        self._message: dict[str, Any] = {}
        self._calls = _Calls()
        self._usage: Any = None
        self._finish: str | None = None
        self._whole: Mapping[str, Any] | None = None
        """A completion that came in one piece."""
        self._counted = False
        """Whether the latest chunk was the one that some servers end with: usage, and no choice."""

    def add(self, chunk: Mapping[str, Any]) -> Iterator[str]:
        """The text in a chunk. Raises LookupError, TypeError or AttributeError for a chunk of another form."""
        self._counted = bool(chunk.get("usage")) and chunk.get("choices") == []
        self._usage = chunk.get("usage") or (chunk.get("x_groq") or {}).get("usage") or self._usage
        for choice in chunk.get("choices") or ():
            if choice.get("index") in (None, 0, "0"):
                self._usage = choice.get("usage") or self._usage
                self._finish = choice.get("finish_reason") or self._finish
                yield from self._add(choice, chunk)

    def _add(self, choice: Mapping[str, Any], chunk: Mapping[str, Any]) -> Iterator[str]:
        delta, message = choice.get("delta") or {}, choice.get("message")
        if not delta and message and not self._message and not self._calls.begun:
            self._whole, delta = chunk, {"content": message.get("content")}
        for key, part in delta.items():
            if key == "tool_calls":
                self._calls.add(part or ())
            elif key == "content":
                yield from _texts(part)
                self._message[key] = _content(self._message.get(key), part)
            elif key != "role" and part is not None:
                self._message[key] = _merged(self._message.get(key), part, key, key)

    def completion(self, done: bool) -> Mapping[str, Any]:
        """The whole; `done`: the server said that it was. Raises TryFailed where it broke off."""
        if self._whole is not None:
            return {**self._whole, "usage": self._usage}
        message = {key: part for key, part in self._message.items() if part is not None}
        if self._calls.begun:
            message["tool_calls"] = self._calls.whole()
        if self._finish is None:
            if not message:
                raise TryFailed("the answer broke off before its first word")
            if not (done or self._counted):
                raise TryFailed("the end of the answer is missing")
            if not self._calls.closed or "function_call" in message:
                raise TryFailed("the answer ends in the middle of a call")
        return {"choices": [{"message": message, "finish_reason": self._finish}], "usage": self._usage}


def _texts(content: Any) -> Iterator[str]:
    """What a reader of the stream sees of a piece of content."""
    if isinstance(content, str):
        if content:
            yield content
    elif isinstance(content, Sequence):
        yield from [part["text"] for part in content if isinstance(part.get("text"), str) and part["text"]]


def _content(old: Any, new: Any) -> Any:
    """Text, or a list of parts once one has come."""
    if old is None or new is None:
        return old if new is None else new
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    return _merged(_parts(old), _parts(new), "content", "content")


def _parts(content: Any) -> Any:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content


def _merged(old: Any, new: Any, key: str, top: str) -> Any:
    """A value with its next piece; `top` is the key of the message that both are in."""
    if old is None or new is None:
        return old if new is None else new
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **{inner: _merged(old.get(inner), value, inner, top) for inner, value in new.items()}}
    if isinstance(old, list) and isinstance(new, list):
        return _merged_list(old, new, top)
    if isinstance(old, str) and isinstance(new, str):
        in_pieces = key in _PIECES or (top == "audio" and key == "data")
        if in_pieces or (key == top and key.rpartition("_")[2] not in _WHOLE):
            return old + new
    return new


def _merged_list(old: list[Any], new: Sequence[Any], top: str) -> list[Any]:
    """The entries of a list, those of one type and index put together; what has no index goes on as text alone."""
    for entry in new:
        near = range(len(old) - 1, max(-1, len(old) - 1 - _NEAR), -1)
        at = next((at for at in near if _goes_on(old[at], entry, last=at == len(old) - 1)), None)
        if at is None:
            old.append(entry)
        else:
            old[at] = _merged(old[at], entry, "", top)
    return old


def _goes_on(old: Any, new: Any, *, last: bool) -> bool:
    """Whether an entry of a list is the next piece of an earlier one."""
    if not (isinstance(old, Mapping) and isinstance(new, Mapping)) or old.get("type") != new.get("type"):
        return False
    if any(old.get(key) and new.get(key) and old[key] != new[key] for key in ("id", "signature", "data")):
        return False
    if new.get("index") is not None or old.get("index") is not None:
        return new.get("index") == old.get("index")
    return last and bool(old.keys() & new.keys() & _PIECES)


class _Call:
    """One call, as far as it has come."""

    def __init__(self, index: int | None) -> None:
        self.index = index
        self.id: str | None = None
        self.name: str | None = None
        self.again = False
        """Its name came once more after its arguments: what comes next may be another call's."""
        self._fields: dict[str, Any] = {}
        self._function: dict[str, Any] = {}
        self._arguments: list[str] = []
        self._length = 0
        self._depth, self._quoted, self._escaped = 0, False, False
        self.started = self.closed = False
        """Whether its arguments have begun, and whether they are whole: their outermost bracket is closed."""

    @property
    def empty(self) -> bool:
        """Whether its arguments are the empty object, with which some servers begin."""
        return self.closed and self._length < 4 and "".join(self._arguments).split() in (["{}"], ["{", "}"])

    def holds(self, arguments: str) -> bool:
        """Whether these are its arguments."""
        return self._length == len(arguments) and "".join(self._arguments) == arguments

    def add(self, part: Mapping[str, Any], id: str | None, name: str | None, arguments: str) -> None:
        self.id, self.name = self.id or id, self._named(name)
        for key, value in part.items():
            if key not in ("index", "id", "function"):
                self._fields[key] = _merged(self._fields.get(key), value, key, "")
        for key, value in _function(part).items():
            if key not in ("name", "arguments"):
                self._function[key] = _merged(self._function.get(key), value, key, "")
        if self.closed and self.holds(arguments):
            return  # sent once more
        if self.empty and arguments.strip():
            self._arguments, self._length, self.closed = [], 0, False
        self._arguments.append(arguments)
        self._length += len(arguments)
        self.started = self.started or bool(arguments.strip())
        for c in arguments:
            self._read(c)

    def _named(self, name: str | None) -> str | None:
        """The name with its next piece, where one comes before the arguments: all of it, again, or the rest."""
        if not self.name or not name or self.started:
            return self.name or name
        return name if name.startswith(self.name) else self.name if self.name.startswith(name) else self.name + name

    def _read(self, c: str) -> None:
        if self._escaped:
            self._escaped = False
        elif c == '"':
            self._quoted = not self._quoted
        elif self._quoted:
            self._escaped = c == "\\"
        elif c in "{[":
            self._depth += 1
        elif c in "]}":
            self._depth -= 1
            self.closed = self._depth <= 0

    def whole(self) -> dict[str, Any]:
        function = {**self._function, "name": self.name, "arguments": "".join(self._arguments)}
        return {"id": self.id, **self._fields, "function": function}


class _Calls:
    """The calls of a message, told apart whatever marks a server gives them."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        """The latest call with an id."""
        self._by_index: dict[int, _Call] = {}
        """The latest call with an index."""
        self._by_name: dict[tuple[int, str], _Call] = {}
        """The latest call with an index and a name."""
        self._together: list[_Call] = []
        """Those that began in one chunk, the last in which any did."""

    @property
    def begun(self) -> bool:
        return bool(self._calls)

    @property
    def closed(self) -> bool:
        return all(call.closed for call in self._calls)

    def whole(self) -> list[dict[str, Any]]:
        indexes = [call.index for call in self._calls]
        if all(index is not None for index in indexes):
            return [call.whole() for call in sorted(self._calls, key=lambda call: call.index or 0)]
        return [call.whole() for call in self._calls]

    def add(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """The pieces in one chunk. Raises TypeError or AttributeError for others."""
        began: list[_Call] = []
        named: list[_Call] = []
        for number, part in enumerate(parts):
            id, name, index = _text(part.get("id")), _text(_function(part).get("name")), _index(part.get("index"))
            arguments = _arguments(_function(part).get("arguments"))
            call = self._of(id, name, index, number if len(parts) > 1 else None)
            if call is None or (name and call in named) or _begins(call, id, name, arguments):
                inherited = call.name if call is not None and call.again and not name else name
                call, name = _Call(index), inherited
                self._calls.append(call)
                began.append(call)
            elif name and call.closed and not arguments.strip():
                call.again = True
            call.add(part, id, name, arguments)
            if name:
                named.append(call)
                if index is not None:
                    self._by_name[index, name] = call
            if id:
                self._by_id[id] = call
            if index is not None:
                self._by_index[index] = call
        self._together = began or self._together

    def _of(self, id: str | None, name: str | None, index: int | None, number: int | None) -> _Call | None:
        """The call that stands where a piece stands; None: there is none yet."""
        known = self._by_id.get(id) if id else None
        if index is not None:
            if known is not None and (known.index == index or not name):
                return known
            if index in self._by_index or name:
                begun = self._by_name.get((index, name)) if name and not id else None
                return begun if begun is not None and begun.started and not begun.closed else self._by_index.get(index)
            found = self._calls[index] if 0 <= index < len(self._calls) else None
            return found if found is not None and found.index is None else None
        if known is not None or not self._calls:
            return known
        if number is not None and number < len(self._together):
            return self._together[number]
        return None if number is not None and name else self._calls[-1]


def _begins(call: _Call, id: str | None, name: str | None, arguments: str) -> bool:
    """Whether a piece that stands where `call` stands begins another one."""
    other = bool(id and call.id and id != call.id)
    more = call.closed and arguments.lstrip().startswith("{")
    if not name:
        # ids made anew for every piece are no ids of calls
        return more and not call.empty and bool((other and call.name) or call.again)
    if call.name is None:
        return more
    if name != call.name:
        return call.started or other or not call.id  # else a piece of its name
    if other:
        return call.closed or not call.started
    if id and id == call.id:
        return more and not call.empty and not call.holds(arguments)
    return more or (call.closed and bool(id))


def _function(part: Mapping[str, Any]) -> Mapping[str, Any]:
    return part.get("function") or {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _index(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if type(value) is int else None


def _arguments(value: Any) -> str:
    """Some servers send an object in place of its JSON."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)
