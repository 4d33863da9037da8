"""A transformers folder as a GGUF file that llama.cpp loads: weights, tokenizer, chat template and special tokens.

    write_gguf(Path("runs/real/policy"), Path("policy.gguf"), kind="f16")

Of the architectures that llama.cpp names llama, qwen2 and qwen3. Its llama turns pairs of neighbouring features where
transformers turns halves, so rows of query and key weights change places:

    one head of 6 rows      transformers 0 1 2 3 4 5      llama.cpp 0 3 1 4 2 5
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from mem1.durable import explain_full_disk, replacing
from mem1.engines.chat_template import several_templates, template_text
from mem1.errors import UserError
from mem1.policy.folders import ARCHITECTURES, SPLITS, split_by

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFWriter
    from tokenizers import Tokenizer

GgufType = Literal["f16", "f32", "q8_0"]
"""Type of matrices; vectors are always f32."""
_BLOCK = 32
"""Weights that share a scale in q8_0."""


def write_gguf(folder: Path, out: Path, *, kind: GgufType = "f16", name: str = "", license: str = "") -> None:
    """Write the model of a transformers folder to the file `out`, whole or not at all.

    kind            type of the matrices; one whose rows are no multiple of 32 is f16 where q8_0 is asked for
    name, license   of the model, for its readers; empty: not known

    Raises UserError where the package gguf is missing, the file exists, or llama.cpp could not compute or tokenise the
    same: another architecture or activation, rotary embeddings that are scaled, a sliding window, or a tokenizer that
    is no byte-level BPE known to it.
    """
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"{out.name} needs the gguf package: pip install 'mem1-agents[gguf]'")
    if out.exists():
        raise UserError(f"{out} exists; give another file")
    from gguf import GGUFWriter
    from tokenizers import Tokenizer

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architecture = config.get("model_type")
    if architecture not in ARCHITECTURES:
        raise UserError(f"{folder} is a {architecture} model; GGUF files are written of {', '.join(ARCHITECTURES)}")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    split = _split_of(tokenizer, folder)
    out.parent.mkdir(parents=True, exist_ok=True)
    full = explain_full_disk(f"{out}", "nothing else is lost", "free some space, or give another file")
    with full, replacing(out) as partial:
        writer = GGUFWriter(partial, architecture)
        writer.add_type("model")
        writer.add_name(name or folder.name)
        if license:
            writer.add_license(license)
        _add_shape(writer, config, folder)
        _add_tokenizer(writer, tokenizer, split, folder, config)
        _write_weights(writer, folder, config, kind)
        writer.close()


def _add_shape(writer: GGUFWriter, config: Mapping[str, Any], folder: Path) -> None:
    rope = config.get("rope_parameters") or {}
    if rope.get("rope_type", "default") != "default":
        raise UserError(f"{folder} has rotary embeddings of type {rope['rope_type']!r}, which are not written as GGUF")
    if config.get("use_sliding_window"):
        raise UserError(f"{folder} attends to a sliding window, which llama.cpp does not in a {config['model_type']}")
    if (activation := config.get("hidden_act", "silu")) != "silu":
        raise UserError(
            f"{folder} has the activation {activation!r}; llama.cpp computes a {config['model_type']} with silu"
        )
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0))
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])


def _split_of(tokenizer: Tokenizer, folder: Path) -> str:
    """llama.cpp's name for how the tokenizer splits text."""
    from tokenizers import Tokenizer, models

    def written(tokenizer: Tokenizer) -> dict[str, Any]:  # trim_offsets changes no token
        return json.loads(
            tokenizer.to_str(), object_hook=lambda found: {k: v for k, v in found.items() if k != "trim_offsets"}
        )

    own = written(tokenizer)
    named = Tokenizer(models.BPE())
    for name in SPLITS:
        named.pre_tokenizer = split_by(name)  # type: ignore[assignment]
        if own["model"]["type"] == "BPE" and written(named)["pre_tokenizer"] == own["pre_tokenizer"]:
            break
    else:
        raise UserError(
            f"{folder}: llama.cpp does not know this tokenizer ({own['model']['type']}); GGUF files are written of "
            f"byte-level BPE that splits text as {', '.join(SPLITS)} do"
        )
    if own["normalizer"] is not None and own["normalizer"]["type"] != "NFC":  # llama.cpp changes no text
        raise UserError(f"{folder}: llama.cpp does not normalise text as this tokenizer does")
    return name


def _add_tokenizer(
    writer: GGUFWriter, tokenizer: Tokenizer, split: str, folder: Path, config: Mapping[str, Any]
) -> None:
    """The rows of the embeddings that have no token are filled up with unused ones."""
    from gguf import TokenType

    tokens = [tokenizer.id_to_token(i) for i in range(config["vocab_size"])]
    kinds = [TokenType.UNUSED if token is None else TokenType.NORMAL for token in tokens]
    for i, added in tokenizer.get_added_tokens_decoder().items():
        kinds[i] = TokenType.CONTROL if added.special else TokenType.USER_DEFINED
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list([f"[PAD{i}]" if token is None else token for i, token in enumerate(tokens)])
    writer.add_token_types(kinds)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    special = _special_tokens(tokenizer, folder, config)
    for name, add in (
        ("bos", writer.add_bos_token_id),
        ("eos", writer.add_eos_token_id),
        ("pad", writer.add_pad_token_id),
        ("unk", writer.add_unk_token_id),
    ):
        if name in special:
            add(special[name])
    if (end := _end_of_message(tokenizer, folder, special)) is not None:
        writer.add_eot_token_id(end)
    writer.add_add_bos_token(tokenizer.encode("").ids[:1] == [special.get("bos")])
    writer.add_add_space_prefix(False)
    if template := template_text(folder):
        writer.add_chat_template(json.loads(template) if several_templates(template) else template)


