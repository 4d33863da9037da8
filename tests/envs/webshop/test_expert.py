"""Shoppers without a model, and experts with constant memory: what they see and buy, and the habits of lazy ones."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import mean

import pytest
from shoppers import RandomShopper, ScriptedShopper, mean_reward, named, offered, shop_with
from webshop_samples import needs_shared_webshop, shared_catalogue

from mem1.envs.webshop.catalogue import NO_PRICE, Goal, Product, prices, shuffled, split, synthetic_goals
from mem1.envs.webshop.expert import (
    CLEAN,
    PRICE,
    STATE_WORDS,
    Decision,
    Hit,
    Laziness,
    Notes,
    ShopExpert,
    bound_in,
    demonstrate,
    hits,
    look,
    own_text,
    page_of,
    price_in,
    wishes,
)
from mem1.envs.webshop.invented import invent, shop_words
from mem1.envs.webshop.pages import Purchase, search_for
from mem1.envs.webshop.shop import Shop

CATALOGUE = invent(0, "evaluation", products=150)
COST = prices(CATALOGUE.products, seed=0)
GOALS = split(shuffled(synthetic_goals(CATALOGUE, COST, seed=0)), "test")
SHOP = Shop.build(CATALOGUE.products, COST)

WISH = "find me a light roomy tent with color: teal, and size: s, and price lower than 50.00 dollars"
GOAL = Goal(
    instruction=WISH,
    attributes=("light", "roomy"),
    options={"color": "teal", "size": "s"},
    price_upper=50.0,
    name="Fala Prellov Light Travel Tent",
    query="tent",
)


def tent(asin: str, *, price: float, features: Sequence[str], sizes: Sequence[str], title: str = "") -> Product:
    title = title or "Fala Prellov Light Travel Tent"
    return Product(
        asin=asin,
        name=title,
        title=title,
        bullet_points=("easy to store", *features),
        options={"color": ("teal", "red"), "size": tuple(sizes)},
        pricing=(price,),
        price_tag=f"${price:.2f}",
        query="tent",
    )


def shop_of(*products: Product) -> Shop:
    return Shop.build(products, {product.asin: product.pricing[0] for product in products})


def trace(shop: Shop, *goals: Goal, turn_limit: int = 15, **habits: float) -> list[tuple[str, str]]:
    _, decisions = demonstrate(ShopExpert(laziness=Laziness(**habits)), shop, goals, turn_limit)
    return [(decision.state, decision.action) for decision in decisions]


def rewards(expert: ShopExpert, *, turn_limit: int = 15) -> float:
    sessions = [demonstrate(expert, SHOP, [goal], turn_limit)[0] for goal in GOALS[:60]]
    return mean(mean_reward(SHOP, session) for session in sessions)


WRONG_SIZE = tent("HOLA88", price=20.0, features=("always roomy",), sizes="l")
RIGHT = tent("GOLA64", price=20.0, features=("always roomy",), sizes="sl")
CRAMPED = tent("KOLA11", price=20.0, features=("always sturdy",), sizes="s")


def test_the_clean_expert_turns_back_from_what_lacks_an_option_and_reads_what_it_cannot_see():
    assert trace(shop_of(WRONG_SIZE, RIGHT), GOAL) == [
        ("want light roomy teal s below 50.00", "search[light roomy tent teal s]"),
        ("try hola88", "click[hola88]"),
        ("tried hola88 misses 2", "click[< prev]"),
        ("tried hola88 misses 2 ; try gola64", "click[gola64]"),
        ("tried hola88 misses 2 ; check gola64 need roomy read", "click[features]"),
        ("tried hola88 misses 2 ; check gola64 read", "click[< prev]"),
        ("tried hola88 misses 2 ; take gola64 choose s", "click[teal]"),
        ("tried hola88 misses 2 ; take gola64", "click[s]"),
        ("done", "click[buy now]"),
    ]


def test_it_opens_what_is_within_the_price_first():
    dear = replace(RIGHT, asin="DOLA10", price_tag="$90.00", pricing=(90.0,))
    assert trace(shop_of(dear, RIGHT), GOAL)[1] == ("try gola64", "click[gola64]")
    _, decisions = demonstrate(ShopExpert(), shop_of(dear), [GOAL])
    assert decisions[2] == Decision(state="tried dola10 misses 2", action="click[< prev]")  # the price, and "roomy"


def test_it_goes_back_to_the_one_that_misses_least_when_nothing_better_is_left():
    session, decisions = demonstrate(ShopExpert(), shop_of(CRAMPED, WRONG_SIZE), [GOAL])
    assert session.purchases[0].asin == "KOLA11"
    assert decisions[-4].state == "tried kola11 misses 1 ; tried hola88 misses 2 ; take kola11 choose teal s"


def test_it_buys_in_time_under_any_limit_that_allows_to():
    for turn_limit in range(5, 16):
        for goal in GOALS[:5]:
            session, decisions = demonstrate(ShopExpert(), SHOP, [goal], turn_limit)
            assert session.done and len(decisions) <= turn_limit
            assert len(session.purchases[0].options) >= 1


def test_every_decision_follows_from_the_instruction_the_last_state_and_the_page_alone():
    expert = ShopExpert(laziness=Laziness(settle=0.5, forget=0.3, vague=0.5))
    for goal in GOALS[:20]:
        session, decisions = demonstrate(expert, SHOP, [goal])
        again = SHOP.start([goal])
        state = ""
        for turn, decision in enumerate(decisions):
            sight = look(SHOP, again, turns_left=15 - turn)
            assert ShopExpert(laziness=expert.laziness)(sight, state) == decision
            state, again = decision.state, SHOP.step(again, decision.action)
        assert again == session


def test_states_stay_short_and_speak_the_words_of_the_shop():
    states = [d.state for goal in GOALS[:60] for d in demonstrate(ShopExpert(), SHOP, [goal])[1]]
    assert max(len(state.split()) for state in states) <= 40
    assert mean(len(state.split()) for state in states) < 12
    words = {word for state in states for word in re.findall("[a-z]+", state)}
    assert set(STATE_WORDS) - {"goal"} <= words <= {*shop_words(), *STATE_WORDS}


def test_a_memory_is_what_its_words_say():
    memories = [
        Notes(),
        Notes(goal=2),
        Notes(goal=3, tried=(("hola88", 2), ("gola64", 1))),
        Notes(verb="try", asin="hola88"),
        Notes(tried=(("hola88", 2),), verb="check", asin="gola64", need=("roomy", "s", PRICE), read=True),
        Notes(verb="take", asin="gola64", choose=("teal", "s")),
    ]
    assert [Notes.of(str(memory)) for memory in memories] == memories
    assert str(memories[4]) == "tried hola88 misses 2 ; check gola64 need roomy s price read"
    assert len({str(memory) for memory in memories}) == 6


def test_several_goals_are_worked_through_in_their_order_within_one_limit():
    pan = replace(GOAL, instruction=WISH.replace("teal", "red"), options={"color": "red", "size": "s"})
    steps = trace(shop_of(RIGHT), GOAL, pan, turn_limit=20)
    assert ("goal 2", "click[buy now]") in steps
    assert ("goal 2 ; want light roomy red s below 50.00", "search[light roomy tent red s]") in steps
    session, _ = demonstrate(ShopExpert(), SHOP, GOALS[:4], 40)
    assert session.done and mean_reward(SHOP, session) > 0.8


def test_the_clean_expert_leaves_the_scripted_shopper_and_the_lazy_expert_behind():
    clean = rewards(ShopExpert())
    lazy = rewards(ShopExpert(laziness=Laziness(diligent=0.15, vague=0.5, grab=0.6, settle=0.7, forget=0.6)))
    scripted = mean(mean_reward(SHOP, shop_with(ScriptedShopper(), SHOP, [goal])) for goal in GOALS[:60])
    assert clean > 0.94
    assert scripted < clean - 0.08
    assert lazy < scripted - 0.08


@pytest.mark.parametrize(
    ("products", "habit", "states"),
    [
        ((WRONG_SIZE, RIGHT), "grab", ["take hola88 choose teal s", "take hola88", "done"]),
        ((WRONG_SIZE, RIGHT), "settle", ["try hola88", "take hola88", "done"]),
        ((RIGHT,), "forget", ["try gola64", "check gola64 need roomy read", "check gola64 read", "done"]),
    ],
)
def test_a_lazy_expert_buys_the_first_hit_or_what_it_opened_or_without_choosing(
    products: tuple[Product, ...], habit: str, states: list[str]
):
    steps = trace(shop_of(*products), GOAL, **{habit: 1.0})  # type: ignore[arg-type]
    assert [state for state, _ in steps] == ["want light roomy teal s below 50.00", *states]


def test_a_vague_expert_searches_for_the_type_alone():
    assert trace(shop_of(RIGHT), GOAL, vague=1.0)[0][1] == "search[tent]"


def test_diligent_tasks_are_done_without_the_habits():
    bad = Laziness(grab=1.0, forget=1.0)
    assert rewards(ShopExpert(laziness=bad.model_copy(update={"diligent": 1.0}))) == rewards(ShopExpert(laziness=CLEAN))
    half = ShopExpert(laziness=bad.model_copy(update={"diligent": 0.5}))
    lengths = [len(demonstrate(half, SHOP, [goal])[1]) for goal in GOALS[:60]]
    assert 18 < sum(length == 3 for length in lengths) < 42


def test_goals_and_states_of_others_are_refused():
    with pytest.raises(ValueError, match="not an instruction of an invented catalogue: 'rugs please'"):
        demonstrate(ShopExpert(), SHOP, [Goal(instruction="rugs please")])
    session = SHOP.step(SHOP.step(SHOP.start(GOALS[:1]), "search[tent]"), "search[tent]")
    session = SHOP.step(session, f"click[{session.results[0]}]")
    with pytest.raises(ValueError, match="no expert writes this state on the page of an item: 'I like it'"):
        ShopExpert()(look(SHOP, session, turns_left=5), "I like it")


# --- shoppers without a model

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
FINE = replace(RUG, asin="RUG2", title="Fine Wool Rug", pricing=(90.0,), price_tag="$90.00")
PLAIN = replace(RUG, asin="RUG3", title="Fine Rug", options={}, pricing=(10.0, 30.0), price_tag="$10.00 to $30.00")
RUGS = Shop.build([RUG, FINE, PLAIN], {"RUG1": 25.0, "RUG2": 90.0, "RUG3": 30.0})
RUG_WISH = "find me a non slip wool rug with color: navy blue, and size: small, and price lower than 40.00 dollars"
RUG_GOAL = Goal(
    instruction=RUG_WISH,
    attributes=("non slip",),
    options={"color": "navy blue", "size": "small"},
    price_upper=40.0,
    name="Wool Rug",
    query="rug",
)


def at(*actions: str, shop: Shop = RUGS, goals: tuple[Goal, ...] = (RUG_GOAL,)):
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
    assert (bound_in(RUG_WISH), bound_in("find me a rug")) == (40.0, NO_PRICE)


@pytest.mark.parametrize(
    ("wish", "chosen"),
    [
        (RUG_WISH, {"color": "navy blue", "size": "small"}),
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
    goal = replace(RUG_GOAL, instruction=RUG_WISH.replace("wool", "fine wool"))
    assert [hit.asin for hit in hits(at(f"search[{goal.instruction}]"))][:2] == ["RUG2", "RUG1"]
    session = shop_with(ScriptedShopper(), RUGS, [goal])
    assert session.purchases == (Purchase(asin="RUG1", price=25.0, options={"color": "navy blue", "size": "small"}),)
    assert mean_reward(RUGS, session) == 1.0
    goal = replace(RUG_GOAL, instruction="fine wool rug, and price lower than 10.00 dollars", price_upper=10.0)
    assert shop_with(ScriptedShopper(), RUGS, [goal]).purchases[0].asin == "RUG2", "the first, if all cost more"


def test_the_scripted_shopper_buys_in_its_last_turn_whatever_is_left_to_choose():
    assert shop_with(ScriptedShopper(), RUGS, [RUG_GOAL], turn_limit=3).purchases[0].options == {}
    assert shop_with(ScriptedShopper(), RUGS, [RUG_GOAL], turn_limit=4).purchases[0].options == {"color": "navy blue"}
    assert shop_with(ScriptedShopper(), RUGS, [RUG_GOAL], turn_limit=2).purchases == ()
    half = shop_with(ScriptedShopper(), RUGS, [RUG_GOAL, RUG_GOAL], turn_limit=5)
    assert mean_reward(RUGS, half) == 0.5, "a goal without a purchase counts 0"


def test_several_goals_are_bought_for_one_after_the_other():
    session = shop_with(ScriptedShopper(), SHOP, GOALS[:3])
    assert session.done
    single = [shop_with(ScriptedShopper(), SHOP, [goal]).purchases[0] for goal in GOALS[:3]]
    assert list(session.purchases) == single
    assert mean_reward(SHOP, session) == pytest.approx(mean(SHOP.rewards(session)))


def test_a_shopper_knows_nothing_that_pages_do_not_show():
    hidden = [replace(product, attributes=(), query="", product_category="") for product in CATALOGUE.products]
    goals = [Goal(instruction=goal.instruction) for goal in GOALS[:40]]
    blind = Shop.build(hidden, COST)
    for blank, goal in zip(goals, GOALS, strict=False):
        bought = shop_with(ScriptedShopper(), SHOP, [goal]).purchases
        assert shop_with(ScriptedShopper(), blind, [blank]).purchases == bought != ()


def test_the_random_shopper_is_the_same_for_the_same_seed():
    def rewards(seed: int) -> list[float]:
        return [mean_reward(SHOP, shop_with(RandomShopper(seed), SHOP, [goal])) for goal in GOALS[:30]]

    assert rewards(1) == rewards(1) != rewards(2)


def test_the_scripted_shopper_is_better_than_chance_and_leaves_room():
    scripted = [mean_reward(SHOP, shop_with(ScriptedShopper(), SHOP, [goal])) for goal in GOALS[:80]]
    chance = [mean_reward(SHOP, shop_with(RandomShopper(0), SHOP, [goal])) for goal in GOALS[:80]]
    assert mean(chance) < 0.4 < 0.7 < mean(scripted) < 0.9
    assert min(scripted) > 0


@needs_shared_webshop
def test_the_scripted_shopper_buys_something_for_every_real_goal():
    catalogue = shared_catalogue()
    cost = prices(catalogue.products, seed=0)
    shop = Shop.build(catalogue.products, cost)
    goals = split(shuffled(synthetic_goals(catalogue, cost, seed=0)), "test")[:40]
    rewards = [mean_reward(shop, shop_with(ScriptedShopper(), shop, [goal])) for goal in goals]
    assert 0.7 < mean(rewards) < 0.9
