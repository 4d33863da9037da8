"""The shop as a page for people: what is shown, what a hostile visitor cannot do, how recordings are replayed."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import webshop_site
from servers import CommandProcess
from shop_sites import (
    GOALS,
    RUG_GOAL,
    SCRIPT,
    Client,
    Document,
    recorded,
    recording_of,
    shop,
    site,
)
from shops import LAMP, RUG
from webshop_samples import raw_product
from webshop_site.__main__ import main
from webshop_site.app import Site, TrailLost, Trails, TrailTooLong, make_app, open_site
from webshop_site.recordings import read_recordings
from webshop_site.views import explain

from mem1.envs.webshop.catalogue import (
    NO_PRICE,
    Catalogue,
    Goal,
    Instruction,
    Product,
    goals_by_id,
    human_goals,
    shuffled,
    synthetic_goals,
)
from mem1.envs.webshop.files import clean
from mem1.envs.webshop.reward import score
from mem1.errors import UserError
from mem1.jsonl import write_objects
from mem1.records import Trajectory, trajectory_to_json


class Visitor:
    """Fills in forms as a browser would, and stands on the page that they lead to."""

    def __init__(self, shown: Site, trails: Trails | None = None) -> None:
        self.client = Client(make_app(shown, trails))
        self.path, self.status, self.page = "", 0, Document("")

    def go(self, path: str) -> Visitor:
        return self._stand_on(self.client.get(path))

    def begin(self, goal: object = 0) -> Visitor:
        return self._stand_on(self.client.post("/shop", data={"goal": str(goal)}))

    def send(self, path: str | None = None, **fields: Any) -> Visitor:
        return self._stand_on(self.client.post(path or self.path, data=fields))

    def click(self, text: str, **fields: Any) -> Visitor:
        assert text in self.page.clicks
        return self.send(click=text, **fields)

    def open_rug(self, **fields: Any) -> Visitor:
        return self.begin().send(query="rug").click(RUG.asin.lower(), **fields)

    def _stand_on(self, response: httpx.Response) -> Visitor:
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in response.headers["content-security-policy"]
        self.path, self.status = response.url.path, response.status_code
        self.page = Document(response.text)
        return self


@pytest.fixture
def visitor() -> Visitor:
    return Visitor(site(recordings=[recording_of(recorded("human-0"))]))


def test_shopping_by_hand_from_the_goals_to_the_reward(visitor: Visitor):
    assert RUG_GOAL.instruction in visitor.go("/").page.text
    visitor.begin(0)
    assert RUG_GOAL.instruction in visitor.page.text
    visitor.send(query="rug")
    assert "1 to 1 of 1 products" in visitor.page.text and RUG.title in visitor.page.text
    visitor.click("b000000rug")
    assert visitor.page.clicks == [
        *("back to search", "< prev", "description", "features", "reviews", "attributes", "buy now")
    ]
    radios = [(r["name"], r["value"]) for r in visitor.page.all("input")]
    assert radios == [(f"option-{i}", v) for i, values in enumerate(RUG.options.values()) for v in values]
    visitor.click("buy now", **{"option-0": "dark blue"})
    # (easy clean + dark blue + price) of (2 attributes + 2 options + price)
    assert "1 \u00d7 (1 + 1 + 1) / (2 + 2 + 1) = 0.6" in visitor.page.text
    for said in (
        "0.60 of 1",
        "Search that led to it the same",
        "Categories in common Home \u00b7 Rugs",
        "Title score 0.50, words in common: rug, woven",
        "✓ matched easy clean attribute like the product's attribute “easy clean”",
        "✗ missed machine wash attribute found nowhere",
        "✓ matched color: blue option chosen: color: dark blue (compared: “blue”)",
        "✗ missed size: 2' x 3' option no option that was chosen is like “size 2 x 3”",
        "✓ matched at most $30.00 price paid: $10.00",
        f"the one bought : {RUG.title}",
    ):
        assert said in visitor.page.text, said


@pytest.mark.parametrize(
    ("button", "shown"),
    [
        ("description", "A rug of wool."),
        ("features", "Hidden underlay"),
        ("reviews", "“Nice” 4.0 of 5 Soft."),
        ("attributes", "hand woven Category garden Search that led to it rugs Categories Home \u203a Rugs"),
    ],
)
def test_the_pages_about_a_product_keep_what_was_chosen(visitor: Visitor, button: str, shown: str):
    visitor.open_rug().click(button, **{"option-1": "2' x 3'"})
    assert shown in visitor.page.text
    visitor.click("< prev")
    assert [r["value"] for r in visitor.page.all("input") if "checked" in r] == ["2' x 3'"]


def test_a_value_that_two_options_share_is_that_of_the_radio_button(visitor: Visitor):
    visitor.open_rug().click("buy now", **{"option-0": "blue"})
    assert "Options color: blue Reward" in visitor.page.text


def test_results_come_in_tens_and_seen_ones_are_marked(visitor: Visitor):
    visitor.begin().send(query="woven")
    assert "1 to 10 of 13 products" in visitor.page.text and "< prev" not in visitor.page.clicks
    visitor.click("next >")
    assert "11 to 13 of 13 products" in visitor.page.text and "next >" not in visitor.page.clicks
    first = next(click for click in visitor.page.clicks if click.startswith("b0"))
    visitor.click(first).click("< prev")
    assert visitor.page.text.count("seen") == 1
    assert "Nothing was found" in visitor.click("back to search").send(query="zzz").page.text


def test_several_goals_are_bought_one_after_the_other():
    visitor = Visitor(site(goals_per_task=2)).open_rug().click("buy now")
    assert "Bought 1 of 2: Woven Rug" in visitor.page.text
    assert [li["value"] for li in visitor.page.all("li") if "aria-current" in li] == ["2"]
    visitor.send(query="desk").click(LAMP.asin.lower()).click("buy now")
    # rug: (1 + 0 + 1) / 5; lamp: found by no search of either, one word in common: (0 + 1) / 2
    assert "Rewards: 0.40 + 0.50" in visitor.page.text
    assert "This shop does not have it." in visitor.page.text
    assert "numbered from 0 to 1" in visitor.begin(2).page.text


def test_a_random_goal_is_one_of_them(visitor: Visitor):
    wanted = {visitor.begin("random").page.text.partition("Wanted: ")[2].partition(" Search")[0] for _ in range(30)}
    assert len(wanted) == 2, "two of the three goals are worded alike"


def test_the_browser_s_way_back_leads_back_and_the_same_step_twice_is_one(visitor: Visitor):
    item = visitor.open_rug().path
    first = visitor.click("buy now").path
    assert visitor.go(item).click("buy now").path == first
    assert visitor.go(item).click("description").path == first
    assert "A rug of wool." in visitor.go(first).page.text


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"click": ""},
        {"click": "attributes] search[lamp"},
        {"click": "b00000lamp"},
        {"click": "next >"},
        {"query": "lamp"},
        {"option-0": "red", "option-9": "blue", "option-0 ": "blue", "option-": "blue"},
        {"click": SCRIPT},
        {"click": "\x00\ud7ff\U0010ffff"},
        {"click": "[" * 10_000},
    ],
)
def test_a_forged_form_leads_nowhere(visitor: Visitor, fields: dict[str, str]):
    before = visitor.open_rug().path
    visitor.send(**fields)
    assert (visitor.status, visitor.path) == (200, before)
    assert "That led nowhere" in visitor.page.text
    assert "script" not in [tag for tag, attributes in visitor.page.elements if "src" not in attributes]


@pytest.mark.parametrize("query", ["", " ", "[]", "]["])
def test_a_search_without_a_word_leads_nowhere(visitor: Visitor, query: str):
    assert "a search needs a word" in visitor.begin().send(query=query).page.text


def test_brackets_in_a_search_are_only_that(visitor: Visitor):
    assert RUG.title in visitor.begin().send(query="[woven] click[rug]").page.text


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"x" * (1 << 17), 413), (b"&".join([b"a=b"] * 200), 400), (b"\xff\xfe%ff%zz=%", 200), (b'{"click": 1}', 200)],
)
def test_a_body_that_is_no_form_gives_a_page(visitor: Visitor, body: bytes, status: int):
    response = visitor.client.post(visitor.begin().path, content=body)
    assert response.status_code == status
    assert response.text.startswith("<!doctype html>")


@pytest.mark.parametrize(
    "path",
    [
        *("/shop", "/shop/nobody/0", "/shop/{}/1", "/shop/{}/-1", "/shop/{}/x", "/shop/{}/\u0663", "/nothing"),
        *("/shop/{}/" + "9" * 5000, "/replay/0/1", "/replay/2/1", "/replay/1/0", "/replay/1/6", "/replay/1/x"),
        *("/docs", "/openapi.json", "/app.py", "/%2e%2e/app.py", "/templates/base.html.jinja"),
    ],
)
def test_what_does_not_exist_is_a_page_that_says_so(visitor: Visitor, path: str):
    me = visitor.begin().path.split("/")[2]
    visitor.go(path.format(me))
    assert visitor.status == 404
    assert len(visitor.page.all("h1")) == 1 and {"class": "button", "href": "/"} in visitor.page.all("a")


@pytest.mark.parametrize("goal", ["3", "-1", "x", "1e1", "0x1", "", "\u0661", "9" * 5000])
def test_a_goal_that_does_not_exist_is_a_page_that_says_so(visitor: Visitor, goal: str):
    visitor.begin(goal)
    assert visitor.status == 404 and "numbered from 0 to 2" in visitor.page.text


def test_other_methods_get_a_page_too(visitor: Visitor):
    assert (visitor.send("/").status, visitor.send("/shop/nobody/0").status) == (405, 404)


@pytest.mark.parametrize("start", ["-1", "x", "99", "9" * 5000, "2"])
def test_any_start_of_a_list_is_a_list(visitor: Visitor, start: str):
    assert visitor.go(f"/?from={start}").status == visitor.go(f"/replay?from={start}").status == 200


def test_random_visitors_never_break_it():
    rng = random.Random(0)
    trails = Trails(most=3, steps=12)
    visitor = Visitor(site(goals_per_task=2), trails).begin()
    seen = set()
    for _ in range(80):
        click = rng.choice([*visitor.page.clicks, "buy now", rng.choice(["", "[", "< prev", SCRIPT])])
        option = rng.choice(["blue", "dark blue", "buy now", "forged"])
        fields = {"query": rng.choice(["rug", "trap", "woven", ""])} if rng.random() < 0.3 else {"click": click}
        visitor.send(**fields, **{f"option-{rng.randrange(3)}": option})
        seen.add(visitor.status)
        if not visitor.page.clicks and not visitor.page.all("input"):
            visitor.begin(rng.choice([0, 1, "random"]))
    assert {200} <= seen <= {200, 409}


def every_page(images: bool = False) -> list[Document]:
    """One of each kind, of a product and a recording whose every text is hostile."""
    recordings = [recording_of(recorded("human-1", actions=("search[trap]", SCRIPT)))]
    visitor = Visitor(site(images=images, recordings=recordings))
    pages = [visitor.go(path).page for path in ("/", "/replay", "/replay/1/1", "/replay/1/2", "/replay/1/3", "/x")]
    pages += [visitor.begin(1).page, visitor.send(query=f"trap {SCRIPT}").page, visitor.click("b00hostile").page]
    for name in ("description", "features", "reviews", "attributes"):
        pages += [visitor.click(name).page]
        visitor.click("< prev")
    return [*pages, visitor.click("buy now", **{"option-0": "buy now"}).page]


def test_every_text_is_escaped_and_nothing_is_loaded_from_elsewhere():
    pages = every_page()
    assert sum(SCRIPT in page.text for page in pages) >= 11
    for page in pages:
        assert page.all("script") == [{"src": "/keys.js", "defer": ""}]
        assert not page.all("img", "style", "iframe")
        for tag, attributes in page.elements:
            assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
            for name in ("src", "href", "action"):
                assert attributes.get(name, "/").startswith(("/", "#main", "data:,")), (tag, attributes)


def test_every_input_has_its_label_and_headings_go_down_one_by_one():
    for page in every_page():
        labelled = {label["for"] for label in page.all("label")}
        assert all(field["id"] in labelled for field in page.all("input"))
        levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1 and levels.count(1) == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), levels


def test_pictures_are_shown_only_where_asked_for_and_only_by_https(visitor: Visitor):
    assert not visitor.open_rug().page.all("img")
    shown = Visitor(site(images=True))
    assert [image["src"] for image in shown.open_rug().page.all("img")] == ["https://pictures.test/rug.jpg"]
    assert "img-src data: https:;" in shown.client.get("/").headers["content-security-policy"]
    assert not [page for page in every_page(images=True) if page.all("img")]


def test_style_and_keys_are_served_as_what_they_are(visitor: Visitor):
    for name, kind in (("style.css", "text/css"), ("keys.js", "text/javascript")):
        response = visitor.client.get(f"/{name}")
        assert response.headers["content-type"].startswith(kind)
        assert response.headers["x-content-type-options"] == "nosniff"
    assert "prefers-color-scheme: dark" in visitor.client.get("/style.css").text


def test_half_a_surrogate_pair_in_a_title_does_not_break_its_page():
    broken = Product(asin="B0BROKEN", name="x", title="half \ud800 pair", options={"a\ud800": ("b\udfff",)})
    visitor = Visitor(Site(shop=shop(broken), goals=GOALS)).begin().send(query="pair")
    assert "half ? pair" in visitor.click("b0broken").page.text


def test_visits_are_bounded_forgotten_and_cannot_be_guessed():
    seconds = [0.0]
    session = shop().start([RUG_GOAL])
    trails = Trails(most=2, steps=3, idle_s=10.0, now=lambda: seconds[0])
    first, second = trails.open(session), trails.open(session)
    assert first != second and len(first) >= 20
    trails.at(first, 0)  # the second one has now been away for longer
    third = trails.open(session)
    with pytest.raises(TrailLost):
        trails.at(second, 0)
    assert trails.walk(first, 0, session) == 1 and trails.walk(first, 1, session) == 2
    with pytest.raises(TrailTooLong):
        trails.walk(first, 2, session)
    assert trails.walk(first, 0, session) == 1
    with pytest.raises(TrailLost):
        trails.at(first, 2)
    seconds[0] = 8.0
    trails.at(first, 0)
    seconds[0] = 11.0
    with pytest.raises(TrailLost):
        trails.at(third, 0)
    assert trails.at(first, 0) == session


@pytest.mark.parametrize(
    ("name", "query", "category", "verdict"),
    [
        ("rug", "rugs", "", "The same type of product: the same search"),
        ("rug a c d e", "other", "x", "Another type of product"),
        ("rug a c d e f g h i j k", "rugs", "", "Far from the goal"),
        ("lamp", "rugs", "", "share no word"),
    ],
)
def test_the_factor_of_the_type_in_words(name: str, query: str, category: str, verdict: str):
    goal = Goal(instruction="x", name=name, query=query, product_category=category)
    explained = explain(score(RUG, goal, price=5.0, options={}))
    assert verdict in explained.verdict
    assert explained.formula == f"{explained.r_type:g} \u00d7 (0 + 0 + 1) / (0 + 0 + 1)"
    assert explained.total == explained.r_type


def test_where_an_attribute_was_found_and_what_no_bound_is():
    goal = Goal(instruction="x", attributes=("woven", "vacuum", "wool", "easy clean"), price_upper=NO_PRICE)
    rug = replace(RUG, bullet_points=("vacuum it",), attributes=("easy to clean",))
    parts = explain(score(rug, goal, price=1234.5, options={})).parts
    assert [part.why for part in parts] == [
        "found in the title",
        "found in the features",
        "found in the description",
        "like the product's attribute “easy to clean”",
        "paid: $1,234.50",
    ]
    assert parts[-1].asked == "any price"


def test_a_recording_is_walked_through_step_by_step(visitor: Visitor):
    assert "human-0" in visitor.go("/replay").page.text and "4 turns" in visitor.page.text
    visitor.go("/replay/1/1")
    for said in ("search[rug]", "Query rug", "state 1", "10 given, 1 written", "As recorded Buy it."):
        assert said in visitor.page.text, said
    assert [link["href"] for link in visitor.page.all("a") if "rel" in link] == ["/replay/1/2"]
    visitor.go("/replay/1/2")
    assert "Page 1 (Total results: 1)" in visitor.page.text and "B000000RUG ← clicked" in visitor.page.text
    assert f"As recorded page 2 {SCRIPT}" in visitor.page.text
    assert "dark blue ← clicked" in visitor.go("/replay/1/3").page.text
    assert "dark blue chosen" in visitor.go("/replay/1/4").page.text and "state 4" in visitor.page.text
    visitor.go("/replay/1/5")
    for said in ("Recorded reward 0.6", "Memory constant", "1 \u00d7 (1 + 1 + 1) / (2 + 2 + 1) = 0.6"):
        assert said in visitor.page.text, said
    assert [link["href"] for link in visitor.page.all("a") if "rel" in link] == ["/replay/1/4"]


def test_what_led_nowhere_and_what_was_not_bought_is_said():
    attempt = recorded("human-0", "human-1", actions=("search[rug]", "click[b00000lamp]", "<action> is not closed"))
    visitor = Visitor(site(recordings=[recording_of(replace(attempt, reward=None))]))
    assert "led nowhere" not in visitor.go("/replay/1/1").page.text
    assert "This led nowhere." in visitor.go("/replay/1/2").page.text
    assert "none: <action> is not closed This led nowhere." in visitor.go("/replay/1/3").page.text
    visitor.go("/replay/1/4")
    assert "never scored" in visitor.page.text
    assert visitor.page.text.count("Nothing was bought for this goal.") == 2


@pytest.mark.parametrize(
    ("attempt", "trouble"),
    [
        (recorded("human-0", "human-7"), "This shop has no goal 'human-7'."),
        (recorded("synthetic-0"), "This shop has no goal 'synthetic-0'."),
        (recorded("q1"), "This shop has no goal 'q1'."),
        (recorded("human-0", text="a red one"), f"asks for something else: {RUG_GOAL.instruction}"),
        (replace(recorded("human-0"), task=None), "recorded without its task"),
    ],
)
def test_a_recording_of_another_shop_says_so_and_shows_what_was_recorded(attempt: Trajectory, trouble: str):
    visitor = Visitor(site(recordings=[recording_of(attempt)]))
    assert "pages cannot be shown" in visitor.go("/replay").page.text
    visitor.go("/replay/1/2")
    assert trouble in visitor.page.text and "state 2" in visitor.page.text and f"page 2 {SCRIPT}" in visitor.page.text
    assert visitor.go("/replay/1/5").status == 200


def test_recordings_are_read_with_errors_that_name_the_line(tmp_path: Path):
    path = tmp_path / "trajectories.jsonl"
    write_objects(path, [trajectory_to_json(recorded("human-0"))] * 2)
    assert read_recordings(path, lambda kind: GOALS) == [recording_of(recorded("human-0"))] * 2
    for line, why in (('{"version": 9}', "version 9"), ('{"version": 3}', "turns"), ("[]", "one JSON object")):
        path.write_text(json.dumps(trajectory_to_json(recorded("human-0"))) + f"\n{line}\n")
        with pytest.raises(UserError, match=rf"trajectories\.jsonl:2: .*{why}"):
            read_recordings(path, lambda kind: GOALS)
    path.write_text("\n")
    with pytest.raises(UserError, match="no trajectories; give"):
        read_recordings(path, lambda kind: GOALS)


def test_goals_have_their_ids_by_their_place_among_their_kind():
    products = tuple(clean(raw_product(f"B{i}"), ["soft"]) for i in range(5))
    asked = Instruction(text="a rug", attributes=("soft",))
    shops = Catalogue(products=products, human={"B1": (asked, asked)}, synthetic={p.asin: asked for p in products})
    prices = {product.asin: 5.0 for product in products}
    synthetic = shuffled(synthetic_goals(shops, prices, seed=3))
    assert goals_by_id(shops, prices, "synthetic", seed=3) == {f"synthetic-{i}": g for i, g in enumerate(synthetic)}
    human = shuffled(human_goals(shops, prices, seed=3))
    assert list(goals_by_id(shops, prices, "human", seed=3).items()) == [("human-0", human[0]), ("human-1", human[1])]
    with pytest.raises(UserError, match="unknown kind of goals 'invented'; known: human, synthetic"):
        goals_by_id(shops, prices, "invented", seed=3)


def test_too_few_goals_are_an_error_that_names_the_way_out(tmp_path: Path):
    with pytest.raises(UserError, match="0 human goals are too few for 1 per visit; try --goals synthetic"):
        open_site(None, "human")
    with pytest.raises(UserError, match="are too few for 9999 per visit; try another catalogue"):
        open_site(None, "synthetic", goals_per_task=9999)


def test_the_invented_shop_and_its_recordings_are_those_of_the_seed(tmp_path: Path):
    path = tmp_path / "trajectories.jsonl"
    shown = open_site(None, "synthetic", seed=1)
    text = shown.goals["synthetic-5"].instruction
    write_objects(path, [trajectory_to_json(recorded("synthetic-5", text=text))])
    assert open_site(None, "synthetic", seed=1, replay=path).recordings[0].trouble == ""
    assert "asks for something else" in open_site(None, "synthetic", seed=2, replay=path).recordings[0].trouble


def mistake(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a command line that cannot be served ends with."""
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in ("--port", 0, *arguments)])
    return str(ended.value) if isinstance(ended.value.code, str) else capsys.readouterr().err


def test_a_user_s_mistakes_are_one_message(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    assert "invalid choice: 'all'" in mistake(capsys, "--goals", "all")
    assert "no file or folder" in mistake(capsys, "--catalogue", tmp_path / "x")
    assert "is not a host name" in mistake(capsys, "--allow-host", "http://a.lan")
    assert "no file" in mistake(capsys, "--replay", tmp_path / "x.jsonl")
    assert "too few for 0 per visit" in mistake(capsys, "--goals-per-task", 0)


def test_the_command_serves_until_it_is_told_to_stop():
    examples = Path(webshop_site.__file__).parents[1]
    server = CommandProcess("--port", "0", "--allow-host", "shop.lan", module="webshop_site", folder=examples)
    page = httpx.get(server.address, headers={"host": "shop.lan"}, trust_env=False).text
    stranger = httpx.get(server.address, headers={"host": "evil.example"}, trust_env=False)
    code, said = server.stop()
    assert stranger.status_code == 421
    assert "What will you shop for?" in page
    assert (code, said.splitlines()[-1]) == (0, "Stopped.")
    assert re.search(
        r"The shop \(500 products, 2,\d\d\d goals\) is open on http://127\.0\.0\.1:\d+; Ctrl-C stops", said
    )
