"""Players that speak in chat messages: `mem1.Agent` with one tool, a memory of `mem1.messages`, and a journal.

    player = ChatPlayer.served(ModelServer(urls=("http://127.0.0.1:8000/v1",), model="qwen"), journal=journal)
    player.attempts(drawn, drawn.tasks[:1], "fold(8)", lambda: False)

    request -> journal: answered before?  yes: that reply    no: ask the server, write its reply down, then use it

The tool is `search`, or `act` in a shop. Its results say how many searches are left, and nothing of what a memory left
out can be recalled.

A page shows the turns of an attempt: what each call was given, what it said, what came back.

    user: the task <memory>...</memory>     ->    Piece("prompt", "the task"), Piece("state", "<memory>...", turn=4)
    assistant: notes, search("Moru Kest")   ->    Piece("thought", "notes", turn=5), Piece("query", "search...", turn=5)
    tool: Moru Kest is ...                  ->    Piece("result", "Moru Kest is ...", turn=5)

A call that writes a state is a turn of its own. Tokens of a turn are the provider's, those of its pieces are estimated.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

from mem1.agent import Agent, Ending, ModelFailed
from mem1.agent.chat import ServedChat
from mem1.agent.report import ModelCall
from mem1.agent.tools import Tool
from mem1.bench.results import Attempt, Spent, digest_of
from mem1.bench.running import Call, Journal, Played, outline
from mem1.bench.suites import Drawn
from mem1.bench.tools import Tools
from mem1.engines.servers import EngineFailed, ModelServer, Refused
from mem1.errors import UserError
from mem1.evaluation.report.token_attribution import Piece, TurnPieces
from mem1.evaluation.report.viewer_data import PageData, told_of
from mem1.messages import Bounds, Memory
from mem1.messages.transcript import ASK, Message, texts
from mem1.net.exchange import one_line
from mem1.net.spending import LimitReached, Spending, Usage
from mem1.prices import PriceClass
from mem1.protocol import ACT, ANSWER, SUMMARY
from mem1.records import Ended, Task, Turn, per_objective

SETTINGS: Mapping[str, Any] = {"max_tokens": 4_000}
"""What every request to a server holds besides, where nothing else is given."""
_TOO_LONG = re.compile(r"context.{0,40}(length|window|size|limit)|too (long|many tokens)|maximum.{0,40}tokens", re.I)
"""How servers say that a prompt does not fit the model."""
_TURNS = 2
"""Turns beside those with a search: one is for the answer, one for a model that searches when no search is left."""
Complete = Callable[[list[Message], list[Message]], tuple[Mapping[str, Any], Usage]]
"""(messages, declared tools) -> a chat completion, and what it used; raises as `ServedChat.complete` does."""
_ENDED = {
    Ending.ANSWERED: Ended.ANSWERED,
    Ending.OUT_OF_TOKENS: Ended.OUT_OF_TOKENS,
    Ending.OUT_OF_TURNS: Ended.OUT_OF_TURNS,
    Ending.STUCK: Ended.OUT_OF_TURNS,
    Ending.UNUSABLE: Ended.BAD_TAGS,
}


@dataclass(frozen=True)
class ChatPlayer:
    """See the module."""

    name: str
    about: Mapping[str, Any]
    model: Callable[[Drawn, str], Complete]
    """(tasks of a cell, memory) -> the model that works on them."""
    _: KW_ONLY
    journal: Journal = field(default_factory=lambda: Journal(None))
    prices: PriceClass | None = None
    bounds: Bounds = Bounds(handles=False)  # noqa: RUF009  (frozen)
    at_a_time: int = 1
    native = True
    together = 1

    @classmethod
    def served(
        cls,
        server: ModelServer,
        *,
        settings: Mapping[str, Any] = SETTINGS,
        journal: Journal,
        prices: PriceClass | None = None,
        spending: Spending | None = None,
    ) -> ChatPlayer:
        """A model on a server. Raises UserError where its key is missing."""
        chat = ServedChat(server, settings, prices=prices, spending=spending)
        about = {"kind": "server", "model": server.model, "settings": dict(settings), "urls": list(server.urls)}
        return cls(
            server.model,
            about,
            lambda drawn, memory: chat.complete,
            journal=journal,
            prices=prices,
            at_a_time=server.concurrency,
        )

    def check(self, memory: str) -> None:
        Memory(memory, bounds=self.bounds, prices=self.prices)

    def attempts(self, drawn: Drawn, tasks: Sequence[Task], memory: str, stopped: Callable[[], bool]) -> list[Played]:
        found = (self._played(drawn, task, memory, stopped) for task in tasks)
        return [played for played in found if played is not None]

    def _played(self, drawn: Drawn, task: Task, memory: str, stopped: Callable[[], bool]) -> Played | None:
        began = time.perf_counter()
        tools = Tools(drawn, task)
        asked = _Asked(self, drawn, task, memory, tools, stopped)
        agent = Agent(
            asked,
            tools=[Tool(**tools.declared, call=tools.call)],
            memory=memory,
            bounds=self.bounds,
            prices=self.prices,
            max_turns=tools.left + _TURNS,
        )
        with agent:
            ended, detail, answer = _run(agent, asked, task)
            report, conversation = agent.report(), agent.messages
        if (error := tools.broken or asked.error) is not None:
            raise error
        if asked.cut_off:
            return None
        if tools.answer or drawn.action == ACT:
            answer = tools.answer
        right = (0.0,) * task.objectives
        if answer:
            right = per_objective(drawn.environment.score(task, answer).metrics["em"])
        spent = Spent(
            fresh=report.prompt_tokens - report.cached_tokens, cached=report.cached_tokens, output=report.output_tokens
        )
        attempt = Attempt(
            **outline(drawn.cell, task, memory),
            right=right,
            ended=str(ended),
            detail=detail,
            turns=report.turns,
            searches=tools.used,
            tokens=spent,
            peak=report.peak_tokens,
            cost=report.cost,
            seconds=time.perf_counter() - began,
        )

        def turns(data: PageData) -> list[dict[str, Any]]:
            found = shown_turns(asked.calls, report.calls, conversation, drawn.action, self.bounds.count)
            return data.turns(found, task)

        return Played(attempt, lambda: told_of(task, answer, turns))


def _run(agent: Agent, asked: _Asked, task: Task) -> tuple[Ended, str, str]:
    """(how the attempt ended, why, the answer)."""
    try:
        agent.run(task.prompt)
    except Over as over:
        return over.ended, over.detail, ""
    except ModelFailed as failure:
        return Ended.OUT_OF_TOKENS if asked.cut else Ended.BAD_TAGS, one_line(str(failure)), ""
    except UserError as mistake:  # such as calls that no provider would take back
        return Ended.AGENT_FAILED, one_line(str(mistake)), ""
    report = agent.report()
    assert report.ending is not None
    stuck = "it repeated the same calls, which failed alike each time" if report.ending is Ending.STUCK else ""
    answered = report.ending is Ending.ANSWERED
    return _ENDED[report.ending], stuck, (report.answer or "") if answered else ""


class Over(UserError):
    """Ends an attempt from inside a call of the model: the agent hands it on, as it does all mistakes of a user."""

    def __init__(self, ended: Ended, detail: str = "") -> None:
        super().__init__(detail or str(ended))
        self.ended, self.detail = ended, detail


class _Asked:
    """The model of one attempt, as the agent calls it."""

    def __init__(
        self, player: ChatPlayer, drawn: Drawn, task: Task, memory: str, tools: Tools, stopped: Callable[[], bool]
    ) -> None:
        self._journal, self._prices = player.journal, player.prices
        self._model = player.model(drawn, memory)
        self._task, self._memory, self._tools, self._stopped = task, memory, tools, stopped
        self._number = 0
        self._over: Over | None = None
        self.calls: list[Recorded] = []
        """Those that were answered."""
        self.cut = False
        """Whether the last reply ended at the token limit."""
        self.cut_off = False
        """Whether a stop was requested, so that the attempt has no result."""
        self.error: UserError | LimitReached | None = None
        """What ends the run."""

    def __call__(self, messages: list[Message], tools: list[Message]) -> Mapping[str, Any]:
        try:
            if self._over is None and self._tools.over is not None:
                raise Over(*self._tools.over)
            # what has failed fails for good: a memory that asked for a state would go on without one
            if self._over is not None:
                raise self._over
            completion = self._completion(messages, tools)
        except Over as over:
            self._over = over
            raise
        self.calls.append(Recorded(list(messages), tools, _text(completion)))
        self.cut = _finish(completion) == "length"
        self._tools.replied(completion)
        return completion

    def _completion(self, messages: list[Message], tools: list[Message]) -> Mapping[str, Any]:
        self._number += 1
        call = Call(self._task.id, self._memory, self._number, digest_of([numbered(messages), tools]))
        reply = self._journal.find(call)
        if reply is None:
            if self._stopped():
                self.cut_off = True
                raise Over(Ended.ENGINE_FAILED)
            reply, money = self._new(messages, tools)
            self._journal.add(call, reply, money=money)
        return reply

    def _new(self, messages: list[Message], tools: list[Message]) -> tuple[Mapping[str, Any], float]:
        try:
            completion, used = self._model(messages, tools)
        except LimitReached as reached:
            self.error = reached
            raise Over(Ended.ENGINE_FAILED, str(reached)) from reached
        except EngineFailed as failure:
            why = one_line(str(failure))
            if not (isinstance(failure, Refused) and _TOO_LONG.search(why)):
                raise Over(Ended.ENGINE_FAILED, why) from failure
            if self._number == 1 and not len(self._journal):  # the run's first, which no memory has made long
                self.error = UserError(
                    f"the first request, of {self._task.id}, does not fit the server: {why}; give a smaller --setting "
                    "max_tokens=N, with another --out, or let the server take longer contexts"
                )
            raise Over(Ended.OUT_OF_TOKENS, why) from failure
        return _kept(completion), used.money


def numbered(messages: Sequence[Message]) -> list[Message]:
    """The messages with their calls' ids numbered in order: an agent draws those that a server leaves out."""
    numbers: dict[str, str] = {}
    found = list[Message]()
    for message in messages:
        whole = dict(message)
        if message.get("tool_calls"):
            numbers |= {id: f"call_{number}" for number, id in enumerate(_ids(message), start=len(numbers))}
            whole["tool_calls"] = [{**call, "id": numbers[call["id"]]} for call in message["tool_calls"]]
        if "tool_call_id" in message:
            whole["tool_call_id"] = numbers.get(message["tool_call_id"], message["tool_call_id"])
        found.append(whole)
    return found


