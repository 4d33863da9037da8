"""`mem1 plan`: shapes, what a step keeps in memory, its work and time, and what to change."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import tiny_model
from torch.profiler import ProfilerActivity, profile
from typer.testing import CliRunner

from mem1.api import find_recipe
from mem1.cli.main import app
from mem1.configuration import load_toml
from mem1.errors import UserError
from mem1.evaluation.tokens import even_sizes, model_shape
from mem1.memory import memory_policy
from mem1.packing import Pack, pack
from mem1.planning.memory import Load, Needs, kept, layer_bytes, logits_kept, stage_memory
from mem1.planning.networks import (
    KNOWN,
    LAYERS,
    Network,
    Setup,
    known,
    made_model,
    meta_parameters,
    read_network,
    recipe_network,
    small,
)
from mem1.planning.plan import advise, make_plan
from mem1.planning.stages import Passes, counted, made_groups
from mem1.planning.step_time import GPUS, cluster, forward_flops, update_flops
from mem1.policy.folders import policy_folder
from mem1.policy.policy import load_policy
from mem1.recipe.model import Distributed, Lora
from mem1.recipe.recipe import Recipe
from mem1.recipe.rl import ServerRollouts
from mem1.training.logprobs import score
from mem1.training.ranks.adapters import with_adapters

TINY = Network(
    kind="qwen2",
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=4,
    head_size=8,
    feed_forward=48,
    vocabulary=40,
    tied=True,
    biases=True,
)
SIZES = even_sizes(prompt=6, state=3, action=2, result=4, turns=3)
SERVED: Any = {"engine": "servers", "server_gpus": 2}
BF16 = Distributed(mixed_precision="bf16", activation_checkpointing=True)


def recipe(name: str, *overrides: str) -> Recipe:
    return load_toml(find_recipe(name), Recipe, overrides)


class TestShapes:
    @pytest.mark.parametrize(
        ("name", "billions", "without_embedding"),
        [
            ("Qwen2.5-0.5B", 0.49, 0.36),
            ("Qwen2.5-1.5B", 1.54, 1.31),
            ("Qwen2.5-3B", 3.09, 2.77),
            ("Qwen2.5-7B", 7.61, 6.53),
            ("Qwen3-1.7B", 1.7, 1.4),
            ("Qwen3-8B", 8.2, 6.95),
        ],
    )
    def test_the_table_gives_the_sizes_that_the_model_cards_name(self, name, billions, without_embedding):
        network = known(name)
        assert network.parameters / 1e9 == pytest.approx(billions, rel=0.02)
        ends = network.embedding_parameters * (1 if network.tied else 2)
        assert (network.parameters - ends) / 1e9 == pytest.approx(without_embedding, rel=0.02)

    def test_transformers_makes_as_many_weights(self):
        assert meta_parameters(KNOWN["qwen2.5-0.5b"]) == KNOWN["qwen2.5-0.5b"].parameters
        assert meta_parameters(KNOWN["qwen3-1.7b"]) == KNOWN["qwen3-1.7b"].parameters

    @pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
    def test_a_folder_gives_the_shape_of_the_model_in_it(self, kind: str, tmp_path: Path):
        model = tiny_model(kind, dtype=torch.float32)
        model.config.save_pretrained(tmp_path)
        network = read_network(tmp_path)
        assert network.parameters == sum(p.numel() for p in model.parameters())
        assert network.flops == model_shape(model)

    def test_recipes_name_the_shipped_policy_a_new_one_or_a_known_one(self):
        assert recipe_network(recipe("atlas-quick")).parameters == sum(
            p.numel() for p in load_policy("shipped").model.parameters()
        )
        assert recipe_network(recipe("atlas-warm-start")) == replace(
            read_network(policy_folder("shipped")), source="model.new of the recipe"
        )
        assert recipe_network(recipe("webshop-7b")) == known("Mem-Lab/Qwen2.5-7B-RL-RAG-Q2-EM-Release")

    def test_an_unknown_model_names_the_known_ones(self):
        with pytest.raises(
            UserError, match=r"models/Other-9B is neither a folder with a config.json.*qwen2.5-7b.*model.path"
        ):
            known("models/Other-9B")

    def test_a_small_network_is_of_the_same_family(self):
        tiny = small(KNOWN["qwen3-8b"], 100)
        assert (tiny.kind, tiny.tied, tiny.vocabulary) == ("qwen3", False, 100) and tiny.kv_heads < tiny.heads
        assert meta_parameters(tiny) == tiny.parameters < 100_000


class TestGpus:
    def test_counts_and_machines(self):
        assert (cluster("8xH100").gpus, cluster("2x8xh100").machines, cluster("4090").gpus) == (8, 2, 1)
        assert cluster("2x8xH100").link_gb_s < cluster("8xH100").link_gb_s
        assert str(cluster("2x8xH100")) == "2x8xH100"

    @pytest.mark.parametrize("text", ["8xV100", "0xH100", "H100x8", "2x2x2xH100", "xH100"])
    def test_a_mistake_shows_how_to_write_it(self, text: str):
        with pytest.raises(UserError, match="8xH100"):
            cluster(text)

    def test_every_kind_has_a_source_and_plausible_figures(self):
        for gpu in GPUS.values():
            assert "http" in gpu.source and gpu.fp32_tflops < gpu.bf16_tflops and gpu.memory_gb >= 24


def trajectories(groups, vocabulary: int):
    def within(ids):
        return tuple((i * 2654435761 % 2**32) // 7 % vocabulary for i in ids)

    return [
        replace(
            t,
            turns=tuple(
                replace(u, context_ids=within(u.context_ids), completion_ids=within(u.completion_ids)) for u in t.turns
            ),
        )
        for group in groups
        for t in group
    ]


@pytest.mark.parametrize(
    ("context", "least", "most"), [("notes", 39, 39), ("dropout(50)", 10, 30), ("notebook(4)", 4, 4)]
)
def test_an_attempt_of_a_plan_has_the_notes_that_its_memory_shows(context: str, least: int, most: int):
    sizes = even_sizes(prompt=6, state=3, action=2, result=4, turns=41)
    [[attempt]] = made_groups(memory_policy(context), sizes, groups=1, attempts=1)
    last_turn = 3 + 2 + 4
    noted = len(attempt.turns[-1].context_ids) - sizes.prompt - last_turn
    assert noted % 3 == 0 and least <= noted // 3 <= most


def left(network: Network, *, packed: bool) -> tuple[int, int]:
    """Bytes that a forward pass leaves, as torch allocates them and as the plan has them."""
    made = made_groups(memory_policy("constant"), SIZES, groups=2, attempts=3)
    load = counted(made, pack_tokens=10**6, packed=packed).load
    model = made_model(network)
    whole = trajectories(made, network.vocabulary)
    score(model, Pack.whole(whole[:1]), temperature=1.0, packed=packed)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        scores = score(model, Pack.whole(whole), temperature=1.0, packed=packed)
    results: Any = recorded.profiler.kineto_results  # type: ignore[union-attr]
    held = sum(event.nbytes() for event in results.events() if event.name() == "[memory]")
    del scores
    states = load.sampled * network.hidden * 4
    return held, kept(network, load, Setup()).total + logits_kept(network, load) + states


class TestMemory:
    @pytest.mark.parametrize("packed", [True, False], ids=["packed", "alone"])
    @pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama"])
    def test_what_a_forward_pass_leaves_is_what_torch_allocates(self, kind: str, packed: bool):
        shape = {"hidden": 64, "feed_forward": 160, "layers": 3, "head_size": 16}
        network = replace(TINY, kind=kind, biases=kind == "qwen2", kv_heads=4 if kind == "qwen2" else 2, **shape)
        held, planned = left(network, packed=packed)
        assert planned == pytest.approx(held, rel=0.1)

    def test_a_layer_by_hand(self):
        # a token: two norms keep 32 numbers three times and one of their own; four times 32 and 4 log-sums; 4 times 48
        numbers = 2 * (3 * 32 + 1) + (4 * 32 + 4) + 4 * 48
        assert layer_bytes(TINY, Load(tokens=10, sampled=1), Setup()) == 10 * 4 * numbers

    def test_frozen_matrices_keep_less_and_checkpoints_least(self):
        load = Load(tokens=100, sampled=20)
        full, lora = kept(TINY, load, Setup()), kept(TINY, load, Setup(lora=Lora(layers=("q_proj",), rank=2)))
        again = kept(TINY, load, Setup(distributed=Distributed(activation_checkpointing=True)))
        assert again.layers < lora.layers < full.layers
        assert again.layers == TINY.layers * 100 * 32 * 4 and again.again * TINY.layers == full.layers

    def test_the_parts_sum_to_the_worst_moment(self):
        needs = Needs(load=Load(tokens=500, sampled=100), packs=2, critic=True, reference=True)
        memory = stage_memory(TINY, needs, Setup())
        assert memory.peak == max(memory.moments.values()) == memory.moments[memory.moment]
        weights = {name: size for name, size in memory.parts.items() if name.startswith(("weights", "optimiser"))}
        both = TINY.parameters + TINY.trunk_parameters
        assert sum(weights.values()) >= 4 * (both + TINY.parameters + 2 * both)

    def test_ranks_share_what_stays(self):
        needs = Needs(load=Load(tokens=64, sampled=8), packs=1)
        alone = stage_memory(TINY, needs, Setup(distributed=BF16))
        eight = stage_memory(TINY, needs, Setup(distributed=BF16), ranks=8)
        assert eight.parts["weights: policy"] == alone.parts["weights: policy"] // 8 == TINY.parameters * 4 // 8
        offloaded = stage_memory(TINY, needs, Setup(distributed=BF16.model_copy(update={"cpu_offload": True})), ranks=8)
        assert offloaded.host == 16 * TINY.parameters // 8 and "optimiser" not in offloaded.parts

    def test_scores_are_held_by_blocks_alone_and_a_copy_that_samples_in_bf16_is_half_as_large(self):
        needs = Needs(load=Load(tokens=64, sampled=8, part=1000), packs=1)
        by_flex, by_blocks = (
            stage_memory(TINY, needs, Setup(blocks=blocks), ranks=1, cuda=True).moments["backward's start"]
            for blocks in (False, True)
        )
        assert by_blocks - by_flex == 4 * TINY.heads * 1000 * 4
        wide, half = (stage_memory(TINY, needs, Setup(distributed=Distributed(), half=h)).parts for h in (False, True))
        assert wide["weights: sampling"] == 2 * half["weights: sampling"] == 4 * TINY.parameters
        shared, own = (stage_memory(TINY, needs, Setup(lora=Lora(), half=h)).parts for h in (False, True))
        assert "weights: sampling" not in shared and own["weights: sampling"] == 2 * TINY.parameters
        assert stage_memory(TINY, needs, Setup(half=True)).parts["weights: sampling"] == 2 * TINY.parameters


class TestWork:
    def test_tokens_are_those_of_the_trees(self):
        made = made_groups(memory_policy("constant"), SIZES, groups=2, attempts=2)
        tokens = counted(made, pack_tokens=10**6)
        tree = pack(trajectories(made, 2**31))
        assert tokens.trained == len(tree) and tokens.sampled == 2 * 2 * 3 * 5 and tokens.packs == 1
        assert tokens.pairs == int((tree.position_ids + 1).sum())
        # contexts 6, 6 + 5 + 4, 6 + 5 + 4
        assert tokens.prefill == 4 * (6 + 15 + 15) and tokens.longest == 20
        assert counted(made, pack_tokens=10**6, scale=3).trained == 3 * tokens.trained

    def test_contexts_alone_are_computed_without_their_last_token(self):
        made = made_groups(memory_policy("constant"), SIZES, groups=1, attempts=2)
        tokens = counted(made, pack_tokens=10**6, packed=False)
        assert tokens.trained == 2 * (10 + 19 + 19) and tokens.load.rows == 5

    def test_flops_of_an_update(self):
        tokens = counted(made_groups(memory_policy("constant"), SIZES, groups=1, attempts=2), pack_tokens=10**6)
        forward = forward_flops(TINY, tokens=tokens.trained, rows=tokens.sampled, pairs=tokens.pairs)
        assert update_flops(TINY, tokens, Passes(), Setup()) == {"before the update": 0, "update": 3 * forward}
        twice = update_flops(TINY, tokens, Passes(trained=2, reference=True), Setup())
        assert twice == {"before the update": forward, "update": 6 * forward}
        layers = forward_flops(TINY, tokens=tokens.trained, rows=0, pairs=tokens.pairs)
        again = update_flops(TINY, tokens, Passes(), Setup(distributed=BF16))["update"]
        assert again == 3 * forward + layers
        frozen = update_flops(TINY, tokens, Passes(), Setup(lora=Lora()))["update"]
        assert 2 * forward < frozen < 3 * forward


def planned(name: str, gpus: str, setup: Setup, *overrides: str):
    return make_plan(recipe(name, *overrides), setup=setup, cluster=cluster(gpus))


class TestPlans:
    def test_seven_billion_weights_fit_eight_gpus_sharded_in_bf16_and_not_one(self):
        assert planned("qwen2.5-7b-multihop/ppo", "8xH100", Setup(distributed=BF16, **SERVED)).fits
        one = planned("qwen2.5-7b-multihop/ppo", "H100", Setup())
        # policy, critic and their gradients and states, and a reference: 16 bytes a trained weight at least
        assert not one.fits and one.peak > 16 * 2 * 7.0e9

    def test_the_published_run_fits_the_papers_four_gpus_of_which_one_serves(self):
        setup = Setup.of(recipe("qwen2.5-7b-multihop/mem1-published"), server_gpus=1)
        assert planned("qwen2.5-7b-multihop/mem1-published", "4xH100", setup).fits

    def test_the_small_recipe_fits_24_gigabytes(self):
        assert planned("qwen3-1.7b-lora/grpo", "4090", Setup(distributed=BF16, lora=Lora())).fits
        assert not planned("qwen3-1.7b-lora/grpo", "4090", Setup()).fits

    def test_seven_billion_weights_in_four_bits_leave_room_on_24_gigabytes(self):
        setup = Setup.of(recipe("qwen2.5-7b-qlora/grpo"))
        assert planned("qwen2.5-7b-qlora/grpo", "2x4090", setup).fits
        assert not planned("qwen2.5-7b-qlora/grpo", "2x4090", replace(setup, lora=Lora())).fits
        matrices = KNOWN["qwen2.5-7b"].layers * KNOWN["qwen2.5-7b"].matrix_parameters
        (stage,) = planned("qwen2.5-7b-qlora/grpo", "2x4090", setup).stages
        assert stage.memory.parts["weights: 4 bits"] == matrices * (4 + 32 / 64) / 8

    def test_four_bits_are_counted_as_the_layers_hold_them(self):
        pytest.importorskip("bitsandbytes")
        blocks = replace(TINY, hidden=64, head_size=16, feed_forward=128)
        setup = Setup(lora=Lora(rank=2, quantize="nf4"))
        model = with_adapters(made_model(blocks, seed=0), Lora(rank=2, quantize="nf4"))
        small: list[Any] = [p for p in model.parameters() if p.dtype == torch.uint8]
        parts = stage_memory(blocks, Needs(load=Load(tokens=64, sampled=8), packs=1), setup).parts
        assert parts["weights: 4 bits"] == sum(p.nbytes + p.quant_state.absmax.nbytes for p in small)
        others = sum(p.nbytes for p in model.parameters() if p.dtype != torch.uint8)
        assert parts["weights: policy"] == others

    def test_a_checkpoint_has_frozen_weights_as_well_but_for_those_in_four_bits(self):
        lora = planned("qwen3-1.7b-lora/grpo", "4090", Setup(distributed=BF16, lora=Lora())).disk
        offloaded = Distributed(mixed_precision="bf16", cpu_offload=True)
        assert lora > 4 * 4 * 1.7e9, "three checkpoints and the policy at the end"
        assert planned("qwen3-1.7b-lora/grpo", "4090", Setup(distributed=offloaded, lora=Lora())).disk == lora
        rounded = planned("qwen3-1.7b-lora/grpo", "4090", Setup(distributed=BF16, lora=Lora(quantize="nf4"))).disk
        assert 4 * 1.7e9 < rounded < lora / 1.5

    def test_advice_ends_with_what_fits(self):
        config = recipe("qwen2.5-7b-multihop/grpo")
        advice = advise(config, setup=Setup(), cluster=cluster("H100"))
        assert advice.together[-1].fits and not any(change.fits for change in advice.together[:-1])
        assert advice.alone == tuple(sorted(advice.alone, key=lambda change: change.peak))
        assert any("lora" in change.what for change in advice.alone)

    def test_more_gpus_and_smaller_packs_help(self):
        setup = Setup(distributed=BF16)
        peaks = [planned("qwen2.5-7b-multihop/grpo", gpus, setup).peak for gpus in ("4xH100", "8xH100", "2x8xH100")]
        assert peaks == sorted(peaks, reverse=True)
        small_packs = planned("qwen2.5-7b-multihop/grpo", "8xH100", setup, "rl.pack_tokens=4096")
        assert small_packs.peak <= peaks[1]

    def test_time_has_parts_and_falls_with_gpus(self):
        setup = Setup(distributed=BF16)
        four, eight = (planned("qwen2.5-7b-multihop/grpo", gpus, setup).stages[0].time for gpus in ("4xH100", "8xH100"))
        assert four is not None and eight is not None and sum(eight.values()) < sum(four.values())
        assert {"reading contexts", "writing", "update", "optimiser"} <= eight.keys()

    def test_a_server_holds_bf16_weights_and_the_keys_of_its_attempts(self):
        served = Setup(distributed=Distributed(), **SERVED)
        (stage,) = planned("qwen2.5-7b-multihop/ppo", "8xH100", served).stages
        assert stage.server is not None and stage.server["weights"] == 2 * KNOWN["qwen2.5-7b"].parameters
        # 32 attempts; 28 layers, 512 numbers of keys and as many of values
        assert stage.server["keys and values"] == 32 * stage.stage.tokens.longest * 28 * 2 * 512 * 2
        local = Setup(distributed=Distributed())
        (samples,) = planned("qwen2.5-7b-multihop/ppo", "6xH100", local).stages
        assert stage.memory.moments["sampling"] < samples.memory.moments["sampling"]

    @pytest.mark.parametrize(("kind", "size", "seconds"), [("vllm", 2, 43.5), ("mem1", 4, 188.6)])
    def test_a_publish_is_counted_in_bytes_and_in_time(self, kind: str, size: int, seconds: float):
        config = recipe("qwen2.5-7b-multihop/ppo", f"rollout.kind={kind}")
        plan = make_plan(config, setup=Setup.of(config, server_gpus=2), cluster=cluster("8xH100"))
        assert plan.published == size * 7_615_616_512
        (stage,) = plan.stages
        assert stage.time is not None and stage.time["publishing"] == pytest.approx(seconds, abs=0.1)
        assert stage.server is not None and stage.server["weights"] == plan.published

    def test_a_server_that_sleeps_shares_the_gpu_and_is_counted_while_it_samples(self):
        config = recipe("qwen3-1.7b-lora/grpo")
        rollout = ServerRollouts(servers=("http://a:1",), weights_folder="w", kind="vllm", sleep=True)
        served = config.model_copy(update={"rollout": rollout})
        (stage,) = make_plan(served, setup=Setup.of(served), cluster=cluster("H100")).stages
        weights = 2 * KNOWN["qwen3-1.7b"].parameters
        keys = stage.stage.tokens.longest * 28 * 2 * 8 * 128 * 2
        resident = sum(size for name, size in stage.memory.parts.items() if name.startswith(("weights", "optimiser")))
        assert stage.memory.moments["sampling"] == resident + weights + keys

    def test_servers_must_leave_a_gpu_to_train(self):
        served = Setup(distributed=Distributed(), engine="servers")
        with pytest.raises(UserError, match="1 of 1 GPUs serve, so none trains"):
            planned("qwen2.5-7b-multihop/grpo", "H100", served)

    def test_a_recipe_without_stages_has_no_plan(self):
        with pytest.raises(UserError, match="no stage to train"):
            make_plan(recipe("atlas-quick").model_copy(update={"rl": None}), setup=Setup())

    def test_a_recipe_says_how_it_is_placed(self):
        setup = Setup.of(recipe("qwen2.5-7b-multihop/ppo"), server_gpus=2)
        assert setup.distributed == BF16 and setup.engine == "servers" and setup.server_gpus == 2
        assert Setup.of(recipe("qwen3-1.7b-lora/grpo")).adapted == LAYERS
        assert Setup.of(recipe("atlas-quick")) == Setup()

    def test_beside_a_sharded_model_stands_a_whole_policy_that_samples(self):
        setups = (Setup(), Setup(distributed=BF16))
        alone, spread = (planned("atlas-quick", "2xH100", setup).stages[0].memory for setup in setups)
        assert "weights: sampling" not in alone.parts and spread.parts["weights: sampling"] == 4 * 923_264
        served = planned("atlas-quick", "3xH100", Setup(distributed=BF16, engine="servers")).stages[0].memory
        assert "weights: sampling" not in served.parts and served.host == 0, "the trained model is the only one"


def call(*arguments: object):
    result = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


class TestCommand:
    def test_json_has_everything(self):
        told = json.loads(call("atlas-quick", "--json"))
        (rl,) = told["stages"]
        assert told["parameters"] == 923_264 and told["fits"] is None and told["advice"] is None
        assert rl["memory"]["peak"] == sum(rl["memory"]["parts"].values()) and rl["seconds"] is None
        assert told["disk_bytes"] > 3 * 12 * told["parameters"]

    def test_tables_name_what_does_not_fit_and_what_to_change(self):
        told = call("qwen2.5-7b-multihop/grpo", "rollout={engine='local'}", "--gpus", "H100")
        for part in (
            "does not fit",
            "weights: policy",
            "Effect of each change by itself",
            "Together:",
            "none was measured",
        ):
            assert part in told

    def test_sizes_are_given_whole_or_not_at_all(self):
        known_sizes = ["--prompt", 100, "--state", 20, "--action", 10, "--result", 50, "--turns", 3]
        told = json.loads(call("atlas-quick", *known_sizes, "--json"))
        assert told["stages"][0]["tokens"]["longest"] == 100 + 30 + 50 + 30
        with pytest.raises(UserError, match="missing: --prompt, --action, --result, --turns"):
            call("atlas-quick", "--state", 20)
