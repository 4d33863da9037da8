"""Weights that are sent and not read: vLLM's side is played by threads that join and receive over gloo, on a CPU.

NCCL itself needs GPUs; what `NcclGroup` adds is the kind of the group and the way of the invitation.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from policies import tiny
from sites import as_json, site, status
from torch import Tensor

from mem1.engines.weight_update import PublishedWeights, ServerFailed, WeightRoutes
from mem1.engines.weights import untied
from mem1.errors import UserError
from mem1.extras.nccl import NcclTransfer
from mem1.training.loop.rl_config import ServerRollouts
from mem1.training.weights.weight_sync import write_weights

c10d: Any = dist
"""Its stubs hide the stores."""
WORKERS = 2
TIMEOUT = timedelta(seconds=3)


def gloo(store: Any, rank: int, size: int) -> Any:
    return c10d.ProcessGroupGloo(store, rank, size, TIMEOUT)


class GlooGroup:
    """As `NcclGroup`, between threads of a process."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._store = c10d.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        self.closed = False
        self.waiting = threading.Lock()

    def invitation(self) -> Mapping[str, Any]:
        return {"master_port": self._store.port}

    def join(self) -> None:
        with self.waiting:
            self._group = gloo(self._store, 0, self._size)
            self._group.allreduce([torch.zeros(1)]).wait()

    def broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast([tensor.clone()]).wait()

    def close(self) -> None:
        self.closed = True


