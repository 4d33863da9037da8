"""The command `mem1`, and its errors: mistakes of the user, and what the system refuses, as one message.

    PermissionError(13, "Permission denied", "runs/a")
    ->  runs/a: Permission denied; check who may read and write it, or give another path

`main` prints these and exits with 2. An error without a message here is a bug of mem1 and keeps its stack trace. Heavy
libraries are loaded by the command that needs them.
"""

from __future__ import annotations

import atexit
import errno
import functools
import gc
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import pydantic
import typer

from mem1.cli import bench, data, export, index, plan, probe, proxy, real, report, run, serve, train, verify, webshop
from mem1.cli import eval as eval_command
from mem1.cli.options import Command, after_stop
from mem1.cli.progress import say
from mem1.configuration.mistakes import explain_unknown
from mem1.engines.out_of_memory import full, is_full
from mem1.errors import UserError
from mem1.heap import keep_freed
from mem1.version import __version__

EXIT_MISTAKE = 2
EXIT_INTERRUPTED = 130

CommandLineError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)
"""Typer's error for a command line that it cannot read; Typer has no public name for it."""

_OF_TRAINING = frozenset({"tensorboard", "torch", "transformers"})
"""Packages of the extra "train"."""
_NEXT_STEP = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "free some space, or raise the limit of a file's size",
    errno.EROFS: "nothing can be written there; give another path",
    errno.EACCES: "check who may read and write it, or give another path",
    errno.EPERM: "check who may read and write it, or give another path",
    errno.EISDIR: "give a file",
    errno.ENOTDIR: "a part of the path is a file; give another path",
    errno.EEXIST: "give another path",
    errno.ENAMETOOLONG: "give a shorter path",
    errno.ELOOP: "its links lead in a circle; give another path",
    errno.ENOENT: "check the path",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENOMEM: "close other programs, or ask for less",
    errno.EADDRINUSE: "give another --port",
    errno.EADDRNOTAVAIL: "give another --host",
}


def ended_by(error: Exception) -> str | None:
    """The message for an error that the user can put right, "" if help was printed; None: a bug of mem1."""
    if isinstance(error, CommandLineError):
        return _of_the_command_line(error)
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, pydantic.ValidationError):
        return explain_unknown(error)
    if isinstance(error, OSError):
        return _of_the_system(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _OF_TRAINING:
        return f"this needs {error.name}, which is not installed: pip install 'mem1-agents[train]'"
    if isinstance(error, MemoryError):
        return "the machine's memory is full; ask for less, or close other programs"
    if is_full(error):
        return f"{full(error)}; close other programs, or compute on the CPU (model.device=cpu, or --device cpu)"
    return None


def _of_the_command_line(error: Any) -> str:
    """Typer's message on a command line that it cannot read, with the command for help; "": help was printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    message = error.format_message().rstrip(".")
    where = getattr(error, "ctx", None)
    joint = " See" if message.endswith("?") else "; see"
    return f"{message}{joint} {where.command_path} --help" if where is not None else message


def _of_the_system(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    places = [os.fsdecode(place) for place in (error.filename, error.filename2) if isinstance(place, (str, bytes))]
    where = f"{' and '.join(places)}: " if places else ""
    step = _NEXT_STEP.get(error.errno or 0)
    return f"{where}{reason}" + ("" if step is None else f"; {step}") + ("" if places else _by_own_code(error))


def _by_own_code(error: OSError) -> str:
    """The last line of the user's own code on the way to the error, such as of an environment; "": there is none."""
    ours = (str(Path(__file__).parents[1]), "<", *(sysconfig.get_path(key) for key in ("stdlib", "purelib", "platlib")))
    own = [at for at in traceback.extract_tb(error.__traceback__) if not at.filename.startswith(ours)]
    return f" ({type(error).__name__} in {own[-1].filename}, line {own[-1].lineno})" if own else ""


def check_text(arguments: Sequence[str]) -> list[str]:
    """The arguments unchanged. Raises UserError for one that is not text, which no file could hold."""
    for number, argument in enumerate(arguments, start=1):
        if "\0" in argument or any("\ud800" <= character <= "\udfff" for character in argument):
            raise UserError(f"argument {number}, {argument!r}, is not UTF-8 text; write it in UTF-8")
    return list(arguments)


def prepare() -> None:
    """Waiting threads spin for some microseconds and then sleep (`benchmarks/waiting.py`): to spin on as OpenMP does
    costs several times on a shared machine. Large tensors are recycled, and other packages are quiet."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    atexit.register(gc.freeze)  # the interpreter's end would look for cycles in all that torch holds, for over a second
    if logging.lastResort is not None:
        logging.lastResort.addFilter(_matters)
    keep_freed()


def _matters(record: logging.LogRecord) -> bool:
    """Whether a message is the user's concern: bitsandbytes warns where it lacks a kernel that nothing here needs."""
    return record.name.partition(".")[0] == "mem1" or record.levelno >= logging.ERROR


app = typer.Typer(
    name="mem1",
    help="Train, evaluate and run LLM agents whose memory stays constant however long the task is.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_PANELS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Start here": {"quickstart": train.quickstart, "real": real.command},
    "Train": {
        "train": train.command,
        "verify": verify.command,
        "plan": plan.command,
        "serve-policy": serve.policy,
        "export": export.export,
        "push": export.push,
    },
    "Measure": {
        "eval": eval_command.command,
        "run": run.command,
        "report": report.command,
        "probe": probe.command,
    },
    "Memory for agents elsewhere": {
        "proxy": proxy.command,
        "serve-writer": serve.writer,
        "serve-recall": serve.recall,
    },
    "Data and search": {
        "data": data.command,
        "index": index.command,
        "serve-retriever": serve.retriever,
    },
}
"""Commands as the help groups them."""
for _panel, _commands in _PANELS.items():
    for _name, _function in _commands.items():
        app.command(_name, cls=Command, rich_help_panel=_panel)(_function)
app.add_typer(bench.app, rich_help_panel="Measure")
app.add_typer(webshop.app, rich_help_panel="Data and search")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"mem1 {__version__}")
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
        say(after_stop(interrupt))
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone, as in `mem1 plan RECIPE | head`
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
