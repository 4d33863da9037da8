"""An agent in an office with a shop: mails, lists of orders, pages of products, and a calendar, all invented.

assistant   read_mail({"id": 1041})
tool        From: Corin Ashmont, Pellick Timber ... invoice INV-482130 ... 4,318.50 dollars ... due on 3 May 2027 ...
fact        The invoice INV-482130 of Pellick Timber is over ____ dollars.   4,318.50, near INV-482130, until then:
tool        From: Corin Ashmont ... The amount of INV-482130 was wrong. Please pay 4,118.50 dollars.
fact        After a correction: the invoice INV-482130 ...                   4,118.50; stale: 4,318.50
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from mem1.envs.webshop.catalogue import Product
from mem1.envs.webshop.invented import invent
from mem1.extras.probe.kinds.parts import Exchange, Scene, Told, Wanted, cut, dated, in_half, plain
from mem1.tasks.atlas.world import split_of_name
from mem1.tasks.compose import Split
from mem1.tasks.english import names
from mem1.tasks.english.world import MONTHS

_YEAR = 2027
_PRODUCTS = 400
_ORDERS = 6
"""Most orders of a list."""
_SUBJECTS = ("delivery", "renewal", "repair", "workshop", "catalogue", "consulting", "packaging", "training", "audit")
_OPENINGS = (
    "I hope this finds you well.",
    "Thank you for your call on Monday.",
    "As agreed, here are the details in writing.",
    "Sorry for the late reply; half of the office was away.",
    "Following up on our talk at the fair:",
)
_CHAT = (
    "The printer on our floor is out of order again, so I send this as plain text.",
    "If anything is unclear, call the front desk and ask for me; I am there until five on most days.",
    "My colleague has looked over the list and found nothing to add.",
    "We had some trouble with the lift last week, but deliveries are not affected.",
    "Please keep this mail with the others, as the paper copy may take a few days.",
    "The weather has slowed down the trucks a little; nothing to worry about so far.",
    "By the way, the new coffee machine is a success and nobody misses the old one.",
    "I have put the accounts team in copy, who usually answer within a day or two.",
    "Let me know whether the usual form is fine, or whether you need it signed by two people.",
    "The rest is as last year, and I do not expect any surprises.",
)
_STATUS = ("paid", "shipped", "waiting", "returned", "packed")
_CLOZES: Mapping[str, tuple[str, str]] = {
    "amount": ("number", "The invoice {} is over ____ dollars."),
    "due": ("date", "The invoice {} is due on ____."),
    "day": ("date", "The appointment {} is on ____."),
    "room": ("identifier", "The appointment {} takes place in room ____."),
}
"""What may be corrected -> kind of fact, cloze about an invoice or an appointment."""
_CORRECTIONS: Mapping[str, tuple[str, ...]] = {
    "amount": (
        "The amount of {} was wrong. Please pay {new} dollars, not {old}.",
        "We made a mistake in {}: the right amount is {new} dollars.",
    ),
    "due": ("We can give you more time for {}: it is due on {new}, not on {old}.", "The new due date of {} is {new}."),
    "day": ("{} had to be moved to {new}.", "We cannot keep {old} for {}. It will be on {new}."),
    "room": ("{} takes place in room {new}, as {old} is being painted.", "New room for {}: {new}."),
}


def make_office(wanted: Wanted) -> Scene:
    """See `KINDS`."""
    return Scene(
        system="You are the assistant of an office that runs a shop. You read mails, orders, the calendar and the "
        "pages of the shop with your tools.",
        task="Go through what has come in, item by item. Do not answer anything yet. At the end I will ask you about "
        "invoices, amounts, dates, rooms, people and orders, as they stand then, and about what I tell you on the way.",
        note="[sticky note] {}",
        exchanges=_exchanges(wanted, _Desk(wanted.random, wanted.half)),
    )


def _exchanges(wanted: Wanted, desk: _Desk) -> Iterator[Exchange]:
    random, words = wanted.random, wanted.settings.result_words
    shelf = invent(random.randrange(10**9), wanted.half, _PRODUCTS).products
    kinds: tuple[Callable[[], Exchange], ...] = (
        *(lambda: _invoice(desk, words), lambda: _appointment(desk, words), lambda: _introduction(desk, words)),
        *(lambda: _orders(desk, random.choice(shelf), shelf), lambda: _page(random.choice(shelf), words)),
    )
    while True:
        due = [key for key in wanted.taken if key in desk.open]
        if wanted.corrects(len(due)):
            yield _correction(desk, random.choice(due), words)
        else:
            yield random.choice(kinds)()


@dataclass(slots=True)
class _Desk:
    """Draws what mails are about."""

    random: Random
    half: Split
    open: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Key -> (what may be corrected, its subject, its value), until it is."""
    mails: Iterator[int] = field(default_factory=lambda: itertools.count(1001))
    numbers: set[str] = field(default_factory=set)
    """All that were given out."""
    strangers: list[str] = field(default_factory=list)
    """Firms that have not introduced anybody."""

    def __post_init__(self) -> None:
        firms = names.firms(self.half)
        self.strangers = self.random.sample(firms, len(firms))

    def person(self) -> str:
        while True:
            first, last = self.random.choice(names.FIRST_NAMES)[0], self.random.choice(names.LAST_NAMES)
            if split_of_name(first, last) == self.half:
                return f"{first} {last}"

    def firm(self) -> str:
        return self.random.choice(names.firms(self.half))

    def number(self, prefix: str) -> str:
        """A new identifier of six digits: INV-4821300."""
        while True:
            found = f"{prefix}-{self.random.randrange(100_000, 1_000_000)}"
            if in_half(found, self.half) and found not in self.numbers:
                self.numbers.add(found)
                return found

    def value(self, what: str) -> str:
        random = self.random
        if what == "amount":
            return f"{random.randrange(1_000, 20_000):,}.{random.choice((10, 25, 50, 75, 90))}"
        if what == "room":
            return f"{random.choice('ABCDEFGH')}-{random.randrange(101, 500)}"
        return f"{random.randint(1, 28)} {random.choice(MONTHS)} {_YEAR}"

    def told(self, what: str, subject: str) -> tuple[str, Told]:
        """(value, fact) that may be corrected later."""
        value, key = self.value(what), f"{subject}/{what}"
        self.open[key] = what, subject, value
        kind, cloze = _CLOZES[what]
        cloze, label = cloze.format(subject), f"{subject} {what}"
        return value, Told(kind=kind, cloze=cloze, forms=_forms(what, value), subject=subject, key=key, label=label)

    def mail(self, sender: str, about: str, body: list[str], told: tuple[Told, ...], words: int) -> Exchange:
        """A mail with some chat around what it says."""
        random = self.random
        chat = random.sample(_CHAT, random.randint(1, 4))
        size = sum(len(sentence.split()) for sentence in body)
        kept = [sentence for sentence in chat if (size := size + len(sentence.split())) <= words - 20]
        at = random.randint(0, len(kept))
        text = " ".join((random.choice(_OPENINGS), *kept[:at], *body, *kept[at:]))
        name = next(self.mails)
        result = f"Mail {name}\nFrom: {sender}\nSubject: {about}\n\n{text}\n\nBest regards\n{sender.split(',')[0]}"
        return Exchange("read_mail", {"id": name}, result, told)


