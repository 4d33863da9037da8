"""Folders of documents: reading, cutting into passages, and documents that are too large, slow or hostile."""

from __future__ import annotations

import io
import os
import sys
import time
import zipfile
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mem1.durable import seal
from mem1.errors import UserError
from mem1.records import Passage
from mem1.registry import register
from mem1.retrieval.documents import cut_text, read_documents
from mem1.retrieval.extraction import Unreadable, extract
from mem1.retrieval.index_folder import holds_index
from mem1.retrieval.web.pages import Fetched, read_page
from mem1.retrieval.web.urls import FetchFailed, Why

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


def test_a_page_gives_its_title_and_visible_text(tmp_path: Path):
    pytest.importorskip("trafilatura", exc_type=ImportError)
    (tmp_path / "oslo.html").write_text(PAGE)
    (tmp_path / "short.htm").write_text("<h1>Bergen</h1><p>Rain.")
    oslo, short = read_documents(tmp_path).passages
    assert (oslo.id, oslo.title) == ("oslo.html#1", "Oslo & its fjord")
    assert "capital of Norway" in oslo.text and "Ferries" in oslo.text
    assert "never shown" not in oslo.text
    assert (short.title, "Rain." in short.text) == ("Bergen", True)


def test_of_a_page_all_text_is_kept_but_marked_menus_and_footers(tmp_path: Path):
    pytest.importorskip("trafilatura", exc_type=ImportError)
    (tmp_path / "mill.html").write_text(
        "<html><head><title>Mill</title><style>p {}</style></head><body><nav><a>Home</a></nav>"
        "<div role='navigation'>Next</div><h1>Mill</h1><p>All of <b>milli</b>metres,<br>as said.</p>"
        "<dl><dt>grind(<em>grain</em>)</dt><dd>Grinds.</dd></dl><ul><li><a href='x'>Keeper 4</a></li></ul>"
        "<table><tr><th>Built</th><td>1823</td></tr><tr><th>Lost</th><td></td></tr></table>"
        "<aside>A note.</aside><pre>a = 1\nb = 2</pre><script>x</script><!-- no --><footer>Imprint</footer>"
    )
    (page,) = read_documents(tmp_path).passages
    assert page.text == (
        "Mill All of millimetres, as said. grind(grain) Grinds. Keeper 4 Built | 1823 Lost A note. a = 1 b = 2"
    )


@pytest.mark.parametrize(
    ("saved", "declares"),
    [("iso-8859-2",) * 2, ("utf-8",) * 2, ("utf-8", "iso-8859-2"), ("utf-16",) * 2, ("utf-8-sig", "")],
)
def test_a_file_of_html_is_read_in_the_encoding_that_it_declares_unless_it_is_utf_8(
    tmp_path: Path, saved: str, declares: str
):
    pytest.importorskip("trafilatura", exc_type=ImportError)
    page = f"<html><head><meta charset='{declares}'></head><body><h1>Łódź</h1><p>Leży w środkowej Polsce.</p>"
    (tmp_path / "a.html").write_bytes(page.encode(saved))
    assert read_documents(tmp_path).passages == (Passage("a.html#1", "Łódź", "Łódź Leży w środkowej Polsce."),)


def test_a_fragment_of_html_is_read_in_a_file_of_html_and_a_text_without_tags_is_none(tmp_path: Path):
    pytest.importorskip("trafilatura")
    (tmp_path / "a.html").write_text("<p>The mill in Lund was rebuilt.</p>")
    (tmp_path / "b.html").write_text("1 < 2, no tags at all")
    found = read_documents(tmp_path)
    assert found.passages == (Passage("a.html#1", "a", "The mill in Lund was rebuilt."),)
    assert found.skipped == (("b.html", "not HTML"),)


def test_the_files_of_a_large_folder_are_listed_in_linear_time(tmp_path: Path):
    for number in range(20_000):
        os.mkfifo(f"{tmp_path}/{'x' * 200}{number}.txt")  # a file would be opened
    started = time.process_time()
    with pytest.raises(UserError, match=r"none of the 20000 files in .* not an ordinary file"):
        read_documents(tmp_path)
    assert time.process_time() - started < 2


