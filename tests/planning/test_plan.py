"""`mem1 plan`: a step on fake tensors allocates as much as a real one; counts, times, and what to change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import plan as benchmark
import pytest
import torch
from builders import tiny_model
from small_runs import config as config
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from mem1.api import load_recipe
from mem1.cli.main import app
from mem1.errors import UserError
from mem1.evaluation.tokens import config_shape, even_sizes
from mem1.memory import memory_policy
from mem1.packing import Pack, pack, split_into_packs
from mem1.planning.attempts import counted, made_groups
from mem1.planning.fakes import counted as counted_fakes
from mem1.planning.gpus import GPUS, cluster
from mem1.planning.models import KNOWN, known, made_model, recipe_shape, small
from mem1.planning.plan import make_plan
from mem1.planning.steps import measured
from mem1.policy.policy import load_policy
from mem1.records import Trajectory

SIZES = even_sizes(prompt=6, state=3, action=2, result=4, turns=3)


def size(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


class TestModels:
    @pytest.mark.parametrize(
        ("name", "billions", "without_embedding"),
        [
            ("Qwen2.5-0.5B", 0.49, 0.36),
            ("Qwen2.5-1.5B", 1.54, 1.31),
            ("Qwen2.5-3B", 3.09, 2.77),
            ("Qwen2.5-7B", 7.61, 6.53),
            ("Qwen3-0.6B", 0.6, 0.44),
            ("Qwen3-1.7B", 1.7, 1.4),
            ("Qwen3-8B", 8.2, 6.95),
        ],
    )
    def test_the_table_gives_the_sizes_that_the_model_cards_name(self, name, billions, without_embedding):
        shape = known(f"models/{name}-Instruct")
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(shape)
        assert size(model) / 1e9 == pytest.approx(billions, rel=0.02)
        ends = shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)
        assert (size(model) - ends) / 1e9 == pytest.approx(without_embedding, rel=0.02)

    def test_recipes_name_the_shipped_policy_a_new_one_or_a_known_one(self):
        shipped, _ = recipe_shape(load_recipe("atlas-quick"))
        new, source = recipe_shape(load_recipe("atlas-warm-start"))
        assert size(made_model(shipped)) == size(made_model(new)) == size(load_policy("shipped").model)
        assert source == "model.new of the recipe"
        seven, source = recipe_shape(load_recipe("webshop-7b"))
        assert (seven.hidden_size, source) == (3584, "a table")

    def test_an_unknown_model_names_the_known_ones(self):
        with pytest.raises(
            UserError, match=r"models/Other-9B is neither a folder with a config.json.*Qwen2.5-7B.*model.path"
        ):
            known("models/Other-9B")

    @pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
    def test_a_small_model_is_of_the_same_family(self, kind: str):
        shape = tiny_model(kind).config
        tiny = small(shape, vocab_size=100)
        assert (tiny.model_type, tiny.tie_word_embeddings, tiny.vocab_size) == (kind, shape.tie_word_embeddings, 100)
        grouped = [s.num_key_value_heads < s.num_attention_heads for s in (tiny, shape)]
        assert grouped[0] == grouped[1] and size(made_model(tiny)) < 100_000
        assert len(KNOWN) == 7


class TestGpus:
    def test_counts_and_machines(self):
        assert (cluster("8xH100").gpus, cluster("2x8xh100").machines, cluster("4090").gpus) == (8, 2, 1)
        assert str(cluster("2x8xH100")) == "2x8xH100"

    @pytest.mark.parametrize("text", ["8xV100", "0xH100", "H100x8", "2x2x2xH100", "xH100"])
    def test_a_mistake_shows_how_to_write_it(self, text: str):
        with pytest.raises(UserError, match="8xH100"):
            cluster(text)

    def test_every_kind_has_a_source_and_plausible_figures(self):
        for gpu in GPUS.values():
            assert "http" in gpu.source and gpu.memory_gb >= 24


@pytest.mark.parametrize(
    ("context", "least", "most"), [("notes", 39, 39), ("dropout(50)", 10, 30), ("notebook(4)", 4, 4)]
)
def test_an_attempt_of_a_plan_has_the_notes_that_its_memory_shows(context: str, least: int, most: int):
    sizes = even_sizes(prompt=6, state=3, action=2, result=4, turns=41)
    [[attempt]] = made_groups(memory_policy(context), sizes, groups=1, attempts=1)
    last_turn = 3 + 2 + 4
    noted = len(attempt.turns[-1].context_ids) - sizes.prompt - last_turn
    assert noted % 3 == 0 and least <= noted // 3 <= most


def made(*, groups: int, attempts: int) -> list[Trajectory]:
    return [t for g in made_groups(memory_policy("constant"), SIZES, groups=groups, attempts=attempts) for t in g]


def packed(trajectories: list[Trajectory]) -> list[Pack]:
    return split_into_packs(trajectories, max_tokens=10**6)


def test_tokens_of_a_plan_are_those_of_the_trees():
    attempts = made(groups=2, attempts=2)
    tokens = counted(attempts, packed(attempts))
    assert tokens.trained == tokens.largest_pack == len(pack(attempts)) and tokens.packs == 1
    # contexts 6, 6 + 5 + 4, 6 + 5 + 4
    assert (tokens.sampled, tokens.prefill, tokens.longest) == (2 * 2 * 3 * 5, 4 * (6 + 15 + 15), 20)
    assert counted(attempts, packed(attempts), scale=3).trained == 3 * tokens.trained
    # unpacked, each context is computed whole but for its last token
    assert counted(attempts, packed(attempts), packed=False).trained == 4 * (10 + 19 + 19)


@pytest.mark.parametrize(
    "name",
    [pytest.param(row.name, marks=pytest.mark.slow if number % 3 else ()) for number, row in enumerate(benchmark.ROWS)],
)
def test_a_step_on_fake_tensors_needs_what_a_real_one_allocates(name: str):
    if "LoRA" in name:
        pytest.importorskip("peft")
    (row,) = (row for row in benchmark.ROWS if row.name == name)
    fewer = {"num_hidden_layers": 2, "hidden_size": 96, "intermediate_size": 192, "head_dim": 24}
    shape = type(row.shape)(**{**row.shape.to_diff_dict(), **fewer, "layer_types": None})
    row = replace(row, shape=shape, turns=2)
    assert benchmark.planned(row) == pytest.approx(benchmark.allocated(row), rel=0.02)


class TestSteps:
    def test_flops_are_those_of_the_formula(self):
        attempts = benchmark.attempts("constant", 536)
        step = measured(load_recipe("atlas-quick", "workers=1"), benchmark.QWEN2, "rl", attempts)
        tree, of = pack(attempts), config_shape(benchmark.QWEN2)
        assert of is not None
        matrices = of.parameters * len(tree) + of.output_parameters * len(tree.target_node.unique())
        pairs = of.layers * of.width * int((tree.position_ids + 1).sum())
        assert step.flops["forward"] == pytest.approx(2 * matrices + 4 * pairs, rel=0.05)
        assert step.flops["backward"] == pytest.approx(4 * matrices + 10 * pairs, rel=0.05)

    @pytest.mark.slow
    def test_parts_sum_to_the_peak_and_ranks_share_what_lasts(self):
        attempts = made(groups=1, attempts=2)
        shape = small(tiny_model("qwen3").config, vocab_size=1000)
        config = load_recipe("atlas-quick", "rl.algorithm={name='ppo', critic='separate'}", "rl.kl={}", *BF16)
        alone, four = (measured(config, shape, "rl", attempts, ranks=ranks, more=True) for ranks in (1, 4))
        for step in (alone, four):
            assert sum(step.parts.values()) == max(step.moments.values())
        for part in ("weights: policy", "weights: critic", "weights: reference", "optimiser"):
            assert four.resident[part] < alone.resident[part] / 3, part
        parameters = size(made_model(shape))
        assert four.resident["weights: sampling"] == alone.resident["weights: sampling"] >= 4 * parameters
        assert alone.gradients == pytest.approx(
            4 * (2 * parameters - 1000 * 32), rel=0.01
        )  # a critic has no output matrix
        assert four.gradients < alone.gradients / 3

    def test_shards_are_planned_on_the_cpu_also_where_a_gpu_is(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(torch._C, "_get_accelerator", lambda *_: torch.device("cuda"))
        attempts, shape = made(groups=1, attempts=2), small(tiny_model("qwen3").config, vocab_size=100)
        step = measured(load_recipe("atlas-quick", *BF16), shape, "rl", attempts, ranks=2, gpu=True)
        assert step.parts["weights: policy"] > 0

    def test_scores_are_held_by_blocks_alone_on_a_gpu(self):
        attempts = benchmark.attempts("full", 40)
        shape = small(tiny_model("qwen3").config, vocab_size=40)
        flex, blocks = (
            measured(load_recipe("atlas-quick", f"model.attention={kind}"), shape, "rl", attempts, gpu=True)
            for kind in ("flex", "blocks")
        )
        assert blocks.moments["backward"] > flex.moments["backward"]

    def test_four_bits_are_counted_as_the_layers_hold_them(self):
        pytest.importorskip("bitsandbytes")
        from mem1.recipe.model import Lora
        from mem1.training.ranks.adapters import with_adapters

        shape = benchmark.QWEN3
        lora = Lora(rank=2, quantize="nf4")
        config = load_recipe("atlas-quick").model_copy(update={"lora": lora})
        step = measured(config, shape, "rl", made(groups=1, attempts=2))
        weights: list[Any] = list(with_adapters(made_model(shape), lora).parameters())
        scales = [p.quant_state.absmax for p in weights if hasattr(p, "quant_state")]
        held = sum(t.numel() * t.element_size() for t in (*weights, *scales))
        assert step.resident["weights: policy"] == pytest.approx(held, rel=0.02)


def test_code_runs_on_fakes_as_it_does_on_tensors():
    with counted_fakes() as count:
        a, b = torch.zeros(1000, 1000), torch.ones(1000, 10)
        assert count.live == 4 * (1_000_000 + 10_000) and int(torch.tensor([3, 4])[1]) == 4, "indices are real"
        c = a @ b
        del a
        assert count.flops["forward"] == 2 * 1000 * 1000 * 10
        assert c[torch.tensor([True, False] * 500)].shape == (500, 10) and float(c.sum()) == 1.0
    assert count.live == 4 * 2 * 10_000 and count.peak >= 4 * 1_020_000
    assert count.peaks["forward"] == 4 * (1_000_000 + 20_000)
    assert torch.zeros(3).tolist() == [0.0] * 3, "afterwards tensors are real again"


BF16 = ("model.training_dtype=bfloat16", "distributed={}", "model.activation_checkpointing=true")
SERVERS = ("rollout.engine=servers", "rollout.servers=['http://a:1']", "rollout.weights_folder=w")
TINY = (
    "model.path=null",
    "model.new={hidden_size=32,layers=1,heads=4,feed_forward=64}",
    "rl.group_size=2",
    "rl.pack_tokens=256",
)


def planned(gpus: str, *overrides: str, server_gpus: int = 1):
    return make_plan(load_recipe("atlas-quick", *TINY, *overrides), gpus=cluster(gpus), server_gpus=server_gpus)


class TestPlans:
    def test_a_policy_that_samples_is_a_copy_where_networks_are_sharded_or_in_bf16(self):
        plans = [planned("H100", *keys) for keys in ((), ("distributed={}",), ("model.dtype=bfloat16",))]
        alone, spread, half = (plan.stages[0].memory.parts.get("weights: sampling", 0) for plan in plans)
        assert alone == 0 and spread == pytest.approx(2 * half, rel=0.01) and half >= 2 * plans[0].parameters
        served = planned("2xH100", *SERVERS, *BF16)
        assert "weights: sampling" not in served.stages[0].memory.parts, "the trained model is the only one"
        assert served.published == 4 * served.parameters

    def test_a_server_holds_weights_and_the_keys_of_its_attempts(self):
        plan = planned("4xH100", *SERVERS, "rollout.kind=vllm", *BF16, server_gpus=2)
        (stage,) = plan.stages
        assert stage.server is not None and plan.published == stage.server["weights"] == 2 * plan.parameters
        attempts = stage.tokens.attempts // 2
        # one layer of keys and values of 32 numbers, in bf16
        assert stage.server["keys and values"] == attempts * stage.tokens.longest * 2 * 32 * 2
        asleep = planned("H100", *SERVERS, "rollout.kind=vllm", "rollout.sleep=true").stages[0].memory
        keys = stage.tokens.longest * 2 * 32 * 2
        lasting = asleep.least - 4 * plan.parameters  # without gradients
        assert asleep.moments["sampling"] == lasting + 2 * plan.parameters + keys

    def test_a_server_that_is_launched_takes_its_share_of_the_gpu_while_it_is_awake(self):
        def asleep(share: float) -> int:
            keys = ("rollout.engine=servers", "rollout.kind=vllm", "rollout.sleep=true", "rollout.weights_folder=w")
            memory = planned("4090", *keys, f"rollout.launch={{gpu_memory={share}}}").stages[0].memory
            return memory.moments["sampling"]

        assert asleep(0.9) - asleep(0.4) == pytest.approx(0.5 * 24e9, abs=2)
        keys = ("rollout.engine=servers", "rollout.kind=vllm", "rollout.launch={gpu_memory=0.4}")
        awake = planned("4090", *keys, "rollout.weights_folder=w")
        (stage,) = awake.stages
        assert awake.server_least == 0 and min(stage.memory.moments.values()) > 0.4 * 24e9, "it stays on the trainer's"
        assert stage.memory.peak == max(stage.memory.moments.values()) > stage.memory.least > 0.4 * 24e9

    def test_a_server_needs_room_for_its_weights_on_gpus_of_its_own(self):
        plan = planned("2x4090", *SERVERS, "rollout.kind=vllm", *BF16)
        (stage,) = plan.stages
        assert plan.server_least == 2 * plan.parameters + stage.tokens.longest * 2 * 32 * 2 and plan.server_fits
        large = replace(stage, server_least=30 * 10**9)
        assert plan.fits and not replace(plan, stages=(large,)).server_fits
        assert replace(plan, stages=(large,), server_gpus=2).server_fits, "it may be spread over both"
        assert planned("4090").server_least == 0

    def test_offloaded_weights_are_the_hosts(self):
        kept, away = (
            planned("H100", *BF16, f"distributed.cpu_offload={on}").stages[0].memory for on in ("false", "true")
        )
        assert away.host == kept.least - away.least > 12 * 900
        assert "optimiser" not in away.parts and away.peak < kept.peak
        reference = planned("H100", "rl.kl={}", *BF16, "distributed.reference_offload=true").stages[0].memory
        assert reference.host >= 4 * 900 and "weights: reference" not in reference.parts

    def test_servers_must_leave_a_gpu_to_train(self):
        with pytest.raises(UserError, match="1 of 1 GPUs serve, so none trains"):
            planned("H100", *SERVERS, *BF16)

    def test_a_recipe_without_stages_has_no_plan(self):
        with pytest.raises(UserError, match="no stage to train"):
            make_plan(load_recipe("atlas-quick").model_copy(update={"rl": None}))

    def test_every_stage_is_planned(self):
        plan = make_plan(load_recipe("atlas-warm-start", "sft.tokens=2048", "recall.tokens=512"))
        assert [stage.name for stage in plan.stages] == ["recall", "sft"]
        for stage in plan.stages:
            assert stage.memory.peak > stage.memory.least > 12 * plan.parameters and stage.flops["update"] > 0


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


class TestCommand:
    def test_json_has_everything(self):
        told = json.loads(call("atlas-quick", "--json"))
        (rl,) = told["stages"]
        assert told["parameters"] == 923_264 and told["fits"] is None and told["advice"] is None
        assert rl["memory"]["peak"] == sum(rl["memory"]["parts"].values())
        assert told["disk_bytes"] > 3 * 12 * told["parameters"]

    @pytest.mark.slow
    def test_tables_name_what_does_not_fit_and_what_to_change(self, tmp_path: Path):
        # one layer of the width of a large model does not fit, beside its critic and reference, into 24 GB
        shape = known("Qwen2.5-7B")
        shape.num_hidden_layers, shape.layer_types = 1, ["full_attention"]
        shape.save_pretrained(tmp_path)
        ppo = ("rl.algorithm={name='ppo', critic='separate'}", "rl.kl={}", "rl.pack_tokens=256", "rl.group_size=1")
        told = call("atlas-quick", f"model.path={tmp_path}", *ppo, "--gpus", "4090")
        for part in ("does not fit", "weights: policy", "Changes, each added", "cpu_offload"):
            assert part in told

    @pytest.mark.slow
    def test_sizes_are_given_whole_or_not_at_all(self):
        known_sizes = ["--prompt", 100, "--state", 20, "--action", 10, "--result", 50, "--turns", 3]
        told = json.loads(call("atlas-quick", *known_sizes, "--json"))
        assert told["stages"][0]["tokens"]["longest"] == 100 + 30 + 50 + 30
        with pytest.raises(UserError, match="missing: --prompt, --action, --result, --turns"):
            call("atlas-quick", "--state", 20)

    def test_sizes_that_no_context_can_hold_are_refused(self):
        sizes = ["--prompt", 8000, "--state", 10, "--action", 10, "--result", 2**31 - 1, "--turns", 10_000]
        with pytest.raises(UserError, match=r"contexts of 2,147,491,667 tokens or more, and budget.context = 4,096"):
            call("atlas-quick", *sizes)

    def test_sizes_of_attempts_are_for_recipes_with_rl(self):
        with pytest.raises(UserError, match=r"those of attempts of \[rl\], which the recipe does not have"):
            call("atlas-warm-start", *["--prompt", 10, "--state", 1, "--action", 1, "--result", 1, "--turns", 1])
