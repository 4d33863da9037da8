"""What shoppers without a model reach: the scripted and the random one, on test goals.

    python benchmarks/webshop_shoppers.py                            the invented catalogue, and the 1,000 real products
    python benchmarks/webshop_shoppers.py --goals 100                the first 100 test goals of each
    python benchmarks/webshop_shoppers.py --catalogue FOLDER         your copy of the real products

Prints a Markdown table of the mean reward and its 95 % interval over goals. Goals are synthetic ones, in the
original's order; the best reachable reward of the invented ones is 1. On the invented catalogue also the experts,
which read pages and turn back: the clean one, and a lazy one as it may give a warm start.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean

from machine import commit, hardware
from shoppers import RandomShopper, ScriptedShopper, mean_reward, shop_with

from mem1.envs.webshop.catalogue import Catalogue, Goal, prices, shuffled, split, synthetic_goals
from mem1.envs.webshop.expert import TURN_LIMIT, Laziness, ShopExpert, demonstrate
from mem1.envs.webshop.files import load
from mem1.envs.webshop.invented import invent
from mem1.envs.webshop.pages import Session
from mem1.envs.webshop.shop import Shop
from mem1.evaluation.intervals import mean_interval

REAL = Path(__file__).parents[2] / "shared" / "data" / "webshop"
LAZY = Laziness(diligent=0.15, vague=0.5, grab=0.6, settle=0.7, forget=0.6)
Shopping = Callable[[Shop, list[Goal]], Session]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalogue", type=Path, default=REAL, help="folder of real products; left out if absent")
    parser.add_argument("--goals", type=int, help="take so many of the 500 test goals")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=TURN_LIMIT)
    given = parser.parse_args()
    shoppers: dict[str, Shopping] = {
        "random": lambda shop, goals: shop_with(RandomShopper(given.seed), shop, goals, given.turns),
        "scripted": lambda shop, goals: shop_with(ScriptedShopper(), shop, goals, given.turns),
    }
    experts: dict[str, Shopping] = {
        name: lambda shop, goals, expert=expert: demonstrate(expert, shop, goals, given.turns)[0]
        for name, expert in {"lazy expert": ShopExpert(laziness=LAZY), "clean expert": ShopExpert()}.items()
    }
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print("| catalogue | products | goals | shopper | mean reward | 95 % interval |\n|---|--:|--:|---|--:|--:|")
    table("invented", invent(given.seed, "evaluation"), shoppers | experts, given.goals, given.seed)
    if given.catalogue.exists():
        table("real", load(given.catalogue), shoppers, given.goals, given.seed)


def table(name: str, catalogue: Catalogue, shoppers: dict[str, Shopping], count: int | None, seed: int) -> None:
    """A row a shopper."""
    cost = prices(catalogue.products, seed=seed)
    goals = split(shuffled(synthetic_goals(catalogue, cost, seed=seed)), "test")[:count]
    shop = Shop.build(catalogue.products, cost)
    for shopper, shopping in shoppers.items():
        rewards = [mean_reward(shop, shopping(shop, [goal])) for goal in goals]
        low, high = mean_interval(rewards)
        print(
            f"| {name} | {len(catalogue.products):,} | {len(goals)} | {shopper} "
            f"| {mean(rewards):.3f} | {low:.3f} to {high:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
