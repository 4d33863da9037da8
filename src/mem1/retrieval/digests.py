"""What tells files apart whatever they are called.

sha256_of("corpus.jsonl")   ->  "9f86d081884c7d65..."
"""

from __future__ import annotations

import hashlib
import os

_CHUNK_BYTES = 1 << 20


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 (hexadecimal) of a file's bytes, read a piece at a time. Raises OSError."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
