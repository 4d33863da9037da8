"""A page as the row of its texts, and the three ways in which it is observed.

    page = [Element("button", "Back to Search"), Element("link", "B06Y3VLDFB"), Element("text", "$877.8")]
    as_text(page)   ->  "Back to Search [SEP] B06Y3VLDFB [SEP] $877.8"
    as_rich(page)   ->  "[button] Back to Search [button_]\\n\\n[button] B06Y3VLDFB [button_]\\n$877.8\\n"
    as_html(page)   ->  markup of our own whose visible texts are the page's

The original renders HTML and strips it again with BeautifulSoup (web_agent_text_env.py, convert_html_to_text).
Stripping our HTML by those rules gives `as_text` and `as_rich`, so that neither needs HTML.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

Mode = Literal["text", "text_rich", "html"]
SEPARATOR = " [SEP] "
_ASCII_SPACES = " \n\t\f\r"
_TAGS = {"heading": "h4", "text": "p"}


class Element(NamedTuple):
    """One visible text, raw: with the blanks that the original has around it."""

    kind: Literal["heading", "text", "button", "link", "option"]
    text: str
    name: str = ""
    """Of an option: what its value is a value of."""
    clicked: bool = False
    """Of a link: opened before; of an option: chosen."""


def clickables(page: Sequence[Element]) -> dict[str, Element]:
    """Text in lower case -> what a click on it means, in the original's order: buttons, links, options.

    Where two options share a value, the last one is clicked, as in the original; a button comes before an option.
    What has no text cannot be clicked.
    """
    page = [element for element in page if element.text]
    buttons = {element.text.lower(): element for element in page if element.kind == "button"}
    others = {element.text.lower(): element for element in page if element.kind in ("link", "option")}
    return buttons | {text: element for text, element in others.items() if text not in buttons}


def as_text(page: Sequence[Element]) -> str:
    """The texts, stripped, between separators."""
    return SEPARATOR.join(text.strip() for _, text in _visible(page))


def as_rich(page: Sequence[Element]) -> str:
    """One text a line, what can be clicked in marks; above it what has been chosen, the last option first."""
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
    """A whole document; every text is escaped, for anybody may have written it."""
    lines = [_markup(element, number) for number, element in enumerate(page)]
    return "\n".join(
        (
            "<!DOCTYPE html>",
            "<html>",
            "<head>",
            "<title>WebShop</title>",
            "</head>",
            "<body>",
            *lines,
            "</body>",
            "</html>",
        )
    )


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
    """What BeautifulSoup finds and the original does not skip.

    An empty text is no text; blanks alone count as one blank, or, where they hold a line end, as nothing.
    """
    for element in page:
        text = element.text
        if not text.strip(_ASCII_SPACES):
            if not text or "\n" in text:
                continue
            text = " "
        yield element, text
