"""A GPU whose memory runs out, in one line: what was being done, what was asked for, and which key to change.

with memory_named("sampling", "..."):       torch.OutOfMemoryError -> UserError
    rollout(tasks)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from mem1.errors import UserError

SAMPLING = "set distributed.cpu_offload = true, which leaves the GPU to the sampler, or let servers sample ([rollout])"
TRAINING = "lower {stage}.pack_tokens or set distributed.activation_checkpointing = true"
NETWORKS = "set distributed.cpu_offload = true, or use more GPUs"
"""What to change where the networks are loaded. All of these may change on resume."""
_ASKED = re.compile(r"Tried to allocate [\d.]+ \w+")
_HELD = re.compile(r"(?:this process has|Of the allocated memory) ([\d.]+ \w+)")


@contextmanager
def memory_named(doing: str, change: str) -> Iterator[None]:
    """Raises UserError in place of torch.OutOfMemoryError.

    doing       such as "sampling"
    change      what to do, as an imperative; it must be something that a resumed run may change
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        said = str(error)
        asked = _ASKED.search(said)
        numbers = [asked[0].replace("Tried", "tried")] if asked else []
        numbers += [f"{held[1]} of this process" for held in [_HELD.search(said)] if held]
        detail = f" ({', beside '.join(numbers)})" if numbers else ""
        raise UserError(
            f"the GPU's memory is full while {doing}{detail}; {change}, and go on from the last checkpoint with "
            "--resume"
        ) from error