def _forms(what: str, value: str) -> tuple[str, ...]:
    if what in ("due", "day"):
        day, month, year = value.split()
        return dated(int(day), month, int(year))
    return plain(value)


def _invoice(desk: _Desk, words: int) -> Exchange:
    firm, number, about = desk.firm(), desk.number("INV"), desk.random.choice(_SUBJECTS)
    amount, over = desk.told("amount", number)
    day, due = desk.told("due", number)
    body = [
        f"Our invoice for the {about} has the number {number}.",
        f"It is over {amount} dollars.",
        f"Payment is due on {day}.",
    ]
    cloze = f"The invoice of {firm} for the {about} has the number ____."
    return desk.mail(
        *(f"{desk.person()}, {firm}", f"Invoice for the {about}", body),
        (
            Told(kind="identifier", cloze=cloze, forms=(number,), subject=firm, label=f"{firm} {about} invoice"),
            over,
            due,
        ),
        words,
    )


def _appointment(desk: _Desk, words: int) -> Exchange:
    number, about, host = desk.number("APT"), desk.random.choice(_SUBJECTS), desk.person()
    day, on = desk.told("day", number)
    room, where = desk.told("room", number)
    body = [f"The appointment {number} about the {about} is on {day}.", f"We meet in room {room}."]
    cloze, label = f"The host of the appointment {number} is ____.", f"{number} host"
    name = Told(kind="name", cloze=cloze, forms=(host,), subject=number, label=label)
    return desk.mail(f"{host}, {desk.firm()}", f"Appointment about the {about}", body, (name, on, where), words)


