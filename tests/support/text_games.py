"""Gymnasium environments of texts, for tests."""

from __future__ import annotations

from typing import Any

import gymnasium
from gymnasium.spaces import Box, Discrete, Text

made: list[Games] = []
"""The environments that are open."""


class Games(gymnasium.Env[Any, Any]):
    """Counts down from a number that depends on the seed; -1 and -2 are actions, worth what they take away."""

    observation_space = Text(200)
    action_space = Discrete(2)

    def __init__(self, start: int = 5) -> None:
        self.start = start
        made.append(self)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = self.start + int(self.np_random.integers(1000))
        self.steps = 0
        return f"{self.left} are left.", {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= action + 1
        self.steps += 1
        return f"{self.left} are left.", float(action + 1), self.steps == 3, False, {}

    def close(self) -> None:
        made.remove(self)


class Echo(Games):
    """Repeats texts of at most ten letters."""

    action_space = Text(10)

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == "fail":
            raise RuntimeError("the echo\nis broken")
        if action == "number":
            return 3, 0.0, False, False, {}
        return f"{action} {action}", float("nan") if action == "nan" else 1.0, action in ("stop", "nan"), False, {}


class Old(Games):
    """As before Gymnasium: `reset` returns a text alone (or what it is given), `step` four values."""

    def __init__(self, first: Any = "Three are left.") -> None:
        super().__init__()
        self.first = first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return (self.first, {}) if self.first == "new" else self.first

    def step(self, action: int) -> Any:
        return "Two are left.", 1.0, False, {}


class Gone(Games):
    """Whose connection is lost when it is closed."""

    def close(self) -> None:
        super().close()
        raise ConnectionError("the game's server has gone")


class Picture(Games):
    observation_space = Box(0, 1)


class Handles(Games):
    action_space = Box(0, 1)
