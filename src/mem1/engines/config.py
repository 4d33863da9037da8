"""`[engine]` of a recipe: who answers in `mem1 eval` and `mem1 run`.

[engine]                                    [engine]
kind = "server"                             kind = "script"
urls = ["http://127.0.0.1:8000/v1"]         answer = "Oslo"
tokenizer = "models/Qwen2.5-7B-Instruct"

Without the section the model runs in this process. Training samples through [rollout] instead.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mem1.configuration import Config
from mem1.engines.servers import ModelServer


class LocalModel(Config):
    """The model of [model], in this process."""

    kind: Literal["local"] = "local"


class ServedModel(ModelServer):
    """A model behind a server that speaks OpenAI's protocol."""

    kind: Literal["server"] = "server"
    model: str = ""
    """The model's name on the server; empty: model.path."""
    tokenizer: str | None = None
    """Tokenizer of the served model, to count and cut tokens: a folder, a Hugging Face id in the local cache, or
    "stand-in", which counts with another model's. None: that of model.path."""


class ScriptedAnswer(Config):
    """No model: searches the first question itself, then gives a fixed answer; to check scores and token counts."""

    kind: Literal["script"] = "script"
    answer: str
    tokenizer: str | None = None
    """As for a server. None: that of model.path, else of the shipped policy."""
    concurrency: int = Field(default=16, ge=1, le=10_000)
    """Tasks worked on at a time."""


Engines = Annotated[LocalModel | ServedModel | ScriptedAnswer, Field(discriminator="kind")]