def _introduction(desk: _Desk, words: int) -> Exchange:
    """At most one of each firm, as a second would overtake it."""
    if not desk.strangers:
        return _invoice(desk, words)
    firm, about, new = desk.strangers.pop(), desk.random.choice(_SUBJECTS), desk.person()
    number = desk.number("CUS")
    body = [f"From now on {new} looks after the {about} at {firm}.", f"Our customer number with you is {number}."]
    told = (
        Told(
            kind="name",
            cloze=f"At {firm}, the {about} is looked after by ____.",
            forms=(new,),
            subject=firm,
            label=f"{firm} {about}",
        ),
        Told(
            kind="identifier",
            cloze=f"The customer number of {firm} is ____.",
            forms=(number,),
            subject=firm,
            label=f"{firm} customer number",
        ),
    )
    return desk.mail(f"{desk.person()}, {firm}", "A change in our team", body, told, words)


def _correction(desk: _Desk, key: str, words: int) -> Exchange:
    what, subject, old = desk.open.pop(key)
    new = old
    while new == old:
        new = desk.value(what)
    text = desk.random.choice(_CORRECTIONS[what]).format(subject, new=new, old=old)
    cloze = _CLOZES[what][1].format(subject)
    told = Told(
        kind="correction",
        cloze=f"After a correction: {cloze[0].lower()}{cloze[1:]}",
        forms=_forms(what, new),
        subject=subject,
        key=key,
        label=f"{subject} {what}",
    )
    return desk.mail(f"{desk.person()}, {desk.firm()}", f"About {subject}", [text], (told,), words)


def _orders(desk: _Desk, first: Product, shelf: Sequence[Product]) -> Exchange:
    random, customer = desk.random, desk.person()
    lines = [f"Orders of {customer}:"]
    told: list[Told] = []
    for product in (first, *random.sample(shelf, random.randint(2, _ORDERS - 1))):
        number, day = desk.number("ORD"), desk.value("day")
        sum_ = f"{random.randrange(2, 90) * product.pricing[0]:,.2f}"
        lines.append(f"{number} | {product.title} ({product.asin}) | {sum_} dollars | {random.choice(_STATUS)} | {day}")
        cloze = f"The order of {customer} for the {product.title} ({product.asin}) has the number ____."
        label = f"{customer} order {product.asin}"
        told.append(Told(kind="identifier", cloze=cloze, forms=(number,), subject=customer, label=label))
        cloze = f"The order {number} comes to ____ dollars."
        told.append(Told(kind="number", cloze=cloze, forms=plain(sum_), subject=number, label=f"{number} sum"))
        cloze = f"The order {number} was placed on ____."
        told.append(Told(kind="date", cloze=cloze, forms=_forms("day", day), subject=number, label=f"{number} day"))
        cloze = f"The order {number} was placed by ____."
        told.append(Told(kind="name", cloze=cloze, forms=(customer,), subject=number, label=f"{number} customer"))
    return Exchange("list_orders", {"customer": customer}, "\n".join(lines), tuple(told))


def _page(product: Product, words: int) -> Exchange:
    lines = [
        f"{product.title} ({product.asin})",
        f"Price: {product.price_tag}    Rating: {product.rating}    {product.product_category}",
        *(f"{name}: {', '.join(values)}" for name, values in product.options.items()),
        cut(product.description, words // 2),
        *(f"- {point}" for point in product.bullet_points),
        *(f"Review, {review.score}: {review.title}. {review.body}" for review in product.reviews),
    ]
    code, price = product.asin, product.price_tag.replace("$", "")
    cloze = f"The shop sells the {product.title} at {product.price_tag} under the code ____."
    told = [Told(kind="identifier", cloze=cloze, forms=(code,), label=f"{product.title} code")]
    if len(product.pricing) == 1:
        cloze = f"The price of {code} is ____ dollars."
        told.append(Told(kind="number", cloze=cloze, forms=(price,), subject=code, label=f"{code} price"))
    return Exchange("open_product", {"product": product.title}, "\n".join(lines), tuple(told))
