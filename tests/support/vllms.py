"""vLLM as the tests have it: its routes answered by a script, and an environment in which a run finds and starts it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from model_servers import COMPLETIONS, Model, content_with
from sites import Site, as_json, status
from worlds import CODEC


class Vllm:
    """A server that answers as vLLM 0.32 does in its development mode: vllm/entrypoints/rl/online/api_router.py and
    .../serve/dev/{rpc,cache,sleep,server_info}/api_router.py. `make test-vllm` tests the same with vLLM itself."""

    def __init__(self, model: type[Model] = Model, *, without: tuple[str, ...] = (), device: str = "cuda") -> None:
        self.version = "default"
        self.model = model(CODEC, lambda _: "<IS> a </IS> <query> city </query>", vllm=True)
        self.pages: dict[str, Callable[..., None]] = {
            "/health": lambda handler: content_with(200, None)(handler),
            "/pause": self._pause,
            "/resume": self._resume,
            "/collective_rpc": self._reload,
            "/reset_prefix_cache": as_json({"success": True}),
            "/server_info": as_json({"vllm_config": {"device_config": {"device": device}}}),
            "/update_weight_version": self._set,
            "/weight_info": lambda handler: as_json({"weight_version": self.version})(handler),
            COMPLETIONS: self._complete,
        }
        self.awake = threading.Event()
        """Cleared while it is paused: completions wait, as those that vLLM has not begun."""
        self.awake.set()
        self.waiting = 0
        """Completions that have waited."""
        self.asleep: set[str] = set()
        """What --enable-sleep-mode has freed: weights, kv_cache."""
        self.pages |= {
            "/sleep": self._sleep,
            "/wake_up": self._wake_up,
            "/is_sleeping": lambda handler: as_json({"is_sleeping": bool(self.asleep)})(handler),
        }
        for path in without:
            del self.pages[path]

    def _pause(self, handler: Any) -> None:
        self.awake.clear()
        as_json({"status": "paused"})(handler)

    def _resume(self, handler: Any) -> None:
        self.awake.set()
        as_json({"status": "resumed"})(handler)

    def _sleep(self, handler: Any) -> None:
        self.asleep = {"weights", "kv_cache"}
        status(200)(handler)

    def _wake_up(self, handler: Any) -> None:
        self.asleep.discard(handler.path.partition("?tags=")[2])
        status(200)(handler)

    def _reload(self, handler: Any) -> None:
        (status(500) if "weights" in self.asleep else as_json({"results": [None]}))(handler)

    def _complete(self, handler: Any) -> None:
        if self.asleep:
            return status(500)(handler)
        self.waiting += not self.awake.is_set()
        assert self.awake.wait(60)
        code, said = self.model.completion(json.loads(handler.body))
        content_with(code, said)(handler)

    def _set(self, handler: Any) -> None:
        self.version = json.loads(handler.body)["new_version"]
        as_json({"success": True, "new_version": self.version})(handler)


def posts(running: Site) -> list[str]:
    return [path for method, path, _, _ in running.asked if method == "POST"]


FORWARDS = """
import os, socket, sys, threading, urllib.request
there = ("127.0.0.1", PORT)
print("started", os.getpid(), flush=True)
urllib.request.urlopen(f"http://127.0.0.1:{PORT}/started?{os.getpid()}")
def copy(a, b):
    try:
        while data := a.recv(65536):
            b.sendall(data)
        b.shutdown(socket.SHUT_WR)
    except OSError:
        pass
listening = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
while True:
    client, _ = listening.accept()
    server = socket.create_connection(there)
    for a, b in ((client, server), (server, client)):
        threading.Thread(target=copy, args=(a, b), daemon=True).start()
"""
"""A process that says its number to the page /started at PORT, and then passes on all that it is asked."""


def environment(folder: Path, server: str) -> str:
    """An interpreter that finds a `vllm`, whose server is the given script."""
    room = folder / "environment" / "vllm" / "entrypoints" / "openai"
    room.mkdir(parents=True)
    for made in (room, room.parent, room.parent.parent):
        (made / "__init__.py").touch()
    (room / "api_server.py").write_text(server)
    return _interpreter(folder / "environment" / "python", f'PYTHONPATH="{folder / "environment"}"', "")


def bare(folder: Path) -> str:
    """An interpreter that finds no package."""
    return _interpreter(folder / "bare", "", "-I -S")


def _interpreter(found: Path, variables: str, options: str) -> str:
    found.write_text(f'#!/bin/sh\n{variables} exec "{sys.executable}" {options} "$@"\n')
    found.chmod(0o755)
    return str(found)
