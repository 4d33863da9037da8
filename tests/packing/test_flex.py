"""FlexAttention over the token tree: its mask, its forward pass on CPU, and on CUDA its gradients."""

from __future__ import annotations

import random

import pytest
import torch
from builders import random_batch, random_group, random_trajectory, tiny_model, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask

from mem1.errors import UserError
from mem1.packing import TokenTree, pack, visible
from mem1.packing.attention import BLOCK, Backend, plan_attention, plan_flex
from mem1.training.logprobs import flat_logprobs

pytestmark = [pytest.mark.numeric, pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")]
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def large_tree(prompt: int = 150) -> TokenTree:
    """Several blocks; no branch begins at the border of one."""
    rng = random.Random(0)
    trajectories = [t for _ in range(2) for t in random_group(rng, 2, turns=3, longest=40, prompt=prompt)]
    return pack([*trajectories, random_trajectory(rng, policy="full", turns=6, longest=60)])


def vectors(
    tree: TokenTree, *, size: int = 16, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Queries of 4 heads, keys and values of 2."""
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(len(tree), heads, size, generator=generator) for heads in (4, 2, 2)]
    return [x.to(device, dtype) for x in drawn]


@pytest.mark.parametrize("prompt", [1, 100, 127, 128, 129, 300])
def test_the_blocks_are_those_found_by_looking_at_every_pair(prompt: int):
    mask = plan_flex(large_tree(prompt), "cpu").mask
    assert mask.mask_mod is not None
    brute = create_block_mask(mask.mask_mod, None, None, *mask.seq_lengths, device="cpu")
    for name in ("kv_num_blocks", "full_kv_num_blocks", "q_num_blocks", "full_q_num_blocks"):
        assert getattr(mask, name).equal(getattr(brute, name)), name
    assert mask.to_dense().equal(brute.to_dense())
    assert mask.full_kv_num_blocks is not None and mask.full_kv_num_blocks.sum() > 0


def test_a_prompt_of_two_blocks_with_two_branches_of_one():
    # keys: prompt prompt left right; the right branch does not see the left one
    tree = pack([trajectory((range(256), [first] * 128)) for first in (1, 2)])
    mask = plan_flex(tree, "cpu").mask
    assert mask.kv_num_blocks[0, 0].tolist() == [1, 1, 1, 1]
    assert mask.kv_indices[0, 0, :, 0].tolist() == [0, 1, 2, 3]
    assert mask.full_kv_num_blocks is not None and mask.full_kv_indices is not None
    assert mask.full_kv_num_blocks[0, 0].tolist() == [0, 1, 2, 2]
    assert mask.full_kv_indices[0, 0, 3, :2].tolist() == [0, 1]


@settings(max_examples=10)
@given(st.integers(0, 10**6))
def test_its_mask_is_that_of_the_tree_and_padding_sees_itself_alone(seed: int):
    tree = pack(random_batch(seed))
    mask = plan_flex(tree, "cpu").mask
    length = mask.seq_lengths[0]
    assert length % BLOCK == 0 and 0 <= length - len(tree) < BLOCK
    index = torch.arange(length)
    zero = torch.zeros((), dtype=torch.int64)
    found = mask.mask_mod(zero, zero, index[:, None], index[None, :])
    assert found[: len(tree), : len(tree)].equal(visible(tree))
    assert found[len(tree) :].equal(torch.eye(length, dtype=torch.bool)[len(tree) :])


def test_forward_equals_the_dense_mask_on_cpu():
    tree = large_tree()
    q, k, v = vectors(tree)
    out = plan_attention(tree, backend="flex").attend(q, k, v, 0.5)
    assert out.shape == q.shape
    torch.testing.assert_close(out, plan_attention(tree, backend="dense").attend(q, k, v, 0.5), rtol=0, atol=1e-12)


def test_log_probs_of_a_whole_model_equal_the_dense_ones_on_cpu():
    model, tree = tiny_model("qwen3", num_hidden_layers=1), pack(random_batch(1))
    with torch.no_grad():
        found, wanted = (flat_logprobs(model, tree, temperature=1.0, backend=b) for b in ("flex", "dense"))
    assert wanted.std() > 0.5
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-10)


def test_a_gradient_on_cpu_is_refused_with_the_way_out():
    tree = pack(random_batch(0))
    q, k, v = vectors(tree)
    with pytest.raises(UserError, match="no backward pass on cpu: train with attention = 'blocks'"):
        plan_attention(tree, backend="flex").attend(q, k, v.requires_grad_(), 0.5)


def output_and_gradients(tree: TokenTree, qkv: list[Tensor], backend: Backend) -> list[Tensor]:
    """Output, and gradients of a fixed random weighting of it, all in fp64."""
    qkv = [x.detach().requires_grad_() for x in qkv]
    out = plan_attention(tree, backend=backend, device=qkv[0].device).attend(*qkv, scaling=0.25)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return [x.double() for x in (out.detach(), *torch.autograd.grad((out * weight).sum(), qkv))]


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 3e-2)])
def test_output_and_gradients_equal_the_dense_mask_on_cuda(dtype: torch.dtype, tolerance: float):
    tree = large_tree()
    qkv = vectors(tree, size=64, device="cuda", dtype=dtype)
    found = output_and_gradients(tree, qkv, "flex")
    wanted = output_and_gradients(tree, [x.double() for x in qkv], "dense")
    for got, exact in zip(found, wanted, strict=True):
        assert (got - exact).norm() <= tolerance * exact.norm()


@pytest.mark.gpu
@NEEDS_CUDA
@pytest.mark.parametrize("offset", [1, 4, 63, 64, 65, 127, 128, 129])
def test_gradients_are_right_however_branches_lie_to_the_blocks(offset: int):
    """Guards against pytorch #158212: compiled FlexAttention gave wrong or nan gradients of keys and values for masks
    whose regions are shifted against the blocks of 128, while its outputs were right. The shared prompt shifts every
    branch; trees of several lengths run through the one compiled kernel, as lengths are dynamic."""
    for branches in (2, 7, 20):
        tree = pack([trajectory((range(offset), [first, *range(96 + first)])) for first in range(branches)])
        qkv = vectors(tree, size=64, device="cuda", dtype=torch.float32)
        found = output_and_gradients(tree, qkv, "flex")
        wanted = output_and_gradients(tree, [x.double() for x in qkv], "dense")
        for name, got, exact in zip(("output", "queries", "keys", "values"), found, wanted, strict=True):
            assert got.isfinite().all(), name
            assert (got - exact).norm() <= 1e-3 * exact.norm(), name


@pytest.mark.gpu
@NEEDS_CUDA
def test_a_whole_model_has_the_gradient_of_the_dense_mask_on_cuda():
    model = tiny_model("qwen2", dtype=torch.float32, hidden_size=128, intermediate_size=64)
    nn.Module.to(model, "cuda")
    tree = large_tree()
    gradients = []
    for backend in ("flex", "dense"):
        loss = flat_logprobs(model, tree, temperature=1.0, backend=backend).mean()
        gradients.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    assert (gradients[0] - gradients[1]).norm() <= 1e-3 * gradients[1].norm()
