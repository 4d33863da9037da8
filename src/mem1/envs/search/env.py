"""Questions answered by searching: a search action returns passages, the answer is scored by exact match and F1.

env = SearchEnvironment({"world-7": bm25}, top_k=2, style="titled")
env.observe([Action(task, "search", "capital of Norway")])[0].text
-> "Doc 1 (Title: Oslo) Oslo is the capital of Norway.\\nDoc 2 (Title: Bergen) Bergen is a city in Norway."
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Literal, get_args

from mem1.envs.base import Action, Observation, Outcome
from mem1.errors import UserError
from mem1.protocol import SEARCH
from mem1.records import Passage, Task
from mem1.retrieval import RetrievalFailed, Retriever
from mem1.scoring import score_answers

Style = Literal["titled", "bare", "addressed"]
"""Layout of a passage: "Doc 1 (Title: Oslo) text", the text alone, or "Doc 1 (Title: Oslo) address text"."""

NOTHING_FOUND = "No passage was found."
"""Shown where a search returns no passage."""


@dataclass(frozen=True, slots=True)
class SearchEnvironment:
    """Searches the collection that each task names."""

    actions: ClassVar[tuple[str, ...]] = (SEARCH,)
    """Kinds of action that it replies to."""
    retrievers: Mapping[str, Retriever]
    """Name of a collection (`Task.corpus`) -> its search engine."""
    _: KW_ONLY
    top_k: int = 3
    """Passages shown per search."""
    passage_words: int | None = None
    """Number of words shown of each passage, not counting its title; None: all."""
    style: Style = "titled"
    reward: str = "sum"
    """sum: the number of answers that match exactly, in [0, N]; mean: their share, in [0, 1]."""

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise UserError(f"top_k must be at least 1, not {self.top_k}")
        if self.passage_words is not None and self.passage_words < 1:
            raise UserError(f"passage_words must be at least 1, or None for all words, not {self.passage_words}")
        if self.reward not in ("sum", "mean"):
            raise UserError(f"unknown reward {self.reward!r}; known: sum, mean. Your own is tasks.reward of a recipe")
        if self.style not in get_args(Style):
            raise UserError(f"unknown style of passages {self.style!r}; known: {', '.join(get_args(Style))}")

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        """One observation per search; one call of the search engine per collection.

        Raises UserError for another kind of action and for a collection without a search engine.
        """
        positions: defaultdict[str, list[int]] = defaultdict(list)
        for position, action in enumerate(actions):
            self._check(action)
            positions[action.task.corpus].append(position)
        observations: dict[int, Observation] = {}
        for corpus, members in positions.items():
            found = self._search(corpus, [actions[i].argument for i in members])
            observations.update(zip(members, found, strict=True))
        return [observations[i] for i in range(len(actions))]

    def score(self, task: Task, answer: str) -> Outcome:
        """The reward; exact match ("em") and F1 ("f1") per question as metrics."""
        scores = score_answers(answer, [q.answers for q in task.questions])
        reward = sum(scores.em) / (len(scores.em) if self.reward == "mean" else 1)
        return Outcome(reward, {"em": tuple(scores.em), "f1": tuple(scores.f1)})

    def _check(self, action: Action) -> None:
        task, kind = action.task, action.kind
        if kind not in self.actions:
            known = ", ".join(self.actions)
            raise UserError(f"task {task.id!r}: this environment has no action {kind!r}; it has: {known}")
        if task.corpus not in self.retrievers:
            known = ", ".join(map(repr, self.retrievers)) or "none"
            raise UserError(
                f"task {task.id!r} searches {task.corpus!r}, which has no search engine; there are: {known}"
            )

    def _search(self, corpus: str, queries: Sequence[str]) -> list[Observation]:
        try:
            results = self.retrievers[corpus].search(queries, self.top_k)
        except RetrievalFailed as error:
            return [Observation(text="", failed=str(error) or "the search engine did not answer")] * len(queries)
        return [Observation(text=self._show([passage for passage, _ in result])) for result in results]

    def _show(self, passages: Sequence[Passage]) -> str:
        return "\n".join(self._line(n, p) for n, p in enumerate(passages, start=1)) or NOTHING_FOUND

    def _line(self, number: int, passage: Passage) -> str:
        # white space is folded: a line end inside a passage could look like the start of another one
        text = " ".join(passage.text.split()[: self.passage_words])
        if self.style == "bare":
            return text
        title = " ".join(passage.title.split())
        if self.style == "addressed":
            text = f"{passage.id} {text}"
        return f"Doc {number} (Title: {title}) {text}" if title else f"Doc {number} {text}"
