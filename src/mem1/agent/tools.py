"""An agent's tools: functions with type hints, tools of MCP servers, and the results of calls that fail.

    def search(query: str, most: int = 3) -> str:
        \"\"\"Searches an encyclopedia.\"\"\"

    tool_of(search).declared                    {"type": "function", "function": {"name": "search", "parameters": ...}}
    tool_of(search).call({"query": "Oslo"})     what search("Oslo", 3) returns

A tool never ends an agent: whatever it raises becomes a result that begins with "error:".
"""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import pydantic
import pydantic_core

from mem1.agent.schemas import Accepted, accepted
from mem1.errors import UserError
from mem1.messages.text_calls import arguments_in
from mem1.net.exchange import one_line

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""Tool names that providers accept."""
_DESCRIPTION = 1_024
"""Characters of a tool's description that OpenAI takes."""
_GOES_ON = " [goes on in its parameters]"
Wait = Callable[[Coroutine[Any, Any, Any]], Any]
"""Runs a coroutine to its end."""


class ToolFailed(Exception):
    """A tool could not do what it was called for; the model reads the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool, wherever it comes from."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of its arguments."""
    call: Callable[[dict[str, Any]], Any]
    """Takes the arguments; returns text, or anything that JSON can hold. Raises whatever it likes."""
    _accepted: Accepted = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_accepted", accepted(self.parameters))
        if not NAME.fullmatch(self.name):
            raise UserError(f"{self.name!r:.80} cannot name a tool; providers take up to 64 of A-Z a-z 0-9 _ -")

    @property
    def told(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments that the model is told, with `properties`."""
        return self._accepted.schema

    @property
    def declared(self) -> dict[str, Any]:
        """As OpenAI's chat completions take it, within what all providers accept."""
        described = f"{self.description.strip() or self.name}\n{self._accepted.note}".strip()
        parameters = dict(self.told)
        if len(described) > _DESCRIPTION:  # the schema's description has no limit
            kept = _DESCRIPTION - len(_GOES_ON)
            described, rest = described[:kept] + _GOES_ON, described[kept:]
            parameters["description"] = f"{rest}\n{parameters.get('description', '')}".strip()
        return {"type": "function", "function": {"name": self.name, "description": described, "parameters": parameters}}

    def run(self, arguments: Mapping[str, Any]) -> Any:
        """What `call` returns for arguments under the names that the model was told. Raises what it raises."""
        return self.call(self._accepted.given(arguments))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a call."""

    text: str
    failed: bool = False


def tool_of(function: Callable[..., Any], wait: Wait) -> Tool:
    """A function as a tool: schema from its type hints, description from its docstring. `wait` runs coroutines.

    Raises UserError for a function that lacks either, or takes arguments without names.
    """
    name = getattr(function, "__name__", "")
    if not inspect.isroutine(function) or not NAME.fullmatch(name):
        raise UserError(f"{function!r:.80} cannot be a tool; give a function with a name, or a Tool")
    if inspect.isasyncgenfunction(function):
        raise UserError(f"the tool {name} yields its results; return them: a call has one result")
    described = inspect.getdoc(function)
    if not described:
        raise UserError(f"the tool {name} needs a docstring: it tells the model what the function does")
    for parameter in inspect.signature(function).parameters.values():
        if parameter.annotation is parameter.empty:
            raise UserError(f"the tool {name} needs a type hint for {parameter.name}: the model is told what to give")
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            shown = str(parameter).partition(":")[0]
            raise UserError(f"the tool {name} cannot have the parameter {shown}: a model gives arguments by name")

    @functools.wraps(function)
    def given(**arguments: Any) -> dict[str, Any]:
        return arguments

    try:
        reader: pydantic.TypeAdapter[dict[str, Any]] = pydantic.TypeAdapter(given)  # pyright: ignore[reportArgumentType]
        schema = reader.json_schema()
    except (pydantic.errors.PydanticUserError, NameError, TypeError) as error:
        raise UserError(f"the tool {name} has no JSON schema: {one_line(str(error))}") from error

    def call(arguments: dict[str, Any]) -> Any:
        try:
            read = reader.validate_python(arguments)
        except pydantic.ValidationError as error:
            raise ToolFailed(_mistake(name, error)) from error
        result = function(**read)
        return wait(result) if inspect.iscoroutine(result) else result

    return Tool(name=name, description=described, parameters=schema, call=call)


def outcome_of(tools: Mapping[str, Tool], name: str, arguments: str) -> Outcome:
    """Calls a tool with arguments in JSON. Never raises: the outcome tells what went wrong."""
    tool = tools.get(name)
    if tool is None:
        return error(f"there is no tool {name!r:.80}; there are {', '.join(tools) or 'none'}")
    try:
        return Outcome(text=as_text(tool.run(_read(arguments))))
    except (ToolFailed, UserError) as failure:
        return error(str(failure))
    except (Exception, SystemExit) as failure:  # whatever the tool raises: the model may know another way
        return error(f"{type(failure).__name__}: {failure}")


def error(why: str) -> Outcome:
    """A result that tells the model what went wrong."""
    return Outcome(text=f"error: {why.strip()}", failed=True)


def as_text(result: Any) -> str:
    """A tool's result as the model reads it: text as it is, anything else as JSON."""
    if isinstance(result, str):
        return result
    if result is None:
        return "done"
    return pydantic_core.to_json(result, fallback=str, inf_nan_mode="strings").decode()


def _read(arguments: str) -> dict[str, Any]:
    """The arguments of a call. Raises ToolFailed, quoting them, for anything but a JSON object."""
    if (read := arguments_in(arguments)) is not None:
        return read
    try:
        json.loads(arguments)
    except (ValueError, RecursionError) as problem:
        raise ToolFailed(f"the arguments are not JSON ({str(problem)[:100]}): {arguments}") from problem
    raise ToolFailed(f"the arguments are no JSON object: {arguments}")


def _mistake(name: str, error: pydantic.ValidationError) -> str:
    mistakes = [
        f"{'.'.join(map(str, mistake['loc']))}: {mistake['msg']}" if mistake["loc"] else mistake["msg"]
        for mistake in error.errors(include_url=False, include_input=False)
    ]
    return f"the arguments of {name} do not fit: {'; '.join(mistakes)}"
