"""What a shopper does and sees: actions, the session that they change, its eight pages, three ways to observe a page.

    read_action("search[Blue Rug]")          ->  ("search", "blue rug")
    read_action("click[Buy Now], I think")   ->  ("click", "buy now")
    read_action("Action: click[buy now]")    ->  None

    page = [Element("button", "Back to Search"), Element("link", "B06Y3VLDFB"), Element("text", "$877.8")]
    as_text(page)   ->  "Back to Search [SEP] B06Y3VLDFB [SEP] $877.8"
    as_rich(page)   ->  "[button] Back to Search [button_]\\n\\n[button] B06Y3VLDFB [button_]\\n$877.8\\n"
    as_html(page)   ->  markup of our own whose visible texts are the page's

An action is read as in the original: in its first line, the text before the last opening bracket that a later `]`
closes is the name, and the text from there to the last `]` is the argument, in lower case. The original's regular
expression takes quadratic time on a row of brackets; this takes linear time.

The original renders HTML and strips it again with BeautifulSoup (web_agent_text_env.py, convert_html_to_text).
Stripping our HTML by those rules gives `as_text` and `as_rich`, so neither needs HTML. The texts and their order are
those of the templates in the public recordings (WebShop's release: "< Prev" leads back). The original repository's
redesign ("< Back to Results", "Current Query: ...") cannot be reached from its text environment, whose code still looks
for "< prev".
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mem1.envs.webshop.catalogue import Goal, Product

SEARCH = "search"
CLICK = "click"


def read_action(action: str) -> tuple[str, str] | None:
    """(search or click, argument), or None for anything else. Never raises.

    Unlike in the original, the text of a click may contain brackets or line ends: "click[size [eu]]".
    """
    line = action.partition("\n")[0]
    closing = line.rfind("]")
    # at least one character on either side of the opening bracket
    opening = line.rfind("[", 1, max(closing - 1, 1))
    if opening > 0 and line[:opening] in (SEARCH, CLICK):
        return line[:opening], line[opening + 1 : closing].lower()
    if action.startswith(f"{CLICK}[") and action.endswith("]"):
        return CLICK, action[len(CLICK) + 1 : -1].lower()
    return None


def search_for(words: str) -> str:
    """The search action for these words, without brackets and line ends, which would end it early."""
    plain = " ".join(re.sub(r"[\[\]]", " ", words).split())
    return f"search[{plain}]"


PageName = Literal["search", "results", "item", "description", "features", "reviews", "attributes", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """A purchase for one goal."""

    asin: str
    price: float
    """Dollars."""
    options: Mapping[str, str]
    """Option name -> chosen value; options that were not chosen are absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One shopper's state. Equal sessions look the same and continue the same way."""

    goals: tuple[Goal, ...]
    """Goals, to be bought in this order."""
    page: PageName = "search"
    query: str = ""
    """Words of the last search in lower case; empty on the search page."""
    results: tuple[str, ...] = ()
    """asins that the search found, best first."""
    results_page: int = 1
    """Page of ten results that is shown, counted from 1; pages beyond the results are empty."""
    asin: str = ""
    """asin of the product in view; empty on the search and results pages."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options chosen for that product, in the order of the clicks."""
    visited: frozenset[str] = frozenset()
    """asins opened since leaving the search page."""
    purchases: tuple[Purchase, ...] = ()

    @property
    def done(self) -> bool:
        """Whether everything is bought; then no action changes the session."""
        return self.page == "done"

    @property
    def instruction(self) -> str:
        """The instruction on every page: the goal's text, or all goals' texts, numbered."""
        if len(self.goals) == 1:
            return self.goals[0].instruction
        return " ".join(f"{number}. {goal.instruction}" for number, goal in enumerate(self.goals, start=1))


Mode = Literal["text", "text_rich", "html"]
SEPARATOR = " [SEP] "
_ASCII_SPACES = " \n\t\f\r"
_TAGS = {"heading": "h4", "text": "p"}


class Element(NamedTuple):
    """One visible text, with the original's white space around it."""

    kind: Literal["heading", "text", "button", "link", "option"]
    text: str
    name: str = ""
    """Option: name of the option that the text is a value of."""
    clicked: bool = False
    """Link: opened before; option: chosen."""


def clickables(page: Sequence[Element]) -> dict[str, Element]:
    """Text in lower case -> the element that a click on it selects, in the original's order: buttons, links, options.

    As in the original, the last of two options with the same value is clicked, and buttons precede options.
    Elements without text cannot be clicked.
    """
    page = [element for element in page if element.text]
    buttons = {element.text.lower(): element for element in page if element.kind == "button"}
    others = {element.text.lower(): element for element in page if element.kind in ("link", "option")}
    return buttons | {text: element for text, element in others.items() if text not in buttons}


def as_text(page: Sequence[Element]) -> str:
    return SEPARATOR.join(text.strip() for _, text in _visible(page))


def as_rich(page: Sequence[Element]) -> str:
    """One text per line, clickable ones marked, preceded by the chosen options, last one first."""
    lines: list[str] = []
    chosen: list[str] = []
    for element, text in _visible(page):
        mark = "clicked button" if element.clicked else "button"
        if element.kind == "button":
            lines.append(f"[button] {text} [button_]\n")
        elif element.kind == "option":
            lines.append(f"  [{mark}] {text} [{mark}_]\n")
            if element.clicked:
                chosen.append(f"You have clicked {text}.\n")
        elif element.kind == "link":
            lines.append(f"\n[{mark}] {text} [{mark}_]\n")
        else:
            lines.append(f"{text}\n")
    return "".join(reversed(chosen)) + "".join(lines)


