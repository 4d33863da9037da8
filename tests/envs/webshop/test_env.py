"""The shop behind the port of environments: actions, pages, purchases and their scores, tasks and demonstrations."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import chain

import pytest
from shops import GOAL, OTHER_GOAL, small_shop
from tag_sets import PAPER_SHOP
from webshop_samples import SHARED_WEBSHOP, needs_shared_webshop
from worlds import SAMPLING, replay, rollout

from mem1.configuration import load_toml, to_toml
from mem1.engines.codec import Codec
from mem1.envs.base import Action, Observation
from mem1.envs.webshop.env import Pages, WebShopEnvironment, meant
from mem1.envs.webshop.expert import Laziness, ShopExpert, demonstrate
from mem1.envs.webshop.tasks import ShopScript, WebShopTasks
from mem1.errors import UserError
from mem1.policy.tokenizers import UNKNOWN, bpe_tokenizer, shop_tokenizer
from mem1.protocol import ACT, PAPER, PUBLISHED_SHOP
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.records import Ended, Question, Task, Trajectory
from mem1.rollout import Budget

ENVIRONMENT = WebShopEnvironment(small_shop(), {"rug": GOAL, "lamp": OTHER_GOAL})
CODEC = Codec(shop_tokenizer(PAPER_SHOP))
BYTES = Codec(bpe_tokenizer([], vocab_size=300, tags=PAPER_SHOP))
INVENTED = WebShopTasks(products=160, pages="short", prompt="plain")
TRAIN = INVENTED.source("train", PAPER_SHOP)
BUDGET = Budget(completion_extra=100)


def task(*goals: str, turns: int = 15) -> Task:
    questions = tuple(Question(id=goal, text="buy it", answers=("B",)) for goal in goals)
    return Task(id="t", questions=questions, prompt="q 1 buy it", turn_limit=turns)


def after(*actions: str, goals: tuple[str, ...] = ("rug",), pages: Pages = "text") -> Observation:
    """What the last of these actions is answered with."""
    *earlier, last = [(ACT, action) for action in actions]
    environment = replace(ENVIRONMENT, pages=pages)
    (observation,) = environment.observe([Action(task(*goals), *last, tuple(earlier))])
    return observation


def shopped(*actions: str, goals: tuple[str, ...] = ("rug",), turns: int = 15) -> Trajectory:
    """An attempt at the task whose policy writes these actions."""
    completions = [f"<IS> goal </IS> <action> {action} </action>" for action in actions]
    run = rollout(replay(*completions), ENVIRONMENT, codec=BYTES, tags=PAPER_SHOP, budget=BUDGET)
    (trajectory,) = run([task(*goals, turns=turns)], sampling=SAMPLING)
    return trajectory


BUY_RUG = ("search[woven rug]", "click[b000000rug]", "click[dark blue]", "click[buy now]")
BUY_LAMP = ("search[lamp]", "click[b00000lamp]", "click[buy now]")


def test_a_page_is_that_of_the_shop_and_follows_from_the_actions_so_far():
    session = ENVIRONMENT.shop.start([GOAL])
    for number in range(1, 4):
        session = ENVIRONMENT.shop.step(session, BUY_RUG[number - 1])
        reply = after(*BUY_RUG[:number])
        assert reply == Observation(text=ENVIRONMENT.shop.observe(session, "text"))


def test_possible_actions_are_listed_below_a_page_if_asked_for():
    environment = replace(ENVIRONMENT, pages="short", list_actions=True)
    start, found = (
        environment.observe([Action(task("rug"), ACT, action, ())])[0].text for action in ("click[x]", "search[lamp]")
    )
    assert start == "Search\n\nCurrent available actions: search[<content>]"
    assert found.partition("\n\nCurrent available actions: ")[2] == (
        "click[back to search], click[next >], click[b00000lamp]"
    )


def test_a_shop_in_the_released_format_is_walked_to_the_purchase():
    codec = Codec(bpe_tokenizer([], vocab_size=300, tags=PUBLISHED_SHOP))
    written = [f"<think> hm </think><summary> rug {i} </summary><answer>{a}</answer>" for i, a in enumerate(BUY_RUG)]
    run = rollout(replay(*written), ENVIRONMENT, codec=codec, tags=PUBLISHED_SHOP, budget=BUDGET)
    (trajectory,) = run([task("rug")], sampling=SAMPLING)
    as_ours = shopped(*BUY_RUG)
    assert (trajectory.ended, trajectory.answer) == (as_ours.ended, as_ours.answer) != (Ended.ANSWERED, "")
    second = codec.decode(trajectory.turns[1].context_ids)
    page = ENVIRONMENT.observe([Action(task("rug"), ACT, BUY_RUG[0], ())])[0].text.replace("<", "(").replace(">", ")")
    assert second == (
        f"q 1 buy it<summary> rug 0 </summary><answer>{BUY_RUG[0]}</answer>"
        f"\n\n<state>[HINT]You have 14 turns left.[/HINT]\n\n{page}</state>\n\n"
    )


def test_a_short_page_has_all_but_the_instruction():
    short, whole = (after("search[lamp]", pages=pages).text for pages in ("short", "text"))
    assert short == "Back to Search | Page 1 (Total results: 1) | Next > | B00000LAMP | Desk Lamp | $5.0"
    assert whole == f"Instruction: [SEP] {GOAL.instruction} [SEP] {short.replace(' | ', ' [SEP] ')}"
    assert after("click[search]", pages="short").text == "Search"


def test_a_purchase_ends_the_attempt_and_is_its_answer():
    reply = after(*BUY_RUG)
    assert reply.ended
    price = ENVIRONMENT.shop.prices["B000000RUG"]
    assert json.loads(reply.answer or "") == [{"asin": "B000000RUG", "price": price, "options": {"color": "dark blue"}}]
    outcome = ENVIRONMENT.score(task("rug"), reply.answer or "")
    assert (outcome.reward, outcome.metrics["em"], outcome.metrics["score"]) == (
        0.0,
        (0.0,),
        (0.0,),
    )  # its option is "dark blue", not "blue"


def test_goals_are_bought_in_their_order_and_each_is_scored():
    blue = [action.replace("dark ", "") for action in BUY_RUG]
    reply = after(*blue, *BUY_LAMP, goals=("rug", "lamp"))
    assert reply.ended
    outcome = ENVIRONMENT.score(task("rug", "lamp"), reply.answer or "")
    assert (outcome.reward, outcome.metrics["em"], outcome.metrics["score"]) == (0.75, (0.0, 0.0), (0.5, 0.25))
    half = after(*blue, goals=("rug", "lamp"))
    assert not half.ended and "Bought 1 of 2: B000000RUG" in half.text
    assert ENVIRONMENT.score(task("rug", "lamp"), half.answer or "").metrics["score"] == (0.5, 0.0)
    assert ENVIRONMENT.score(task("rug", "lamp"), "").metrics["score"] == (0.0, 0.0)


@pytest.mark.parametrize(
    "written",
    [
        "click[B00000LAMP]",
        "click[b00000lamp]",
        "click [ b 00000 lamp ]",
        " click[ b00000lamp ]\n",
        "click[B00000 LAMP]",
        "Click[B00000LAMP]",
        'CLICK["B00000LAMP"].',
        "\u201cclick[\u2018b00000lamp\u2019]\u201d",
        "'click[\"B00000LAMP\"]'",
        "click[B00000LAMP.]",
    ],
)
def test_a_click_is_understood_with_the_spaces_of_a_tokenizer_in_capitals_and_in_quotes(written: str):
    assert "Price: $5.0" in after("search[lamp]", written).text


@pytest.mark.parametrize(
    "written",
    [
        'SEARCH["lamp"]',
        "Search [ lamp ].",
        "search[\u201clamp\u201d]",
        "'search[lamp]'",
        "`search['lamp']`",
        "search[LAMP] ",
    ],
)
def test_a_search_is_understood_in_capitals_and_in_quotes(written: str):
    assert after(written).text == after("search[lamp]").text


def test_quotes_inside_a_search_are_part_of_it():
    shop = ENVIRONMENT.shop
    start = shop.start([ENVIRONMENT.goals["rug"]])
    for words in ('a 12" lamp', '"red" or "blue"', "6' x 9'", '""'):
        assert meant(shop, start, f"search[{words}]") == f"search[{words}]"


@pytest.mark.parametrize(("written", "shown"), [("click[next )]", "Page 2 ("), ("click [ next > ]", "Page 2 (")])
def test_a_button_is_understood_as_a_page_shows_it_and_as_it_is(written: str, shown: str):
    assert shown in after("search[woven mat]", written).text
    back = after("search[woven mat]", written, "click[ ( prev ]").text
    assert "Page 1 (" in back


@pytest.mark.parametrize(
    "written",
    ["buy it", "click[buy now]", "Click[Buy Now]", "click[]", 'click[""]', "search[]", "", "]", "click[b00000lamp"],
)
def test_what_is_no_action_of_the_page_leaves_it_as_it_is(written: str):
    if written:
        assert after("search[lamp]", written).text == after("search[lamp]").text


def test_other_actions_and_unknown_goals_are_named():
    with pytest.raises(UserError, match="a shop has no action 'search'; it has: act"):
        ENVIRONMENT.observe([Action(task("rug"), "search", "rug")])
    with pytest.raises(UserError, match="this shop has no goal 'hat'; it has 2, such as 'rug'"):
        ENVIRONMENT.observe([Action(task("hat"), ACT, "search[rug]")])
    with pytest.raises(UserError, match="unknown kind of pages 'pdf'"):
        replace(ENVIRONMENT, pages="pdf")


def test_an_attempt_ends_with_the_last_purchase_even_in_its_last_turn():
    trajectory = shopped(*BUY_LAMP, goals=("lamp",), turns=3)
    assert (trajectory.ended, trajectory.reward, trajectory.per_objective("em")) == (Ended.ANSWERED, 0.25, (0.0,))
    assert [turn.action for turn in trajectory.turns] == [ACT] * 3
    assert trajectory.turns[-1].observation == ""
    assert "You have 1 turn left. You must finish now." in trajectory.turns[1].observation


def test_what_was_bought_before_the_turns_ran_out_counts():
    trajectory = shopped(*BUY_LAMP, "search[rug]", goals=("lamp", "rug"), turns=4)
    assert (trajectory.ended, trajectory.reward, trajectory.per_objective("score")) == (
        Ended.OUT_OF_TURNS,
        0.25,
        (0.25, 0.0),
    )


# --- tasks


def test_each_goal_is_asked_for_once_before_any_is_asked_for_again():
    environment = TRAIN.environment
    assert isinstance(environment, WebShopEnvironment)
    many = len(environment.goals) // 3
    tasks = TRAIN.tasks(objectives=3, count=2 * many, seed=0)
    asked = [question.id for one in tasks for question in one.questions]
    assert len(set(asked[: 3 * many])) == 3 * many
    assert max(Counter(asked).values()) <= 3
    assert all(len({question.id for question in one.questions}) == 3 for one in tasks)
    assert (
        tasks == TRAIN.tasks(objectives=3, count=2 * many, seed=0) != TRAIN.tasks(objectives=3, count=2 * many, seed=1)
    )
    (first, *_) = tasks
    assert (first.id, first.turn_limit) == ("+".join(question.id for question in first.questions), 45)
    assert first.prompt.startswith(f"Q1 {environment.goals[asked[0]].instruction}")


def test_the_halves_of_an_invented_shop_share_no_product():
    halves = [TRAIN.environment, INVENTED.source("evaluation", PAPER_SHOP).environment]
    products = [set(half.shop.products) for half in halves if isinstance(half, WebShopEnvironment)]
    assert [len(half) for half in products] == [160, 160]
    assert not products[0] & products[1]


def test_tags_without_actions_of_a_shop_are_refused():
    with pytest.raises(UserError, match="'paper' have no actions of a shop"):
        INVENTED.source("train", PAPER)


@needs_shared_webshop
def test_the_goals_of_a_real_shop_are_split_as_the_original_splits_them():
    parts = {}
    for half, evaluated in (("evaluation", "test"), ("evaluation", "development"), ("train", "test")):
        config = WebShopTasks.model_validate({"catalogue": str(SHARED_WEBSHOP), "evaluated": evaluated})
        count = {"test": 500, "development": 1000}[evaluated] if half == "evaluation" else 5410
        tasks = config.source(half, PAPER_SHOP).tasks(objectives=1, count=count, seed=0)  # pyright: ignore[reportArgumentType]
        parts[half, evaluated] = sorted(int(task.id.removeprefix("synthetic-")) for task in tasks)  # each goal once
    assert list(chain(*parts.values())) == list(range(6910))
    assert [len(part) for part in parts.values()] == [500, 1000, 5410]


def test_a_recipe_names_a_shop_as_its_tasks(tmp_path):
    config = Recipe(tasks=INVENTED, rl=Rl(curriculum=(Phase(steps=1, objectives=(1,)),)))
    (tmp_path / "shop.toml").write_text(to_toml(config), encoding="utf-8")
    assert load_toml(tmp_path / "shop.toml", Recipe) == config
    with pytest.raises(UserError, match=r"unknown key tasks\.catalog.*did you mean tasks\.catalogue"):
        load_toml(tmp_path / "shop.toml", Recipe, ["tasks.catalog=x"])


# --- demonstrations, and the tokenizer of words


@pytest.mark.parametrize("context", ["constant", "full"])
@pytest.mark.parametrize("laziness", [Laziness(), Laziness(vague=0.5, grab=0.5, settle=0.5, forget=0.5)])
def test_a_demonstration_by_the_loop_is_what_the_expert_does_in_the_shop(context: str, laziness: Laziness):
    environment = TRAIN.environment
    assert isinstance(environment, WebShopEnvironment)
    expert = ShopExpert(laziness=laziness, seed=3)
    tasks = [one for n in (1, 2) for one in TRAIN.tasks(objectives=n, count=4, seed=n)]
    script = ShopScript(expert, environment, tasks, PAPER_SHOP)
    run = rollout(script, environment, codec=CODEC, tags=PAPER_SHOP, budget=BUDGET, context=context)
    for one, trajectory in zip(tasks, run(tasks, sampling=SAMPLING), strict=True):
        goals = [environment.goals[question.id] for question in one.questions]
        session, decisions = demonstrate(expert, environment.shop, goals, one.turn_limit)
        assert session.done and trajectory.ended is Ended.ANSWERED
        assert trajectory.per_objective("score") == environment.shop.rewards(session)
        spaceless = ["".join(turn.content.split()) for turn in trajectory.turns]
        assert spaceless == ["".join(decision.action.split()) for decision in decisions]


def test_the_tokenizer_knows_every_word_of_an_invented_shop():
    environment = TRAIN.environment
    assert isinstance(environment, WebShopEnvironment)
    unknown = CODEC.tokenizer.token_to_id(UNKNOWN)
    shop, goals = environment.shop, list(environment.goals.values())
    texts = [goal.instruction for goal in goals]
    for goal in goals[::40]:
        session = shop.step(shop.start([goal]), "search[light]")
        for action in (f"click[{goal.asin}]", "click[description]", "click[< prev]", "click[features]"):
            texts.append(environment.show(session))
            session = shop.step(session, action)
        session = shop.step(shop.step(session, "click[< prev]"), "click[reviews]")
        texts.append(environment.show(session))
    assert len(texts) > 100
    for text in texts:
        assert unknown not in CODEC.encode(text), text
    shown = f"{goals[0].asin} | $24.49"
    assert re.sub(r"\s", "", CODEC.decode(CODEC.encode(shown))) == re.sub(r"\s", "", shown.lower())
    assert len(CODEC.encode(shown)) == 7


def test_the_page_of_any_number_of_actions_is_made_without_those_before():
    source = WebShopTasks().source("evaluation", PAPER_SHOP)
    (task,) = source.tasks(objectives=64, count=1, seed=0)
    action, earlier = "search[tent]", (("act", "search[tent]"),) * (task.turn_limit - 1)
    (seen,) = source.environment.observe([Action(task, "act", action, earlier)])
    (first,) = source.environment.observe([Action(task, "act", action)])
    assert seen.text == first.text and task.turn_limit == 960
