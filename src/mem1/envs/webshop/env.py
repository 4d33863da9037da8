"""The shop as an environment: actions in, pages out, rewards for purchases.

    env.observe([Request(task, "act", "search[blue rug]")])   ->  [Observation(text="Page 1 (Total results: 50) ...")]
    env.observe([Request(task, "act", "click[buy now]", earlier)])
        ->  [Observation(text="Thank you ...", answer=bought, ended=True)]
    bought  ->  '[{"asin": "B06Y3VLDFB", "price": 24.5, "options": {}}]'
    env.score(task, bought)                                   ->  Outcome(0.75, {"em": (0.0,), "score": (0.75,)})

The questions of a task are goals, identified by their ids. A page is a function of the task and the actions so far, so
nothing is stored between calls except a cache of sessions, which another process would recompute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, get_args

from mem1.envs.base import Action, Observation, Outcome
from mem1.envs.webshop.catalogue import Goal
from mem1.envs.webshop.pages import Mode, Purchase, Session, head_length
from mem1.envs.webshop.shop import Shop
from mem1.errors import UserError
from mem1.protocol import ACT
from mem1.records import Task

Pages = Literal["text", "text_rich", "html", "short"]
"""Page format: one of the original's, or short: only texts, without the instruction, which is in the prompt."""
_BETWEEN = " | "
"""Separates the texts of a short page; the original's [SEP] could be read as a special token."""
_DEEPEST = 100
"""Actions that a session is walked at once, far from the depth at which Python stops."""
SOLVED = 1 - 1e-9
"""Reward from which a goal counts as met exactly."""
_QUOTES = "\"'`\u2018\u2019\u201c\u201d\u00ab\u00bb"
_ACTION = re.compile(rf"[\s{_QUOTES}]*(search|click)\s*\[(.*)\][\s.{_QUOTES}]*", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True)
class WebShopEnvironment:
    """One shop and its goals."""

    shop: Shop
    goals: Mapping[str, Goal]
    """Id of a question -> its goal."""
    pages: Pages = "text"
    list_actions: bool = False
    """Whether the actions that are possible are listed below every page, as the prompt of MEM1's release expects."""
    _session: Callable[[tuple[str, ...], tuple[str, ...]], Session] = field(init=False, repr=False, compare=False)
    """(ids of the goals, actions so far) -> session, cached."""

    def __post_init__(self) -> None:
        if self.pages not in get_args(Pages):
            raise UserError(f"unknown kind of pages {self.pages!r}; known: {', '.join(get_args(Pages))}")
        object.__setattr__(self, "_session", lru_cache(maxsize=1 << 14)(self._walk))

    def observe(self, actions: Sequence[Action]) -> list[Observation]:
        """The page after each action. Raises UserError for another kind of action and for an unknown goal."""
        return [self._reply(action) for action in actions]

    def score(self, task: Task, answer: str) -> Outcome:
        """The goals' rewards summed. Metrics per goal: "score", its reward, and "em", 1 for the full reward."""
        goals = self._goals(task)
        bought = tuple(Purchase(**purchase) for purchase in json.loads(answer or "[]"))
        rewards = self.shop.rewards(Session(goals=goals, purchases=bought))
        each = (*rewards, *(0.0 for _ in goals[len(rewards) :]))
        return Outcome(sum(each), {"em": tuple(float(r >= SOLVED) for r in each), "score": each})

    def show(self, session: Session) -> str:
        """The page, and below it the possible actions if they are listed."""
        if not self.list_actions:
            return self._page(session)
        actions = self.shop.actions(session)
        listed = ["search[<content>]"] * actions.search
        listed += [f"click[{text}]" for text in actions.clickables if text != "search"]
        return f"{self._page(session)}\n\nCurrent available actions: {', '.join(listed)}"

    def _page(self, session: Session) -> str:
        if self.pages == "short":
            page = self.shop.page(session)
            return _BETWEEN.join(element.text.strip() for element in page[head_length(session.page) :])
        mode: Mode = self.pages
        return self.shop.observe(session, mode)

    def _reply(self, action: Action) -> Observation:
        task = action.task
        kinds = {action.kind, *(kind for kind, _ in action.history)}
        if kinds != {ACT}:
            raise UserError(f"task {task.id!r}: a shop has no action {(kinds - {ACT}).pop()!r}; it has: {ACT}")
        actions = (*(content for _, content in action.history), action.argument)
        self._goals(task)
        goals = tuple(question.id for question in task.questions)
        for made in range(0, len(actions), _DEEPEST):
            self._session(goals, actions[:made])
        session = self._session(goals, actions)
        purchases = [
            {"asin": bought.asin, "price": bought.price, "options": dict(bought.options)}
            for bought in session.purchases
        ]
        return Observation(
            text=self.show(session), answer=json.dumps(purchases) if purchases else None, ended=session.done
        )

    def _goals(self, task: Task) -> tuple[Goal, ...]:
        unknown = [question.id for question in task.questions if question.id not in self.goals]
        if unknown:
            raise UserError(
                f"task {task.id!r}: this shop has no goal {unknown[0]!r}; it has {len(self.goals):,}, such as "
                f"{next(iter(self.goals), 'none')!r}"
            )
        return tuple(self.goals[question.id] for question in task.questions)

    def _walk(self, goals: tuple[str, ...], actions: tuple[str, ...]) -> Session:
        if not actions:
            return self.shop.start([self.goals[goal] for goal in goals])
        *earlier, last = actions
        session = self._session(goals, tuple(earlier))  # cached, in a rollout
        return self.shop.step(session, meant(self.shop, session, last))


def meant(shop: Shop, session: Session, action: str) -> str:
    """The action with the page's own spaces and brackets, without capitals, quotes and a full stop around it.

    A word tokenizer writes "click [ bola 88 ]", a policy sees pages with round instead of angle brackets, and a model
    writes CLICK["Buy Now"]. What is no action, or no text of the page, stays as it is.
    """
    read = _ACTION.fullmatch(action)
    if read is None:
        return action
    kind, argument = read[1].lower(), read[2].strip()
    plain = argument.strip(_QUOTES).strip()
    if kind == "search":
        around = {argument[:1], argument[-1:]}
        quoted = plain and around <= set(_QUOTES) and around.isdisjoint(plain)
        return f"search[{plain if quoted else argument}]"
    texts = {_folded(text): text for text in shop.actions(session).clickables}
    tried = (argument, plain, argument.rstrip("."), plain.rstrip("."))
    return f"click[{next((texts[key] for one in tried if (key := _folded(one)) in texts), argument)}]"


def _folded(text: str) -> str:
    return "".join(text.lower().split()).translate({ord("("): "<", ord(")"): ">"})
