"""`--device` and `--dtype`: what computes with a policy, in every command that has one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mem1.engines.device import Device, Machine
    from mem1.training.loop.recipe import TrainConfig

DeviceOption = Annotated[
    str | None,
    typer.Option("--device", help="auto (CUDA where there is one), cpu, cuda, cuda:N or mps.", show_default="auto"),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype",
        help="float32, bfloat16, or auto: bfloat16 on CUDA for weights stored in it.",
        show_default="auto",
    ),
]

_CHOICES = {
    "device": "auto, cpu, cuda, cuda:N or mps",
    "dtype": "auto, float32 or bfloat16",
    "attention": "auto, blocks or flex",
}


def machine(invocation: typer.Context) -> Machine:
    """This machine, or the one that the command line was called with: `app(args, obj=Machine(...))`."""
    from mem1.engines.device import Machine

    return invocation.find_object(Machine) or Machine.here()


def chosen(invocation: typer.Context, device: str | None, *, training: bool = False) -> Device:
    """The device that an option or a recipe's key asks for. Raises UserError where there is none such."""
    from mem1.engines.device import choose

    return choose(known("device", device), machine(invocation), training=training)


def nothing_here(device: str | None, dtype: str | None) -> None:
    """Raises UserError where options ask for a device although no model is in this process."""
    from mem1.errors import UserError

    if device is not None or dtype is not None:
        raise UserError("--device and --dtype are for a model in this process; here a server or a script answers")


def with_device(config: TrainConfig, device: str | None = None, dtype: str | None = None) -> TrainConfig:
    """The recipe with what the options say in place of its own keys."""
    given = {"device": device, "dtype": dtype}
    changed = {key: known(key, value) for key, value in given.items() if value is not None}
    if not changed:
        return config
    return config.model_copy(update={"model": config.model.model_copy(update=changed)})


def few_workers(device: Device, wanted: int) -> tuple[str, ...]:
    """A line that says so where fewer processes sample than were asked for."""
    if device.workers(wanted) == wanted:
        return ()
    return (f"{wanted} workers are for a CPU; on {device.name} one process computes",)


def known(key: str, value: str | None) -> str:
    """The value of an option that fills a key of [model]. Raises UserError for what it cannot be on any machine."""
    import pydantic

    from mem1.errors import UserError
    from mem1.training.loop.recipe import ModelConfig

    try:
        return getattr(ModelConfig.model_validate({} if value is None else {key: value}), key)
    except pydantic.ValidationError as error:
        raise UserError(f"--{key} is {_CHOICES[key]}, not {value!r}") from error
