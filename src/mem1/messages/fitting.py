"""Makes a prompt fit its bound, step by step, and refuses it only where nothing is left to give up.

1. older results give way to handles                     5. the newest results are shortened
2. unsigned thoughts before the last message go          6. older messages of the user are shortened, then go
3. of the user's messages, what is over half the bound   7. a newest exchange over half the bound leaves a line
   goes with its exchanges, then older exchanges go      8. task, last message and system are cut in their middle
4. the state is cut to half                              9. the state is cut to its least; the newest goes
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from mem1.errors import UserError
from mem1.messages.assembly import whole_and_gone
from mem1.messages.bounds import IMAGE_TOKENS, Bounds, tokens_of
from mem1.messages.cuts import Cuts, level, without_unsigned_thoughts
from mem1.messages.selecting import Retention, Seen, waits
from mem1.messages.transcript import Exchange, Form, Message, Part, User, images, texts

_LEAST = 40
"""Tokens of a result or a message that is shortened."""
_LEAST_STATE = 25
_LEFT = (Retention.NOTES, Retention.NOTHING)


class Fitting:
    """What may leave one conversation's prompt.

    `stays` and `cuts` are what `assemble` reads; the steps change them.
    """

    def __init__(
        self,
        system: Sequence[Message],
        parts: Sequence[Part],
        stays: dict[int, Retention],
        cuts: Cuts,
        form: Form,
        bounds: Bounds,
        pending: Collection[str],
    ) -> None:
        assert bounds.prompt is not None
        self._system, self._parts, self._stays, self._cuts = system, parts, stays, cuts
        self._form, self._bounds, self._bound = form, bounds, bounds.prompt
        self._block = 0
        """Tokens of the state."""
        self._last = max(stays, default=-1)
        self._waiting = {at for at in stays if waits(parts[at], pending)}
        self._users = [at for at, part in enumerate(parts) if isinstance(part, User)]

    def fit(self, over: int, block: int, measured: Callable[[], tuple[int, int]]) -> None:
        """Takes steps until no token is over.

        `block`: tokens of the state. `measured`: assembles anew, and returns both. Raises UserError where the steps do
        not suffice.
        """
        self._block = block
        for said, step in (
            ("", self._older_results),
            ("thoughts of earlier turns were left out", self._thoughts),
            ("older messages of the user were left out", self._most_users),
            ("", self._older_exchanges),
            ("the state was cut to half", lambda _: self._state(self._block // 2)),
            ("the newest results were shortened", self._newest_results),
            ("older messages of the user were shortened", self._older_users),
            ("older messages of the user were left out", self._all_users),
            ("the newest exchange was left out", self._large_newest),
            ("the task or the system message was shortened", self._pinned),
            ("the state was cut to its least", lambda _: self._state(_LEAST_STATE)),
            ("the newest exchange was left out", self._newest),
        ):
            while over > 0 and step(over):
                if said and said not in self._cuts.said:
                    self._cuts.said.append(said)
                over, self._block = measured()
        if over > 0:
            raise UserError(
                f"the messages exceed the bound of {self._bound:,} tokens by {over:,} although only the least of the "
                "pinned ones, the state and what waits for a result are left; raise the bound of the prompt "
                "(--prompt-tokens)"
            )

    def _older_results(self, over: int) -> bool:
        changed = False
        for at, part in self._older(Retention.WHOLE):
            if over > 0:
                for result in part.results:
                    whole, gone = whole_and_gone(result, self._form, self._bounds)
                    over -= whole - gone
                self._stays[at] = Retention.ARCHIVED
                changed = True
        return changed

    def _thoughts(self, over: int) -> bool:
        """Servers want thoughts back only since the last message of the user."""
        changed = False
        for at, part in self._older(Retention.WHOLE, Retention.ARCHIVED, Retention.MASKED):
            if over > 0 and at < self._users[-1] and at not in self._cuts.thoughts:
                left = without_unsigned_thoughts(part.said)
                saved = self._tokens(part.said) - self._tokens(left)
                if saved > 0:
                    over -= saved
                    self._cuts.thoughts.add(at)
                    changed = True
        return changed

    def _most_users(self, over: int) -> bool:
        """A message counts here as an eighth of the bound at most, as it may be shortened later."""
        sizes = {at: min(self._user_tokens(at), self._bound // 8) for at in self._older_user_parts()}
        return self._leave(sizes, sum(sizes.values()) - self._bound // 2)

    def _all_users(self, over: int) -> bool:
        return self._leave({at: self._user_tokens(at) for at in self._older_user_parts()}, over)

    def _leave(self, sizes: Mapping[int, int], over: int) -> bool:
        """The oldest messages leave until so many tokens are saved, each with its exchanges."""
        changed = False
        for at in sorted(sizes):
            if over <= 0:
                break
            over -= sizes[at]
            self._cuts.gone.add(at)
            changed = True
            for behind in range(at + 1, len(self._parts)):
                if isinstance(self._parts[behind], User):
                    break
                if behind != self._last and behind not in self._waiting:
                    self._stays[behind] = Retention.NOTHING
        return changed

    def _older_exchanges(self, over: int) -> bool:
        changed = False
        for at, part in self._older(Retention.WHOLE, Retention.ARCHIVED, Retention.MASKED):
            if over > 0:
                gone = sum(whole_and_gone(result, self._form, self._bounds)[1] for result in part.results)
                said = without_unsigned_thoughts(part.said) if at in self._cuts.thoughts else part.said
                over -= self._tokens(said) + gone
                self._stays[at] = Retention.NOTHING
                changed = True
        return changed

    def _state(self, limit: int) -> bool:
        limit = max(limit, _LEAST_STATE)
        before = self._cuts.state
        if self._block <= limit or (before is not None and (before <= limit or limit > _LEAST_STATE)):
            return False
        self._cuts.state = limit
        return True

    def _newest_results(self, over: int) -> bool:
        """Of the newest exchange and of those that wait."""
        sizes: dict[tuple[int, int], int] = {}
        for at in {self._last, *self._waiting} & self._stays.keys():
            part = self._parts[at]
            assert isinstance(part, Exchange)
            if self._stays[at] is not Retention.WHOLE:
                continue
            pictures = sum(images(self._form.content_of(result)) for result in part.results)
            if pictures and at not in self._cuts.images:
                self._cuts.images[at] = pictures
            for number, result in enumerate(part.results):
                text = self._bounds.count(texts(self._form.content_of(result)))
                sizes[at, number] = min(text, *self._limits(at))
        most = level(list(sizes.values()), over, _LEAST)
        changed = False
        for at in {at for (at, _), size in sizes.items() if size > most}:
            self._cuts.results[at] = most
            changed = True
        if not changed:
            for at, left in self._cuts.images.items():
                if left:
                    self._cuts.images[at] = max(0, left - -(-over // IMAGE_TOKENS))
                    return True
        return changed

    def _limits(self, at: int) -> list[int]:
        limits = [self._bounds.result, self._cuts.results.get(at)]
        return [limit for limit in limits if limit is not None] or [1 << 60]

    def _older_users(self, over: int) -> bool:
        return self._shorten(self._older_user_parts(), over)

    def _shorten(self, users: Sequence[int], over: int, beside: Sequence[int] = ()) -> bool:
        """Messages to a common length. `beside`: tokens of what is shortened with them, elsewhere."""
        sizes = {at: self._user_tokens(at) for at in users}
        most = level([*sizes.values(), *beside], over, _LEAST)
        changed = False
        for at, size in sizes.items():
            if size > most and self._cuts.users.get(at, most + 1) > most:
                self._cuts.users[at] = most
                changed = True
        if any(size > most for size in beside) and (self._cuts.system is None or self._cuts.system > most):
            self._cuts.system = most
            changed = True
        return changed

    def _pinned(self, over: int) -> bool:
        system = [
            min(self._tokens([message]), self._tokens([message]) if self._cuts.system is None else self._cuts.system)
            for message in self._system
        ]
        return self._shorten([at for at in self._users if at not in self._cuts.gone], over, system)

    def _large_newest(self, over: int) -> bool:
        part = self._parts[self._last] if self._last >= 0 else None
        if not isinstance(part, Exchange):
            return False
        least = _LEAST * len(part.results) + self._tokens(part.said)
        return least > self._bound // 2 and self._newest(over)

    def _newest(self, over: int) -> bool:
        at = self._last
        if at < 0 or at in self._waiting or self._stays[at] in _LEFT:
            return False
        part = self._parts[at]
        assert isinstance(part, Exchange)
        self._stays[at] = Retention.NOTES
        self._cuts.notes[at] = tuple(Seen(part, self._form, self._bounds).notes)
        return True

    def _older(self, *stays: Retention) -> list[tuple[int, Exchange]]:
        """Exchanges that may leave, oldest first."""
        found = [(at, self._parts[at]) for at in sorted(self._stays) if self._stays[at] in stays]
        return [
            (at, part)
            for at, part in found
            if isinstance(part, Exchange) and at != self._last and at not in self._waiting
        ]

    def _older_user_parts(self) -> list[int]:
        """Messages of the user between the task and what came last: all behind the newest exchange, or one."""
        newest = min([at for at in self._users if at > self._last], default=self._users[-1])
        return [at for at in self._users[1:] if at < newest and at not in self._cuts.gone]

    def _user_tokens(self, at: int) -> int:
        part = self._parts[at]
        assert isinstance(part, User)
        whole = self._tokens([part.message])
        return min(whole, self._cuts.users.get(at, whole))

    def _tokens(self, messages: Sequence[Message]) -> int:
        return tokens_of(messages, self._bounds.count)
