"""A Hugging Face hub on 127.0.0.1, as strict as the real one, for huggingface_hub's own client.

    with hub() as server:
        commit = server.put("org/tiny", {"config.json": b"{}"})
        server.asked        [("GET", "/api/models/org/tiny/revision/main"), ...]

What the client does not ask for in the real protocol is answered 404, and a request with a faulty body 400.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

import mem1.hub

LARGE = (".safetensors", ".gguf", ".bin")
"""Files that are stored beside git."""


@dataclass
class Repository:
    commits: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    """Commit -> path -> content."""
    branches: dict[str, str] = field(default_factory=dict)
    gated: bool = False
    private: bool = False

    def add(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """A commit of these files."""
        content = json.dumps(sorted((name, hashlib.sha1(data).hexdigest()) for name, data in files.items()))
        commit = hashlib.sha1(f"{len(self.commits)}{content}".encode()).hexdigest()
        self.commits[commit] = dict(files)
        self.branches[branch] = commit
        return commit

    def commit(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)


@dataclass
class Hub:
    port: int = 0
    repositories: dict[str, Repository] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)
    """Those that see what is gated or private, and may write."""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """(method, path without query) of each request."""
    stored: dict[str, bytes] = field(default_factory=dict)
    """SHA-256 -> content that was uploaded beside git."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def put(
        self,
        name: str,
        files: Mapping[str, bytes] | Path,
        *,
        branch: str = "main",
        gated: bool = False,
        private: bool = False,
    ) -> str:
        """A commit to a repository, which is made if it is new; returns it."""
        if isinstance(files, Path):
            files = {
                path.relative_to(files).as_posix(): path.read_bytes() for path in files.rglob("*") if path.is_file()
            }
        return self.repositories.setdefault(name, Repository(gated=gated, private=private)).add(files, branch)

    def files(self, name: str) -> Mapping[str, bytes]:
        """Those of a repository's main branch."""
        repository = self.repositories[name]
        return repository.commits[repository.branches["main"]]

    def fetched(self, ending: str) -> list[str]:
        """Paths with this ending whose content was asked for."""
        return [path for method, path in self.asked if method == "GET" and path.endswith(ending)]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        path = unquote(address.path)
        self.hub.asked.append((self.command, path))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            self.body = b"".join(iter(self._chunk, b""))
        parts = path.strip("/").split("/")
        if path.startswith("/api/models/") and len(parts) > 3:
            what, *rest = parts[4:] or ("revision", "main")
            self._api("/".join(parts[2:4]), what, "/".join(rest), parse_qs(address.query))
        elif path == "/api/repos/create":
            self._create()
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif path.endswith(".git/info/lfs/objects/batch"):
            self._batch()
        elif parts[0] == "store" and self.command == "PUT":
            self.hub.stored[parts[1]] = self.body
            self._answer({}, 200 if hashlib.sha256(self.body).hexdigest() == parts[1] else 400)
        elif len(parts) > 4 and parts[2] == "resolve":
            self._resolve("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
        else:
            self._refuse(404, "RepoNotFound", "Repository not found")

    do_HEAD = do_POST = do_PUT = do_GET

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline(), 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    @property
    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _seen(self, name: str) -> Repository | None:
        """The repository, if this client may know of it; the answer is given where it may not."""
        repository = self.hub.repositories.get(name)
        if self._token and self._token not in self.hub.tokens:
            self._refuse(401, "", "Invalid credentials in Authorization header")
        elif repository is None or (repository.private and not self._token):
            # the hub does not tell strangers which names are taken
            self._refuse(
                404 if self._token else 401, "RepoNotFound" if self._token else "", "Invalid username or password."
            )
        else:
            return repository
        return None

    def _api(self, name: str, what: str, rest: str, query: Mapping[str, list[str]]) -> None:
        repository = self._seen(name)
        if repository is None:
            return
        if self.command == "POST":
            writes: Mapping[str, Callable[[str, Repository], None]] = {
                "preupload": self._preupload,
                "commit": self._commit,
            }
            if not self._token:
                self._refuse(401, "", "Invalid username or password.")
            elif what in writes and rest == "main":
                writes[what](name, repository)
            else:
                self._refuse(404, "", "no such endpoint")
            return
        commit = repository.commit(rest)
        if what not in ("revision", "tree"):
            self._refuse(404, "", "no such endpoint")
        elif commit is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {rest}")
        elif what == "revision":
            siblings = [{"rfilename": file} for file in repository.commits[commit]]
            self._answer(
                {
                    "id": name,
                    "modelId": name,
                    "sha": commit,
                    "siblings": siblings,
                    "tags": [],
                    "private": repository.private,
                }
            )
        elif query.get("recursive") != ["true"]:
            self._refuse(400, "", "this hub lists trees as a whole")
        else:
            self._answer([_entry(path, data) for path, data in repository.commits[commit].items()])

    def _resolve(self, name: str, revision: str, file: str) -> None:
        repository = self._seen(name)
        if repository is None:
            return
        commit = repository.commit(revision)
        if repository.gated and not self._token:
            self._refuse(401, "GatedRepo", f"Access to model {name} is restricted.")
        elif commit is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif file not in repository.commits[commit]:
            self._refuse(404, "EntryNotFound", "Entry not found")
        else:
            data = repository.commits[commit][file]
            self._send(200, data, {"ETag": f'"{_etag(file, data)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"})

    def _create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if self._token not in self.hub.tokens:
            self._refuse(401, "", "Invalid username or password.")
        elif name in self.hub.repositories:
            self._answer({"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"}, 409)
        else:
            private = asked.get("visibility", "private" if asked.get("private") else "public") == "private"
            self.hub.put(name, {".gitattributes": b""}, private=private)
            self._answer({"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def _preupload(self, name: str, repository: Repository) -> None:
        files = json.loads(self.body)["files"]
        if any({"path", "sample", "size"} - file.keys() for file in files):
            self._refuse(400, "", "a file lacks path, sample or size")
            return
        modes = {True: "lfs", False: "regular"}
        kinds = [
            {"path": f["path"], "uploadMode": modes[f["path"].endswith(LARGE)], "shouldIgnore": False} for f in files
        ]
        self._answer({"files": kinds})

    def _batch(self) -> None:
        asked = json.loads(self.body)
        if asked["operation"] != "upload" or asked["hash_algo"] != "sha256" or self._token not in self.hub.tokens:
            self._refuse(400, "", "not an upload")
            return
        objects = []
        for one in asked["objects"]:
            place = {"href": f"{self.hub.url}/store/{one['oid']}"}
            objects.append({**one, **({} if one["oid"] in self.hub.stored else {"actions": {"upload": place}})})
        self._answer({"transfer": "basic", "objects": objects})

    def _commit(self, name: str, repository: Repository) -> None:
        head, *changes = (json.loads(line) for line in self.body.splitlines())
        files = dict(self.hub.files(name))
        for change in changes:
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile" and value["oid"] in self.hub.stored:
                files[value["path"]] = self.hub.stored[value["oid"]]
            elif change["key"] == "deletedFile" and value["path"] in files:
                del files[value["path"]]
            else:
                self._refuse(400, "", f"{change['key']} {value['path']} cannot be committed")
                return
        if head["key"] != "header" or not head["value"]["summary"]:
            self._refuse(400, "", "a commit needs a summary")
            return
        commit = repository.add(files)
        self._answer({"success": True, "commitOid": commit, "commitUrl": f"{self.hub.url}/{name}/commit/{commit}"})

    def _answer(self, body: Any, code: int = 200) -> None:
        self._send(code, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _refuse(self, code: int, kind: str, message: str) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": kind} if kind else {})}
        self._send(code, json.dumps({"error": message}).encode(), {**headers, "Content-Type": "application/json"})

    def _send(self, code: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body)), "X-Request-Id": "1"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _etag(file: str, data: bytes) -> str:
    if file.endswith(LARGE):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _entry(path: str, data: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(data), "oid": _etag("", data)}
    if path.endswith(LARGE):
        entry["lfs"] = {"oid": _etag(path, data), "size": len(data), "pointerSize": 130}
    return entry


@contextmanager
def hub() -> Iterator[Hub]:
    """A running hub without repositories."""
    running = Hub()

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": running})) as server:
        running.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield running
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that this process asks in place of the real one, with an empty cache and nothing looked up yet.

    huggingface_hub reads HF_ENDPOINT and the like when it is imported, so what it has read is replaced here.
    """
    with hub() as running:
        constants = "huggingface_hub.constants"
        monkeypatch.setattr(f"{constants}.ENDPOINT", running.url)
        monkeypatch.setattr(
            f"{constants}.HUGGINGFACE_CO_URL_TEMPLATE", f"{running.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        monkeypatch.setattr(f"{constants}.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setattr(f"{constants}.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(f"{constants}.HF_HUB_DISABLE_XET", True)  # it speaks to a server of its own
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("MEM1_CACHE", str(tmp_path / "mem1-cache"))
        new_process(monkeypatch)
        yield running


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if nothing had been looked up in this process."""
    for name in ("_commits", "_folders", "_unreachable"):
        monkeypatch.setattr(mem1.hub, name, {})
