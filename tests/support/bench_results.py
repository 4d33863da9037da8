"""Invented results of the benchmark: small ones, and a large one like that of a full run."""

from __future__ import annotations

import random
from collections.abc import Sequence

from mem1.bench.results import Attempt, Result, Spent

FAMILIES = ("independent", "chain", "shared", "constraint", "update", "budget", "errand")
SIZES = (1, 2, 4, 8, 16, 32, 64)


def invented(
    tasks: int,
    memories: Sequence[str] = ("full", "notes"),
    *,
    families: Sequence[str] = FAMILIES,
    model: str = "qwen-7b",
    seed: int = 0,
    skill: float = 0.9,
    detail: str = "",
) -> Result:
    """Accuracy falls with N, slower for later memories; one attempt in 40 fails."""
    attempts = []
    for place, memory in enumerate(memories):
        rng = random.Random(seed)
        for number in range(tasks):
            family, n = families[number % len(families)], SIZES[number // len(families) % len(SIZES)]
            failed = rng.random() < 0.025
            chance = skill ** (1 + n / (2 + 8 * place))
            right = tuple(0.0 if failed else float(rng.random() < chance) for _ in range(n))
            attempts.append(
                Attempt(
                    task=f"{family}-n{n}-seed0-{number}",
                    family=family,
                    level=1,
                    objectives=n,
                    memory=memory,
                    right=right,
                    ended="out_of_turns" if failed else "answered",
                    detail=detail or ("the limit of 14 turns" if failed else ""),
                    turns=2 * n + 1,
                    searches=2 * n,
                    tokens=Spent(fresh=300 * n, cached=900 * n * (n if memory == "full" else 2), output=60 * n),
                    peak=600 + (400 * n if memory == "full" else 300) + rng.randrange(50),
                    cost=0.0021 * n,
                    seconds=1.5 * n,
                )
            )
    return Result(
        model=model,
        about={"kind": "server", "address": "http://127.0.0.1:8000/v1", "temperature": 0.0},
        suite="standard",
        seed=0,
        version="0.1",
        tasks=1,
        attempts=tuple(attempts),
        prices="hosted-90",
        unit="USD",
        seconds=3600.0,
    )
