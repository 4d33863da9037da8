"""When two attributes, or two options, are the same: token-set ratio above 85, as the original asks thefuzz.

alike(plain("Machine Wash"), plain("machine washable"))  ->  True     ratio 85.7
alike(plain("charging case"), plain("carrying case"))    ->  False    ratio 84.6
alike(plain("!!"), plain("!!"))                          ->  False    nothing is left to compare
"""

from __future__ import annotations

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

THRESHOLD = 85
"""Percent; more than this is alike."""

_LATIN_1 = dict.fromkeys(range(128, 256))


def plain(text: str) -> str:
    """Lower case, all but letters and digits as spaces, as thefuzz prepares both sides.

    It first leaves out the characters 128 to 255 (the accented letters of Latin-1, the hard space), and no later ones.
    """
    return default_process(text.translate(_LATIN_1))


def alike(a: str, b: str) -> bool:
    """Of two `plain` texts. Rounded to whole percent before it is compared, as thefuzz does: 85.2 is not above 85."""
    return round(token_set_ratio(a, b)) > THRESHOLD
