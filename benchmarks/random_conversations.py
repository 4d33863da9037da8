"""Random valid conversations of every kind of call, shown by every memory: whether providers accept it, and no pair is
lost.

    python benchmarks/random_conversations.py --each 10000

Conversations are those of tests/support/every_kind.py, in four kinds of messages, cut off where an agent would call the
model. Each is shown by one of the memories under one of the bounds in turn, with a stand-in that writes the states.
"Lost": calls without their result, or the other way round. "Too long": not even what is newest fits the bound.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from pathlib import Path
from random import Random

from mem1.errors import UserError
from mem1.messages import Bounds, Memory, check

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from every_kind import KINDS_OF_FORMS, form_named, pairs_of, random_steps

MEMORIES = (
    *("full", "window(2)", "masked(1)", "archive(2)", "fold(2)", "notes", "notebook(4)", "discard_all(300)"),
    *("summary(300)", "capped(60)", "constant", "dropout(50)", "belief", "external(2)", "none"),
)
BOUNDS = (
    Bounds(),
    Bounds(result=60, state=60, images=1),
    Bounds(prompt=1_500, result=200, state=100),
    Bounds(images=0),
)
COUNTED = ("conversations", "dropped", "invalid", "lost", "too long")


def counted(kind: str, each: int) -> dict[str, Counter[str]]:
    """Memory -> what its conversations came to."""
    random, form = Random(kind), form_named(kind)
    found = {name: Counter[str]() for name in MEMORIES}
    turns = itertools.cycle(itertools.product(BOUNDS, MEMORIES))
    for _ in range(each):
        steps = random_steps(random, kind)
        messages = [message for step in steps[: random.randint(2, len(steps))] for message in step]
        check(messages, form)
        bounds, name = next(turns)
        count = found[name]
        count["conversations"] += 1
        try:
            shown = Memory(name, form=form, bounds=bounds, write=lambda asked: "- what was done").prompt(messages)
        except UserError as error:
            count["too long" if bounds.prompt else "invalid"] += 1
            if not bounds.prompt:
                print(f"{kind} {name} {bounds}: {error}", file=sys.stderr)
            continue
        try:
            check(shown, form)
        except UserError as error:
            count["invalid"] += 1
            print(f"{kind} {name} {bounds}: {error}", file=sys.stderr)
        calls, answers = pairs_of(shown, kind)
        given, answered = pairs_of(messages, kind)
        count["lost"] += len((calls & answered) ^ (answers & given))
        count["dropped"] += len(given - calls)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=10_000, help="conversations per kind of messages")
    each = parser.parse_args().each
    print(f"{'form':<10} {'memory':<17}" + "".join(f"{name:>15}" for name in COUNTED))
    wrong = 0
    for kind in KINDS_OF_FORMS:
        found = counted(kind, each)
        for name, count in (*found.items(), ("all", sum(found.values(), Counter[str]()))):
            print(f"{kind:<10} {name:<17}" + "".join(f"{count[each]:>15,}" for each in COUNTED), flush=True)
        wrong += sum(count["invalid"] + count["lost"] for count in found.values())
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