def test_a_pdf_gives_its_text(tmp_path: Path):
    pytest.importorskip("pypdf")
    (tmp_path / "report.pdf").write_bytes(pdf("The mill was built", "in 1823 by Mira Toll."))
    assert read_documents(tmp_path).passages == (
        Passage("report.pdf#1", "report", "The mill was built in 1823 by Mira Toll."),
    )


def test_unreadable_files_are_named_with_a_reason_and_the_rest_is_read(tmp_path: Path):
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


def read_docx(content: bytes, path: Path) -> Any:
    if content == b"odd":
        return "a text alone"
    return None, zipfile.ZipFile(io.BytesIO(content)).read("text").decode()


def test_a_reader_of_ones_own_that_fails_skips_the_file_and_one_that_returns_no_pair_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(register.document._registered, ".docx", read_docx)
    with zipfile.ZipFile(tmp_path / "good.docx", "w") as file:
        file.writestr("text", "Read me.")
    (tmp_path / "broken.docx").write_bytes(b"PK")
    found = read_documents(tmp_path)
    assert found.passages == (Passage("good.docx#1", "good", "Read me."),)
    assert found.skipped == (("broken.docx", "its reader fails: BadZipFile: File is not a zip file"),)
    (tmp_path / "odd.docx").write_bytes(b"odd")
    with pytest.raises(UserError, match=r"odd.docx returned 'a text alone'; it must return \(title or None, text\)"):
        read_documents(tmp_path)


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


def test_what_mem1_has_written_into_the_folder_is_no_document(tmp_path: Path):
    (tmp_path / "a.md").write_text("# A\n\nOslo lies at the end of a long fjord.\n")
    made = {"cloze": "statistics.json", "policy": "manifest.json"}
    for name, manifest in made.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "README.md").write_text("| question | answer |\n|---|---|\n| Oslo is in ... | Norway |\n")
        seal(tmp_path / name, kind=name, format=1, name=manifest)
    for place in ("runs/a", "runs/b/train"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "resolved.json").write_text('{"command": ["mem1"], "versions": {}}')
        (tmp_path / place / "report.html").write_text("<p>Oslo is in Norway</p>")
    found = read_documents(tmp_path)
    assert [passage.id for passage in found.passages] == ["a.md#1"]
    ours = ["cloze", "policy", "runs/a", "runs/b"]
    assert sorted(found.skipped) == [(name, "made by mem1, not a document") for name in ours]
    (tmp_path / "rail" / "train").mkdir(parents=True)
    for place in ("rail/train/resolved.json", "rail/resolved.json"):
        (tmp_path / place).write_text('{"trains": 3}')
    (tmp_path / "rail" / "times.md").write_text("# Times\n\nThe train leaves Oslo at nine.\n")
    assert {passage.id for passage in read_documents(tmp_path).passages} == {"a.md#1", "rail/times.md#1"}
    (tmp_path / "odd").mkdir()
    os.mkfifo(tmp_path / "odd" / "manifest.json")
    (tmp_path / "odd" / "statistics.json").symlink_to("/dev/zero")
    assert {passage.id for passage in read_documents(tmp_path).passages} == {"a.md#1", "rail/times.md#1"}
    assert not holds_index(tmp_path / "rail")
    assert not holds_index(tmp_path), "a policy is no index"
    assert read_documents(tmp_path / "cloze").passages, "asked for by its own name"


