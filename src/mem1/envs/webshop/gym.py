"""The shop as a Gymnasium environment: text in, text out, one reward per purchase.

    import gymnasium
    import mem1.envs.webshop.gym                       # registers mem1/WebShop-v0

    env = gymnasium.make("mem1/WebShop-v0")                            # training half of the invented shop
    env = gymnasium.make("mem1/WebShop-v0", shop=shop, goals=goals)    # your own
    observation, info = env.reset(seed=0, options={"goal": 7})
    observation, reward, terminated, truncated, info = env.step("search[console table]")

`gymnasium.make("mem1.envs.webshop.gym:mem1/WebShop-v0", ...)` needs no prior import. Since 1.0, Gymnasium does not read
other packages' entry points.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
from gymnasium.spaces import Text

from mem1.envs.webshop.catalogue import Goal
from mem1.envs.webshop.pages import RESULTS_A_PAGE, Mode, PageName, Session
from mem1.envs.webshop.shop import Shop
from mem1.envs.webshop.tasks import WebShopTasks
from mem1.errors import UserError
from mem1.protocol import ACT, PAPER, extended

ID = "mem1/WebShop-v0"
MAX_TURNS = 15
_ACTION_LENGTH = 1024
_PAGES: tuple[PageName, ...] = ("item", "description", "features", "reviews", "attributes")


class WebShopEnv(gymnasium.Env[str, str]):
    """One session per episode. It ends with the last purchase or is truncated after `max_turns` actions.

    `info["available_actions"]` is the original's: {"has_search_bar": bool, "clickables": [text, ...]};
    `info["goal"]` is the number of the first goal.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        shop: Shop | None = None,
        goals: Sequence[Goal] | None = None,
        *,
        mode: Mode = "text",
        objectives: int = 1,
        max_turns: int = MAX_TURNS,
    ) -> None:
        """An episode has `objectives` consecutive goals. Without shop and goals, the invented shop is used.

        Raises UserError if only one of the two is given, for too few goals, numbers below 1 and unknown modes.
        """
        if shop is None and goals is None:
            shop, goals = invented_shop()
        if shop is None or goals is None:
            raise UserError("give both a shop and its goals, or neither for the invented shop")
        if not 1 <= objectives <= len(goals):
            raise UserError(f"objectives must be between 1 and the number of goals, {len(goals)}, not {objectives}")
        if max_turns < 1:
            raise UserError(f"max_turns must be at least 1, not {max_turns}")
        self.shop = shop
        self.goals = tuple(goals)
        self.mode: Mode = mode
        self.objectives = objectives
        self.max_turns = max_turns
        self._first = 0
        self._turns = 0
        self._session = self._start(0)
        self.observation_space = self._observations()
        self.action_space = self._actions()

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start a session with `options["goal"]`, or with a goal drawn in proportion to the goals' weights.

        Raises UserError for a number that leaves too few goals, and for any other option.
        """
        super().reset(seed=seed, options=dict(options or {}))
        self._first = self._choose(options or {})
        self._session = self._start(self._first)
        self._turns = 0
        return self.shop.observe(self._session, self.mode), self._info()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Act; the reward is that of a purchase by this action, else 0. An action without effect costs a turn."""
        before = len(self._session.purchases)
        self._session = self.shop.step(self._session, action)
        self._turns += 1
        bought = len(self._session.purchases) > before
        reward = float(self.shop.rewards(self._session)[-1]) if bought else 0.0
        terminated = self._session.done
        truncated = not terminated and self._turns >= self.max_turns
        return self.shop.observe(self._session, self.mode), reward, terminated, truncated, self._info()

    def _start(self, first: int) -> Session:
        return self.shop.start(self.goals[first : first + self.objectives])

    def _choose(self, options: Mapping[str, Any]) -> int:
        starts = len(self.goals) - self.objectives + 1
        if unknown := sorted(set(options) - {"goal"}):
            raise UserError(f"unknown option of reset: {', '.join(map(repr, unknown))}; the only one is 'goal'")
        if "goal" in options:
            goal = options["goal"]
            if not isinstance(goal, int) or not 0 <= goal < starts:
                raise UserError(f"goal must be a number from 0 to {starts - 1}, not {goal!r}")
            return goal
        weights = [goal.weight for goal in self.goals[:starts]]
        return int(self.np_random.choice(starts, p=[weight / sum(weights) for weight in weights]))

    def _info(self) -> dict[str, Any]:
        actions = self.shop.actions(self._session)
        available = {"has_search_bar": actions.search, "clickables": list(actions.clickables)}
        return {"available_actions": available, "goal": self._first}

    def _observations(self) -> Text:
        """A space that contains every page, found by visiting the pages of all products once."""
        longest = max(self.goals, key=lambda goal: len(goal.instruction))
        characters = set(string.printable).union(*(goal.instruction for goal in self.goals))
        length = 0
        for asin in self.shop.products:
            for page in _PAGES:
                session = Session(goals=(longest,) * self.objectives, page=page, asin=asin)
                text = self.shop.observe(session, self.mode)
                characters.update(text)
                length = max(length, len(text))
        # a results page has parts of ten item pages; the last page has the chosen options, possibly as "\u..."
        return Text(RESULTS_A_PAGE * (1 + self.objectives) * length, charset=frozenset(characters))

    def _actions(self) -> Text:
        """A space that contains every click, and every search in the shop's characters that is not too long."""
        values = [v.lower() for p in self.shop.products.values() for of_one in p.options.values() for v in of_one]
        characters = self.observation_space.character_set.union(*values)  # type: ignore[attr-defined]
        return Text(max(_ACTION_LENGTH, *(len("click[]") + len(v) for v in values), 0), charset=frozenset(characters))


def invented_shop(seed: int = 0) -> tuple[Shop, list[Goal]]:
    """The training half of an invented catalogue, and its goals in order."""
    environment = WebShopTasks(seed=seed).source("train", extended(PAPER, ACT)).environment
    return environment.shop, list(environment.goals.values())


gymnasium.register(id=ID, entry_point=f"{__name__}:{WebShopEnv.__name__}")
