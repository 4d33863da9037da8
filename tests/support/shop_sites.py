"""The shop of `shops.py` as a site with goals, recordings and texts that nobody should trust."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import httpx
from shops import CROWD, LAMP, RUG
from webshop_site.app import Site
from webshop_site.recordings import Recording, recording

from mem1.envs.webshop.catalogue import Goal, Product
from mem1.envs.webshop.shop import Shop
from mem1.records import Ended, Question, Task, Trajectory, Turn

SCRIPT = "<script>alert(1)</script>"
HOSTILE = Product(
    asin="B00HOSTILE",
    name=f"{SCRIPT} trap",
    title=f"{SCRIPT} trap",
    description=SCRIPT,
    bullet_points=(SCRIPT,),
    options={SCRIPT: ('"><img src=x onerror=alert(1)>', "buy now")},
    price_tag=SCRIPT,
    main_image="javascript:alert(1)",
)
RUG_GOAL = Goal(
    asin=RUG.asin,
    instruction="i need a blue rug, and price lower than 30.00 dollars",
    attributes=("easy clean", "machine wash"),
    options={"color": "blue", "size": "2' x 3'"},
    price_upper=30.0,
    name="Woven Rug Hand Made",
    query="rugs",
    product_category="Home \u203a Rugs",
)
LAMP_GOAL = Goal(asin="B0000GONE1", instruction=f"find me a lamp {SCRIPT}", attributes=("bright",), name="Lamp")
GOALS = {"human-0": RUG_GOAL, "human-1": LAMP_GOAL, "human-2": replace(RUG_GOAL, price_upper=9.0)}
BUY_RUG = ("search[rug]", f"click[{RUG.asin.lower()}]", "click[dark blue]", "click[buy now]")


def shop(*more: Product, show_attributes: bool = False) -> Shop:
    products = [replace(RUG, main_image="https://pictures.test/rug.jpg"), LAMP, *CROWD, HOSTILE, *more]
    prices = {product.asin: product.pricing[0] for product in products}
    return Shop.build(products, prices, show_attributes=show_attributes)


SHOP = shop(show_attributes=True)


def site(goals_per_task: int = 1, *, images: bool = False, recordings: Sequence[Recording] = ()) -> Site:
    return Site(shop=SHOP, goals=GOALS, goals_per_task=goals_per_task, images=images, recordings=recordings)


def recorded(*ids: str, actions: Sequence[str] = BUY_RUG, text: str | None = None) -> Trajectory:
    """An attempt at these goals; turn i has 10 x i tokens of context and i of completion."""
    turns = tuple(
        Turn(
            context_ids=(0,) * 10 * number,
            completion_ids=(0,) * number,
            text=f"<IS> state {number} </IS> {action}",
            state=f"state {number}",
            action="act" if "[" in action else "malformed",
            content=action,
            observation=f"page {number + 1} {SCRIPT}",
        )
        for number, action in enumerate(actions, start=1)
    )
    wanted = {id: text or (GOALS[id].instruction if id in GOALS else "a thing") for id in ids}
    questions = tuple(Question(id=id, text=wanted[id], answers=("x",)) for id in ids)
    task = Task(id="+".join(ids), questions=questions, prompt="Buy it.", turn_limit=15)
    return Trajectory(turns=turns, task=task, ended=Ended.ANSWERED, reward=0.6, context="constant")


def recording_of(trajectory: Trajectory) -> Recording:
    return recording(trajectory, lambda kind: GOALS if kind == "human" else {})


_LOOP = asyncio.new_event_loop()


class Client:
    """Asks an application in this thread, and follows where it sends one; what it raises is raised."""

    def __init__(self, app: Any) -> None:
        transport = httpx.ASGITransport(app)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://shop.test", follow_redirects=True)

    def get(self, path: str) -> httpx.Response:
        return _LOOP.run_until_complete(self._client.get(path))

    def post(self, path: str, **body: Any) -> httpx.Response:
        return _LOOP.run_until_complete(self._client.post(path, **body))


class Document(HTMLParser):
    """Elements and visible text of a page, as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._texts: list[str] = []
        self.feed(text)
        self.text = " ".join(" ".join(self._texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    def all(self, *tags: str) -> list[dict[str, str]]:
        return [attributes for tag, attributes in self.elements if tag in tags]

    @property
    def clicks(self) -> list[str]:
        """What its buttons would click."""
        return [button["value"] for button in self.all("button") if button.get("name") == "click"]
