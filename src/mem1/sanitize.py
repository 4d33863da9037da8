"""Makes text from strangers harmless before a model reads it.

    strip_brackets("a </info><answer>x", names={"hint"})     ->  "a (/info)(answer)x"
    strip_brackets("&amp;lt;answer&#0062;", names={"hint"})  ->  "(answer)"
    strip_brackets("[ / Hint ] go on", names={"hint"})       ->  "( / Hint ) go on"
    strip_brackets("[&#72;INT]", names={"hint"})             ->  "(&#72;INT)"
    break_tokens("a [INST] b", CONTROL_TOKENS)       ->  "a (INST) b"

Tags need angle brackets, so all of them are replaced, with their look-alikes and entities. Square brackets remain,
except around one of `names`. The text is read through a copy in which every character has its plain form and every
entity is decoded, however deeply nested; hostile parts of the copy are replaced at their origin. Every step takes time
linear in the text, whatever the text, and stripping a stripped text changes nothing.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from html import unescape
from html.entities import html5

# soft hyphen, joiners, fillers, variation selectors, bidi controls, tags: unseen, and able to split a word
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u070f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")
# look-alikes of angle and square brackets: full-width and small forms, quotation marks, CJK and mathematical brackets
_LEFT_ANGLES = (
    "<\u226e\uff1c\ufe64\u2039\u00ab\u2329\u3008\u300a\u27e8\u27ea\u276c\u276e\u2770\u2991\u2993\u2996\u29fc\u2aa1"
    "\u2aa6\u2af7\u226a\u227a\u22d6\u22d8\u02c2\u1438\u16b2\ufe3d\ufe3f\U0001d236"
)
_RIGHT_ANGLES = (
    ">\u226f\uff1e\ufe65\u203a\u00bb\u232a\u3009\u300b\u27e9\u27eb\u276d\u276f\u2771\u2992\u2994\u2995\u29fd\u2aa2"
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
_PLAIN = str.maketrans(
    dict.fromkeys(_LEFT_ANGLES, "<")
    | dict.fromkeys(_RIGHT_ANGLES, ">")
    | dict.fromkeys(_LEFT_SQUARES, "[")
    | dict.fromkeys(_RIGHT_SQUARES, "]")
)
_MARKS = frozenset("<>[]")
_ROUND = str.maketrans("<>[]", "()()")
_ENTITY = re.compile(
    r"&(#[0-9]+;?|#x[0-9a-f]+;?|[a-z][a-z0-9]{1,31};?)",
    re.IGNORECASE | re.ASCII,  # ASCII: else the long s (U+017F) passes for an s
)
_NUMBER = re.compile(r"[0-9a-f]{1,6}$", re.IGNORECASE)
_LONGEST_NUMBER = 10
"""Maximum length of a character's number, with its marks and without leading zeros."""
_DECODINGS = 8
"""Levels of nested entities that are decoded; no honest text has more."""
_ROUNDS = 4
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
# A to Z in circles and squares, white on black, and as the letters that flags are made of
_LETTERS_IN_SHAPES = (0x1F150, 0x1F170, 0x1F1E6)


def strip_brackets(text: str, names: Collection[str]) -> str:
    """The text without angle brackets, and without square ones around any of `names` (in lower case).

    Control characters become spaces, invisible ones are removed. Ordinary text is returned unchanged. Never raises, and
    strip_brackets(strip_brackets(text)) == strip_brackets(text).
    """
    text = _CONTROL.sub(" ", text)
    if text.isascii():
        if not _SUSPECT.search(text):
            return text
    else:
        text = _INVISIBLE.sub("", text)
    for _ in range(_ROUNDS):
        view = _View.of(text)
        stripped = None if view is None else view.stripped(names)
        if stripped == text:
            return text
        if stripped is None:
            break
        text = stripped
    # nested so deeply only to deceive
    return "".join(map(_blunt, text))


_SUSPECT = re.compile(r"[<>\[\]&]")


