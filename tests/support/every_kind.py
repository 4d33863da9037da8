"""Random valid conversations with every kind of call that a form of messages has, and the pairs in any messages.

    steps = random_steps(Random(1), "responses")    lists of messages; after each, an agent could call the model
    pairs_of(messages, "responses")                 (ids of calls, ids of answers)

"gemini" is chat with Google's signatures on the first of parallel calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from transcripts import PIXEL, WORDS

KINDS_OF_FORMS = ("chat", "responses", "anthropic", "gemini")
Messages = list[dict[str, Any]]


def form_named(kind: str) -> str:
    """The form of `mem1.messages`."""
    return "chat" if kind == "gemini" else kind


def random_steps(random: Random, kind: str, turns: int = 7) -> list[Messages]:
    """A conversation that its provider accepts after each step."""
    return {"chat": _Chat, "gemini": _Gemini, "responses": _Responses, "anthropic": _Anthropic}[kind](random).steps(
        turns
    )


def pairs_of(messages: Sequence[Any], kind: str) -> tuple[set[str], set[str]]:
    """Ids of the calls and of the answers in these messages, the server's own among them."""
    calls, answers = set[str](), set[str]()
    for message in messages:
        if kind == "responses":
            type = message.get("type", "message")
            id = message.get("call_id") or message.get("approval_request_id") or message.get("id")
            if type in ("program_output", "mcp_approval_response") or type.endswith("_output"):
                answers.add(id)
            elif type in ("program", "mcp_approval_request") or (type.endswith("_call") and message.get("call_id")):
                calls.add(id)
        elif kind == "anthropic":
            for block in message["content"] if not isinstance(message["content"], str) else ():
                if block["type"].endswith("tool_use"):
                    calls.add(block["id"])
                elif block["type"].endswith("tool_result"):
                    answers.add(block["tool_use_id"])
        else:
            calls |= {call["id"] for call in message.get("tool_calls") or ()}
            if message.get("function_call"):
                calls.add(message["function_call"]["name"])
            if message["role"] in ("tool", "function"):
                answers.add(message.get("tool_call_id") or message["name"])
    return calls - {None}, answers - {None}


class _Drawn:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.number = 0

    def id(self, prefix: str) -> str:
        self.number += 1
        return f"{prefix}_{self.number}"

    def text(self, most: int = 6) -> str:
        return " ".join(self.random.choices(WORDS, k=self.random.randint(1, most))).strip() or "x"

    def long(self) -> str:
        return self.text(self.random.choice((3, 30, 300)))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def user(self) -> dict[str, Any]:
        return {"role": "user", "content": f"task {self.text()}"}

    def turn(self) -> list[Messages]:
        raise NotImplementedError

    def begin(self) -> Messages:
        return [self.user()]

    def later(self) -> Messages:
        return [self.user()]

    def steps(self, turns: int) -> list[Messages]:
        steps = [self.begin()]
        for _ in range(turns):
            steps += self.turn()
            if self.chance(0.25):
                steps.append(self.later())
        return steps


