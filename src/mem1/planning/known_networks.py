"""Shapes of known models, for where there is no folder to read.

known("models/Qwen2.5-7B")   ->  the row of Qwen2.5-7B, by the folder's name
"""

from __future__ import annotations

from collections.abc import Mapping

from mem1.errors import UserError
from mem1.planning.networks import Network


def _qwen(name: str, shape: tuple[int, ...], *, tied: bool) -> tuple[str, Network]:
    hidden, layers, heads, kv_heads, head_size, feed_forward, vocabulary = shape
    third = name.startswith("Qwen3")
    return name.lower(), Network(
        kind="qwen3" if third else "qwen2",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        feed_forward=feed_forward,
        vocabulary=vocabulary,
        tied=tied,
        biases=not third,
        source=f"table: https://huggingface.co/Qwen/{name}/blob/main/config.json, in copies read 2026-11-22",
    )


KNOWN: Mapping[str, Network] = dict(
    (
        _qwen("Qwen2.5-0.5B", (896, 24, 14, 2, 64, 4864, 151936), tied=True),
        _qwen("Qwen2.5-1.5B", (1536, 28, 12, 2, 128, 8960, 151936), tied=True),
        _qwen("Qwen2.5-3B", (2048, 36, 16, 2, 128, 11008, 151936), tied=True),
        _qwen("Qwen2.5-7B", (3584, 28, 28, 4, 128, 18944, 152064), tied=False),
        _qwen("Qwen3-1.7B", (2048, 28, 16, 8, 128, 6144, 151936), tied=True),
        _qwen("Qwen3-8B", (4096, 36, 32, 8, 128, 12288, 151936), tied=False),
    )
)
"""Small letters -> shape. Fine-tuned models that carry the name have the shape."""


def known(name: str) -> Network:
    """The shape of a model of this name, or of a folder of this name. Raises UserError where there is none."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    fitting = [key for key in KNOWN if last == key or last.startswith(f"{key}-")]
    if not fitting:
        raise UserError(
            f"{name} is no folder with a config.json here, and no model of the table ({', '.join(KNOWN)}); "
            "give the folder, or one that holds its config.json alone, by model.path=FOLDER"
        )
    return KNOWN[max(fitting, key=len)]
