"""Denormal numbers are zero while mem1 computes, and only then."""

from __future__ import annotations

import sys

import pytest
import torch
from test_local_engine import MODEL, WORDS, some_contexts
from worlds import CODEC

from mem1.engines.base import Sampling
from mem1.engines.device import flushed_denormals
from mem1.engines.local import LocalEngine
from mem1.training.weights.policy import load_policy

if not torch.set_flush_denormal(False):  # asks for what holds anyway: changes nothing
    pytest.skip("this processor cannot take denormal numbers for zero", allow_module_level=True)


def flushed() -> bool:
    python = sys.float_info.min / 2 == 0.0
    assert python == (torch.tensor(1e-30) * 1e-10 == 0).item()
    return python


def test_zero_inside_and_as_before_outside_however_it_ends():
    assert not flushed()
    with flushed_denormals():
        assert flushed()
        with flushed_denormals():
            pass
        assert flushed(), "the outer one still holds"
    assert not flushed()
    with pytest.raises(ValueError), flushed_denormals():
        raise ValueError
    assert not flushed()


def test_a_loaded_policy_leaves_the_process_as_it_was_and_sampling_flushes(monkeypatch: pytest.MonkeyPatch):
    load_policy("shipped")
    engine = LocalEngine(MODEL, CODEC, WORDS)
    seen = []
    stops = engine.stops
    monkeypatch.setattr(engine, "stops", lambda *given: seen.append(flushed()) or stops(*given))
    engine.complete(some_contexts(3), max_tokens=[4, 4, 4], sampling=Sampling(seed=0))
    assert seen and all(seen)
    assert not flushed()
