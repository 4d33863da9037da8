"""`mem1 serve-policy`, `serve-writer`, `serve-retriever`: a model or an index over HTTP; `serve-recall`: by MCP."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mem1.cli.options import (
    AllowHostOption,
    DeviceOption,
    DtypeOption,
    HostOption,
    PortOption,
    chosen_device,
    refuse,
    work_begins,
)
from mem1.cli.writer import WriterModelOption, WriterUrlOption, open_writer, place
from mem1.configuration.model import MOST_WORKERS
from mem1.errors import UserError

if TYPE_CHECKING:
    from mem1.retrieval import Retriever

_TokenOption = Annotated[
    str | None,
    typer.Option(
        "--token-env", help="Environment variable with the token that requests must carry; any other --host needs it."
    ),
]
_WorkersOption = Annotated[
    int, typer.Option(min=1, max=MOST_WORKERS, help="Processes that sample; for small models on a CPU.")
]
_MOST_WORKERS = 4
"""Default limit of a retriever's processes; a trainer on the same machine needs the other cores."""


def policy(
    invocation: typer.Context,
    policy: Annotated[
        str,
        typer.Argument(
            help="Folder of a policy, the name of a shipped one, or stand-in: a script, to try agents with."
        ),
    ],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8001,
    allow_host: AllowHostOption = None,
    name: Annotated[str, typer.Option(help="The model's name in requests.")] = "policy",
    token_env: _TokenOption = None,
    weights_folder: Annotated[
        Path | None, typer.Option(help="Folder from which new weights are loaded. Default: the weights never change.")
    ] = None,
    workers: _WorkersOption = 1,
    device: DeviceOption = None,
    dtype: DtypeOption = None,
) -> None:
    """Serve completions and chat completions by OpenAI's protocol, with token ids and log-probs.

    New weights can be loaded while it serves (docs/model-servers.md). Chat messages are written as the policy was
    trained to, else by its chat template or in its own tags.
    """
    from mem1.cli.progress import stderr
    from mem1.engines.config import STAND_IN
    from mem1.engines.policy_sampler import Sampler, ScriptedSampler
    from mem1.engines.policy_server import serve
    from mem1.engines.servers import api_key
    from mem1.engines.stand_in import stand_in, stand_in_chat
    from mem1.policy.policy import load_policy, own_chat

    console, token = stderr(), api_key(token_env)
    if policy == STAND_IN:
        refuse(invocation, "weights_folder", "workers", "device", "dtype", because="is for a policy, not for a script")
        work_begins()
        chat = stand_in_chat()
        sampler = ScriptedSampler(chat.codec, stand_in)
    else:
        on = chosen_device(invocation, device)
        work_begins()
        loaded = load_policy(policy, device=on, dtype=dtype or ("auto" if weights_folder is None else "float32"))
        for note in (str(loaded.computed(on)), *on.worker_warnings(workers)):
            console.print(note, markup=False, soft_wrap=True)
        sampler = Sampler(loaded.model, loaded.codec, workers=on.workers(workers))
        try:
            chat = own_chat(loaded)
        except UserError as error:
            console.print(f"no chat completions: {error}", markup=False, soft_wrap=True)
            chat = str(error)
    serve(
        sampler,
        chat,
        name=name,
        host=host,
        allow_hosts=allow_host or (),
        port=port,
        token=token,
        weights_folder=weights_folder,
        listening=lambda address: console.print(
            f"Serving {policy} on {address}; Ctrl-C stops", soft_wrap=True, markup=False
        ),
    )
    console.print("Stopped.")


def writer(
    invocation: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder of a policy that was trained to write notes.")],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8003,
    allow_host: AllowHostOption = None,
    name: Annotated[str, typer.Option(help="The model's name in requests.")] = "mem1-writer",
    token_env: _TokenOption = None,
    workers: _WorkersOption = 1,
    device: DeviceOption = None,
    writer_url: WriterUrlOption = None,
    writer_model: WriterModelOption = None,
) -> None:
    """Serve a memory writer as the model that a product asks for summaries, by OpenAI's protocol.

    It reads the history part by part and replies with checked notes (docs/memory/writer.md).
    """
    from mem1.cli.progress import stderr
    from mem1.engines.device import Device
    from mem1.engines.servers import api_key
    from mem1.extras.writer.serving import serve

    console, token = stderr(), api_key(token_env)
    at = place(invocation, writer_url, writer_model, device, "workers")
    work_begins()
    for note in at.worker_warnings(workers) if isinstance(at, Device) else ():
        console.print(note, markup=False, soft_wrap=True)
    serve(
        open_writer(folder, at, workers=workers),
        name=name,
        host=host,
        allow_hosts=allow_host or (),
        port=port,
        token=token,
        listening=lambda address: console.print(
            f"Serving {folder} on {address}; Ctrl-C stops", soft_wrap=True, markup=False
        ),
    )
    console.print("Stopped.")


def retriever(
    corpus: Annotated[Path, typer.Argument(help="JSONL of passages (may be gzipped), or the folder of an index.")],
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    allow_host: AllowHostOption = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=MOST_WORKERS, help="Processes. Default: one per core, at most 4.")
    ] = None,
    top_k: Annotated[
        int, typer.Option(min=1, max=1000, help="Passages per query, if a request does not give a number.")
    ] = 3,
) -> None:
    """Answer searches over HTTP by the protocol of Search-R1's retrieval server."""
    from mem1.cli.progress import stderr
    from mem1.net.threads import cores
    from mem1.retrieval.server import serve

    work_begins()
    console = stderr()
    number = workers or min(_MOST_WORKERS, cores())
    serve(
        _opener(corpus, number),
        host=host,
        allow_hosts=allow_host or (),
        port=port,
        workers=number,
        top_k=top_k,
        listening=lambda address: console.print(
            f"Serving {corpus} on {address} ({number} worker{'s'[: number > 1]}); Ctrl-C stops",
            soft_wrap=True,
            markup=False,
        ),
    )
    console.print("Stopped.")


def recall(
    log: Annotated[Path, typer.Argument(help="File of the whole conversation: one message per line, as JSON.")],
    form: Annotated[str, typer.Option(help="Form of the messages: chat, responses or anthropic.")] = "chat",
) -> None:
    """Give an agent that takes tools from MCP servers `recall`: the results behind the handles of its memory.

    It speaks over stdin and stdout, so the agent starts it. The file may grow while it runs (docs/memory/agent.md).
    """
    from mem1.extras.agents.recall_server import serve_recall
    from mem1.messages.forms import form_of

    form_of(form)
    if log.is_dir():
        raise UserError(f"{log} is a folder; give the file of a conversation")
    work_begins()
    serve_recall(log, form)


def _opener(corpus: Path, workers: int) -> Callable[[], Retriever]:
    """Opens the index; builds it here if there is none, so that several workers only map it."""
    from mem1.retrieval.bm25 import BM25
    from mem1.retrieval.index_folder import bm25_folder, open_bm25, open_passages, open_retriever

    if corpus.is_dir():
        open_passages(corpus)  # what is wrong with it is said once, not by every worker
        return partial(open_retriever, corpus)
    index = open_bm25(corpus)
    return (lambda: index) if workers == 1 else partial(BM25.load, bm25_folder(corpus))
