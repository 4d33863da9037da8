"""Shoppers without a model: what they read off pages, what they buy, and that they know no more than pages show."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest
from shoppers import RandomShopper, ScriptedShopper, mean_reward, named, offered, shop_with
from webshop_samples import needs_shared_webshop, shared_catalogue

from mem1.envs.webshop.catalogue import Product
from mem1.envs.webshop.goals import NO_PRICE, Goal, prices, shuffled, split, synthetic_goals
from mem1.envs.webshop.invented import invent
from mem1.envs.webshop.session import Purchase
from mem1.envs.webshop.shop import Shop
from mem1.envs.webshop.sight import Hit, bound_in, hits, look, own_text, page_of, price_in, search_for, wishes

RUG = Product(
    asin="RUG1",
    name="Wool Rug",
    title="Wool Rug",
    description="Warm.",
    bullet_points=("new", "non slip"),
    attributes=("non slip",),
    options={"color": ("blue", "navy blue"), "size": ("small", "x-small")},
    pricing=(25.0,),
    price_tag="$25.00",
    query="rug",
)
DEAR = replace(RUG, asin="RUG2", title="Fine Wool Rug", pricing=(90.0,), price_tag="$90.00")
PLAIN = replace(RUG, asin="RUG3", title="Fine Rug", options={}, pricing=(10.0, 30.0), price_tag="$10.00 to $30.00")
SHOP = Shop.build([RUG, DEAR, PLAIN], {"RUG1": 25.0, "RUG2": 90.0, "RUG3": 30.0})
WISH = "find me a non slip wool rug with color: navy blue, and size: small, and price lower than 40.00 dollars"
GOAL = Goal(
    instruction=WISH,
    attributes=("non slip",),
    options={"color": "navy blue", "size": "small"},
    price_upper=40.0,
    name="Wool Rug",
    query="rug",
)

CATALOGUE = invent(0, "evaluation", products=150)
COST = prices(CATALOGUE.products, seed=0)
GOALS = split(shuffled(synthetic_goals(CATALOGUE, COST, seed=0)), "test")
INVENTED = Shop.build(CATALOGUE.products, COST)


def at(*actions: str, shop: Shop = SHOP, goals: tuple[Goal, ...] = (GOAL,)):
    """What is seen after these actions."""
    session = shop.start(goals)
    for action in actions:
        session = shop.step(session, action)
    return look(shop, session, turns_left=9)


def test_every_page_is_told_from_the_others():
    item = ("search[rug]", "click[rug1]")
    seen = [at(), at("search[rug]"), at(*item), at(*item, "click[features]"), at(*item, "click[description]")]
    assert [page_of(sight.text) for sight in seen] == ["search", "results", "item", "detail", "detail"]


def test_the_own_text_of_a_page_is_without_the_instruction():
    assert own_text(at("search[rug]", "click[rug1]", "click[features]").text) == "< prev new non slip"


def test_hits_are_read_in_their_order_with_the_middle_of_a_price_range():
    found = hits(at("search[fine rug]"))
    assert {hit.asin for hit in found} == {"RUG2", "RUG3", "RUG1"}
    assert found[-1] == Hit(asin="RUG1", title="Wool Rug", price=25.0)
    assert next(hit.price for hit in found if hit.asin == "RUG3") == 20.0
    assert hits(at("search[zzz]")) == ()


def test_the_options_of_an_item_are_read_by_name():
    assert offered(at("search[rug]", "click[rug1]")) == {"color": ("blue", "navy blue"), "size": ("small", "x-small")}
    assert offered(at("search[rug]", "click[rug3]")) == {}


@pytest.mark.parametrize(
    ("text", "price"), [("$25.00", 25.0), ("$10.00 to $30.00", 20.0), ("$877.8", 877.8), ("", 0.0), ("$.", 0.0)]
)
def test_prices_are_read(text: str, price: float):
    assert price_in(text) == price


def test_wishes_are_split_at_their_numbers_and_nowhere_else():
    assert wishes("find me 2. rugs") == ("find me 2. rugs",)
    assert wishes("1. a rug, price lower than 40.00 dollars 2. a pan 3. of 2. 3. a pot") == (
        "a rug, price lower than 40.00 dollars",
        "a pan",
        "of 2. 3. a pot",
    )
    assert (bound_in(WISH), bound_in("find me a rug")) == (40.0, NO_PRICE)


@pytest.mark.parametrize(
    ("wish", "chosen"),
    [
        (WISH, {"color": "navy blue", "size": "small"}),
        ("a blue rug", {"color": "blue"}),
        ("a navy blue rug, X-Small", {"color": "navy blue", "size": "x-small"}),
        ("a bluer rug", {}),
        ("small talk with size: x-small", {"size": "x-small"}),
    ],
)
def test_a_wish_names_options_by_label_or_as_they_stand(wish: str, chosen: dict[str, str]):
    assert named(RUG.options, wish) == chosen


def test_a_search_has_neither_brackets_nor_line_ends():
    assert search_for("a [wool]\nrug]") == "search[a wool rug]"


def test_the_scripted_shopper_buys_the_first_hit_within_the_price_with_the_options_named():
    goal = replace(GOAL, instruction=WISH.replace("wool", "fine wool"))
    assert [hit.asin for hit in hits(at(f"search[{goal.instruction}]"))][:2] == ["RUG2", "RUG1"]
    session = shop_with(ScriptedShopper(), SHOP, [goal])
    assert session.purchases == (Purchase(asin="RUG1", price=25.0, options={"color": "navy blue", "size": "small"}),)
    assert mean_reward(SHOP, session) == 1.0


def test_the_scripted_shopper_buys_the_first_hit_where_nothing_is_within_the_price():
    goal = replace(GOAL, instruction="fine wool rug, and price lower than 10.00 dollars", price_upper=10.0)
    assert shop_with(ScriptedShopper(), SHOP, [goal]).purchases[0].asin == "RUG2"


def test_the_scripted_shopper_buys_in_its_last_turn_whatever_is_left_to_choose():
    assert shop_with(ScriptedShopper(), SHOP, [GOAL], turn_limit=3).purchases[0].options == {}
    assert shop_with(ScriptedShopper(), SHOP, [GOAL], turn_limit=4).purchases[0].options == {"color": "navy blue"}
    assert shop_with(ScriptedShopper(), SHOP, [GOAL], turn_limit=2).purchases == ()


def test_several_goals_are_bought_for_one_after_the_other():
    session = shop_with(ScriptedShopper(), INVENTED, GOALS[:3])
    assert session.done
    single = [shop_with(ScriptedShopper(), INVENTED, [goal]).purchases[0] for goal in GOALS[:3]]
    assert list(session.purchases) == single
    assert mean_reward(INVENTED, session) == pytest.approx(mean(INVENTED.rewards(session)))


def test_a_goal_that_nothing_was_bought_for_counts_0():
    session = shop_with(ScriptedShopper(), SHOP, [GOAL, GOAL], turn_limit=5)
    assert mean_reward(SHOP, session) == 0.5


def test_a_shopper_knows_nothing_that_pages_do_not_show():
    hidden = [replace(product, attributes=(), query="", product_category="") for product in CATALOGUE.products]
    goals = [Goal(instruction=goal.instruction) for goal in GOALS[:40]]
    blind = Shop.build(hidden, COST)
    for blank, goal in zip(goals, GOALS, strict=False):
        bought = shop_with(ScriptedShopper(), INVENTED, [goal]).purchases
        assert shop_with(ScriptedShopper(), blind, [blank]).purchases == bought != ()


def test_the_random_shopper_is_the_same_for_the_same_seed():
    def rewards(seed: int) -> list[float]:
        return [mean_reward(INVENTED, shop_with(RandomShopper(seed), INVENTED, [goal])) for goal in GOALS[:30]]

    assert rewards(1) == rewards(1) != rewards(2)


def test_the_scripted_shopper_is_better_than_chance_and_leaves_room():
    scripted = [mean_reward(INVENTED, shop_with(ScriptedShopper(), INVENTED, [goal])) for goal in GOALS[:80]]
    chance = [mean_reward(INVENTED, shop_with(RandomShopper(0), INVENTED, [goal])) for goal in GOALS[:80]]
    assert mean(chance) < 0.4 < 0.7 < mean(scripted) < 0.9
    assert min(scripted) > 0


@needs_shared_webshop
def test_the_scripted_shopper_buys_something_for_every_real_goal():
    catalogue = shared_catalogue()
    cost = prices(catalogue.products, seed=0)
    shop = Shop.build(catalogue.products, cost)
    goals = split(shuffled(synthetic_goals(catalogue, cost, seed=0)), "test")[:100]
    rewards = [mean_reward(shop, shop_with(ScriptedShopper(), shop, [goal])) for goal in goals]
    assert 0.7 < mean(rewards) < 0.9
