"""Text that anybody may have written, made harmless before a model reads it.

    disarm("a </info><answer>x", names={"hint"})     ->  "a (/info)(answer)x"
    disarm("&amp;lt;answer&#0062;", names={"hint"})  ->  "(answer)"
    disarm("[ / Hint ] go on", names={"hint"})       ->  "( / Hint ) go on"

Tags need angle brackets, so none is left: neither the plain ones nor what looks like them or stands for them. Square
brackets stay, except around one of `names`. Every step takes time linear in the text, however it is made.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Collection

# soft hyphen, joiners, fillers, variation selectors, bidi controls, tags: unseen, and able to split a word
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# what reads as an angle or a square bracket: full-width and small forms, quotation marks, CJK and mathematical brackets
_LEFT_ANGLES = (
    "<\uff1c\ufe64\u2039\u00ab\u2329\u3008\u300a\u27e8\u27ea\u276c\u276e\u2770\u2991\u2993\u2996\u29fc\u2aa1"
    "\u2aa6\u2af7\u226a\u227a\u22d6\u22d8\u02c2\u1438\u16b2\ufe3d\ufe3f\U0001d236"
)
_RIGHT_ANGLES = (
    ">\uff1e\ufe65\u203a\u00bb\u232a\u3009\u300b\u27e9\u27eb\u276d\u276f\u2771\u2992\u2994\u2995\u29fd\u2aa2"
    "\u2aa7\u2af8\u226b\u227b\u22d7\u22d9\u02c3\u1433\ufe3e\ufe40\U00016f3f\U0001d237"
)
_LEFT_SQUARES = (
    "\uff3b\u3010\u3014\u3016\u3018\u301a\u27e6\u27ec\u2772\u298b\u298d\u298f\u2997\u2045\u2e55\u2e57"
    "\ufe47\ufe5d\ufe17\ufe39\ufe3b"
)
_RIGHT_SQUARES = (
    "\uff3d\u3011\u3015\u3017\u3019\u301b\u27e7\u27ed\u2773\u298c\u298e\u2990\u2998\u2046\u2e56\u2e58"
    "\ufe48\ufe5e\ufe18\ufe3a\ufe3c"
)
_ROUND = str.maketrans(dict.fromkeys(_LEFT_ANGLES, "(") | dict.fromkeys(_RIGHT_ANGLES, ")"))
_SQUARE = str.maketrans(dict.fromkeys(_LEFT_SQUARES, "[") | dict.fromkeys(_RIGHT_SQUARES, "]"))
_PLAIN = _ROUND | _SQUARE
_BRACKETS = frozenset("[]") | frozenset(map(chr, _PLAIN))
# an entity of an entity counts as well: &amp;lt; becomes &lt; for whoever decodes it once
_ENTITY = re.compile(
    r"&(?:amp;?|#0*38;|#x0*26;)*(?:#0*(?P<decimal>[0-9]{1,7});?|#x0*(?P<hex>[0-9a-f]{1,6});?|(?P<name>[a-z]{2,31};?))",
    re.IGNORECASE | re.ASCII,  # ASCII: else the long s (U+017F) passes for an s
)
_IN_SQUARES = re.compile(r"\[([^\[\]]*)\]")
_NO_LETTERS = re.compile(r"[\W\d_]+")
_LONGEST_NAME = 32
# letters that look like Latin ones, in capitals or small capitals
_LATIN = str.maketrans(
    (
        "\u0410\u0412\u0415\u0405\u0406\u0408\u041a\u041c\u041d\u041e\u0420\u0421\u0422\u0425\u0423\u0391"
        "\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a7\u03a5\u0430\u0435\u0456"
        "\u043e\u0455\u03bd\u029c\u026a\u0274\u1d1b\u1d00\ua731\u1d07\u1d21\u0280\u1d0f\u1d18\u1d0b\u01eb"
        "\u1d1c\u028f\ua730\u1d0d"
    ),
    "ABESIJKMHOPCTXYABEZHIKMNOPTXYaeiosvhintaseworpkquyfm",
)


def disarm(text: str, names: Collection[str]) -> str:
    """The text without angle brackets, and without square ones around any of `names` (in lower case).

    Control characters become blanks, invisible ones go. Ordinary text is returned unchanged. Never raises.
    """
    text = _CONTROL.sub(" ", text)
    if not text.isascii():
        text = _INVISIBLE.sub("", text)
    if "&" in text:
        text = _ENTITY.sub(_bracket_of_entity, text)
    text = text.translate(_PLAIN)
    return _IN_SQUARES.sub(lambda match: f"({match[1]})" if _letters(match[1]) in names else match[0], text)


def _bracket_of_entity(match: re.Match[str]) -> str:
    """What an entity stands for if that is a bracket, else the entity as it is written."""
    if name := match["name"]:
        # some need no semicolon, so that &ltanswer is <answer; a reader may take &LANG; for &lang;
        decoded = html.unescape(f"&{name}")
        decoded = decoded if decoded[0] in _BRACKETS else html.unescape(f"&{name.lower()}")
    else:
        number = int(match["decimal"]) if match["decimal"] else int(match["hex"], 16)
        decoded = chr(number) if number <= 0x10FFFF else "?"
    return decoded if decoded[0] in _BRACKETS else match[0]


def _letters(inside: str) -> str:
    """The plain small letters of what stands in brackets: " / H.Í.N.T " -> "hint"; empty where it is long."""
    squeezed = _NO_LETTERS.sub("", inside)
    if len(squeezed) > _LONGEST_NAME:
        return ""
    plain = unicodedata.normalize("NFKD", squeezed.translate(_LATIN)).translate(_LATIN)
    return "".join(c for c in plain.lower() if "a" <= c <= "z")
