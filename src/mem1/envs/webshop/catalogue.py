"""All that a shop holds: its products, and what people and templates asked for them.

    load("/data/webshop")     a folder with the original's files, or one of cleaned products
    load("shop.jsonl.gz")     what `mem1 webshop load` wrote

->  Catalogue(products=(Product(asin="B099231V35", ...),),
              human={"B099231V35": (Instruction(text="i want an orange pair", attributes=("relaxed fit",),
                                                options=("orange",)),)},
              synthetic={"B099231V35": Instruction(text="Find me cargo pants", attributes=("relaxed fit",))})
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mem1.envs.webshop.product import Product


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """What was asked for one product, before a price bound is drawn."""

    text: str
    attributes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Values that the person asked for, their names left out. Empty for a synthetic one: its goals take every
    combination of the product's options."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One product and what was asked for it."""

    product: Product
    human: tuple[Instruction, ...] = ()
    synthetic: Instruction | None = None
    """None: no goals are made for it."""


@dataclass(frozen=True)
class Catalogue:
    """Products in the order of their file; no asin twice."""

    products: tuple[Product, ...]
    human: Mapping[str, tuple[Instruction, ...]]
    """asin -> what people asked for it."""
    synthetic: Mapping[str, Instruction]
    """asin -> the one text that its synthetic goals begin with."""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Catalogue:
        """Raises ValueError where an asin stands twice."""
        by_asin: dict[str, Entry] = {}
        for entry in entries:
            if entry.product.asin in by_asin:
                raise ValueError(f"product {entry.product.asin!r} stands twice in the catalogue")
            by_asin[entry.product.asin] = entry
        return cls(
            products=tuple(entry.product for entry in by_asin.values()),
            human={asin: entry.human for asin, entry in by_asin.items() if entry.human},
            synthetic={asin: entry.synthetic for asin, entry in by_asin.items() if entry.synthetic is not None},
        )


def load(*paths: str | os.PathLike[str]) -> Catalogue:
    """Of one folder, or of the files themselves (see `ShopFiles.find`).

    Raises UserError where a file is missing, cut short or of another form.
    """
    from mem1.envs.webshop.files import ShopFiles

    return Catalogue.of(ShopFiles.find(*paths).entries())
