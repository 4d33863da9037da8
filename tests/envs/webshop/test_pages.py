"""WebShop's pages: every text of the original's templates, literally, and three ways of seeing them that agree.

The literals follow the templates of WebShop's release (kept in reiinakano/WebShop, df8649c, and zdy023/WebShop,
104c695), stripped as web_agent_text_env.py does. Real recordings that they agree with, field by field:
- nec-research/agentquest, agentquest/benchmarks/webshop/README.md: search, results, item and last page over the same
  1,000 products. The test below compares digests.
- google/adk-samples, python/agents/personalized-shopping/tests/example_interactions/
  image_search_denim_skirt.session.md: item with options, no description, features, no reviews, options on the last
  page. Its product is not among the 1,000, and its first two fields are cut off.
- THUDM/AgentBench, src/server/tasks/webshop/__init__.py: search, results, item with options.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from shops import (
    GOAL,
    LAMP,
    OTHER_GOAL,
    RUG,
    Worth,
    half_for_blue,
    needs_shared_products,
    real_products,
    small_shop,
    walk,
)
from shops import stripped_rich as rich_of
from shops import stripped_text as text_of

from mem1.envs.webshop.catalogue import Goal, Product
from mem1.envs.webshop.pages import Element, PageName, Session, as_html, as_rich, as_text, clickables
from mem1.envs.webshop.shop import Shop
from mem1.errors import UserError

SHOP = small_shop(show_attributes=True)
PLAIN = small_shop()
ITEM = ("search[rug]", f"click[{RUG.asin}]")
HEAD = "Instruction: [SEP] i need a blue rug, and price lower than 30.00 dollars [SEP] Back to Search"
TITLE = "Woven Rug <b>Soft</b> & Warm"


def test_the_search_page():
    assert PLAIN.observe(PLAIN.start([GOAL]), "text") == (
        "WebShop [SEP] Instruction: [SEP] i need a blue rug, and price lower than 30.00 dollars [SEP] Search"
    )
    assert PLAIN.observe(PLAIN.start([GOAL]), "text_rich") == (
        "WebShop\nInstruction: \ni need a blue rug, and price lower than 30.00 dollars\n[button] Search [button_]\n"
    )


def test_a_page_of_results():
    session = walk(PLAIN, *ITEM, "click[< prev]")
    assert PLAIN.observe(session, "text") == (
        f"{HEAD} [SEP] Page 1 (Total results: 1) [SEP] Next > [SEP] B000000RUG [SEP] {TITLE} [SEP] $10.0 to $20.0"
    )
    assert PLAIN.observe(session, "text_rich") == (
        "Instruction:\ni need a blue rug, and price lower than 30.00 dollars\n[button] Back to Search [button_]\n"
        "Page 1 (Total results: 1)\n[button] Next > [button_]\n\n"
        f"[clicked button] B000000RUG [clicked button_]\n{TITLE}\n$10.0 to $20.0\n"
    )


def test_further_pages_of_results_and_those_behind_the_last():
    session = walk(PLAIN, "search[woven mat]", "click[next >]")
    assert PLAIN.observe(session, "text") == (
        f"{HEAD} [SEP] Page 2 (Total results: 13) [SEP] < Prev [SEP] Next > [SEP] "
        "B000000010 [SEP] Woven mat 10 [SEP] $10.0 [SEP] B000000011 [SEP] Woven mat 11 [SEP] $11.0 [SEP] "
        f"B000000RUG [SEP] {TITLE} [SEP] $10.0 to $20.0"
    )
    session = walk(PLAIN, "click[next >]", start=session)
    assert PLAIN.observe(session, "text") == f"{HEAD} [SEP] Page 3 (Total results: 13) [SEP] < Prev [SEP] Next >"


def test_an_item_page():
    session = walk(PLAIN, *ITEM)
    assert PLAIN.observe(session, "text") == (
        f'{HEAD} [SEP] < Prev [SEP] color [SEP] blue [SEP] dark blue [SEP] grey "mist" [SEP] size [SEP] '
        f"2' x 3' [SEP] blue [SEP] {TITLE} [SEP] Price: $10.0 to $20.0 [SEP] Rating: 4.5 [SEP] Description [SEP] "
        "Features [SEP] Reviews [SEP] Buy Now"
    )
    assert SHOP.observe(session, "text").endswith("Reviews [SEP] Attributes [SEP] Buy Now")
    chosen = walk(PLAIN, "click[dark blue]", "click[2' x 3']", start=session)
    assert PLAIN.observe(chosen, "text") == PLAIN.observe(session, "text")
    assert PLAIN.observe(chosen, "text_rich") == (
        "You have clicked 2' x 3'.\nYou have clicked dark blue.\n"
        "Instruction:\ni need a blue rug, and price lower than 30.00 dollars\n[button] Back to Search [button_]\n"
        "[button] < Prev [button_]\ncolor\n  [button] blue [button_]\n"
        '  [clicked button] dark blue [clicked button_]\n  [button] grey "mist" [button_]\nsize\n'
        f"  [clicked button] 2' x 3' [clicked button_]\n  [button] blue [button_]\n{TITLE}\nPrice: $10.0 to $20.0\n"
        "Rating: 4.5\n[button] Description [button_]\n[button] Features [button_]\n[button] Reviews [button_]\n"
        "[button] Buy Now [button_]\n"
    )


@pytest.mark.parametrize(
    ("button", "text", "rich"),
    [
        ("description", "A rug of wool.", "A rug of wool.\n"),
        ("features", "Easy to clean [SEP] Hidden underlay", " Easy to clean \n Hidden underlay\n"),
        (
            "reviews",
            '"Nice" [SEP] 4.0 [SEP] Soft. [SEP] "" [SEP] 1.0 [SEP] Thin.',
            '"Nice"\n4.0\nSoft.\n""\n1.0\nThin.\n',
        ),
        (
            "attributes",
            "easy clean [SEP] hand woven [SEP] garden [SEP] rugs [SEP] Home \u203a Rugs",
            " easy clean\n hand woven\ngarden\nrugs\nHome \u203a Rugs\n",
        ),
    ],
)
def test_the_pages_below_an_item(button: str, text: str, rich: str):
    session = walk(SHOP, *ITEM, f"click[{button}]")
    assert SHOP.observe(session, "text") == f"{HEAD} [SEP] < Prev [SEP] {text}"
    assert SHOP.observe(session, "text_rich") == (
        "Instruction:\ni need a blue rug, and price lower than 30.00 dollars\n[button] Back to Search [button_]\n"
        f"[button] < Prev [button_]\n{rich}"
    )


@pytest.mark.parametrize("button", ["description", "features", "reviews"])
def test_nothing_stands_where_a_product_has_nothing(button: str):
    session = walk(PLAIN, "search[lamp]", "click[b00000lamp]", f"click[{button}]")
    assert PLAIN.observe(session, "text") == f"{HEAD} [SEP] < Prev"


def test_the_last_page():
    session = walk(PLAIN, *ITEM, "click[2' x 3']", "click[blue]", "click[dark blue]", "click[buy now]")
    assert PLAIN.observe(session, "text") == (
        "Thank you for shopping with us! [SEP] Your code: [SEP] None [SEP] (Paste it in your MTurk interface.) [SEP] "
        'Purchased [SEP] asin [SEP] B000000RUG [SEP] options [SEP] {"color": "dark blue", "size": "blue"} [SEP] '
        "attrs [SEP] None [SEP] category [SEP] None [SEP] query [SEP] None [SEP] product category [SEP] None [SEP] "
        "Target [SEP] asin [SEP] options [SEP] attrs [SEP] price upper [SEP] instuction text [SEP] category [SEP] "
        "product category [SEP] query [SEP] Goal [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] "
        "0.5 [SEP] Reward Details [SEP] None"
    )
    assert PLAIN.observe(walk(PLAIN, *ITEM, "click[2' x 3']", "click[buy now]"), "text_rich").startswith(
        "Thank you for shopping with us!\nYour code: \nNone\n (Paste it in your MTurk interface.)\nPurchased\nasin\n"
        'B000000RUG\noptions\n{"size": "2\\u0027 x 3\\u0027"}\nattrs\n'
    )


def test_several_goals_are_numbered_and_the_search_page_says_what_was_bought():
    first = SHOP.start([GOAL, OTHER_GOAL])
    both = "1. i need a blue rug, and price lower than 30.00 dollars 2. find me a lamp"
    assert SHOP.observe(first, "text") == f"WebShop [SEP] Instruction: [SEP] {both} [SEP] Search"
    second = walk(SHOP, *ITEM, "click[blue]", "click[buy now]", start=first)
    assert SHOP.observe(second, "text") == (
        f"WebShop [SEP] Instruction: [SEP] {both} [SEP] Bought 1 of 2: B000000RUG {TITLE} [SEP] Search"
    )
    last = walk(SHOP, "search[lamp]", "click[b00000lamp]", "click[buy now]", start=second)
    text = SHOP.observe(last, "text")
    assert [text.index(t) for t in ("B000000RUG", "0.5", "B00000LAMP", "0.25")] == sorted(
        text.index(t) for t in ("B000000RUG", "0.5", "B00000LAMP", "0.25")
    )


def test_an_option_looks_chosen_where_its_value_stands_in_quotation_marks_in_the_original_s_address():
    def chosen(*actions: str) -> list[str]:
        page = PLAIN.page(walk(PLAIN, *actions))
        return [f"{element.name} {element.text}" for element in page if element.kind == "option" and element.clicked]

    assert chosen(*ITEM, "click[blue]") == ["color blue", "size blue"]
    assert chosen(*ITEM, 'click[grey "mist"]') == []
    assert chosen('search[rug "dark blue"]', ITEM[1]) == []
    assert chosen('search[rug "blue" x]', ITEM[1]) == ["color blue", "size blue"]


HOSTILE = Product(
    asin="B<\"&'>",
    name="x",
    title="</h4></button><script>alert(1)</script> &lt; &amp;amp; \x00 \ud800 \u2605 <!-- <![CDATA[ [SEP]",
    description=" \n\t",
    bullet_points=("", " ", "\n", "<li>", "\u00a0"),
    options={"<\"o'": ("<input>", "a&quot;b", "\u00e9", " ")},
    price_tag="$1",
)


def every_page(shop: Shop, product: Product) -> list[Session]:
    pages: tuple[PageName, ...] = ("item", "description", "features", "reviews", "attributes")
    item = Session(goals=(GOAL,), query='a "blue" rug', asin=product.asin, visited=frozenset({product.asin}))
    chosen = {name: values[-1] for name, values in product.options.items() if values}
    found = replace(item, page="results", asin="", results=(product.asin, LAMP.asin))
    bought = walk(shop, "click[buy now]", start=replace(item, page="item", options=chosen))
    return [
        *(replace(item, page=page) for page in pages),
        replace(item, page="item", options=chosen),
        shop.start([GOAL]),
        found,
        replace(found, results_page=2),
        bought,
    ]


@pytest.mark.parametrize("product", [RUG, LAMP, HOSTILE], ids=["rug", "lamp", "hostile"])
def test_stripping_the_html_as_the_original_does_gives_the_two_texts(product: Product):
    shop = small_shop(HOSTILE, show_attributes=True)
    sessions = every_page(shop, product)
    assert {session.page for session in sessions} == {
        *("search", "results", "item", "description", "features", "reviews", "attributes", "done")
    }
    for session in sessions:
        document = shop.observe(session, "html")
        assert text_of(document) == shop.observe(session, "text")
        assert rich_of(document, session) == shop.observe(session, "text_rich")
        assert "<script" not in document


@needs_shared_products
def test_so_does_stripping_the_html_of_real_products():
    products = real_products()[::20]
    shop = Shop.build([*products, LAMP], dict.fromkeys([p.asin for p in [*products, LAMP]], 1.0), scorer=half_for_blue)
    compared = 0
    for product in products:
        for session in every_page(shop, product):
            document = shop.observe(session, "html")
            assert text_of(document) == shop.observe(session, "text")
            assert rich_of(document, session) == shop.observe(session, "text_rich")
            compared += 1
    assert compared == 500


@needs_shared_products
def test_what_was_recorded_for_a_search_an_item_and_its_purchase_is_what_is_seen():
    """The search engine finds what Lucene found, in its order, and the texts are the same to the last byte."""
    instruction = (
        "Find me slim fit, machine wash women's jumpsuits, rompers & overalls with short sleeve, high waist, polyester "
        "spandex for daily wear with color: green stripe, and size: large, and price lower than 50.00 dollars"
    )
    products = real_products()
    shop = Shop.build(products, dict.fromkeys((p.asin for p in products), 1.0), scorer=a_thirtieth)
    session = shop.start([Goal(instruction=instruction)])
    digests = []
    for action in ("search[women jumpsuits]", "click[b09qgk5xhz]", "click[buy now]"):
        session = shop.step(session, action)
        digests.append(hashlib.sha256(shop.observe(session, "text").encode()).hexdigest())
    assert digests == [
        "d0b8f7ee88e7966654d46c22c16839fef24d16b282d3a9824e648c3f8596f615",
        "fe7b5fe58cb4e225310a317c3ee5acb342f0ecc9f0f62efbbe5bcd063d423dec",
        "af9fb1d55e89c2a1d36282f8bee75d541916c2466c03e17090325bcfc8b4df52",
    ]


def a_thirtieth(*_: object, **__: object) -> Worth:
    """The reward on record."""
    return Worth(1 / 30)


def test_blanks_between_texts_are_those_of_beautiful_soup():
    page = [Element("text", ""), Element("text", " "), Element("text", " \n "), Element("text", " a ")]
    assert as_text(page) == " [SEP] a"
    assert as_rich(page) == " \n a \n"
    assert text_of(as_html(page)) == " [SEP] a"


def test_buttons_come_first_then_options_the_last_of_equal_ones_counts():
    page = [
        *(Element("option", "M", "size"), Element("option", "buy now", "color"), Element("option", "m", "fit")),
        *(Element("button", "Buy Now"), Element("text", "m"), Element("option", "", "none")),
    ]
    found = clickables(page)
    assert list(found) == ["buy now", "m"]
    assert found["buy now"].kind == "button"
    assert found["m"].name == "fit"


def test_an_unknown_mode_is_refused():
    with pytest.raises(UserError, match="unknown mode of observation 'json'; known: text, text_rich, html"):
        PLAIN.observe(PLAIN.start([GOAL]), "json")  # type: ignore[arg-type]
