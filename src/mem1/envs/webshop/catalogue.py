"""The contents of a shop: its products, and the instructions that people and templates wrote for them.

Catalogue(products=(Product(asin="B099231V35", ...),),
          human={"B099231V35": (Instruction(text="i want an orange pair", attributes=("relaxed fit",),
                                            options=("orange",)),)},
          synthetic={"B099231V35": Instruction(text="Find me cargo pants", attributes=("relaxed fit",))})
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PRICE_UNKNOWN = 100.0
"""Price in dollars of a product without one (WebShop, engine.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """One buyer's review."""

    score: str = ""
    title: str = ""
    body: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A cleaned product, one field per key of the original's cleaned form. Raises ValueError for invalid prices.

    `name` is the seller's text, `title` the shop's; in the original data they are equal.
    """

    asin: str
    name: str
    title: str
    description: str = ""
    bullet_points: tuple[str, ...] = ()
    """Shown under "Features"."""
    attributes: tuple[str, ...] = ()
    """Claims about the product ("long lasting"): the hidden list that goals are scored by."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Option name ("color") -> its values, both in lower case."""
    option_images: Mapping[str, str] = field(default_factory=dict)
    """Option value -> URL of its picture, if it has one."""
    pricing: tuple[float, ...] = (PRICE_UNKNOWN,)
    """One price in dollars, or the lowest and the highest."""
    price_tag: str = ""
    """The price as shown: "$877.8" or "$10.0 to $20.0"."""
    category: str = ""
    query: str = ""
    """The search that found the product when the data were gathered."""
    product_category: str = ""
    """Category path, joined by " \u203a "."""
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()
    main_image: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.pricing) <= 2 or list(self.pricing) != sorted(self.pricing):
            raise ValueError(f"product {self.asin!r}: pricing is one price, or (lowest, highest), not {self.pricing}")

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> Product:
        """Read the original's cleaned keys (`Title`, `BulletPoints`, ...): missing ones have defaults, others are
        ignored."""
        name, title = keys.get("name"), keys.get("Title")
        pricing = tuple(float(price) for price in keys.get("pricing") or (PRICE_UNKNOWN,))
        return cls(
            asin=str(keys.get("asin", "")),
            name=str(title or "") if name is None else str(name),
            title=str(name or "") if title is None else str(title),
            description=keys.get("Description") or "",
            bullet_points=tuple(keys.get("BulletPoints") or ()),
            attributes=tuple(keys.get("Attributes") or ()),
            options={option: tuple(values) for option, values in (keys.get("options") or {}).items()},
            option_images={v: image for v, image in (keys.get("option_to_image") or {}).items() if image},
            pricing=tuple(sorted(pricing[:2])),
            price_tag=keys.get("Price") or "",
            category=keys.get("category") or "",
            query=keys.get("query") or "",
            product_category=keys.get("product_category") or "",
            rating=str(keys.get("Rating") or "N.A."),
            reviews=tuple(
                Review(score=str(r.get("score", "")), title=r.get("title") or "", body=r.get("body") or "")
                for r in keys.get("Reviews") or ()
            ),
            main_image=keys.get("MainImage") or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """An instruction for one product, before a price bound is drawn."""

    text: str
    attributes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Option values that the person asked for, without names. Empty if synthetic: goals then use every combination of
    the product's options."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One product and its instructions."""

    product: Product
    human: tuple[Instruction, ...] = ()
    synthetic: Instruction | None = None
    """None: no synthetic goals are made for it."""


@dataclass(frozen=True)
class Catalogue:
    """Products in the order of their file, with unique asins."""

    products: tuple[Product, ...]
    human: Mapping[str, tuple[Instruction, ...]]
    """asin -> instructions written by people."""
    synthetic: Mapping[str, Instruction]
    """asin -> the text that its synthetic goals begin with."""

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Catalogue:
        """Raises ValueError for a repeated asin."""
        by_asin: dict[str, Entry] = {}
        for entry in entries:
            if entry.product.asin in by_asin:
                raise ValueError(f"product {entry.product.asin!r} occurs twice in the catalogue")
            by_asin[entry.product.asin] = entry
        return cls(
            products=tuple(entry.product for entry in by_asin.values()),
            human={asin: entry.human for asin, entry in by_asin.items() if entry.human},
            synthetic={asin: entry.synthetic for asin, entry in by_asin.items() if entry.synthetic is not None},
        )
