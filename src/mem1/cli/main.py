"""The command `mem1`: one thin file a command; heavy libraries are loaded by the command that needs them."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

import mem1
from mem1.cli import (
    cost,
    data,
    index,
    plan,
    quickstart,
    report,
    run,
    serve,
    train,
    verify,
    webshop,
)
from mem1.cli import eval as eval_command
from mem1.cli.mistakes import EXIT_INTERRUPTED, EXIT_MISTAKE, check_text, ended_by
from mem1.cli.options import Command
from mem1.cli.process_env import prepare
from mem1.cli.progress import say

app = typer.Typer(
    name="mem1",
    help="Train, evaluate and run LLM agents whose memory stays constant however long the task is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("quickstart", cls=Command)(quickstart.command)
app.command("train", cls=Command)(train.command)
app.command("export", cls=Command)(train.export)
app.command("plan", cls=Command)(plan.command)
app.command("eval", cls=Command)(eval_command.command)
app.command("index", cls=Command)(index.command)
app.command("run", cls=Command)(run.command)
app.command("report", cls=Command)(report.command)
app.command("cost", cls=Command)(cost.command)
app.command("verify", cls=Command)(verify.command)
app.command("serve-retriever", cls=Command)(serve.retriever)
app.command("serve-policy", cls=Command)(serve.policy)
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point; None: the arguments of the process.

    Exit code 2 and one message for what the user can put right, 130 for an interruption.
    """
    prepare()
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
    except (KeyboardInterrupt, typer.Abort) as interrupt:
        say(f"Stopped. {interrupt}".strip())
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `mem1 cost | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains at its end
        code = 1
    except Exception as error:
        message = ended_by(error)
        if message is None:
            raise
        if message:
            say(message, "error")
        code = EXIT_MISTAKE
    if code:
        sys.exit(code)


def _run(arguments: Sequence[str]) -> int:
    """Exit code of the command. Typer's own `app()` would print mistakes in another form than ours."""
    parser = _parser()
    try:
        with parser.make_context("mem1", check_text(arguments)) as context:
            parser.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


@functools.cache
def _parser() -> Any:
    """The commands as Typer reads them; made once a process."""
    return typer.main.get_command(app)


if __name__ == "__main__":
    main()
