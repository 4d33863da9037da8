r"""A model's chat template as tokens around the prompt, and the other tokenizer files of its folder.

    ChatTemplate.load(folder, codec)    prefix: <|im_start|>user\n    suffix: <|im_end|>\n<|im_start|>assistant\n
    tokenizer_files(folder)             {"tokenizer_config.json": b"...", "chat_template.jinja": b"...", ...}

The prompt is the user's message, and everything after it (states, queries, results) the reply that the model continues,
as in the training of MEM1's released checkpoint. The template's tokens are part of every context and never trained.

A template is a program from the model's folder. transformers runs it in jinja2's sandbox, without access to Python;
here its time and its output are limited.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from mem1.errors import UserError
from mem1.net.exchange import one_line

if TYPE_CHECKING:
    from mem1.engines.codec import Codec


_PLACE = "mem1-what-the-user-says"
_LIMIT_S = 5.0
_LONGEST = 100_000
"""Most characters around a prompt."""


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """Token ids before and after a prompt."""

    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def around(self, prompt_ids: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt between prefix and suffix."""
        return self.prefix + prompt_ids + self.suffix

    def without(self, context_ids: tuple[int, ...]) -> tuple[int, ...]:
        """A context that begins with a prompt in this template, without the template's tokens."""
        inside = context_ids[len(self.prefix) :]
        width = len(self.suffix)
        starts = range(len(inside) - width + 1)
        end = next((i for i in starts if inside[i : i + width] == self.suffix), len(inside))
        return inside[:end] + inside[end + width :]

    @classmethod
    def load(cls, folder: Path, codec: Codec) -> ChatTemplate:
        """The chat template in a model's folder.

        Raises UserError where it is missing, it fails, or the tokenizer would need code of the folder, which is never
        run.
        """
        return cls.of(template_tokenizer(folder), codec, where=str(folder))

    @classmethod
    def of(cls, tokenizer: Any, codec: Codec, *, where: str) -> ChatTemplate:
        """The template of a transformers tokenizer. Raises UserError naming `where` it comes from, as `load` does."""
        try:
            with limited(_LIMIT_S):
                text = tokenizer.apply_chat_template(
                    [{"role": "user", "content": _PLACE}], tokenize=False, add_generation_prompt=True
                )
        except Exception as error:  # a template is a program: it can raise anything
            raise UserError(f"{where} has no usable chat template: {why(error)}") from error
        before, place, after = str(text).partition(_PLACE)
        if not place:
            raise UserError(f"the chat template in {where} leaves out the user's message")
        if len(text) > _LONGEST:
            raise UserError(f"the chat template in {where} writes {len(text):,} characters around a prompt")
        return cls(codec.with_bos(codec.encode(before)), codec.encode(after))


def template_text(folder: Path) -> str:
    """The chat template in a model's folder, as text; several are JSON, with their names; empty: it has none.

    Nothing is run.
    """
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        pass
    for name in ("chat_template.json", "tokenizer_config.json"):
        try:
            found = json.loads((folder / name).read_text(encoding="utf-8")).get("chat_template") or ""
        except (OSError, ValueError, AttributeError):
            continue
        if found:
            return found if isinstance(found, str) else json.dumps(found)
    return ""


def several_templates(text: str) -> bool:
    """Whether a `template_text` is a JSON list of templates with names, one of which is "default"."""
    return text.startswith('[{"')


def template_tokenizer(folder: Path) -> Any:
    """The transformers tokenizer of a model's folder, which has the template. Raises UserError as `load` does."""
    from transformers import AutoTokenizer

    try:
        # trust_remote_code=False: without it transformers would ask whether to run the folder's code
        return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a damaged folder can raise anything
        raise UserError(f"{folder} has no usable chat template: {code_in(folder) or why(error)}") from error


def why(error: Exception) -> str:
    """The message of a template's error, which may quote the template."""
    return one_line(str(error)) or type(error).__name__


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the template's code, which jinja2 compiles to Python, once it has run for `seconds`.

    It is looked at between two steps of the template: one step, such as a huge power, is not broken off.
    """
    end = time.monotonic() + seconds
    before = sys.gettrace()

    def look(frame: FrameType, event: str, argument: object) -> Any:
        if time.monotonic() > end:
            raise TimeoutError(f"it runs for more than {seconds:g} s")
        return look if frame.f_code.co_filename == "<template>" else None

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)


_NAMES = frozenset(
    {
        *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
        *("chat_template.jinja", "chat_template.json"),
        *("vocab.json", "merges.txt", "vocab.txt"),
        *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tekken.json"),
    }
)
_TEMPLATES = "additional_chat_templates"


def is_tokenizer_file(path: str) -> bool:
    """Whether a path in a model's folder is one of `tokenizer_files`, or tokenizer.json."""
    folder, _, name = path.rpartition("/")
    return path in ("tokenizer.json", *_NAMES) or (folder == _TEMPLATES and name.endswith(".jinja"))


def tokenizer_files(folder: Path) -> dict[str, bytes]:
    """All files of the tokenizer except tokenizer.json, by path in the folder: chat templates, special tokens, ..."""
    found = [path for path in folder.iterdir() if path.name in _NAMES and path.is_file()]
    found += (folder / _TEMPLATES).glob("*.jinja")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(found)}


def write_tokenizer_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of `tokenizer_files` into another folder."""
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
