"""A server whose scripted model works through a task with parallel calls, for the agents of other frameworks.

    task "Find the facts of oslo."    ->  look("oslo-0"), look("oslo-1"); look("oslo-2"), ...; after the last turn it
                                          answers with all facts that stand in the messages it was sent

What it says follows from the messages alone, so many agents can use it at once, and an agent whose memory loses a fact
gives another answer. A request that a provider would refuse gets a 400. A `tool_choice` that demands a call gets one.
It speaks chat completions, Responses and Anthropic's Messages, streamed or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import agent_replies
import strict_anthropic
import strict_responses
from agent_replies import Call, Said
from chat_servers import chat_server
from server_replies import Reply

from mem1.errors import UserError
from mem1.messages import check
from mem1.messages.bounds import tokens_of
from mem1.messages.transcript import ASK

PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens")
FILLER = "Nothing else is known about this place. " * 30
FACT = re.compile(r"fact-[a-z]+-\d+")
HANDLE = re.compile(r'recall\("(r[0-9a-f]{8})", start=(\d+)\)')
FINAL = {"submit", "final_result", "final_result_Answer", "Answer"}
"""Tools of frameworks that take the final answer."""
REMINDERS = ("<system-reminder>", "<system-message>")
"""What Claude Code adds behind results, and late system messages."""
UNFORCED = (None, "auto", "none")


def look(place: str) -> str:
    """Looks a place up."""
    return f"fact-{place} {FILLER} end-of-{place}"


def facts(task: str, turns: int) -> str:
    """The answer of an agent that forgot nothing."""
    return ", ".join(sorted(f"fact-{task}-{number}" for number in range(2 * turns)))


@dataclass
class AgentServer:
    turns: int
    tool: str = "look"
    argument: str = "place"
    answer: str | None = None
    """Final answer; None: the facts."""
    writes: bool = True
    """Whether the model writes a state when asked, and does not call a tool instead."""
    states_end: str = "stop"
    """Why its states end."""
    thinks: bool = False
    """Whether replies have signed thoughts, which the server then remembers."""
    plan: Callable[[str, int], list[tuple[str, Mapping[str, Any]]]] | None = None
    """(name of the task, turn) -> (tool, arguments) of its calls; None: two looks."""
    url: str = ""
    refused: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """Estimated tokens of each request."""
    lengths: list[int] = field(default_factory=list)
    """Messages of each request."""
    asked: int = 0
    """Requests for a state."""
    streamed: int = 0
    requests: list[dict[str, Any]] = field(default_factory=list)
    said: list[dict[str, Any]] = field(default_factory=list)
    """Its replies, as messages of Anthropic's, each with something of a user behind it."""
    reasoned: dict[str, str] = field(default_factory=dict)
    """Id of an item of Responses -> of the reasoning that led to it."""

    def __call__(self, body: dict[str, Any], number: int) -> Reply:
        form = _form(body)
        messages = body["input"] if form == "responses" else body["messages"]
        messages = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        refused = self._refused(form, body, messages)
        if refused is not None:
            return refused
        self.requests.append(body)
        self.sizes.append(tokens_of(messages))
        self.lengths.append(len(messages))
        self.streamed += bool(body.get("stream"))
        tools = {tool.get("name") or tool["function"]["name"] for tool in body.get("tools") or ()}
        choice = body.get("tool_choice")
        forced = (choice["type"] if isinstance(choice, dict) and form == "anthropic" else choice) not in UNFORCED
        said = self.says(messages, tools)
        if forced and not said.calls:
            said = Said(calls=[("call_0_0_0", self.tool, {self.argument: "x"})])
        if form == "chat" or not self.thinks:
            said = replace(said, thought="")
        self.said += [{"role": "assistant", "content": agent_replies.blocks_of(said)}, {"role": "user", "content": "."}]
        self.reasoned |= strict_responses.reasoned_of(agent_replies.output_of(said))
        write = {"chat": agent_replies.chat, "responses": agent_replies.responses}.get(form, agent_replies.anthropic)
        return write(said, self.sizes[-1] + 100, stream=bool(body.get("stream")))

    def _refused(self, form: str, body: dict[str, Any], messages: Sequence[Any]) -> Reply | None:
        """What depends on what the server said itself; `chat_servers` has refused all else."""
        reply = None
        if form == "anthropic":
            reply = strict_anthropic.refusal(body, said=self.said)
        elif form == "responses":
            reply = strict_responses.refusal(body, reasoned=self.reasoned)
        try:
            check(messages, form)
        except UserError as error:
            reply = Reply(status=400, body=json.dumps({"error": {"message": str(error)}}).encode())
        if reply is not None:
            self.refused.append(str(reply.body))
        return reply

    def says(self, messages: Sequence[Any], tools: set[str]) -> Said:
        """The next turn."""
        shown = json.dumps(messages)
        known = ", ".join(sorted(set(FACT.findall(shown))))
        if ASK in json.dumps(messages[-1]):
            self.asked += 1
            if self.writes:
                return Said(f"Known: {known}.", thought=f"state-{self.asked}", ended=self.states_end)
            return Said(calls=[("call_0_0_0", self.tool, {self.argument: "x"})])
        match = re.search(r"facts of ([a-z]+)", shown)
        name = match[1] if match else "thing"
        known = self.answer or known
        last = _answered(next(one for one in reversed(messages) if not str(one.get("content")).startswith(REMINDERS)))
        turn = int(last.split("_")[2]) + 1 if last else 0
        thought = f"{name}-{turn}"
        if turn >= self.turns:
            for final in tools & FINAL:
                return Said(calls=[(f"call_{name}_{turn}_0", final, {"answer": known})], thought=thought)
            return Said(known, thought=thought)
        planned = (
            self.plan(name, turn) if self.plan else [(self.tool, {self.argument: each}) for each in _two(name, turn)]
        )
        calls: list[Call] = [(f"call_{name}_{turn}_{part}", *call) for part, call in enumerate(planned)]
        if turn == self.turns // 2 and "recall" in tools and (handle := HANDLE.search(str(messages))):
            calls.append((f"call_{name}_{turn}_{len(calls)}", "recall", {"handle": handle[1], "start": int(handle[2])}))
        return Said(calls=calls, thought=thought)


def _two(name: str, turn: int) -> list[str]:
    return [f"{name}-{2 * turn}", f"{name}-{2 * turn + 1}"]


def _form(body: dict[str, Any]) -> str:
    if "input" in body:
        return "responses"
    return "anthropic" if any("input_schema" in tool for tool in body.get("tools") or ()) else "chat"


def _answered(message: Any) -> str | None:
    """Id of the call that a message answers last."""
    if isinstance(message.get("content"), list):
        ids = [block.get("tool_use_id") for block in message["content"] if block.get("type") == "tool_result"]
        if ids:
            return ids[-1]
    return message.get("tool_call_id") or message.get("call_id")


@contextmanager
def agent_server(turns: int = 20, **script: Any) -> Iterator[AgentServer]:
    """A running server, which refuses what a provider would refuse."""
    behave = AgentServer(turns, **script)
    with chat_server(behave, *PATHS) as server:
        behave.url, behave.refused = server.url, server.refused
        yield behave
