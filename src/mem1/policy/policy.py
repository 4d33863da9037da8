"""A policy is a model with its tokenizer; this module loads, makes and saves policies.

    policy = load_policy("shipped")                 or a folder, a Hugging Face id, a GGUF file, "smollm2"
    policy.save(Path("my-policy"))

A recipe may also make a small policy from scratch (`tiny_model.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME
from transformers.utils import logging as transformers_logging

from mem1.dialogue import Dialogue, NativeDialogue, TagDialogue
from mem1.durable import MANIFEST, seal, write_file
from mem1.engines.alike import unlike_sampler
from mem1.engines.chat_template import ChatTemplate, code_in, tokenizer_files, write_tokenizer_files
from mem1.engines.codec import Codec
from mem1.engines.device import ON_CPU, Computed, Device, dtype_name, sampling_dtype
from mem1.engines.weights import check_finite
from mem1.errors import UserError
from mem1.hub import not_here
from mem1.policy.folders import NAMED, POLICY, SHIPPED, check_whole, policy_folder
from mem1.policy.protocol import SAVED, Known, ResolvedProtocol, resolve
from mem1.policy.tiny_model import new_model
from mem1.policy.tokenizers import ALIKE, bpe_tokenizer, token_kinds, words_of
from mem1.protocol import PAPER, Tags
from mem1.recipe.model import TinyModel
from mem1.recipe.protocol import FRAMED, TAGS, TOOLS
from mem1.recipe.recipe import Recipe

if TYPE_CHECKING:
    from mem1.engines.chat_messages import ChatMessages

_SAVED_WITH = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version")
"""Keys of a model's configuration that saving and loading it may change."""


