"""What a shopper may write: `search[words]` or `click[text of a button, a product or an option]`.

    read_action("search[Blue Rug]")          ->  ("search", "blue rug")
    read_action("click[Buy Now], I think")   ->  ("click", "buy now")
    read_action("Action: click[buy now]")    ->  None
    read_action("buy it")                    ->  None

As the original reads it: of the first line, what stands before the last opening bracket that a later `]` closes is
the name, what stands between that bracket and the last `]` is the argument, in lower case. The original does this with
a regular expression that takes quadratic time on a row of brackets; this takes linear time.
"""

from __future__ import annotations

SEARCH = "search"
CLICK = "click"


def read_action(action: str) -> tuple[str, str] | None:
    """(search or click, argument), or None where it is neither. Never raises.

    The text of a click may hold brackets or line ends, which the original cannot read: "click[size [eu]]".
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
