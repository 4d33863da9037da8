"""A language model that says whether answers are right, behind any OpenAI-compatible chat server.

    judge = Judge(JudgeServer(base_url="http://127.0.0.1:8000/v1", model="qwen3-32b"))
    judge([Asked("Who founded Alvex?", ("Mira Toll",), "Dr Mira Toll")])   ->  [Verdict(correct=True)]

A judge that does not answer, or not in its form, gives a verdict of None with the reason; nothing is ever taken for
right or wrong in its place. The key, where the server wants one, is read from MEM1_JUDGE_API_KEY and from no other
variable, as it is sent to whatever address was given.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mem1.errors import UserError
from mem1.evaluation.judge_prompt import Asked, messages, read_verdict
from mem1.evaluation.verdicts import Verdicts
from mem1.retrieval.addresses import is_http
from mem1.retrieval.answers import read_json
from mem1.retrieval.base import RetrievalFailed
from mem1.retrieval.keys import read_key
from mem1.retrieval.posting import TryFailed, post
from mem1.retrieval.web.parallel import in_parallel
from mem1.retrieval.web.retry import Retry, TryAgain

KEY_VARIABLE = "MEM1_JUDGE_API_KEY"
NOT_IN_ITS_FORM = "the reply is not a verdict in its form"
_GIVEN_UP_AFTER = 16
"""Answers in a row without any reply, each tried several times, after which the rest are not asked."""
GIVEN_UP = f"not asked, as the judge had not replied {_GIVEN_UP_AFTER} times in a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeServer:
    """Which model judges, and how patiently it is asked. Raises UserError for an address that is none."""

    base_url: str
    """As OpenAI's clients take it, such as http://127.0.0.1:8000/v1."""
    model: str
    timeout_s: float = 60.0
    """Of one try."""
    max_tokens: int = 1024
    """Tokens of a reply; a verdict has some 30, a model that thinks aloud first needs more."""
    threads: int = 8
    """Answers judged at a time."""

    def __post_init__(self) -> None:
        if not is_http(self.base_url) or "@" in self.base_url:
            raise UserError(f"give the judge's address such as http://127.0.0.1:8000/v1, and its key in {KEY_VARIABLE}")

    @property
    def address(self) -> str:
        """Where chat requests go."""
        return f"{self.base_url.rstrip('/')}/chat/completions"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the judge said of one answer."""

    correct: bool | None
    """None: it said nothing that can be used."""
    why: str = ""
    """Why not; empty where there is a verdict."""


class _Counter:
    """Tells how many verdicts have passed through it, in order, whichever thread they come from."""

    def __init__(self, of: int, tell: Callable[[int, int], None] | None) -> None:
        self._done, self._of, self._tell = 0, of, tell
        self._lock = threading.Lock()

    def through(self, verdict: Verdict) -> Verdict:
        with self._lock:
            self._done += 1
            if self._tell is not None:
                self._tell(self._done, self._of)
        return verdict


class Judge:
    """Asks for what it does not know yet; the same answer is asked once."""

    def __init__(self, server: JudgeServer, *, verdicts: Verdicts | None = None, retry: Retry | None = None) -> None:
        """Connects when it first judges. Raises UserError where the key cannot be one."""
        self.server = server
        self._verdicts = verdicts or Verdicts(None, model=server.model)
        self._retry = retry or Retry()
        self._silent = 0
        key = read_key(KEY_VARIABLE)
        self._headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}

    def __call__(self, asked: Sequence[Asked], *, on_reply: Callable[[int, int], None] | None = None) -> list[Verdict]:
        """One verdict an answer, in order. An empty answer is wrong; nobody is asked.

        `on_reply` is told (answers judged or given up so far, answers that must be asked for) as they come in.
        """
        import httpx

        self._silent = 0
        new = [a for a in dict.fromkeys(asked) if a.prediction and self._verdicts.get(a) is None]
        limits = httpx.Limits(max_connections=self.server.threads, max_keepalive_connections=self.server.threads)
        with httpx.Client(headers=self._headers, timeout=self.server.timeout_s, limits=limits) as client:
            count = _Counter(len(new), on_reply)
            found = in_parallel(lambda a: count.through(self._judge(client, a)), new, self.server.threads)
        fresh = dict(zip(new, found, strict=True))
        return [fresh[a] if a in fresh else Verdict(bool(a.prediction and self._verdicts.get(a))) for a in asked]

    def _judge(self, client: Any, asked: Asked) -> Verdict:
        if self._silent >= _GIVEN_UP_AFTER:
            return Verdict(None, GIVEN_UP)
        body = {
            "model": self.server.model,
            "messages": messages(asked),
            "temperature": 0,
            "max_tokens": self.server.max_tokens,
        }
        try:
            reply = self._retry(lambda: self._reply(client, json.dumps(body).encode("ascii")))
        except RetrievalFailed as error:
            self._silent += 1
            return Verdict(None, str(error))
        self._silent = 0
        correct = read_verdict(reply, asked)
        if correct is None:
            return Verdict(None, NOT_IN_ITS_FORM)
        self._verdicts.put(asked, correct)
        return Verdict(correct)

    def _reply(self, client: Any, body: bytes) -> str:
        """The text of the reply. Raises TryAgain, or RetrievalFailed where another try would end the same."""
        try:
            answer = post(client, self.server.address, body, timeout_s=self.server.timeout_s, now=time.monotonic)
        except TryFailed as error:
            if error.for_good:
                raise RetrievalFailed(str(error)) from error
            raise TryAgain(str(error), wait_s=error.wait_s or None) from error
        try:
            text = read_json(answer)["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError):
            raise TryAgain("the reply is not a chat completion") from None
        return text if isinstance(text, str) else ""
