"""Twenty turns against real servers, by the agent and through the proxy: every request is taken, states are written
and used. `make test-servers` runs this; a small model's answers are not judged."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest
from chat_engines import NAME, SMOLLM2_FOLDER, llama_cpp, vllm
from chat_templates import QWEN25_LIKE
from tag_sets import PAPER_NOTES

import mem1
from mem1.agent import Called, Ending, Returned
from mem1.engines.base import Sampling
from mem1.engines.codec import Codec
from mem1.engines.openai import OpenAIEngine
from mem1.engines.servers import ModelServer
from mem1.engines.weight_update import PublishedWeights, ServerFailed, WeightRoutes
from mem1.extras.writer.note_writer import NoteWriter
from mem1.messages import Bounds, Event
from mem1.messages.writing import reading_of

Start = Callable[..., AbstractContextManager[str]]
SERVERS: dict[str, tuple[str, Start]] = {"llama.cpp": ("MEM1_LLAMA_CPP", llama_cpp), "vllm": ("MEM1_VLLM", vllm)}
"""Name -> (variable with the interpreter of its environment, what starts it)."""
TURNS = 20
PLACES = ("Oslo", "Bergen", "Trondheim", "Rome", "Paris", "Lima", "Kyoto", "Cairo", "Quito", "Riga")
ASKS = "How many bridges has PLACE?"
CALLS = """Repeat this word for word:
<tool_call>
{"name": "look", "arguments": {"place": "PLACE"}}
</tool_call>"""
"""What so small a model calls a tool for."""
SETTINGS = {"temperature": 0, "max_tokens": 40}


@pytest.fixture(scope="module", params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    yield from served(request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=SERVERS)
def url_with_tools(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """With a chat template that shows tools, which the model's own does not: llama.cpp has none called then."""
    yield from served(request.param, tmp_path_factory, template=QWEN25_LIKE)


def served(name: str, folders: pytest.TempPathFactory, **options: str) -> Iterator[str]:
    variable, start = SERVERS[name]
    if variable not in os.environ:
        pytest.skip(f"{variable} names no interpreter: run make test-servers")
    with start(os.environ[variable], folders.mktemp("server") / "log.txt", **options) as url:
        yield url


def look(place: str) -> str:
    """Looks a place up in an encyclopedia."""
    return f"{place} is a city. It has a harbour, a council and {len(place)} bridges. " * 8


def agent_at(url: str, memory: str) -> mem1.Agent:
    return mem1.Agent(
        url,
        name=NAME,
        tools=[look],
        memory=memory,
        instructions="You are brief. Look places up with the tool.",
        bounds=Bounds(result=100, state=100, prompt=1_000),
        settings=SETTINGS,
        max_turns=2,
    )


def turns(
    agent: mem1.Agent, *, streamed: bool, task: str = ASKS
) -> tuple[Counter[str], list[Event], list[Ending | None]]:
    """(steps by kind, events of the memory, endings) of twenty tasks."""
    steps: Counter[str] = Counter()
    events, endings = list[Event](), list[Ending | None]()
    for turn in range(TURNS):
        now = task.replace("PLACE", PLACES[turn % len(PLACES)])
        if streamed:
            for step in agent.stream(now):
                steps[type(step).__name__] += 1
                if isinstance(step, Event):
                    events.append(step)
        else:
            agent.run(now)
        endings.append(agent.report().ending)
    return steps, events, endings


@pytest.mark.timeout(900)
@pytest.mark.parametrize("streamed", [False, True])
def test_twenty_tasks_are_answered_and_the_states_are_what_the_model_sees(url: str, streamed: bool):
    with agent_at(url, "fold(4)") as agent:
        _, events, endings = turns(agent, streamed=streamed)
        report = agent.report()
        assert {*endings} <= {Ending.ANSWERED, Ending.OUT_OF_TOKENS, Ending.OUT_OF_TURNS} and report.states >= 3
        shown = agent.memory.prompt(agent.messages)
        assert sum(message["role"] == "assistant" for message in shown) <= 2 * 4 < TURNS
        if streamed:
            states = [event.state_after for event in events if event.kind == "state"]
            assert len(states) >= 3
            assert states[-1] is not None and any(states[-1] in str(message.get("content")) for message in shown)


