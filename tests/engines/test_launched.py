"""vLLM as a process of the run, by a script that is started and answers as it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from servers import wait_for
from vllms import bare, environment

from mem1.engines.launched import GivenUp, Launch, LaunchedVllm
from mem1.errors import UserError

STAND_IN = """
import http.server, os, subprocess, sys
print("given", *sys.argv[1:], flush=True)
print("told", os.environ.get("VLLM_SERVER_DEV_MODE"), os.environ.get("VLLM_CPU_KVCACHE_SPACE"), os.environ.get("RANK"))
if "--broken" in sys.argv:
    sys.exit("no room for the keys")
if "--mute" in sys.argv:
    import time
    time.sleep(600)
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("worker", worker.pid, "of", os.getpid(), flush=True)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/die":
            os._exit(3)
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *args): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Health).serve_forever()
"""


@pytest.fixture
def python(tmp_path: Path) -> str:
    return environment(tmp_path, STAND_IN)


def launched(python: str, folder: Path, *, on_gpu: bool = False, **options: object) -> LaunchedVllm:
    config = Launch.model_validate({"python": python, "cpu_cache_gb": 2, **options})
    return LaunchedVllm(
        config, folder=folder, tokenizer=folder / "t", model="policy", dtype="float32", context=512, on_gpu=on_gpu,
        sleep=on_gpu,
    )  # fmt: skip


def numbers(log: Path) -> list[int]:
    """Of the processes: of each start the worker, and the server."""
    said = [line.split() for line in log.read_text().splitlines() if line.startswith("worker")]
    return [int(number) for line in said for number in (line[1], line[3])]


def runs(number: int) -> bool:
    """Whether there is such a process, and it is none that has ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")


