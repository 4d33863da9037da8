"""Sends new weights by NCCL into the memory of vLLM's workers, without a disk shared with the trainer.

    transfer = NcclTransfer(ask, timeout_s=300)         rollout.transfer = "nccl"
    transfer.send(url, weights)
        once per server    get_world_size, init_weight_transfer_engine: the trainer and the workers form a group
        each time          start_weight_update, update_weights, finish_weight_update, reset_prefix_cache

Each server has a group of its own, so that one that dies or joins does not disturb the others. The workers join by
NCCL's unique id alone, without vLLM in the trainer: a one-element all-reduce is the first operation of the group. It
needs a GPU that no worker uses, and has not been run on one yet.

Sources: vllm/entrypoints/serve/dev/rlhf/api_router.py of vllm-project/vllm at 0100a21, NCCLWeightTransferUpdateInfo of
vllm/distributed/weight_transfer/nccl_engine.py; docs/training/weight_transfer/nccl.md and nccl_common.py as of
2026-09-23.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor

from mem1.engines.device import dtype_name
from mem1.engines.weight_update import Ask, PublishedWeights, ServerFailed, WeightTransfer
from mem1.engines.weights import DTYPES
from mem1.errors import UserError
from mem1.net.exchange import whole_number

_MOST_WORKERS = 1 << 16
_TRAINER = 1
"""Ranks before the first worker's."""
_FIRST = "0"
"""Key under which torch stores the unique id of a group's first communicator."""


class NcclTransfer(WeightTransfer):
    """The `WeightTransfer` of `rollout.transfer = "nccl"`. Thread-safe; servers receive one at a time."""

    def __init__(self, ask: Ask, *, timeout_s: float, new_group: Callable[[int], NcclGroup] | None = None) -> None:
        """`new_group` makes a group of a number of ranks; None: NcclGroup. Raises UserError where there is no NCCL."""
        if new_group is None:
            require_nccl()
        super().__init__(ask, timeout_s=timeout_s)
        self._new_group = new_group or partial(NcclGroup, timeout_s=timeout_s)
        self._groups: dict[str, NcclGroup] = {}
        self._one_at_a_time = threading.Lock()  # broadcasts of two groups on one GPU can wait for each other

    def send(self, url: str, weights: PublishedWeights) -> None:
        """Raises ServerFailed; the group is then closed, and formed anew the next time."""
        with self._one_at_a_time:
            group = self._groups.pop(url, None) or self._form(url)
            try:
                self._ask("POST", url, "/start_weight_update", {})
                self._broadcast(url, group, weights.path)
                version = {"weight_version": str(weights.version)}
                self._ask("POST", url, "/finish_weight_update", version, patient=True)
            except BaseException:
                group.close()
                raise
            self._groups[url] = group
        self._ask("POST", url, "/reset_prefix_cache", {})

    def close(self) -> None:
        """Leave all groups."""
        with self._one_at_a_time:
            for group in self._groups.values():
                group.close()
            self._groups.clear()

    def _form(self, url: str) -> NcclGroup:
        answer = self._ask("GET", url, "/get_world_size")
        workers = whole_number(answer.get("world_size") if isinstance(answer, dict) else None, most=_MOST_WORKERS)
        if not workers:
            raise ServerFailed(f"{url}/get_world_size: the answer has no number of workers")
        size = _TRAINER + workers
        group = self._new_group(size)

        def invite() -> None:
            info = {**group.invitation(), "rank_offset": _TRAINER, "world_size": size}
            self._ask("POST", url, "/init_weight_transfer_engine", {"init_info": info}, patient=True)

        try:
            _both(url, here=group.join, there=invite)
        except BaseException:
            group.close()  # or our half would wait for workers that do not come
            raise
        return group

    def _broadcast(self, url: str, group: NcclGroup, file: Path) -> None:
        """Send the weights, of which one at a time is in memory."""
        types = {name: dtype_name(dtype) for dtype, name in DTYPES.items()}
        with safe_open(file, "pt") as tensors:
            names = list(tensors.keys())
            parts = [tensors.get_slice(name) for name in names]

            def send() -> None:
                for name in names:
                    group.broadcast(tensors.get_tensor(name))

            info = {
                "names": names,
                "dtype_names": [types[part.get_dtype()] for part in parts],
                "shapes": [part.get_shape() for part in parts],
            }
            announce = {"update_info": info}
            _both(url, here=send, there=lambda: self._ask("POST", url, "/update_weights", announce, patient=True))


def _both(url: str, *, here: Callable[[], None], there: Callable[[], None]) -> None:
    """Run the two halves of a collective operation of trainer and server, each of which waits for the other.

    Raises ServerFailed at once where one fails; closing the group then ends the other half.
    """
    ours: Future[None] = Future()

    def run() -> None:
        try:
            here()
        except Exception as error:  # torch raises many kinds
            ours.set_exception(error)
        else:
            ours.set_result(None)

    threading.Thread(target=run, name="mem1-broadcast", daemon=True).start()
    try:
        there()
        ours.result()
    except ServerFailed:
        raise
    except Exception as error:
        raise ServerFailed(f"{url}: the weights could not be sent: {error}") from error


def require_nccl() -> None:
    """Raises UserError where this machine has no NCCL."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise UserError(
            "rollout.transfer = 'nccl' needs a GPU here, and a torch with NCCL; with transfer = 'folder' the servers "
            "read the weights from rollout.weights_folder"
        )


class NcclGroup:
    """The trainer, as rank 0, and all workers of one server, which join when they are invited."""

    def __init__(self, size: int, *, timeout_s: float) -> None:
        """Does not communicate yet. `require_nccl` must have passed."""
        self._device = torch.device("cuda", torch.cuda.current_device())
        # only this process uses the store: the workers are invited over HTTP
        self._store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        self._store.set_timeout(timedelta(seconds=timeout_s))
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        self._group: Any = dist.ProcessGroupNCCL(self._store, 0, size, options)

    def invitation(self) -> Mapping[str, str]:
        """Waits for `join`, which another thread must have called."""
        return {"nccl_unique_id_b64": base64.b64encode(self._store.get(_FIRST)).decode()}

    def join(self) -> None:
        """Wait for all workers."""
        self._group.allreduce([torch.zeros(1, device=self._device)]).wait()
        torch.cuda.synchronize(self._device)

    def broadcast(self, tensor: Tensor) -> None:
        """Send to all workers, which must expect this type and shape; return when it is sent."""
        self._group.broadcast([tensor.to(self._device)]).wait()  # from rank 0, by default
        torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """End all waiting, here and in the workers."""
        self._group.abort()
