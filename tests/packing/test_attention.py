"""Attention over the token tree: blocks equal the dense mask, and what cannot be exact is refused by name."""

from __future__ import annotations

import random

import pytest
import torch
from builders import random_batch, random_group, random_trajectory, tiny_model, trajectory
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    JambaConfig,
    JambaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from mem1.errors import UserError
from mem1.packing import TokenTree, pack, visible
from mem1.packing.attention import Backend, check_packable, plan_attention, tree_attention
from mem1.packing.blocks import Part, cut

pytestmark = pytest.mark.numeric

HEADS = [(4, 4), (4, 2), (6, 1)]
"""(query heads, key-value heads): one each, grouped, all queries on one."""


def vectors(tree: TokenTree, heads: tuple[int, int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    sizes = (heads[0], heads[1], heads[1])
    drawn = [torch.randn(len(tree), n, 8, generator=generator, dtype=torch.float64) for n in sizes]
    return [x.to(dtype).requires_grad_() for x in drawn]


def attend(tree: TokenTree, qkv: list[Tensor], backend: Backend) -> tuple[Tensor, list[Tensor]]:
    """Output, and gradients of a fixed random weighting of it."""
    q, k, v = qkv
    out = plan_attention(tree, backend=backend).attend(q, k, v, 0.5)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(out.dtype)
    return out.detach(), list(torch.autograd.grad((out * weight).sum(), qkv))


def large_tree() -> TokenTree:
    """Several prompts and policies; parts that are causal, masked, later, and with keys from here and there."""
    rng = random.Random(0)
    trajectories = [t for _ in range(2) for t in random_group(rng, 2, turns=3, longest=40, prompt=150)]
    short = [trajectory(([1, 2, 3], [first, *range(10, 39)])) for first in range(20)]
    return pack([*trajectories, random_trajectory(rng, policy="full", turns=6, longest=60), *short])


def nodes(part: Part) -> list[int]:
    return part.keys.tolist() if isinstance(part.keys, Tensor) else list(range(*part.keys))


def pairs_computed(tree: TokenTree) -> Tensor:
    """How often each (query, key) pair is computed, (T, T)."""
    times = torch.zeros(len(tree), len(tree), dtype=torch.int64)
    parts = cut(tree)
    for part in (*parts.first, *parts.later):
        rows, keys = slice(*part.queries), nodes(part)
        seen = torch.ones(part.queries[1] - part.queries[0], len(keys), dtype=torch.int64)
        if part.causal:
            seen = seen.tril()
        times[rows, keys] += seen if part.hidden is None else seen * ~part.hidden
    return times


@settings(max_examples=30)
@given(st.integers(0, 10**6))
def test_every_visible_pair_is_computed_once_and_no_other(seed: int):
    tree = pack(random_batch(seed))
    assert pairs_computed(tree).equal(visible(tree).long())


def branching_tree(rng: random.Random) -> TokenTree:
    """Up to 14 segments of 1 to 120 tokens, each below any earlier one or at the root: larger than what is together."""
    paths: list[list[int]] = [[]]
    for number in range(rng.randint(3, 14)):
        length = rng.choice((rng.randint(1, 8), rng.randint(1, 120)))
        paths.append([*rng.choice(paths), *range(1000 * number, 1000 * number + length)])
    return pack([trajectory((path, [])) for path in paths[1:]])


@settings(max_examples=60)
@given(st.integers(0, 10**6))
def test_every_visible_pair_of_a_tree_that_is_cut_is_computed_once_and_no_other(seed: int):
    tree = branching_tree(random.Random(seed))
    assert pairs_computed(tree).equal(visible(tree).long())


def test_the_drawn_trees_are_cut_in_every_way():
    cuts = [cut(branching_tree(random.Random(seed))) for seed in range(40)]
    firsts, laters = [p for c in cuts for p in c.first], [p for c in cuts for p in c.later]
    assert {p.causal for p in firsts} == {True, False} and len(laters) > 40
    assert {isinstance(p.keys, Tensor) for p in firsts} == {isinstance(p.keys, Tensor) for p in laters} == {True, False}


def test_neighbours_under_other_nodes_are_not_computed_together():
    # below 1..10 hang 11..20 and, below that, 21..25; 30..34 hangs below the prompt alone
    prompt, middle = list(range(60)), list(range(100, 130))
    paths = ([*prompt, *middle, *range(200, 290)], [*prompt, *middle, 300], [*prompt, 400], [*prompt, 500])
    tree = pack([trajectory((path, [])) for path in paths])
    assert pairs_computed(tree).equal(visible(tree).long())


def test_every_visible_pair_is_computed_once_in_a_large_tree():
    tree = large_tree()
    parts = cut(tree)
    assert {part.causal for part in parts.first} == {True, False} and len(parts.later) > 1
    assert any(isinstance(part.keys, Tensor) for part in (*parts.first, *parts.later))
    assert pairs_computed(tree).equal(visible(tree).long())
    assert sorted(node for part in parts.first for node in range(*part.queries)) == list(range(len(tree)))


def test_a_shared_prompt_is_one_part_for_all_below_it():
    prompt = list(range(100))
    parts = cut(pack([trajectory((prompt, [first] * 100)) for first in range(3)]))
    assert [(p.queries, p.keys, p.causal) for p in parts.first] == [
        ((start, start + 100), (start, start + 100), True) for start in (0, 100, 200, 300)
    ]
    assert [(p.queries, p.keys, p.hidden) for p in parts.later] == [((100, 400), (0, 100), None)]


def test_a_chain_is_one_causal_part_however_long():
    (part,) = cut(pack([trajectory((range(400), []))])).first
    assert (part.queries, part.keys, part.causal, part.hidden) == ((0, 400), (0, 400), True, None)


def test_short_branches_under_a_short_prompt_are_computed_together():
    tree = pack([trajectory(([1, 2, 3], [first, *range(10, 39)])) for first in range(20)])
    assert len(tree.segments) == 21
    parts = cut(tree)
    # The prompt, then three branches at a time with its three keys.
    assert [p.queries for p in parts.first] == [(0, 3), *((start, min(start + 90, 603)) for start in range(3, 603, 90))]
    assert [nodes(p) for p in parts.first[1:3]] == [list(range(93)), [0, 1, 2, *range(93, 183)]]
    assert parts.later == ()


def test_blocks_equal_the_dense_mask_in_output_and_gradient():
    tree = large_tree()
    qkv = vectors(tree, (4, 2))
    out, gradients = attend(tree, qkv, "blocks")
    expected, expected_gradients = attend(tree, qkv, "dense")
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    for gradient, wanted in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=0, atol=1e-11)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(HEADS))
def test_blocks_equal_the_dense_mask_on_any_tree(seed: int, heads: tuple[int, int]):
    tree = pack(random_batch(seed))
    qkv = vectors(tree, heads)
    out, gradients = attend(tree, qkv, "blocks")
    expected, expected_gradients = attend(tree, qkv, "dense")
    for got, wanted in zip([out, *gradients], [expected, *expected_gradients], strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-12)


