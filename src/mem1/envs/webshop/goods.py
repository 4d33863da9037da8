"""What an errand asks for: goods that several products of an invented shop fit, at different prices.

    goods(invent(0, "evaluation"))[0]
    ->  Good(number=0, text="a roomy Fala Prellov tent in size s", prices={"HOLA88": 2449, "GOLA64": 5125, ...}, ...)
    limit([2449, 1900], slack=0.1)     ->  4783      cents that may be spent where the cheapest cost 24.49 and 19.00
    chance([good, other], 4783)        ->  0.22      that a random product that fits each keeps to it

Every good is of one line of the shop, five products of one brand and type. It asks for a feature and an option that
three of the five have, so all goods are equally hard: five pages to read, three prices to compare. Prices are in cents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mem1.envs.webshop.catalogue import Catalogue, Goal, Product, prices

LINE = 5
"""Products of a line."""
FITTING = 3
"""Products of its line that fit a good."""
SLACKS: Mapping[int, float] = {1: 0.25, 2: 0.1, 3: 0.05, 4: 0.01}
"""Level -> share by which the total price may exceed that of the cheapest products."""
_OPTION = {"size": "in size {}", "pack": "in a pack of {}"}
"""Second option of a department -> its words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Good:
    """One thing to buy."""

    number: int
    """Among the goods of its shop, from 0."""
    line: tuple[str, str]
    """(brand, type) of the products: what to search for."""
    feature: str
    option: tuple[str, str]
    """(name, value) to choose."""
    prices: Mapping[str, int]
    """asin -> cents, of every product that fits; no two cost the same."""

    @property
    def text(self) -> str:
        """The good as a buyer asks for it."""
        (brand, kind), (name, value) = self.line, self.option
        article = "an" if self.feature[0] in "aeiou" else "a"
        return f"{article} {self.feature} {brand} {kind} {_OPTION[name].format(value)}"

    @property
    def cheapest(self) -> str:
        """asin of the cheapest product that fits."""
        return min(self.prices, key=self.prices.__getitem__)

    @property
    def goal(self) -> Goal:
        """The goal whose full reward only the products that fit have."""
        brand, kind = self.line
        return Goal(
            asin=self.cheapest,
            instruction=self.text,
            attributes=(brand.lower(), self.feature),
            options=dict([self.option]),
            name=kind,
            query=kind,
        )


def one_price_each(catalogue: Catalogue, *, seed: int) -> Catalogue:
    """The same shop with a single price per product, in whole cents, where it had a range."""
    drawn = {asin: round(price, 2) for asin, price in prices(catalogue.products, seed=seed).items()}
    products = tuple(
        replace(product, pricing=(drawn[product.asin],), price_tag=f"${drawn[product.asin]:.2f}")
        for product in catalogue.products
    )
    return replace(catalogue, products=products)


def goods(catalogue: Catalogue) -> list[Good]:
    """All goods of an invented shop, in a fixed order; it must have a single price per product."""
    lines: defaultdict[tuple[str, str], list[Product]] = defaultdict(list)
    for product in catalogue.products:
        brand = " ".join(product.title.split()[:2])
        lines[brand, product.query].append(product)
    # two lines of the same brand and type are one to a buyer
    whole = ((line, products) for line, products in sorted(lines.items()) if len(products) == LINE)
    wanted = (good for line, products in whole for good in _of_line(line, products))
    return [replace(good, number=number) for number, good in enumerate(wanted)]


def _of_line(line: tuple[str, str], products: Sequence[Product]) -> Iterator[Good]:
    name = list(products[0].options)[1]
    features = sorted({attribute for product in products for attribute in product.attributes})
    values = sorted({value for product in products for value in product.options[name]})
    for feature in features:
        for value in values:
            fitting = [p for p in products if feature in p.attributes and value in p.options[name]]
            cents = {p.asin: round(100 * p.pricing[0]) for p in fitting}
            if len(fitting) == FITTING == len(set(cents.values())):
                yield Good(number=0, line=line, feature=feature, option=(name, value), prices=cents)


def limit(cheapest: Sequence[int], slack: float) -> int:
    """Cents that may be spent, where the cheapest products cost so many."""
    return sum(cheapest) + int(sum(cheapest) * slack)


def chance(wanted: Sequence[Good], most: int) -> float:
    """The probability that one random fitting product of each good costs at most `most` cents together.

    Exact: the distribution of the sum, good by good. It is what a shopper without memory scores who buys the first
    product that fits.
    """
    sums = {0: 1.0}
    for good in wanted:
        longer: defaultdict[int, float] = defaultdict(float)
        for spent, probability in sums.items():
            for price in good.prices.values():
                if spent + price <= most:
                    longer[spent + price] += probability / len(good.prices)
        sums = dict(longer)
    return sum(sums.values())
