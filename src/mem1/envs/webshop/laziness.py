"""The habits of a lazy shopper: what the demonstrations of a warm start show, so that learning has something to do."""

from __future__ import annotations

from mem1.configuration import Config
from mem1.configuration.numbers import Probability


class Laziness(Config):
    """How often an expert does the lazy thing, each a probability at one decision; all 0: the clean expert."""

    diligent: Probability = 0.0
    """Share of tasks that are done without the habits below."""
    vague: Probability = 0.0
    """Searches for the type of product alone."""
    grab: Probability = 0.0
    """Takes the first hit unread."""
    settle: Probability = 0.0
    """Takes what it has opened although something is missing or not yet seen; drawn on the item page."""
    forget: Probability = 0.0
    """Buys although options are left to choose; drawn before each."""


CLEAN = Laziness()
