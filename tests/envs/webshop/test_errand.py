"""Errands: goods under one total price. What fits, what it may cost, and what shoppers with and without memory buy."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import mean

import pytest
from tag_sets import PAPER_SHOP, RELEASED_SHOP
from worlds import SAMPLING

from mem1.dialogue import TagDialogue
from mem1.engines.base import ScriptedEngine
from mem1.engines.codec import Codec
from mem1.envs.base import Action, Outcome
from mem1.envs.webshop.errand import FITTING, SLACKS, ErrandEnvironment, ErrandSource, ErrandTasks, Good, limit
from mem1.envs.webshop.reward import score
from mem1.envs.webshop.thrift import NOTES_TOKENS, Known, Shopper, ShopperScript
from mem1.errors import UserError
from mem1.memory import memory_policy
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import ACT, PAPER
from mem1.records import Ended, Task
from mem1.rollout import Budget, Rollout
from mem1.tasks.compose import Split


@cache
def source(level: int = 2, half: Split = "evaluation", **settings: int) -> ErrandSource:
    return ErrandTasks(level=level, **settings).source(half, PAPER_SHOP)  # type: ignore[arg-type]


def chance(wanted: Sequence[Good], most: int) -> float:
    """The probability that one random fitting product of each good costs at most `most` cents together.

    Exact: the distribution of the sum, good by good. It is what a shopper without memory scores who buys the first
    product that fits.
    """
    sums = {0: 1.0}
    for good in wanted:
        longer: defaultdict[int, float] = defaultdict(float)
        for spent, probability in sums.items():
            for price in good.prices.values():
                if spent + price <= most:
                    longer[spent + price] += probability / len(good.prices)
        sums = dict(longer)
    return sum(sums.values())


def allowed_by_chance(environment: ErrandEnvironment, task: Task) -> float:
    """The expected exact match of a shopper who buys a random fitting product for each good."""
    return chance([environment.wanted[question.id] for question in task.questions], environment.limit(task))


def pages(environment: ErrandEnvironment, task: Task, shopper: Shopper) -> Iterator[tuple[str, str | None]]:
    """(page, purchases) after each of a shopper's moves: it sees the task, its last notes and the last page."""
    notes, page, history = "", "", list[tuple[str, str]]()
    for left in range(task.turn_limit, 0, -1):
        move = shopper.move(f"{task.prompt}\n{notes}\n{left} turns left {page}")
        (seen,) = environment.observe([Action(task, ACT, move.act, tuple(history))])
        yield seen.text, seen.answer
        assert len(move.notes) <= 4 * NOTES_TOKENS
        notes, page = move.notes, seen.text
        history.append((ACT, move.act))
        if seen.ended:
            return


def shop(environment: ErrandEnvironment, task: Task, shopper: Shopper) -> tuple[Outcome, int]:
    """The score, and the number of turns."""
    seen = list(pages(environment, task, shopper))
    return environment.score(task, seen[-1][1] or ""), len(seen)


def bought(task: Task, *asins: str, **options: str) -> str:
    prices = source().environment.shop.prices
    wanted = source().environment.wanted
    chosen = [options or dict([wanted[question.id].option]) for question in task.questions]
    return json.dumps([{"asin": a, "price": prices[a], "options": o} for a, o in zip(asins, chosen, strict=False)])


def test_three_products_of_the_shop_and_no_others_earn_the_full_reward_for_a_good():
    environment = source().environment
    products, wanted = environment.shop.products.values(), list(environment.wanted.values())
    assert len(wanted) > 200
    for good in wanted[::25]:
        options = dict([good.option])
        full = {p.asin for p in products if score(p, good.goal, price=1.0, options=options).total == 1}
        offering = {asin for asin in full if good.option[1] in environment.shop.products[asin].options[good.option[0]]}
        assert offering == set(good.prices) and len(offering) == FITTING
        assert len(set(good.prices.values())) == FITTING, "no two cost the same"


