"""`[engine]` of a recipe: who answers in `mem1 eval` and `mem1 run`.

[engine]                                    [engine]                        [engine]
kind = "server"                             kind = "script"                 kind = "my_package.parrot:Parrot"
urls = ["http://127.0.0.1:8000/v1"]         answer = "Oslo"                 word = "Oslo"
tokenizer = "models/Qwen2.5-7B-Instruct"

Without the section the model runs in this process. Training samples through [rollout] instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

from pydantic import Field, field_validator

from mem1.configuration import Config
from mem1.configuration.by_name import ByName, Made, made_by
from mem1.engines.servers import ModelServer, may_be_secret
from mem1.errors import UserError
from mem1.registry import register

if TYPE_CHECKING:
    from mem1.engines.base import Engine
    from mem1.engines.chat_template import ChatTemplate
    from mem1.engines.codec import Codec
    from mem1.engines.openai import OpenAIEngine
    from mem1.protocol import Tags


STAND_IN = "stand-in"
"""Name of the tokenizer that counts when the served model's is not available."""


class Speaks(Protocol):
    """The part of a `mem1.dialogue.Dialogue` that an engine needs."""

    @property
    def codec(self) -> Codec: ...

    @property
    def tags(self) -> Tags: ...

    @property
    def stop_strings(self) -> tuple[str, ...]: ...

    @property
    def chat_template(self) -> ChatTemplate:
        """Tokens around every prompt."""
        ...

    @property
    def framed(self) -> str:
        """The protocol that makes the contexts hold a chat template; empty: they hold none."""
        ...


class EngineConfig(Config):
    """Base of all [engine] sections."""

    kind: str = ""
    """local, server, script, a registered name, or package.module:Name."""

    def remote_engine(self, model: str | None) -> tuple[ServedModel | OwnEngine, str | None] | None:
        """What completes contexts in place of the model of [model] (its path), and whose tokenizer counts by default.

        None: the model itself does, in this process.
        """
        return None


class LocalModel(EngineConfig):
    """The model of [model], in this process."""

    kind: str = "local"


class ServedModel(ModelServer, EngineConfig):
    """A model behind a server that speaks OpenAI's protocol."""

    kind: str = "server"
    model: str = ""
    """The model's name on the server; empty: model.path."""
    tokenizer: str | None = None
    """Tokenizer of the served model, to count and cut tokens: a folder, a Hugging Face id, or "stand-in",
    which counts with another model's. None: that of model.path."""

    @field_validator("headers")
    @classmethod
    def _secrets_stay_outside(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        if held := next((n for n, value in headers.items() if may_be_secret(n) and "$" not in value), None):
            raise UserError(
                f"headers: the value of {held} would be written into every run; put it into an environment variable, "
                'and name that: "$NAME"'
            )
        return headers

    def remote_engine(self, model: str | None) -> tuple[ServedModel, str]:
        """Raises UserError where neither this section nor [model] names the model."""
        name = self.model or model
        if not name:
            raise UserError(
                "--base-url needs --model, the model's name on the server (the server lists them at /models)"
            )
        return self.model_copy(update={"model": name}), name

    @property
    def name(self) -> str:
        """Its name in rows and files."""
        return Path(self.model).name + (" (stand-in tokens)" if self.tokenizer == STAND_IN else "")

    def engine(self, speaks: Speaks) -> OpenAIEngine:
        """The engine. Raises UserError if the server cannot be used, or applies a chat template of its own."""
        from mem1.engines.openai import OpenAIEngine

        own = self.tokenizer != STAND_IN
        engine = OpenAIEngine.open(self, speaks.codec, speaks.stop_strings, own_tokenizer=own)
        if speaks.framed and engine.dialect.own_template:
            raise UserError(
                f"protocol = {speaks.framed} is for engine.endpoint=completions: at /chat/completions the server "
                "applies its own template; set protocol=tags"
            )
        return engine

    def identity_of(self, engine: Any) -> str:
        """Tells the model and how it is called from others."""
        return engine.identity

    def notes(self, engine: Any) -> tuple[str, ...]:
        """For the user: how it is called and counted."""
        counted = "Token counts and budgets are those of the stand-in tokenizer, not of the model."
        return (f"{self.urls[0]}: {engine.dialect}", *((counted,) if self.tokenizer == STAND_IN else ()))


class OwnEngine(EngineConfig):
    """Anything else that completes contexts; also what a plain class becomes."""

    tokenizer: str | None = None
    """As for a server. None: that of model.path, else of the shipped policy."""
    concurrency: int = Field(default=16, ge=1, le=10_000)
    """Tasks worked on at a time."""

    def remote_engine(self, model: str | None) -> tuple[OwnEngine, str | None]:
        return self, model

    @property
    def name(self) -> str:
        """Its name in rows and files."""
        return self.kind.rpartition(":")[2]

    @property
    def limit(self) -> None:
        """It has no prices."""
        return

    def identity_of(self, engine: Engine) -> str:
        """As for a server."""
        return f"{self.identity} in"

    def notes(self, engine: Engine) -> tuple[str, ...]:
        """As for a server."""
        return ()

    @property
    def identity(self) -> str:
        """Tells it from engines that answer otherwise; part of what an interrupted evaluation must share to resume."""
        return f"engine {self.model_dump_json(exclude={'tokenizer', 'concurrency'})}"

    @abstractmethod
    def engine(self, speaks: Speaks) -> Engine:
        """The engine for contexts that are written like this."""
        ...


class _PlainEngine(Made, OwnEngine):
    """Configuration of a plain class, whose constructor may take codec, tags and chat_template."""

    def engine(self, speaks: Speaks) -> Engine:
        return self.make(codec=speaks.codec, tags=speaks.tags, chat_template=speaks.chat_template)


def _section(thing: Any) -> Any:
    return made_by(thing, EngineConfig, _PlainEngine, given=("codec", "tags", "chat_template"))


Engines = Annotated[EngineConfig, ByName(register.engine, key="kind", default="local", adapt=_section)]
"""The [engine] of a recipe."""
