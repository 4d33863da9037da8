"""A scripted expert for questions with gold answers: it searches the question, then each gold passage that it lacks.

    <IS> Q1; </IS> <query> Q1 Where was the author of Emma born? </query>             the results show Emma
    <IS> Q1; </IS> <query> Jane Austen </query>                                       and now all gold passages
    <IS> Q1 then Q2; Q1 = Steventon; </IS> <query> Q2 Who built Ely Cathedral? </query>
    <IS> Q2 then done; Q1 = Steventon; Q2 = Alan; </IS> <answer> Q1 Steventon; Q2 Alan </answer>

With tags for notes an answer is written once, into a note, and the final answer is `notes`. It knows what its searches
show, so it never writes an answer that nobody could have read: that is unknown, and so is it to a policy that learns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mem1.memory.notes import NOTES
from mem1.protocol import SEARCH, SUMMARY, Tags, strip_markup
from mem1.records import Passage, Question, Task
from mem1.scoring import normalize, whole_words
from mem1.tasks.completions import UNKNOWN, completion, must_answer
from mem1.tasks.prompts import DONE, THEN, ByPrompt

_PLACE = rf"<(?:{{}}|{SUMMARY})> (?:Q\d+{THEN})?(?:Q(\d+)|{DONE});"
_QUERY = "<{0}>([^<]*)</{0}>"
_JUDGED = frozenset(("yes", "no"))
"""Answers that stand in no passage."""

Search = Callable[[Task, str], Sequence[Passage]]
"""What a search in a task shows."""


@dataclass(frozen=True, slots=True)
class _Plan:
    queries: tuple[str, ...]
    answer: str


@dataclass(frozen=True, slots=True)
class GoldExpert:
    """Writes the next completion from the text of a context."""

    tags: Tags
    tasks: Iterable[Task]
    search: Search | None = None
    """None: every question is searched once, and its answer taken to be in the results."""
    _by_prompt: ByPrompt[Task] = field(init=False, repr=False)
    _plans: dict[tuple[str, int], _Plan] = field(init=False, repr=False, default_factory=dict)
    """(id of a task, place of a question) -> how it is answered."""

    def __post_init__(self) -> None:
        by_prompt = ByPrompt(((task.prompt, task) for task in self.tasks), lambda text: " ".join(text.split()))
        object.__setattr__(self, "_by_prompt", by_prompt)

    def __call__(self, context: str) -> str:
        """The next query, or the answers after the last one. Raises StopIteration for an unknown task."""
        task, past = self._by_prompt.find(context)
        before, asked = self._place(task, past)
        done = before or 0  # questions answered by now
        query, new = "", ()
        if before is not None and asked:
            query = self._next(self._plan(task, before), asked)
            done, new = (done, ()) if query else (done + 1, (done,))
        if done < task.objectives and not query:
            query = self._plan(task, done).queries[0]
        return self._written(context, task, before, done, new, query)

    def _place(self, task: Task, past: str) -> tuple[int | None, str]:
        """(place of the question in the last state, None before there is one; the last query since a summary)."""
        states = re.findall(_PLACE.format(re.escape(self.tags.state)), past)
        if not states:
            return None, ""
        tag, since = re.escape(self.tags.action_tags[SEARCH]), past.rpartition(f"</{SUMMARY}>")[2]
        queries = re.findall(_QUERY.format(tag), since)
        return task.numbers.index(int(states[-1])) if states[-1] else task.objectives, ["", *queries][-1]

    def _next(self, plan: _Plan, asked: str) -> str:
        """The query after this one; empty: that was the last of the plan."""
        folded = ["".join(query.split()) for query in plan.queries]
        at = folded.index("".join(asked.split())) + 1
        return plan.queries[at] if at < len(folded) else ""

    def _plan(self, task: Task, place: int) -> _Plan:
        key = task.id, place
        if key not in self._plans:
            self._plans[key] = self._planned(task, place)
        return self._plans[key]

    def _planned(self, task: Task, place: int) -> _Plan:
        question = task.questions[place]
        queries = [self._clean(f"Q{task.numbers[place]} {question.text}")]
        if self.search is None:
            return _Plan(tuple(queries), question.answers[0])
        shown = {passage.id: passage for passage in self.search(task, queries[0])}
        wanted = list(dict.fromkeys(question.titles))
        while wanted := [title for title in wanted if title not in {passage.title for passage in shown.values()}]:
            text = normalize(" ".join(f"{passage.title} {passage.text}" for passage in shown.values()))
            # a name that has been read already is one that a policy can learn to search for
            title = next((title for title in wanted if normalize(title) in text), wanted[0])
            wanted.remove(title)
            if (query := self._clean(title)) and query not in queries:
                queries.append(query)
                shown |= {passage.id: passage for passage in self.search(task, query)}
        return _Plan(tuple(queries), readable(question, list(shown.values())))

    def _clean(self, text: str) -> str:
        return " ".join(strip_markup(text, self.tags).split())

    def _written(self, context: str, task: Task, before: int | None, done: int, new: Sequence[int], query: str) -> str:
        noting, labels = self.tags.note is not None, [f"Q{number}" for number in task.numbers]
        answers = [f"{labels[i]} {self._plan(task, i).answer}" for i in range(done)]
        at = labels[done] if query else DONE
        place = at if before is None or before == done else f"{labels[before]}{THEN}{at}"
        lines = [] if noting else [f"{labels[i]} = {self._plan(task, i).answer};" for i in range(done)]
        notes, given = [answers[i] for i in new], [NOTES] if noting else answers
        if must_answer(self.tags, context):
            guessed = [f"{labels[i]} {_guess(task.questions[i])}" for i in range(done, task.objectives)]
            given = [*given, *(notes if noting else ()), *guessed]
        state = " ".join([f"{place};", *lines])
        return completion(self.tags, context, state=state, notes=notes, query=query, answers="; ".join(given))


def _guess(question: Question) -> str:
    """An answer without a search: of yes and no one may be right."""
    return question.answers[0] if normalize(question.answers[0]) in _JUDGED else UNKNOWN


def readable(question: Question, passages: Sequence[Passage]) -> str:
    """The answer that these passages show: one that they contain, else the first if all gold passages are there."""
    text = whole_words(" ".join(f"{passage.title} {passage.text}" for passage in passages))
    for answer in question.answers:
        if (found := normalize(answer)) and found not in _JUDGED and whole_words(answer) in text:
            return answer
    titles = {passage.title for passage in passages}
    return question.answers[0] if question.titles and titles.issuperset(question.titles) else UNKNOWN
