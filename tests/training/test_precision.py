"""Training in bf16 by autocast: what of it is in bf16, and what stays in fp32."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import random_batch, tiny_model
from small_runs import SMALL_RL
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import AutoModelForCausalLM, GPT2Config, Qwen2Config, Qwen2ForCausalLM

from mem1.api import load_recipe
from mem1.engines.device import ON_CPU, Device
from mem1.errors import UserError
from mem1.packing import Pack
from mem1.planning.fakes import counted
from mem1.planning.steps import PLANNED_GPU, fake_buffers
from mem1.policy.policy import load_policy
from mem1.recipe.evaluation import Evaluation
from mem1.recipe.rl import Phase
from mem1.training.logprobs import score
from mem1.training.ranks import placement
from mem1.training.ranks.optimizers import adamw
from mem1.training.ranks.placement import Placement, samples_in_bfloat16, trains_in_bfloat16
from mem1.training.ranks.processes import Ranks
from mem1.training.train import Progress, train

GPU = Device(name="cuda:0", model="NVIDIA H100")
QUICK_CPU = Device(units=True)


class FlopsByType(TorchDispatchMode):
    """FLOPs of products, forwards and backwards, by the type of their first operand."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[torch.dtype] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if (formula := flop_registry.get(getattr(func, "_overloadpacket", None))) is not None:
            self.flops[args[0].dtype] += formula(*args, **(kwargs or {}), out_val=found)
        return found


@pytest.mark.parametrize(
    ("keys", "device", "trains", "samples"),
    [
        (("model.path=Qwen/Qwen2.5-0.5B",), GPU, True, True),
        (("model.path=Qwen/Qwen2.5-0.5B",), ON_CPU, False, False),
        (("model.path=Qwen/Qwen2.5-0.5B", "model.dtype=float32"), GPU, True, False),
        (("model.path=Qwen/Qwen2.5-0.5B", "model.training_dtype=float32"), GPU, False, False),
        (("model.path=smollm2",), GPU, True, True),
        (("model.path=smollm2",), PLANNED_GPU, True, True),
        ((), GPU, False, False),
        (("model.path=shipped-notes",), GPU, False, False),
        (("model.training_dtype=bfloat16",), GPU, True, True),
        (("model.training_dtype=bfloat16", "workers=1"), ON_CPU, True, True),
        (("model.path=smollm2", "workers=2"), QUICK_CPU, True, True),
        (("model.path=smollm2",), ON_CPU, False, False),
        (("model.path=shipped-notes",), QUICK_CPU, False, False),
    ],
)
def test_wide_models_train_and_sample_in_bf16_where_it_is_quick(
    keys: tuple[str, ...], device: Device, trains: bool, samples: bool
):
    config = load_recipe("atlas-quick", *keys)
    assert trains_in_bfloat16(config, device) is trains
    assert samples_in_bfloat16(config, device) is samples


@pytest.mark.parametrize(("width", "half"), [(511, False), (512, True)])
def test_a_folder_says_how_wide_its_model_is(width: int, half: bool, tmp_path: Path):
    GPT2Config(n_embd=width, n_head=1).save_pretrained(tmp_path)  # its own name for hidden_size
    assert trains_in_bfloat16(load_recipe("atlas-quick", f"model.path={tmp_path}"), GPU) is half


def test_so_do_a_snapshot_of_the_hub_and_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for path in ("me/small", "me/small:small.gguf", str(tmp_path / "small.gguf")):
        monkeypatch.setattr(placement, "policy_folder", {path: tmp_path / "small"}.__getitem__)
        for width, half in ((64, False), (1024, True)):
            GPT2Config(n_embd=width, n_head=1).save_pretrained(tmp_path / "small")
            assert trains_in_bfloat16(load_recipe("atlas-quick", f"model.path={path}"), GPU) is half


