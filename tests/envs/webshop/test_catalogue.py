"""The files of a shop, cleaned, read and written; and its goals: texts, price bounds, weights, order and splits."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from webshop_originals import write_originals
from webshop_samples import SHARED_WEBSHOP, needs_shared_webshop, raw_product, shared_catalogue

from mem1.envs.webshop import Catalogue, Goal, Instruction, Product
from mem1.envs.webshop.catalogue import (
    NO_PRICE,
    Entry,
    human_goals,
    number_of_combinations,
    prices,
    shuffled,
    split,
    synthetic_goals,
)
from mem1.envs.webshop.files import ShopFiles, clean, load, read_array, read_price, write_entries
from mem1.errors import UserError
from mem1.jsonl import read_objects, write_objects


def test_a_product_is_cleaned():
    assert clean(raw_product("B1"), ["non slip"]) == Product(
        asin="B1",
        name="Wool Rug",
        title="Wool Rug",
        description="Soft.",
        bullet_points=("Easy to vacuum", "Non slip"),
        attributes=("non slip",),
        options={"color": ("navy | blue",)},
        option_images={"navy | blue": "https://shop.test/n.jpg"},
        pricing=(25.0,),
        price_tag="$25.0",
        category="garden",
        query="area rugs",
        product_category="Home \u203a Rugs",
        main_image="https://shop.test/1.jpg",
    )


def test_what_a_product_lacks_is_filled_in():
    bare = raw_product("B1", small_description="One line", pricing=None, customization_options="", images=[])
    cleaned = clean(bare, None)
    assert (cleaned.bullet_points, cleaned.options, cleaned.main_image) == (("One line",), {}, "")
    assert (cleaned.attributes, cleaned.pricing, cleaned.price_tag) == (("DUMMY_ATTR",), (100.0,), "$100.0")
    assert clean(bare, []).attributes == ()  # known, and none


@pytest.mark.parametrize(
    ("text", "pricing", "tag"),
    [
        ("$877.80", (877.8,), "$877.8"),
        ("$10.00 - $1,020.50", (10.0, 1020.5), "$10.0 to $1020.5"),
        ("$44.99$33.98", (33.98, 44.99), "$44.99 to $33.98"),
        ("$1 - $2 - $3", (1.0, 2.0), "$1.0 to $2.0"),
        ("", (100.0,), "$100.0"),
    ],
)
def test_prices_are_read(text: str, pricing: tuple[float, ...], tag: str):
    assert read_price(text) == (pricing, tag)


def test_a_price_that_is_none_is_an_error():
    with pytest.raises(ValueError, match="no price in dollars in '12 EUR'"):
        read_price("12 EUR")


def test_the_originals_files_make_a_catalogue_and_what_is_left_out_is_counted(tmp_path: Path):
    products = [raw_product(asin) for asin in ("B1", "nan", "B00000000012", "B2", "B1")]
    files = ShopFiles.find(write_originals(tmp_path, products))
    catalogue = Catalogue.of(files.entries())
    assert [p.asin for p in catalogue.products] == ["B1", "B2"]
    assert catalogue.products[1].attributes == ()
    assert catalogue.human == {
        "B2": (Instruction(text="i need a rug.", attributes=("non slip",), options=("navy",)),),
    }
    assert catalogue.synthetic == {"B1": Instruction(text="Find me rugs", attributes=("non slip",))}
    assert files.left_out == {"no asin": 1, "asin of more than 10 characters": 1, "asin stood before": 1}
    assert load(*tmp_path.iterdir()) == catalogue


@pytest.mark.parametrize("name", ["shop.jsonl", "shop.jsonl.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str):
    asked = (Instruction(text="a", attributes=("b",), options=("c",)), Instruction(text="d"))
    entries = [
        Entry(clean(raw_product("B1", pricing="$3 - $4"), ["x"]), asked, Instruction(text="e", attributes=("f",))),
        Entry(clean(raw_product("B2", name=""), None)),
    ]
    write_entries(tmp_path / name, entries)
    assert load(tmp_path / name) == load(tmp_path) == Catalogue.of(entries)


def test_an_asin_stands_once_in_a_catalogue():
    entry = Entry(clean(raw_product("B1"), None))
    with pytest.raises(ValueError, match="product 'B1' occurs twice"):
        Catalogue.of([entry, entry])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("items_shuffle_1000.json", "{}", "expected a JSON array of products, but it begins with '{}'"),
        ("items_shuffle_1000.json", '[{"asin": "B1"', "product 1 is not complete JSON; is the file truncated?"),
        ("items_shuffle_1000.json", "[", "product 1 is not complete JSON"),
        ("items_shuffle_1000.json", "[7]", "product 1 must be a JSON object, not int"),
        ("items_shuffle_1000.json", '[{"asin": "B1"}]', "product 1: 'small_description' is missing"),
        ("items_shuffle_1000.json", json.dumps([raw_product("B1", pricing="?")]), "product 1: not in WebShop's format"),
        ("items_shuffle_1000.json", json.dumps([raw_product("B1", query=3)]), "product 1: not in WebShop's format"),
        ("items_ins_v2_1000.json", "[]", "expected one JSON object, asin -> instructions, not list"),
        ("items_ins_v2_1000.json", '{"B1": ', "not complete JSON"),
        ("items_human_ins.json", '{"B1": [{"text": "a rug"}]}', "items_human_ins.json: B1: 'instruction' is missing"),
        (
            "items_human_ins.json",
            '{"B1": [{"instruction": "a", "instruction_options": "red"}]}',
            "instruction_options must be a list of texts, not 'red'",
        ),
    ],
)
def test_a_broken_file_of_the_original_is_named(tmp_path: Path, name: str, text: str, message: str):
    write_originals(tmp_path, [raw_product("B1")])
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as raised:
        load(tmp_path)
    assert message in str(raised.value) and name in str(raised.value)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"Title": "Rug"}, "shop.jsonl:2: not in WebShop's format (a product needs an asin and a Title)"),
        ({"asin": "B2"}, "a product needs an asin and a Title"),
        ({"asin": "B1", "Title": "Rug"}, "shop.jsonl:2: not in WebShop's format (product 'B1' is already on line 1)"),
        ({"asin": "B2", "Title": "Rug", "options": ["red"]}, "shop.jsonl:2: not in WebShop's format"),
        ({"asin": "B2", "Title": "Rug", "pricing": ["?"]}, "shop.jsonl:2: not in WebShop's format"),
        ({"asin": "B2", "Title": "Rug", "instructions": [{}]}, "'instruction' is missing"),
        *(
            ({"asin": "B2", "Title": "Rug", **wrong}, f"shop.jsonl:2: not in WebShop's format ({message}")
            for wrong, message in (
                ({"Attributes": "soft"}, "Attributes must be a list of texts, not 'soft'"),
                ({"Attributes": [None]}, "Attributes must be a list of texts, not [None]"),
                ({"BulletPoints": "dry"}, "BulletPoints must be a list of texts, not 'dry'"),
                ({"options": {"color": "red"}}, "options of 'color' must be a list of texts, not 'red'"),
                ({"options": {"size": [1, 2]}}, "options of 'size' must be a list of texts, not [1, 2]"),
                ({"pricing": "25"}, "pricing must be a list of one or two prices, not '25'"),
                ({"pricing": [float("nan")]}, "product 'B2': a price is a number of dollars from 0, not (nan,)"),
                ({"Price": 25.0}, "Price must be a text, not 25.0"),
                ({"Description": 5}, "Description must be a text, not 5"),
                ({"product_category": ["Home"]}, "product_category must be a text, not ['Home']"),
                ({"Reviews": [{"title": 3}]}, "title must be a text, not 3"),
                (
                    {"instruction_text": "a", "instruction_attributes": [3]},
                    "instruction_attributes must be a list of texts, not [3]",
                ),
            )
        ),
    ],
)
def test_a_broken_line_of_cleaned_products_is_named(tmp_path: Path, record: dict[str, Any], message: str):
    write_objects(tmp_path / "shop.jsonl", [{"asin": "B1", "Title": "Rug"}, record])
    with pytest.raises(UserError) as raised:
        load(tmp_path)
    assert message in str(raised.value)


def test_files_are_known_by_their_names(tmp_path: Path):
    with pytest.raises(UserError, match=r"no products; known: items_shuffle\*\.json, .*docs/webshop\.md"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"no file or folder .*nowhere; check the path"):
        load(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"notes\.txt: not the name of a shop's file"):
        load(tmp_path / "notes.txt")
    (tmp_path / "items_shuffle.json").write_text("[]")
    with pytest.raises(UserError, match=r"items_shuffle\.json has no attributes; put items_ins_v2\*\.json beside it"):
        load(tmp_path)
    (tmp_path / "shop.jsonl").write_text("")
    with pytest.raises(UserError, match=r"items_shuffle\.json and shop\.jsonl both hold products; name the files"):
        load(tmp_path)
    assert load(tmp_path / "shop.jsonl").products == ()


def test_an_array_is_read_in_pieces_however_they_fall(tmp_path: Path):
    items = [{"n": i, "text": '\u2605[]{},\\" ' * (i % 7 * 5_000)} for i in range(40)]
    path = tmp_path / "items.json"
    path.write_text("\ufeff " + json.dumps(items, indent=1, ensure_ascii=False), encoding="utf-8")
    assert path.stat().st_size > 2 << 20  # several pieces
    assert list(read_array(path)) == list(enumerate(items, start=1))


@needs_shared_webshop
def test_the_real_products_come_out_of_the_cleaning_as_the_original_cleaned_them():
    products = dict.fromkeys(p.asin for p in shared_catalogue().products)
    for _, keys in read_objects(SHARED_WEBSHOP / "products_1000.jsonl.gz"):
        # what was gathered stands beside what was cleaned, but for the price, which only the tag still shows as text
        again = clean({**keys, "pricing": keys["Price"].replace("to", "-")}, keys["Attributes"])
        assert again == Product.from_keys(keys)
        products.pop(again.asin)
    assert products == {}


# --- goals


def values(*names: str) -> list[dict[str, str]]:
    return [{"value": name} for name in names]


SHIRT = clean(
    raw_product("B1", customization_options={"Size": values("S", "M"), "Color": values("Red", "Blue", "Tan")}), ["soft"]
)
MUG = clean(raw_product("B2", name="Mug", pricing="$965.00", customization_options=""), ["blue", "soft"])
GOLD = clean(raw_product("B3", name="Bar", pricing="$970 - $980", customization_options=""), ["pure"])
CATALOGUE = Catalogue.of(
    [
        Entry(SHIRT, (), Instruction(text="Find me shirts", attributes=("soft",))),
        Entry(
            MUG,
            (
                Instruction(text=".a mug...", attributes=("blue",), options=("large",)),
                Instruction(text="any mug", options=("large",)),
            ),
            Instruction(text="Find me mugs", attributes=("blue", "soft")),
        ),
        Entry(GOLD, (Instruction(text="gold.", attributes=("pure",)),)),
    ]
)
PRICES = {"B1": 25.0, "B2": 965.0, "B3": 980.0}


def test_a_synthetic_goal_for_every_combination_of_options_sorted_by_name():
    goals = synthetic_goals(CATALOGUE, PRICES, seed=0)
    assert [goal.options for goal in goals] == [
        {"color": color, "size": size} for color in ("red", "blue", "tan") for size in ("s", "m")
    ] + [{}]
    bound = goals[0].price_upper
    assert goals[1] == Goal(
        asin="B1",
        instruction=f"Find me shirts with color: red, and size: m, and price lower than {bound:.0f}.00 dollars",
        attributes=("soft",),
        options={"color": "red", "size": "m"},
        price_upper=bound,
        name="Wool Rug",
        category="garden",
        query="area rugs",
        product_category="Home \u203a Rugs",
    )
    assert goals[6].instruction.startswith("Find me mugs, and price lower than ")
    assert [number_of_combinations(product) for product in CATALOGUE.products] == [6, 1, 1]


def test_goals_by_people_keep_their_words_and_need_attributes():
    first, second = human_goals(CATALOGUE, PRICES, seed=0)
    assert (first.asin, first.attributes, first.options) == ("B2", ("blue",), ("large",))
    assert first.instruction == "a mug, and price lower than 990.00 dollars"  # the full stops at its ends are gone
    # above 980 dollars there is one bound alone, of which two cannot be drawn
    assert (second.instruction, second.price_upper) == ("gold", NO_PRICE)


def test_the_bound_is_the_larger_of_two_of_the_next_four_tens():
    bounds = Counter(synthetic_goals(CATALOGUE, PRICES, seed=seed)[0].price_upper for seed in range(600))
    assert set(bounds) == {40.0, 50.0, 60.0}  # of 30, 40, 50, 60: the larger of two
    # 1, 2 and 3 of the 6 pairs; five standard deviations of the rarest are 46
    assert abs(bounds[40.0] - 100) < 50 and abs(bounds[60.0] - 300) < 65
    at_a_ten = Counter(synthetic_goals(CATALOGUE, {**PRICES, "B1": 30.0}, seed=s)[0].price_upper for s in range(60))
    assert set(at_a_ten) == {50.0, 60.0, 70.0}  # the bound is above the price


def test_draws_are_those_of_the_original_after_the_same_seed_and_leave_other_draws_alone():
    random.seed(7)
    before = random.getstate()
    cost = prices(CATALOGUE.products, seed=5)
    goals = synthetic_goals(CATALOGUE, PRICES, seed=5)
    assert random.getstate() == before
    random.seed(5)
    assert cost == {"B1": 25.0, "B2": 965.0, "B3": random.uniform(970.0, 980.0)}
    random.seed(5)
    shirts, mugs = max(random.sample([30.0, 40.0, 50.0, 60.0], 2)), max(random.sample([970.0, 980.0, 990.0], 2))
    assert (goals[0].price_upper, goals[-1].price_upper) == (shirts, mugs)
    random.seed(233)
    order = list(range(50))
    random.shuffle(order)
    assert shuffled(range(50)) == order != list(range(50))


def test_splits_are_cut_from_the_front():
    goals = list(range(2_000))
    parts = [split(goals, "test"), split(goals, "development"), split(goals, "train")]
    assert [(part[0], part[-1]) for part in parts] == [(0, 499), (500, 1_499), (1_500, 1_999)]
    assert split(goals[:13], "test") == goals[:13]
    assert split(goals[:501], "development") == [500]
    with pytest.raises(
        UserError, match="no goals for 'train': they start after the first 1,500, and the shop has 1,500"
    ):
        split(goals[:1_500], "train")
    with pytest.raises(UserError, match="unknown split of goals 'eval'; known: train, development, test"):
        split(goals, "eval")  # type: ignore[arg-type]


def test_a_synthetic_instruction_needs_attributes():
    with pytest.raises(UserError, match="product 'B2' has no attributes"):
        synthetic_goals(Catalogue.of([Entry(MUG, (), Instruction(text="Find me mugs"))]), PRICES, seed=0)


def test_a_product_with_more_combinations_than_are_made_is_named():
    options = {f"option {i}": tuple(f"value {j}" for j in range(10)) for i in range(7)}
    product = Product(asin="B9", name="Rug", title="Rug", options=options)
    entry = Entry(product, (), Instruction(text="Find me rugs", attributes=("soft",)))
    with pytest.raises(UserError, match="product 'B9' has 10,000,000 combinations of its options"):
        synthetic_goals(Catalogue.of([entry]), {"B9": 25.0}, seed=0)


@needs_shared_webshop
def test_the_goals_of_the_small_set():
    catalogue = shared_catalogue()
    cost = prices(catalogue.products, seed=0)
    synthetic, human = synthetic_goals(catalogue, cost, seed=0), human_goals(catalogue, cost, seed=0)
    assert (len(catalogue.products), len(synthetic), len({goal.asin for goal in synthetic})) == (1_000, 6_910, 415)
    assert len(human) == 13
    assert all(goal.price_upper > cost[goal.asin] for goal in synthetic + human)
    assert sum(map(number_of_combinations, (p for p in catalogue.products if p.asin in catalogue.synthetic))) == 6_910
