"""The site as an ASGI application, with its visitors.

    GET  /                    the goals                     POST /shop                goal=17, or goal=random
    GET  /shop/VISITOR/STEP   a page of the shop            POST /shop/VISITOR/STEP   query=…, or click=… with options
    GET  /replay              the recordings                GET  /replay/1/3          the first, before its third turn

Pages load nothing from elsewhere and contain no scripts; every text of the shop is escaped. All pages of a visit are
kept, so that the browser's Back button works. A step from an earlier page discards the pages after it, and repeating a
step, as by a double click, counts once:

    trails = Trails()
    id = trails.open(shop.start([goal]))       "hXv0…"            the visitor's address is /shop/hXv0…/0
    trails.walk(id, 0, searched)               1                  and after a search /shop/hXv0…/1
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException

from mem1.envs.webshop import pages
from mem1.envs.webshop.catalogue import KINDS, Goal, goals_by_id, prices
from mem1.envs.webshop.files import load
from mem1.envs.webshop.invented import invent
from mem1.envs.webshop.pages import Session, search_for
from mem1.envs.webshop.shop import RESULTS, Shop
from mem1.errors import UserError
from mem1.net.requests import CapacityLimit, ClientGone, Refused, read_body, unless_gone

from . import views
from .recordings import Recording, read_recordings
from .views import dollars, option_text


class TrailLost(Exception):
    """There is no such visitor or page, or it has been discarded."""


class TrailTooLong(Exception):
    """The visitor has reached the maximum number of pages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trails:
    """At most `most` visitors; the one away longest is discarded first."""

    most: int = 1000
    steps: int = 500
    """Maximum number of pages per visitor."""
    idle_s: float = 12 * 3600.0
    now: Callable[[], float] = time.monotonic
    _by_id: OrderedDict[str, tuple[float, list[Session]]] = field(default_factory=OrderedDict)
    """Id -> (time of the last request in seconds, sessions); longest away first."""

    def open(self, session: Session) -> str:
        """Add a visitor, and return an id that cannot be guessed."""
        self._forget()
        while len(self._by_id) >= self.most:
            self._by_id.popitem(last=False)
        id = secrets.token_urlsafe(16)
        self._by_id[id] = (self.now(), [session])
        return id

    def at(self, id: str, step: int) -> Session:
        """The session at this step. Raises TrailLost."""
        sessions = self._sessions(id)
        if not 0 <= step < len(sessions):
            raise TrailLost
        return sessions[step]

    def walk(self, id: str, step: int, session: Session) -> int:
        """Store `session` after `step`, and return its step. Raises TrailLost and TrailTooLong."""
        self.at(id, step)
        if step + 1 >= self.steps:
            raise TrailTooLong
        self._sessions(id)[step + 1 :] = [session]
        return step + 1

    def _sessions(self, id: str) -> list[Session]:
        self._forget()
        if id not in self._by_id:
            raise TrailLost
        _, sessions = self._by_id.pop(id)
        self._by_id[id] = (self.now(), sessions)
        return sessions

    def _forget(self) -> None:
        while self._by_id and self.now() - next(iter(self._by_id.values()))[0] > self.idle_s:
            self._by_id.popitem(last=False)


_HERE = Path(__file__).parent
_FORM_BYTES = 1 << 16
_ALL_FORM_BYTES = 1 << 23
"""Maximum bytes of all forms that are being read."""
_FORM_FIELDS = 100
_WAITING = 100
"""Maximum number of requests whose page is being made or is waiting."""
_CLIENT_GONE = 499
"""Status that nobody sees."""
_LISTED = 20
"""Goals or recordings per page."""
_DIGITS = 9
_ASSETS = {"style.css": "text/css", "keys.js": "text/javascript"}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The content of the site."""

    shop: Shop
    goals: Mapping[str, Goal]
    """Goals to choose from, by id, in order."""
    goals_per_task: int = 1
    """Goals per visit: the chosen one and those after it."""
    images: bool = False
    """Whether to load pictures from the sellers' servers, which then see the visitor."""
    recordings: Sequence[Recording] = ()