class Workers:
    """A vLLM of two workers: what its routes for weights do, and what each worker has received."""

    def __init__(self, *, workers: int = WORKERS) -> None:
        self.received: list[dict[str, Tensor]] = [{} for _ in range(workers)]
        self._groups: list[Any] = []
        self._workers = workers
        self.pages: dict[str, Any] = {
            "/get_world_size": as_json({"world_size": workers}),
            "/init_weight_transfer_engine": self._join,
            "/start_weight_update": as_json({"message": "Weight update started"}),
            "/update_weights": self._receive,
            "/finish_weight_update": as_json({"message": "Weight update finished"}),
            "/pause": as_json({"status": "paused"}),
            "/resume": as_json({"status": "resumed"}),
            "/reset_prefix_cache": status(200),
        }

    def _join(self, handler: Any) -> None:
        info = json.loads(handler.body)["init_info"]
        assert info["world_size"] == 1 + self._workers and info["rank_offset"] == 1
        self._groups = [None] * self._workers

        def join(worker: int) -> None:
            store = c10d.TCPStore("127.0.0.1", info["master_port"], is_master=False, timeout=TIMEOUT)
            self._groups[worker] = gloo(store, info["rank_offset"] + worker, info["world_size"])
            self._groups[worker].allreduce([torch.zeros(1)]).wait()

        self._all(join)
        as_json({"message": "Weight transfer initialized"})(handler)

    def _receive(self, handler: Any) -> None:
        info = json.loads(handler.body)["update_info"]

        def receive(worker: int) -> None:
            for name, dtype, shape in zip(info["names"], info["dtype_names"], info["shapes"], strict=True):
                tensor = torch.empty(shape, dtype=getattr(torch, dtype))
                self._groups[worker].broadcast([tensor]).wait()
                self.received[worker][name] = tensor

        self._all(receive)
        as_json({"message": "Weights updated"})(handler)

    def _all(self, call: Any) -> None:
        threads = [threading.Thread(target=call, args=(worker,)) for worker in range(self._workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "weights").mkdir()
    return tmp_path / "weights"


@pytest.fixture
def groups() -> Iterator[list[GlooGroup]]:
    """Those that were formed; none is left waiting in torch's code, where a thread cannot end with the process."""
    formed: list[GlooGroup] = []
    yield formed
    for group in formed:
        with group.waiting:
            pass


@pytest.fixture
def broadcasts(groups: list[GlooGroup]) -> NcclTransfer:
    def formed(size: int) -> GlooGroup:
        groups.append(GlooGroup(size))
        return groups[-1]

    routes = WeightRoutes("vllm", model="m", token=None, timeout_s=20)
    return NcclTransfer(routes.ask, timeout_s=20, new_group=formed)  # type: ignore[arg-type]


def assert_received(workers: Workers, model: torch.nn.Module) -> None:
    sent = untied(model.state_dict())
    for received in workers.received:
        assert received.keys() == sent.keys()
        assert all(torch.equal(received[name], sent[name]) for name in sent)


def test_every_worker_has_the_weights_of_each_version_to_the_bit(folder, broadcasts, groups):
    workers = Workers()
    with site(workers.pages) as running:
        for version in (1, 2):
            model = tiny(version)
            broadcasts.send(f"{running.url}/v1", write_weights(folder, model, version))
            assert_received(workers, model)
        assert running.paths == [
            "/get_world_size",
            "/init_weight_transfer_engine",
            *("/start_weight_update", "/update_weights", "/finish_weight_update", "/reset_prefix_cache") * 2,
        ]
        assert json.loads(running.asked[-2][3]) == {"weight_version": "2"}
    assert len(groups) == 1, "formed once"
    broadcasts.close()
    assert groups[0].closed


def test_half_precision_is_sent_as_it_is(folder, broadcasts):
    workers, model = Workers(workers=1), torch.nn.Linear(3, 2, dtype=torch.bfloat16)
    with site(workers.pages) as running:
        broadcasts.send(f"{running.url}/v1", write_weights(folder, model, 1))
    assert_received(workers, model)
    assert {tensor.dtype for tensor in workers.received[0].values()} == {torch.bfloat16}


def test_a_server_that_fails_gets_another_group_when_it_is_back(folder, broadcasts, groups):
    workers, weights = Workers(), write_weights(folder, tiny(1), 1)
    with site(workers.pages) as running:
        url = f"{running.url}/v1"
        broadcasts.send(url, weights)
        works = running.pages["/finish_weight_update"]
        running.pages["/finish_weight_update"] = status(500)
        with pytest.raises(ServerFailed, match="/finish_weight_update: status 500"):
            broadcasts.send(url, weights)
        assert groups[0].closed
        running.pages["/finish_weight_update"] = works
        broadcasts.send(url, weights)
        assert len(groups) == 2 and not groups[1].closed


def test_one_that_does_not_join_does_not_keep_the_others_waiting(folder, broadcasts, groups):
    weights = write_weights(folder, tiny(1), 1)
    with site({**Workers().pages, "/init_weight_transfer_engine": status(500)}) as running:
        with pytest.raises(ServerFailed, match="/init_weight_transfer_engine: status 500"):
            broadcasts.send(f"{running.url}/v1", weights)
        assert groups[0].closed
    mute = site({**Workers().pages, "/get_world_size": as_json({"size": 2})})
    with mute as running, pytest.raises(ServerFailed, match="no number of workers"):
        broadcasts.send(f"{running.url}/v1", weights)
    other = Workers()
    with site(other.pages) as running:
        broadcasts.send(f"{running.url}/v1", weights)
    assert_received(other, tiny(1))


@pytest.mark.parametrize("half", ["join", "invitation"])
def test_an_error_on_this_side_counts_as_a_failed_server(folder, groups, half):
    class Broken(GlooGroup):
        def join(self) -> None:
            super().join()
            if half == "join":
                raise RuntimeError("the cable is out")

        def invitation(self) -> Mapping[str, Any]:
            if half == "invitation":
                raise RuntimeError("the cable is out")
            return super().invitation()

    def formed(size: int) -> GlooGroup:
        groups.append(Broken(size))
        return groups[-1]

    routes = WeightRoutes("vllm", model="m", token=None, timeout_s=20)
    weights = write_weights(folder, tiny(1), 1)
    with site(Workers().pages) as running, pytest.raises(ServerFailed, match="could not be sent: the cable is out"):
        NcclTransfer(routes.ask, timeout_s=20, new_group=formed).send(f"{running.url}/v1", weights)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="says that there is no GPU")
def test_without_a_gpu_it_is_refused_at_once():
    with pytest.raises(UserError, match=r"rollout.transfer = 'nccl' needs a GPU here"):
        WeightRoutes("vllm", model="m", token=None, timeout_s=5, transfer="nccl")


def test_only_vllm_is_sent_weights(folder):
    given = {"servers": ["http://127.0.0.1:1"], "weights_folder": str(folder), "transfer": "nccl"}
    assert ServerRollouts.model_validate({**given, "kind": "vllm"}).transfer == "nccl"
    with pytest.raises(ValueError, match="transfer = 'nccl' works with"):
        ServerRollouts.model_validate(given)


def test_over_nccl_it_is_paused_before_and_resumed_after_with_an_empty_cache(folder, broadcasts):
    routes = WeightRoutes("vllm", model="m", token=None, timeout_s=20)
    routes.transfer = broadcasts
    workers = Workers()
    weights: PublishedWeights = write_weights(folder, tiny(1), 1)
    with site(workers.pages) as running:
        routes.update(f"{running.url}/v1", weights)
        said = running.paths
        assert said[0] == "/pause?mode=abort" and said[-2:] == ["/reset_prefix_cache", "/resume"]
    assert_received(workers, tiny(1))
