"""The shop: the effect of actions, the possible clicks and the visible page. Pure functions of a `Session`.

shop = Shop.build(products, prices)
session = shop.start([goal])
session = shop.step(session, "search[console table]")
shop.actions(session)          ->  Actions(search=False, clickables=("back to search", "next >", "b06y3vldfb", ...))
shop.observe(session, "text")  ->  "Instruction: [SEP] i need a ... [SEP] Back to Search [SEP] Page 1 (Total ..."
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from mem1.envs.webshop import pages
from mem1.envs.webshop.catalogue import Goal, Product
from mem1.envs.webshop.pages import (
    SEARCH,
    Element,
    Mode,
    PageName,
    Purchase,
    Session,
    as_html,
    as_rich,
    as_text,
    clickables,
    read_action,
)
from mem1.envs.webshop.reward import score
from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval import BM25

RESULTS = 50
"""Maximum number of products that a search finds."""
SEARCHED_WORDS = 1024
"""Words of a query that are searched: Lucene rejects longer queries."""
_WORD = re.compile(r"\w\w+")
_SHOWN: Mapping[str, Callable[[Sequence[Element]], str]] = {"text": as_text, "text_rich": as_rich, "html": as_html}


def _searched(text: str) -> str:
    """The words of a text that the shop compares: those of two letters and more, so that sizes do not decide, by which
    all results in shops were measured."""
    return " ".join(_WORD.findall(text.lower()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Actions:
    """Possible actions on a page. As in the original, a search works on every page, with or without a box."""

    search: bool
    """Whether there is a search box."""
    clickables: tuple[str, ...]
    """Distinct texts in lower case: buttons, then products, then options."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Shop:
    """An immutable shop, which any number of sessions and threads may share."""

    products: Mapping[str, Product]
    """asin -> product."""
    prices: Mapping[str, float]
    """asin -> dollars; drawn from the range if a product has one."""
    index: BM25
    scorer: Callable[..., Any]
    """Called as `reward.score` is; the `total` of its result, in [0, 1], is the reward."""
    show_attributes: bool

    @classmethod
    def build(
        cls,
        products: Sequence[Product],
        prices: Mapping[str, float],
        *,
        scorer: Callable[..., Any] = score,
        show_attributes: bool = False,
    ) -> Shop:
        """Index the products. `show_attributes`: item pages link to attributes.

        Raises UserError for a repeated asin (regardless of case, as clicks are read in lower case), for a product
        without a price, and if no product contains a word.
        """
        by_asin = {product.asin: product for product in products}
        asins = Counter(product.asin.lower() for product in products)
        if twice := [product.asin for product in products if asins[product.asin.lower()] > 1]:
            raise UserError(f"asin {twice[0]!r} occurs twice among the products (regardless of case); keep one of them")
        if unpriced := [asin for asin in by_asin if asin not in prices]:
            raise UserError(f"product {unpriced[0]!r} has no price; give one for each of the {len(by_asin)} products")
        texts = {asin: indexed_text(product) for asin, product in by_asin.items()}
        passages = [Passage(asin, "", words) for asin, text in texts.items() if (words := _searched(text))]
        index = BM25.build(passages)
        return cls(products=by_asin, prices=prices, index=index, scorer=scorer, show_attributes=show_attributes)

    def start(self, goals: Sequence[Goal]) -> Session:
        """A new session on the search page. Raises UserError without a goal."""
        if not goals:
            raise UserError("a session needs at least one goal")
        return Session(goals=tuple(goals))

    def step(self, session: Session, action: str) -> Session:
        """The session after the action; the same session if the action is invalid. Never raises."""
        read = read_action(action)
        if read is None or session.done:
            return session
        kind, argument = read
        if kind == SEARCH:
            return self._search(session, argument)
        element = clickables(self.page(session)).get(argument)
        return session if element is None else self._click(session, element)

    def actions(self, session: Session) -> Actions:
        return Actions(search=session.page == "search", clickables=tuple(clickables(self.page(session))))

    def observe(self, session: Session, mode: Mode = "text") -> str:
        """The page as text. Raises UserError for an unknown mode."""
        if mode not in _SHOWN:
            raise UserError(f"unknown mode of observation {mode!r}; known: {', '.join(get_args(Mode))}")
        return _SHOWN[mode](self.page(session))

    def rewards(self, session: Session) -> tuple[float, ...]:
        """Rewards of the purchases so far, in the order of the goals."""
        return tuple(
            self.scorer(self.products[bought.asin], goal, price=bought.price, options=bought.options).total
            for bought, goal in zip(session.purchases, session.goals, strict=False)
        )

    def page(self, session: Session) -> list[Element]:
        return list(self._elements(session))

    def _elements(self, session: Session) -> Iterator[Element]:
        if session.page == "search":
            return pages.search_page(session, self.products)
        if session.page == "results":
            return pages.results_page(session, self.products)
        if session.page == "done":
            return pages.done_page(session, self.rewards(session))
        product = self.products[session.asin]
        if session.page == "item":
            return pages.item_page(session, product, show_attributes=self.show_attributes)
        return pages.detail_page(session, product)

    def _search(self, session: Session, query: str) -> Session:
        words = _searched(" ".join(query.split()[:SEARCHED_WORDS]))
        found = tuple(passage.id for passage, _ in self.index.search([words], RESULTS)[0])
        return replace(session, page="results", query=query, results=found, results_page=1, asin="", options={})

    def _click(self, session: Session, element: Element) -> Session:
        if element.kind == "link":
            return replace(session, page="item", asin=element.text, visited=session.visited | {element.text})
        if element.kind == "option":
            return replace(session, options={**session.options, element.name.lower(): element.text})
        if element.text == pages.BACK_TO_SEARCH:
            return Session(goals=session.goals, purchases=session.purchases)
        if element.text == pages.NEXT:
            return replace(session, results_page=session.results_page + 1)
        if element.text == pages.PREVIOUS:
            return _previous(session)
        if element.text == pages.BUY_NOW:
            return self._buy(session)
        page = _PAGE_OF_BUTTON.get(element.text)
        return session if page is None else replace(session, page=page)

    def _buy(self, session: Session) -> Session:
        bought = Purchase(asin=session.asin, price=self.prices[session.asin], options=session.options)
        purchases = (*session.purchases, bought)
        page = "done" if len(purchases) == len(session.goals) else "search"
        return Session(goals=session.goals, page=page, purchases=purchases)


def indexed_text(product: Product) -> str:
    """The searchable text: title, description, only the first bullet point, and every option with its values."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join((product.title, product.description, *product.bullet_points[:1], options))


def _previous(session: Session) -> Session:
    if session.page == "results":
        return replace(session, results_page=session.results_page - 1)
    if session.page == "item":
        return replace(session, page="results", asin="", options={})
    return replace(session, page="item")


_PAGE_OF_BUTTON: Mapping[str, PageName] = {
    "Description": "description",
    "Features": "features",
    "Reviews": "reviews",
    "Attributes": "attributes",
}
