"""From the bytes of a reply to text: decompression within a bound, and the right character encoding.

decompress(b"\\x1f\\x8b...", "gzip", max_bytes=10_000_000)        ->  b"<html>..."
decode(b"caf\\xe9", "text/html; charset=iso-8859-1")              ->  "café"
"""

from __future__ import annotations

import codecs
import re
import zlib

from mem1.retrieval.web.failures import FetchFailed, Why

ACCEPTED = "gzip, deflate"
"""What requests say they can decompress."""
_GZIP = b"\x1f\x8b"
_META = re.compile(rb"<meta[^>]{0,200}?charset\s{0,8}=\s{0,8}[\"']?\s{0,8}([\w.:-]{1,40})", re.IGNORECASE)
_HEADER = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]{1,40})", re.IGNORECASE)
_META_WITHIN = 4096
"""Bytes at the head of a page in which its own declaration counts."""
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_KNOWN = re.compile(
    r"utf-8|utf-16(-[lb]e)?|cp125[0-8]|cp866|cp874|cp932|cp949|cp950|iso8859-\d+|koi8-[ru]|mac-(roman|cyrillic)|gbk|"
    r"gb2312|gb18030|big5(hkscs)?|euc_(jp|kr)|shift_jis|iso2022_jp|tis-620"
)
"""Encodings of text; Python knows others (punycode, unicode_escape, utf-7) that a page must not choose."""


def decompress(body: bytes, encoding: str, *, max_bytes: int) -> bytes:
    """Undo a Content-Encoding. Never holds more than `max_bytes` of the result.

    Raises FetchFailed: SIZE past the bound, ENCODING for other or several encodings and for damaged data, NETWORK
    where the data end too early.
    """
    name = encoding.strip().lower()
    if name in ("", "identity") or not body:
        return body
    if name not in ("gzip", "x-gzip", "deflate"):
        raise FetchFailed(Why.ENCODING, f"it is compressed as {name[:40]!r}, which is not read; only {ACCEPTED} are")
    window = (31 if name.endswith("gzip") else 15) if _has_header(body, name) else -15
    text = bytearray()
    while True:
        stream = zlib.decompressobj(window)
        try:
            text += stream.decompress(body, max_bytes + 1 - len(text))
        except zlib.error as error:
            raise FetchFailed(Why.ENCODING, f"it is not the {name} that it says it is") from error
        if len(text) > max_bytes:
            raise FetchFailed(Why.SIZE, f"it is larger than {max_bytes / 1e6:g} MB once decompressed")
        if not stream.eof:
            raise FetchFailed(Why.NETWORK, "it breaks off in the middle")
        body = stream.unused_data
        if not (window == 31 and body.startswith(_GZIP)):  # a gzip file may have several members
            return bytes(text)


def _has_header(body: bytes, name: str) -> bool:
    """False only for a "deflate" without zlib's two bytes, as some servers send it."""
    return name != "deflate" or (body[0] & 0x0F == 8 and int.from_bytes(body[:2], "big") % 31 == 0)


def decode(body: bytes, content_type: str) -> str:
    """The text of a body; bytes that its encoding does not have become U+FFFD. Never raises.

    The encoding is that of a byte order mark, else of the header, else of the page's own <meta>, else UTF-8 where all
    bytes are valid, else Windows-1252.
    """
    for mark, encoding in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(encoding, errors="replace")
    declared = _HEADER.search(content_type)
    meta = _META.search(body[:_META_WITHIN])
    for label in (declared and declared[1], meta and meta[1].decode("ascii", errors="replace")):
        if encoding := _encoding(label or ""):
            return body.decode(encoding, errors="replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252", errors="replace")


def _encoding(label: str) -> str | None:
    """Python's name of an encoding that text is written in; None where the label names none."""
    try:
        name = codecs.lookup(label).name
    except (LookupError, ValueError):
        return None
    if name in ("ascii", "iso8859-1"):
        return "cp1252"  # as every browser reads them
    return name if _KNOWN.fullmatch(name) else None
