"""The eight pages of the shop: the texts that the original's templates show, in their order.

The templates are those of the public recordings (WebShop's release, and everybody who runs it: "< Prev" leads back).
A redesign in the original repository ("< Back to Results", "Current Query: ...") is not reachable from its text
environment, whose code still looks for "< prev".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from mem1.envs.webshop.page import Element
from mem1.envs.webshop.product import Product
from mem1.envs.webshop.session import Purchase, Session

BACK_TO_SEARCH = "Back to Search"
PREVIOUS = "< Prev"
NEXT = "Next >"
BUY_NOW = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
ATTRIBUTES = "Attributes"
RESULTS_A_PAGE = 10


def search_page(session: Session, products: Mapping[str, Product]) -> Iterator[Element]:
    """The search box; between two goals also what has been bought, which the original does not know."""
    yield Element("heading", "WebShop")
    yield Element("heading", "Instruction: ")
    yield Element("heading", session.instruction)
    for number, purchase in enumerate(session.purchases, start=1):
        title = products[purchase.asin].title
        yield Element("text", f"Bought {number} of {len(session.goals)}: {purchase.asin} {title}")
    yield Element("button", "Search")


def results_page(session: Session, products: Mapping[str, Product]) -> Iterator[Element]:
    """Ten products. As in the original "Next >" is there even where nothing follows."""
    yield from _head(session)
    yield Element("heading", f"Page {session.results_page} (Total results: {len(session.results)})")
    if session.results_page > 1:
        yield Element("button", PREVIOUS)
    yield Element("button", NEXT)
    first = (session.results_page - 1) * RESULTS_A_PAGE
    for asin in session.results[first : first + RESULTS_A_PAGE]:
        yield Element("link", asin, clicked=asin in session.visited)
        yield Element("heading", products[asin].title)
        yield Element("heading", products[asin].price_tag)


def item_page(session: Session, product: Product, *, show_attributes: bool) -> Iterator[Element]:
    """A product and its options."""
    yield from _head(session)
    yield Element("button", PREVIOUS)
    if product.options:
        address = _address(session)
        for name, values in product.options.items():
            yield Element("heading", name)
            for value in values:
                yield Element("option", value, name, clicked=f'"{value}"' in address)
    yield Element("heading", product.title)
    yield Element("heading", f"Price: {product.price_tag}")
    yield Element("heading", f"Rating: {product.rating}")
    for name in SUB_PAGES:
        yield Element("button", name)
    if show_attributes:
        yield Element("button", ATTRIBUTES)
    yield Element("button", BUY_NOW)


def description_page(session: Session, product: Product) -> Iterator[Element]:
    """The long text; nothing where the product has none."""
    yield from _head(session)
    yield Element("button", PREVIOUS)
    yield Element("text", product.description)


def features_page(session: Session, product: Product) -> Iterator[Element]:
    """The bullet points."""
    yield from _head(session)
    yield Element("button", PREVIOUS)
    for point in product.bullet_points:
        yield Element("text", f" {point}")


def reviews_page(session: Session, product: Product) -> Iterator[Element]:
    """What buyers wrote; nothing where nobody did."""
    yield from _head(session)
    yield Element("button", PREVIOUS)
    for review in product.reviews:
        yield Element("heading", f'"{review.title}"')
        yield Element("text", review.score)
        yield Element("text", review.body)


def attributes_page(session: Session, product: Product) -> Iterator[Element]:
    """The hidden list that goals are scored by; only where the shop shows it."""
    yield from _head(session)
    yield Element("button", PREVIOUS)
    for attribute in product.attributes:
        yield Element("text", f" {attribute}")
    for text in (product.category, product.query, product.product_category):
        yield Element("heading", text)


def done_page(session: Session, rewards: Sequence[float]) -> Iterator[Element]:
    """The end, wording and gaps of the original's text environment, which hands its template neither code nor goal."""
    yield Element("heading", "Thank you for shopping with us!")
    for purchase, reward in zip(session.purchases, rewards, strict=True):
        yield from _receipt(purchase, reward)


def _receipt(purchase: Purchase, reward: float) -> Iterator[Element]:
    yield Element("heading", "Your code: ")
    yield Element("text", "None")
    yield Element("text", " (Paste it in your MTurk interface.)")
    yield Element("heading", "Purchased")
    yield Element("heading", "asin")
    yield Element("text", purchase.asin)
    yield Element("heading", "options")
    yield Element("text", _script_json(purchase.options))
    for heading in ("attrs", "category", "query", "product category"):
        yield Element("heading", heading)
        yield Element("text", "None")
    yield Element("heading", "Target")
    # "instuction" is the original's spelling
    headings = ("asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query")
    for heading in headings:
        yield Element("heading", heading)
    yield Element("heading", "Goal ")
    yield Element("text", "None")
    yield Element("heading", "Reward")
    yield Element("heading", "Your score (min 0.0, max 1.0)")
    yield Element("text", str(reward))
    yield Element("heading", "Reward Details ")
    yield Element("text", "None")


def _head(session: Session) -> Iterator[Element]:
    yield Element("heading", "Instruction:")
    yield Element("heading", session.instruction)
    yield Element("button", BACK_TO_SEARCH)


def _address(session: Session) -> str:
    """The part of the original's address of an item page that can hold a quotation mark.

    There an option counts as chosen if its value, in quotation marks, stands in the address. So one that holds a
    quotation mark itself never does, nor one beyond ASCII, but every option that shares its value with a chosen one,
    and one that the query has in quotation marks. In `text_rich` we repeat this.
    """
    words = session.query.replace(" ", "+")
    return f"{session.asin}/{words}/{session.results_page}/{json.dumps(dict(session.options))}"


def _script_json(options: Mapping[str, str]) -> str:
    """JSON as Flask's `tojson` writes it: sorted, and safe inside a script."""
    text = json.dumps(dict(options), sort_keys=True)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
