"""Transcripts of a probe, made by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mem1.extras.probe.transcripts import Fact, Transcript

HEAD = ({"role": "system", "content": "You operate."}, {"role": "user", "content": "Repair the night run."})


def said(number: int, text: str | None = None) -> dict[str, Any]:
    """The model's turn, with a call."""
    function = {"name": "run", "arguments": json.dumps({"job": number})}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def result(number: int, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"c{number}", "content": text}


def jobs(number: int, *, filler: str = "The line is quiet and nothing moves there.") -> Transcript:
    """So many exchanges: each names the host of a job, and every tenth is followed by a rule of the user."""
    messages: list[Mapping[str, Any]] = list(HEAD)
    facts: list[Fact] = []
    for job in range(number):
        host = f"host-{1000 + 7 * job}.internal"
        messages += [said(job), result(job, f"{filler} The host of job {job} is {host}. {filler}")]
        cloze = f"The host of job {job} is ____."
        facts.append(Fact(kind="identifier", cloze=cloze, forms=(host,), message=len(messages) - 1))
        if job % 10 == 9:
            queue = f"queue_{job}"
            messages.append({"role": "user", "content": f"From now on never touch {queue}."})
            facts.append(Fact(kind="rule", cloze="Never touch ____.", forms=(queue,), message=len(messages) - 1))
    return Transcript(kind="jobs", messages=tuple(messages), facts=tuple(facts))


def moved() -> Transcript:
    """A host that is named, moved, and named anew; two exchanges each."""
    old, new = "host-1.internal", "host-2.internal"
    messages = (
        *HEAD,
        *(said(0), result(0, f"The staging host is {old}.")),
        *(said(1), result(1, "Nothing else is there.")),
        *(said(2), result(2, f"Correction: the staging host is {new}.")),
        *(said(3), result(3, "All is well.")),
    )
    cloze = "The staging host is ____."
    facts = (
        Fact(kind="identifier", cloze=cloze, forms=(old,), message=3, until=7),
        Fact(kind="correction", cloze=cloze, forms=(new,), message=7, stale=(old,)),
    )
    return Transcript(kind="jobs", messages=messages, facts=facts)


def as_lines(transcripts: Sequence[Transcript]) -> str:
    """As a file has them."""
    return "".join(json.dumps(transcript.as_dict()) + "\n" for transcript in transcripts)
