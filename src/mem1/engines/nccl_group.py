"""The trainer and the workers of one vLLM server in a group of NCCL, without vLLM in the trainer.

    group = NcclGroup(3, timeout_s=300)     the trainer, rank 0, and two workers
    group.invitation()                      {"nccl_unique_id_b64": "..."}, while another thread is in group.join()
    group.broadcast(tensor)

The workers join by NCCL's unique number alone, so that a one-element all-reduce is the first thing that all do. It
needs a GPU that no worker uses, and was run on none so far. Source: vLLM's documentation,
docs/training/weight_transfer/nccl.md and vllm/distributed/weight_transfer/nccl_common.py as of 2026-09-23.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from mem1.errors import UserError

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
