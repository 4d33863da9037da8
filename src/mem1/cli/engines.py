"""Which model works on the tasks: one in this process, or one on a server; one rule for every command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pydantic
import typer

from mem1.configuration.numbers import MOST_TOKENS
from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.cli.display import Prices
    from mem1.engines.base import Engine
    from mem1.engines.chat_template import ChatTemplate
    from mem1.engines.codec import Codec
    from mem1.engines.device import Computed, Device
    from mem1.engines.servers import ModelServer
    from mem1.protocol import Tags
    from mem1.rollout import Budget

STAND_IN = "stand-in"
"""The name of the tokenizer that counts where that of the served model is not to be had."""

_SERVER = "Server"
"""Panel of the help."""
BaseUrl = Annotated[
    list[str] | None,
    typer.Option(
        "--base-url",
        help="A server of OpenAI's protocol that serves --model; repeatable, for failover.",
        rich_help_panel=_SERVER,
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(help="Of the server: completions, chat or auto, which asks it.", rich_help_panel=_SERVER),
]
TokenizerName = Annotated[
    str | None,
    typer.Option(
        "--tokenizer",
        help="Tokenizer of the served model, or of a --script: a folder, a Hugging Face id in the cache, 'shipped'; "
        "'stand-in' counts with another one.",
        rich_help_panel=_SERVER,
    ),
]
ChatTemplate = Annotated[
    bool,
    typer.Option(
        "--chat-template", help="Put the prompt into the chat template of the model's folder.", rich_help_panel=_SERVER
    ),
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(help="Environment variable that holds the server's API key.", rich_help_panel=_SERVER),
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        min=1, help="Tasks in work at a time, each by itself; 16. Also of a --script.", rich_help_panel=_SERVER
    ),
]
MaxCompletion = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_TOKENS,
        help="Tokens of a completion. Without: 1000 for a model on a server, with a chat template or with a prompt of "
        "instructions; for others 8 an objective and 32.",
        rich_help_panel="Agent",
    ),
]
MaxTokensSpent = Annotated[
    int | None,
    typer.Option(min=0, help="Tokens that the server may read and write, in all.", rich_help_panel=_SERVER),
]
MaxCost = Annotated[
    float | None,
    typer.Option(min=0, help="Dollars that the server may cost, in all; with --price.", rich_help_panel=_SERVER),
]
Price = Annotated[
    str | None,
    typer.Option(help="Dollars a million tokens read, and a million written: 0.15,0.60.", rich_help_panel=_SERVER),
]


@dataclass(frozen=True, kw_only=True)
class Served:
    """What the options of a server ask for."""

    server: ModelServer
    tokenizer: str
    """Its folder, or the name of the stand-in."""


@dataclass(frozen=True, kw_only=True)
class Agent:
    """A model that is ready to work."""

    engine: Engine
    codec: Codec
    frame: ChatTemplate
    name: str
    """What rows and files call it."""
    identity: str
    """What tells it from every other agent."""
    at_a_time: int | None = None
    """Tasks to give it at a time, each by itself; None: it takes many in one batch."""
    computed: Computed | None = None
    """With what this process computes; None: a server does, or a script."""
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
    from mem1.training.weights.policy import SHIPPED, SHIPPED_SHOP

    priced = prices(price)
    limit: dict[str, float | None] = {"tokens": max_tokens_spent, "dollars": max_cost}
    if priced is not None:
        limit |= {"dollars_per_million_input": priced.tokens_in, "dollars_per_million_output": priced.tokens_out}
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
    model: str,
    tags: Tags,
    *,
    on_server: Served | None,
    chat_template: bool = False,
    workers: int = 1,
    device: Device | None,
    dtype: str | None = None,
) -> Agent:
    """The model in a folder, on `device`, or the one on a server. Raises UserError where it cannot be had."""
    from mem1.cli.devices import few_workers
    from mem1.training.weights.policy import load_policy

    name = Path(model).name
    if on_server is not None:
        return _on_server(on_server, tags, name, chat_template=chat_template)
    from mem1.engines.workers import local_engine

    assert device is not None
    policy = load_policy(model, chat_template=chat_template, device=device, dtype=dtype or "auto")
    engine = local_engine(policy.model, policy.codec, tags.stop_strings, workers=device.workers(workers))
    computed = policy.computed(device)
    return Agent(
        engine=engine,
        codec=policy.codec,
        frame=policy.frame,
        name=name,
        identity=policy.fingerprint(),
        computed=computed,
        notes=(str(computed), *few_workers(device, workers)),
    )


def _on_server(on_server: Served, tags: Tags, name: str, *, chat_template: bool) -> Agent:
    from mem1.engines.chat_template import ChatTemplate
    from mem1.engines.codec import Codec
    from mem1.engines.openai import OpenAIEngine

    stand_in, folder = on_server.tokenizer == STAND_IN, tokenizer_folder(on_server.tokenizer)
    codec = Codec.load(folder)
    frame = ChatTemplate.load(folder, codec) if chat_template else ChatTemplate()
    engine = OpenAIEngine.open(on_server.server, codec, tags.stop_strings, own_tokenizer=not stand_in)
    if chat_template and engine.dialect.own_template:
        raise UserError(
            "--chat-template, or model.chat_template of a recipe, is for --endpoint completions: at /chat/completions "
            "the server has its own"
        )
    notes = (f"{on_server.server.urls[0]}: {engine.dialect}",)
    if stand_in:
        name += " (stand-in tokens)"
        notes += ("Token counts and budgets are those of the stand-in tokenizer, not of the model.",)
    identity = f"{on_server.server.model} by {engine.dialect}, tokens of {codec.fingerprint()}"
    return Agent(
        engine=engine,
        codec=codec,
        frame=frame,
        name=name,
        identity=identity + (" in its chat template" if chat_template else ""),
        at_a_time=on_server.server.concurrency,
        notes=notes,
    )


def _tokenizer(given: str | None, model: str) -> str:
    """The folder that is given, or that of a model which is served by its folder's name, or by its Hugging Face id
    and is in the cache; there is no other default."""
    from mem1.training.weights.policy import policy_folder

    if given == STAND_IN:
        return given
    folder = policy_folder(model if given is None else given)
    if given is not None or (folder / "tokenizer.json").is_file():
        return str(folder)
    raise UserError(
        "--base-url needs --tokenizer FOLDER, with the served model's tokenizer.json, to count and cut tokens (a "
        "Hugging Face id is found in its cache: hf download); where it is not to be had, "
        f"--tokenizer {STAND_IN} counts with another one"
    )


def tokenizer_folder(name: str) -> Path:
    """What `policy_folder` finds under the name, or the folder of the tokenizer that stands in for others."""
    from mem1.training.weights.policy import policy_folder

    return Path(str(resources.files("mem1"))) / "assets" / STAND_IN if name == STAND_IN else policy_folder(name)


def budget_of(model: str, *, on_server: bool, max_completion: int | None, max_context: int) -> Budget:
    """Tokens that an attempt may use: as given, else those of the shipped policies, else by the rule of `Budget`.

    A model on a server is a general one.
    """
    from mem1.rollout import GENERAL_COMPLETION, Budget
    from mem1.training.weights.policy import SHIPPED, SHIPPED_SHOP

    if max_completion is not None:
        return Budget.of_completions(max_completion, context=max_context)
    if on_server:
        return Budget.of_completions(GENERAL_COMPLETION, context=max_context)
    if model in (SHIPPED, SHIPPED_SHOP):
        extra = 32 if model == SHIPPED else 48  # as they were trained
        return Budget(completion_per_objective=8, completion_extra=extra, context=max_context)
    return Budget(context=max_context)


def prices(price: str | None) -> Prices | None:
    """Of --price. Raises UserError where these are not two numbers."""
    from mem1.cli.display import Prices

    if price is None:
        return None
    try:
        read, written = map(float, price.split(","))
    except ValueError as error:
        raise UserError(
            f"--price takes two numbers, of tokens read and written, such as 0.15,0.60; not {price!r}"
        ) from error
    return Prices(tokens_in=read, tokens_out=written)
