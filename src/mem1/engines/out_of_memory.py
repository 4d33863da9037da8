"""A GPU whose memory runs out, in one line: what was being done, what was asked for, and which key to change.

with memory_named("sampling", "..."):       torch.OutOfMemoryError -> UserError
    rollout(tasks)

torch is not loaded here, so its errors are known by name and wording.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from mem1.errors import UserError

_RESUME = ", and go on from the last checkpoint with --resume"
_SERVERS = "let servers sample ([rollout])"
SAMPLING = f"set distributed.cpu_offload = true, which leaves the GPU to the sampler, or {_SERVERS}{_RESUME}"
TRAINING = "lower {stage}.pack_tokens or set model.activation_checkpointing = true" + _RESUME
RECALLING = "set model.activation_checkpointing = true or distributed.cpu_offload = true" + _RESUME
NETWORKS = "set distributed.cpu_offload = true, or use more GPUs" + _RESUME
"""What to change where the networks are loaded. What these name may change on resume."""
ANSWERING = 'set model.dtype = "bfloat16", or compute on the CPU (model.device = "cpu")'
"""What to change where a policy is only evaluated or run."""
VERIFYING = 'give fewer --attempts, which share a token tree, or compute on the CPU (model.device = "cpu")'

_ASKED = re.compile(r"Tried to allocate [\d.]+ \w+")
_HELD = re.compile(r"(?:this process has|Of the allocated memory) ([\d.]+ \w+)")
_WORDINGS = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
"""Of the driver and of libraries, which take memory themselves."""


def is_full(error: BaseException) -> bool:
    """Whether this error says that a GPU's memory has run out."""
    return type(error).__name__ == "OutOfMemoryError" or any(wording in str(error) for wording in _WORDINGS)


def full(error: BaseException, doing: str = "") -> str:
    """What was being done and asked for when the memory ran out."""
    said = str(error)
    asked = _ASKED.search(said)
    numbers = [asked[0].replace("Tried", "tried")] if asked else []
    numbers += [f"{held[1]} of this process" for held in [_HELD.search(said)] if held]
    detail = f" ({', beside '.join(numbers)})" if numbers else ""
    return f"the GPU's memory is full{doing and f' while {doing}'}{detail}"


@contextmanager
def memory_named(doing: str, change: str) -> Iterator[None]:
    """Raises UserError in place of the error of a GPU whose memory has run out.

    doing       such as "sampling"
    change      what to do, as an imperative
    """
    try:
        yield
    except RuntimeError as error:
        if not is_full(error):
            raise
        raise UserError(f"{full(error, doing)}; {change}") from error
