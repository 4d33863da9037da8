"""Documents of which clozes are made."""

from __future__ import annotations

from random import Random

from mem1.records import Passage


def corpus(passages: int) -> list[Passage]:
    """Invented, each about other people, places and years."""
    names = ["Alvex", "Berl", "Corm", "Dask", "Elvo", "Farn", "Gorm", "Hask", "Ilva", "Jorn"]
    rng = Random(0)

    def name() -> str:
        return rng.choice(names) + rng.choice(["ov", "ski", "ette", "aro", "und", "ix"])

    def words(count: int) -> str:
        return " ".join(f"{rng.choice('bdfgklmnprst')}{rng.choice('aeiou')}{rng.randrange(90)}x" for _ in range(count))

    return [
        Passage(
            f"p{i}",
            name(),
            f"{words(5)} by {name()} {name()} in {rng.randrange(1000, 2000)} {words(6)} at {name()} {words(8)}.",
        )
        for i in range(passages)
    ]
