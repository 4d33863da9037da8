"""Layers that are computed again in the backward pass: the same gradient with less memory."""

from __future__ import annotations

import copy
import random
from contextlib import nullcontext

import pytest
import torch
from builders import random_batch, random_trajectory, tiny_model
from transformers import AutoModelForCausalLM, Qwen2Config

from mem1.packing import Pack
from mem1.packing.attention import tree_attention
from mem1.planning.fakes import counted
from mem1.planning.steps import fake_buffers
from mem1.training.logprobs import score
from mem1.training.ranks.layers import layers, recomputed
from mem1.training.ranks.placement import Placement


@pytest.mark.parametrize("half", [False, True])
def test_the_gradient_is_the_same_bit_for_bit(half: bool):
    gradients = []
    for recompute in (False, True):
        model = tiny_model("qwen3", dtype=torch.float32, initializer_range=0.1)
        forward_passes: list[object] = []
        layers(model)[0].register_forward_pre_hook(lambda *given, seen=forward_passes: seen.append(given))
        attention: list[object] = []
        layers(model)[0].get_submodule("self_attn").register_forward_pre_hook(
            lambda *given, seen=attention: seen.append(given)
        )
        with tree_attention(model):
            with Placement(half=half, recompute=recompute).passes(model):
                found = score(model, Pack.whole(random_batch(0)), temperature=1.0, entropy="gradient")
            (found.logprobs_M.sum() + found.entropy_M.sum()).backward()
        assert (len(forward_passes), len(attention)) == (1, 1 + recompute)
        gradients.append([p.grad for p in model.parameters()])
    for kept, again in zip(*gradients, strict=True):
        assert kept is not None and again is not None and torch.equal(kept, again)


def test_afterwards_the_model_is_as_before_and_can_be_copied():
    model = tiny_model("qwen2")
    with recomputed(model):
        assert all("forward" in vars(layer) for layer in layers(model))
    assert not any("forward" in vars(layer) for layer in layers(model))
    copy.deepcopy(model)


def test_packs_are_computed_one_at_a_time():
    assert Placement().workers(4) == 4 and Placement(recompute=True).workers(4) == 1


def test_activations_of_the_layers_are_not_kept():
    shape = Qwen2Config(
        hidden_size=64,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        vocab_size=100,
    )
    attempt = random_trajectory(random.Random(0), turns=4, longest=200, vocabulary=99)
    peaks = []
    for recompute in (False, True):
        with counted() as count:
            model = AutoModelForCausalLM.from_config(shape)
            fake_buffers(model)
            held = count.live
            with tree_attention(model), recomputed(model) if recompute else nullcontext():
                score(model, Pack.whole([attempt]), temperature=1.0).logprobs_M.sum().backward()
            gradients = sum(4 * p.numel() for p in model.parameters())
            peaks.append(count.peak - held - gradients)
    kept, again = peaks
    assert again < kept / 3, (again, kept)
