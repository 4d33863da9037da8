"""Episodes of a verifiers environment, whose model is whoever calls `act`.

verifiers runs its environment as ever: its agents, tool servers, stops and scoring. It is given the address of a model,
which is a server here, on 127.0.0.1. A request to it waits until the policy has acted:

    Episode.act("Oslo")     the reply to the request that waits; then what the next request adds, or the end

All episodes of a process share one event loop in a thread of its own.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import secrets
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import cache
from typing import Any, TypeVar

from mem1.envs.base import Observation, Outcome
from mem1.envs.replayed import EpisodeFailed, said
from mem1.envs.verifiers.messages import Message, Tool, news, shown, spoken
from mem1.errors import UserError

MODEL = "mem1"
STOPPED = "policy_stopped"
"""Stop condition of a trace whose attempt ended before the environment ended it."""
PATIENCE = 1e9
"""Seconds that an agent may take: it waits for a policy that samples many attempts at once."""
_CLOSING_S = 20.0
_ONE_LOOP = threading.Lock()
Result = TypeVar("Result")


class Stage:
    """One environment with its shared servers, which stay up until the process ends."""

    def __init__(self, settings: Mapping[str, Any], seat: str) -> None:
        """`settings` are those of verifiers' EnvConfig. Raises UserError where they are none, or cannot be played."""
        import verifiers.v1 as vf

        from mem1.envs.verifiers.chat_loop import NAME

        config = _resolved(settings)
        seats = [name for name, value in config if isinstance(value, vf.AgentConfig)]
        if not seat and len(seats) != 1:
            raise UserError(f"this environment has the agents {', '.join(seats)}: name the policy's as tasks.agent")
        self.seat = seat or seats[0]
        if self.seat not in seats:
            raise UserError(f"tasks.agent = {seat!r} is no agent of this environment; it has: {', '.join(seats)}")
        roles: dict[str, Any] = {}
        for name in seats:
            given = dict(settings.get(name) or {})
            if name != self.seat and not (given.get("client") and given.get("model")):
                raise UserError(
                    f"the policy plays {self.seat}; the agent {name} needs a model of its own, as tasks.env.{name} = "
                    '{ model = "...", client = { type = "eval", base_url = "...", api_key_var = "..." } }'
                )
            roles[name] = {"harness": {"id": NAME}, "runtime": {"type": "subprocess"}, **given}
        roles[self.seat] |= {"harness": {"id": NAME}, "client": None, "model": None}
        roles[self.seat]["timeout"] = {"rollout": PATIENCE, **(roles[self.seat].get("timeout") or {})}
        _check_judges(config.taskset.task)
        self.env: Any = _made(lambda: vf.load_environment(_resolved({**settings, **roles})))
        self.plain = type(self.env).run is vf.SingleAgentEnv.run
        """Whether an episode is one agent that is given its task, so that the task has the prompt."""
        self._plays: dict[str, Play] = {}
        """By the id of the trace, which verifiers sends with each request."""
        self._started: asyncio.Task[Any] | None = None

    def begin(self, task: Any, timeout_s: float) -> Play:
        """An episode of the task, up to the first request. Raises EpisodeFailed, also where a reply takes too long."""
        return wait(self._begin(task, timeout_s))

    async def _begin(self, task: Any, timeout_s: float) -> Play:
        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
        try:
            context = await asyncio.shield(self._started)
        except Exception as error:
            raise EpisodeFailed(f"its servers do not start: {said(error)}") from error
        play = Play(self, timeout_s)
        play.running = asyncio.ensure_future(self.env.run_episode(task, context, on_trace=play.join))
        try:
            await play.next()
        except EpisodeFailed:
            await play.stop()
            raise
        return play

    async def _start(self) -> Any:
        """Serve the model and what the environment shares; returns what verifiers calls the context of the model."""
        import verifiers.v1 as vf
        from aiohttp import web

        app = web.Application(client_max_size=1 << 30)
        secret = secrets.token_urlsafe(16)
        app.router.add_post(f"/{secret}/v1/chat/completions", self._answer)
        stack = contextlib.AsyncExitStack()
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        await stack.enter_async_context(self.env.serving())
        atexit.register(_stop, stack)
        return vf.ModelContext(
            model=MODEL, client=vf.EvalClientConfig(base_url=f"http://127.0.0.1:{port}/{secret}/v1", api_key_var="")
        )

    async def _answer(self, request: Any) -> Any:
        from aiohttp import web

        play = self._plays.get(request.headers.get("X-Session-ID", ""))
        body = await request.json()
        reply = None if play is None else await play.ask(body["messages"], body.get("tools") or [])
        if reply is None:
            return web.json_response({"error": {"message": STOPPED}}, status=400)
        choice = {"index": 0, "message": reply, "finish_reason": "tool_calls" if "tool_calls" in reply else "stop"}
        return web.json_response(
            {"id": MODEL, "object": "chat.completion", "created": 0, "model": MODEL, "choices": [choice]}
        )