@needs_proc
def test_it_answers_has_its_log_in_a_file_and_is_ended_with_what_it_has_started(python, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    log = tmp_path / "vllm.log"
    with launched(python, tmp_path, arguments=("--seed=7",)) as server:
        server.start(log)
        (url,) = server.addresses()
        assert httpx.get(url.removesuffix("/v1") + "/health").status_code == 200
        worker, itself = numbers(log)
        assert runs(worker) and runs(itself)
    wait_for(lambda: not runs(worker) and not runs(itself))
    said = log.read_text()
    port = url.removesuffix("/v1").rpartition(":")[2]
    given = [
        *("--model", str(tmp_path), "--tokenizer", f"{tmp_path}/t", "--served-model-name", "policy"),
        *("--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "512"),
        *("--logprobs-mode", "processed_logprobs", "--port", port),
        *("--enable-prefix-caching", "--enforce-eager", "--seed=7"),
    ]
    assert said.splitlines()[0] == " ".join(["given", *given])
    assert "told 1 2 None" in said, "development mode, room for keys, and nothing of torchrun"


@needs_proc
def test_on_a_gpu_it_takes_its_share_and_may_sleep(python, tmp_path):
    log = tmp_path / "vllm.log"
    with launched(python, tmp_path, on_gpu=True, gpu_memory=0.3) as server:
        server.start(log)
    said = log.read_text()
    assert "--gpu-memory-utilization 0.3" in said and "--enable-sleep-mode" in said and "told 1 None" in said
    assert "--enforce-eager" not in said


@needs_proc
def test_one_that_dies_is_started_again_at_another_address_three_times_and_its_last_words_are_told(
    python, tmp_path, caplog
):
    log = tmp_path / "vllm.log"
    with launched(python, tmp_path) as server:
        server.start(log)
        seen = []
        for start in (1, 2, 3, 4):
            wait_for(lambda count=2 * start: len(numbers(log)) == count)
            (url,) = server.addresses()
            wait_for(lambda url=url: answers(url))
            wait_for(lambda: not server.starting)
            seen.append(url)
            with pytest.raises(httpx.HTTPError):
                httpx.get(url.removesuffix("/v1") + "/die")
            wait_for(lambda: not any(map(runs, numbers(log))))
            if start < 4:
                wait_for(lambda count=start: len(caplog.messages) == count)
                assert f"has ended with status 3; the end of {log}" in caplog.messages[-1]
                assert f"it is started again, {start} of at most 3 times" in caplog.messages[-1]
                assert f"worker {numbers(log)[-2]} of" in caplog.messages[-1]
        assert len(set(seen)) == 4
        wait_for(lambda: len(caplog.messages) == 4)
        for asked in (server.addresses, lambda: server.starting):
            with pytest.raises(GivenUp, match=r"(?s)status 3.*worker.*it was started again 3 times.*--resume"):
                asked()
    assert len(numbers(log)) == 8, "no fifth"


@needs_proc
def test_one_that_dies_while_others_have_its_gpu_is_started_again_once_it_is_needed(python, tmp_path, caplog):
    log = tmp_path / "vllm.log"
    with launched(python, tmp_path) as server:
        server.start(log)
        server.needed(False)
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.addresses()[0].removesuffix("/v1") + "/die")
        wait_for(lambda: len(caplog.messages) == 1)
        time.sleep(0.5)
        assert server.starting and len(numbers(log)) == 2
        server.needed(True)
        wait_for(lambda: not server.starting)
        assert len(numbers(log)) == 4
        server.needed(False)
        os.kill(numbers(log)[-1], signal.SIGKILL)
        wait_for(lambda: server.starting)
    assert len(numbers(log)) == 4, "the end of the run does not wait for it"


def answers(url: str) -> bool:
    try:
        return httpx.get(url.removesuffix("/v1") + "/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_one_that_does_not_start_is_an_error_with_the_end_of_its_log(python, tmp_path):
    log = tmp_path / "vllm.log"
    with launched(python, tmp_path, arguments=("--broken",)) as server:
        with pytest.raises(
            UserError, match=r"(?s)ended with status 1 before it answered.*vllm\.log:.*no room for the keys"
        ):
            server.start(log)
        with pytest.raises(UserError, match="no room for the keys"):
            server.addresses()
    assert log.read_text().count("given") == 1, "it is not tried again"


def test_one_that_is_mute_is_given_up_after_its_time(python, tmp_path):
    began = time.monotonic()
    given_up = pytest.raises(UserError, match=r"did not answer within rollout\.launch\.start_s = 0\.5 s")
    with launched(python, tmp_path, arguments=("--mute",), start_s=0.5) as server, given_up:
        server.start(tmp_path / "vllm.log")
    assert time.monotonic() - began < 60


def test_without_vllm_or_without_the_interpreter_the_error_says_what_to_do(tmp_path):
    with pytest.raises(
        UserError, match=r"vLLM is not installed for .*pip install vllm, or set rollout\.launch\.python"
    ):
        Launch(python=bare(tmp_path)).check()
    with pytest.raises(UserError, match=r"rollout\.launch\.python: /nowhere/python cannot be run"):
        Launch(python="/nowhere/python").check()


@needs_proc
@pytest.mark.parametrize("how", ["signal.SIGKILL", "signal.SIGINT"])
def test_it_does_not_outlive_a_run_that_is_killed_or_interrupted(python, tmp_path, how):
    log = tmp_path / "vllm.log"
    program = f"""
import os, signal, time
from pathlib import Path
from mem1.engines.launched import Launch, LaunchedVllm
with LaunchedVllm(Launch(python={python!r}), folder=Path("m"), tokenizer=Path("t"), model="p", dtype="float32",
                  context=64, on_gpu=False) as server:
    server.start(Path({str(log)!r}))
    os.kill(os.getpid(), {how})
    time.sleep(60)
"""
    ended = subprocess.run([sys.executable, "-c", program], env=os.environ, timeout=120, stderr=subprocess.DEVNULL)
    assert -ended.returncode in (signal.SIGKILL, signal.SIGINT)
    worker, itself = numbers(log)
    wait_for(lambda: not runs(worker) and not runs(itself))


def test_a_log_that_cannot_be_written_is_said(python: str, tmp_path: Path):
    with (
        launched(python, tmp_path) as server,
        pytest.raises(UserError, match=r"vLLM cannot be started: .*No such file"),
    ):
        server.start(tmp_path / "missing" / "vllm.log")
