"""Runs the server of server.py: sockets, worker processes, signals.

    serve(partial(BM25.load, folder), host="127.0.0.1", port=8000, workers=2, top_k=3, listening=print)

Every worker process opens the search engine itself (a memory-mapped index still is in memory only once) and has its own
socket on the same port, among which the kernel distributes connections. A single worker runs in this process.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection, get_context, parent_process
from multiprocessing.process import BaseProcess
from typing import Any

from mem1.errors import UserError
from mem1.net.serving import FINISH_S, Hosts, address, bind, check_packages, handling, make_server
from mem1.net.serving.metrics import share_metrics
from mem1.retrieval.base import Retriever

_SPAWN = get_context("spawn")


class _Stop(BaseException):
    """A signal told the server to stop."""


def serve(
    open_retriever: Callable[[], Retriever],
    *,
    host: str,
    port: int,
    workers: int,
    top_k: int,
    listening: Callable[[str], None],
    allow_hosts: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or SIGINT, then finish the open requests and return.

    With several workers `open_retriever` must be picklable. `listening` is called with the address once the server
    answers requests; port 0 means any free port. `allow_hosts` are host names to accept besides the server's address.
    Raises UserError where the address is not available, a package is missing or a worker cannot start.
    """
    check_packages()
    sockets = bind(host, port, workers)
    where = address(host, sockets[0])
    hosts = Hosts.of(host, sockets[0], allow_hosts)
    if workers == 1:
        _work(_Job(open_retriever, sockets[0], hosts, top_k), lambda: listening(where))
        return
    with tempfile.TemporaryDirectory(prefix="mem1-metrics-") as metrics:
        jobs = [_Job(open_retriever, socket, hosts, top_k, metrics) for socket in sockets]
        _supervise(jobs, lambda: listening(where))


@dataclass(frozen=True, slots=True)
class _Job:
    """What one worker needs."""

    open_retriever: Callable[[], Retriever]
    socket: socket.socket
    hosts: Hosts
    top_k: int
    metrics: str | None = None
    """Folder of the counts of all workers; None: there is one worker."""


def _work(job: _Job, ready: Callable[[], None]) -> None:
    """Serve on one socket, in this process, until a signal."""
    if job.metrics is not None:
        share_metrics(job.metrics)
    from mem1.retrieval.server import make_app

    app = make_app(job.open_retriever(), top_k=job.top_k)
    make_server(app, job.socket, hosts=job.hosts, ready=ready).run()


def _supervise(jobs: Sequence[_Job], ready: Callable[[], None]) -> None:
    """Run one process per job until a signal, restarting those that die."""

    def stop(*_: object) -> None:
        raise _Stop

    workers: list[BaseProcess] = []
    try:
        with handling(stop):
            pipes = [_SPAWN.Pipe(duplex=False) for _ in jobs]
            workers += [_start(job, sender) for job, (_, sender) in zip(jobs, pipes, strict=True)]
            for worker, (receiver, sender) in zip(workers, pipes, strict=True):
                sender.close()
                if receiver not in connection.wait([receiver, worker.sentinel]) or not _received(receiver):
                    raise UserError("a worker of the server could not start; see its message above")
            ready()
            while True:
                connection.wait([worker.sentinel for worker in workers])
                for number, worker in enumerate(workers):
                    if not worker.is_alive():
                        print(f"worker {number} died ({worker.exitcode}); starting it again", file=sys.stderr)
                        workers[number] = _start(jobs[number], None)
    except _Stop:
        pass
    finally:
        _end(jobs, workers)


def _received(pipe: Any) -> bool:
    try:
        return bool(pipe.recv())
    except EOFError:
        return False


def _start(job: _Job, started: Any) -> BaseProcess:
    worker = _SPAWN.Process(target=_worker, args=(job, started), daemon=True)
    worker.start()
    return worker


def _end(jobs: Sequence[_Job], workers: Sequence[BaseProcess]) -> None:
    with handling(lambda *_: None):
        for job in jobs:
            job.socket.close()  # otherwise connections would keep queueing here
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(FINISH_S + 5)
            worker.kill()


def _worker(job: _Job, started: Any) -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    try:
        _work(job, lambda: started.send(True) if started is not None else None)
    except UserError as error:
        sys.exit(f"error: {error}")


def _follow_parent() -> None:
    """End when the parent is gone; otherwise a killed parent would leave the port occupied."""
    parent = parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
