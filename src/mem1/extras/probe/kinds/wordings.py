"""How planted facts are said.

usual    what a writer is trained on (`mem1.extras.writer`), and the examination of record
other    the same kinds of facts in other sentences, which no training shows
"""

from __future__ import annotations

from collections.abc import Mapping

_USUAL: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "rule": (
        ("path", "never touch", "From now on never touch {value}; it belongs to the {topic}."),
        ("host", "always through", "For the {topic} always go through {value}, whatever happens."),
        ("product", "never mention", "Never mention {value} to anyone outside the team of the {topic}."),
        ("path", "write changes in", "Whenever the {topic} changes, write it down in {value} first."),
        ("ticket", "not before", "Do nothing about the {topic} before {value} is closed."),
    ),
    "decision": (
        ("product", "chosen", "We go with {value} for the {topic}."),
        ("product", "built on", "I have decided: the {topic} will be built on {value}."),
        ("host", "goes to", "Decision of this morning: the {topic} goes to {value}."),
        ("product", "chosen", "After some talk we chose {value} for the {topic}."),
    ),
    "identifier": (
        ("ticket", "ticket", "The ticket for the {topic} is {value}."),
        ("host", "host", "The host of the {topic} is {value}."),
        ("ticket", "filed under", "Whatever concerns the {topic} is filed under {value}."),
    ),
    "path": (
        ("path", "settings", "The settings of the {topic} live in {value}."),
        ("path", "log", "The {topic} writes its log to {value}."),
        ("path", "list", "The {topic} reads its list from {value}."),
    ),
    "number": (
        ("number", "requests per day below", "The {topic} must stay below {value} requests per day."),
        ("number", "rows", "The {topic} holds {value} rows at present."),
        ("number", "budget in dollars", "The budget of the {topic} is {value} dollars."),
    ),
    "negative": (
        ("product", "failed with", "Tried {value} for the {topic}; it failed and must not be tried again."),
        ("path", "deleted", "Deleted {value} of the {topic}; it no longer exists."),
        ("host", "not through", "The {topic} cannot be reached through {value}; that way is closed."),
        ("path", "no file", "The {topic} has no file {value}, although the old guide names it."),
    ),
}
_OTHER: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "rule": (
        ("path", "hands off", "Hands off {value}, please: the {topic} depends on it."),
        ("host", "only by", "Requests to the {topic} have to pass {value}; no exceptions."),
        ("product", "confidential", "{value} is confidential: only the people of the {topic} may hear of it."),
        ("path", "keep up to date", "Keep {value} up to date when you change something about the {topic}."),
        ("ticket", "wait for", "Wait for {value} before you start on the {topic}."),
    ),
    "decision": (
        ("product", "selected", "{value} it is for the {topic}."),
        ("host", "placed on", "The {topic} shall be placed on {value}; that is settled."),
        ("product", "winner", "Of all candidates for the {topic}, {value} won."),
    ),
    "identifier": (
        ("ticket", "reference", "Please quote {value} in all mail about the {topic}."),
        ("host", "machine", "You will find the {topic} on the machine {value}."),
        ("ticket", "problems", "{value} is where problems with the {topic} are collected."),
    ),
    "path": (
        ("path", "configuration", "To configure the {topic}, edit {value}."),
        ("path", "output", "Output of the {topic} ends up in {value}."),
        ("path", "input", "What the {topic} takes in comes from {value}."),
    ),
    "number": (
        ("number", "requests a day", "No more than {value} requests a day are allowed for the {topic}."),
        ("number", "records", "At the last count there were {value} records in the {topic}."),
        ("number", "dollars", "We may spend {value} dollars on the {topic}."),
    ),
    "negative": (
        ("product", "gave up on", "We gave up on {value} for the {topic} after three attempts."),
        ("path", "gone", "{value}, once part of the {topic}, is gone."),
        ("host", "blocked", "{value} is blocked as a way to the {topic}."),
        ("path", "never had", "Do not look for {value}; the {topic} never had it."),
    ),
}
SENTENCES = {"usual": _USUAL, "other": _OTHER}
"""Wordings -> kind -> (kind of value, what a note calls it, sentence)."""
_Overtaken = tuple[tuple[str, str, str, str, tuple[str, ...]], ...]
_USUALLY_OVERTAKEN: _Overtaken = (
    (
        *("identifier", "host", "runs on", "The {topic} runs on {value}."),
        ("The {topic} has moved from {old} to {value}.", "Since today the {topic} runs on {value}."),
    ),
    (
        *("path", "path", "keys", "The keys of the {topic} are kept in {value}."),
        ("The keys of the {topic} are now kept in {value}.", "The keys of the {topic} went from {old} to {value}."),
    ),
    (
        *("number", "number", "limit of calls", "The limit of the {topic} is {value} calls."),
        (
            "The limit of the {topic} was raised from {old} to {value} calls.",
            "New limit of the {topic}: {value} calls.",
        ),
    ),
    (
        *("identifier", "ticket", "open ticket", "The open ticket of the {topic} is {value}."),
        ("The open ticket of the {topic} is {value} now.", "{old} was wrong: the ticket of the {topic} is {value}."),
    ),
)
_OTHERWISE_OVERTAKEN: _Overtaken = (
    (
        *("identifier", "host", "served by", "{value} serves the {topic}."),
        ("{value} has taken over the {topic} from {old}.", "From now on {value} serves the {topic}."),
    ),
    (
        *("path", "path", "secrets", "The {topic} takes its secrets from {value}."),
        (
            "The secrets of the {topic} are in {value} these days, no longer in {old}.",
            "Look for the secrets of the {topic} in {value} from now on.",
        ),
    ),
    (
        *("number", "number", "cap", "The {topic} is capped at {value} calls."),
        ("The cap on the {topic} went up from {old} to {value} calls.", "The {topic} is now capped at {value} calls."),
    ),
    (
        *("identifier", "ticket", "tracked by", "{value} tracks the {topic} at the moment."),
        ("{value} tracks the {topic} now; {old} is closed.", "Since this week {value} tracks the {topic}."),
    ),
)
OVERTAKEN = {"usual": _USUALLY_OVERTAKEN, "other": _OTHERWISE_OVERTAKEN}
"""Wordings -> (kind, kind of value, what a note calls it, what is stated first, what is stated later)."""
