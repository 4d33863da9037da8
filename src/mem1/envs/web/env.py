"""Questions answered on the open web: a search action returns addresses and snippets, an open action a piece of a page.

env = WebQAEnvironment({"web": WebSearch(Serper(), cache)}, reader=PageReader(cache), style="addressed", top_k=10)
env.observe([Action(task, "search", "capital of Norway")])[0].text
-> "Doc 1 (Title: Oslo) https://en.wikipedia.org/wiki/Oslo Oslo is the capital of ..."
env.observe([Action(task, "open", "https://en.wikipedia.org/wiki/Oslo 2")])[0].text
-> "Page https://en.wikipedia.org/wiki/Oslo (Title: Oslo), piece 2 of 5: ..."

Nothing is kept between calls: an action names a page by its address, and a piece by address and number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from mem1.envs.base import Action, Observation
from mem1.envs.search.env import SearchEnvironment
from mem1.net.threads import in_parallel
from mem1.protocol import OPEN, SEARCH
from mem1.retrieval import RetrievalFailed
from mem1.retrieval.web.pages import PageReader

_WHAT_TO_OPEN = re.compile(r"(\S+)(?:\s+(\d{1,6}))?")
_LONGEST_SHOWN = 200
"""Maximum length of an address shown in an error, in characters."""


@dataclass(frozen=True, slots=True)
class WebQAEnvironment(SearchEnvironment):
    """Searches the web and opens pages; scores as `SearchEnvironment` does."""

    actions: ClassVar[tuple[str, ...]] = (SEARCH, OPEN)
    _: KW_ONLY
    reader: PageReader
    threads: int = 8
    """Requests answered at a time."""

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        """One observation per search or opened page; identical actions are carried out once.

        An action that fails affects no other. Raises UserError for another kind of action.
        """
        for action in actions:
            self._check(action)
        asked = [(action.task.corpus, action.kind, action.argument) for action in actions]
        different = list(dict.fromkeys(asked))
        replies = dict(zip(different, in_parallel(self._reply, different, self.threads), strict=True))
        return [replies[one] for one in asked]

    def _reply(self, action: tuple[str, str, str]) -> Observation:
        corpus, kind, content = action
        return self._open(content) if kind == OPEN else self._search(corpus, [content])[0]

    def _open(self, content: str) -> Observation:
        wanted = _WHAT_TO_OPEN.fullmatch(content.strip())
        if wanted is None:
            return Observation(text="Give one address to open, or an address and the number of a piece.")
        address, number = wanted[1], int(wanted[2] or 1)
        try:
            page = self.reader.open(address)
        except RetrievalFailed as error:
            return Observation(text="", failed=str(error))
        shown = page.address[:_LONGEST_SHOWN]
        if page.failed is not None:
            return Observation(text=f"The page {shown} could not be opened: {page.failed}.")
        pieces = len(page.pieces)
        if not 1 <= number <= pieces:
            there = "one piece" if pieces == 1 else f"{pieces} pieces"
            return Observation(text=f"The page {shown} has {there}; there is no piece {number}.")
        title = f" (Title: {page.title})" if page.title else ""
        return Observation(text=f"Page {page.address}{title}, piece {number} of {pieces}: {page.pieces[number - 1]}")
