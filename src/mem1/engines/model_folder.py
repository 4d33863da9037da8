"""What lies in a model's folder beside weights, configuration and tokenizer.json.

tokenizer_files(Path("Qwen3-1.7B"))   ->  {"tokenizer_config.json": b"...", "chat_template.jinja": b"...", ...}
code_in(Path("a-folder"))             ->  "config.json asks to run code of the folder (auto_map), which mem1 never does"
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

_NAMES = frozenset(
    {
        *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        *("chat_template.jinja", "chat_template.json"),
        *("vocab.json", "merges.txt", "vocab.txt"),
        *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json"),
    }
)
_TEMPLATES = "additional_chat_templates"


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """Every file of the tokenizer but tokenizer.json, by its path in the folder: chat templates, special tokens, ..."""
    found = [path for path in folder.iterdir() if path.name in _NAMES and path.is_file()]
    found += (folder / _TEMPLATES).glob("*.jinja")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(found)}


def write_tokenizer_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put the files of `tokenizer_files` into another folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def code_in(folder: Path) -> str | None:
    """Why a folder that transformers cannot load by itself is refused: it asks to run its own code; None: it does not.

    Such code is never run: everything is loaded with trust_remote_code = False.
    """
    for name in ("config.json", "tokenizer_config.json"):
        try:
            config = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(config, dict) and "auto_map" in config:
            return (
                f"{name} asks to run code of the folder (auto_map), which mem1 never does; use a model that "
                "transformers knows by itself"
            )
    return None
