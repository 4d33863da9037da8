"""Compiled layers: one graph for all layers and lengths, the same log-probs and gradient, nothing compiled anew."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import pytest
import torch
from builders import random_group, tiny_model
from torch import Tensor
from torch._dynamo import reset
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from transformers import PreTrainedModel

from mem1.api import load_recipe
from mem1.engines.device import Device
from mem1.errors import UserError
from mem1.packing import TokenTree, pack
from mem1.packing.attention import Backend, tree_attention
from mem1.training.logprobs import flat_logprobs
from mem1.training.ranks.layers import GRAPHS, compiled, layers, recomputed
from mem1.training.ranks.placement import Placement
from mem1.training.ranks.processes import Ranks


@pytest.fixture(autouse=True)
def fresh():
    reset()
    counters.clear()
    yield
    reset()


def trees(turns: Sequence[int]) -> list[TokenTree]:
    rng = random.Random(0)
    return [pack(random_group(rng, 3, policy="constant", turns=number)) for number in turns]


def gradient(model: PreTrainedModel, tree: TokenTree) -> tuple[Tensor, list[Tensor]]:
    """Log-probs and gradient, by the whole mask: FlexAttention has no backward pass on a CPU."""
    model.zero_grad()
    with tree_attention(model):
        found = flat_logprobs(model, tree, temperature=1.0, backend="dense")
        found.sum().backward()
    return found.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("again", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
def test_all_layers_and_lengths_are_one_graph_with_the_same_gradient(kind: str, again: bool):
    model = tiny_model(kind, dtype=torch.float32, initializer_range=0.1)
    assert len(layers(model)) > 1
    counter = CompileCounter()
    for tree in trees([2, 7, 12, 20]):
        logprobs, plain = gradient(model, tree)
        with compiled(model, backend=counter):
            if again:
                with recomputed(model):
                    found, given = gradient(model, tree)
            else:
                found, given = gradient(model, tree)
        assert torch.equal(found, logprobs) and len(given) == len(plain) > 0
        assert all(torch.equal(one, other) for one, other in zip(given, plain, strict=True))
        assert counter.frame_count == 1, "compiled anew"
    assert not counters["graph_break"]
    assert not any("forward" in vars(layer) for layer in layers(model))
    copy.deepcopy(model)


def test_flex_attention_is_compiled_with_its_layer_and_again_only_for_a_first_tree_of_several_blocks():
    model = tiny_model("qwen3", dtype=torch.float32, initializer_range=0.1)
    counter, graphs = CompileCounter(), []
    for tree in trees([2, 12, 7, 20, 33, 41]):
        with torch.no_grad():
            plain = flat_logprobs(model, tree, temperature=1.0, backend="flex")
            with compiled(model, backend=counter):
                found = flat_logprobs(model, tree, temperature=1.0, backend="flex")
        assert torch.allclose(found, plain, atol=1e-5)
        graphs.append(counter.frame_count)
    assert graphs == [1, 2, 2, 2, 2, 2] and not counters["graph_break"]


def test_half_precision_and_frozen_networks_have_graphs_of_their_own_within_the_limit():
    counter = CompileCounter()
    models = [tiny_model("qwen2", seed=seed, dtype=torch.float32) for seed in (0, 1)]
    models[1].requires_grad_(False)
    few, many = trees([2, 20])

    def all_ways(backend: Backend) -> None:
        for model in models:
            for tree in (few, many):
                for half in (False, True):
                    with compiled(model, backend=counter), torch.autocast("cpu", torch.bfloat16, enabled=half):
                        with torch.no_grad():
                            flat_logprobs(model, tree, temperature=1.0, backend=backend)
                        flat_logprobs(model, tree, temperature=1.0, backend="dense")

    all_ways("flex")
    before = counter.frame_count
    assert 4 <= before <= GRAPHS
    all_ways("flex")
    assert counter.frame_count == before


@pytest.mark.slow
def test_the_real_compiler_agrees_but_for_rounding():
    model = tiny_model("qwen2", dtype=torch.float32, initializer_range=0.1)
    for tree in trees([2, 12]):
        logprobs, plain = gradient(model, tree)
        with compiled(model):
            found, given = gradient(model, tree)
        assert torch.allclose(found, logprobs, atol=1e-5)
        assert all(torch.allclose(one, other, atol=1e-3) for one, other in zip(given, plain, strict=True))


META = Device(name="cuda:0", at=torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("given", "ranks", "why"),
    [
        ((), Ranks(), "elsewhere each pack would be compiled anew"),
        (("model.attention=blocks",), Ranks(device=META), "elsewhere each pack would be compiled anew"),
        (("rl.packed=false", "sft=null"), Ranks(device=META), "elsewhere each pack would be compiled anew"),
        (('lora={quantize="nf4"}',), Ranks(device=META), "layers in 4 bits are not compiled"),
    ],
)
def test_what_cannot_be_compiled_is_refused(given: tuple[str, ...], ranks: Ranks, why: str):
    recipe = load_recipe("atlas-quick", "model.compile=true", *given)
    with pytest.raises(UserError, match=why):
        Placement.of(recipe, ranks)


def test_packs_are_computed_one_at_a_time():
    placement = Placement.of(load_recipe("atlas-quick", "model.compile=true"), Ranks(device=META))
    assert placement.compile and placement.workers(4) == 1
    assert "attention by flex, compiled" in str(placement.computed)
