"""New models look back; loaded ones come from safetensors and are whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel
from worlds import CODEC

from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.policy.policy import Policy, load_model, load_policy
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import bpe_tokenizer
from mem1.protocol import PAPER
from mem1.recipe.model import TinyModel

SMALL = TinyModel(hidden_size=32, layers=2, feed_forward=64)


def model(config: TinyModel = SMALL, seed: int = 0) -> PreTrainedModel:
    return new_model(config, vocab_size=CODEC.vocab_size, seed=seed)


def attention(of: PreTrainedModel) -> list[Tensor]:
    """Per layer (heads, T, T) on 40 random tokens."""
    of.set_attn_implementation("eager")
    ids = torch.randint(2, 500, (1, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return [a[0] for a in of(ids, output_attentions=True).attentions]


@pytest.mark.parametrize(
    "config",
    [TinyModel(), SMALL, TinyModel(hidden_size=64, heads=2, look_back=(1, 3))],
    ids=["default", "small", "two"],
)
def test_heads_of_the_first_two_layers_look_back_exactly_as_far_as_configured(config: TinyModel):
    bare = model(config)
    with torch.no_grad():  # by their biases alone, whatever the tokens are
        for layer in bare.model.layers:
            layer.self_attn.q_proj.weight.zero_()
            layer.self_attn.k_proj.weight.zero_()
    layers = attention(bare)
    for weights in layers[:2]:
        for head, distance in enumerate(config.look_back):
            peaks = weights[head].argmax(-1)[distance:]
            assert peaks.tolist() == [t - distance for t in range(distance, 40)]
    for weights in layers[2:]:  # no other layer looks anywhere in particular
        torch.testing.assert_close(weights[0, 39], torch.full((40,), 1 / 40))


def test_with_random_weights_they_still_look_there_most_of_all():
    for weights in attention(model(TinyModel()))[:2]:
        for head, distance in enumerate((1, 2)):
            mean = torch.stack([weights[head].diagonal(-d)[8:].mean() for d in range(8)])
            assert int(mean.argmax()) == distance
            assert mean[distance] > 0.4


def test_look_back_heads_can_be_left_out():
    plain = model(TinyModel(hidden_size=32, layers=2, feed_forward=64, look_back=()))
    assert all(not b.any() for n, b in plain.named_parameters() if n.endswith("q_proj.bias"))
    assert model().model.layers[0].self_attn.q_proj.bias.any()


def test_the_same_seed_makes_the_same_weights_and_leaves_the_random_numbers_alone():
    torch.manual_seed(11)
    expected = torch.rand(1)
    torch.manual_seed(11)
    one, two, other = model(seed=4), model(seed=4), model(seed=5)
    assert torch.equal(torch.rand(1), expected)
    for (name, a), b in zip(one.named_parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b), name
    assert not torch.equal(next(one.parameters()), next(other.parameters()))


def test_the_default_policy_has_under_three_million_parameters_and_tied_embeddings():
    tiny = model(TinyModel())
    assert sum(p.numel() for p in tiny.parameters()) == 923_264
    assert tiny.lm_head.weight is tiny.model.embed_tokens.weight


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Policy(model(), CODEC).save(tmp_path / "policy")
    return tmp_path / "policy"


def test_a_saved_policy_comes_back_with_its_weights_and_its_tokenizer(folder: Path):
    loaded = load_policy(folder)
    for a, b in zip(loaded.model.parameters(), model().parameters(), strict=True):
        assert torch.equal(a, b)
    assert loaded.codec.encode("<IS> Q1 mayor") == CODEC.encode("<IS> Q1 mayor")
    assert {p.name for p in folder.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}


def test_the_fingerprint_is_that_of_weights_and_tokenizer_however_they_came_to_be_in_memory(folder: Path):
    made = Policy(model(), CODEC)
    assert load_policy(folder).fingerprint() == made.fingerprint()
    others = [Policy(model(), Codec(bpe_tokenizer(["x"], vocab_size=300, tags=PAPER))), Policy(model(seed=1), CODEC)]
    moved = Policy(model(), CODEC)
    with torch.no_grad():
        next(moved.model.parameters())[0, 0] += 1e-6
    assert len({made.fingerprint(), moved.fingerprint(), *(other.fingerprint() for other in others)}) == 4


def test_a_folder_without_a_config_is_no_model(tmp_path: Path):
    with pytest.raises(UserError, match=r"config\.json is missing; give the folder of a transformers model"):
        load_model(tmp_path / "nowhere")


def test_pickled_weights_are_refused(folder: Path):
    (folder / "model.safetensors").unlink()
    torch.save(model().state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="mem1 loads weights from safetensors only"):
        load_model(folder)


def test_a_cut_weights_file_is_named(folder: Path):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"cannot load the model in .*policy"):
        load_model(folder)


def test_missing_weights_are_not_made_up(folder: Path):
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"1 weights are missing, such as model\.layers\.1\.mlp\.up_proj\.weight"):
        load_model(folder)


@pytest.mark.parametrize("config", ['{"model_type": ', '{"model_type": "no-such-model"}'])
def test_a_config_that_cannot_be_read_is_named(folder: Path, config: str):
    (folder / "config.json").write_text(config)
    with pytest.raises(UserError, match=r"cannot load the model in .*policy"):
        load_model(folder)


def test_code_in_a_model_folder_is_never_run(folder: Path):
    (folder / "evil.py").write_text("raise SystemExit('run')")
    config = {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        UserError, match=r"config\.json asks to run code of the folder \(auto_map\), which mem1 never does"
    ):
        load_model(folder)


def test_a_policy_without_a_tokenizer_or_with_another_ones_is_refused(folder: Path):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.json does not exist"):
        load_policy(folder)
    large = bpe_tokenizer((f"word{i} {i * 7919}" for i in range(3000)), vocab_size=900, tags=PAPER)
    assert Codec(large).vocab_size == 900
    large.save(str(folder / "tokenizer.json"))
    with pytest.raises(UserError, match="the tokenizer has 900 tokens but the model only 536"):
        load_policy(folder)


def test_no_bars_of_other_libraries_run_through_the_output_of_a_program(tmp_path: Path):
    program = f"import mem1; from pathlib import Path; mem1.load_policy('shipped').save(Path({str(tmp_path)!r}))"
    env = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