def test_a_search_for_brand_and_type_lists_the_whole_line_first_and_no_price():
    environment = source().environment
    for task in source().tasks(objectives=1, count=30, seed=3):
        good = environment.wanted[task.questions[0].id]
        (page,) = environment.observe([Action(task, ACT, f"search[{' '.join(good.line)}]")])
        first = page.text.split(" | ")[1:6]
        assert all(f"{good.line[0]} " in title and title.lower().endswith(good.line[1]) for title in first)
        assert set(good.prices) <= {title.split(":")[0] for title in first}
        assert "$" not in page.text


def test_the_halves_share_no_product_no_brand_and_no_task():
    train, evaluation = source(half="train"), source()
    assert not train.environment.shop.products.keys() & evaluation.environment.shop.products.keys()
    brands = [{good.line[0] for good in half.environment.wanted.values()} for half in (train, evaluation)]
    assert min(map(len, brands)) > 50 and not brands[0] & brands[1]
    development = ErrandTasks().development().source("evaluation", PAPER_SHOP)
    assert not development.environment.shop.products.keys() & evaluation.environment.shop.products.keys()


@pytest.mark.parametrize("level", SLACKS)
def test_a_shopper_who_remembers_solves_every_task_in_fourteen_turns_per_good(level):
    environment = source(level).environment
    for objectives, count in ((1, 30), (2, 15), (5, 6), (16, 1)):
        for task in source(level).tasks(objectives=objectives, count=count, seed=level):
            outcome, turns = shop(environment, task, Shopper())
            assert outcome.metrics["em"] == (1.0,) * objectives and outcome.reward == objectives
            assert turns == 14 * objectives, "every good is as much work, in every task"


@pytest.mark.parametrize(("level", "objectives"), [(1, 2), (3, 1)])
def test_a_shopper_without_memory_scores_what_chance_allows(level, objectives):
    environment, tasks = source(level).environment, source(level).tasks(objectives=objectives, count=200, seed=5)
    allowed = [allowed_by_chance(environment, task) for task in tasks]
    goods = [shop(environment, task, Shopper(memory=0, seed=n))[0].reward for n, task in enumerate(tasks)]
    scored = [bought / objectives for bought in goods]
    deviation = math.sqrt(sum(p * (1 - p) for p in allowed)) / len(tasks)
    assert 0.1 < mean(allowed) < 0.6
    assert abs(mean(scored) - mean(allowed)) < 4 * deviation


def test_whoever_opens_a_line_knows_the_products_that_fit_from_the_others_so_the_first_is_a_fair_draw():
    environment = source().environment
    checked = 0
    for task in source().tasks(objectives=1, count=40, seed=8):
        good = environment.wanted[task.questions[0].id]
        search = f"search[{' '.join(good.line)}]"
        (results,) = environment.observe([Action(task, ACT, search)])
        line = Known.of(f"{task.prompt}\n{results.text}").line
        assert len(line) == 5 and good.prices.keys() <= set(line)
        for asin in line:
            (page,) = environment.observe([Action(task, ACT, f"click[{asin}]", ((ACT, search),))])
            known = Known.of(f"{task.prompt}\n{page.text}")
            assert known.item is not None and known.item.fits(known.good) == (asin in good.prices)
            checked += 1
    assert checked == 200


def test_chance_is_the_share_of_all_choices_within_the_limit():
    cheap = Good(
        number=0, line=("A B", "tent"), feature="x", option=("size", "s"), prices={"a": 100, "b": 200, "c": 400}
    )
    dear = Good(number=1, line=("C D", "pan"), feature="y", option=("size", "m"), prices={"d": 300, "e": 310, "f": 900})
    assert chance([cheap], 99) == 0 and chance([cheap], 200) == pytest.approx(2 / 3)
    choices = list(itertools.product(cheap.prices.values(), dear.prices.values(), cheap.prices.values()))
    within = sum(sum(choice) <= 710 for choice in choices)
    assert chance([cheap, dear, cheap], 710) == pytest.approx(within / 27) and 0 < within < 27
    assert limit([2449, 1900], 0.1) == 4783 and limit([100], 0) == 100


