"""Makes any model produce valid turns, so that rewritten contexts can be checked.

    <IS> ~ ~ ~ </IS> <query> ~ ~ ~ </query>        ~ a token drawn from the model

The tags are forced, and the tokens between them are sampled. A model that has not learned the tags would never reach a
second turn, so nothing would show whether its tokens enter the next context unchanged. Forced tokens get the
log-probabilities that the sampler assigns to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from mem1.engines.codec import Codec
from mem1.protocol import ANSWER, SUMMARY, Tags

_FREE = 8
"""Most sampled tokens between a pair of tags."""

Plan = Sequence[int | None]
"""The forced tokens of a completion; None: the sampled one is kept."""


class ForcedTags:
    """Steers `LocalEngine` through valid turns: a state and a search, or the action that ends the context."""

    def __init__(self, codec: Codec, tags: Tags) -> None:
        self.codec, self.tags = codec, tags
        self._plans: dict[tuple[str | None, int], Plan] = {}
        self._openings = {kind: codec.encode(tags.opening(kind)) for kind in tags.action_tags}

    def __call__(self, context: Sequence[int], sampled: Sequence[int], drawn: int, budget: int) -> int:
        """The next token of the completion, given the tokens before it and the one drawn."""
        opened = next((kind for kind, ids in self._openings.items() if tuple(context[-len(ids) :]) == ids), None)
        if (opened, budget) not in self._plans:
            self._plans[opened, budget] = self._plan(opened, budget)
        plan, position = self._plans[opened, budget], len(sampled)
        forced = plan[position] if position < len(plan) else drawn
        return self._plain(drawn) if forced is None else forced

    def _plan(self, opened: str | None, budget: int) -> Plan:
        """`opened`: the action whose tag ends the context. Empty where the budget has no room for the tags."""
        tags, encode = self.tags, self.codec.encode
        if opened is not None:
            forced = [(), encode(f"</{tags.action_tags[opened]}>")]
        else:
            action = next(tag for kind, tag in tags.actions if kind not in (ANSWER, SUMMARY))
            forced = [encode(f"<{tags.state}>"), encode(f"</{tags.state}><{action}>"), encode(f"</{action}>")]
        free = min(_FREE, (budget - sum(map(len, forced))) // (len(forced) - 1))
        if free < 1:
            return ()
        plan: list[int | None] = [*forced[0]]
        for ids in forced[1:]:
            plan += [self._word, *[None] * (free - 1), *ids]
        return plan

    def _plain(self, token: int) -> int:
        """The token, or a word instead where it could open or close a tag."""
        return self._word if token in self._marks or "<" in self.codec.decode((token,)) else token

    @cached_property
    def _marks(self) -> frozenset[int]:
        return frozenset(self.codec.tokenizer.get_added_tokens_decoder())

    @cached_property
    def _word(self) -> int:
        """A token of letters, so that the text between tags is never empty."""
        ids = range(self.codec.vocab_size)
        return next(i for i in ids if i not in self._marks and self.codec.decode((i,)).strip().isalpha())
