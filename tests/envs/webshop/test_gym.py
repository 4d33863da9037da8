"""WebShop as a Gymnasium environment."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from shops import GOAL, LAMP, OTHER_GOAL, RUG, small_shop

from mem1.errors import UserError

gymnasium = pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env  # noqa: E402

from mem1.envs.webshop.gym import ID, WebShopEnv  # noqa: E402

SHOP = small_shop(show_attributes=True)
GOALS = [GOAL, OTHER_GOAL]
BUY_RUG = ["search[rug]", "click[b000000rug]", "click[blue]", "click[buy now]"]


@pytest.mark.parametrize("mode", ["text", "text_rich", "html"])
def test_gymnasium_s_own_checks_pass_without_a_warning(mode: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gymnasium.make(ID, shop=SHOP, goals=GOALS, mode=mode)
        check_env(env.unwrapped)


def test_an_episode_of_one_goal():
    env = WebShopEnv(SHOP, GOALS)
    observation, info = env.reset(options={"goal": 1})
    assert observation == "WebShop [SEP] Instruction: [SEP] find me a lamp [SEP] Search"
    assert info == {"goal": 1, "available_actions": {"has_search_bar": True, "clickables": ["search"]}}
    steps = [env.step(action) for action in BUY_RUG]
    assert [step[1:4] for step in steps] == [(0.0, False, False)] * 3 + [(0.5, True, False)]
    assert steps[0][4]["available_actions"]["clickables"] == ["back to search", "next >", "b000000rug"]
    assert steps[-1][0].startswith("Thank you for shopping with us!")


def test_every_purchase_of_an_episode_of_two_goals_is_rewarded_once():
    env = WebShopEnv(SHOP, GOALS, objectives=2)
    env.reset()
    actions = [*BUY_RUG, "click[nothing]", "search[lamp]", f"click[{LAMP.asin}]", "click[buy now]"]
    steps = [env.step(action) for action in actions]
    assert [step[1] for step in steps] == [0, 0, 0, 0.5, 0, 0, 0, 0.25]
    assert [step[2] for step in steps] == [False] * 7 + [True]


def test_an_episode_is_cut_after_its_turns_unless_the_last_one_ends_it():
    env = WebShopEnv(SHOP, GOALS, max_turns=4)
    env.reset()
    assert [env.step("nonsense")[2:4] for _ in range(4)] == [(False, False)] * 3 + [(False, True)]
    env.reset()
    assert [env.step(action)[2:4] for action in BUY_RUG][-1] == (True, False)


def test_goals_are_drawn_by_their_weights_and_by_the_seed():
    env = WebShopEnv(SHOP, GOALS)
    drawn = [env.reset(seed=seed)[1]["goal"] for seed in range(400)]
    assert drawn == [env.reset(seed=seed)[1]["goal"] for seed in range(400)]
    # weights 1 and 3: 300 expected of the second, standard deviation 8.7
    assert 265 < sum(drawn) < 335


def test_every_page_and_every_click_lies_in_its_space():
    env = WebShopEnv(SHOP, GOALS, mode="html", objectives=2)
    observation, info = env.reset()
    actions = ["search[woven]", "click[next >]", "click[< prev]", *BUY_RUG[:3], "click[2' x 3']", "click[features]"]
    for action in [*actions, "click[< prev]", "click[buy now]", *BUY_RUG]:
        assert action in env.action_space
        assert observation in env.observation_space
        assert all(f"click[{text}]" in env.action_space for text in info["available_actions"]["clickables"])
        observation, _, terminated, _, info = env.step(action)
    assert terminated
    assert observation in env.observation_space


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"goal": 2}, "a number from 0 to 1, not 2"),
        ({"goal": "0"}, "not '0'"),
        ({"seed": 1}, "unknown option of reset"),
    ],
)
def test_a_wrong_option_of_reset_is_refused(options: dict[str, object], message: str):
    with pytest.raises(UserError, match=message):
        WebShopEnv(SHOP, GOALS).reset(options=options)


@pytest.mark.parametrize("settings", [{"objectives": 0}, {"objectives": 3}, {"max_turns": 0}, {"mode": "json"}])
def test_wrong_settings_are_refused(settings: dict[str, object]):
    with pytest.raises(UserError):
        WebShopEnv(SHOP, GOALS, **settings)  # type: ignore[arg-type]


def test_gymnasium_finds_it_by_the_module_s_name_and_the_shop_needs_no_gymnasium():
    code = (
        "import sys, mem1.envs.webshop.shop; assert 'gymnasium' not in sys.modules; import gymnasium; "
        "from shops import small_shop, GOAL; "
        "env = gymnasium.make('mem1.envs.webshop.gym:mem1/WebShop-v0', shop=small_shop(), goals=[GOAL]); "
        "print(env.reset(seed=0)[0])"
    )
    paths = os.pathsep.join([str(Path(__file__).parents[2] / "support"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert done.stdout.strip() == f"WebShop [SEP] Instruction: [SEP] {GOAL.instruction} [SEP] Search"
    assert RUG.title not in done.stdout


def test_without_a_shop_it_is_the_invented_one():
    env = WebShopEnv()
    observation, info = env.reset(options={"goal": 5})
    assert env.goals[5].instruction in observation
    assert info["available_actions"]["has_search_bar"]
    assert len(env.shop.products) == 500
    with pytest.raises(UserError, match="give both a shop and its goals, or neither"):
        WebShopEnv(SHOP)
