"""The command `mem1`: one thin file a command; heavy libraries are loaded by the command that needs them."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

import mem1
from mem1.cli import (
    cost,
    data,
    export,
    index,
    plan,
    quickstart,
    report,
    run,
    serve_policy,
    serve_retriever,
    train,
    verify,
    webshop,
)
from mem1.cli import eval as eval_command
from mem1.cli.process import prepare
from mem1.errors import UserError

app = typer.Typer(
    name="mem1",
    help="Train, evaluate and run LLM agents whose memory stays constant however long the task is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("quickstart")(quickstart.command)
app.command("train")(train.command)
app.command("export")(export.command)
app.command("plan")(plan.command)
app.command("eval")(eval_command.command)
app.command("index")(index.command)
app.command("run")(run.command)
app.command("report")(report.command)
app.command("cost")(cost.command)
app.command("verify")(verify.command)
app.command("serve-retriever")(serve_retriever.command)
app.command("serve-policy")(serve_policy.command)
app.add_typer(data.app)
app.add_typer(webshop.app)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mem1 {mem1.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point. A user's mistake is one message and exit code 2, an interruption exit code 130."""
    prepare()
    try:
        app()
    except UserError as error:
        Console(stderr=True, highlight=False).print(f"[bold red]error:[/] {_escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt as interrupt:
        said = f"Stopped. {interrupt}".strip()
        Console(stderr=True, highlight=False).print(_escape(said), soft_wrap=True)
        sys.exit(130)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


if __name__ == "__main__":
    main()