def _kept(completion: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is needed of a completion."""
    try:
        choice = completion["choices"][0]
        kept = {"choices": [{"message": dict(choice["message"]), "finish_reason": choice.get("finish_reason")}]}
    except (LookupError, TypeError, ValueError, AttributeError):  # no completion: the agent says so
        return completion
    return {**kept, "usage": completion["usage"]} if completion.get("usage") else kept


def _text(completion: Mapping[str, Any]) -> str:
    try:
        text = completion["choices"][0]["message"]["content"]
    except (LookupError, TypeError):
        return ""
    return text if isinstance(text, str) else ""


def _finish(completion: Mapping[str, Any]) -> Any:
    try:
        return completion["choices"][0].get("finish_reason")
    except (LookupError, TypeError, AttributeError):
        return None


_OPEN = "<memory>\n"
"""Begins the state at the end of a message."""


class Recorded(NamedTuple):
    """One call of the model."""

    messages: Sequence[Message]
    tools: Sequence[Message]
    """Those that it declared."""
    text: str
    """Of the reply."""


ShownTurn = tuple[Turn, TurnPieces, tuple[int, int, int]]
"""A turn's texts, its pieces, and its tokens: given, written, and both with everything appended."""


def shown_turns(
    calls: Sequence[Recorded],
    used: Sequence[ModelCall],
    conversation: Sequence[Message],
    action: str,
    count: Callable[[str], int],
) -> list[ShownTurn]:
    """One for each call that was used, in order.

    conversation  all messages of the attempt
    action        what its tool does, such as "search"
    count         estimates the tokens of a text
    """
    of_turns = iter([number for number, call in enumerate(used, start=1) if not call.state])
    origins: dict[str, int] = {}
    said: dict[int, Message] = {}
    results: dict[int, list[Message]] = {}
    number = 0
    for message in conversation:
        if message["role"] == "assistant":
            number = next(of_turns, 0)
            said[number] = message
            origins |= dict.fromkeys(_ids(message), number)
        elif message["role"] == "tool":
            results.setdefault(number, []).append(message)
    found, left = list[ShownTurn](), iter(calls)
    state = appended = 0
    for number, call in enumerate(used, start=1):
        # a reply that was of no use is not among those that were used
        recorded = next((one for one in left if _asks(one.messages) == call.state), None)
        if recorded is None:
            break
        messages, tools, text = recorded
        declared = json.dumps(tools, ensure_ascii=False)
        context = [piece for message in messages for piece in _pieces(message, origins, state, count)]
        returned = [piece for message in results.get(number, ()) for piece in _pieces(message, origins, state, count)]
        written = [Piece("state", text, count(text), number)]
        if call.state:
            state, kind = number, SUMMARY
        else:
            written = [*_said(said.get(number, {}), "action", number, count)]
            kind, appended = action if _ids(said.get(number, {})) else ANSWER, call.appended + call.output
        turn = Turn(
            context_ids=(0,),
            completion_ids=(0,),
            action=kind,
            content=text,
            observation="\n".join(piece.text for piece in returned),
        )
        pieces = TurnPieces(
            context=[Piece("prompt", declared, count(declared), None), *context], completion=written, result=returned
        )
        found.append((turn, pieces, (call.prompt, call.output, appended)))
    return found


def _asks(messages: Sequence[Message]) -> bool:
    """Whether a call asks for a state."""
    return texts(messages[-1].get("content")).startswith(ASK)


def _ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or ()]


def _pieces(message: Message, origins: dict[str, int], state: int, count: Callable[[str], int]) -> Iterator[Piece]:
    """A message in a context; `state`: turn that wrote the newest state."""
    text, role = texts(message.get("content")), message["role"]
    if role == "assistant":
        yield from _said(message, "query", next((origins.get(id, 0) for id in _ids(message)), 0), count)
    elif role == "tool":
        yield Piece("result", text, count(text), origins.get(message["tool_call_id"]))
    else:
        head, opened, memory = text.partition(_OPEN)
        if head:
            yield Piece("prompt", head, count(head), None)
        if opened:
            yield Piece("state", opened + memory, count(opened + memory), state or None)


def _said(message: Message, role: str, turn: int, count: Callable[[str], int]) -> Iterator[Piece]:
    """What the model says, and its calls; without calls, its text has the role."""
    calls: list[Any] = list(message.get("tool_calls") or ())
    if text := texts(message.get("content")):
        yield Piece("thought" if calls else role, text, count(text), turn or None)
    for call in calls:
        function = call["function"]
        text = f"{function['name']}({function['arguments']})"
        yield Piece(role, text, count(text), turn or None)
