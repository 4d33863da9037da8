"""Goals: their texts, price bounds, weights, order and splits."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from webshop_samples import needs_shared_webshop, raw_product, shared_catalogue

from mem1.envs.webshop import Catalogue, Goal, Instruction
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
from mem1.envs.webshop.files import clean
from mem1.errors import UserError


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
        weight=1 / 7,  # seven goals are soft
    )
    assert goals[6].instruction.startswith("Find me mugs, and price lower than ")
    assert goals[6].weight == (1 / 1 + 1 / 7) / 2
    assert [number_of_combinations(product) for product in CATALOGUE.products] == [6, 1, 1]


def test_goals_by_people_keep_their_words_and_need_attributes():
    first, second = human_goals(CATALOGUE, PRICES, seed=0)
    assert (first.asin, first.attributes, first.options, first.weight) == ("B2", ("blue",), ("large",), 1.0)
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


@needs_shared_webshop
def test_the_goals_of_the_small_set():
    catalogue = shared_catalogue()
    cost = prices(catalogue.products, seed=0)
    synthetic, human = synthetic_goals(catalogue, cost, seed=0), human_goals(catalogue, cost, seed=0)
    assert (len(catalogue.products), len(synthetic), len({goal.asin for goal in synthetic})) == (1_000, 6_910, 415)
    assert len(human) == 13
    assert all(goal.price_upper > cost[goal.asin] for goal in synthetic + human)
    assert sum(map(number_of_combinations, (p for p in catalogue.products if p.asin in catalogue.synthetic))) == 6_910
