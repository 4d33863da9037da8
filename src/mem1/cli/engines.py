"""Which model works on the tasks: one in this process, or one on a server; one rule for every command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import pydantic
import typer

from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.engines.base import Engine
    from mem1.engines.chat_frame import ChatFrame
    from mem1.engines.codec import Codec
    from mem1.engines.servers import ModelServer
    from mem1.protocol import Tags

STAND_IN = "stand-in"
"""The name of the tokenizer that counts where that of the served model is not to be had."""

BaseUrl = Annotated[
    list[str] | None,
    typer.Option("--base-url", help="A server of OpenAI's protocol that serves --model; repeatable, for failover."),
]
Endpoint = Annotated[str | None, typer.Option(help="Of the server: completions, chat or auto, which asks it.")]
TokenizerName = Annotated[
    str | None,
    typer.Option("--tokenizer", help="Folder of the served model's tokenizer; 'stand-in' counts with another one."),
]
ChatTemplate = Annotated[
    bool, typer.Option("--chat-template", help="Put the prompt into the chat template of the model's folder.")
]
ApiKeyEnv = Annotated[str | None, typer.Option(help="Environment variable that holds the server's API key.")]
Concurrency = Annotated[int | None, typer.Option(min=1, help="Requests to the server at a time; 16.")]
MaxTokensSpent = Annotated[int | None, typer.Option(min=0, help="Tokens that the server may read and write, in all.")]
MaxCost = Annotated[float | None, typer.Option(min=0, help="Dollars that the server may cost, in all; with --price.")]
Price = Annotated[str | None, typer.Option(help="Dollars a million tokens read, and a million written: 0.15,0.60.")]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What the options of a server ask for."""

    server: ModelServer
    tokenizer: str


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A model that is ready to work."""

    engine: Engine
    codec: Codec
    frame: ChatFrame
    name: str
    """What rows and files call it."""
    notes: tuple[str, ...] = ()
    """What the user must know of how it is spoken to and counted."""


def served(
    base_url: Sequence[str] | None,
    model: str,
    *,
    endpoint: str | None,
    tokenizer: str | None,
    api_key_env: str | None,
    concurrency: int | None = None,
    max_tokens_spent: int | None,
    max_cost: float | None,
    price: str | None,
) -> Served | None:
    """The options of the same names; None without a server. Raises UserError where they do not go together."""
    from mem1.engines.servers import ModelServer
    from mem1.training.policy import SHIPPED, SHIPPED_SHOP

    limit = {"tokens": max_tokens_spent, "dollars": max_cost, **_prices(price)}
    given = {"endpoint": endpoint, "api_key_env": api_key_env, "concurrency": concurrency}
    chosen = {name: value for name, value in given.items() if value is not None}
    limited = {name: value for name, value in limit.items() if value is not None}
    if not base_url:
        if chosen or limited or tokenizer is not None:
            raise UserError(
                "--endpoint, --tokenizer, --api-key-env, --concurrency, --max-tokens-spent, --max-cost and --price go "
                "with --base-url"
            )
        return None
    if model in (SHIPPED, SHIPPED_SHOP):
        raise UserError("--base-url needs --model, the model's name on the server (the server lists them at /models)")
    try:
        server = ModelServer.model_validate({"urls": tuple(base_url), "model": model, **chosen, "limit": limited})
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UserError(f"the server's options: {where}: {first['msg'].removeprefix('Value error, ')}") from error
    return Served(server=server, tokenizer=_tokenizer(tokenizer, model))


def open_agent(
    model: str, tags: Tags, *, on_server: Served | None, chat_template: bool = False, workers: int = 1
) -> Agent:
    """The model in a folder, or the one on a server. Raises UserError where it cannot be had."""
    from mem1.training.policy import load_policy, policy_folder

    name = Path(model).name
    if on_server is not None:
        return _on_server(on_server, tags, name, chat_template=chat_template)
    from mem1.engines.workers import local_engine

    policy = load_policy(model)
    engine = local_engine(policy.model, policy.codec, tags.stop_strings, workers=workers)
    frame = _frame(policy_folder(model), policy.codec) if chat_template else _no_frame()
    return Agent(engine=engine, codec=policy.codec, frame=frame, name=name)


def _on_server(on_server: Served, tags: Tags, name: str, *, chat_template: bool) -> Agent:
    from mem1.engines.codec import Codec
    from mem1.engines.openai import OpenAIEngine

    stand_in = on_server.tokenizer == STAND_IN
    folder = Path(str(resources.files("mem1"))) / "assets" / STAND_IN if stand_in else Path(on_server.tokenizer)
    codec = Codec.load(folder)
    frame = _frame(folder, codec) if chat_template else _no_frame()
    engine = OpenAIEngine.open(on_server.server, codec, tags.stop_strings, own_tokenizer=not stand_in)
    if chat_template and engine.wire.endpoint == "chat":
        raise UserError("--chat-template is for --endpoint completions: at /chat/completions the server has its own")
    notes = (f"{on_server.server.urls[0]}: {engine.wire}",)
    if stand_in:
        name += " (stand-in tokens)"
        notes += ("Token counts and budgets are those of the stand-in tokenizer, not of the model.",)
    return Agent(engine=engine, codec=codec, frame=frame, name=name, notes=notes)


def _frame(folder: Path, codec: Codec) -> ChatFrame:
    from mem1.engines.chat_frame import ChatFrame

    return ChatFrame.load(folder, codec)


def _no_frame() -> ChatFrame:
    from mem1.engines.chat_frame import ChatFrame

    return ChatFrame()


def _tokenizer(given: str | None, model: str) -> str:
    """The folder that is given, or that of a model that is served by its folder's name; there is no other default."""
    if given is not None:
        return given
    if (Path(model) / "tokenizer.json").is_file():
        return model
    raise UserError(
        "--base-url needs --tokenizer FOLDER, with the served model's tokenizer.json, to count and cut tokens; where "
        f"it is not to be had, --tokenizer {STAND_IN} counts with another one"
    )


def _prices(price: str | None) -> dict[str, Any]:
    if price is None:
        return {}
    try:
        read, written = map(float, price.split(","))
    except ValueError as error:
        raise UserError(
            f"--price takes two numbers, of tokens read and written, such as 0.15,0.60; not {price!r}"
        ) from error
    return {"dollars_per_million_input": read, "dollars_per_million_output": written}
