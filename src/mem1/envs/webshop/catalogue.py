"""All that a shop holds: its products, and what people and templates asked for them.

Catalogue(products=(Product(asin="B099231V35", ...),),
          human={"B099231V35": (Instruction(text="i want an orange pair", attributes=("relaxed fit",),
                                            options=("orange",)),)},
          synthetic={"B099231V35": Instruction(text="Find me cargo pants", attributes=("relaxed fit",))})
"""

from __future__ import annotations

from collections.abc import Mapping
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


@dataclass(frozen=True)
class Catalogue:
    """Products in the order of their file; no asin twice."""

    products: tuple[Product, ...]
    human: Mapping[str, tuple[Instruction, ...]]
    """asin -> what people asked for it; asins outside `products` may stand here, and make no goals."""
    synthetic: Mapping[str, Instruction]
    """asin -> the one text that its synthetic goals begin with."""
