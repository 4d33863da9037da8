"""`mem1 webshop` as typed; files are fetched from a server of our own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from terminals import Terminal
from terminals import terminal as terminal
from webshop_originals import ASKED, write_originals
from webshop_samples import SHARED_WEBSHOP, needs_shared_webshop, raw_product, shared_catalogue

from mem1.envs.webshop.files import ALL, SMALL, Source, fetch, load
from mem1.errors import UserError

NAMES = [source.name for source in SMALL]


class Mirror:
    """Serves files from memory, from the byte asked for; counts the bytes it sent."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.kind, self.status = "application/json", 200
        self.ranges = True
        self.hang_up_after: int | None = None
        self.asked: list[tuple[str, str | None]] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("range") if self.ranges else None
        name = request.path.strip("/")
        self.asked.append((name, request.headers.get("range")))
        if name not in self.files:
            request.send_error(404)
            return
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        body = self.files[name][first:]
        request.send_response(206 if wanted else self.status)
        request.send_header("content-type", self.kind)
        request.send_header("content-length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: self.hang_up_after])


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[Mirror]:
    served = Mirror()
    folder = tmp_path / "served"
    folder.mkdir()
    write_originals(folder, [raw_product("B1"), raw_product("B2"), raw_product("B1")])
    served.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    thread = threading.Thread(target=served.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.server.shutdown()
    served.server.server_close()
    thread.join()


def test_files_are_fetched_and_cleaned_and_counted(terminal: Terminal, mirror: Mirror, tmp_path: Path):
    code, said, _ = terminal("webshop", "fetch", "--out", tmp_path / "data", "--mirror", mirror.address, "--json")
    assert code == 0
    assert json.loads(said) == {"out": str(tmp_path / "data"), "files": dict.fromkeys(NAMES, "fetched")}
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == sorted(NAMES)
    out = tmp_path / "shop.jsonl.gz"
    code, said, _ = terminal("webshop", "load", tmp_path / "data", "--out", out, "--json")
    assert code == 0
    assert json.loads(said) == {
        "out": str(out),
        "products": 2,
        "human_goals": 1,
        "human_without_attributes": 0,
        "synthetic_goals": 1,
        "synthetic_products": 1,
        "left_out": {"asin stood before": 1},
    }
    assert load(out) == load(tmp_path / "data")


def test_counts_and_what_was_left_out_are_said(terminal: Terminal, tmp_path: Path):
    write_originals(tmp_path, [raw_product("B1"), raw_product("nan"), raw_product("B2")])
    asked = [ASKED, {**ASKED, "instruction_attributes": []}]
    (tmp_path / "items_human_ins.json").write_text(json.dumps({"B2": asked}))
    code, said, err = terminal("webshop", "load", tmp_path, "--out", tmp_path / "shop.jsonl")
    assert (code, said) == (0, "")
    assert "2 products, 1 goals by people and 1 synthetic goals of 1 products, in" in err
    assert "Left out: 1 x no asin" in err
    assert "Left out: 1 x instruction by a person without attributes" in err
    assert "ends in .jsonl or .jsonl.gz" in terminal.error("webshop", "load", tmp_path, "--out", tmp_path / "shop.json")


def test_what_is_there_is_kept_and_what_broke_off_is_gone_on_with(mirror: Mirror, tmp_path: Path):
    mirror.hang_up_after = 100
    with pytest.raises(UserError, match=r"items_shuffle_1000\.json: the connection .* failed .*; call again to resume"):
        fetch(SMALL, tmp_path, mirror=mirror.address)
    assert (tmp_path / ".items_shuffle_1000.json.partial").stat().st_size == 100
    assert not (tmp_path / NAMES[0]).exists()
    mirror.hang_up_after = None
    seen = []
    fetch(SMALL[:1], tmp_path, mirror=mirror.address, seen=lambda *progress: seen.append(progress))
    assert mirror.asked[-1] == (NAMES[0], "bytes=100-")
    whole = mirror.files[NAMES[0]]
    assert (tmp_path / NAMES[0]).read_bytes() == whole
    assert seen[-1] == (NAMES[0], len(whole), len(whole))
    assert fetch(SMALL, tmp_path, mirror=mirror.address) == dict(
        zip(NAMES, ["kept", "fetched", "fetched"], strict=True)
    )
    assert [name for name, _ in mirror.asked[2:]] == NAMES[1:]


def test_a_server_that_cannot_go_on_sends_all_again(mirror: Mirror, tmp_path: Path):
    (tmp_path / ".items_shuffle_1000.json.partial").write_bytes(b"of another file")
    mirror.ranges = False
    fetch(SMALL[:1], tmp_path, mirror=mirror.address)
    assert (tmp_path / NAMES[0]).read_bytes() == mirror.files[NAMES[0]]


def test_what_is_not_the_file_is_not_taken_for_it(mirror: Mirror, tmp_path: Path):
    with pytest.raises(
        UserError, match=r"items_shuffle\.json: .*/items_shuffle\.json answered 404; open .* in a browser"
    ):
        fetch(ALL, tmp_path, mirror=mirror.address)
    with pytest.raises(UserError, match="more than 50 bytes; this is not WebShop's file"):
        fetch([Source(NAMES[0], "", 50)], tmp_path, mirror=mirror.address)
    mirror.kind = "text/html; charset=utf-8"
    with pytest.raises(UserError, match="the server returned a web page, perhaps because its quota is used up"):
        fetch(SMALL, tmp_path, mirror=mirror.address)
    mirror.kind, mirror.status = "application/json", 203
    with pytest.raises(UserError, match="answered 203"):
        fetch(SMALL, tmp_path, mirror=mirror.address)
    assert not any((tmp_path / name).exists() for name in NAMES)


def test_without_a_network_the_message_says_what_to_do(terminal: Terminal, mirror: Mirror, tmp_path: Path):
    mirror.server.server_close()
    said = terminal.error("webshop", "fetch", "--out", tmp_path / "data", "--mirror", mirror.address)
    assert "the connection to" in said and "in a browser and put the file at" in said
    said = terminal.error("webshop", "fetch", "--out", tmp_path / "data", "--mirror", "nonsense")
    assert "the connection to nonsense/items_shuffle_1000.json failed" in said
    (tmp_path / "file").write_text("")
    assert "is a file; give a folder" in terminal.error("webshop", "fetch", "--out", tmp_path / "file")


def test_without_a_mirror_the_address_is_that_of_the_original():
    assert SMALL[0].address(None).endswith("&id=1EgHdxQ_YxqIQlvvq5iKlCrkEKR6-j0Ib")
    assert len({source.drive_id for source in SMALL + ALL}) == 5


@needs_shared_webshop
def test_the_small_set_as_cleaned_here(terminal: Terminal, tmp_path: Path):
    code, said, _ = terminal("webshop", "load", SHARED_WEBSHOP, "--out", tmp_path / "shop.jsonl", "--json")
    found = json.loads(said)
    assert (code, found["products"], found["human_goals"], found["synthetic_goals"]) == (0, 1_000, 13, 6_910)
    assert load(tmp_path / "shop.jsonl") == shared_catalogue()
