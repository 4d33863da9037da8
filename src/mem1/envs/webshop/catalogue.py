"""A product as the shop knows it: cleaned, frozen, one field a key of the original's cleaned form.

Product.from_keys({"asin": "B06Y3VLDFB", "Title": "Vhomes Console Table", "pricing": [877.8], "options": {}, ...})
->  Product(asin="B06Y3VLDFB", title="Vhomes Console Table", pricing=(877.8,), options={}, ...)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PRICE_UNKNOWN = 100.0
"""Dollars that a product without a price costs (WebShop, engine.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """What one buyer wrote."""

    score: str = ""
    title: str = ""
    body: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product. `name` is the seller's text, `title` the shop's; in the original data both are the same.

    Raises ValueError where a price is not a pair of ordered numbers at most.
    """

    asin: str
    name: str
    title: str
    description: str = ""
    bullet_points: tuple[str, ...] = ()
    """Shown under "Features"."""
    attributes: tuple[str, ...] = ()
    """What it is said to be ("long lasting"); the hidden list that goals are scored by."""
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of an option ("color"), in lower case -> its values, in lower case, as shown."""
    option_images: Mapping[str, str] = field(default_factory=dict)
    """Value of an option -> address of its picture, where it has one."""
    pricing: tuple[float, ...] = (PRICE_UNKNOWN,)
    """Dollars: one price, or the lowest and the highest."""
    price_tag: str = ""
    """The price as it is shown: "$877.8" or "$10.0 to $20.0"."""
    category: str = ""
    query: str = ""
    """The search under which it was found when the data were gathered."""
    product_category: str = ""
    """Path of categories, joined by " \u203a "."""
    rating: str = "N.A."
    reviews: tuple[Review, ...] = ()
    main_image: str = ""

    def __post_init__(self) -> None:
        if not 1 <= len(self.pricing) <= 2 or list(self.pricing) != sorted(self.pricing):
            raise ValueError(f"product {self.asin!r}: pricing is one price, or (lowest, highest), not {self.pricing}")

    @classmethod
    def from_keys(cls, keys: Mapping[str, Any]) -> Product:
        """Of the original's cleaned form (`Title`, `BulletPoints`, `Attributes`, ...); a key that is missing has its
        field's default, and others are not read."""
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
