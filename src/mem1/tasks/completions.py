"""How scripted experts write a completion in tags, or the rest of what the context has opened.

<IS> Q1 then Q2; </IS> <note> Q1 Corin Ashmont </note> <query> Q2 When was Dunford founded? </query>
"""

from __future__ import annotations

from collections.abc import Sequence

from mem1.protocol import ANSWER, SEARCH, SUMMARY, Tags

UNKNOWN = "unknown"
"""The answer to a question of which the searches show too little."""


def must_answer(tags: Tags, context: str) -> bool:
    """Whether the context has opened the answer, which must follow: it is too late for a note."""
    return context.rstrip().endswith(f"<{tags.action_tags[ANSWER]}>")


def completion(tags: Tags, context: str, *, state: str | None, notes: Sequence[str], query: str, answers: str) -> str:
    """State, notes and a search, or the answers if `query` is empty. Notes are left out where the tags have none, and
    so is a state that is None."""
    answer, search = tags.action_tags[ANSWER], tags.action_tags[SEARCH]
    if must_answer(tags, context):
        return f" {answers} </{answer}>"
    if context.rstrip().endswith(f"<{SUMMARY}>"):
        return f" {state or ''} </{SUMMARY}>"
    noted = "" if tags.note is None else "".join(f"<{tags.note}> {note} </{tags.note}> " for note in notes)
    action = f"<{search}> {query} </{search}>" if query else f"<{answer}> {answers} </{answer}>"
    thought = "" if state is None else f"<{tags.state}> {state} </{tags.state}> "
    return f"{thought}{noted}{action}"