def test_a_folder_without_a_passage_is_an_error_that_names_the_reasons(tmp_path: Path):
    with pytest.raises(UserError, match="holds no file"):
        read_documents(tmp_path)
    for number in range(7):
        (tmp_path / f"{number}.txt").write_text("")
    with pytest.raises(UserError, match=r"none of the 7 files in .* yields a passage. 0.txt: empty; .*; and 2 more"):
        read_documents(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_files_without_permission_are_named(tmp_path: Path):
    (tmp_path / "good.txt").write_text("Good.")
    (tmp_path / "closed.txt").write_text("Closed.")
    (tmp_path / "closed.txt").chmod(0)
    assert dict(read_documents(tmp_path).skipped) == {"closed.txt": "Permission denied"}


@pytest.mark.parametrize(
    ("text", "words", "passages"),
    [
        ("One two. Three four five. Six.", 4, ["One two.", "Three four five. Six."]),
        ("One two. Three four five. Six.", 6, ["One two. Three four five. Six."]),
        ("a b c d e f g h i", 4, ["a b c d", "e f g h", "i"]),
        ("Short. a b c d e f g", 4, ["Short. a b c", "d e f g"]),
        ("One. Two three four five six. Seven.", 4, ["One.", "Two three four five", "six. Seven."]),
        ("Use e.g. this one. It is fine.", 5, ["Use e.g. this one.", "It is fine."]),
        ('He said "Go away!" Then (see there.) Gone?', 4, ['He said "Go away!"', "Then (see there.) Gone?"]),
        ("A heading\n\nand its text goes on", 5, ["A heading", "and its text goes on"]),
        ("Lines that\nwrap are\none sentence.  Another.", 7, ["Lines that wrap are one sentence. Another."]),
        ("It costs 3.50 in v1.2.Next one here", 9, ["It costs 3.50 in v1.2.Next one here"]),
        ("\u6771\u4eac\u306f\u9996\u90fd\u3067\u3059\u3002\u5927\u962a\u3082\u5927\u304d\u3044\u3002 Yes.", 8,
         ["\u6771\u4eac\u306f\u9996\u90fd\u3067\u3059\u3002", "\u5927\u962a\u3082\u5927\u304d\u3044\u3002 Yes."]),
        ("กรุงเทพมหานครเป็นเมืองหลวง", 3, ["กรุงเทพมหานคร", "เป็นเมืองหลวง"]),
        ("", 4, []),
        (" \n\t ", 4, []),
    ],
)  # fmt: skip
def test_examples(text: str, words: int, passages: list[str]):
    assert cut_text(text, words=words) == passages


TEXTS = st.text(st.sampled_from("ab Z.!?\u3002\u6771\n\t\"')(1"), max_size=200) | st.text(max_size=60)


@given(TEXTS, st.integers(1, 12))
@example("." * 500, 1)
def test_nothing_is_lost_and_no_passage_is_too_long(text: str, words: int):
    passages = cut_text(text, words=words)
    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(0 < len(passage.split()) <= words for passage in passages)


@given(st.lists(st.integers(1, 10), min_size=1, max_size=30))
def test_sentences_that_fit_are_never_cut_and_two_passages_could_not_have_been_one(lengths: list[int]):
    text = " ".join(" ".join(["Word"] * length) + "." for length in lengths)
    passages = cut_text(text, words=10)
    assert all(passage.endswith(".") for passage in passages)
    firsts = [len(passage.split(".")[0].split()) for passage in passages]
    assert all(len(a.split()) + first > 10 for a, first in zip(passages, firsts[1:], strict=False))


def test_text_without_spaces_is_cut_too():
    assert max(map(len, cut_text("x" * 100_000, words=100))) == 100 * 200


needs_readers = pytest.mark.skipif(
    find_spec("pypdf") is None or find_spec("trafilatura") is None, reason="needs mem1-agents[documents]"
)


def packed_pdf(stream: bytes) -> bytes:
    """A page whose content is this stream, compressed."""
    packed = zlib.compress(stream, 9)
    plain = pdf("PLACE")
    before, _, rest = plain.partition(b"<< /Length ")
    _, _, after = rest.partition(b"endstream")
    head = b"<< /Filter /FlateDecode /Length %d >>\nstream\n" % len(packed)
    return before + head + packed + b"\nendstream" + after


SLOW_PDF = packed_pdf(b"BT /F1 12 Tf " + b"(a) Tj T* " * 1_000_000 + b"ET")
SLOW_PAGE = "<html><body>" + "<div><p>word <b>word</b> word</p>" * 240_000
GOOD = pdf("The mill was built in 1823.")


@needs_readers
def test_a_pdf_and_a_page_that_take_too_long_are_given_up_and_the_next_is_read(monkeypatch: pytest.MonkeyPatch):
    start = time.monotonic()
    monkeypatch.setattr("mem1.retrieval.web.pages.SECONDS", 0.02)  # a fast machine reads the page in 0.2 seconds
    with pytest.raises(Unreadable, match=r"not read within 0\.3 seconds"):
        extract("pdf", SLOW_PDF, seconds=0.3)
    assert extract("pdf", GOOD, seconds=60) == ("", "The mill was built in 1823.\n")
    with pytest.raises(FetchFailed, match=r"not read within 0\.02 seconds") as failed:
        read_page(Fetched(address="", content_type="text/html", text=SLOW_PAGE))
    assert failed.value.why is Why.UNREADABLE, "a page that kills its reader is a page without text"
    assert time.monotonic() - start < 60
    assert len(SLOW_PDF) < 100_000


@needs_readers
def test_a_small_pdf_with_a_huge_stream_is_refused_and_the_rest_of_the_folder_is_read(tmp_path: Path):
    (tmp_path / "bomb.pdf").write_bytes(packed_pdf(b" " * 80_000_000))
    (tmp_path / "good.pdf").write_bytes(GOOD)
    (tmp_path / "good.txt").write_text("Read me.")
    found = read_documents(tmp_path)
    assert [p.id for p in found.passages] == ["good.pdf#1", "good.txt#1"]
    ((name, reason),) = found.skipped
    assert name == "bomb.pdf" and ("damaged" in reason or "too much memory" in reason or "no text" in reason)


@needs_readers
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not bound the memory of a process")
def test_a_process_that_needs_too_much_memory_is_replaced(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mem1.retrieval.extraction.MEMORY_BYTES", 600 << 20)
    monkeypatch.setattr("mem1.retrieval.extraction._idle", [])
    try:
        _, text = extract("page", b"<html><body><p>" + b"a" * 100_000_000, seconds=60)
    except Unreadable as error:
        assert "memory" in str(error)
    else:
        assert text == "", "lxml itself gives up where there is no memory"
    monkeypatch.setattr("mem1.retrieval.extraction.MEMORY_BYTES", 2 << 30)
    assert extract("pdf", GOOD, seconds=60)[1] == "The mill was built in 1823.\n"


@needs_readers
def test_a_script_called_like_a_module_is_not_run_by_its_own_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("html", "pypdf"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "html.py"), raising=False)
    monkeypatch.setattr("mem1.retrieval.extraction._idle", [])
    assert extract("html", b"<p>Read <b>me</b>.", seconds=60) == ("", "Read me.")
    assert not os.path.exists(tmp_path / "run")


def test_a_file_of_six_gigabytes_is_skipped_at_once_and_named(tmp_path: Path):
    for ending in ("txt", "md", "html", "pdf"):
        with open(tmp_path / f"large.{ending}", "wb") as file:
            file.truncate(6 << 30)  # without a block on the disk
    (tmp_path / "good.txt").write_text("Read me.")
    start = time.process_time()
    found = read_documents(tmp_path)
    assert [p.id for p in found.passages] == ["good.txt#1"]
    assert {reason for _, reason in found.skipped} == {"larger than 100 MB; split it"} and len(found.skipped) == 4
    assert time.process_time() - start < 2


@needs_readers
def test_modules_in_the_folder_of_the_documents_are_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("pypdf", "json", "trafilatura", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("mem1.retrieval.extraction._idle", [])
    assert extract("pdf", GOOD, seconds=60)[1] == "The mill was built in 1823.\n"
    assert not os.path.exists(tmp_path / "run")