@dataclass(frozen=True)
class Policy:
    """Weights and tokenizer."""

    model: PreTrainedModel
    codec: Codec
    chat_template: ChatTemplate = field(default_factory=ChatTemplate)
    """Chat template around every prompt; the empty one: plain prompts."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Other files of its folder by name: of the tokenizer, such as chat_template.jinja and tokenizer_config.json, and
    how it was trained to speak."""
    folder: Path | None = None
    """Where it was loaded from; None: it was made here."""
    speaks: ResolvedProtocol | None = None
    """How it is trained to speak, which its saved folder says; None: not known."""

    def save(self, folder: Path, weights: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write a transformers folder: config.json, model.safetensors and all files of the tokenizer.

        weights     of the plain model, where the model has others, as with adapters; None: the model's own
        """
        with _without_bars():
            self.model.save_pretrained(folder, state_dict=None if weights is None else dict(weights))
        self.codec.tokenizer.save(str(Path(folder) / "tokenizer.json"))
        write_tokenizer_files(Path(folder), self.files)
        if self.speaks is not None:
            write_file(Path(folder) / SAVED, json.dumps(self.speaks.record()).encode())

    def save_sealed(
        self,
        folder: Path,
        weights: Mapping[str, torch.Tensor] | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """The same with a manifest, which holds `facts` and by which `load_policy` notices what has changed."""
        (folder / MANIFEST).unlink(missing_ok=True)
        self.save(folder, weights)
        seal(folder, kind=POLICY, format=1, facts=facts)

    def dialogue(self, speaks: ResolvedProtocol) -> Dialogue:
        """How it reads and writes. Raises UserError without the template that this needs."""
        if speaks.in_messages or speaks.calls_tools:
            return NativeDialogue(speaks.messages(self.codec, self.folder), speaks.tags)
        return TagDialogue(self.codec, speaks.tags, self.chat_template)

    def computed(self, device: Device) -> Computed:
        """Device and precision of sampling, for messages and records."""
        return Computed(device=str(device), dtype=dtype_name(self.model.dtype))

    def fingerprint(self) -> str:
        """BLAKE2 (hexadecimal) of weights, configuration, tokenizer and chat template; reads every weight once."""
        digest = hashlib.blake2b(digest_size=16)
        config = {key: value for key, value in self.model.config.to_dict().items() if key not in _SAVED_WITH}
        digest.update(json.dumps(config, sort_keys=True, default=str).encode())
        digest.update(self.codec.tokenizer.to_str().encode())
        if self.chat_template != ChatTemplate():
            digest.update(f"ChatFrame(before={self.chat_template.prefix}, after={self.chat_template.suffix})".encode())
        for name, tensor in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()


def load_policy(
    path: str | Path, *, chat_template: bool = False, device: Device = ON_CPU, dtype: str = "float32"
) -> Policy:
    """A policy from whatever `mem1.policy.folders.policy_folder` finds.

    chat_template   put prompts into the chat template of the folder
    dtype           float32, bfloat16, or auto (`mem1.engines.device.sampling_dtype`)
    """
    folder = policy_folder(path, weights=True)
    check_whole(folder)
    model = load_model(folder, dtype=lambda stored: sampling_dtype(dtype, device, stored))
    rows = next(model.get_input_embeddings().parameters()).shape[0]
    codec = Codec(Codec.load(folder).tokenizer, rows=rows)
    if codec.vocab_size > rows:
        raise UserError(
            f"{folder}: the tokenizer has {codec.vocab_size} tokens but the model only {rows}; "
            "they do not belong together"
        )
    template = ChatTemplate.load(folder, codec) if chat_template else ChatTemplate()
    on_device = model.to(device.at)  # type: ignore[arg-type]  # transformers' own signature takes less
    spoke = {SAVED: (folder / SAVED).read_bytes()} if (folder / SAVED).is_file() else {}
    return Policy(on_device, codec, template, {**tokenizer_files(folder), **spoke}, folder)


def own_chat(policy: Policy) -> ChatMessages:
    """How a policy that was loaded from a folder writes chat messages and calls of tools.

    As it was trained; else by its chat template, or in the tags that are tokens of its own. Raises UserError where it
    cannot.
    """
    assert policy.folder is not None
    known = Known.at(policy.folder)
    saved = known.saved or {"kind": TOOLS if known.template else TAGS, "thoughts": "drop", "template": {}}
    kind = saved["kind"]
    if kind == FRAMED:
        raise UserError(
            "it was trained with protocol = framed, to continue one message in tags; send whole contexts to "
            "/v1/completions"
        )
    if kind == TAGS and known.tags is None:
        raise UserError(f"{policy.folder} has no chat template, and no tags among its tokens; use /v1/completions")
    speaks = {"kind": kind, "thoughts": saved["thoughts"], "template": saved["template"]}
    return ResolvedProtocol(tags=known.tags or PAPER, **speaks).messages(policy.codec, policy.folder)


def make_policy(config: Recipe) -> Policy:
    """The policy that a recipe starts from; a new one is determined by the seed.

    Its configurations name the tokens that end a completion of the recipe's protocol, besides its own, so that a server
    of the saved folder stops there.
    """
    speaks = resolve(config)
    if config.model.new is not None:
        policy = _new_policy(config, config.model.new, speaks.tags)
    else:
        policy = load_policy(config.model.path or SHIPPED, chat_template=speaks.kind == FRAMED)
    policy = replace(policy, speaks=speaks)
    encoded = map(policy.codec.encode, policy.dialogue(speaks).stop_strings)
    _end_at(policy, [ids[0] for ids in encoded if len(ids) == 1])
    return policy


def _end_at(policy: Policy, tokens: Sequence[int]) -> None:
    """Add these tokens to those at which a server of the saved folder ends a completion, in both configurations."""
    model: Any = policy.model
    if model.generation_config is None:  # it cannot generate
        return
    of_folder = (model.generation_config.eos_token_id, model.config.eos_token_id)
    own = next((given for given in of_folder if given is not None), [])
    ends = list(dict.fromkeys([*(own if isinstance(own, list) else [own]), *tokens]))
    if not ends:
        return
    model.config.eos_token_id = ends if len(ends) > 1 else ends[0]
    if policy.folder is not None and (policy.folder / GENERATION_CONFIG_NAME).is_file():
        # read with them, not changed: one that was changed is only saved where transformers finds no fault in it, and
        # many that are published have one, such as a temperature without sampling
        changed = {"eos_token_id": model.config.eos_token_id, "local_files_only": True}
        model.generation_config = GenerationConfig.from_pretrained(policy.folder, **changed)
    else:
        model.generation_config = GenerationConfig.from_model_config(model.config)


def check_sampled(model: PreTrainedModel, config: Recipe) -> None:
    """Raises UserError where this process would not sample attempts of the recipe with the model's own numbers."""
    if why := unlike_sampler(model.config, config.budget.context):
        raise UserError(
            f"{config.model.name} cannot be sampled in this process: {why}; or sample on servers, or choose another "
            "model"
        )


def _new_policy(config: Recipe, new: TinyModel, tags: Tags) -> Policy:
    if new.tokenizer == "bpe":
        texts, marks = config.tasks.texts(tags), config.tasks.special_tokens
        codec = Codec(bpe_tokenizer(texts, vocab_size=new.vocab_size, tags=tags, marks=marks))
    else:
        codec = Codec(words_of(new.tokenizer, tags, new.labels))
    kinds = token_kinds(codec) if new.induction else ALIKE
    return Policy(new_model(new, vocab_size=codec.vocab_size, seed=config.seed, kinds=kinds), codec)


@contextmanager
def _without_bars() -> Iterator[None]:
    """transformers draws one for every model that it reads or writes."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def load_config(folder: Path) -> PreTrainedConfig:
    """The configuration of a transformers model, without its weights. Raises UserError where it cannot be read."""
    if not (Path(folder) / "config.json").is_file():
        if (Path(folder) / "policy" / "config.json").is_file():
            raise UserError(f"{folder} is the folder of a run; its policy is in {Path(folder) / 'policy'}")
        raise UserError(
            not_here(str(folder))
            or f"{folder} is no model folder: config.json is missing; give the folder of a transformers model, a "
            f"Hugging Face id (owner/name), or one of {', '.join(NAMED)}"
        )
    try:
        # trust_remote_code=False: without it transformers would ask on the terminal whether to run the folder's code
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise UserError(f"cannot load the model in {folder}: {code_in(folder) or error}") from error


def load_model(
    folder: Path, *, dtype: Callable[[torch.dtype | None], torch.dtype] = lambda stored: torch.float32
) -> PreTrainedModel:
    """A transformers causal language model from a local folder, weights from safetensors only.

    dtype       its precision, given that of the stored weights according to config.json (None: not given)

    Raises UserError where the folder, its config or its weights are missing or unreadable, where a weight is NaN or
    infinite, and where the folder would have to run code of its own.
    """
    folder = Path(folder)
    config = load_config(folder)
    if not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder} has no *.safetensors file; mem1 loads weights from safetensors only")
    try:
        with _without_bars():
            model, found = AutoModelForCausalLM.from_pretrained(  # type: ignore[misc]  # because of output_loading_info
                folder,
                config=config,
                dtype=dtype(config.dtype if isinstance(config.dtype, torch.dtype) else None),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (ValueError, OSError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"cannot load the model in {folder}: {code_in(folder) or error}") from error
    if missing := sorted(found["missing_keys"]):  # transformers fills them with random numbers
        raise UserError(f"{folder}: {len(missing)} weights are missing, such as {missing[0]}; copy the model again")
    check_finite(model.state_dict(), str(folder))
    return model.eval()
