"""Scripted experts for the invented catalogue: a clean one, and lazy ones for warm starts with mostly bad habits.

An expert decides from the instruction, its own last state, the page in sight and the number of turns left, so it has
exactly the memory of a policy with constant memory. For "find me a light roomy tent with color: teal …" it writes:

    page        state                                                   action
    search      want light roomy teal s below 50.00                     search[light roomy tent teal s]
    results     try hola88                                              click[hola88]
    HOLA88      tried hola88 misses 2                                   click[< prev]      (wrong size, too expensive)
    results     tried hola88 misses 2 ; try gola64                      click[gola64]
    GOLA64      tried hola88 misses 2 ; check gola64 need roomy read    click[features]
    features    tried hola88 misses 2 ; check gola64 read               click[< prev]
    GOLA64      tried hola88 misses 2 ; take gola64 choose s            click[teal]
    GOLA64      tried hola88 misses 2 ; take gola64                     click[s]
    GOLA64      done                                                    click[buy now]

With several goals the state begins with the number of the current one: "goal 2 ; try hola88". With tags that
has notes, a product that was tried is written once, into a note, and the state has only what happens now:

    HOLA88                                  <note> tried hola88 misses 2 </note>               click[< prev]
    results     goal 2 ; try gola64         <note> goal 2 tried hola88 misses 2 </note>        click[gola64]
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mem1.configuration import Config
from mem1.configuration.model import Probability
from mem1.envs.webshop.catalogue import NO_PRICE, Goal
from mem1.envs.webshop.pages import BACK_TO_SEARCH, BUY_NOW, NEXT, PREVIOUS, SEPARATOR, Session
from mem1.envs.webshop.shop import Actions, Shop

TURN_LIMIT = 15
BUY = "click[buy now]"
BACK = "click[< prev]"
HEAD = 3
"""Number of texts before a page's own: "Instruction:", the instruction, "Back to Search"."""
_BOUND = re.compile(r"price lower than ([\d.]+) dollars$")
_PRICE = re.compile(r"\$([\d.]*\d)")
_BUTTONS = {text.lower() for text in (BACK_TO_SEARCH, NEXT, PREVIOUS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """Everything a shopper knows when it decides."""

    instruction: str
    text: str
    actions: Actions
    turns_left: int
    """Including this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A product on the results page."""

    asin: str
    title: str
    price: float
    """Dollars: the middle of a range, 0 if none is shown."""


def look(shop: Shop, session: Session, *, turns_left: int) -> Sight:
    return Sight(
        instruction=session.instruction,
        text=shop.observe(session, "text"),
        actions=shop.actions(session),
        turns_left=turns_left,
    )


def page_of(text: str) -> Literal["search", "results", "item", "detail"]:
    """Kind of page; "detail" is any page that an item links to."""
    texts = text.split(SEPARATOR)
    if texts[0] == "WebShop":
        return "search"
    if any(part.startswith("Page ") for part in texts[HEAD : HEAD + 1]):
        return "results"
    return "item" if texts[-1] == BUY_NOW else "detail"


def own_text(text: str) -> str:
    """The page's own text in lower case, without the head, which repeats the instruction."""
    return " ".join(text.split(SEPARATOR)[HEAD:]).lower()


def hits(sight: Sight) -> tuple[Hit, ...]:
    """The products of a results page, best first."""
    texts = sight.text.split(SEPARATOR)[HEAD:]
    links = set(sight.actions.clickables) - _BUTTONS
    return tuple(
        Hit(asin=asin, title=title, price=price_in(price))
        for asin, title, price in zip(texts, texts[1:], texts[2:], strict=False)
        if asin.lower() in links
    )


def price_in(text: str) -> float:
    """ "$20.0 to $30.0" -> 25.0; 0 without a price."""
    shown = [float(price) for price in _PRICE.findall(text)]
    return sum(shown) / len(shown) if shown else 0.0


def wishes(instruction: str) -> tuple[str, ...]:
    """The wishes in an instruction, one per goal; several are numbered."""
    if not instruction.startswith("1. "):
        return (instruction,)
    found, number = [], 2
    rest = instruction.removeprefix("1. ")
    while (mark := f" {number}. ") in rest:
        wish, rest = rest.split(mark, 1)
        found.append(wish)
        number += 1
    return (*found, rest)


def bound_in(wish: str) -> float:
    """Highest price in dollars that the wish allows; `NO_PRICE` if it names none."""
    bound = _BOUND.search(wish)
    return float(bound[1]) if bound else NO_PRICE


class Laziness(Config):
    """Probabilities of lazy habits, each per decision; all 0: the clean expert."""

    diligent: Probability = 0.0
    """Share of tasks done without the habits below."""
    vague: Probability = 0.0
    """Searches only for the type of product."""
    grab: Probability = 0.0
    """Buys the first hit without reading about it."""
    settle: Probability = 0.0
    """Buys the opened product although something is missing or not yet seen; drawn on the item page."""
    forget: Probability = 0.0
    """Buys although options remain to be chosen; drawn before each."""


CLEAN = Laziness()


PRICE = "price"
"""Listed among the needs if the product costs too much."""
STATE_WORDS = ("want", "below", "goal", "tried", "misses", "try", "check", "need", "read", "take", "choose", "done")
"""Words of states that occur on no page, apart from `PRICE`, names and numbers."""
_GOAL = re.compile(r"goal (\d+)")
_TRIED = re.compile(r"tried (\w+) misses (\d+)")
_WORK = re.compile(r"(try|check|take) (\w+)(?: need (.+?))?( read)?(?: choose (.+))?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one goal of an invented catalogue asks for."""

    kind: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    """Values without names: no two options of an invented product share a value."""
    bound: float
    """Dollars."""

    @classmethod
    def read(cls, text: str) -> Wish:
        """Read a goal's instruction. Raises ValueError if it was not made for an invented catalogue."""
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
class Notes:
    """A parsed state: `Notes.of(str(notes)) == notes`."""

    goal: int = 1
    tried: tuple[tuple[str, int], ...] = ()
    """(asin, number of needs it misses)."""
    verb: str = ""
    """What happens with `asin`: "try" (open it), "check" (read its pages) or "take" (buy it)."""
    asin: str = ""
    need: tuple[str, ...] = ()
    """Wanted attributes not yet seen at `asin`."""
    read: bool = False
    """Whether its features have been opened."""
    choose: tuple[str, ...] = ()
    """Options still to be clicked."""

    def __str__(self) -> str:
        parts = [f"goal {self.goal}"] if self.goal > 1 else []
        parts += [f"tried {asin} misses {misses}" for asin, misses in self.tried]
        words = [self.verb, self.asin, *_listed("need", self.need)]
        words += [*(["read"] if self.read else []), *_listed("choose", self.choose)]
        return " ; ".join([*parts, " ".join(words)] if self.verb else parts)

    @classmethod
    def of(cls, state: str) -> Notes:
        """Parse a state; unknown parts are ignored."""
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


def noted_apart(state: str, earlier: str) -> tuple[str, tuple[str, ...]]:
    """The state without products that were tried, and a note for each that `earlier`, the state before, has not.

    noted_apart("goal 2 ; tried a1 misses 2 ; try b2", "goal 2 ; check a1 need s")
    ->  ("goal 2 ; try b2", ("goal 2 tried a1 misses 2",))
    """
    parts, before = state.split(" ; "), set(earlier.split(" ; "))
    goal = "".join(f"{part} " for part in parts if _GOAL.fullmatch(part))
    tried = [part for part in parts if _TRIED.fullmatch(part)]
    rest = " ; ".join(part for part in parts if part not in tried)
    return rest, tuple(f"{goal}{part}" for part in tried if part not in before)


def _listed(name: str, words: Sequence[str]) -> list[str]:
    return [name, *words] if words else []


_RETURN = 2
"""Turns from one item's page to another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One turn of an expert."""

    state: str
    """Everything it knows in the next turn, apart from the instruction."""
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopExpert:
    """Writes the next state and action; a pure function of its arguments and the seed."""

    laziness: Laziness = CLEAN
    seed: int = 0

    def __call__(self, sight: Sight, state: str) -> Decision:
        """`state` is that of its last decision, empty in the first turn. Raises ValueError for goals not invented."""
        memory = Notes.of(state)
        wanted = [Wish.read(text) for text in wishes(sight.instruction)]
        wish = wanted[memory.goal - 1]
        turn = _Turn(
            wish=wish,
            memory=memory,
            sight=sight,
            # each later goal keeps what it needs at least: search, open, choose, buy
            turns_left=sight.turns_left - sum(3 + len(later.options) for later in wanted[memory.goal :]),
            lazy=self._laziness(sight.instruction),
            rng=random.Random("/".join((str(self.seed), sight.instruction, state, sight.text))),
        )
        page = page_of(sight.text)
        if page in ("item", "detail") and not memory.verb:
            raise ValueError(f"no expert writes this state on the page of an item: {state!r}")
        if page == "search":
            return turn.search()
        if page == "results":
            return turn.pick()
        if page == "detail":
            return turn.note()
        decision = turn.take() if memory.verb == "take" else turn.check()
        if decision.action != BUY:
            return decision
        return replace(decision, state="done" if memory.goal == len(wanted) else str(Notes(goal=memory.goal + 1)))

    def _laziness(self, instruction: str) -> Laziness:
        drawn = random.Random(f"{self.seed}/{instruction}").random()
        return CLEAN if drawn < self.laziness.diligent else self.laziness


def demonstrate(
    expert: ShopExpert, shop: Shop, goals: Sequence[Goal], turn_limit: int = TURN_LIMIT
) -> tuple[Session, tuple[Decision, ...]]:
    """The expert's last session, and its decisions."""
    session, decisions = shop.start(goals), list[Decision]()
    while not session.done and len(decisions) < turn_limit:
        sight = look(shop, session, turns_left=turn_limit - len(decisions))
        decisions.append(expert(sight, decisions[-1].state if decisions else ""))
        session = shop.step(session, decisions[-1].action)
    return session, tuple(decisions)


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """What is known at one decision, and the decisions for each kind of page."""

    wish: Wish
    memory: Notes
    sight: Sight
    turns_left: int
    """Turns for the current goal, including this one."""
    lazy: Laziness
    rng: random.Random

    def search(self) -> Decision:
        wish, memory = self.wish, Notes(goal=self.memory.goal)
        words = [wish.kind] if self._draws(self.lazy.vague) else [*wish.attributes, wish.kind, *wish.options]
        return Decision(state=" ; ".join(filter(None, (str(memory), str(wish)))), action=f"search[{' '.join(words)}]")

    def pick(self) -> Decision:
        """On the results page: choose the product to open next."""
        memory, found = self.memory, hits(self.sight)
        if memory.verb == "take":
            return self._open(memory)
        if self._draws(self.lazy.grab):
            return self._open(self._taking(found[0].asin.lower()))
        tried = dict(memory.tried)
        fresh = [hit for hit in found if hit.asin.lower() not in tried]
        if tried and not (fresh and self._time_for(1 + _RETURN)):
            return self._open(self._taking(min(tried, key=tried.__getitem__)))
        wanted = {self.wish.kind, *self.wish.attributes}
        best = max(fresh, key=lambda hit: (hit.price <= self.wish.bound, len(_words(hit.title) & wanted)))
        return self._open(replace(memory, verb="try", asin=best.asin.lower()))

    def check(self) -> Decision:
        """On the page of a candidate: read on, turn back, or start choosing options."""
        memory = self.memory if self.memory.verb == "check" else self._first_sight()
        if not memory.need or self._draws(self.lazy.settle):
            return self._take_it()
        if not memory.read and set(memory.need) <= set(self.wish.attributes) and self._time_for(2):
            return self._go(replace(memory, read=True), "click[features]")
        misses = len(memory.need)
        tried = (*memory.tried, (memory.asin, misses))
        if self._time_for(2 + _RETURN):
            return self._go(Notes(goal=memory.goal, tried=tried), BACK)
        best, fewest = min(tried, key=lambda candidate: candidate[1])
        if fewest < misses and self._time_for(_RETURN):
            return self._go(replace(self._taking(best), tried=tried), BACK)
        return self._take_it()

    def note(self) -> Decision:
        """On a page linked from an item: cross off what it shows."""
        seen = _words(own_text(self.sight.text))
        need = tuple(want for want in self.memory.need if want not in seen)
        return self._go(replace(self.memory, need=need), BACK)

    def take(self) -> Decision:
        """On the page of the item to buy: choose the remaining options, then buy."""
        left = [value for value in self.memory.choose if value in self.sight.actions.clickables]
        if not left or self.turns_left <= 1 or self._draws(self.lazy.forget):
            return self._go(replace(self.memory, choose=()), BUY)
        return self._go(replace(self.memory, choose=tuple(left[1:])), f"click[{left[0]}]")

    def _first_sight(self) -> Notes:
        wish, shown = self.wish, _words(own_text(self.sight.text))
        need = [want for want in wish.attributes if want not in shown]
        need += [value for value in wish.options if value not in self.sight.actions.clickables]
        if price_in(own_text(self.sight.text)) > wish.bound:
            need.append(PRICE)
        return replace(self.memory, verb="check", need=tuple(need))

    def _take_it(self) -> Decision:
        return replace(self, memory=self._taking(self.memory.asin)).take()

    def _taking(self, asin: str) -> Notes:
        return replace(self.memory, verb="take", asin=asin, need=(), read=False, choose=self.wish.options)

    def _time_for(self, detour: int) -> bool:
        """Whether enough turns remain to choose and buy after `detour` others."""
        return self.turns_left >= detour + len(self.wish.options) + 1

    def _draws(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _open(self, memory: Notes) -> Decision:
        return self._go(memory, f"click[{memory.asin}]")

    def _go(self, memory: Notes, action: str) -> Decision:
        return Decision(state=str(memory), action=action)