def make_app(site: Site, trails: Trails | None = None) -> FastAPI:
    """The application. Raises ValueError for fewer goals than a visit needs."""
    ids, goals = tuple(site.goals), tuple(site.goals.values())
    last = len(goals) - site.goals_per_task
    if last < 0:
        raise ValueError(f"{len(goals)} goals are too few for {site.goals_per_task} per visit")
    visitors = trails or Trails()
    show = _Pages(site)
    clerk, line, forms = (
        ThreadPoolExecutor(1),
        CapacityLimit(_WAITING, "requests"),
        CapacityLimit(_ALL_FORM_BYTES, "bytes of forms"),
    )

    async def served(request: Request, work: Callable[[], T]) -> T:
        """Searches and renders one page at a time, in a thread beside the loop that reads requests."""
        with line.holding(1):
            return await unless_gone(request, clerk.submit(work))

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return show("error", status=error.status_code, title=HTTPStatus(error.status_code).phrase, why=error.detail)

    @app.exception_handler(Refused)
    async def too_much(request: Request, refused: Refused) -> Response:
        page = show("error", status=refused.status, title=HTTPStatus(refused.status).phrase, why=str(refused))
        page.headers.update(refused.headers)
        return page

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: ClientGone) -> Response:
        return Response(status_code=_CLIENT_GONE)

    @app.exception_handler(TrailLost)
    async def lost(request: Request, error: TrailLost) -> Response:
        why = "There is no such visit: it has ended, or the server was started again. Choose a goal to begin anew."
        return show("error", status=404, title="This visit is over", why=why)

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return show("error", status=500, title="Something broke", why="The fault is ours; the terminal says more.")

    @app.get("/")
    async def start(request: Request) -> Response:
        shown = _slice(request, last + 1)
        return show("start", listed=views.Listed.of(shown, last + 1, _LISTED), ids=ids, goals=goals)

    @app.post("/shop")
    async def begin(request: Request) -> Response:
        asked = (await _form(request, forms)).get("goal", "")
        number = random.randint(0, last) if asked == "random" else _number(asked)
        if number is None or number > last:
            raise HTTPException(404, f"There is no such goal; they are numbered from 0 to {last:,}.")
        first = await served(request, lambda: site.shop.start(goals[number : number + site.goals_per_task]))
        visitor = visitors.open(first)
        return _redirect(f"/shop/{visitor}/0")

    @app.get("/shop/{visitor}/{step}")
    async def look(request: Request, visitor: str, step: str) -> Response:
        nothing = "nothing" in request.query_params
        session = visitors.at(visitor, _known(step))

        def drawn() -> Response:
            view = views.of_page(site.shop, session)
            return show(view.template, address=f"/shop/{visitor}/{step}", nothing=nothing, view=view)

        return await served(request, drawn)

    @app.post("/shop/{visitor}/{step}")
    async def act(request: Request, visitor: str, step: str) -> Response:
        session = visitors.at(visitor, _known(step))
        form = await _form(request, forms)
        after = await served(request, lambda: _after(site.shop, session, form))
        if after == session:
            return _redirect(f"/shop/{visitor}/{step}?nothing")
        try:
            return _redirect(f"/shop/{visitor}/{visitors.walk(visitor, _known(step), after)}")
        except TrailTooLong as error:
            raise HTTPException(409, "This visit has become too long; choose a goal to begin another.") from error

    @app.get("/replay")
    async def recordings(request: Request) -> Response:
        shown = _slice(request, len(site.recordings))
        return show("recordings", listed=views.Listed.of(shown, len(site.recordings), _LISTED))

    @app.get("/replay/{number}/{step}")
    async def replay(request: Request, number: str, step: str) -> Response:
        position, at = _known(number), _known(step)
        if not (1 <= position <= len(site.recordings) and 1 <= at <= len(site.recordings[position - 1].steps) + 1):
            raise HTTPException(404, f"No such recording or step; there are {len(site.recordings):,} recordings.")
        recording = site.recordings[position - 1]

        def drawn() -> Response:
            return show("replay", number=position, at=at, view=views.of_recording(site.shop, recording, at))

        return await served(request, drawn)

    @app.get("/{name}")
    async def asset(name: str) -> Response:
        if name not in _ASSETS:
            raise HTTPException(404, "There is no such page.")
        return Response((_HERE / name).read_bytes(), media_type=_ASSETS[name], headers=_NO_SNIFFING)

    return app