def as_html(page: Sequence[Element]) -> str:
    """A complete document; every text is escaped because its author is not trusted."""
    lines = [_markup(element, number) for number, element in enumerate(page)]
    head = "<!DOCTYPE html>\n<html>\n<head>\n<title>WebShop</title>\n</head>\n<body>"
    return "\n".join((head, *lines, "</body>\n</html>"))


def _markup(element: Element, number: int) -> str:
    text = html.escape(element.text)
    if element.kind == "button":
        box = '<input id="search_input" type="text" name="search_query">\n' if element.text == "Search" else ""
        return f'{box}<button class="btn">{text}</button>'
    if element.kind == "link":
        return f'<h4><a class="product-link" href="#">{text}</a></h4>'
    if element.kind == "option":
        checked = " checked" if element.clicked else ""
        name = html.escape(element.name)
        field = f'<input type="radio" id="option_{number}" name="{name}" value="{text}"{checked}>'
        return f'{field}\n<label for="option_{number}">{text}</label>'
    tag = _TAGS[element.kind]
    return f"<{tag}>{text}</{tag}>"


def _visible(page: Sequence[Element]) -> Iterator[tuple[Element, str]]:
    """The texts that BeautifulSoup finds and the original does not skip.

    Empty texts are skipped; white space alone counts as one space, or is skipped if it contains a line end.
    """
    for element in page:
        text = element.text
        if not text.strip(_ASCII_SPACES):
            if not text or "\n" in text:
                continue
            text = " "
        yield element, text


BACK_TO_SEARCH = "Back to Search"
PREVIOUS = "< Prev"
NEXT = "Next >"
BUY_NOW = "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
ATTRIBUTES = "Attributes"
RESULTS_A_PAGE = 10


def head_length(page: PageName) -> int:
    """Number of elements at the start of a page that repeat the instruction."""
    return {"search": 3, "done": 0}.get(page, 2)


def search_page(session: Session, products: Mapping[str, Product]) -> Iterator[Element]:
    """The search box; between two goals also the purchases so far, which the original does not have."""
    yield Element("heading", "WebShop")
    yield Element("heading", "Instruction: ")
    yield Element("heading", session.instruction)
    for number, purchase in enumerate(session.purchases, start=1):
        title = products[purchase.asin].title
        yield Element("text", f"Bought {number} of {len(session.goals)}: {purchase.asin} {title}")
    yield Element("button", "Search")


def results_page(session: Session, products: Mapping[str, Product]) -> Iterator[Element]:
    """Ten products. As in the original, "Next >" appears even on the last page."""
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


def detail_page(session: Session, product: Product) -> Iterator[Element]:
    """What an item links to, possibly empty; the attributes that goals are scored by only in shops that show them."""
    yield from _head(session)
    yield Element("button", PREVIOUS)
    if session.page == "description":
        yield Element("text", product.description)
    elif session.page == "reviews":
        for review in product.reviews:
            yield Element("heading", f'"{review.title}"')
            yield Element("text", review.score)
            yield Element("text", review.body)
    else:
        for text in product.bullet_points if session.page == "features" else product.attributes:
            yield Element("text", f" {text}")
    if session.page == "attributes":
        for text in (product.category, product.query, product.product_category):
            yield Element("heading", text)


_TARGET = (
    *("Target", "asin", "options", "attrs", "price upper", "instuction text"),  # the original's spelling
    *("category", "product category", "query", "Goal "),
)


def done_page(session: Session, rewards: Sequence[float]) -> Iterator[Element]:
    """The last page, with the gaps of the original's text environment, which fills in neither code nor goal."""
    yield Element("heading", "Thank you for shopping with us!")
    for purchase, reward in zip(session.purchases, rewards, strict=True):
        yield Element("heading", "Your code: ")
        yield Element("text", "None")
        yield Element("text", " (Paste it in your MTurk interface.)")
        yield Element("heading", "Purchased")
        unknown = dict.fromkeys(("attrs", "category", "query", "product category"), "None")
        for heading, text in {"asin": purchase.asin, "options": _script_json(purchase.options), **unknown}.items():
            yield Element("heading", heading)
            yield Element("text", text)
        for heading in _TARGET:
            yield Element("heading", heading)
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
    """The part of the URL of the original's item page that can contain a quotation mark.

    The original marks an option as chosen if its value occurs, in quotation marks, in the URL. So a value with a
    quotation mark or beyond ASCII is never marked, but every option that shares its value with a chosen one is, and so
    is a value that the query has in quotation marks. `text_rich` reproduces this.
    """
    words = session.query.replace(" ", "+")
    return f"{session.asin}/{words}/{session.results_page}/{json.dumps(dict(session.options))}"


def _script_json(options: Mapping[str, str]) -> str:
    """JSON as written by Flask's `tojson`: sorted, and safe inside a script."""
    text = json.dumps(dict(options), sort_keys=True)
    for character in "<>&'":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
