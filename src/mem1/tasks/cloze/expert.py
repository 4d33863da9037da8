"""A scripted expert for clozes, for warm starts: it reads answers off passages and keeps a list of them.

An expert reads only the text of the current context, so it has exactly a policy's memory. Everything it writes is
copied from text in sight: a question as its own query; then the words before the blank, a "->" and what follows these
words in the result; then the list with the new answer; then the labels of this question and the next, in the order
given at the end of the prompt.

    <IS> Q1 </IS> <query> Q1 and asteroid ____ Armstrong are named </query>
    <IS> and asteroid -> 6469 | Q1 = 6469 ; Q1 then Q2 </IS> <query> Q2 adapted from a ____ Mexican film </query>
    <IS> adapted from a -> 1961 | Q1 = 6469 ; Q2 = 1961 ; Q2 then done </IS> <answer> Q1 = 6469 ; Q2 = 1961 ; </answer>

Answers that a search did not show are written down as unknown. With tags for notes, each answer is written
once, into a note, and the final answer is the notes:

    <IS> and asteroid -> 6469 | Q1 then Q2 </IS> <note> Q1 = 6469 </note> <query> Q2 adapted from a ____ film </query>
    <IS> adapted from a -> 1961 | Q2 then done </IS> <note> Q2 = 1961 </note> <answer> notes </answer>

A summary that is requested has what the next state would have, and the state behind it the list alone:

    <summary> and asteroid -> 6469 | Q1 = 6469 ; Q1 then Q2 </summary>
    <IS> Q1 = 6469 ; Q1 then Q2 </IS> <query> Q2 adapted from a ____ film </query>
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from mem1.memory.notes import NOTES
from mem1.protocol import ANSWER, SEARCH, SUMMARY, Tags, blocks
from mem1.tasks.atlas import CLEAN, Laziness
from mem1.tasks.cloze.questions import BLANK
from mem1.tasks.completions import UNKNOWN
from mem1.tasks.prompts import DONE, LABELS, THEN

FOUND = "->"
"""Precedes the answer in a note."""
MARKS = (
    *(f" {BLANK}", BLANK, f" {FOUND}", " =", " |", " ;", f" {UNKNOWN}", THEN.rstrip(), f" {DONE}", "Q1"),
    *(f" Q{number}" for number in range(1, LABELS + 1)),
)
"""Marks of prompts and states that texts may lack; a small model copies better if each is one token."""
_QUESTION = re.compile(r"Q(\d+) (.*?) \|(?= Q\d+ )", re.DOTALL)
_KNOWN = re.compile(r"Q(\d+) = (.*?) ;")
_NEIGHBOURS = (4, 3, 2, 1)
"""Numbers of words on either side of the blank that the passage must contain, tried in this order."""
_LONGEST = 80
"""Maximum number of characters of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClozeExpert:
    """Writes the next completion from the text of a context."""

    tags: Tags
    laziness: Laziness = CLEAN
    """`stop` and `forget` apply, in tasks that are not `diligent`; shortcuts do not. What has been noted stays: there
    `forget` is not to note the answer."""
    seed: int = 0

    def __call__(self, context: str) -> str:
        """The completion for this context; a pure function of the context and the seed."""
        prompt = context
        for tag in (self.tags.state, self.tags.action_tags[ANSWER], SUMMARY):
            prompt = prompt.split(f"<{tag}>")[0]
        asked = {int(number): window for number, window in _QUESTION.findall(prompt.strip())}
        *_, summary = (None, *blocks(context, SUMMARY))
        queries = [*blocks(context[summary.stop if summary else 0 :], self.tags.action_tags[SEARCH])]
        if not queries:
            if summary is None:
                return self._written("", {}, None, "Q1", f"Q1 {asked[1]}", context)
            order = summary.content.rpartition(";")[2].rpartition("|")[2].strip()
            following = order.rpartition(THEN)[2]
            query = f"{following} {asked[int(following[1:])]}" if following != DONE else None
            return self._written("", self._known(context, summary.content), None, order, query, context)
        label, window = re.match(r"Q(\d+) (.*)", queries[-1].inside[1:-1], re.DOTALL).groups()  # type: ignore[union-attr]
        *_, state = (*blocks(context, SUMMARY), *blocks(context, self.tags.state))
        rng = random.Random(f"{self.seed}/{context}")
        lazy = self.laziness.of(prompt, self.seed)
        found = read_answer(window, context.rsplit(f"<{self.tags.result}>", 1)[-1])
        known, new = self._known(context, state.content), int(label)
        if not (known and rng.random() < lazy.forget):
            known[new] = found
        elif not self._notes(context):
            del known[rng.choice(sorted(known))]
            known[new] = found
        note = f"{window.split(BLANK)[0].strip()} {FOUND} {found} | ".lstrip()
        stops = len(asked) > 1 and rng.random() < lazy.stop
        if stops or int(label) == max(asked):
            return self._written(note, known, new, f"Q{label}{THEN}{DONE}", None, context)
        following = int(label) + 1
        order = f"Q{label}{THEN}Q{following}"
        return self._written(note, known, new, order, f"Q{following} {asked[following]}", context)

    def _notes(self, context: str) -> bool:
        """Whether answers are kept in notes; behind a summary they may be gone."""
        return self.tags.note is not None and f"</{SUMMARY}>" not in context

    def _known(self, context: str, state: str) -> dict[int, str]:
        """Label -> answer, from the notes where there are any and none may be gone, else from the state."""
        if not self._notes(context):
            return {int(number): answer for number, answer in _KNOWN.findall(state)}
        notes = "".join(f"{note.content} ;" for note in blocks(context, self.tags.note or ""))
        return {int(number): answer for number, answer in _KNOWN.findall(notes)}

    def _written(
        self, note: str, known: dict[int, str], new: int | None, order: str, query: str | None, context: str
    ) -> str:
        """The completion with this query; None: with the answer. `new` is the label that was answered in this turn."""
        answer, search, state = self.tags.action_tags[ANSWER], self.tags.action_tags[SEARCH], self.tags.state
        listed = memory = answers = "".join(f"Q{number} = {found} ; " for number, found in sorted(known.items()))
        noted, opened = "", context.rstrip().endswith(f"<{answer}>")
        if self._notes(context):
            memory, answers = "", f"{NOTES} "
            if new in known and opened:  # then it is too late for a note
                answers = f"{NOTES} ; Q{new} = {known[new]} "
            elif new in known:
                noted = f"<{self.tags.note}> Q{new} = {known[new]} </{self.tags.note}> "
        if opened:
            return f" {answers or f'{UNKNOWN} '}</{answer}>"
        if context.rstrip().endswith(f"<{SUMMARY}>"):
            return f" {note}{listed}{order} </{SUMMARY}>"
        action = f"<{answer}> {answers}</{answer}>" if query is None else f"<{search}> {query} </{search}>"
        return f"<{state}> {note}{memory}{order} </{state}> {noted}{action}"


def read_answer(window: str, result: str) -> str:
    """The text of the result at the window's blank; "unknown" if the result does not show it.

    read_answer("and asteroid ____ Armstrong are", "site, and asteroid 6469 Armstrong are named")  ->  "6469"
    """
    left, _, right = window.partition(BLANK)
    text = " ".join(result.split())
    for words in _NEIGHBOURS:
        before, after = " ".join(left.split()[-words:]), " ".join(right.split()[:words])
        before, after = before + " " * left.endswith(" "), " " * right.startswith(" ") + after
        pattern = rf"(?:^|(?<=\s)){re.escape(before)}(\S.{{0,{_LONGEST}}}?){re.escape(after)}(?=\s|$)"
        found = re.search(pattern, text)
        if found:
            return found[1].strip()
    return UNKNOWN