def test_plain_products_equal_the_fused_kernel():
    """What a device without that kernel computes."""
    tree = large_tree()
    qkv = vectors(tree, (4, 2))
    fused = attend(tree, qkv, "blocks")
    plain = attend(tree, qkv, "products")
    for got, wanted in zip([plain[0], *plain[1]], [fused[0], *fused[1]], strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-11)


def test_gradients_of_blocks_are_the_numerical_ones():
    tree = pack([trajectory(([1], [2, 3]), ([1, 2, 3, 4], [5])), trajectory(([1], [2, 4]))])
    plan = plan_attention(tree)
    qkv = [x[:, :, :2].detach().clone().requires_grad_() for x in vectors(tree, (2, 1))]
    assert torch.autograd.gradcheck(lambda q, k, v: plan.attend(q, k, v, 0.7), qkv)


def test_very_large_scores_stay_finite():
    tree = pack(random_batch(3))
    q, k, v = (x.detach().float() for x in vectors(tree, (2, 2)))
    inputs = [(1000 * q).requires_grad_(), (1000 * k).requires_grad_(), v.requires_grad_()]
    out, gradients = attend(tree, inputs, "blocks")
    assert all(x.isfinite().all() for x in [out, *gradients])


def test_bf16_is_as_close_as_bf16_can_be():
    tree = large_tree()
    exact, _ = attend(tree, vectors(tree, (4, 2)), "dense")
    out, gradients = attend(tree, vectors(tree, (4, 2), torch.bfloat16), "blocks")
    assert out.dtype == torch.bfloat16 and {g.dtype for g in gradients} == {torch.bfloat16}
    assert (out - exact).abs().max() < 0.05


def test_the_gradient_in_bf16_is_computed_in_fp32():
    tree = large_tree()
    rounded = vectors(tree, (4, 2), torch.bfloat16)
    _, gradients = attend(tree, rounded, "blocks")
    _, expected = attend(tree, [x.detach().double().requires_grad_() for x in rounded], "dense")
    for gradient, wanted in zip(gradients, expected, strict=True):
        # of the output, which is saved in bf16, and of the result: each has eight digits
        assert (gradient - wanted).norm() < 2**-8 * wanted.norm()