def test_levels_leave_less_and_less_to_chance():
    tasks = source().tasks(objectives=4, count=50, seed=1)
    mean_chance = {}
    for level in SLACKS:
        environment = source(level).environment
        mean_chance[level] = mean(allowed_by_chance(environment, task) for task in tasks)
        assert all(
            task.prompt.endswith(f"${environment.limit(task) / 100:.2f}.\n")
            for task in source(level).tasks(objectives=4, count=5, seed=1)
        )
    assert list(mean_chance.values()) == sorted(mean_chance.values(), reverse=True)
    assert mean_chance[1] < 0.3 and mean_chance[4] < 0.05


def test_a_purchase_counts_if_it_fits_and_all_purchases_keep_the_limit():
    environment = source().environment
    (task,) = source().tasks(objectives=2, count=1, seed=0)
    first, second = (environment.wanted[question.id] for question in task.questions)
    best = bought(task, first.cheapest, second.cheapest)
    spent = (first.prices[first.cheapest] + second.prices[second.cheapest]) / 100
    assert environment.score(task, best).metrics == {"em": (1.0, 1.0), "spent": pytest.approx(spent)}
    assert environment.score(task, bought(task, first.cheapest)).metrics["em"] == (1.0, 0.0), "one is bought so far"
    assert environment.score(task, bought(task, second.cheapest, first.cheapest)).metrics["em"] == (0.0, 0.0), "order"
    assert environment.score(task, "").metrics == {"em": (0.0, 0.0), "spent": 0.0}
    unchosen = bought(task, first.cheapest, color="red")
    assert environment.score(task, unchosen).metrics["em"] == (0.0, 0.0), "the option was not clicked"
    dearest = [max(good.prices, key=good.prices.__getitem__) for good in (first, second)]
    above = environment.score(task, bought(task, *dearest))
    assert above.metrics["em"] == (0.0, 0.0) and above.reward == 0
    spent = above.metrics["spent"]
    assert isinstance(spent, float) and spent > environment.limit(task) / 100, "both fit, and cost too much"


def test_no_page_says_what_was_spent_and_a_product_shows_all_of_itself_on_one():
    environment = source().environment
    (task,) = source().tasks(objectives=2, count=1, seed=0)
    seen = [page for page, _ in pages(environment, task, Shopper())]
    assert [page for page in seen if "Bought" in page] == ["Search page | Bought 1 of 2", "Thank you | Bought 2 of 2"]
    items = [page for page in seen if "Buy Now" in page]
    assert all(page.count("$") == 1 for page in items) and len(items) == 14
    asin, price, *features = items[0].split(" | ")
    product = environment.shop.products[asin.split(":")[0]]
    assert price == product.price_tag and tuple(features[:4]) == product.bullet_points
    assert sum("chosen: " in page for page in items) == 2
    (task,) = source().tasks(objectives=1, count=1, seed=0)
    (odd,) = environment.observe([Action(task, ACT, "click[nothing]")])
    assert odd.text == "Search page | Bought 0 of 1" and not odd.ended
    (none,) = environment.observe([Action(task, ACT, "search[qqq]")])
    assert none.text == "No results"


def test_tasks_follow_from_shop_level_and_seed_on_every_machine():
    tasks = source().tasks(objectives=3, count=40, seed=7)
    text = "\n".join(f"{task.id} {task.prompt[task.prompt.index('Q1 ') :]}" for task in tasks)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "250b467b3fe34c56"
    assert tasks[:10] == source().tasks(objectives=3, count=10, seed=7)
    assert len({task.id for task in tasks}) == 40
    assert all(len({source().environment.wanted[q.id].line for q in task.questions}) == 3 for task in tasks)
    assert tasks[0].id.startswith("errand-evaluation-0-l2-") and tasks[0].turn_limit == 60
    assert source(seed=1).tasks(objectives=3, count=1, seed=7)[0].prompt != tasks[0].prompt


