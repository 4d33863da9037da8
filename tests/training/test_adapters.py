"""LoRA: adapters learn and the rest stays; off, they are the reference; merged, they are weights of a plain model."""

from __future__ import annotations

import copy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from builders import save_checkpoint, tiny_model
from precision import rounding
from rank_steps import attempts
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from worlds import CODEC

from mem1.algorithms.losses import Kl
from mem1.engines.base import Sampling
from mem1.engines.local import LocalEngine
from mem1.errors import UserError
from mem1.packing import pack
from mem1.policy.policy import Policy
from mem1.recipe.model import Lora
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import Phase, Rl
from mem1.records import Trajectory, Turn
from mem1.training.logprobs import completion_logprobs, flat_logprobs
from mem1.training.ranks.adapters import adapters_off, merged, with_adapters
from mem1.training.ranks.placement import Placement
from mem1.training.rl import RlStage
from mem1.training.runs.checkpoint import load_weights

pytestmark = [pytest.mark.numeric, pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")]


def logprobs(model: Any) -> torch.Tensor:
    trajectories = [t for group in attempts() for t in group.trajectories]
    with torch.no_grad():
        return flat_logprobs(model, pack(trajectories), temperature=1.0)


Learnt = tuple[RlStage, list[dict[str, Any]]]


def three_steps(model: Any, lora: Lora, *, applied: bool = False) -> Learnt:
    """A stage after three steps, and the rows of their metrics."""
    options: dict[str, Any] = {"tasks_per_step": 3, "group_size": 3, "warmup": 0, "learning_rate": 1e-2}
    config = Rl(curriculum=(Phase(steps=3),), kl=Kl(where="reward"), **options)
    policy, nothing, placement = Policy(model, cast(Any, None)), cast(Any, None), Placement(lora=lora, applied=applied)
    stage = RlStage(policy, config, nothing, nothing, seed=0, placement=placement)
    return stage, [dict(stage.update(attempts(), index)) for index in range(3)]


@pytest.fixture(scope="module")
def learnt() -> Learnt:
    return three_steps(tiny_model("qwen2"), Lora(rank=3))


def test_new_adapters_change_nothing():
    model = tiny_model("qwen2")
    before = logprobs(model)
    assert torch.equal(logprobs(with_adapters(copy.deepcopy(model), Lora())), before)


def test_only_adapters_are_moved(learnt: Learnt):
    stage, _ = learnt
    plain = dict(tiny_model("qwen2").named_parameters())
    moved = {name for name, p in stage.model.named_parameters() if p.requires_grad}
    assert moved and all("lora_" in name for name in moved)
    for name, p in stage.model.named_parameters():
        if name not in moved:
            assert torch.equal(p, plain[name.replace(".base_layer", "")]), name
    assert {id(p) for p in stage.optimizers.parameters} == {
        id(p) for name, p in stage.model.named_parameters() if name in moved
    }


def test_merged_weights_are_the_adapted_model(learnt: Learnt):
    stage, _ = learnt
    assert (logprobs(stage.model) - logprobs(stage.policy.model)).abs().max() > 1e-3, "nothing published yet"
    stage.placement.sync_to_sampler(stage.model, stage.policy.model)
    torch.testing.assert_close(logprobs(stage.policy.model), logprobs(stage.model), rtol=0, atol=1e-12)
    assert stage.policy.model.state_dict().keys() == tiny_model("qwen2").state_dict().keys()


def test_the_reference_is_the_model_without_adapters_and_no_copy(learnt: Learnt):
    stage, rows = learnt
    with adapters_off(stage.model):
        assert torch.equal(logprobs(stage.model), logprobs(tiny_model("qwen2")))
    assert stage.networks.reference is not None and list(stage.networks.reference.parameters()) == []
    (before, *_), *_ = stage.networks.old_policy_stats([g.trajectories for g in attempts()])
    assert before.reference_K is not None
    (first, *_) = attempts()[0].trajectories
    with torch.no_grad():
        wanted = flat_logprobs(tiny_model("qwen2"), pack([first]), temperature=1.0)
    torch.testing.assert_close(before.reference_K, wanted, rtol=0, atol=1e-12)
    assert len({row["loss"] for row in rows}) == 3


def sampled(stage: RlStage) -> None:
    """The policy samples, and its log-probs are the trained model's, by which the trainer divides."""
    contexts = [turn.context_ids for t in attempts()[0].trajectories for turn in t.turns]
    engine = LocalEngine(stage.policy.model, CODEC, ["a stop string that never comes"])
    done = engine.complete(contexts, max_tokens=[6] * len(contexts), sampling=Sampling(seed=1))
    turns = [
        Turn(context_ids=context, completion_ids=one.token_ids, logprobs=one.logprobs)
        for context, one in zip(contexts, done, strict=True)
    ]
    attempt = Trajectory(turns=tuple(turns))
    with torch.no_grad():
        ((*wanted,),) = completion_logprobs(stage.model, [attempt])
    theirs = torch.cat([torch.tensor(turn.logprobs) for turn in turns]).double()
    atol = rounding(stage.policy.model, tokens=len(pack([attempt])), magnitude=float(theirs.abs().max()))
    atol += len(CODEC.tokenizer.get_vocab()) * 2**-23  # the sampler sums over the vocabulary in fp32
    torch.testing.assert_close(torch.cat(wanted).double(), theirs, rtol=0, atol=atol)


@pytest.mark.parametrize("quantize", [None, "nf4"])
def test_in_one_process_the_policy_samples_with_its_adapters_and_nothing_is_copied(
    quantize: Any, request: Any, tmp_path: Path
):
    if quantize is not None:
        pytest.importorskip("bitsandbytes")
    copied, rows = request.getfixturevalue("learnt" if quantize is None else "rounded")
    plain = tiny_model("qwen2") if quantize is None else unrounded()
    frozen = sum(p.numel() for name, p in plain.named_parameters() if "_proj" not in name)
    stage, own_rows = three_steps(plain, Lora(rank=3, quantize=quantize), applied=True)
    assert stage.model is stage.policy.model
    assert sum(p.numel() for n, p in stage.model.named_parameters() if "lora_" not in n and "_proj" not in n) == frozen
    assert [row["loss"] for row in own_rows] == pytest.approx([row["loss"] for row in rows], abs=1e-5)
    sampled(stage)
    trained = dict(merged(stage.model))
    saved = stage.placement.exact_weights(stage.model, stage.policy.model)
    Policy(stage.policy.model, CODEC).save(tmp_path / "best", saved)
    assert [row["loss"] for row in [stage.update(attempts(), 3)]], "training goes on"
    found = load_file(tmp_path / "best" / "model.safetensors")
    assert all(torch.equal(found[name], weight) for name, weight in trained.items()) and len(found) == len(trained)
    trained = dict(merged(stage.model))
    stage.placement.hand_back(stage.model, stage.policy.model)
    now = stage.policy.model.state_dict()
    assert now.keys() == (tiny_model("qwen2") if quantize is None else unrounded()).state_dict().keys()
    assert all(torch.equal(now[name], weight) for name, weight in trained.items())
    assert all(p.requires_grad for p in stage.policy.model.parameters())
    if quantize is None:
        copied.placement.sync_to_sampler(copied.model, copied.policy.model)
        wanted = copied.policy.model.state_dict()
        torch.testing.assert_close(found, {name: wanted[name] for name in found}, rtol=0, atol=1e-12)


def test_layers_are_chosen_by_name_and_a_wrong_name_is_a_user_error():
    model = with_adapters(tiny_model("qwen2"), Lora(layers=("q_proj",)))
    assert {n.split(".lora_")[0].rsplit(".", 1)[-1] for n, p in model.named_parameters() if p.requires_grad} == {
        "q_proj"
    }
    with pytest.raises(UserError, match=r"lora\.layers = \['q_porj'\] does not fit the model"):
        with_adapters(tiny_model("qwen2"), Lora(layers=("q_porj",)))


@pytest.mark.parametrize(
    ("family", "layers", "message"),
    [
        ("qwen2", ("q_proj", "lm_head"), "lm_head is the head"),
        ("qwen2", ("q_proj", "embed_tokens"), "embed_tokens is of type Embedding"),
        ("gpt2", ("attn.c_proj",), r"h\.0\.attn\.c_proj is of type Conv1D"),
        ("gpt2", None, "the model has none but its head"),
    ],
)
@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings", "ignore:fan_in_fan_out")
def test_adapters_are_for_linear_layers_but_the_head(family: str, layers: tuple[str, ...] | None, message: str):
    with pytest.raises(UserError, match=message):
        with_adapters(small(family), Lora(rank=2, layers=layers))


def test_linear_layers_of_a_mixture_of_experts_get_adapters_and_its_experts_none():
    model = small("qwen3_moe", moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
    plain = {name: tuple(p.shape) for name, p in model.named_parameters()}
    adapted = with_adapters(model, Lora(rank=2))
    assert {n.split(".lora_")[0].rsplit(".", 1)[-1] for n, p in adapted.named_parameters() if p.requires_grad} == {
        *("q_proj", "k_proj", "v_proj", "o_proj")
    }
    assert {name: tuple(weight.shape) for name, weight in merged(adapted)} == plain


def small(family: str, **shape: int) -> Any:
    """A model of another family than those of `tiny_model`."""
    width = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 100}
    if family == "gpt2":
        width = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0}
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **width, **shape))


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"recall": {}}, r"\[lora\] is for \[sft\] and \[rl\]; train \[recall\] in a recipe of its own"),
        ({"sft": {}}, r'sft\.optimizer = "muon" is for whole matrices; set sft\.optimizer = "adamw"'),
        (
            {"sft": {"optimizer": "adamw"}, "rl": {"curriculum": [{"steps": 1}]}, "lora": {"quantize": "nf4"}},
            r"train \[sft\] and \[rl\] in two recipes, the second with the first one's policy as model\.path",
        ),
    ],
)
def test_stages_that_adapters_do_not_fit_are_refused(sections: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Recipe.model_validate({"tasks": {"kind": "atlas"}, "lora": {}, **sections})


def unrounded() -> Any:
    """A model whose rows are whole blocks."""
    return tiny_model("qwen2", dtype=torch.float32, hidden_size=64, intermediate_size=128)


@pytest.fixture(scope="module")
def rounded() -> Learnt:
    """On frozen layers in 4 bits."""
    pytest.importorskip("bitsandbytes")
    return three_steps(unrounded(), Lora(rank=3, quantize="nf4"))


class TestInFourBits:
    def test_linear_layers_but_the_head_take_half_a_byte_a_weight_and_a_scale_for_64(self, rounded):
        stage, _ = rounded
        plain = dict(unrounded().named_parameters())
        small = {name: p for name, p in stage.model.named_parameters() if p.dtype == torch.uint8}
        assert {name.rsplit(".", 3)[-3] for name in small} == {
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"
        }  # fmt: skip
        for name, parameter in small.items():
            weights = plain[name.replace(".base_layer", "")].numel()
            assert parameter.numel() == weights // 2
            assert cast(Any, parameter).quant_state.absmax.numel() == weights // 64
        assert stage.model.get_output_embeddings().weight.dtype == torch.float32

    def test_no_layer_ever_switches_to_a_form_without_a_backward_pass(self, rounded):
        """bitsandbytes would, in evaluation mode, on processors with AVX512-BF16."""
        from bitsandbytes.nn.modules import Linear4bit

        layers = [layer for layer in rounded[0].model.modules() if isinstance(layer, Linear4bit)]
        assert layers and not any(layer.support_avx512bf16_for_cpu for layer in layers)

    @torch.no_grad()
    def test_only_adapters_are_moved_and_frozen_weights_are_no_more_than_rounded(self, rounded):
        stage, rows = rounded
        assert {name for name, p in stage.model.named_parameters() if p.requires_grad} == {
            name for name, _ in stage.model.named_parameters() if "lora_" in name
        }
        assert len({row["loss"] for row in rows}) == 3
        fresh = dict(merged(Placement(lora=Lora(rank=3, quantize="nf4")).trained(unrounded())))
        for name, weight in unrounded().named_parameters():
            error = (fresh[name] - weight).abs()
            if "_proj.weight" not in name:
                assert error.max() == 0
                continue
            # two neighbouring values of NF4 lie at most 0.304 of the largest weight of a block apart
            largest = weight.view(-1, 64).abs().amax(1)
            assert (error.view(-1, 64).amax(1) <= 0.1525 * largest).all() and error.max() > 0

    def test_the_policy_that_samples_has_the_rounded_weights_and_the_adapters(self, rounded):
        stage, _ = rounded
        stage.placement.sync_to_sampler(stage.model, stage.policy.model)
        ours, theirs = logprobs(stage.model), logprobs(stage.policy.model)
        tokens = sum(len(pack(list(group.trajectories))) for group in attempts())
        atol = rounding(stage.policy.model, tokens=tokens, magnitude=float(ours.abs().max()))
        torch.testing.assert_close(theirs, ours, rtol=0, atol=atol)
        assert (logprobs(stage.policy.model) - logprobs(unrounded())).abs().max() > 1e-3
        assert stage.policy.model.state_dict().keys() == unrounded().state_dict().keys()

    def test_a_checkpoint_has_no_rounded_weight_and_gives_back_the_rest(self, rounded, tmp_path):
        stage, _ = rounded
        save_checkpoint(tmp_path, 3, stage.model, stage.optimizers.members, fingerprint="f")
        kept = load_file(tmp_path / "checkpoint-000003" / "model" / "model.safetensors")
        assert not any(tensor.dtype == torch.uint8 or "absmax" in name for name, tensor in kept.items())
        again = stage.placement.trained(unrounded())
        load_weights(tmp_path / "checkpoint-000003", again)
        assert torch.equal(logprobs(again), logprobs(stage.model))

    def test_a_model_that_cannot_be_quantised_is_a_user_error(self, monkeypatch):
        with pytest.raises(UserError, match="no linear layer whose inputs are a multiple of 64"):
            with_adapters(tiny_model("qwen2"), Lora(quantize="nf4"))
        monkeypatch.setitem(sys.modules, "bitsandbytes.nn.modules", None)
        with pytest.raises(UserError, match=r"pip install 'mem1-agents\[qlora\]'"):
            with_adapters(unrounded(), Lora(quantize="nf4"))
