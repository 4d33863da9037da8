"""How fast the shop is: building it, and the steps of a shopper who clicks at random.

    python benchmarks/webshop_steps.py                          1,000 real products, prints a Markdown table
    python benchmarks/webshop_steps.py --products 100 --steps 5000

A step is an action, the list of what can be clicked next, and the page as text. One action in eight is a search of four
words of a title, so that searches cost their share; the others are clicks on what is there, a purchase included.
Everything is bought at a price of 1 dollar for the same reward: what a reward costs is not measured here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from machine import commit, hardware

from mem1.envs.webshop.catalogue import Goal, Product
from mem1.envs.webshop.pages import Mode
from mem1.envs.webshop.shop import Shop

PRODUCTS = Path(__file__).parents[2] / "shared" / "data" / "webshop" / "products_1000.jsonl.gz"


@dataclass(frozen=True)
class Worth:
    """A reward that costs nothing."""

    total: float = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=PRODUCTS, help="products in the original's cleaned form, gzipped")
    parser.add_argument("--products", type=int, help="take so many")
    parser.add_argument("--steps", type=int, default=20_000)
    given = parser.parse_args()
    with gzip.open(given.file, "rt", encoding="utf-8") as lines:
        products = [Product.from_keys(json.loads(line)) for line in lines][: given.products]
    started = time.perf_counter()
    shop = Shop.build(products, dict.fromkeys((p.asin for p in products), 1.0), scorer=lambda *_, **__: Worth())
    built = time.perf_counter() - started
    print(f"command: python {' '.join(sys.argv)}; commit {commit()}; {hardware()}\n")
    print("| products | mode | build, s | steps/s |\n|--:|---|--:|--:|")
    for mode in get_args(Mode):
        print(
            f"| {len(products):,} | {mode} | {built:.2f} | {steps_a_second(shop, mode, given.steps):,.0f} |", flush=True
        )


def steps_a_second(shop: Shop, mode: Mode, steps: int) -> float:
    rng = random.Random(0)
    queries = [" ".join(product.title.split()[:4]) for product in shop.products.values()]
    goals = [Goal(instruction="i need a blue rug that is easy to clean, and price lower than 30.00 dollars")]
    session = shop.start(goals)
    clicks = shop.actions(session).clickables
    started = time.perf_counter()
    for _ in range(steps):
        search = session.page == "search" or rng.random() < 1 / 8
        action = f"search[{rng.choice(queries)}]" if search else f"click[{rng.choice(clicks)}]"
        session = shop.step(session, action)
        if session.done:
            shop.observe(session, mode)
            session = shop.start(goals)
        clicks = shop.actions(session).clickables
        shop.observe(session, mode)
    return steps / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
