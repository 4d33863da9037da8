"""What waits for a writer: pages of conversations, in the order in which they are read.

    owner a   request 7: page 3, page 4      the owners take turns; of one, the conversation that was asked for last is
              request 5: page 9              read first, and its pages in order
    owner b   request 6: page 1

Owners who share what stands before a slash take turns as one: a client whose system prompt has a clock has a new owner
with each request. A conversation that is asked for again goes on with its latest request. One whose messages have
changed leaves pages behind that nobody asks for any more: they are read last, and where all are too many, the oldest of
the owner with the most go first. What went is given to the writer again if it is asked for.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """A page that is yet to be written."""

    key: str
    owner: str
    until: int
    before: str
    """Key of the page before; empty: it is the first."""
    task: str
    lines: tuple[str, ...]
    exchanges: int
    """Of the conversation, when it was given to the writer."""

    @property
    def characters(self) -> int:
        return sum(map(len, self.lines))

    @property
    def turn(self) -> str:
        """Who takes turns."""
        return self.owner.partition("/")[0]


Queue = dict[str, Unread]


class Waiting:
    """At most `pages` with `characters`, apart from those of the request that adds them."""

    def __init__(self, pages: int, characters: int) -> None:
        self._most_pages, self._most_characters = pages, characters
        self._owners: OrderedDict[str, OrderedDict[int, Queue]] = OrderedDict()
        """By who takes turns, first whose turn it is, and by request."""
        self._queue_of: dict[str, tuple[str, int]] = {}
        self._counts = Counter[str]()
        """Pages by who takes turns."""
        self._characters = 0
        self._requests = count()

    def __len__(self) -> int:
        return len(self._queue_of)

    def __contains__(self, key: object) -> bool:
        return key in self._queue_of

    def request(self, keys: Sequence[str]) -> int:
        """A new request for a conversation, with what waits of it already. Returns its number."""
        number = next(self._requests)
        for key in keys:
            if key in self._queue_of:
                turn, before = self._queue_of[key]
                queues = self._owners[turn]
                page = queues[before].pop(key)
                if not queues[before]:
                    del queues[before]
                queues.setdefault(number, {})[key] = page
                self._queue_of[key] = turn, number
        return number

    def add(self, page: Unread, request: int) -> bool:
        """The page waits behind the others of its request. Returns False, and it does not, where it has no room."""
        while len(self) >= self._most_pages or self._characters >= self._most_characters:
            if not self._make_room(page.turn, request):
                return False
        self._owners.setdefault(page.turn, OrderedDict()).setdefault(request, {})[page.key] = page
        self._queue_of[page.key] = page.turn, request
        self._counts[page.turn] += 1
        self._characters += page.characters
        return True

    def next(self, reading: Collection[str] = ()) -> Unread | None:
        """The page to be read now, which waits until it is taken; none of those that are being read (`reading`, their
        keys), nor one behind a page that waits."""
        for owner, queues in self._owners.items():
            for queue in reversed(queues.values()):
                page = next(iter(queue.values()))
                if page.key not in reading and page.before not in self:
                    self._owners.move_to_end(owner)
                    return page
        return None

    def take(self, key: str) -> None:
        """The page waits no longer, if it did."""
        if key not in self._queue_of:
            return
        owner, request = self._queue_of.pop(key)
        queues = self._owners[owner]
        page = queues[request].pop(key)
        self._characters -= page.characters
        self._counts[owner] -= 1
        if not queues[request]:
            del queues[request]
        if not queues:
            del self._owners[owner], self._counts[owner]

    def _make_room(self, owner: str, request: int) -> bool:
        """The oldest request of the owner with the most pages goes, unless that is this very one."""
        most = max(self._counts, key=lambda turn: self._counts[turn])
        oldest = next(iter(self._owners[most]))
        if (most, oldest) == (owner, request):
            return False
        for key in list(self._owners[most][oldest]):
            self.take(key)
        return True