@pytest.mark.timeout(900)
def test_native_calls_are_run_and_their_results_go_back(url_with_tools: str):
    with agent_at(url_with_tools, "window(4)") as agent:
        steps, _, _ = turns(agent, streamed=True, task=CALLS)
        assert steps[Called.__name__] >= 1 and steps[Returned.__name__] == steps[Called.__name__]
        called = [message for message in agent.messages if message.get("tool_calls")]
        assert called[0]["tool_calls"][0]["function"]["name"] == "look"
        results = [message for message in agent.messages if message["role"] == "tool"]
        assert any("It has a harbour, a council and 4 bridges." in str(message["content"]) for message in results)


@pytest.mark.timeout(900)
def test_an_agent_that_appends_is_folded_by_the_proxy_before_the_server(url: str, tmp_path: Path):
    command = [sys.executable, "-m", "mem1", "proxy", "--upstream", url, "--port", "0"]
    command += ["--memory", "fold(4)", "--state-tokens", "50"]
    proxy = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert proxy.stdout is not None
        address = next(found[1] for line in proxy.stdout if (found := re.search(r" on (http://[^;\s]+);", line)))
        with agent_at(f"{address}/v1", "full") as agent:
            _, _, endings = turns(agent, streamed=True)
            assert {*endings} <= {Ending.ANSWERED, Ending.OUT_OF_TOKENS, Ending.OUT_OF_TURNS}
            told = {"model": NAME, "messages": [*agent.messages, {"role": "user", "content": "Go on."}], **SETTINGS}
            answer = httpx.post(f"{address}/v1/chat/completions", json=told, timeout=300)
        assert answer.status_code == 200 and answer.headers["mem1-prompt"] == "folded"
    finally:
        proxy.terminate()
        said = proxy.communicate()[0]
    (requests, folded) = re.findall(r"(\d+) requests, (\d+) folded", said)[-1]
    assert int(requests) >= TURNS and int(folded) >= TURNS // 2


RECOGNISED = {"llama.cpp": "contexts as token ids, with vLLM's fields", "vllm": "token ids, with vLLM's fields"}
"""How `mem1 eval` speaks to each: the table of docs/model-servers.md."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SERVERS)
def test_what_is_recognised_what_is_exact_and_what_is_refused(name: str, tmp_path_factory: pytest.TempPathFactory):
    if "MEM1_VLLM" not in os.environ:
        pytest.skip("MEM1_VLLM names no interpreter, whose environment has the tokenizer: run make test-servers")
    found = subprocess.run([os.environ["MEM1_VLLM"], "-c", SMOLLM2_FOLDER], check=True, stdout=subprocess.PIPE)
    codec = Codec.load(Path(found.stdout.decode().split()[-1]))
    context = codec.encode("The capital of Norway is")
    for url in served(name, tmp_path_factory):
        engine = OpenAIEngine.open(ModelServer(urls=(url,), model=NAME, tries=1), codec, (".",))
        assert str(engine.dialect) == f"/completions, {RECOGNISED[name]}"
        (greedy,) = engine.complete([context], max_tokens=[16], sampling=Sampling(temperature=0.0))
        assert greedy.failed is None and greedy.stopped and "Oslo" in codec.decode(greedy.token_ids)
        assert len(greedy.logprobs) == (len(greedy.token_ids) if name == "vllm" else 0)
        (warm,) = engine.complete([context], max_tokens=[16], sampling=Sampling(temperature=0.7))
        assert warm.failed is None and warm.logprobs == (), "those of vLLM are at temperature 1, unless it is told"
        engine.close()
        engine = OpenAIEngine.open(ModelServer(urls=(url,), model=NAME, tries=1), codec, PAPER_NOTES.stop_strings)
        writer = NoteWriter(codec, PAPER_NOTES, engine)
        readings = [reading_of("Count the bridges.", [], 0, CALLS.replace("PLACE", place)) for place in PLACES[:4]]
        with ThreadPoolExecutor(4) as threads:
            written = list(threads.map(writer.noted, readings))
        assert all(one.read > 20 and 0 < one.written <= 120 for one in written), "a writer's model may be on a server"
        engine.close()
        routes = WeightRoutes("vllm", model=NAME, token=None, timeout_s=60)
        weights = PublishedWeights(version=1, path=Path("weights-000001/model.safetensors"), checksum=None)
        with pytest.raises(ServerFailed, match=r"/pause\?mode=abort: status 404.*VLLM_SERVER_DEV_MODE=1"):
            routes.update(url, weights)
        refusal = "processed_logprobs" if name == "vllm" else "it speaks .*contexts as token ids.* but training needs"
        with pytest.raises(ServerFailed, match=refusal):
            routes.admit(url, codec, (".",))
        routes.close()
