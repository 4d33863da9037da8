"""Invented catalogues: a shop of its own for each seed and half, where what was asked for can be told apart."""

from __future__ import annotations

import itertools
import re
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from mem1.envs.webshop.catalogue import Catalogue, Goal, Product, prices, synthetic_goals
from mem1.envs.webshop.invented import DEPARTMENTS, asins, brands, invent, shop_words
from mem1.envs.webshop.reward import score
from mem1.envs.webshop.shop import Shop
from mem1.errors import UserError

SMALL = invent(0, "evaluation", products=150)
PRICES = prices(SMALL.products, seed=0)
GOALS = synthetic_goals(SMALL, PRICES, seed=0)
SHOP = Shop.build(SMALL.products, PRICES)
BY_ASIN = {product.asin: product for product in SMALL.products}


def shown(product: Product) -> str:
    """Every text that a shopper can come to see of a product."""
    reviews = [text for review in product.reviews for text in (review.title, review.body, review.score)]
    options = [text for name, values in product.options.items() for text in (name, *values)]
    return " ".join(
        (
            product.asin,
            product.title,
            product.description,
            product.price_tag,
            *product.bullet_points,
            *options,
            *reviews,
        )
    )


def reward(product: Product, goal: Goal, options: Mapping[str, str]) -> float:
    return score(product, goal, price=PRICES[product.asin], options=options).total


def test_a_catalogue_is_a_function_of_the_seed_the_half_and_the_size():
    assert invent(0, "evaluation", products=150) == SMALL
    assert invent(1, "evaluation", products=150) != SMALL
    assert invent(0, "train", products=150) != SMALL


def test_a_catalogue_is_the_same_under_every_version_of_python():
    assert zlib.crc32(repr((SMALL.products, SMALL.synthetic)).encode()) == 2_684_685_358


def test_nothing_of_one_half_occurs_in_the_other():
    def identities(catalogue: Catalogue) -> tuple[set[str], set[str], set[tuple[str, ...]]]:
        return (
            {product.asin for product in catalogue.products},
            {" ".join(product.title.split()[:2]) for product in catalogue.products},
            {(product.query, *sorted(product.attributes)) for product in catalogue.products},
        )

    train = [identities(invent(seed, "train")) for seed in range(2)]
    evaluation = [identities(invent(seed, "evaluation")) for seed in range(2)]
    for one, other in itertools.product(train, evaluation):
        assert [a & b for a, b in zip(one, other, strict=True)] == [set(), set(), set()]
    assert train[0][1] & train[1][1]  # halves differ, seeds of one half do not
    assert not set(asins("train")) & set(asins("evaluation"))
    assert (len(brands("train")), len(brands("evaluation"))) == (772, 252)


def test_every_word_is_in_the_vocabulary_and_numbers_have_two_digits_at_most():
    words = set(shop_words())
    assert len(shop_words()) == len(words) < 330
    for split in ("train", "evaluation"):
        catalogue = invent(3, split)
        texts = [shown(product) for product in catalogue.products]
        texts += [product.product_category for product in catalogue.products]
        texts += [goal.instruction for goal in synthetic_goals(catalogue, prices(catalogue.products, seed=3), seed=3)]
        for text in texts:
            assert set(re.findall("[a-z]+", text.lower())) <= words
            assert not re.search(r"\d{3}", text)


def test_titles_are_short_and_asins_no_longer_than_those_of_the_original():
    assert {len(product.title.split()) for product in SMALL.products} == {5}
    assert max(len(product.asin) for product in SMALL.products) <= 10


def test_a_catalogue_of_500_products_has_thousands_of_goals_over_all_types():
    catalogue = invent(0, "evaluation")
    goals = synthetic_goals(catalogue, prices(catalogue.products, seed=0), seed=0)
    assert len(catalogue.products) == 500 and 2000 < len(goals) < 2500
    types = Counter(product.query for product in catalogue.products)
    assert len(types) == 30 and min(types.values()) >= 15
    assert {len(goal.attributes) for goal in goals} == {2, 3}
    assert sum(len(product.pricing) == 2 for product in catalogue.products) in range(25, 76)


def test_an_instruction_reads_as_a_sentence():
    goal = GOALS[0]
    (first, value), (second, other) = goal.options.items()  # type: ignore[union-attr]
    attributes, kind = " ".join(goal.attributes), goal.query
    asked = rf"(find me|i need|i want) an? {attributes} {kind} with {first}: {value}, and {second}: {other}"
    assert re.fullmatch(rf"{asked}, and price lower than \d0\.00 dollars", goal.instruction)


def test_attributes_that_are_asked_for_can_be_read_one_in_the_title_and_the_others_among_the_features():
    for asin, asked in SMALL.synthetic.items():
        product = BY_ASIN[asin]
        places = [
            "title" if attribute.title() in product.title.split() else "features"
            for attribute in asked.attributes
            if attribute.title() in product.title.split() or attribute in " ".join(product.bullet_points).split()
        ]
        assert len(places) == len(asked.attributes) and places.count("title") == 1
        assert not set(asked.attributes) & set(product.bullet_points[0].split())  # the one that searches see


def test_the_reward_finds_an_attribute_only_where_a_product_has_it():
    every = sorted({attribute for department in DEPARTMENTS.values() for attribute in department.attributes})
    assert len(every) == 48
    for product in SMALL.products:
        bought = score(product, Goal(instruction="", attributes=tuple(every)), price=1.0, options={})
        assert {match.wanted for match in bought.attributes if match.place} == set(product.attributes)


def test_an_oracle_reaches_reward_1_on_every_goal():
    assert len(GOALS) > 600
    for goal in GOALS:
        session = SHOP.step(SHOP.start([goal]), f"search[{goal.name}]")
        while goal.asin not in (element.text for element in SHOP.page(session)):
            session = SHOP.step(session, "click[next >]")
        session = SHOP.step(session, f"click[{goal.asin}]")
        for value in goal.options.values():  # type: ignore[union-attr]
            session = SHOP.step(session, f"click[{value}]")
        assert SHOP.rewards(SHOP.step(session, "click[buy now]")) == (1.0,)


def test_any_other_choice_of_options_is_worth_less():
    for goal in GOALS[::5]:
        product = BY_ASIN[goal.asin]
        choices = [dict(zip(product.options, v, strict=True)) for v in itertools.product(*product.options.values())]
        best = [choice for choice in choices if reward(product, goal, choice) == 1]
        assert best == [goal.options]
        assert reward(product, goal, {}) < 0.7


def test_a_product_of_another_department_is_worth_half_at_most():
    goal = GOALS[0]
    others = [product for product in SMALL.products if product.category != goal.category]
    assert max(score(p, replace(goal, options={}), price=0.0, options={}).total for p in others) <= 0.5


def test_the_product_asked_for_is_among_the_first_ten_hits_and_seldom_the_first():
    ranks = []
    for goal in GOALS:
        session = SHOP.step(SHOP.start([goal]), f"search[{goal.instruction}]")
        ranks.append(session.results.index(goal.asin))
    assert sum(rank == 0 for rank in ranks) / len(ranks) < 0.4
    assert sum(rank < 10 for rank in ranks) / len(ranks) > 0.98


@pytest.mark.parametrize("products", [149, 2000])
def test_a_catalogue_needs_a_line_of_every_type_and_enough_asins(products: int):
    with pytest.raises(UserError, match=rf"has 150 to 1442 products, not {products}"):
        invent(0, "evaluation", products=products)
