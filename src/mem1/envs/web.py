"""Questions answered on the open web: a search action returns addresses and snippets, an open action a piece of a page.

WebTasks(questions="q.json", api="serper", cache="web.sqlite").source("evaluation", extended(PAPER, "open")).environment
->  WebQAEnvironment, which queries Serper and caches every answer in web.sqlite; mode="replay": the same run again,
    without a network
env.observe([Action(task, "open", "https://en.wikipedia.org/wiki/Oslo 2")])[0].text
->  "Page https://en.wikipedia.org/wiki/Oslo (Title: Oslo), piece 2 of 5: ..."

Nothing is kept between calls: an action names a page by its address, and a piece by address and number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from pydantic import Field, field_validator

from mem1.cache import cache_folder
from mem1.configuration import Config
from mem1.envs.base import Action, Observation, TaskSource
from mem1.envs.search import FileQuestions, QuestionFiles, SearchEnvironment
from mem1.net.failover import HostLimit
from mem1.net.spending import Spending, WebBudget
from mem1.net.threads import in_parallel
from mem1.protocol import OPEN, SEARCH, Tags
from mem1.registry import register
from mem1.retrieval import RetrievalFailed
from mem1.retrieval.web.cache import Mode, WebCache
from mem1.retrieval.web.pages import PageReader
from mem1.tasks.compose import Split
from mem1.tasks.prompts import PromptChoice

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

        def reply(action: tuple[str, str, str]) -> Observation:
            corpus, kind, content = action
            return self._open(content) if kind == OPEN else self._search(corpus, [content])[0]

        for action in actions:
            self._check(action)
        asked = [(action.task.corpus, action.kind, action.argument) for action in actions]
        different = list(dict.fromkeys(asked))
        replies = dict(zip(different, in_parallel(reply, different, self.threads), strict=True))
        return [replies[one] for one in asked]

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


WEB = "web"
"""Name of the collection that is the web."""
_DAY_S = 24 * 3600.0


class WebPages(Config):
    """How pages are opened, if the tags have that action."""

    piece_characters: int = Field(default=2000, ge=100)
    """Maximum length of a piece of a page, in characters."""
    robots: bool = True
    """Obey robots.txt."""
    seconds_between: float = Field(default=1.0, ge=0)
    """Minimum time between two requests to the same host."""
    megabytes: float = Field(default=3.0, gt=0)
    """Maximum size of a page, both as sent and decompressed."""
    seconds: float = Field(default=20.0, gt=0)
    """Time limit for one page, redirects included."""


class Web(Config):
    """How the web is searched and read."""

    api: str = "serper"
    """Search API: serper, brave, tavily, searxng, or your own as package.module:NAME. The key is read from
    SERPER_API_KEY, BRAVE_API_KEY or TAVILY_API_KEY; searxng needs none."""
    api_url: str | None = None
    """Base address of the API; None: its own, of searxng http://localhost:8080."""
    mode: Mode = "live"
    """live; offline: only what is fresh in the cache; replay: only the cache, whatever its age."""
    cache: str | None = None
    """File of the cache; None: web.sqlite in $MEM1_CACHE, else in ~/.cache/mem1."""
    cache_days: float = Field(default=30.0, ge=0)
    """Age at which a cached answer expires."""
    top_k: int = Field(default=10, ge=1)
    """Results per search."""
    passage_words: int = Field(default=100, ge=1)
    """Number of words shown of each snippet."""
    seconds_between_searches: float = Field(default=0.0, ge=0)
    """Minimum time between two requests to the search API."""
    pages: WebPages = WebPages()
    budget: WebBudget = WebBudget()
    """Limits of one environment, that is, of one half of the tasks in one process."""

    @field_validator("api")
    @classmethod
    def _known(cls, api: str) -> str:
        register.search_api.get(api)
        return api

    def make_environment(self, reward: str = "sum") -> WebQAEnvironment:
        """Answers the searches of tasks whose collection is `WEB`."""
        from mem1.retrieval.web.pages import Fetcher, FetchLimits, PageReader
        from mem1.retrieval.web.search import WebSearch, search_api

        pages = self.pages
        path = cache_folder() / "web.sqlite" if self.cache is None else Path(self.cache)
        cache = WebCache(path, mode=self.mode, max_age_s=self.cache_days * _DAY_S)
        spending = Spending(self.budget)
        limit = HostLimit(self.seconds_between_searches)
        search = WebSearch(search_api(self.api, self.api_url), cache, spending=spending, limit=limit)
        reader = PageReader(
            cache,
            fetcher=Fetcher(limits=FetchLimits(megabytes=pages.megabytes, seconds=pages.seconds)),
            spending=spending,
            limit=HostLimit(pages.seconds_between),
            respect_robots=pages.robots,
            piece_characters=pages.piece_characters,
        )
        return WebQAEnvironment(
            {WEB: search},
            reader=reader,
            style="addressed",
            top_k=self.top_k,
            passage_words=self.passage_words,
            reward=reward,
        )


class WebTasks(QuestionFiles, Web):
    """Tasks from questions in files, answered on the open web."""

    prompts: ClassVar[tuple[str, str, str]] = ("web", "web-example", "tools")
    asks: ClassVar[tuple[str, ...]] = (OPEN,)
    kind: str = "web"
    prompt: PromptChoice | None = None
    """Text at the head of every context. None: as [protocol] and these tasks need it."""

    def own_prompt(self, tags: Tags) -> PromptChoice:
        return self.prompt or ("web" if OPEN in tags.action_tags else "mem1")

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half. Raises UserError if a question occurs in both halves or a file is missing."""
        return _Web(self, split, tags)

    def check_search(self) -> str:
        return f"{self.api}: not queried, because a search may cost money"


@dataclass(frozen=True)
class _Web(FileQuestions):
    config: WebTasks

    @cached_property
    def environment(self) -> WebQAEnvironment:
        return self.config.make_environment(self.config.own_reward)

    corpus: ClassVar[str] = WEB