def test_weights_gradients_and_optimiser_are_fp32_and_log_probs_near():
    model, pack = tiny_model("qwen2", dtype=torch.float32, initializer_range=0.1), Pack.whole(random_batch(0))
    exact = score(model, pack, temperature=1.0).logprobs_M
    exact.sum().backward()
    wanted = [p.grad for p in model.parameters()]
    model.zero_grad()
    optimizer = adamw(model, 1e-3)
    with Placement(half=True).passes(model):
        found = score(model, pack, temperature=1.0)
    assert found.logprobs_M.dtype == found.states_MD.dtype == torch.float32
    assert 1e-5 < (found.logprobs_M - exact).abs().max() < 0.05, "bf16 has 8 bits"
    found.logprobs_M.sum().backward()
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        assert parameter.grad is not None and gradient is not None and parameter.grad.dtype == torch.float32
        assert (parameter.grad - gradient).abs().max() < 0.1 * gradient.abs().max()
    optimizer.step(scale=1.0)
    states = [x for state in optimizer.members[0].state.values() for x in state.values()]
    assert {x.dtype for x in (*states, *model.parameters())} == {torch.float32}


def test_next_to_no_products_stay_in_fp32():
    """Those of the rotary angles; TF32 would gain nothing."""
    wide = Qwen2Config(
        hidden_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        intermediate_size=2048,
        vocab_size=9000,
    )
    pack = Pack.whole(random_batch(0, vocabulary=9))
    with counted():
        model = AutoModelForCausalLM.from_config(wide)
        fake_buffers(model)
        with FlopsByType() as count, Placement(half=True).passes(model):
            score(model, pack, temperature=1.0).logprobs_M.sum().backward()
    assert count.flops[torch.bfloat16] > 1e8
    assert count.flops[torch.float32] < 1e-3 * count.flops[torch.bfloat16]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_adamw_is_one_kernel(device: str):
    with FakeTensorMode():
        weights = torch.nn.ParameterList([torch.empty(2, 3, device=device), torch.empty(3, device=device)])
        (member,) = adamw(weights, 1e-3).members
    assert member.defaults["fused"] is True


def test_a_run_does_not_go_on_in_another_precision_by_itself(tmp_path: Path):
    with_units, without = (Ranks(device=replace(ON_CPU, units=units)) for units in (True, False))
    policy = load_policy("shipped")
    wide = {"hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 1, "intermediate_size": 64}
    made = Qwen2Config(num_hidden_layers=1, vocab_size=policy.model.config.vocab_size, **wide)
    replace(policy, model=Qwen2ForCausalLM(made)).save_sealed(tmp_path / "model")
    sft = 'sft={steps=2, tasks=4, tokens=512, objectives=[1], optimizer="adamw"}'
    keys = ("rl=null", sft, "workers=1", "writers=[]", "checkpoint_every=1")
    recipe = load_recipe("atlas-quick", f"model.path={tmp_path / 'model'}", *keys)

    def one_step(progress: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run", command=["mem1"], ranks=with_units, on_step=one_step)
    with pytest.raises(UserError, match=r"trained in bfloat16 .* go on in float32: set model\.training_dtype=bfloat16"):
        train(recipe, tmp_path / "run", command=["mem1"], ranks=without, resume=True)
    model = recipe.model.model_copy(update={"training_dtype": "bfloat16"})
    said = recipe.model_copy(update={"model": model})
    assert train(said, tmp_path / "run", command=["mem1"], ranks=without, resume=True).complete


def test_two_processes_sample_with_the_trained_weights_in_bf16(tmp_path: Path):
    """Also after the exact weights of the best policy were saved, from the model that samples."""
    validated = Evaluation(every=1, validation_objectives=(1,), validation_tasks=2)
    model = SMALL_RL.model.model_copy(update={"dtype": "bfloat16", "training_dtype": "bfloat16"})
    assert SMALL_RL.rl is not None
    rl = SMALL_RL.rl.model_copy(update={"curriculum": (Phase(steps=3, objectives=(1,)),), "learning_rate": 0.05})
    config = SMALL_RL.model_copy(update={"rl": rl, "model": model, "workers": 2, "evaluation": validated})
    train(config, tmp_path / "run", command=["mem1"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert (tmp_path / "run" / "best").is_dir()
    assert [0 < row["sampler_trainer_mean"] < 0.02 for row in rows] == [True, True, True]
    assert all(row["grad_norm"] > 0 for row in rows)
