"""`mem1 proxy`: a memory for agents that can only change the address of their model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mem1.cli.options import (
    AllowHostOption,
    DeviceOption,
    Fills,
    HostOption,
    PortOption,
    make_folder_of,
    refuse,
    work_begins,
)
from mem1.cli.writer import WriterModelOption, WriterUrlOption, open_writer, place
from mem1.errors import UserError


def command(
    invocation: typer.Context,
    upstream: Annotated[str, typer.Option(help="The model's server, such as https://api.openai.com/v1.")],
    memory: Annotated[
        str,
        typer.Option(help="full, fold(k), fold(auto), notes, masked(k), window(k), ..., or package.module:Name."),
    ] = "fold(auto)",
    prices: Annotated[
        str | None, typer.Option(help="Price class of the server (docs/cost.md); fold(auto) needs it.")
    ] = None,
    state_tokens: Annotated[
        int, typer.Option(min=50, help="Longest state."), Fills("mem1.messages.bounds:Bounds.state")
    ] = 1_000,
    result_tokens: Annotated[
        int | None, typer.Option(min=50, help="Longest tool result; of longer ones, the end is cut off.")
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(min=200, help="Longest prompt; older results, then exchanges are dropped."),
    ] = None,
    writer: Annotated[
        Path | None,
        typer.Option(help="Folder of a policy trained to write notes: it writes the states, not the agent's model."),
    ] = None,
    device: DeviceOption = None,
    writer_url: WriterUrlOption = None,
    writer_model: WriterModelOption = None,
    states: Annotated[Path, typer.Option(help="File that keeps states across restarts.")] = Path("mem1-states.sqlite"),
    events: Annotated[
        Path | None,
        typer.Option(
            help="File that gets a JSON line for each state and each new decision: tokens, state, what was left out."
        ),
    ] = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8002,
    allow_host: AllowHostOption = None,
) -> None:
    """Fold the messages between an agent and its model, for agents that can only change base_url.

    Folds what is sent to /v1/chat/completions and /v1/messages; all else, and whatever is in doubt, goes on unchanged.
    """
    from mem1.cli.progress import say, stderr
    from mem1.memory import Fold, Full, memory_policy
    from mem1.messages import Bounds
    from mem1.messages.memory import check_takes_notes
    from mem1.prices import price_class

    chosen = memory_policy(memory)
    known = None if prices is None else price_class(prices)
    if chosen == Fold(None) and known is None:
        raise UserError("fold(auto) needs --prices, such as --prices hosted-90; docs/cost.md has the classes")
    from mem1.extras.proxy.app import serve
    from mem1.extras.proxy.upstream import root_of

    root_of(upstream)
    at = None
    if writer is None:
        refuse(invocation, "device", "writer_url", "writer_model", because="belongs to --writer")
    else:
        check_takes_notes(chosen, memory)
        at = place(invocation, writer_url, writer_model, device)
    for file in (states, events):
        if file is not None:
            make_folder_of(file)
    work_begins()
    if not isinstance(chosen, Full) and chosen != Fold(None):
        say(
            f"{memory} changes prompts that the provider has cached, whether or not that costs more than it saves; "
            "fold(auto) folds only where it saves money",
            "warning",
        )
    console = stderr()
    loaded = None if writer is None or at is None else open_writer(writer, at)
    done = serve(
        upstream,
        memory,
        prices=known,
        bounds=Bounds(state=state_tokens, result=result_tokens, prompt=prompt_tokens, handles=False),
        writer=loaded,
        states=states,
        events=events,
        host=host,
        port=port,
        allow_hosts=allow_host or (),
        listening=lambda address: console.print(
            f"Serving {upstream} with {memory} on {address}; Ctrl-C stops", soft_wrap=True, markup=False
        ),
    )
    tokens = (
        f"{done.states.prompt_tokens:,} + {done.states.output_tokens:,} tokens, {done.states.cached_tokens:,} cached"
    )
    wrote = f"{done.states.calls:,} states ({tokens})"
    if loaded is not None:
        wrote = f"the writer read {loaded.read:,} tokens and wrote {loaded.written:,}"
    console.print(
        f"Stopped. {done.requests:,} requests, {done.folded:,} folded, {done.unchanged:,} in doubt; {wrote}.",
        soft_wrap=True,
    )