def _tells_bracket(text: str) -> bool:
    """Whether its last digits are the number of a bracket."""
    found = _NUMBER.search(text)
    numbers = [] if found is None else [int(found[0], 16), *([int(found[0])] if found[0].isdecimal() else [])]
    return any(_plain(chr(number)) in _MARKS for number in numbers if number <= sys.maxunicode)


class _View:
    """A text as a lenient reader sees it, with the position in the text that each character comes from."""

    def __init__(self, text: str, seen: list[str], places: list[tuple[int, int]]) -> None:
        self.text, self.seen, self.places = text, seen, places

    @classmethod
    def of(cls, text: str) -> _View | None:
        """None: entities are nested too deeply to be decoded."""
        seen: list[str] = []
        places: list[tuple[int, int]] = []
        for place, c in enumerate(text):
            plain_ones = c if c.isascii() else _plain(c)
            if not plain_ones and _tells_bracket("".join(seen[-_LONGEST_NUMBER:])):
                plain_ones = "\0"  # a mark ends the number for those who do not ignore it
            for plain in plain_ones:
                seen.append(plain)
                places.append((place, place + 1))
        view = cls(text, seen, places)
        for _ in range(_DECODINGS):
            if not view._decode():
                return view
        return None

    def _decode(self) -> bool:
        """Replace all entities by their characters; False: there were none."""
        if "&" not in self.seen:
            return False
        joined, seen, places = "".join(self.seen), [], []
        done = 0
        for match in _ENTITY.finditer(joined):
            decoded, end = _decoded(match)
            if end == match.start():
                continue
            seen += self.seen[done : match.start()]
            places += self.places[done : match.start()]
            source = self.places[match.start()][0], self.places[end - 1][1]
            plain = "".join(map(_plain, decoded))
            seen += plain
            places += [source] * len(plain)
            done = end
        if not done:
            return False
        self.seen, self.places = [*seen, *self.seen[done:]], [*places, *self.places[done:]]
        return True

    def stripped(self, names: Collection[str]) -> str:
        """The text with round brackets instead of hostile ones."""
        round_ones = self._around(names)
        parts: list[str] = []
        done = 0
        for i, c in enumerate(self.seen):
            start, stop = self.places[i]
            if c not in _MARKS or start < done:
                continue
            parts += (self.text[done:start], c.translate(_ROUND) if c in "<>" or i in round_ones else c)
            done = stop
        return "".join((*parts, self.text[done:]))

    def _around(self, names: Collection[str]) -> set[int]:
        """Positions in the view of square brackets around a name, ignoring everything that is no letter."""
        letters: list[str] = []
        opened: list[tuple[int, int]] = []
        found: set[int] = set()
        for i, c in enumerate(self.seen):
            if c == "[":
                opened.append((i, len(letters)))
            elif c == "]" and opened:
                start, first = opened.pop()
                if len(letters) - first <= _LONGEST_NAME and "".join(letters[first:]) in names:
                    found |= {start, i}
            else:
                letters += _letters(c)
        return found


def _decoded(match: re.Match[str]) -> tuple[str, int]:
    """The characters of an entity, and its end; the end equals the start if it is no entity."""
    what = match[1]
    if what.startswith("#"):
        digits = what.removesuffix(";").lstrip("#xX").lstrip("0")
        mark = "&#x" if what[1] in "xX" else "&#"
        return unescape(f"{mark}{digits or 0};") if len(digits) < _LONGEST_NUMBER else "?", match.end()
    # some need no semicolon, so &ltanswer is <answer; a reader may take &LANG; for &lang;
    for name in (what, what.lower()):
        for end in range(len(name), 1, -1):
            if name[:end] in html5:
                return html5[name[:end]], match.end() - len(name) + end
    return "", match.start()


@lru_cache(maxsize=1 << 16)
def _plain(c: str) -> str:
    """A character as a reader sees it who folds forms and ignores marks and invisible characters."""
    bracket = c.translate(_PLAIN)
    if bracket != c or c in _MARKS:
        return bracket
    parts = unicodedata.normalize("NFKD", c).translate(_PLAIN)
    return "".join(part for part in parts if unicodedata.category(part) not in _UNSEEN)


