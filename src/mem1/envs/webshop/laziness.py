"""The habits of a lazy shopper: what the demonstrations of a warm start show, so that learning has something to do."""

from __future__ import annotations

from pydantic import Field

from mem1.configuration import Config


class Laziness(Config):
    """How often an expert does the lazy thing, each a probability at one decision; all 0: the clean expert."""

    diligent: float = Field(default=0.0, ge=0, le=1)
    """Share of tasks that are done without the habits below."""
    vague: float = Field(default=0.0, ge=0, le=1)
    """Searches for the type of product alone."""
    grab: float = Field(default=0.0, ge=0, le=1)
    """Takes the first hit unread."""
    settle: float = Field(default=0.0, ge=0, le=1)
    """Takes what it has opened although something is missing or not yet seen; drawn on the item page."""
    forget: float = Field(default=0.0, ge=0, le=1)
    """Buys although options are left to choose; drawn before each."""


CLEAN = Laziness()
