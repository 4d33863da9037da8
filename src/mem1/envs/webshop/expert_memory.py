"""What an expert knows of a shop, in the few plain words that it hands from turn to turn.

Wish.read("find me a light roomy tent with color: teal, and size: s, and price lower than 50.00 dollars")
->  Wish(kind="tent", attributes=("light", "roomy"), options=("teal", "s"), bound=50.0)      "want light roomy ..."
Memory.of("goal 2 ; tried hola88 misses 2 ; check gola64 need roomy read")
->  Memory(goal=2, tried=(("hola88", 2),), verb="check", asin="gola64", need=("roomy",), read=True)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mem1.envs.webshop.reading import bound_in

PRICE = "price"
"""Among the needs: it costs more than was allowed."""
STATE_WORDS = ("want", "below", "goal", "tried", "misses", "try", "check", "need", "read", "take", "choose", "done")
"""Words of states that no page has; `PRICE`, names and numbers apart."""
_GOAL = re.compile(r"goal (\d+)")
_TRIED = re.compile(r"tried (\w+) misses (\d+)")
_WORK = re.compile(r"(try|check|take) (\w+)(?: need (.+?))?( read)?(?: choose (.+))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one goal of an invented catalogue asks for."""

    kind: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Values alone: no two options of an invented product share one."""
    bound: float
    """Dollars."""

    @classmethod
    def read(cls, text: str) -> Wish:
        """Of a goal's instruction. Raises ValueError where it was not made for an invented catalogue."""
        asked = re.match(r".*? an? ([a-z ]+?)(?: with |, and price |$)", text)
        if asked is None:
            raise ValueError(f"not an instruction of an invented catalogue: {text!r}")
        *attributes, kind = asked[1].split()
        return cls(
            kind=kind,
            attributes=tuple(attributes),
            options=tuple(re.findall(r"\w+: (\w+)", text)),
            bound=bound_in(text),
        )

    def __str__(self) -> str:
        return " ".join(("want", *self.attributes, *self.options, "below", f"{self.bound:.2f}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """A state, taken apart: `Memory.of(str(memory)) == memory`."""

    goal: int = 1
    tried: tuple[tuple[str, int], ...] = ()
    """asin -> how much of the wish it misses."""
    verb: str = ""
    """What is done with `asin`: "try" (to be opened), "check" (its pages are read) or "take" (to be bought)."""
    asin: str = ""
    need: tuple[str, ...] = ()
    """Wanted, and not yet seen at `asin`."""
    read: bool = False
    """Its features have been opened."""
    choose: tuple[str, ...] = ()
    """Options left to be clicked."""

    def __str__(self) -> str:
        parts = [f"goal {self.goal}"] if self.goal > 1 else []
        parts += [f"tried {asin} misses {misses}" for asin, misses in self.tried]
        words = [self.verb, self.asin, *_listed("need", self.need)]
        words += [*(["read"] if self.read else []), *_listed("choose", self.choose)]
        return " ; ".join([*parts, " ".join(words)] if self.verb else parts)

    @classmethod
    def of(cls, state: str) -> Memory:
        """Whatever else the state says is passed over."""
        goal = _GOAL.match(state)
        work = _WORK.search(state)
        verb, asin, need, read, choose = work.groups(default="") if work else ("",) * 5
        return cls(
            goal=int(goal[1]) if goal else 1,
            tried=tuple((tried, int(misses)) for tried, misses in _TRIED.findall(state)),
            verb=verb,
            asin=asin,
            need=tuple(need.split()),
            read=bool(read),
            choose=tuple(choose.split()),
        )


def _listed(name: str, words: Sequence[str]) -> list[str]:
    return [name, *words] if words else []
