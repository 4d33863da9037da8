"""WebShop's shop: what is found, what can be clicked, where it leads, and what a hostile shopper cannot do."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from shops import (
    CROWD,
    GOAL,
    LAMP,
    OTHER_GOAL,
    RUG,
    half_for_blue,
    needs_shared_products,
    real_products,
    small_shop,
    walk,
)

from mem1.envs.webshop.catalogue import Product
from mem1.envs.webshop.pages import Purchase, Session, read_action
from mem1.envs.webshop.shop import RESULTS, SEARCHED_WORDS, Actions, Shop, indexed_text
from mem1.errors import UserError

SHOP = small_shop()
ITEM = ("search[rug]", f"click[{RUG.asin}]")


@pytest.mark.parametrize(
    ("action", "read"),
    [
        ("search[Blue Rug]", ("search", "blue rug")),
        ("search[ ]", ("search", " ")),
        ("click[Buy Now], I think", ("click", "buy now")),
        ("click[a]b]", ("click", "a]b")),
        ("click[buy now]\nThought: done]", ("click", "buy now")),
        ("click[size [eu]]", ("click", "size [eu]")),
        ("click[two\nlines]", ("click", "two\nlines")),
        ("click[[]", ("click", "[")),
        ("search[a[b]c]", None),
        ("search[]", None),
        ("Search[rug]", None),
        (" search[rug]", None),
        ("Action: search[rug]", None),
        ("Thought: x\nsearch[rug]", None),
        ("[rug]", None),
        ("search rug", None),
        ("search[rug", None),
        ("search]rug[", None),
        ("", None),
    ],
)
def test_actions_are_read_as_the_original_reads_them(action: str, read: tuple[str, str] | None):
    assert read_action(action) == read


def test_search_sees_title_description_the_first_bullet_point_and_the_options():
    assert indexed_text(RUG) == (
        "Woven Rug <b>Soft</b> & Warm A rug of wool. Easy to clean  "
        "color: blue, dark blue, grey \"mist\", and size: 2' x 3', blue"
    )
    for word, found in {"woven": 13, "wool": 1, "easy": 1, "hidden": 0, "dark": 1, "size": 1, "hand": 0}.items():
        assert len(walk(SHOP, f"search[{word}]").results) == found, word


def test_a_search_finds_fifty_at_most_and_shows_ten():
    many = [Product(asin=f"M{i}", name="mat", title=f"mat {i}") for i in range(70)]
    shop = small_shop(*many)
    session = walk(shop, "search[mat]")
    assert len(session.results) == RESULTS == 50
    shown = [text for text in shop.actions(session).clickables if text[0] in "mb" and text != "back to search"]
    assert len(shown) == 10


def test_words_beyond_lucene_s_limit_are_not_searched():
    filler = " ".join(["lamp"] * (SEARCHED_WORDS - 1))
    assert RUG.asin in walk(SHOP, f"search[{filler} rug]").results
    assert RUG.asin not in walk(SHOP, f"search[{filler} lamp rug]").results


@pytest.mark.parametrize("query", ["zzz", " ", "<r>", "the of", "<q> ", "<c>", "<a>"])
def test_a_query_without_a_known_word_finds_nothing_and_can_be_left(query: str):
    session = walk(SHOP, f"search[{query}]")
    assert (session.page, session.results) == ("results", ())
    assert SHOP.actions(session) == Actions(search=False, clickables=("back to search", "next >"))
    assert walk(SHOP, "click[back to search]", start=session) == SHOP.start([GOAL])


def test_what_can_be_clicked_in_the_original_s_order():
    session = SHOP.start([GOAL])
    assert SHOP.actions(session) == Actions(search=True, clickables=("search",))
    session = walk(SHOP, "search[rug]", start=session)
    assert SHOP.actions(session) == Actions(search=False, clickables=("back to search", "next >", "b000000rug"))
    session = walk(SHOP, "click[next >]", start=session)
    assert SHOP.actions(session).clickables == ("back to search", "< prev", "next >")
    buttons = ("back to search", "< prev", "description", "features", "reviews", "buy now")
    options = ("blue", "dark blue", 'grey "mist"', "2' x 3'")
    session = walk(SHOP, *ITEM)
    assert SHOP.actions(session) == Actions(search=False, clickables=(*buttons, *options))
    assert SHOP.actions(walk(SHOP, *ITEM, "click[features]")).clickables == ("back to search", "< prev")
    assert SHOP.actions(walk(SHOP, *ITEM, "click[buy now]")) == Actions(search=False, clickables=())


def test_prev_leads_one_step_up_and_forgets_the_options_on_the_way_to_the_results():
    mats = walk(SHOP, "search[woven]", "click[next >]")
    item = walk(SHOP, f"click[{mats.results[10]}]", start=mats)
    assert (item.page, item.asin, item.results_page) == ("item", mats.results[10], 2)
    rug = walk(SHOP, *ITEM, "click[dark blue]")
    assert walk(SHOP, "click[reviews]", "click[< prev]", start=rug) == rug
    assert walk(SHOP, "click[< prev]", start=item) == replace(mats, visited=frozenset({item.asin}))
    assert walk(SHOP, "click[< prev]", "click[< prev]", start=item).results_page == 1
    assert walk(SHOP, "click[< prev]", f"click[{RUG.asin}]", start=rug).options == {}


def test_another_value_replaces_the_one_chosen_before_and_a_shared_one_is_the_last_option_s():
    assert walk(SHOP, *ITEM, "click[blue]").options == {"size": "blue"}
    session = walk(SHOP, *ITEM, "click[dark blue]", "click[2' x 3']", 'click[GREY "Mist"]')
    assert dict(session.options) == {"color": 'grey "mist"', "size": "2' x 3'"}


def test_a_search_is_answered_on_every_page_and_keeps_what_was_visited():
    session = walk(SHOP, *ITEM, "click[dark blue]", "click[features]", "search[lamp]")
    assert session == Session(
        goals=(GOAL,), page="results", query="lamp", results=(LAMP.asin,), visited=frozenset({RUG.asin})
    )
    assert walk(SHOP, "click[back to search]", start=session) == SHOP.start([GOAL])


@pytest.mark.parametrize(
    "action", ["", "buy now", "click[search]", "click[buy]", "click[next >]", "click[attributes]", "click[B00000LAMP]"]
)
def test_an_action_without_effect_returns_the_same_session(action: str):
    session = walk(SHOP, *ITEM)
    assert SHOP.step(session, action) is session


def test_buying_takes_price_and_options_and_ends_the_session():
    session = walk(SHOP, *ITEM, "click[dark blue]", "click[buy now]")
    assert session.purchases == (Purchase(asin=RUG.asin, price=10.0, options={"color": "dark blue"}),)
    assert session.done
    assert SHOP.rewards(session) == (0.0,)
    assert SHOP.step(session, "search[rug]") is session


def test_several_goals_are_bought_in_their_order():
    session = walk(SHOP, *ITEM, "click[blue]", "click[buy now]", start=SHOP.start([GOAL, OTHER_GOAL]))
    assert session == Session(
        goals=(GOAL, OTHER_GOAL), purchases=(Purchase(asin=RUG.asin, price=10.0, options={"size": "blue"}),)
    )
    assert SHOP.rewards(session) == (0.5,)
    session = walk(SHOP, "search[lamp]", "click[b00000lamp]", "click[buy now]", start=session)
    assert session.done
    assert SHOP.rewards(session) == (0.5, 0.25)


def test_stepping_leaves_the_session_as_it_was():
    session = walk(SHOP, *ITEM)
    before = replace(session, options=dict(session.options))
    SHOP.step(session, "click[dark blue]")
    assert session == before


AWKWARD = Product(
    asin="b00lower",
    name="odd",
    title="odd thing",
    options={
        "Size": ("XL [EU]", "[", "two\nlines", "Search", "buy now", "next >", "attributes", "", " ", "\u0130stanbul"),
        "size": ("\x00", "\ud800", "l" * 5000),
    },
)


def test_options_that_the_original_cannot_choose_can_be_chosen():
    shop = small_shop(AWKWARD)
    item = walk(shop, "search[odd]", "click[b00LOWER]")
    assert item.asin == "b00lower"
    clickable = shop.actions(item).clickables
    for value in [v for values in AWKWARD.options.values() for v in values if v not in ("", "buy now")]:
        assert value.lower() in clickable
        assert walk(shop, f"click[{value.lower()}]", start=item).options == {"size": value}
    assert walk(shop, "click[buy now]", start=item).done
    assert "" not in clickable


@pytest.mark.parametrize("query", ["search_results", "item_page", "item_sub_page", "done"])
def test_words_of_the_original_s_addresses_do_not_mislead_prev(query: str):
    shop = small_shop(Product(asin="B0TRAP", name=query, title=query))
    item = walk(shop, f"search[{query}]", "click[b0trap]")
    assert walk(shop, "click[description]", "click[< prev]", start=item) == item
    assert walk(shop, "click[< prev]", start=item).page == "results"
    assert walk(shop, "click[< prev]", start=item).results_page == 1


def test_products_without_any_text_are_sold_but_not_found():
    bare = Product(asin="B0BARE", name="", title="")
    assert bare.asin in small_shop(bare).products
    with pytest.raises(UserError, match="none of the 0 passages"):
        Shop.build([bare], {bare.asin: 1.0}, scorer=half_for_blue)


def test_a_shop_refuses_twice_the_same_asin_a_missing_price_and_no_goal():
    for again in (LAMP, replace(LAMP, asin="b00000lamp")):
        with pytest.raises(UserError, match="asin 'B00000LAMP' occurs twice"):
            small_shop(again)
    with pytest.raises(UserError, match="product 'B00000LAMP' has no price"):
        Shop.build([RUG, LAMP], {RUG.asin: 1.0}, scorer=half_for_blue)
    with pytest.raises(UserError, match="at least one goal"):
        SHOP.start([])


HOSTILE = (
    *("", "[", "]", "[]", "search", "click", "search[", "click[]", "search[]", "search[[]]", "click[\x00]", "\ud800"),
    *("search[\ud800]", "search[\x00]", "search[<r>]", "search[<a> x]", "search[<c>]", "search[<q>]", "click[search]"),
    *("search[__import__('os').system('false')]", "search[['a', 'b']]", "click[<script>]", "click[../../etc/passwd]"),
    *("click[\uff42uy now]", "click[buy\u00a0now]", "click[BUY NOW]", "CLICK[buy now]", "click[attributes]", "\n" * 9),
    *("click[back to search]", "click[< prev]", "click[next >]", "click[buy now]", "click[\u0130]"),
    *(
        "click[description]",
        "click[features]",
        "click[reviews]",
        "click[b000000rug]",
        "search[search_results]",
        'search[item_page "blue"]',
    ),
)
HUGE = (
    "[" * 1_000_000,
    "]" * 1_000_000,
    f"click[{'[' * 1_000_000}]",
    f"search[{'rug ' * 250_000}]",
    "search[" * 150_000,
)


def wander(shop: Shop, steps: int, *, huge: float) -> dict[str, int]:
    """Random clicks, searches and hostile texts; returns how often each page was seen."""
    rng = random.Random(0)
    words = sorted({word for product in shop.products.values() for word in product.title.split()})
    session = shop.start([GOAL, OTHER_GOAL])
    seen: dict[str, int] = {}
    for step in range(steps):
        clicks = shop.actions(session).clickables
        draw = rng.random()
        if draw < huge:
            action = rng.choice(HUGE)
        elif draw < 0.2:
            action = rng.choice(HOSTILE)
        elif draw < 0.35 or not clicks:
            action = f"search[{' '.join(rng.choices(words, k=2))}]"
        else:
            action = f"click[{rng.choice(clicks)}]"
        session = shop.step(session, action)
        seen[session.page] = seen.get(session.page, 0) + 1
        check(session, shop)
        if step % 7 == 0:
            assert shop.observe(session, rng.choice(("text", "text_rich", "html")))
        if session.done and rng.random() < 0.5:
            session = shop.start([GOAL, OTHER_GOAL])
    return seen


def check(session: Session, shop: Shop) -> None:
    """A session makes sense, and unless it is done, one action leads back to an empty search page and on from there."""
    assert session.done == (len(session.purchases) == len(session.goals) == 2)
    assert (session.asin in shop.products) == (session.page not in ("search", "results", "done"))
    assert session.results_page >= 1
    if not session.done:
        home = session if session.page == "search" else shop.step(session, "click[back to search]")
        assert home == Session(goals=session.goals, purchases=session.purchases)


ALL_PAGES = {"search", "results", "item", "description", "features", "reviews", "attributes", "done"}


def test_thousands_of_random_and_hostile_actions_raise_nothing_and_lead_nowhere_without_return():
    seen = wander(small_shop(AWKWARD, show_attributes=True), 4_000, huge=0.001)
    assert set(seen) == ALL_PAGES
    assert min(seen.values()) > 10


@pytest.mark.slow
@needs_shared_products
def test_a_million_do_neither():
    products = [*real_products(), AWKWARD, RUG, LAMP, *CROWD]
    shop = Shop.build(
        products, dict.fromkeys((p.asin for p in products), 1.0), scorer=half_for_blue, show_attributes=True
    )
    assert set(wander(shop, 1_000_000, huge=0.0002)) == ALL_PAGES