@pytest.mark.parametrize(
    ("context", "memory", "solved"),
    [("constant", None, True), ("full", None, True), ("none", None, False), ("full", 0, True), ("constant", 0, False)],
)
@pytest.mark.parametrize("tags", [PAPER_SHOP, RELEASED_SHOP], ids=lambda tags: tags.name)
def test_the_expert_solves_what_its_notes_or_the_pages_in_view_allow(context, memory, solved, tags):
    config = ErrandTasks(level=4, products=150, memory=memory)
    made = config.source("train", tags)
    tasks = made.tasks(objectives=2, count=2, seed=0)
    codec = Codec(bpe_tokenizer([task.prompt for task in tasks], vocab_size=500, tags=tags))
    rollout = Rollout(
        engine=ScriptedEngine(codec, config.expert(tasks, made.environment, tags, seed=0)),
        dialogue=TagDialogue(codec, tags=tags),
        environment=made.environment,
        context=memory_policy(context),
        budget=Budget(completion_extra=400, context=100_000),
    )
    attempts = rollout(tasks, sampling=SAMPLING)
    em = mean(mean(attempt.per_objective("em")) for attempt in attempts)
    assert em == 1.0 if solved else em < 0.6, "what it remembers decides"
    assert {attempt.ended for attempt in attempts} == {Ended.ANSWERED}


@pytest.mark.parametrize("lost", [4, 7])
def test_a_shopper_whose_last_page_is_lost_now_and_then_goes_on_from_its_notes(lost):
    made = source(4, turns_per_good=80)
    for task in made.tasks(objectives=2, count=4, seed=2):
        notes, page, answer, history = "", "", "", list[tuple[str, str]]()
        for turn in range(task.turn_limit):
            if turn % lost == 0:  # a memory that asks for a state keeps nothing else
                notes, page = Shopper().move(f"{task.prompt}\n{notes}\n{page}").notes, ""
            move = Shopper().move(f"{task.prompt}\n{notes}\n{page}")
            (seen,) = made.environment.observe([Action(task, ACT, move.act, tuple(history))])
            notes, page, answer = move.notes, seen.text, seen.answer or answer
            history.append((ACT, move.act))
            if seen.ended:
                break
        assert made.environment.score(task, answer).metrics["em"] == (1.0, 1.0)


def test_a_script_writes_a_move_in_the_tags_of_the_vocabulary():
    (task,) = source().tasks(objectives=1, count=1, seed=0)
    brand, kind = source().environment.wanted[task.questions[0].id].line
    first = f"<IS> good 1 ; spent 0.00 </IS> <action> search[{brand} {kind}] </action>"
    assert ShopperScript(Shopper(), PAPER_SHOP)(task.prompt) == first
    with pytest.raises(ValueError, match="no errand"):
        Shopper().move("Q1 Who founded Alvex?")


def test_a_larger_shop_has_enough_goods_for_long_errands():
    (task,) = source(products=896).tasks(objectives=128, count=1, seed=0)
    assert task.objectives == 128 and task.turn_limit == 128 * 20
    assert len({source(products=896).environment.wanted[question.id].line for question in task.questions}) == 128


def test_what_cannot_be_an_errand_is_said():
    with pytest.raises(UserError, match=r"has \d+; take at most 9\d goods, or a larger shop \(tasks.products = 896\)"):
        source().tasks(objectives=128, count=1, seed=0)
    with pytest.raises(UserError, match=r"or at most 206 with the largest shop of this half \(tasks.products = 1442\)"):
        source().tasks(objectives=256, count=1, seed=0)
    with pytest.raises(UserError, match="'paper' have no actions of a shop"):
        ErrandTasks().source("train", PAPER)
    with pytest.raises(ValueError, match="less than or equal to 4"):
        ErrandTasks(level=5)
    (task,) = source().tasks(objectives=1, count=1, seed=0)
    with pytest.raises(UserError, match="has no action 'search'"):
        source().environment.observe([Action(task, "search", "tent")])
