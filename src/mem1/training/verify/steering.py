"""Turns that any model makes, so that rewritten contexts can be checked: tags are written, what is inside is sampled.

    <IS> ~ ~ ~ </IS> <query> ~ ~ ~ </query>        ~ a token that the model has drawn

A model that has not learned our tags never makes a second turn, and then nothing shows whether its tokens survive in
the next context as they were sampled. What is written has the log-probability that the sampler gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from mem1.engines.codec import Codec
from mem1.protocol import ANSWER, SUMMARY, Tags

_FREE = 8
"""Drawn tokens inside a pair of tags, at most."""

Plan = Sequence[int | None]
"""The tokens of a completion; None: the drawn one."""


class Turns:
    """Steers `LocalEngine` through valid turns: state and search, or what the end of the context asks for."""

    def __init__(self, codec: Codec, tags: Tags) -> None:
        self.codec, self.tags = codec, tags
        self._plans: dict[tuple[str | None, int], Plan] = {}
        self._openings = {kind: codec.encode(tags.opening(kind)) for kind in tags.action_tags}

    def __call__(self, context: Sequence[int], sampled: Sequence[int], drawn: int, budget: int) -> int:
        """The token at this place of the completion."""
        asked = next((kind for kind, ids in self._openings.items() if tuple(context[-len(ids) :]) == ids), None)
        if (asked, budget) not in self._plans:
            self._plans[asked, budget] = self._plan(asked, budget)
        plan, place = self._plans[asked, budget], len(sampled)
        written = plan[place] if place < len(plan) else drawn
        return self._plain(drawn) if written is None else written

    def _plan(self, asked: str | None, budget: int) -> Plan:
        """Empty where the budget has no room for the tags."""
        tags, encode = self.tags, self.codec.encode
        if asked is not None:
            written = [(), encode(f"</{tags.action_tags[asked]}>")]
        else:
            acts = next(tag for kind, tag in tags.actions if kind not in (ANSWER, SUMMARY))
            written = [encode(f"<{tags.state}>"), encode(f"</{tags.state}><{acts}>"), encode(f"</{acts}>")]
        free = min(_FREE, (budget - sum(map(len, written))) // (len(written) - 1))
        if free < 1:
            return ()
        plan: list[int | None] = [*written[0]]
        for ids in written[1:]:
            plan += [self._word, *[None] * (free - 1), *ids]
        return plan

    def _plain(self, token: int) -> int:
        """The token, or a word in its place where it could open or close a tag."""
        return self._word if token in self._marks or "<" in self.codec.decode((token,)) else token

    @cached_property
    def _marks(self) -> frozenset[int]:
        return frozenset(self.codec.tokenizer.get_added_tokens_decoder())

    @cached_property
    def _word(self) -> int:
        """Some token that is letters, so that nothing between tags is empty."""
        ids = range(self.codec.vocab_size)
        return next(i for i in ids if i not in self._marks and self.codec.decode((i,)).strip().isalpha())
