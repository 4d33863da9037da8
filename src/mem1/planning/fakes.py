"""Tensors without values: code that runs on them shows what it would allocate and compute.

    with counted() as count:
        model = AutoModelForCausalLM.from_config(config)         7 billion weights, none of which exists
        ...                                                      a training step, as anywhere else
    count.peaks    ->  {"forward": 71_204_512_768, "backward": 69_871_075_328, "optimiser": ...}     bytes
    count.flops    ->  {"forward": 412_316_860_416_000, ...}

Inside, a floating-point tensor that is made from nothing is fake, and so is all that is computed from it; torch's
FakeTensorMode knows shapes, types and aliases. Other tensors stay real: token trees are laid out, cut and gathered as
in training. Memory is that of storages, from the operation that makes them until the last tensor lets go, which is what
an allocator hands out; what a kernel takes for itself inside one operation is not seen. A number that is read from a
fake tensor, such as the loss for the log, is 1.

torch's own `MemTracker` counts the same, but for steps of fakes alone, without real trees, and by hooks in all modules.
"""

from __future__ import annotations

import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

FORWARD, BACKWARD, OPTIMISER = "forward", "backward", "optimiser"

_aten = torch.ops.aten
_MADE = {_aten.empty.memory_format, _aten.empty_strided.default, _aten.zeros.default, _aten.ones.default}
"""What makes a tensor from nothing; random ones are drawn for tasks, and stay real."""


_READ = {_aten._local_scalar_dense.default, _aten.item.default}
_PLAIN = {torch.Tensor, torch.nn.Parameter, FakeTensor}
_LOOKED_AGAIN = 1.02
"""Growth of the peak after which the gradients are counted anew."""


def _makes_numbers(func: Any, kwargs: Mapping[str, Any]) -> bool:
    return func in _MADE and (kwargs.get("dtype") or torch.get_default_dtype()).is_floating_point


def _attention(q: Any, k: Any, v: Any, dropout: float = 0.0, causal: bool = False, **_: Any) -> int:
    return sdpa_flop_count(q.shape, k.shape, v.shape) // (1 + causal)


def _attention_backward(
    d: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, dropout: float = 0.0, causal: bool = False, **_: Any
) -> int:
    return sdpa_backward_flop_count(d.shape, q.shape, k.shape, v.shape) // (1 + causal)


_FLOPS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""torch's formulas for products, and for the kernel of `packing/blocks.py`, which torch's own counter leaves out."""


class _Fakes(FakeTensorMode):
    def __deepcopy__(self, memo: dict[int, Any]) -> _Fakes:
        return self  # a copied tensor refers to its mode, and would bring another one


class Count(TorchDispatchMode):
    """Bytes and FLOPs by moment: forward, backward, optimiser."""

    def __init__(self, fakes: FakeTensorMode) -> None:
        super().__init__()
        self._fakes = fakes
        self._storages: dict[int, tuple[int, Any]] = {}
        self.optimising = False
        self.live = 0
        """Bytes that are held now."""
        self.gradients: Callable[[], int] = lambda: 0
        """Bytes of gradients now, asked at the peak."""
        self.clear()

    def clear(self) -> None:
        """Forget peaks and FLOPs, not what is held."""
        self.peaks: dict[str, int] = defaultdict(int)
        """Most bytes held at a time, by moment."""
        self.flops: dict[str, int] = defaultdict(int)
        self.peak_gradients = self._looked_at = 0

    @property
    def peak(self) -> int:
        return max(self.peaks.values())

    @property
    def moment(self) -> str:
        if self.optimising:
            return OPTIMISER
        return FORWARD if torch._C._current_graph_task_id() == -1 else BACKWARD

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not _PLAIN.issuperset(types):
            return NotImplemented  # a sharded tensor says first which operations on its rows it means
        if FakeTensor not in types and not _makes_numbers(func, kwargs):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        if func in _READ:
            return 1.0 if args[0].is_floating_point() else 0
        if func is _aten.index.Tensor:
            args = (args[0], _places(args[1]))
        result = func(*args, **kwargs)
        # torch remembers fakes by weak references, and modules cannot move parameters that have some
        self._fakes.fake_tensor_converter.meta_converter.tensor_memo.clear()
        if (formula := _FLOPS.get(getattr(func, "_overloadpacket", None))) is not None:
            self.flops[self.moment] += formula(*args, **kwargs, out_val=result)
        for tensor in (result,) if isinstance(result, FakeTensor) else tree_leaves(result):
            if isinstance(tensor, FakeTensor) and tensor.fake_device.type != "meta":
                self.hold(tensor.untyped_storage())
        return result

    def hold(self, storage: torch.UntypedStorage, *, new: bool = True) -> None:
        """Count the storage with its present size; unless `new`, only one that is counted already."""
        key, size = storage._cdata, storage.nbytes()
        before, gone = self._storages.get(key, (0, None))
        if before == size or (gone is None and not new):
            return
        self._storages[key] = (size, gone or weakref.ref(storage, lambda _: self._let_go(key)))
        self.live += size - before
        self.peaks[self.moment] = max(self.peaks[self.moment], self.live)
        if self.live > _LOOKED_AGAIN * self._looked_at:
            self._looked_at, self.peak_gradients = self.live, self.gradients()

    def _let_go(self, key: int) -> None:
        self.live -= self._storages.pop(key)[0]


def _places(indices: list[Any]) -> list[Any]:
    """Masks as positions: how many there are must be known of a fake tensor's rows."""
    with unset_fake_temporarily():
        masks = [x is not None and x.dtype is torch.bool for x in indices]
        found = [x.nonzero(as_tuple=True) if m else (x,) for x, m in zip(indices, masks, strict=True)]
    return [x for several in found for x in several]


@contextmanager
def counted() -> Iterator[Count]:
    """Inside, tensors have no values, and the count grows."""
    fakes = _Fakes(allow_non_fake_inputs=True)
    count = Count(fakes)
    resize = torch.UntypedStorage.resize_

    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        found = resize(self, size)
        count.hold(self, new=False)
        return found

    def optimising(flag: bool) -> Callable[..., None]:
        return lambda *_: setattr(count, "optimising", flag)

    hooks = [register_optimizer_step_pre_hook(optimising(True)), register_optimizer_step_post_hook(optimising(False))]
    torch.UntypedStorage.resize_ = resize_  # FSDP frees gathered weights so, which no operation shows
    try:
        with fakes, count, warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
            yield count
    finally:
        torch.UntypedStorage.resize_ = resize
        for hook in hooks:
            hook.remove()