def test_attention_is_restored_afterwards_even_after_an_error():
    model = tiny_model("llama")
    before = model.config._attn_implementation
    with tree_attention(model):
        assert model.config._attn_implementation == "mem1_tree" != before
    with pytest.raises(KeyError), tree_attention(model):
        raise KeyError
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
def test_generation_by_the_same_model_is_unchanged(kind: str):
    model = tiny_model(kind).eval()
    ids, mask = torch.tensor([[0, 5, 6, 7], [1, 2, 3, 4]]), torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    tree = pack(random_batch(0))

    def sample() -> Tensor:
        options = {"do_sample": False, "max_new_tokens": 8, "pad_token_id": 0}
        return model.generate(ids, attention_mask=mask, **options)  # pyright: ignore[reportCallIssue]

    before = sample()
    with tree_attention(model):
        decoder = model.get_decoder()
        decoder(tree.input_ids[None], position_ids=tree.position_ids[None], tree_plan=plan_attention(tree))
    assert before.shape == (2, 12)
    assert sample().equal(before)


@pytest.mark.parametrize("mistake", ["no plan", "a mask", "two rows"])
def test_a_forward_pass_that_is_not_one_tree_is_an_error(mistake: str):
    model, tree = tiny_model("llama"), pack(random_batch(0))
    rows = 2 if mistake == "two rows" else 1
    ids, positions = tree.input_ids.expand(rows, -1), tree.position_ids.expand(rows, -1)
    mask = torch.ones(1, 1, len(tree), len(tree), dtype=torch.bool) if mistake == "a mask" else None
    plan = {} if mistake == "no plan" else {"tree_plan": plan_attention(tree)}
    with tree_attention(model), pytest.raises(ValueError, match="tree attention takes one tree"):
        model.get_decoder()(ids, position_ids=positions, attention_mask=mask, **plan)


@pytest.mark.parametrize("kind", ["qwen2", "llama", "qwen3"])
def test_the_tested_architectures_are_packable(kind: str):
    check_packable(tiny_model(kind))


TINY = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "bos_token_id": None}
FEED = {**TINY, "intermediate_size": 16, "num_key_value_heads": 2, "eos_token_id": None, "pad_token_id": None}


def _sliding_qwen2() -> PreTrainedModel:
    return tiny_model("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=1)


def _next_config() -> Qwen3NextConfig:
    linear = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8}
    return Qwen3NextConfig(
        **{**FEED, **linear, "linear_value_head_dim": 8, "num_experts": 2, "head_dim": 8},
        layer_types=["linear_attention", "full_attention"],
    )


def _with_dropout_module() -> PreTrainedModel:
    model = tiny_model("llama")
    model.get_submodule("model.layers.1.mlp").add_module("adapter_dropout", nn.Dropout(0.05))
    return model


REFUSED = {
    "sliding layers": (_sliding_qwen2, "sliding_attention"),
    "a sliding window": (lambda: MistralForCausalLM(MistralConfig(**FEED, sliding_window=4)), "sliding_window = 4"),
    "state-space layers": (lambda: MambaForCausalLM(MambaConfig(**TINY)), r"state-space layers \(state_size = 16\)"),
    "some state-space layers": (
        lambda: JambaForCausalLM(JambaConfig(**FEED, num_experts=1)),
        r"state-space layers \(mamba_d_state = 16\)",
    ),
    "linear attention": (lambda: Qwen3NextForCausalLM(_next_config()), "layers of type linear_attention"),
    "many experts": (
        lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**FEED, num_experts=4, num_experts_per_tok=2)),
        r"mixture of experts \(num_experts = 4\)",
    ),
    "experts": (lambda: MixtralForCausalLM(MixtralConfig(**FEED)), "mixture of experts"),
    "attention dropout": (lambda: tiny_model("qwen3", attention_dropout=0.1), "attention_dropout = 0.1"),
    "a dropout module": (_with_dropout_module, r"layers\.1\.mlp\.adapter_dropout is a dropout of 0\.05"),
    "residual dropout": (lambda: GPT2LMHeadModel(GPT2Config(**TINY)), "resid_pdrop = 0.1"),
    "softcaps": (lambda: Gemma2ForCausalLM(Gemma2Config(**FEED, head_dim=8)), "final_logit_softcapping = 30"),
    "sinks": (lambda: GptOssForCausalLM(GptOssConfig(**FEED, head_dim=8, num_local_experts=2)), "attention sink"),
    "another architecture": (
        lambda: MistralForCausalLM(MistralConfig(**FEED, sliding_window=None)),
        "architecture 'mistral' is not among those tested: qwen2, llama, qwen3",
    ),
    "dynamic positions": (
        lambda: tiny_model("llama", rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        "rope_type 'dynamic'",
    ),
    "positions by length": (
        lambda: tiny_model(
            "llama",
            rope_parameters={
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 4,
                "long_factor": [2.0] * 4,
                "original_max_position_embeddings": 64,
            },
        ),
        "rope_type 'longrope'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_that_cannot_be_exact_is_refused_by_name_with_the_way_out(name: str):
    build, reason = REFUSED[name]
    with pytest.raises(UserError, match=reason) as refusal:
        check_packable(build())
    assert "packed = false" in str(refusal.value)
