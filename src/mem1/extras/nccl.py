"""New weights straight into the memory of a vLLM server's workers, without a disk that they share with the trainer.

    broadcasts.send(url, weights)
        once       get_world_size, init_weight_transfer_engine; the trainer and the workers form a group
        each time  start_weight_update, update_weights, finish_weight_update

Each server has a group of its own, so that one that dies or joins disturbs no other. Routes:
vllm/entrypoints/serve/dev/rlhf/api_router.py of vllm-project/vllm at 0100a21, and NCCLWeightTransferUpdateInfo of
vllm/distributed/weight_transfer/nccl_engine.py.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from mem1.engines.weight_update import Ask, PublishedWeights, ServerFailed
from mem1.errors import UserError
from mem1.net.post import whole_number

_MOST_WORKERS = 1 << 16
_TRAINER = 1
"""Ranks before the first worker's."""


class WeightGroup(Protocol):
    """The trainer, as rank 0, and all workers of one server."""

    def invitation(self) -> Mapping[str, Any]:
        """What the workers join by; may wait for `join` to have begun."""
        ...

    def join(self) -> None:
        """Wait for all workers."""
        ...

    def broadcast(self, tensor: Tensor) -> None:
        """Send to all workers, which expect this type and shape."""
        ...

    def close(self) -> None:
        """Wait for nobody any more."""
        ...


class WeightBroadcasts:
    """Safe to use from many threads; one server at a time gets weights."""

    def __init__(self, ask: Ask, new_group: Callable[[int], WeightGroup]) -> None:
        """`new_group` of so many ranks, this process the first."""
        self._ask, self._new_group = ask, new_group
        self._groups: dict[str, WeightGroup] = {}
        self._one_at_a_time = threading.Lock()  # broadcasts of two groups on one GPU can wait for each other

    def send(self, url: str, weights: PublishedWeights) -> None:
        """Raises ServerFailed; the group is then given up, and formed anew the next time."""
        with self._one_at_a_time:
            group = self._groups.pop(url, None) or self._formed(url)
            try:
                self._ask("POST", url, "/start_weight_update", {})
                self._broadcast(url, group, load_file(weights.path))
                version = {"weight_version": str(weights.version)}
                self._ask("POST", url, "/finish_weight_update", version, patient=True)
            except BaseException:
                group.close()
                raise
            self._groups[url] = group

    def close(self) -> None:
        """Leave all groups."""
        with self._one_at_a_time:
            for group in self._groups.values():
                group.close()
            self._groups.clear()

    def _formed(self, url: str) -> WeightGroup:
        said = self._ask("GET", url, "/get_world_size")
        workers = whole_number(said.get("world_size") if isinstance(said, dict) else None, most=_MOST_WORKERS)
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
            group.close()  # or our half would wait for one that does not come
            raise
        return group

    def _broadcast(self, url: str, group: WeightGroup, tensors: Mapping[str, Tensor]) -> None:
        def send() -> None:
            for tensor in tensors.values():
                group.broadcast(tensor)

        info = {
            "names": list(tensors),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
        }
        announce = {"update_info": info}
        _both(url, here=send, there=lambda: self._ask("POST", url, "/update_weights", announce, patient=True))


def _both(url: str, *, here: Callable[[], None], there: Callable[[], None]) -> None:
    """The two halves of what the trainer and a server do together, each waiting for the other.

    Raises ServerFailed at once where one fails; the group must then be closed, for the other half to end.
    """
    ours: Future[None] = Future()

    def run() -> None:
        try:
            here()
        except Exception as error:  # of torch's many kinds
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


_FIRST = "0"
"""Under which torch's own code leaves the unique number of a group's first communicator in the store."""


def require_nccl() -> None:
    """Raises UserError where this machine cannot send by NCCL."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise UserError(
            "rollout.transfer = 'nccl' needs a GPU here, and a torch with NCCL; with transfer = 'folder' the servers "
            "read the weights from rollout.weights_folder"
        )


class NcclGroup:
    """Joined by the workers when they are invited."""

    def __init__(self, size: int, *, timeout_s: float) -> None:
        """Nobody is asked yet; `require_nccl` says whether it can be."""
        self._device = torch.device("cuda", torch.cuda.current_device())
        # of this process alone: the workers are invited over HTTP
        self._store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
        self._store.set_timeout(timedelta(seconds=timeout_s))
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=timeout_s)
        self._group: Any = dist.ProcessGroupNCCL(self._store, 0, size, options)

    def invitation(self) -> Mapping[str, str]:
        """Waits for `join`, which another thread has to have called."""
        return {"nccl_unique_id_b64": base64.b64encode(self._store.get(_FIRST)).decode()}

    def join(self) -> None:
        """Waits for all workers."""
        self._group.allreduce([torch.zeros(1, device=self._device)]).wait()
        torch.cuda.synchronize(self._device)

    def broadcast(self, tensor: Tensor) -> None:
        """To all workers, which must expect its type and shape; returns when it is sent."""
        self._group.broadcast([tensor.to(self._device)]).wait()  # of rank 0, by default
        torch.cuda.synchronize(self._device)

    def close(self) -> None:
        """Whoever waits for the others, here or there, waits no longer."""
        self._group.abort()


def open_transfer(ask: Ask, *, timeout_s: float) -> WeightBroadcasts:
    """`rollout.transfer = "nccl"`. Raises UserError where this machine has no NCCL."""
    require_nccl()
    return WeightBroadcasts(ask, partial(NcclGroup, timeout_s=timeout_s))
