"""A product as it was gathered -> a product as the shop knows it, by the rules of the original's engine/engine.py.

    {"asin": "B09KP78G37", "name": "Winter Coat", "pricing": "$19.99 - $1,027.50", "query": "Coats ", ...,
     "customization_options": {"Color": [{"value": "Wine/Red "}], "Size": null}}
->  Product(asin="B09KP78G37", title="Winter Coat", pricing=(19.99, 1027.5), price_tag="$19.99 to $1027.5",
            query="coats", options={"color": ("wine | red",)}, ...)
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mem1.envs.webshop.product import PRICE_UNKNOWN, Product

NO_ATTRIBUTES = ("DUMMY_ATTR",)
"""Attributes of a product for which none are known."""
_LONGEST_ASIN = 10
_NOT_IN_PRICE = re.compile(r"[^\d.]")


def why_left_out(asin: str, seen: Mapping[str, object]) -> str | None:
    """Why the shop does not take a product, after those `seen` before it. None: it takes it."""
    if asin == "nan":
        return "no asin"
    if len(asin) > _LONGEST_ASIN:
        return "asin of more than 10 characters"
    return "asin stood before" if asin in seen else None


def clean(raw: Mapping[str, Any], attributes: Sequence[str] | None) -> Product:
    """`attributes` are those of the attribute file; None: it has none for this product.

    Raises KeyError for a field that is missing, and ValueError, TypeError or AttributeError for one of another form.
    """
    bullets = raw["small_description"]
    prices, price_tag = read_price(raw.get("pricing"))
    options, images = _options(raw["customization_options"] or {})
    return Product(
        asin=raw["asin"],
        name=raw["name"],
        title=raw["name"],
        description=raw["full_description"] or "",
        bullet_points=(bullets,) if isinstance(bullets, str) else tuple(bullets or ()),
        attributes=NO_ATTRIBUTES if attributes is None else tuple(attributes),
        options=options,
        option_images=images,
        pricing=prices,
        price_tag=price_tag,
        category=raw["category"],
        query=raw["query"].lower().strip(),
        product_category=raw["product_category"],
        main_image=next(iter(raw["images"] or ()), ""),
    )


def read_price(text: str | None) -> tuple[tuple[float, ...], str]:
    """Dollars, lowest first, and the price as it is shown; of a text with more than two prices the first two.

        "$10.00 - $1,020.50"  ->  ((10.0, 1020.5), "$10.0 to $1020.5")      None, ""  ->  ((100.0,), "$100.0")

    Three products of the small set name the higher price first; they are shown so, as in the original.
    Raises ValueError where there is text, but no price.
    """
    if not text:
        return (PRICE_UNKNOWN,), f"${PRICE_UNKNOWN}"
    prices = [float(_NOT_IN_PRICE.sub("", part)) for part in text.split("$")[1:]][:2]
    if not prices:
        raise ValueError(f"no price in dollars in {text!r}")
    return tuple(sorted(prices)), " to ".join(f"${price}" for price in prices)


def _options(raw: Mapping[str, Any]) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Values by the name of their option, and pictures by value."""
    options: dict[str, tuple[str, ...]] = {}
    images: dict[str, str] = {}
    for name, contents in raw.items():
        if contents is None:
            continue
        values = [content["value"].strip().replace("/", " | ").lower() for content in contents]
        options[name.lower()] = tuple(values)
        images |= {v: content.get("image") for v, content in zip(values, contents, strict=True)}
    return options, {value: image for value, image in images.items() if image}
