"""Models of Hugging Face's hub that are on this machine already; nothing is fetched.

cached_snapshot("Qwen/Qwen2.5-7B-Instruct")
->  ~/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B-Instruct/snapshots/a09a...
"""

from __future__ import annotations

import re
from pathlib import Path

_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)


def cached_snapshot(name: str) -> Path | None:
    """The folder of a model's files in the cache of Hugging Face; None: `name` is no id, or it is not there."""
    if _ID.fullmatch(name) is None:
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError, OSError):
        return None


def how_to_fetch(name: str) -> str:
    """What to add to the message that there is no folder of that name, where it could be an id."""
    if _ID.fullmatch(name) is None:
        return ""
    return f"; if it is an id of Hugging Face, fetch it first, as mem1 fetches nothing by itself: hf download {name}"
