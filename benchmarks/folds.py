"""Folds of random conversations: whether providers accept each, and how long one takes.

    python benchmarks/folds.py --folds 100000

Conversations are those of tests/support/transcripts.py, in the three forms of messages, cut off at every message. Each
is folded by every policy under several bounds, checked by its provider's rules, and folded once more, which must change
nothing. Then a conversation of 200 messages, with results of 1,000 tokens, is folded by each policy. Prints the median
of 200 in milliseconds of processor time, with and without bounds, and that of encoding the messages as JSON, which
sending them takes anyway.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from mem1.errors import UserError
from mem1.messages import Bounds, check, fold

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from transcripts import FORMS, conversation, prefixes

POLICIES = (
    *("full", "archive(1)", "archive(3)", "window(1)", "window(3)", "constant", "fold(3)", "notes", "notes(100)"),
    *("masked", "notebook(2)", "dropout(50)", "discard_all(200)", "summary(200)", "capped(60)", "external(2)", "none"),
)
BOUNDS = (Bounds(), Bounds(result=60, state=60, images=1), Bounds(prompt=1_500, result=200, state=100, handles=False))
LIMITS = (Bounds(), Bounds(result=500), Bounds(result=500, prompt=20_000))
"""Bounds of the conversation that is timed."""


def folds_of(least: int) -> tuple[int, int]:
    """(folds checked, conversations that exceed their bound whatever is dropped). Raises at the first fault."""
    checked = refused = 0
    random = Random(0)
    while checked < least:
        for form in FORMS:
            for messages in prefixes(conversation(random, form, turns=random.randint(1, 12))):
                for policy in POLICIES:
                    for bounds in BOUNDS:
                        try:
                            seen = fold(messages, policy, form=form, bounds=bounds)
                        except UserError:
                            refused += 1
                            continue
                        check(seen, form, waiting=True)
                        if fold(seen, policy, form=form, bounds=bounds) != seen:
                            raise SystemExit(f"{policy} with {bounds} changes its own result:\n{messages}")
                        checked += 1
    return checked, refused


def long_conversation(exchanges: int = 99) -> list[dict[str, Any]]:
    """A system message, a task and exchanges of two messages each."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "agent"}, {"role": "user", "content": "task"}]
    for number in range(exchanges):
        function = {"name": "search", "arguments": '{"query": "the mayor of Oslo"}'}
        calls = [{"id": f"call_{number}", "type": "function", "function": function}]
        messages.append({"role": "assistant", "content": f"<note>fact {number}</note>", "tool_calls": calls})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": f"{number} " + "word " * 800})
    return messages


def milliseconds(work: Callable[[], object]) -> float:
    """Median of 200 times."""
    times = []
    for _ in range(200):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return 1_000 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folds", type=int, default=100_000)
    given = parser.parse_args()
    checked, refused = folds_of(given.folds)
    print(f"{checked:,} folds accepted and stable; {refused:,} conversations exceed their bound whatever is dropped")
    messages = long_conversation()
    print(f"encoding 200 messages as JSON: {milliseconds(lambda: json.dumps(messages)):.2f} ms")
    print("| policy | 200 messages, ms | results of 500 tokens, ms | and prompts of 20,000, ms |\n|---|--:|--:|--:|")
    for policy in ("full", "archive(3)", "window(3)", "fold(8)", "notes"):
        times = [milliseconds(partial(fold, messages, policy, bounds=bounds)) for bounds in LIMITS]
        print(f"| {policy} | {' | '.join(f'{each:.2f}' for each in times)} |")


if __name__ == "__main__":
    main()