class _Pages:
    def __init__(self, site: Site) -> None:
        self._site = site
        images = "data: https:" if site.images else "data:"
        self._headers = {
            **_NO_SNIFFING,
            "Cache-Control": "no-store",
            "Content-Security-Policy": (
                f"default-src 'none'; style-src 'self'; script-src 'self'; img-src {images}; form-action 'self'; "
                "base-uri 'none'; frame-ancestors 'none'"
            ),
            # with "no-referrer" a browser would not reveal that a form comes from our own page
            "Referrer-Policy": "same-origin",
        }

    def __call__(self, name: str, *, status: int = 200, **values: Any) -> Response:
        page = _templates().get_template(f"{name}.html.jinja").render(values, site=self._site)
        # half a surrogate pair, possible in JSON but not in UTF-8, becomes a question mark
        return Response(page.encode("utf-8", "replace"), status, self._headers, "text/html; charset=utf-8")


@cache
def _templates() -> Environment:
    """The templates, compiled once per process."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(pages=pages, most=RESULTS, dollars=dollars, option_text=option_text)
    return environment


_NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}


def _after(shop: Shop, session: Session, form: Mapping[str, str]) -> Session:
    """The session after a form, which may come from anybody; the same session if it has no effect.

    Any button on an item page also sends the page's radio buttons. They identify the option, which the text of a click
    cannot do if two options share a value.
    """
    if session.page == "item":
        chosen = dict(session.options)
        for number, (name, values) in enumerate(shop.products[session.asin].options.items()):
            if (value := form.get(f"option-{number}")) in values:
                chosen[name.lower()] = str(value)
        session = replace(session, options=chosen)
    if "query" in form:
        return shop.step(session, search_for(form["query"])) if session.page == "search" else session
    return shop.step(session, f"click[{form.get('click', '')}]")


async def _form(request: Request, room: CapacityLimit) -> dict[str, str]:
    """The fields of a form; the last of several with one name counts."""
    body = await read_body(request, largest=_FORM_BYTES, instead="fill it in with less", room=room)
    try:
        return dict(parse_qsl(body.decode("utf-8", "replace"), max_num_fields=_FORM_FIELDS, errors="replace"))
    except ValueError as error:
        raise HTTPException(400, "The form cannot be read.") from error


def _number(text: str) -> int | None:
    """The number; None if it cannot be that of a page, a goal or a recording."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS else None


def _known(text: str) -> int:
    number = _number(text)
    if number is None:
        raise HTTPException(404, "There is no such page.")
    return number


def _slice(request: Request, total: int) -> int:
    """Index of the first listed entry, from ?from=."""
    return min(_number(request.query_params.get("from", "0")) or 0, max(total - 1, 0))


def _redirect(address: str) -> Response:
    return RedirectResponse(address, status_code=303)


def open_site(
    catalogue: str | os.PathLike[str] | None,
    kind: str,
    *,
    goals_per_task: int = 1,
    replay: str | os.PathLike[str] | None = None,
    show_attributes: bool = False,
    images: bool = False,
    seed: int = 0,
) -> Site:
    """The site of a catalogue (None: the invented one of this seed, evaluation half).

        open_site(None, "synthetic")                 an invented shop with about 2,000 goals
        open_site("shop.jsonl.gz", "human", replay="runs/a/trajectories.jsonl")

    Raises UserError for an unreadable catalogue or recording, and for too few goals.
    """
    products = invent(seed, "evaluation") if catalogue is None else load(catalogue)
    drawn = prices(products.products, seed=seed)

    @lru_cache
    def goals_of(name: str) -> Mapping[str, Goal]:
        return goals_by_id(products, drawn, name, seed=seed)

    goals = goals_of(kind)
    if not 1 <= goals_per_task <= len(goals):
        others = [f"--goals {one}" for one in KINDS if one != kind and len(goals_of(one)) >= goals_per_task]
        shop = catalogue or "the invented shop"
        raise UserError(
            f"{shop}: {len(goals)} {kind} goals are too few for {goals_per_task} per visit; try "
            + (" or ".join(others) or "another catalogue")
        )
    return Site(
        shop=Shop.build(products.products, drawn, show_attributes=show_attributes),
        goals=goals,
        goals_per_task=goals_per_task,
        images=images,
        recordings=read_recordings(replay, lambda name: goals_of(name) if name in KINDS else {}) if replay else (),
    )
