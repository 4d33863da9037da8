"""The packs of an optimiser step on all ranks: each computes its passes, and all learn what came out of each pack.

What is said of the packs is put in their order again, so that sums over them do not depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from safetensors.torch import load, save
from torch import Tensor
from transformers import PreTrainedModel

from mem1.packing import Pack
from mem1.records import Trajectory
from mem1.training.balance import Pass, costs, deal
from mem1.training.parallel_packs import backward_in_order, in_order
from mem1.training.ranks.placement import Placement


@dataclass(frozen=True, kw_only=True)
class RankPacks:
    """The packs of some trajectories, dealt."""

    place: Placement
    packs: Sequence[Pack]
    passes: list[Pass]
    """Of this rank."""
    workers: int
    """Packs at a time on one rank."""

    @classmethod
    def deal(
        cls,
        packs: Sequence[Pack],
        trajectories: Sequence[Trajectory],
        model: PreTrainedModel,
        place: Placement,
        *,
        workers: int = 1,
    ) -> RankPacks:
        """Share them out by cost; one rank takes all in their order."""
        ranks = place.ranks
        if ranks.size == 1:
            passes = [Pass(number) for number in range(len(packs))]
        else:
            passes = deal(costs(packs, trajectories, model), ranks.size)[ranks.rank]
        return cls(place=place, packs=packs, passes=passes, workers=place.workers(workers))

    def backward(
        self,
        loss_of: Callable[[Pack], tuple[Tensor, Any]],
        *,
        models: Sequence[PreTrainedModel],
        parameters: Sequence[Tensor],
    ) -> list[Any]:
        """Add the gradients of all packs' losses to `parameters`; what else `loss_of` returns (JSON), pack by pack."""

        def weighed(number: Pass) -> tuple[Tensor, Any]:
            loss, said = loss_of(self.packs[number.pack])
            return (loss if number.counts else loss * 0.0), said

        said = list(backward_in_order(weighed, self.passes, models=models, parameters=parameters, workers=self.workers))
        if self.place.ranks.size == 1:
            return said
        own = {number.pack: one for number, one in zip(self.passes, said, strict=True) if number.counts}
        return self._in_order(self.place.ranks.gather_json(list(own.items())))

    def forward(
        self, function: Callable[[Pack], dict[str, Tensor]], *, models: Sequence[PreTrainedModel]
    ) -> list[dict[str, Tensor]]:
        """`function` of every pack, which returns tensors by name; in the order of the packs, on the CPU."""
        said = in_order(
            lambda number: function(self.packs[number.pack]), self.passes, models=models, workers=self.workers
        )
        if self.place.ranks.size == 1:
            return list(said)
        pairs = [(number.pack, one) for number, one in zip(self.passes, list(said), strict=True) if number.counts]
        flat = {f"{pack}/{name}": x.detach().cpu().clone() for pack, one in pairs for name, x in one.items()}
        found: dict[int, dict[str, Tensor]] = {}
        for data in self.place.ranks.gather(save(flat)):
            for key, tensor in load(data).items():
                number, _, name = key.partition("/")
                found.setdefault(int(number), {})[name] = tensor
        return [found[number] for number in range(len(self.packs))]

    def _in_order(self, of_ranks: Sequence[Sequence[tuple[int, Any]]]) -> list[Any]:
        found = {number: said for pairs in of_ranks for number, said in pairs}
        return [found[number] for number in range(len(self.packs))]