class _Chat(_Drawn):
    def begin(self) -> Messages:
        system = {"role": self.random.choice(("system", "developer")), "content": self.text()}
        return [*([system] if self.chance(0.7) else []), self.user()]

    def user(self) -> dict[str, Any]:
        user = super().user()
        if self.chance(0.2):
            user["name"] = "anna"
        if self.chance(0.3):
            part = self.random.choice(
                (
                    {"type": "image_url", "image_url": {"url": PIXEL}},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "file", "file": {"file_id": "file-1"}},
                )
            )
            user["content"] = [{"type": "text", "text": user["content"]}, part]
        return user

    def call(self, first: bool) -> dict[str, Any]:
        if self.chance(0.2):
            return {"id": self.id("c"), "type": "custom", "custom": {"name": "exec", "input": self.text()}}
        return {"id": self.id("c"), "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}

    def turn(self) -> list[Messages]:
        kind = self.random.choice(("text", "calls", "calls", "calls", "legacy", "refusal", "audio"))
        if kind == "text":
            return [[{"role": "assistant", "content": self.text()}]]
        if kind == "refusal":
            return [[{"role": "assistant", "content": None, "refusal": self.text()}]]
        if kind == "audio":
            return [[{"role": "assistant", "content": None, "audio": {"id": self.id("audio")}}]]
        if kind == "legacy":
            name = self.id("look_up")
            said = {"role": "assistant", "content": None, "function_call": {"name": name, "arguments": "{}"}}
            return [[said, {"role": "function", "name": name, "content": self.long()}]]
        calls = [self.call(number == 0) for number in range(self.random.choice((1, 1, 2, 3)))]
        said = {"role": "assistant", "content": self.text() if self.chance(0.5) else None, "tool_calls": calls}
        results = [{"role": "tool", "tool_call_id": call["id"], "content": self.long()} for call in calls]
        self.random.shuffle(results)
        return [[said, *results]]


class _Gemini(_Chat):
    def call(self, first: bool) -> dict[str, Any]:
        call = {"id": self.id("c"), "type": "function", "function": {"name": "search", "arguments": '{"q": 1}'}}
        return {**call, "extra_content": {"google": {"thought_signature": "c2ln"}}} if first else call

    def turn(self) -> list[Messages]:
        if self.chance(0.3):
            signed = {"extra_content": {"google": {"thought_signature": "c2ln"}}}
            # a call comes behind the user or a result, never behind a text of the model's
            return [[{"role": "assistant", "content": self.text(), **signed}], [self.user()]]
        calls = [self.call(number == 0) for number in range(self.random.choice((1, 1, 2, 3)))]
        results = [{"role": "tool", "tool_call_id": call["id"], "content": self.long()} for call in calls]
        return [[{"role": "assistant", "content": None, "tool_calls": calls}, *results]]


class _Responses(_Drawn):
    def begin(self) -> Messages:
        system = {"role": self.random.choice(("system", "developer")), "content": self.text()}
        return [*([system] if self.chance(0.5) else []), self.user()]

    def reasoning(self) -> Messages:
        item = {"type": "reasoning", "id": self.id("rs"), "summary": [], "encrypted_content": "eA=="}
        return [item] if self.chance(0.4) else []

    def client_call(self) -> tuple[dict[str, Any], dict[str, Any]]:
        id = self.id("call")
        kind = self.random.choice(("function", "function", "custom", "computer", "shell", "local", "patch", "search"))
        if kind == "computer":
            shot = {"type": "computer_screenshot", "image_url": PIXEL}
            safety = {"pending_safety_checks": [], "status": "completed"}
            return (
                {
                    "type": "computer_call",
                    "id": self.id("cu"),
                    "call_id": id,
                    "action": {"type": "screenshot"},
                    **safety,
                },
                {"type": "computer_call_output", "call_id": id, "output": shot},
            )
        if kind == "shell":
            chunk = {"stdout": self.long(), "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
            return (
                {"type": "shell_call", "call_id": id, "action": {"commands": ["ls"]}, "status": "completed"},
                {"type": "shell_call_output", "call_id": id, "output": [chunk] * self.random.randint(1, 2)},
            )
        if kind == "local":
            action = {"type": "exec", "command": ["ls"], "env": {}}
            return (
                {
                    "type": "local_shell_call",
                    "id": self.id("l"),
                    "call_id": id,
                    "action": action,
                    "status": "completed",
                },
                {"type": "local_shell_call_output", "id": id, "output": self.long()},
            )
        if kind == "patch":
            operation = {"type": "delete_file", "path": "a"}
            return (
                {"type": "apply_patch_call", "call_id": id, "operation": operation, "status": "completed"},
                {"type": "apply_patch_call_output", "call_id": id, "status": "failed", "output": self.long()},
            )
        if kind == "search":
            tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
            return (
                {"type": "tool_search_call", "call_id": id, "execution": "client", "arguments": {"q": self.text()}},
                {"type": "tool_search_output", "call_id": id, "execution": "client", "tools": tools},
            )
        if kind == "custom":
            return (
                {"type": "custom_tool_call", "call_id": id, "name": "exec", "input": self.text()},
                {"type": "custom_tool_call_output", "call_id": id, "output": self.long()},
            )
        parts = [{"type": "input_text", "text": self.long()}, {"type": "input_image", "image_url": PIXEL}]
        own = {"id": self.id("fc"), "status": "completed"} if self.chance(0.5) else {}
        return (
            {"type": "function_call", "call_id": id, "name": "search", "arguments": "{}", **own},
            {"type": "function_call_output", "call_id": id, "output": parts if self.chance(0.2) else self.long()},
        )

    def hosted(self) -> Messages:
        id = self.id("h")
        return [
            self.random.choice(
                (
                    {"type": "web_search_call", "id": id, "status": "completed", "action": {"type": "search"}},
                    {"type": "file_search_call", "id": id, "status": "completed", "queries": ["q"], "results": None},
                    {"type": "code_interpreter_call", "id": id, "status": "completed", "code": "1", "container_id": "c"}
                    | {"outputs": []},
                    {"type": "image_generation_call", "id": id, "status": "completed", "result": "AAAA"},
                    {"type": "mcp_call", "id": id, "server_label": "s", "name": "n", "arguments": "{}", "output": "o"},
                )
            )
        ]

    def message(self) -> dict[str, Any]:
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": self.text()}]}
        return {**said, "id": self.id("msg"), "status": "completed"} if self.chance(0.5) else said

    def turn(self) -> list[Messages]:
        kind = self.random.choice(("message", "calls", "calls", "calls", "hosted", "approval", "program", "searched"))
        thought = self.reasoning()
        if kind == "message":
            return [[*thought, self.message()]]
        if kind == "hosted":
            return [[*thought, *self.hosted(), *self.reasoning(), self.message()]]
        if kind == "searched":
            call = {"type": "tool_search_call", "call_id": None, "execution": "server", "arguments": {}}
            found = {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []}
            called, output = self.client_call()
            return [[*thought, call, found, called, output]]
        if kind == "approval":
            id = self.id("mcpr")
            asked = {"type": "mcp_approval_request", "id": id, "server_label": "s", "name": "n", "arguments": "{}"}
            given = {"type": "mcp_approval_response", "approval_request_id": id, "approve": True}
            done = {
                "type": "mcp_call",
                "id": self.id("mcp"),
                "approval_request_id": id,
                "server_label": "s",
                "name": "n",
            }
            done |= {"arguments": "{}", "output": self.text()}
            return [[*thought, asked, given], [done, *self.reasoning(), self.message()]]
        if kind == "program":
            id = self.id("prog")
            caller = {"caller": {"type": "program", "caller_id": id}}
            steps: list[Messages] = [
                [{"type": "program", "id": self.id("p"), "call_id": id, "code": "", "fingerprint": "f"}]
            ]
            for _ in range(self.random.randint(1, 2)):
                call = {"type": "function_call", "call_id": self.id("call"), "name": "f", "arguments": "{}", **caller}
                output = {"type": "function_call_output", "call_id": call["call_id"], "output": self.long(), **caller}
                steps[-1] += [call, output]
                steps.append([])
            ended = {"type": "program_output", "id": self.id("po"), "call_id": id, "result": "r", "status": "completed"}
            steps[-1] += [ended, self.message()]
            return steps
        pairs = [self.client_call() for _ in range(self.random.choice((1, 1, 2, 3)))]
        said = [self.message()] if self.chance(0.3) else []
        return [[*thought, *said, *(call for call, _ in pairs), *(output for _, output in pairs)]]


class _Anthropic(_Drawn):
    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.thinks = random.choice(("never", "always", "first"))
        """"first": once after a message of the user, as models without interleaved thinking do."""
        self.fresh = True

    def thoughts(self) -> Messages:
        thinks = self.thinks == "always" or (self.thinks == "first" and self.fresh)
        self.fresh = False
        if not thinks:
            return []
        thought = {"type": "thinking", "thinking": self.text(), "signature": "c2ln"}
        return [thought if self.chance(0.8) else {"type": "redacted_thinking", "data": "eA=="}]

    def begin(self) -> Messages:
        users: Messages = [self.user()]
        if self.chance(0.2):
            users[0]["content"] = [
                {"type": "text", "text": users[0]["content"], "cache_control": {"type": "ephemeral"}},
                {"type": "container_upload", "file_id": "file_1"},
            ]
        return [*users, *([{"role": "system", "content": self.text()}] if self.chance(0.1) else [])]

    def later(self) -> Messages:
        self.fresh = True
        return super().later()

    def server_pair(self) -> Messages:
        name = self.random.choice(("web_search", "web_fetch", "code_execution", "bash_code_execution", "mcp"))
        id = self.id("srvtoolu")
        use = {"type": "mcp_tool_use" if name == "mcp" else "server_tool_use", "id": id, "name": name, "input": {}}
        use |= {"server_name": "s"} if name == "mcp" else {}
        found = [{"type": "web_search_result", "title": self.text(), "url": "u", "encrypted_content": "eA=="}]
        return [use, {"type": f"{name}_tool_result", "tool_use_id": id, "content": found}]

    def results(self, calls: Messages) -> Messages:
        parts = [{"type": "text", "text": self.long()}]
        blocks = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": parts if self.chance(0.3) else self.long()}
            for call in calls
        ]
        self.random.shuffle(blocks)
        return blocks

    def turn(self) -> list[Messages]:
        kind = self.random.choice(("text", "calls", "calls", "calls", "server", "paused", "mixed"))
        blocks = self.thoughts()
        text = {"type": "text", "text": self.text()}
        uses = [{"type": "tool_use", "id": self.id("toolu"), "name": "search", "input": {}} for _ in range(2)]
        uses = uses[: self.random.randint(1, 2)]
        if kind == "text":
            return [[{"role": "assistant", "content": [*blocks, text] if blocks else text["text"]}]]
        if kind == "server":
            return [[{"role": "assistant", "content": [*blocks, *self.server_pair(), text]}]]
        if kind == "paused":
            paused = {"role": "assistant", "content": [*blocks, *self.server_pair()]}
            return [[paused], [{"role": "assistant", "content": [*self.server_pair(), text]}]]
        if kind == "mixed":
            use, found = self.server_pair()
            steps = [
                [
                    {"role": "assistant", "content": [*blocks, use, *uses]},
                    {"role": "user", "content": self.results(uses)},
                ]
            ]
            return [*steps, [{"role": "assistant", "content": [found, text]}]]
        results = self.results(uses)
        if self.chance(0.2):
            results.append({"type": "text", "text": f"task {self.text()}"})
            self.fresh = True
        said = {"role": "assistant", "content": [*blocks, *([text] if self.chance(0.4) else []), *uses]}
        return [[said, {"role": "user", "content": results}]]