def _end_of_message(tokenizer: Tokenizer, folder: Path, special: Mapping[str, int]) -> int | None:
    """The token that ends the model's messages where this is not the end of a text; None: there is none.

    One at which a server of the folder stops and that its template writes: llama.cpp leaves it out of the text, so it
    must not be a tag.
    """
    path, template = folder / "generation_config.json", template_text(folder)
    stops = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    own = [i for i in (stops if isinstance(stops, list) else []) if i != special.get("eos")]
    return next((i for i in own if (token := tokenizer.id_to_token(i)) and token in template), None)


def _special_tokens(tokenizer: Tokenizer, folder: Path, config: Mapping[str, Any]) -> dict[str, int]:
    """bos, eos, pad and unk, where they are known: of the tokenizer, else of the model."""
    path = folder / "tokenizer_config.json"
    named = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    found: dict[str, int] = {}
    for name in ("bos", "eos", "pad", "unk"):
        token = named.get(f"{name}_token")
        ids = config.get(f"{name}_token_id")
        content = token.get("content") if isinstance(token, dict) else token
        i = tokenizer.token_to_id(content) if content else (ids[0] if isinstance(ids, list) else ids)
        if i is not None:
            found[name] = i
    return found


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor of the folder, under llama.cpp's name."""

    file: Path
    key: str
    name: str
    shape: tuple[int, ...]
    heads: int
    """Heads whose rows change places; 0: they do not."""

    def type(self, wanted: GgufType) -> GgufType:
        if len(self.shape) == 1:
            return "f32"
        return "f16" if wanted == "q8_0" and self.shape[-1] % _BLOCK else wanted

    def read(self) -> np.ndarray:
        import torch
        from safetensors import safe_open

        with safe_open(self.file, framework="pt") as opened:
            weights = opened.get_tensor(self.key).to(torch.float32).numpy()
        if not self.heads:
            return weights
        rows = weights.shape[0] // self.heads // 2
        return weights.reshape(self.heads, 2, rows, *weights.shape[1:]).swapaxes(1, 2).reshape(weights.shape)


def _stored(folder: Path, config: Mapping[str, Any]) -> Iterator[_Stored]:
    from gguf import MODEL_ARCH, get_tensor_name_map
    from safetensors import safe_open

    names = get_tensor_name_map(MODEL_ARCH[config["model_type"].upper()], config["num_hidden_layers"])
    turned = {"q_proj": config["num_attention_heads"]}
    turned["k_proj"] = config.get("num_key_value_heads") or turned["q_proj"]
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for key in opened.keys():  # noqa: SIM118  (it is no mapping)
                if key == "lm_head.weight" and config.get("tie_word_embeddings"):
                    continue
                name = names.get_name(key, try_suffixes=(".weight", ".bias"))
                if name is None:
                    raise UserError(f"{folder} has the weights {key}, which llama.cpp does not know")
                heads = turned.get(key.split(".")[-2], 0) if config["model_type"] == "llama" else 0
                yield _Stored(file, key, name, tuple(opened.get_slice(key).get_shape()), heads)


def _write_weights(writer: GGUFWriter, folder: Path, config: Mapping[str, Any], kind: GgufType) -> None:
    """First what they are, then one after the other, so that only one is in memory."""
    import numpy as np
    from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, LlamaFileType
    from gguf.quants import quant_shape_to_byte_shape, quantize

    q8 = GGMLQuantizationType.Q8_0
    of_file = {"f32": LlamaFileType.ALL_F32, "f16": LlamaFileType.MOSTLY_F16, "q8_0": LlamaFileType.MOSTLY_Q8_0}
    writer.add_file_type(of_file[kind])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    tensors = [*_stored(folder, config)]
    numpy_type = dict(
        zip(get_args(GgufType), (np.dtype(np.float16), np.dtype(np.float32), np.dtype(np.uint8)), strict=True)
    )
    for tensor in tensors:
        own = tensor.type(kind)
        shape = quant_shape_to_byte_shape(tensor.shape, q8) if own == "q8_0" else tensor.shape
        size = int(np.prod(shape)) * numpy_type[own].itemsize
        writer.add_tensor_info(tensor.name, shape, numpy_type[own], size, raw_dtype=q8 if own == "q8_0" else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for tensor in tensors:
        own, weights = tensor.type(kind), tensor.read()
        if own == "f16" and np.abs(weights).max() > np.finfo(np.float16).max:
            raise UserError(f"{folder}: {tensor.key} has weights beyond the range of f16; write f32")
        stored = quantize(weights, q8) if own == "q8_0" else weights.astype(numpy_type[own])
        writer.write_tensor_data(np.ascontiguousarray(stored))
