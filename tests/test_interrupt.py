"""Ctrl-C and SIGTERM are noticed between steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from mem1.lock import interruptible

pytestmark = pytest.mark.usefixtures("default_handlers")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_raises_the_flag(signum: signal.Signals) -> None:
    with interruptible() as stop:
        assert not stop.requested
        signal.raise_signal(signum)
        assert stop.requested


def test_the_second_signal_interrupts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mem1.lock._SAME_S", 0.02)
    with interruptible() as stop:
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.03)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        assert stop.requested


def test_a_signal_that_a_launcher_passes_on_beside_the_terminal_is_the_same() -> None:
    with interruptible() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert stop.requested


def test_the_former_handlers_come_back() -> None:
    with pytest.raises(RuntimeError, match="a step failed"), interruptible():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        raise RuntimeError("a step failed")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


def test_a_signal_ignored_before_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible() as stop:
        signal.raise_signal(signal.SIGINT)
        assert not stop.requested
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested


def test_outside_the_main_thread_nothing_is_caught() -> None:
    flags: list[bool] = []

    def work() -> None:
        with interruptible() as stop:
            flags.append(stop.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert flags == [False]


def test_the_notice_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    with interruptible("finishing this step"):
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == "\nfinishing this step\n"


_LOOP = """
import signal, sys, time
from mem1.lock import interruptible
signal.signal(signal.SIGINT, signal.default_int_handler)
with interruptible() as stop:
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
print("checkpoint written")
"""


def test_a_terminated_process_finishes_its_step_and_exits_normally() -> None:
    with subprocess.Popen([sys.executable, "-c", _LOOP], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGINT)
        assert process.stdout.read() == "checkpoint written\n"
    assert process.returncode == 0
