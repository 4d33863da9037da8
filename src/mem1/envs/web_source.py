"""Tasks on the open web: questions in files, answered through a search API and, where the tags allow, opened pages.

WebTasks(questions="test.jsonl", api="serper", cache="web.sqlite").source("evaluation", PAPER_WEB).environment
->  WebQAEnvironment, asking Serper and keeping every answer in web.sqlite
WebTasks(questions="test.jsonl", api="serper", cache="web.sqlite", mode="replay")
->  the same run again, without a network
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from mem1.configuration import Config
from mem1.envs.file_questions import FileQuestions, QuestionFiles, TaskSource
from mem1.protocol import OPEN, Tags
from mem1.retrieval.corpus import cache_folder
from mem1.retrieval.web.cache import Mode, WebCache
from mem1.retrieval.web.limits import HostLimit, Spending, WebBudget
from mem1.tasks.atlas.names import Split

if TYPE_CHECKING:
    from mem1.envs.web_qa import WebQAEnvironment

_DAY_S = 24 * 3600.0


class WebPages(Config):
    """How pages are opened; of effect where the vocabulary has the action."""

    piece_characters: int = Field(default=2000, ge=100)
    """Longest piece of a page that is shown at once."""
    robots: bool = True
    """Keep away from what robots.txt forbids to programs."""
    seconds_between: float = Field(default=1.0, ge=0)
    """Between two requests to the same host."""
    megabytes: float = Field(default=3.0, gt=0)
    """Largest page, as sent and once decompressed."""
    seconds: float = Field(default=20.0, gt=0)
    """Longest time for one page, its redirects included."""


class WebTasks(QuestionFiles):
    """Tasks from questions in files, answered on the open web."""

    kind: Literal["web"] = "web"
    api: Literal["serper", "brave", "tavily", "searxng"] = "serper"
    """Search API. Its key is read from SERPER_API_KEY, BRAVE_API_KEY or TAVILY_API_KEY; searxng needs none."""
    api_url: str | None = None
    """Base address of the API; None: its own, of searxng http://localhost:8080."""
    mode: Mode = "live"
    """live; offline: only what is fresh in the cache; replay: only the cache, whatever its age."""
    cache: str | None = None
    """File of the cache; None: web.sqlite in $MEM1_CACHE, else in ~/.cache/mem1."""
    cache_days: float = Field(default=30.0, ge=0)
    """Age at which an answer is asked for again."""
    prompt: str | None = None
    """None: "web" where the vocabulary can open pages, else "mem1"."""
    top_k: int = Field(default=10, ge=1)
    """Results asked for and shown a search."""
    passage_words: int = Field(default=100, ge=1)
    """Words shown of a snippet."""
    seconds_between_searches: float = Field(default=0.0, ge=0)
    """Between two requests to the search API."""
    pages: WebPages = WebPages()
    budget: WebBudget = WebBudget()
    """Of this half of the tasks, in one process."""

    def source(self, split: Split, tags: Tags) -> TaskSource:
        """The tasks of one half. Raises UserError where a question stands in both halves, or a file is missing."""
        return _Web(self, split, tags)


@dataclass(frozen=True)
class _Web(FileQuestions):
    config: WebTasks

    @cached_property
    def environment(self) -> WebQAEnvironment:
        from mem1.envs.web_qa import WebQAEnvironment
        from mem1.retrieval.web.fetch import Fetcher, FetchLimits
        from mem1.retrieval.web.reader import PageReader
        from mem1.retrieval.web.search import WebSearch, search_api

        config, pages = self.config, self.config.pages
        path = cache_folder() / "web.sqlite" if config.cache is None else Path(config.cache)
        cache = WebCache(path, mode=config.mode, max_age_s=config.cache_days * _DAY_S)
        spending = Spending(config.budget)
        limit = HostLimit(config.seconds_between_searches)
        search = WebSearch(search_api(config.api, config.api_url), cache, spending=spending, limit=limit)
        reader = PageReader(
            cache,
            fetcher=Fetcher(limits=FetchLimits(megabytes=pages.megabytes, seconds=pages.seconds)),
            spending=spending,
            limit=HostLimit(pages.seconds_between),
            respect_robots=pages.robots,
            piece_characters=pages.piece_characters,
        )
        return WebQAEnvironment(
            {self.corpus: search},
            reader=reader,
            style="addressed",
            top_k=config.top_k,
            passage_words=config.passage_words,
        )

    @property
    def corpus(self) -> str:
        return "web"

    @property
    def prompt(self) -> str:
        return self.config.prompt or ("web" if OPEN in self.tags.action_tags else "mem1")
