"""How many kernels a sampled token takes: on a GPU that is its time, as a small model's kernels end before the next is
launched. Counted on a CPU, where views are no kernels either."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import CODEC

from mem1.engines.base import Request, Sampling
from mem1.engines.local import LocalEngine
from mem1.policy.tiny_model import new_model
from mem1.recipe.model import TinyModel

A_LAYER, BESIDES = 38, 50
"""Most kernels of a layer, and of a step without its layers."""
NO_KERNELS = {"aten.promote_types", "aten.detach_"}
"""Operations without a tensor's values, besides views."""


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses are made of how many rows there are; attention of a CPU is another kernel."""
    monkeypatch.setattr("mem1.engines.local.guesses_each", lambda rows, kind: 0)
    monkeypatch.setattr("mem1.engines.rows.fused", lambda kind, softcap: False)


class Kernels(TorchDispatchMode):
    """Counts operations that compute or copy."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(function.overloadpacket)
        if not function.is_view and name not in NO_KERNELS:
            self.found[name] += 1
        return function(*args, **(kwargs or {}))


def of_a_token(*, layers: int, rows: int, tokens: int, temperature: float = 1.0) -> Counter[str]:
    """Kernels of one step of so many rows that decode, after contexts of so many tokens."""
    shape = TinyModel(hidden_size=32, layers=layers, heads=2, feed_forward=48, max_positions=2048)
    engine = LocalEngine(new_model(shape, vocab_size=CODEC.vocab_size, seed=0), CODEC, ())
    with engine.opened(Sampling(seed=0, temperature=temperature)) as batch:
        batch.add([Request(context=[2 + i] * tokens, max_tokens=9, seed=i, key=i) for i in range(rows)])
        batch.step()
        with Kernels() as kernels:
            batch.step()
        return kernels.found


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_neither_rows_nor_tokens_add_kernels(temperature: float):
    few = of_a_token(layers=2, rows=2, tokens=5, temperature=temperature)
    assert few.total() > 20
    assert of_a_token(layers=2, rows=24, tokens=700, temperature=temperature) == few


def test_a_layer_takes_few_kernels():
    two, three = (of_a_token(layers=layers, rows=3, tokens=9) for layers in (2, 3))
    a_layer = three.total() - two.total()
    assert 10 < a_layer <= A_LAYER and two.total() - 2 * a_layer <= BESIDES, three - two
