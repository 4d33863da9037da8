"""Where a policy lies: a folder, one that ships, or a snapshot in the local cache. Nothing is loaded."""

from __future__ import annotations

from pathlib import Path

from mem1.engines.config import STAND_IN
from mem1.errors import UserError
from mem1.model_folder import asset, cached_snapshot

SHIPPED = "shipped"
SHIPPED_NOTES = "shipped-notes"
SHIPPED_MEMORIES = "shipped-memories"
SHIPPED_SHOP = "shipped-shop"
SHIPPED_FOLDERS = {
    SHIPPED: "atlas-warm-start",
    SHIPPED_NOTES: "atlas-notes-warm-start",
    SHIPPED_MEMORIES: "atlas-memories-warm-start",
    SHIPPED_SHOP: "webshop-warm-start",
}
"""Name of a policy that comes with the package -> its folder among the assets."""


def policy_folder(path: str | Path) -> Path:
    """The folder itself, that of a shipped policy, or the snapshot of a Hugging Face id in the local cache.

    shipped             Atlas under constant memory
    shipped-notes       Atlas with notes, has never kept more than four answers
    shipped-memories    the same under the other memories
    shipped-shop        the invented shop
    """
    name = SHIPPED_FOLDERS.get(str(path))
    if name is not None:
        return asset(name)
    if Path(path).exists():
        return Path(path)
    return cached_snapshot(str(path)) or Path(path)


def tokenizer_folder(given: str | None, model: str) -> Path:
    """The folder that is given, or that of the model if it is here; there is no other default."""
    if given == STAND_IN:
        return asset(STAND_IN)
    folder = policy_folder(model if given is None else given)
    if given is not None or (folder / "tokenizer.json").is_file():
        return folder
    raise UserError(
        "--tokenizer is missing: give the folder with the served model's tokenizer.json, or its Hugging Face id if it "
        f"is in the local cache (hf download); {STAND_IN} counts with another model's tokenizer"
    )
