"""The site of a catalogue: its shop, its goals, the recordings made in it.

open_site(None, "synthetic")                 an invented shop with some 2,000 goals
open_site("shop.jsonl.gz", "human", replay="runs/a/trajectories.jsonl")
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache

from mem1.envs.webshop.catalogue import load
from mem1.envs.webshop.goal import Goal
from mem1.envs.webshop.goals import KINDS, goals_by_id, prices
from mem1.envs.webshop.invented import invent
from mem1.envs.webshop.shop import Shop
from mem1.errors import UserError
from mem1.extras.shop_site.app import Site
from mem1.extras.shop_site.recordings import read_recordings


def open_site(
    catalogue: str | os.PathLike[str] | None,
    kind: str,
    *,
    goals_per_task: int = 1,
    replay: str | os.PathLike[str] | None = None,
    show_attributes: bool = False,
    images: bool = False,
    seed: int = 0,
) -> Site:
    """`catalogue` None: the invented one of this seed, of the half for evaluation.

    Raises UserError where the catalogue or the recordings cannot be read, and where there are too few goals.
    """
    products = invent(seed, "evaluation") if catalogue is None else load(catalogue)
    drawn = prices(products.products, seed=seed)

    @lru_cache
    def goals_of(name: str) -> Mapping[str, Goal]:
        return goals_by_id(products, drawn, name, seed=seed)

    goals = goals_of(kind)
    if len(goals) < goals_per_task:
        others = [f"--goals {one}" for one in KINDS if one != kind and len(goals_of(one)) >= goals_per_task]
        shop = catalogue or "the invented shop"
        raise UserError(
            f"{shop}: {len(goals)} {kind} goals are too few for {goals_per_task} a visit; try "
            + (" or ".join(others) or "another catalogue")
        )
    return Site(
        shop=Shop.build(products.products, drawn, show_attributes=show_attributes),
        goals=goals,
        goals_per_task=goals_per_task,
        images=images,
        recordings=read_recordings(replay, lambda name: goals_of(name) if name in KINDS else {}) if replay else (),
    )
