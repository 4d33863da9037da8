"""The colour words to which WebShop reduces the value of an option.

reduced("123 navy blue")          ->  "blue"
reduced("x-large")                ->  "x-large"
reduced_pair("color", "black")    ->  "black"
reduced_pair("color", "jet black")->  "('color', 'jet black')"

The list is the original's (engine/normalize.py), and its order decides: "steelivy fuchsia" is "fuchsia". A word counts
wherever its letters stand ("tan" in "stand"); capitals are not lowered.
"""

from __future__ import annotations

_WORDS = """
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo
ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
wheat white wine yellow
"""
COLORS = tuple(_WORDS.split())


def reduced(value: str) -> str:
    """The first colour word of the list that stands in the value, else the value itself."""
    return next((color for color in COLORS if color in value), value)


def reduced_pair(name: str, value: str) -> str:
    """What the original compares in place of an option of a synthetic goal.

    It hands the pair itself to the function for one value: "stands in" then means "is one of the two", so that only a
    value (or name) that is exactly a colour word is reduced. Any other pair is compared as Python writes it, with
    quotes, and with escapes such as \\xa0 for what cannot be printed.
    """
    pair = (name, value)
    return next((color for color in COLORS if color in pair), str(pair))