class Play:
    """One episode, an `Episode` of replayed.py; its coroutines run in the loop."""

    def __init__(self, stage: Stage, timeout_s: float) -> None:
        self._stage, self._timeout_s = stage, timeout_s
        self._requests: asyncio.Queue[tuple[list[Message], asyncio.Future[Any]]] = asyncio.Queue()
        self._request: tuple[list[Message], asyncio.Future[Any]] | None = None
        """The one that waits for the policy."""
        self._traces: list[Any] = []
        """Those of the policy's agent."""
        self._stopped = False
        self._replies = 0
        self.running: asyncio.Future[Any]
        """Verifiers' episode."""
        self.tools: list[Tool] = []
        """Those of the newest request."""

    @property
    def over(self) -> bool:
        return self._request is None

    @property
    def opening(self) -> str:
        """The messages of the request that waits, as a text."""
        return shown(self._request[0]) if self._request is not None else ""

    def act(self, action: str) -> Observation:
        return wait(self._act(action))

    def end(self) -> Outcome:
        return wait(self._end())

    def close(self) -> None:
        wait(self.stop())

    def join(self, trace: Any) -> None:
        """verifiers began a trace of this episode."""
        if trace.agent.name == self._stage.seat:
            self._traces.append(trace)
            self._stage._plays[trace.id] = self

    async def ask(self, messages: list[Message], tools: list[Tool]) -> Message | None:
        """The policy's reply to these messages; None: the episode is to end."""
        if self._stopped or len(self._traces) > 1:
            self._traces[-1].stop(STOPPED)
            return None
        self.tools = tools
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait((messages, answered))
        return await answered

    async def next(self) -> None:
        """Wait for the next request, or the end. Raises EpisodeFailed."""
        asked = asyncio.ensure_future(self._requests.get())
        self._request = None
        await asyncio.wait((asked, self.running), timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if asked.done():
            self._request = asked.result()
            return
        asked.cancel()
        self._finished()

    async def _act(self, action: str) -> Observation:
        assert self._request is not None
        self._replies += 1
        self._request[1].set_result(spoken(action, self.tools, number=self._replies))
        await self.next()
        if self._request is None:
            return Observation(text="")
        messages = news(self._request[0])
        return Observation(text=shown(messages), trusted=all(message["role"] != "tool" for message in messages))

    async def _end(self) -> Outcome:
        if self._request is not None:
            self._stopped = True
            self._traces[-1].stop(STOPPED)
            self._request[1].set_result(None)
            self._request = None
        await asyncio.wait((self.running,), timeout=self._timeout_s)
        trace = self._finished()
        rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
        metrics = {name: value for name, value in trace.metrics.items() if value is not None and math.isfinite(value)}
        return Outcome(float(trace.reward), {**metrics, **rewards})

    async def stop(self) -> None:
        """Cancel the episode, wherever it is."""
        self._stopped = True
        self.running.cancel()
        await asyncio.wait((self.running,), timeout=_CLOSING_S)
        self._forget()

    def _finished(self) -> Any:
        """The trace of the policy's agent. Raises EpisodeFailed where the episode is not valid."""
        if not self.running.done():
            raise EpisodeFailed(f"it took longer than {self._timeout_s:g} s")
        self._forget()
        episode = self.running.result()
        errors = [*(error for trace in episode.traces for error in trace.errors), *episode.errors]
        if errors or not episode.ok:
            reason = f"{errors[0].type}: {errors[0].message}" if errors else "it did not succeed"
            raise EpisodeFailed(" ".join(reason.split())[:500])
        if len(self._traces) != 1:
            raise EpisodeFailed(f"it ran {self._stage.seat} {len(self._traces)} times; only once is supported")
        return self._traces[0]

    def _forget(self) -> None:
        for trace in self._traces:
            self._stage._plays.pop(trace.id, None)


def wait(work: Coroutine[Any, Any, Result]) -> Result:
    """The result of a coroutine in the loop of all episodes."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


def _loop() -> asyncio.AbstractEventLoop:
    with _ONE_LOOP:
        return _started_loop()


@cache
def _started_loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="mem1-verifiers", daemon=True).start()
    return loop


def _stop(servers: contextlib.AsyncExitStack) -> None:
    with contextlib.suppress(Exception):
        asyncio.run_coroutine_threadsafe(servers.aclose(), _loop()).result(_CLOSING_S)


def _made(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:  # whatever a stranger's package raises
        raise UserError(f"the verifiers environment cannot be made: {said(error)}") from error


def _resolved(settings: Mapping[str, Any]) -> Any:
    import verifiers.v1 as vf

    return _made(lambda: vf.resolve_env_config(dict(settings)))


def _check_judges(config: Any, path: str = "task") -> None:
    """Raises UserError where a judge would ask verifiers' default model, and there is no key for it."""
    import verifiers.v1 as vf
    from verifiers.v1.configs.client import resolve_api_key

    if isinstance(config, vf.JudgeConfig):
        if "pinference.ai" in config.base_url and resolve_api_key(config) == "EMPTY":
            raise UserError(
                f"this environment asks a judge, a model: give tasks.args.{path} the keys model, base_url and "
                "api_key_var, the name of an environment variable"
            )
    elif isinstance(config, vf.BaseConfig):
        for name, value in config:
            _check_judges(value, f"{path}.{name}")
    elif isinstance(config, list):
        for number, value in enumerate(config):
            _check_judges(value, f"{path}[{number}]")