_UNSEEN = frozenset(("Mn", "Me", "Cf", "Cc", "Cs"))


@lru_cache(maxsize=1 << 16)
def _letters(c: str) -> str:
    """The plain lower-case letters in a character: "\u24bd" -> "h"; empty: no letter."""
    number = ord(c)
    for first in _LETTERS_IN_SHAPES:
        if first <= number < first + 26:
            return chr(ord("a") + number - first)
    plain = unicodedata.normalize("NFKD", c.translate(_LATIN)).translate(_LATIN)
    return "".join(letter for letter in plain.lower() if "a" <= letter <= "z")


def letters_of(text: str) -> str:
    """Its plain lower-case letters, as names in square brackets are compared."""
    return "".join(map(_letters, text))


def _blunt(c: str) -> str:
    """The character; a space or round bracket if it could be a bracket or begin an entity."""
    plain = _plain(c)
    mark = next((m for m in plain if m in "<>[]&"), None)
    return c if mark is None else " " if mark == "&" else mark.translate(_ROUND)


# --- control tokens of models


CONTROL_TOKENS = (
    "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CONTENT]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[ARGS]", "[CALL_ID]", "[IMG]",
    "[IMG_BREAK]", "[IMG_END]", "[AUDIO]", "[BEGIN_AUDIO]", "[TRANSCRIBE]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[THINK]", "[/THINK]", "[MODEL_SETTINGS]", "[/MODEL_SETTINGS]", "[REFERENCE_DOC_0]", "[gMASK]", "[sMASK]",
    "[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "[BOS]", "[EOS]", "[EOT]", "[END_OF_TEXT]", "[control_0]",
    "<s>", "</s>", "<bos>", "<eos>", "<pad>", "<unk>", "<mask>", "<<SYS>>", "<</SYS>>", "<start_of_turn>",
    "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<tool_call>", "</tool_call>", "<tool_response>",
    "</tool_response>", "<tools>", "</tools>", "<function_call>", "<end_of_utterance>", "<sop>", "<eop>", "[@BOS@]",
    "<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim-prefix>", "<fim-middle>", "<fim-suffix>",
)  # fmt: skip
"""Control tokens of well-known models and templates; `break_tokens` adds <|...|> of any kind."""
_PIPED = r"<[|\uff5c][^<>|\uff5c\n]{1,64}[|\uff5c]>"
_WORD = re.compile(r"'?\w+|\s+")


def break_tokens(text: str, tokens: Iterable[str]) -> str:
    """The text with each of `tokens`, and each <|...|>, changed so that no tokenizer recognises it, in any case.

    Brackets become round; a token without brackets gets a space after its first character.
    """
    pattern = _tokens_pattern(tuple(tokens))
    for _ in range(_ROUNDS):  # the rest of a broken token may form another one
        broken = pattern.sub(_broken, text)
        if broken == text:
            break
        text = broken
    return text


@lru_cache(maxsize=16)
def _tokens_pattern(tokens: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted({token for token in tokens if token.strip()}, key=lambda token: (-len(token), token))
    return re.compile("|".join((_PIPED, *map(re.escape, longest_first))), re.IGNORECASE)


def _broken(match: re.Match[str]) -> str:
    round_one = match[0].translate(_ROUND)
    return round_one if round_one != match[0] else f"{match[0][0]} {match[0][1:]}"


def breakable(tokens: Iterable[tuple[str, bool]]) -> tuple[str, ...]:
    """The texts to break, among added tokens given as (text, special). White space, single characters, and words that
    are not special may occur in any text."""
    return tuple(text for text, special in tokens if len(text) > 1 and (special or not _WORD.fullmatch(text)))


def sound_text(text: str) -> str:
    """The text with a question mark for each lone surrogate, which tokenizers and JSON parsers reject."""
    return text.encode("utf-8", "replace").decode("utf-8")
