"""What an encoder was trained to see before a query and before a passage; a wrong prefix costs recall silently.

    known_prefixes("intfloat/e5-base-v2")      Prefixes(query="query: ", passage="passage: ")
    known_prefixes("models/bge-small-en-v1.5") Prefixes(query="Represent this sentence for ...: ", passage="")
    known_prefixes("my-encoder")               UserError: give them yourself

An encoder is known by the last part of its id or path. A folder called "model", and a snapshot in the cache of
Hugging Face, has the name of the folder above.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath

from mem1.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Put before the text as it is, a space at the end included; empty: nothing."""

    query: str = ""
    passage: str = ""


_E5 = Prefixes(query="query: ", passage="passage: ")
_BGE = Prefixes(query="Represent this sentence for searching relevant passages: ")
_BGE_CHINESE = Prefixes(query="为这个句子生成表示以用于检索相关文章\uff1a")
_NONE = Prefixes()
_KNOWN: dict[str, Prefixes] = {
    r"(multilingual-)?e5-(small|base|large)(-v2|-unsupervised)?": _E5,
    r"bge-(small|base|large)-en(-v1\.5)?": _BGE,
    r"bge-(small|base|large)-zh(-v1\.5)?": _BGE_CHINESE,
    r"bge-m3": _NONE,
    r"(gt-)?all-minilm-l(6|12)-v[12]": _NONE,
    r"(paraphrase|multi-qa|msmarco)-minilm-.*": _NONE,
    r"(all|multi-qa|paraphrase|msmarco)-(mpnet-base|distilroberta|distilbert).*": _NONE,
    r"gte-(small|base|large)": _NONE,
    r"contriever(-msmarco)?": _NONE,
}
"""Pattern of the whole name, in lower case and with hyphens -> prefixes of its authors."""


def known_prefixes(encoder: str) -> Prefixes:
    """The prefixes of a published encoder. Raises UserError for one that is not in the table."""
    name = _name(encoder)
    for pattern, prefixes in _KNOWN.items():
        if re.fullmatch(pattern, name):
            return prefixes
    raise UserError(
        f"it is not known what {encoder} (read as {name!r}) expects before queries and passages; look it up on its "
        'model card and give --query-prefix and --passage-prefix ("" for nothing)'
    )


def _name(encoder: str) -> str:
    parts = list(PurePath(encoder).parts)
    if len(parts) >= 3 and parts[-2] == "snapshots":
        parts = [parts[-3].rpartition("--")[2]]
    elif len(parts) >= 2 and parts[-1] == "model":
        parts = parts[:-1]
    return parts[-1].lower().replace("_", "-") if parts else ""
