"""Sharding a policy needs little more memory than the shard: no second copy of the whole is made on the way."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from ranks import on_ranks
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import joined, whole

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
LAYERS = 24


def large_model() -> PreTrainedModel:
    """Of 24 equal layers and about 100 MB, so that a layer is little and the interpreter's own noise too."""
    sizes: dict[str, Any] = {
        "hidden_size": 256,
        "intermediate_size": 1024,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=64, num_hidden_layers=LAYERS, tie_word_embeddings=True, **sizes))


def resident(field: str) -> int:
    """Bytes of this process: VmRSS now, VmHWM at most since the last `forget_peak`."""
    found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def measured(folder: Path) -> None:
    """How much memory the trained policy needs at most while it is sharded, as a share of the whole one's weights."""
    torch.set_num_threads(1)
    with joined() as ranks:
        model = large_model()
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        before = [p.clone() for p in model.parameters()]
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        held = resident("VmRSS")
        placement = Placement(ranks=ranks)
        trained = placement.trained(model)
        peak = resident("VmHWM") - held
        (folder / f"{ranks.rank}").write_text(str(peak / size))
        assert sum(cast(DTensor, p).to_local().numel() for p in trained.parameters()) * 4 < 0.51 * size
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)), "it samples as before"
        assert all(torch.equal(whole(p), q) for p, q in zip(trained.parameters(), before, strict=True))


def test_the_trained_policy_is_sharded_layer_by_layer_beside_the_one_that_samples(tmp_path: Path):
    on_ranks(2, measured, tmp_path)
    for rank in range(2):
        peak = float((tmp_path / str(rank)).read_text())
        assert 0.4 < peak < 0.75, "its half, and a layer"
