"""Lines of JSON, read with errors that name file and line, written whole or not at all.

    questions.jsonl     {"id": "q1", "text": "Who founded Alvex?", "answers": ["Mira Toll"]}
    read_objects(path)  (1, {"id": "q1", ...})
    append_objects(path, [{"id": "q2", ...}])

A gzipped file is recognised by its first two bytes, whatever it is called.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import pydantic_core

from mem1.durable import replacing
from mem1.errors import UserError

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_BLOCK = 1 << 16
_UNREADABLE = (OSError, EOFError, zlib.error)


def read_objects(path: str | os.PathLike[str], *, drop_cut_line: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of each line that is not blank; line numbers start at 1.

    Raises UserError, with file and line, where the file is missing, cut short, or a line is not a JSON object; with
    `drop_cut_line` a last line that is being written, or was when its process was killed, is left out.
    """
    for number, line in read_lines(path):
        if not line.strip() or (drop_cut_line and not line.endswith(b"\n") and not _is_json(line)):
            continue
        try:
            record = json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise UserError(f"{path}:{number}: not UTF-8 text ({error.reason}); save the file as UTF-8") from error
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}:{number}: not a whole JSON object ({error}); is the file cut short?") from error
        if not isinstance(record, dict):
            raise UserError(f"{path}:{number}: each line must hold one JSON object, not {type(record).__name__}")
        yield number, record


def read_start(path: str | os.PathLike[str], size: int) -> bytes:
    """The first `size` bytes of a plain or gzipped file, or fewer. Raises UserError where it cannot be read."""
    try:
        with _unzipped(path) as file:
            return file.read(size).removeprefix(_BYTE_ORDER_MARK)
    except _UNREADABLE as error:
        raise _explained(error, path, 1) from error


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line with its end) of a plain or gzipped file. Raises UserError where it cannot be read."""
    number = 0
    try:
        with _unzipped(path) as lines:
            for number, line in enumerate(lines, start=1):
                yield number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
    except _UNREADABLE as error:
        raise _explained(error, path, number + 1) from error


def _explained(error: Exception, path: str | os.PathLike[str], number: int) -> UserError:
    """The error for people, with the number of the line."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"no file {path}; check the path")
    if isinstance(error, OSError) and not isinstance(error, gzip.BadGzipFile):
        return UserError(f"cannot read {path}: {error.strerror or error}")
    return UserError(f"{path}:{number}: the gzip data is cut short or damaged ({error})")


@contextmanager
def _unzipped(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    with ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb"))
        zipped = raw.peek(2)[:2] == _GZIP_MAGIC
        yield cast(BinaryIO, stack.enter_context(gzip.open(raw, "rb"))) if zipped else raw


def encode_object(record: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> bytes:
    """One object, or a list of them, as a line of UTF-8 JSON with its line end.

    Half a surrogate pair, which UTF-8 cannot hold, is escaped.
    """
    try:
        return pydantic_core.to_json(record) + b"\n"  # a fifth of the time of json.dumps
    except pydantic_core.PydanticSerializationError:
        return (json.dumps(record) + "\n").encode("ascii")


def write_objects(path: str | os.PathLike[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Write one object per line, gzipped if the name ends in .gz; an existing file is replaced only by a whole one.

    Raises UserError where the file cannot be written (full disk, missing folder); then nothing is left behind.
    """
    write_lines(path, map(encode_object, records))


def write_lines(path: str | os.PathLike[str], lines: Iterable[bytes]) -> None:
    """`write_objects` for lines that are encoded already, line ends included."""
    target = Path(path)
    try:
        with replacing(target) as partial, ExitStack() as stack:
            file: BinaryIO = stack.enter_context(open(partial, "wb"))
            if target.suffix == ".gz":
                # mtime=0: the same records give the same bytes
                file = cast(BinaryIO, stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)))
            file.writelines(lines)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}; nothing was changed") from error


def append_objects(
    path: str | os.PathLike[str], records: Iterable[Mapping[str, Any]], *, drop_cut_line: bool = False
) -> None:
    """Append one line per object to a plain file, which is made if it is missing; on the disk on return.

    Raises UserError where a process was killed while it wrote the last line, unless `drop_cut_line`, which removes
    that line for good, and where the file cannot be written. A whole last line without its end is kept.
    """
    append_lines(path, map(encode_object, records), drop_cut_line=drop_cut_line)


def append_lines(path: str | os.PathLike[str], lines: Iterable[bytes], *, drop_cut_line: bool = False) -> None:
    """`append_objects` for lines that are encoded already, line ends included."""
    data = b"".join(lines)
    try:
        with open(path, "a+b") as file:
            file.seek(0)
            if file.read(2) == _GZIP_MAGIC:
                raise UserError(f"{path} is gzipped, and lines are appended to plain files; unpack it first")
            end = file.seek(0, os.SEEK_END)
            tail = _last_line(file, end)
            if tail and not _is_json(tail):
                if not drop_cut_line:
                    raise UserError(cut_line(path, Path(path).read_bytes().count(b"\n") + 1))
                file.truncate(end - len(tail))
                tail = b""
            file.write(b"\n" + data if tail else data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"cannot append to {path}: {reason}; free space or choose another path") from error


def cut_line(path: str | os.PathLike[str], number: int) -> str:
    """Message about an incomplete last line."""
    return (
        f"{path}:{number}: the last line is cut (a process was killed while writing it); pass drop_cut_line to drop it"
    )


def _last_line(file: BinaryIO, end: int) -> bytes:
    """The bytes after the last line break, searched from the end so that appending does not read the whole file."""
    tail = b""
    while end > 0 and b"\n" not in tail:
        start = max(0, end - _BLOCK)
        file.seek(start)
        tail, end = file.read(end - start) + tail, start
    return tail.rpartition(b"\n")[2]


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
