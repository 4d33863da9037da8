"""Lines of JSON, read with errors that name file and line, written whole or not at all.

    questions.jsonl     {"id": "q1", "text": "Who founded Alvex?", "answers": ["Mira Toll"]}
    read_objects(path)  (1, {"id": "q1", ...})

A gzipped file is recognised by its first two bytes, whatever it is called.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

from mem1.errors import UserError

_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_objects(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) of each line that is not blank; line numbers start at 1.

    Raises UserError, with file and line, where the file is missing, cut short, or a line is not a JSON object.
    """
    for number, line in read_lines(path):
        if not line.strip():
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
    except FileNotFoundError as error:
        raise UserError(f"no file {path}; check the path") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}:1: the gzip data is cut short or damaged ({error})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


def read_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line with its end) of a plain or gzipped file. Raises UserError where it cannot be read."""
    number = 0
    try:
        with _unzipped(path) as lines:
            for number, line in enumerate(lines, start=1):
                yield number, line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
    except FileNotFoundError as error:
        raise UserError(f"no file {path}; check the path") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}:{number + 1}: the gzip data is cut short or damaged ({error})") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error


@contextmanager
def _unzipped(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    with ExitStack() as stack:
        raw = stack.enter_context(open(path, "rb"))
        zipped = raw.peek(2)[:2] == _GZIP_MAGIC
        yield cast(BinaryIO, stack.enter_context(gzip.open(raw, "rb"))) if zipped else raw


def encode_object(record: Mapping[str, Any]) -> bytes:
    """One line of UTF-8 JSON with its line end; half a surrogate pair, which UTF-8 cannot hold, is escaped."""
    try:
        return (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8")
    except UnicodeEncodeError:
        return (json.dumps(record) + "\n").encode("ascii")


def write_objects(path: str | os.PathLike[str], records: Iterable[Mapping[str, Any]]) -> None:
    """Write one object a line, gzipped if the name ends in .gz; an existing file is replaced only by a whole one.

    Raises UserError where the file cannot be written (full disk, missing folder); then nothing is left behind.
    """
    write_lines(path, map(encode_object, records))


def write_lines(path: str | os.PathLike[str], lines: Iterable[bytes]) -> None:
    """`write_objects` for lines that are encoded already, line ends included."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
    try:
        with ExitStack() as stack:
            file: BinaryIO = stack.enter_context(open(partial, "wb"))
            if target.suffix == ".gz":
                # mtime=0: the same records give the same bytes
                file = cast(BinaryIO, stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)))
            file.writelines(lines)
        os.replace(partial, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}; nothing was changed") from error
    finally:
        partial.unlink(missing_ok=True)
