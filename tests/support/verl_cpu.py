"""What verl 0.9.1 lacks for a run on CPUs, as plug-ins: the device here, engine and servers in verl_servers.py.

    VERL_USE_EXTERNAL_MODULES=verl_cpu,verl_servers VERL_PLATFORM=cpu

Without them a run ends, one obstacle after another, at the lines that research/verl.md lists. All else is verl's. Ray's
nodes must pretend to have GPUs, since verl reserves them: `ray start --num-gpus 1`.
"""

# pyright: reportMissingImports=false, reportIncompatibleMethodOverride=false
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import distributed
from verl.plugin.platform.platform_cuda import PlatformCUDA
from verl.plugin.platform.platform_manager import PlatformRegistry


class Device(SimpleNamespace):
    """Stands in for torch.cuda: memory is 0 bytes, and there is nothing to wait for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)

    def get_device_name(self) -> str:
        return "CPU"

    def mem_get_info(self) -> tuple[int, int]:
        return 0, 0


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformCUDA):
    """What verl asks of a device, for one that has no index, memory of its own or kernels to wait for."""

    device_name, vendor_name, device_module = "cpu", "cpu", Device()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def set_device(self, device_index: int) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def communication_backend_name(self) -> str:
        return "gloo"


_make_group = distributed.init_process_group


def _group(backend: str | None = None, **options: Any) -> None:
    """verl names a backend for CPU tensors and one for the device's, which may not be the same device."""
    _make_group("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, **options)


distributed.init_process_group = _group
