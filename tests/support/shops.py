"""A small shop of invented products, and the original's way from HTML to text, for the tests of WebShop."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mem1.envs.webshop.catalogue import Goal, Product, Review
from mem1.envs.webshop.pages import Session
from mem1.envs.webshop.shop import Shop

SHARED_PRODUCTS = Path(__file__).parents[3] / "shared" / "data" / "webshop" / "products_1000.jsonl.gz"
"""1,000 real products; absent in a stranger's clone."""

needs_shared_products = pytest.mark.skipif(not SHARED_PRODUCTS.is_file(), reason="needs ../shared/data/webshop")

GOAL = Goal(instruction="i need a blue rug, and price lower than 30.00 dollars")
OTHER_GOAL = Goal(instruction="find me a lamp")

RUG = Product(
    asin="B000000RUG",
    name="Woven Rug <b>Soft</b> & Warm",
    title="Woven Rug <b>Soft</b> & Warm",
    description="A rug of wool.",
    bullet_points=("Easy to clean ", "Hidden underlay"),
    attributes=("easy clean", "hand woven"),
    options={"color": ("blue", "dark blue", 'grey "mist"'), "size": ("2' x 3'", "blue")},
    pricing=(10.0, 20.0),
    price_tag="$10.0 to $20.0",
    category="garden",
    query="rugs",
    product_category="Home \u203a Rugs",
    rating="4.5",
    reviews=(Review(score="4.0", title="Nice", body="Soft."), Review(score="1.0", title="", body="Thin.")),
)
LAMP = Product(asin="B00000LAMP", name="Desk Lamp", title="Desk Lamp", pricing=(5.0,), price_tag="$5.0")
CROWD = [
    Product(asin=f"B0000000{i:02}", name=f"Woven mat {i}", title=f"Woven mat {i}", price_tag=f"${i}.0")
    for i in range(12)
]


@dataclass(frozen=True)
class Worth:
    total: float


def half_for_blue(product: Product, goal: Goal, *, price: float, options: Mapping[str, str]) -> Worth:
    """A reward in place of the shop's own: 0.5 for a blue one, 0.25 below 6 dollars, else 0."""
    return Worth(0.5 if "blue" in options.values() else 0.25 if price < 6 else 0.0)


def small_shop(*more: Product, show_attributes: bool = False) -> Shop:
    products = [RUG, LAMP, *CROWD, *more]
    prices = {product.asin: product.pricing[0] for product in products}
    return Shop.build(products, prices, scorer=half_for_blue, show_attributes=show_attributes)


def real_products() -> list[Product]:
    with gzip.open(SHARED_PRODUCTS, "rt", encoding="utf-8") as lines:
        return [Product.from_keys(json.loads(line)) for line in lines]


def walk(shop: Shop, *actions: str, start: Session | None = None) -> Session:
    session = start or shop.start([GOAL])
    for action in actions:
        session = shop.step(session, action)
    return session


class Stripped(HTMLParser):
    """The visible texts of a page as BeautifulSoup's html.parser finds them: (tag around it, its class, text)."""

    _VOID = frozenset({"br", "hr", "img", "input", "link", "meta"})
    _HIDDEN = frozenset({"style", "script", "head", "title", "meta", ""})

    def __init__(self, document: str) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[tuple[str, str]] = [("", "")]
        self._data: list[str] = []
        self.texts: list[tuple[str, str, str]] = []
        self.feed(document)
        self.close()
        self._flush()

    def handle_data(self, data: str) -> None:
        self._data.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._flush()
        if tag not in self._VOID:
            self._open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        self._flush()
        assert self._open.pop()[0] == tag

    def handle_decl(self, decl: str) -> None:
        self._flush()

    def _flush(self) -> None:
        text, self._data = "".join(self._data), []
        if text and not text.strip(" \n\t\f\r"):
            text = "\n" if "\n" in text else " "
        tag, css = self._open[-1]
        if text and tag not in self._HIDDEN:
            self.texts.append((tag, css, text))


def stripped_text(document: str) -> str:
    return " [SEP] ".join(text.strip() for _, _, text in Stripped(document).texts if text != "\n")


def stripped_rich(document: str, session: Session) -> str:
    """convert_html_to_text(simple=False): an option is clicked if the address holds it in quotation marks."""
    words = "+".join(session.query.split(" "))
    address = f"/item_page/x/{session.asin}/{words}/{session.results_page}/{json.dumps(dict(session.options))}"
    seen = ""
    for tag, css, text in Stripped(document).texts:
        if text == "\n":
            continue
        if tag == "button":
            line = f"[button] {text} [button_]"
        elif tag == "label" and f'"{text}"' in address:
            line, seen = f"  [clicked button] {text} [clicked button_]", f"You have clicked {text}.\n{seen}"
        elif tag == "label":
            line = f"  [button] {text} [button_]"
        elif css == "product-link":
            mark = "clicked button" if text in session.visited else "button"
            line = f"\n[{mark}] {text} [{mark}_]"
        else:
            line = text
        seen += f"{line}\n"
    return seen
