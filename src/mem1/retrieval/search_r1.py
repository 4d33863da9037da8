r"""Search-R1's retrieval protocol, for client and server: JSON over POST /retrieve.

    request   {"queries": ["capital of Norway"], "topk": 3, "return_scores": true}
    answer    {"result": [[{"document": {"id": "p0", "contents": "\"Oslo\"\nThe capital of Norway."}, "score": 2.9}]]}

Without scores an entry is the document itself. Search-R1's own servers answer with {"id", "contents"} (dense) or with
{"title", "text", "contents"} and no id (BM25), and its clients read only `document.contents`. We read both forms.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import BaseModel, Field

from mem1.jsonl import encode_object
from mem1.net.exchange import number, read_json, shown, whole_number
from mem1.records import Passage
from mem1.retrieval.base import Result, sound_text
from mem1.retrieval.corpus import joined_contents, title_and_text

PATH = "/retrieve"
_ID_DIGITS = 16
_LONGEST_SCORE = 40
"""Most characters of a score given as text."""
_LARGEST_ID = (1 << 63) - 1
_LARGEST_SCORE = sys.float_info.max


class SearchRequest(BaseModel):
    """A client's request; unknown keys are ignored, as by Search-R1."""

    queries: list[str]
    topk: int | None = Field(default=None, ge=0)
    """Passages per query; None or 0: the server's default."""
    return_scores: bool = False


def encode_request(queries: Sequence[str], k: int) -> bytes:
    """A request with scores, without which Search-R1's own server can fail."""
    return encode_object({"queries": [sound_text(query) for query in queries], "topk": k, "return_scores": True})


def encode_found(found: Result, *, scores: bool) -> bytes:
    """The results of one query, encoded as a part of the answer."""
    return encode_object([_entry(*one, scores) for one in found])


def joined_answer(parts: Sequence[bytes]) -> list[bytes]:
    """The answer to a request, in consecutive pieces, from the `encode_found` of each of its queries."""
    pieces = [b'{"result":[']
    for i, part in enumerate(parts):
        pieces += (b",", part) if i else (part,)
    return [*pieces, b"]}\n"]


def _entry(passage: Passage, score: float, scores: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": joined_contents(passage)}
    return {"document": document, "score": score} if scores else document


def read_answer(body: bytes, *, queries: int, k: int) -> list[Result]:
    """Per query at most `k` (passage, score) in the server's order.

    The id defaults to the SHA-256 of the document, the score to 1 / rank. Documents without text are left out, since
    there is nothing to show. Raises ValueError naming what is wrong with the answer.
    """
    answer = read_json(body)
    results = answer.get("result") if isinstance(answer, dict) else None
    if not isinstance(results, list) or not all(isinstance(result, list) for result in results):
        raise ValueError('the answer has no "result" with one list per query')
    if len(results) != queries:
        raise ValueError(f"the answer has {len(results)} results for {queries} queries")
    return [_found(result)[:k] for result in results]


def _found(entries: Sequence[Any]) -> Result:
    read = (_read_entry(entry, rank) for rank, entry in enumerate(entries, start=1))
    return [(passage, score) for passage, score in read if passage is not None]


def _read_entry(entry: Any, rank: int) -> tuple[Passage | None, float]:
    if not isinstance(entry, dict):
        raise ValueError(f"a document of the answer is {type(entry).__name__}, not an object")
    document = entry.get("document", entry)
    if not isinstance(document, dict):
        raise ValueError(f"a document of the answer is {type(document).__name__}, not an object")
    title, text = title_and_text(document)
    return Passage(_id(document), title, text) if text.strip() else None, _score(entry, rank)


def _id(document: Mapping[str, Any]) -> str:
    given = document.get("id")
    if isinstance(given, str) or whole_number(given, most=_LARGEST_ID) is not None:
        return str(given)
    if given is not None:
        raise ValueError(f"the id of a document of the answer is {shown(given)}")
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:_ID_DIGITS]


def _score(entry: Mapping[str, Any], rank: int) -> float:
    if "document" not in entry or entry.get("score") is None:
        return 1 / rank
    given = entry["score"]
    if isinstance(given, str) and len(given) <= _LONGEST_SCORE:
        with suppress(ValueError):
            given = float(given)
    score = number(given, least=-_LARGEST_SCORE, most=_LARGEST_SCORE)
    if score is None:
        raise ValueError(f"a score of the answer is {shown(entry['score'])}")
    return score
