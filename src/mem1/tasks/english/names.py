"""Invented names: people, towns, rivers, firms and novels, none of which occurs in a world of the other half.

    towns("evaluation")    ->  "Alderbourne", "Hazelwick", ...
    Corin Ashmont          a person, of a first name and a last name

Names are put together from short English-looking pieces, so that common tokenizers need two or three tokens for each. A
hash assigns every whole name to one half; pieces occur in both, so that names share first or last words.
"""

from __future__ import annotations

from functools import cache
from itertools import product

from mem1.tasks.atlas.world import split_of_name
from mem1.tasks.compose import Split

# fmt: off
_SHE = ("a", "ia", "elle", "ine", "ora")
_HE = ("en", "in", "o", "us", "ard")
_FIRST = ("Al", "Bren", "Cor", "Dar", "El", "Fen", "Gal", "Har", "Jor", "Kel", "Lor", "Mar", "Nor", "Or", "Per", "Ros")
_FIRST_MORE = ("Sel", "Tam", "Ul", "Vel", "Wil", "Yor", "Bel", "Cas", "Del", "Em")
_LAST = ("Ash", "Brand", "Col", "Dren", "Farr", "Gant", "Hol", "Kess", "Lang", "Merr", "Nash", "Orl", "Pell", "Quill")
_LAST_MORE = ("Rav", "Stan", "Tarr", "Under", "Venn", "Wex", "Hart", "Loch", "Mond", "Sand")
_LAST_ENDS = ("ley", "mont", "den", "er", "ick", "ison", "ander", "brook", "well", "gate", "low", "strom")

_TOWN = (
    "Alder",
    "Brack",
    "Corn",
    "Dun",
    "Elm",
    "Fen",
    "Glen",
    "Hazel",
    "Iron",
    "Kings",
    "Lark",
    "Mill",
    "North",
    "Oak",
)
_TOWN_MORE = ("Pen", "Raven", "Salt", "Thorn", "Wester", "Win", "Amber", "Birch", "Cold", "Fair", "Gold", "Hollow")
_TOWN_REST = (
    "Ask",
    "Bell",
    "Carr",
    "Dray",
    "East",
    "Fox",
    "Grim",
    "Heath",
    "Ivy",
    "Juniper",
    "Long",
    "Marsh",
    "Nether",
)
_TOWN_LAST = (
    "Otter",
    "Pike",
    "Rush",
    "Stone",
    "Swan",
    "Tarn",
    "Upper",
    "Wolver",
    "Yarrow",
    "Ember",
    "Quarry",
    "Linden",
)
_TOWN_ENDS = ("ford", "wick", "mere", "ham", "stead", "haven", "bridge", "dale", "combe", "minster", "port", "ley")
_TOWN_ENDS_MORE = ("worth", "bourne", "cliff", "holt", "moor", "wells")
_RIVER = (
    "Arl",
    "Bel",
    "Cam",
    "Dor",
    "Est",
    "Gar",
    "Isen",
    "Lun",
    "Morv",
    "Navr",
    "Ost",
    "Rin",
    "Sav",
    "Tav",
    "Urb",
    "Wend",
    "Anth",
    "Brid",
    "Calth",
    "Drav",
    "Erm",
    "Fal",
    "Hest",
    "Kild",
    "Leth",
    "Pell",
)
_RIVER_ENDS = ("a", "ey", "ander", "ock", "el", "in", "on", "ish", "une", "ise")
_TRADES = ("Instruments", "Shipping", "Mills", "Publishing", "Optics", "Foundry", "Textiles", "Clockworks", "Ceramics")
_TRADES_MORE = ("Printworks", "Timber", "Chemicals", "Engines", "Glass")
_TITLE = ("Silent", "Crooked", "Borrowed", "Distant", "Golden", "Hidden", "Last", "Painted", "Quiet", "Restless")
_TITLE_MORE = (
    "Second",
    "Sleeping",
    "Thirsty",
    "Unfinished",
    "Winter",
    "Broken",
    "Copper",
    "Early",
    "Narrow",
    "Patient",
)
_THINGS = ("Orchard", "Staircase", "Letter", "Garden", "Mirror", "Voyage", "Window", "Compass", "Sermon", "Archive")
_THINGS_MORE = ("Bridge", "Candle", "Harvest", "Island", "Journal", "Kitchen", "Library", "Meadow", "Piano", "Shadow")
_THINGS_REST = (
    "Almanac",
    "Balcony",
    "Carriage",
    "Doorway",
    "Ferry",
    "Gallery",
    "Inheritance",
    "Jury",
    "Lighthouse",
    "Tide",
)
_NICKNAME = ("Lantern", "Cobble", "Bell", "Pewter", "Rose", "Chimney", "Weaver", "Salt", "Windmill", "Falcon", "Beacon")
_NICKNAME_MORE = ("Cedar", "Anchor", "Sparrow", "Marble", "Pepper", "Ribbon", "Saddle", "Thistle", "Velvet", "Walnut")
_NICKNAME_REST = (
    "Amber",
    "Barley",
    "Clover",
    "Dragon",
    "Feather",
    "Ginger",
    "Hazel",
    "Ivory",
    "Juniper",
    "Kestrel",
    "Lilac",
)
_PLACES = ("City", "Town", "Port", "Crossing", "Harbour", "Hill")
# fmt: on

FIRST_NAMES = tuple(
    (start + end, pronoun)
    for start in _FIRST + _FIRST_MORE
    for ends, pronoun in ((_SHE, "she"), (_HE, "he"))
    for end in ends
)
"""(first name, pronoun)."""
LAST_NAMES = tuple(start + end for start, end in product(_LAST + _LAST_MORE, _LAST_ENDS))


@cache
def towns(split: Split) -> tuple[str, ...]:
    """All towns of one half, in a fixed order."""
    return _joined(_TOWN + _TOWN_MORE + _TOWN_REST + _TOWN_LAST, _TOWN_ENDS + _TOWN_ENDS_MORE, "", split)


@cache
def rivers(split: Split) -> tuple[str, ...]:
    """All rivers of one half."""
    return _joined(_RIVER, _RIVER_ENDS, "", split)


@cache
def firms(split: Split) -> tuple[str, ...]:
    """All firms of one half: a surname and a trade."""
    return _joined(LAST_NAMES, _TRADES + _TRADES_MORE, " ", split)


@cache
def novels(split: Split) -> tuple[str, ...]:
    """All titles of one half."""
    return tuple(
        f"The {name}" for name in _joined(_TITLE + _TITLE_MORE, _THINGS + _THINGS_MORE + _THINGS_REST, " ", split)
    )


@cache
def nicknames(split: Split) -> tuple[str, ...]:
    """Second names of towns, without their article: "Lantern City"."""
    return _joined(_NICKNAME + _NICKNAME_MORE + _NICKNAME_REST, _PLACES, " ", split)


def _joined(starts: tuple[str, ...], ends: tuple[str, ...], between: str, split: Split) -> tuple[str, ...]:
    return tuple(f"{a}{between}{b}" for a in starts for b in ends if split_of_name(a, b) == split)
