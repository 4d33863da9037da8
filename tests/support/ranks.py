"""Processes beside the tests: the ranks of a training, each with all that torchrun gives it.

    on_ranks(2, work, folder)       ->  work(folder) in two processes, joined by gloo

They are forked from one process that has imported what they need (`mem1.engines.workers.PROCESSES`), which takes
longer than most of what is asked of them. The files whose tests start some run on one worker (`conftest.TOGETHER`).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing import connection
from pathlib import Path
from typing import Any, cast

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from mem1.engines import workers

if sys.platform == "linux":
    used = ["mem1.training.train", "mem1.training.ranks.processes", "bitsandbytes", "peft", "hypothesis", "pytest"]
    workers.PROCESSES.set_forkserver_preload([*workers.PRELOADED, *used])


def on_ranks(ranks: int, work: Callable[..., None], *arguments: Any, timeout_s: float = 900) -> None:
    """Calls `work(*arguments)` in every rank, where `mem1.training.ranks.processes.joined` finds the others."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(ranks)}
    common |= {"TORCHELASTIC_RUN_ID": "test", "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        heard = [Path(folder, f"rank-{rank}") for rank in range(ranks)]
        processes = [
            workers.PROCESSES.Process(
                target=_rank,
                args=({**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, heard[rank], work, arguments),
                daemon=True,
            )
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        until = time.monotonic() + timeout_s
        try:
            running = {process.sentinel: process for process in processes}
            while running:
                ended = connection.wait(list(running), timeout=max(0.0, until - time.monotonic()))
                assert ended, f"the ranks did not end within {timeout_s} seconds"
                said = "".join(path.read_text() for path in heard if path.exists())
                for sentinel in ended:
                    process = running.pop(cast(int, sentinel))
                    process.join()
                    assert process.exitcode == 0, f"{process.name} ended with {process.exitcode}: {said[-3000:]}"
            assert "terminate called" not in said
        finally:
            for process in processes:  # one that is left waits for a rank that has failed
                process.kill()
                process.join()


def _rank(environment: Mapping[str, str], heard: Path, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    with heard.open("w") as file:
        os.dup2(file.fileno(), 2)
    faulthandler.enable()  # a rank that a signal ends says where
    work(*arguments)
