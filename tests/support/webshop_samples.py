"""Products and goals for the tests of WebShop: small ones with round numbers, and where the shared real ones are."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mem1.envs.webshop.catalogue import Catalogue
from mem1.envs.webshop.files import load

SHARED_WEBSHOP = Path(__file__).parents[3] / "shared" / "data" / "webshop"
"""The 1,000 products of WebShop's small set; absent in a stranger's clone."""

needs_shared_webshop = pytest.mark.skipif(not SHARED_WEBSHOP.is_dir(), reason="needs ../shared/data/webshop")


@cache
def shared_catalogue() -> Catalogue:
    """The small set, read once for all tests."""
    return load(SHARED_WEBSHOP)


def raw_product(asin: str, **changed: Any) -> dict[str, Any]:
    """As it was gathered, before it is cleaned."""
    return {
        "asin": asin,
        "name": "Wool Rug",
        "full_description": "Soft.",
        "small_description": ["Easy to vacuum", "Non slip"],
        "pricing": "$25.00",
        "images": ["https://shop.test/1.jpg", "https://shop.test/2.jpg"],
        "category": "garden",
        "query": "Area Rugs ",
        "product_category": "Home \u203a Rugs",
        "customization_options": {"Color": [{"value": "Navy/Blue ", "image": "https://shop.test/n.jpg"}], "Size": None},
        **changed,
    }
