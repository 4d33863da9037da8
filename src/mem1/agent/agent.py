"""An agent in chat messages: a model, tools, and a memory that keeps what the model sees bounded.

    agent = Agent("http://127.0.0.1:8000/v1", tools=[search, McpServer("python notes_server.py")])
    print(agent.run("Who is the mayor of the capital of Norway?").answer)
    print(agent.report())
    agent.run("And before that?")           the conversation goes on

    call of the model -> calls of tools, in parallel -> results -> the memory folds -> the next call

`agent.messages` is the whole conversation; what the model sees of it is `agent.memory`'s doing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from contextvars import Context, copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mem1.agent.background import Background
from mem1.agent.chat import ModelFailed, Reply, Unreadable, chat_of
from mem1.agent.ledger import Ledger
from mem1.agent.mcp_tools import McpServer, McpTools
from mem1.agent.replies import CUTS, TRIES, Fault, Repeated, asked_again, understood
from mem1.agent.report import Ending, Report
from mem1.agent.tools import Outcome, Tool, error, outcome_of, tool_of
from mem1.engines.servers import ModelServer
from mem1.errors import UserError
from mem1.jsonl import read_objects, write_objects
from mem1.memory import MemoryPolicy
from mem1.messages import Bounds, Event, Memory, check
from mem1.messages.endings import unfinished
from mem1.messages.thoughts import Speech, begins_inside
from mem1.messages.transcript import Call, Message, texts
from mem1.net.threads import Pool
from mem1.prices import PriceClass

MEMORY = "fold(8)"
"""Default policy."""
RESULT_TOKENS = 2_000
"""Default bound of one tool result."""
_THREADS = 32
"""Maximum number of concurrent tool calls."""
_STUCK = 5
"""Turns after which a model that repeats the same failing calls is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Called:
    """The model calls a tool."""

    id: str
    name: str
    arguments: str
    """JSON, as the model wrote it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A tool has returned."""

    id: str
    name: str
    text: str
    """The whole result; the model may see less of it."""
    failed: bool


Step = str | Called | Returned | Repeated | Event
"""What `Agent.stream` yields."""


