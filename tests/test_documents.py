"""A folder of documents: what is read from each kind of file, and what is passed over."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from mem1.errors import UserError
from mem1.records import Passage
from mem1.retrieval.documents import read_documents

PAGE = """<html><head><title>Oslo &amp; its fjord</title><script>var hidden = "never shown";</script></head><body>
<h1>Oslo</h1><p>Oslo is the capital of Norway, and it lies at the end of a long fjord with many islands in it.</p>
<p>Ferries go to the islands all year round, and in summer thousands of people swim there.</p></body></html>"""


def pdf(*lines: str) -> bytes:
    """A page with these lines of text, written by hand."""
    text = "BT /F1 12 Tf 14 TL 72 720 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R"
        " /Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        f"<< /Length {len(text)} >>\nstream\n{text}\nendstream",
    ]
    content, offsets = "%PDF-1.4\n", []
    for number, item in enumerate(objects, start=1):
        offsets.append(len(content))
        content += f"{number} 0 obj\n{item}\nendobj\n"
    table = "".join(f"{offset:010d} 00000 n \n" for offset in offsets)
    trailer = f"trailer << /Size 5 /Root 1 0 R >>\nstartxref\n{len(content)}\n%%EOF\n"
    return (content + f"xref\n0 5\n0000000000 65535 f \n{table}" + trailer).encode("ascii")


def encrypted(content: bytes) -> bytes:
    pypdf = pytest.importorskip("pypdf")
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(content))
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(out := io.BytesIO())
    return out.getvalue()


def test_text_and_markdown_become_passages_named_by_file_and_number(tmp_path: Path):
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbf" + "Größe zählt.".encode())
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.MD").write_text("```\n# a comment\n```\n# Oslo, the city #\n\n" + "Word word. " * 80)
    (tmp_path / "utf16.txt").write_bytes("Bergen rains.".encode("utf-16"))
    found = read_documents(tmp_path)
    assert [p.id for p in found.passages] == ["b.txt#1", "sub/a.MD#1", "sub/a.MD#2", "utf16.txt#1"]
    assert found.passages[0] == Passage("b.txt#1", "b", "Größe zählt.")
    assert found.passages[1].title == found.passages[2].title == "Oslo, the city"
    assert len(found.passages[1].text.split()) == 100
    assert found.passages[3].text == "Bergen rains."
    assert (found.files, found.skipped) == (3, ())


def test_a_page_gives_its_title_and_what_a_reader_sees(tmp_path: Path):
    pytest.importorskip("trafilatura", exc_type=ImportError)
    (tmp_path / "oslo.html").write_text(PAGE)
    (tmp_path / "short.htm").write_text("<h1>Bergen</h1><p>Rain.")
    oslo, short = read_documents(tmp_path).passages
    assert (oslo.id, oslo.title) == ("oslo.html#1", "Oslo & its fjord")
    assert "capital of Norway" in oslo.text and "Ferries" in oslo.text
    assert "never shown" not in oslo.text
    assert (short.title, "Rain." in short.text) == ("Bergen", True)


def test_a_pdf_gives_its_text(tmp_path: Path):
    pytest.importorskip("pypdf")
    (tmp_path / "report.pdf").write_bytes(pdf("The mill was built", "in 1823 by Mira Toll."))
    assert read_documents(tmp_path).passages == (
        Passage("report.pdf#1", "report", "The mill was built in 1823 by Mira Toll."),
    )


def test_what_cannot_be_read_is_named_with_its_reason_and_the_rest_is_read(tmp_path: Path):
    pytest.importorskip("pypdf")
    whole = pdf("Secret.")
    files: dict[str, tuple[bytes, str]] = {
        "empty.txt": (b"", "empty"),
        "blank.md": (b" \n\n", "empty"),
        "binary.txt": (b"ELF\0\0\1", "binary"),
        "bytes.txt": (b"\xff\xd8\xff\0", "binary"),
        "latin.txt": ("Größe".encode("latin-1"), "not UTF-8 text"),
        "table.xlsx": (b"PK", "not a supported type of file (.txt"),
        "noise.pdf": (b"no PDF at all", "damaged"),
        "cut.pdf": (whole[:120], "damaged"),
        "scan.pdf": (pdf(""), "no text in it; scanned pages need"),
        "locked.pdf": (encrypted(whole), "encrypted"),
    }
    for name, (content, _) in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "good.txt").write_text("Read me.")
    found = read_documents(tmp_path)
    assert [p.id for p in found.passages] == ["good.txt#1"]
    assert found.files == 1
    reasons = dict(found.skipped)
    assert reasons.keys() == files.keys()
    assert {name for name, (_, reason) in files.items() if not reasons[name].startswith(reason)} == set()


def test_hidden_files_are_passed_over_and_links_are_not_followed(tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "private.txt").write_text("Private.")
    folder = tmp_path / "folder"
    (folder / ".git").mkdir(parents=True)
    (folder / ".git" / "config.txt").write_text("Hidden.")
    (folder / ".hidden.txt").write_text("Hidden.")
    (folder / "good.txt").write_text("Good.")
    (folder / "file.txt").symlink_to(outside / "private.txt")
    (folder / "dir").symlink_to(outside, target_is_directory=True)
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    (folder / "broken.txt").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.txt")
    found = read_documents(folder)
    assert [p.text for p in found.passages] == ["Good."]
    link = "a symbolic link, which is not followed"
    assert dict(found.skipped) == {
        "broken.txt": link,
        "dir": link,
        "file.txt": link,
        "loop": link,
        "pipe.txt": "not an ordinary file",
    }


def test_a_folder_without_a_passage_is_an_error_that_names_the_reasons(tmp_path: Path):
    with pytest.raises(UserError, match="holds no file"):
        read_documents(tmp_path)
    for number in range(7):
        (tmp_path / f"{number}.txt").write_text("")
    with pytest.raises(UserError, match=r"none of the 7 files in .* yields a passage. 0.txt: empty; .*; and 2 more"):
        read_documents(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_what_may_not_be_read_is_named(tmp_path: Path):
    (tmp_path / "good.txt").write_text("Good.")
    (tmp_path / "closed.txt").write_text("Closed.")
    (tmp_path / "closed.txt").chmod(0)
    assert dict(read_documents(tmp_path).skipped) == {"closed.txt": "Permission denied"}
