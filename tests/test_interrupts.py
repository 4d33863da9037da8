"""Ctrl-C and SIGTERM are noticed at the borders of the work, and break it off where none is reached in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from mem1.interrupts import GRACE_S, Interrupted, interruptible, stopped_while

pytestmark = pytest.mark.usefixtures("default_handlers")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_raises_the_flag(signum: signal.Signals) -> None:
    with interruptible() as stop:
        assert not stop.requested
        signal.raise_signal(signum)
        assert stop.requested


def test_the_second_signal_interrupts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mem1.interrupts._SAME_S", 0.02)
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


def test_work_that_reaches_no_border_in_time_is_broken_off() -> None:
    with interruptible() as stop:
        signal.raise_signal(signal.SIGINT)
        left, again = signal.getitimer(signal.ITIMER_REAL)
        assert 0 < left <= GRACE_S < 5 and again > 0
        with stop.unbroken():
            signal.raise_signal(signal.SIGALRM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGALRM)
        with pytest.raises(KeyboardInterrupt):  # the first may have been lost in a destructor
            signal.raise_signal(signal.SIGALRM)
    assert signal.getitimer(signal.ITIMER_REAL)[1] == 0.0


def test_what_cleans_up_after_it_is_not_broken_off_too() -> None:
    cleaned = []
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
        try:
            try:
                signal.raise_signal(signal.SIGALRM)
            finally:
                with pytest.raises(OSError):
                    os.stat("/nowhere")
                signal.raise_signal(signal.SIGALRM)
                cleaned.append("inside")
        except KeyboardInterrupt:
            signal.raise_signal(signal.SIGALRM)
            cleaned.append("outside")
            raise
    assert cleaned == ["inside", "outside"]


def test_work_that_others_wait_for_is_broken_off_by_a_second_signal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mem1.interrupts._SAME_S", 0.0)
    with interruptible(breakable=False):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGALRM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_timer_of_somebody_else_goes_on_afterwards() -> None:
    rung: list[int] = []
    former = signal.signal(signal.SIGALRM, lambda *_: rung.append(1))
    timer = signal.setitimer(signal.ITIMER_REAL, 3000.0)
    try:
        with interruptible():
            signal.raise_signal(signal.SIGINT)
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 3000
        signal.raise_signal(signal.SIGALRM)
        assert rung == [1]
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, former)


def test_the_innermost_block_says_where_and_the_innermost_that_knows_how_to_go_on() -> None:
    with (
        pytest.raises(Interrupted, match=r"^while packing; resume with X$"),
        stopped_while("training", lambda: "resume with X"),
        stopped_while("packing"),
    ):
        raise KeyboardInterrupt


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
from mem1.interrupts import interruptible
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