class Agent:
    """See the module. Not for several threads at a time; an asynchronous program calls it by `asyncio.to_thread`.

    model           base URL of a server of OpenAI's protocol; a `mem1.ModelServer`; or a function that takes messages
                    and declared tools and returns the model's message
    name            the model's name on the server; may be left out where it serves one
    api_key_env     environment variable with the API key
    headers         sent with every request: {"api-key": "$AZURE_KEY"}, where $NAME is an environment variable
    query           parameters after the ? of every address: {"api-version": "2024-10-21"}
    settings        what every request holds besides: {"temperature": 0, "max_tokens": 4_000}; one for a state has more
                    tokens where these are few, and no stop words, schema or demand for a call
    tools           functions with type hints and a docstring, `McpServer`s, `Tool`s
    memory          a memory of mem1.memory, by name or of your own
    instructions    the system message
    bounds          limits of tool results, state and prompt
    prices          a name of mem1.prices.PRICE_CLASSES, or your own: for costs and fold(auto)
    max_turns       most replies of the model in a run; those of no use, at most 6 in a row, are not counted
    timeout_s       time limit of a run, connecting to MCP servers included; None means unlimited. A model that is a
                    function is not interrupted
    events          a file for one JSON line per event of the memory

    Raises UserError for what does not fit together.
    """

    def __init__(
        self,
        model: str | ModelServer | Callable[[list[Message], list[Message]], Any],
        *,
        name: str | None = None,
        api_key_env: str | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
        settings: Mapping[str, Any] | None = None,
        tools: Sequence[Callable[..., Any] | McpServer | Tool] = (),
        memory: str | MemoryPolicy = MEMORY,
        instructions: str | None = None,
        bounds: Bounds = Bounds(result=RESULT_TOKENS),  # noqa: B008  (frozen)
        prices: str | PriceClass | None = None,
        max_turns: int = 100,
        timeout_s: float | None = None,
        events: str | Path | None = None,
    ) -> None:
        if max_turns < 1 or (timeout_s is not None and timeout_s <= 0):
            raise UserError("max_turns must be at least 1, and timeout_s above 0")
        if not isinstance(tools, Iterable):
            raise UserError("tools must be a list, as in tools=[search, McpServer(...)]")
        self.memory = Memory(
            memory, write=self._write, bounds=bounds, prices=prices, on_event=self._event, events=events
        )
        self._background = Background()
        self._given = tuple(tools)
        self._own = [_own_tool(tool, self._background) for tool in self._given if not isinstance(tool, McpServer)]
        self._tools: dict[str, Tool] | None = None
        """None: the servers are not connected yet."""
        self._servers: list[McpTools] = []
        fields: dict[str, Any] = {"api_key_env": api_key_env, "headers": headers, "query": query}
        server = {field: value for field, value in fields.items() if value is not None}
        self._model = chat_of(model, name, settings, server)
        self._max_turns, self._timeout_s = max_turns, timeout_s
        self._messages: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
        self._ledger = Ledger(self.memory)
        self._events: list[Event] = []
        self._thinks_first = False
        """Whether the text of a reply began inside a thought."""
        self._ends: float | None = None
        self._ending: Ending | None = None
        self._working = threading.Lock()

    @property
    def messages(self) -> list[Message]:
        """The whole conversation, as OpenAI's chat completions take it. A copy."""
        return list(self._messages)

    @property
    def answer(self) -> str | None:
        """The model's last words, once a run has ended with an answer."""
        answered = self._ending in (Ending.ANSWERED, Ending.OUT_OF_TOKENS) and self._messages[-1]["role"] == "assistant"
        return texts(self._messages[-1]["content"]) if answered else None

    def run(self, task: str | None = None) -> Agent:
        """Works on a task until it is answered or a limit is reached; returns the agent, for `answer` and `report()`.

        A second task continues the conversation. None: goes on with the last one, after a limit, Ctrl-C or a failure.
        Raises UserError where the model or an MCP server fails; the conversation is then as before the failing call,
        and without a task of which nothing came, which is to be given again.
        """
        for _ in self._run(task, streaming=False):
            pass
        return self

    def stream(self, task: str | None = None) -> Iterator[Step]:
        """The same, step by step: the model's text as it comes, without thoughts that the server leaves in it; calls,
        results, replies that were of no use, and events of the memory.

        Where a chat template begins the thought itself, the first reply shows it: its end tells, for all later ones.

        Who stops reading interrupts the run.
        """
        return self._run(task, streaming=True)

    def report(self) -> Report:
        """Usage of the conversation so far, over all runs of this agent."""
        return self._ledger.report(answer=self.answer, ending=self._ending, messages=self._messages)

    def save(self, path: str | Path) -> None:
        """Writes the conversation as JSON Lines, one message each, with the memory's newest state at its place."""
        write_objects(path, self.memory.with_state(self._messages))

    def load(self, path: str | Path) -> Agent:
        """Replaces the conversation with a saved one, which may have no task yet. A call that had no result when it was
        saved gets one that says so. Raises UserError where the file holds none."""
        loaded = [record for _, record in read_objects(path)]
        try:
            if any(message.get("role") != "system" for message in loaded):
                check(loaded, waiting=True)
        except UserError as mistake:
            raise UserError(f"{path} is not a conversation of an agent: {mistake}") from mistake
        ended = error("the program ended before this call was done")
        loaded += [_result(id, ended) for id in _without_result(loaded)]
        self._messages, self._ending = self.memory.without_states(loaded), None
        return self

    def close(self) -> None:
        """Ends the MCP servers that it started, and its connections."""
        self._leave()
        self._model.close()
        self._tools = None

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, task: str | None, *, streaming: bool) -> Iterator[Step]:
        if not self._working.acquire(blocking=False):
            raise UserError("this agent is already at work; end that run first, or make another agent")
        try:
            self._ends = None if self._timeout_s is None else time.monotonic() + self._timeout_s
            tools = self._connected()
            before = len(self._messages)
            self._begin(task)
            try:
                yield from self._turns(tools, streaming=streaming)
            except ModelFailed:
                self._ending = Ending.FAILED
                if self._left_s() == 0:
                    self._ending = Ending.OUT_OF_TIME
                else:
                    raise
            except UserError:
                self._ending = Ending.FAILED
                raise
            except (KeyboardInterrupt, GeneratorExit):
                self._ending = Ending.INTERRUPTED
                raise
            finally:
                if self._ending is Ending.FAILED and task is not None and len(self._messages) == before + 1:
                    self._messages.pop()  # nothing came of the task, so that it can be given again
        finally:
            self._working.release()

    def _begin(self, task: str | None) -> None:
        last = self._messages[-1] if self._messages else {"role": "system"}
        if task is not None:
            if not task.strip():
                raise UserError("the task is empty; say what the agent should do")
            self._messages.append({"role": "user", "content": task})
        elif last["role"] == "system" or (last["role"] == "assistant" and not last.get("tool_calls")):
            raise UserError("there is no task to continue; give one")
        self._ending = None

    def _turns(self, tools: dict[str, Tool], *, streaming: bool) -> Iterator[Step]:
        declared = [tool.declared for tool in tools.values()]
        self._ledger.tools(declared)
        failed, times = None, 0
        for _ in range(self._max_turns):
            if self._left_s() == 0:
                self._ending = Ending.OUT_OF_TIME
                return
            if (now := self._connected()) is not tools:  # a server has others now
                tools, declared = now, [tool.declared for tool in now.values()]
                self._ledger.tools(declared)
            shown = self.memory.prompt(self._messages, beside=self._ledger.tools_tokens)
            yield from self._told()
            reply, fault = yield from self._understood(shown, tools, declared, streaming=streaming)
            if fault is not Fault.NONE and (fault is not Fault.CUT or not reply.message["content"]):
                self._ending = Ending.OUT_OF_TOKENS if fault is Fault.CUT else Ending.UNUSABLE
                return
            self._messages.append(reply.message)
            if "tool_calls" not in reply.message:
                self._ending = Ending.ANSWERED if fault is Fault.NONE else Ending.OUT_OF_TOKENS
                return
            before, failed = failed, (yield from self._call(tools, reply.calls))
            times = times + 1 if failed is not None and failed == before else 1
            if times == _STUCK:
                self._ending = Ending.STUCK
                return
        self._ending = Ending.OUT_OF_TURNS

    def _understood(
        self, shown: Sequence[Message], tools: Mapping[str, Tool], declared: Sequence[Message], *, streaming: bool
    ) -> Generator[str | Repeated, None, tuple[Reply, Fault]]:
        """A reply, for which the model is asked again while what comes is of no use, and its fault in the end."""
        asked, tries, cut = shown, 0, 0
        while True:
            reply, fault = None, Fault.UNREADABLE
            try:
                raw = yield from self._reply(asked, declared, streaming=streaming)
            except Unreadable:
                if tries + 1 == TRIES:
                    raise
            else:
                self._ledger.turn(asked, self._messages, raw, observed=asked is shown)
                reply, fault = understood(raw, tools, self._messages)
                cut += fault in (Fault.CUT, Fault.FILTERED)
                if fault is Fault.NONE or cut == CUTS or tries + 1 == TRIES:
                    return reply, fault
            tries += 1
            yield Repeated(why=fault.name.lower(), tries=tries)
            asked = asked_again(shown, reply, fault)

    def _reply(
        self, shown: Sequence[Message], declared: Sequence[Message], *, streaming: bool
    ) -> Generator[str, None, Reply]:
        """Yields what the model says as it comes, and returns the whole reply."""
        if not streaming:
            return self._model.reply(shown, declared, within_s=self._left_s())
        reply: Reply | None = None
        speech = Speech(inside=self._thinks_first)
        for part in self._model.stream(shown, declared, within_s=self._left_s()):
            if isinstance(part, Reply):
                reply = part
            elif said := speech.add(part):
                yield said
        if said := speech.rest():
            yield said
        assert reply is not None
        self._thinks_first = self._thinks_first or begins_inside(texts(reply.message.get("content")))
        return reply

    def _call(
        self, tools: Mapping[str, Tool], calls: Sequence[Call]
    ) -> Generator[Called | Returned, None, list[tuple[str, str, str]] | None]:
        """Runs all calls of a turn at the same time; the conversation gets their results in the order of the calls.

        Returns (name, arguments, error) of each where all have failed, else None.
        """

        def run(given: tuple[Context, Call]) -> Outcome:
            context, call = given
            return context.run(outcome_of, tools, call.name, call.arguments)

        pool = Pool(min(len(calls), _THREADS))
        running = [pool.submit(run, (copy_context(), call)) for call in calls]
        pool.close()
        outcomes = list[Outcome]()
        try:
            for call in calls:
                yield Called(id=call.id, name=call.name, arguments=call.arguments)
            for call, future in zip(calls, running, strict=True):
                outcome = self._outcome(future)
                self._returned(call, outcome)
                outcomes.append(outcome)
                yield Returned(id=call.id, name=call.name, text=outcome.text, failed=outcome.failed)
        finally:
            for call, future in [*zip(calls, running, strict=True)][len(outcomes) :]:
                future.cancel()
                # interrupted: a call without its result would break the conversation
                self._returned(call, error("the user interrupted the run before this call was done"))
        if not all(outcome.failed for outcome in outcomes):
            return None
        return [(call.name, call.arguments, outcome.text) for call, outcome in zip(calls, outcomes, strict=True)]

    def _outcome(self, future: Future[Outcome]) -> Outcome:
        try:
            return future.result(self._left_s())
        except NotDone:
            future.cancel()
            return error(f"it was not done when the time of the run, {self._timeout_s:g} s, was up")

    def _returned(self, call: Call, outcome: Outcome) -> None:
        self._ledger.tool(failed=outcome.failed)
        self._messages.append(_result(call.id, outcome))

    def _write(self, request: list[Message]) -> Message:
        """A state, for the memory: by the agent's own call, so that the prompt cache serves it."""
        declared = [tool.declared for tool in (self._tools or {}).values()]
        bound = self.memory.bounds.state
        reply = self._model.reply(request, declared, within_s=self._left_s(), state_tokens=bound)
        self._ledger.state(request, reply)
        if why := unfinished(reply.message, self.memory.bounds, cut=reply.cut, filtered=reply.filtered):
            raise ModelFailed(why)
        return reply.message

    def _recall(self) -> Tool:
        function = self.memory.recall_tool["function"]

        def call(given: dict[str, Any]) -> Any:
            handle, start = str(given.get("handle")), int(given.get("start") or 0)
            return self.memory.recall(handle, start, messages=self._messages)

        return Tool(
            name=function["name"], description=function["description"], parameters=function["parameters"], call=call
        )

    def _event(self, event: Event) -> None:
        self._events.append(event)

    def _told(self) -> Iterator[Event]:
        told, self._events = self._events, []
        yield from told

    def _left_s(self) -> float | None:
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def _leave(self) -> None:
        for server in self._servers:
            server.close()
        self._servers = []
        self._background.close()

    def _connected(self) -> dict[str, Tool]:
        """All tools by name; MCP servers are connected with the first run."""
        if self._tools is not None:
            for server in self._servers:
                own = {tool.name for tool in server.tools}
                if server.renew(self._tools.keys() - own, self._left_s()):
                    kept = {name: tool for name, tool in self._tools.items() if name not in own}
                    self._tools = kept | {tool.name: tool for tool in server.tools}
            return self._tools
        found = [*self._own, *([self._recall()] if self.memory.shows_handles else ())]
        names = [tool.name for tool in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise UserError(f"two tools are called {', '.join(twice)}; rename one (recall is the memory's own)")
        tools = {tool.name: tool for tool in found}
        try:
            for server in self._given:
                if isinstance(server, McpServer):
                    self._servers.append(server.connect(self._background, tools, within_s=self._left_s()))
                    tools |= {tool.name: tool for tool in self._servers[-1].tools}
        except BaseException:
            self._leave()  # the next run starts all of them
            raise
        self._tools = tools
        return tools


def _result(id: str, outcome: Outcome) -> Message:
    return {"role": "tool", "tool_call_id": id, "content": outcome.text}


def _without_result(messages: Sequence[Message]) -> list[str]:
    """Ids of the last turn's calls that have none."""
    called: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            called.remove(message["tool_call_id"])
        else:
            called = [call["id"] for call in message.get("tool_calls") or ()]
    return called


def _own_tool(tool: Any, background: Background) -> Tool:
    return tool if isinstance(tool, Tool) else tool_of(tool, background.wait)
