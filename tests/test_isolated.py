"""Documents that would stop an index or an attempt, too large, slow or greedy; the next one is read all the same."""

from __future__ import annotations

import os
import sys
import time
import zlib
from pathlib import Path

import pytest
from test_documents import pdf

from mem1.retrieval.documents import read_documents
from mem1.retrieval.extraction import Unreadable, extract
from mem1.retrieval.web.fetch import Fetched
from mem1.retrieval.web.reader import read_page
from mem1.retrieval.web.urls import FetchFailed, Why

pytest.importorskip("pypdf")
pytest.importorskip("trafilatura", exc_type=ImportError)


def packed_pdf(stream: bytes) -> bytes:
    """A page whose content is this stream, compressed."""
    packed = zlib.compress(stream, 9)
    plain = pdf("PLACE")
    before, _, rest = plain.partition(b"<< /Length ")
    _, _, after = rest.partition(b"endstream")
    head = b"<< /Filter /FlateDecode /Length %d >>\nstream\n" % len(packed)
    return before + head + packed + b"\nendstream" + after


SLOW_PDF = packed_pdf(b"BT /F1 12 Tf " + b"(a) Tj T* " * 3_000_000 + b"ET")
SLOW_PAGE = "<html><body>" + "<div><p>word <b>word</b> word</p>" * 60_000
GOOD = pdf("The mill was built in 1823.")


def test_a_pdf_and_a_page_that_take_too_long_are_given_up_and_the_next_is_read():
    start = time.monotonic()
    for kind, content in (("pdf", SLOW_PDF), ("page", SLOW_PAGE.encode())):
        with pytest.raises(Unreadable, match=r"not read within 0\.3 seconds"):
            extract(kind, content, seconds=0.3)  # pyright: ignore[reportArgumentType]
        assert extract("pdf", GOOD, seconds=60) == ("", "The mill was built in 1823.\n")
    assert time.monotonic() - start < 60
    assert len(SLOW_PDF) < 100_000


def test_a_small_pdf_with_a_huge_stream_is_refused_and_the_rest_of_the_folder_is_read(tmp_path: Path):
    (tmp_path / "bomb.pdf").write_bytes(packed_pdf(b" " * 80_000_000))
    (tmp_path / "good.pdf").write_bytes(GOOD)
    (tmp_path / "good.txt").write_text("Read me.")
    found = read_documents(tmp_path)
    assert [p.id for p in found.passages] == ["good.pdf#1", "good.txt#1"]
    ((name, reason),) = found.skipped
    assert name == "bomb.pdf" and ("damaged" in reason or "too much memory" in reason or "no text" in reason)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound the memory of a process")
def test_a_process_that_needs_too_much_memory_is_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mem1.retrieval.extraction.MEMORY_BYTES", 600 << 20)
    monkeypatch.setattr("mem1.retrieval.extraction._idle", [])
    try:
        _, text = extract("page", b"<html><body><p>" + b"a" * 200_000_000, seconds=60)
    except Unreadable as error:
        assert "memory" in str(error)
    else:
        assert text == "", "lxml itself gives up where there is no memory"
    monkeypatch.setattr("mem1.retrieval.extraction.MEMORY_BYTES", 2 << 30)
    assert extract("pdf", GOOD, seconds=60)[1] == "The mill was built in 1823.\n"


def test_a_file_of_six_gigabytes_is_named_and_passed_over_at_once(tmp_path: Path):
    for ending in ("txt", "md", "html", "pdf"):
        with open(tmp_path / f"large.{ending}", "wb") as file:
            file.truncate(6 << 30)  # without a block on the disk
    (tmp_path / "good.txt").write_text("Read me.")
    start = time.process_time()
    found = read_documents(tmp_path)
    assert [p.id for p in found.passages] == ["good.txt#1"]
    assert {reason for _, reason in found.skipped} == {"larger than 100 MB; split it"} and len(found.skipped) == 4
    assert time.process_time() - start < 2


def test_a_page_of_the_web_that_kills_its_reader_is_a_page_without_text(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mem1.retrieval.web.reader.SECONDS", 0.3)
    with pytest.raises(FetchFailed, match=r"not read within 0\.3 seconds") as failed:
        read_page(Fetched(address="", content_type="text/html", text=SLOW_PAGE))
    assert failed.value.why is Why.UNREADABLE


def test_modules_in_the_folder_of_the_documents_are_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("pypdf", "json", "trafilatura", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mem1.retrieval.extraction._idle", [])
    assert extract("pdf", GOOD, seconds=60)[1] == "The mill was built in 1823.\n"
    assert not os.path.exists(tmp_path / "run")
