"""Documents, subtitles and archives are read as text, within bounds."""

import gzip
import json
import subprocess
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from penwright.data import blocks, documents
from penwright.data.detection import detect_task
from penwright.data.files import examine
from penwright.data.readers import archives, formats, pdf
from penwright.data.text import open_text
from penwright.errors import PenwrightError

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
OFFICE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
TEXT = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
PACKAGE = (
    '<package xmlns="http://www.idpf.org/2007/opf"><manifest>'
    '<item id="b" href="second%20part.xhtml"/><item id="a" href="first.xhtml"/>'
    '<item id="n" href="nav.xhtml" properties="nav"/></manifest>'
    '<spine><itemref idref="n"/><itemref idref="a"/><itemref idref="b"/></spine></package>'
)


def packed(parts: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return stream.getvalue()


def word(body: str, **parts: str) -> bytes:
    document = f'<w:document xmlns:w="{WORD}"><w:body>{body}</w:body></w:document>'
    return packed({"word/document.xml": document, **{f"word/{name}.xml": part for name, part in parts.items()}})


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def open_document(body: str) -> bytes:
    names = f'xmlns:office="{OFFICE}" xmlns:text="{TEXT}"'
    content = f"<office:document-content {names}><office:body><office:text>{body}</office:text></office:body>"
    mime = "application/vnd.oasis.opendocument.text"
    return packed({"mimetype": mime, "content.xml": f"{content}</office:document-content>"})


def book(**pages: str) -> bytes:
    parts = {
        f"OEBPS/{name.replace('_', ' ')}.xhtml": f"<html><body>{page}</body></html>" for name, page in pages.items()
    }
    return packed(
        {"mimetype": "application/epub+zip", "META-INF/container.xml": CONTAINER, "OEBPS/book.opf": PACKAGE, **parts}
    )


def portable(pages: list[list[str]], encrypted: bool = False) -> bytes:
    """A PDF document with these lines on each page."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, lines in enumerate(pages):
        drawn = "BT /F1 10 Tf 12 TL 50 780 Td " + " ".join(f"({line}) Tj T*" for line in lines) + " ET"
        resources = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R {resources} >>"
        )
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    content, offsets = "%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        offsets.append(len(content))
        content += f"{number} 0 obj\n{each}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{len(content)}\n%%EOF"
    return f"{content}xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()


def lines(folder: Path, name: str, content: bytes | str) -> list[str]:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(examine(path).lines())


def paragraph(text: str) -> str:
    return f"<w:p>{run(text)}</w:p>"


def test_a_word_document_gives_its_paragraphs_and_notes_without_what_was_deleted(tmp_path: Path) -> None:
    notes = f'<w:footnotes xmlns:w="{WORD}"><w:footnote>{paragraph("A note.")}</w:footnote></w:footnotes>'
    body = (
        '<w:p><w:pPr><w:pStyle w:val="TOC1"/></w:pPr><w:r><w:t>One 3</w:t></w:r></w:p>'
        + paragraph("One")
        + f"<w:p>{run('I ')}<w:ins>{run('will ')}</w:ins><w:del><w:r><w:delText>not </w:delText></w:r></w:del>"
        + f"{run('come')}<w:r><w:br/></w:r>{run('home.')}</w:p>"
        + f"<w:tbl><w:tr><w:tc>{paragraph('cell')}</w:tc></w:tr></w:tbl>"
    )
    found = lines(tmp_path, "a.docx", word(body, footnotes=notes))
    assert found == ["One", "I will come", "home.", "cell", "A note."]


def test_an_open_document_gives_its_paragraphs_and_puts_notes_after_them(tmp_path: Path) -> None:
    note = "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Why.</text:p></text:note-body>"
    left = f"He<text:s text:c='2'/>left{note}</text:note> <text:span>soon</text:span>."
    body = f"<text:h>One</text:h><text:p>{left}</text:p>"
    removed = "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
    assert lines(tmp_path, "a.odt", open_document(removed + body)) == ["One", "He  left soon.", "Why."]


def test_a_book_is_read_in_the_order_of_its_spine(tmp_path: Path) -> None:
    pages = {"second_part": "<h1>Two</h1>", "first": "<h1>One</h1><p>caf&eacute;&nbsp;<b>x</b></p>", "nav": "Contents"}
    assert lines(tmp_path, "a.epub", book(**pages)) == ["One", "café x", "Two"]


def test_a_page_gives_its_paragraphs_without_programs_and_menus(tmp_path: Path) -> None:
    page = (
        "<!doctype html><title>t</title><style>p {}</style><nav>menu</nav><script>if (a < b) {}</script>"
        "<div>One <i>two</i>\nthree<p>four<br>five</div><ul><li>six<li>seven</ul><pre>a\n  b</pre>"
    )
    assert lines(tmp_path, "a.html", page) == ["One two three", "four", "five", "six", "seven", "a", "  b"]


@pytest.mark.parametrize(
    "page",
    [
        '<!doctype html><meta charset="cp1250"><p>Żółć'.encode("cp1250"),
        '<?xml version="1.0" encoding="iso-8859-2"?><html><p>Żółć</p></html>'.encode("iso-8859-2"),
        '<!doctype html><meta charset="latin-1"><p>Żółć'.encode(),  # which is not true
        "<!doctype html><p>Żółć".encode("utf-16"),
    ],
)
def test_a_page_is_decoded_as_it_says_unless_that_cannot_be(tmp_path: Path, page: bytes) -> None:
    assert lines(tmp_path, "a.html", page) == ["Żółć"]


def test_deeply_nested_elements_do_no_harm(tmp_path: Path) -> None:
    page = "<!doctype html>" + "<div>" * 50_000 + "deep"
    assert lines(tmp_path, "a.html", page) == ["deep"]


@pytest.mark.parametrize("name", ["a.rtf", "a.txt", "a"])
def test_rich_text_is_known_by_its_beginning(tmp_path: Path, name: str) -> None:
    assert lines(tmp_path, name, r"{\rtf1\ansi{\fonttbl{\f0 Times;}}\f0 One caf\'e9.\par Two.}") == [
        "One café.",
        "Two.",
    ]


def test_a_pdf_gives_whole_paragraphs_without_heads_and_page_numbers(tmp_path: Path) -> None:
    body = [
        "This is the first line of a paragraph that was hyphen-",
        "ated at its end, as printers are wont to do now",
        "and then.",
    ]
    pages = [["A Running Head", *body, str(number)] for number in range(1, 5)]
    whole = (
        "This is the first line of a paragraph that was hyphenated at its end, as printers are wont to do now and then."
    )
    assert lines(tmp_path, "a.pdf", portable(pages)) == [whole] * 4
    assert lines(tmp_path, "b.pdf.gz", gzip.compress(portable(pages))) == [whole] * 4


def test_a_pdf_of_pictures_asks_for_text_recognition(tmp_path: Path) -> None:
    with pytest.raises(PenwrightError, match=r"a\.pdf .*no text.*OCR"):
        lines(tmp_path, "a.pdf", portable([[]]))


def test_a_pdf_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(pdf.pdf_worker, "__file__", str(tmp_path / "slow.py"))
    monkeypatch.setattr(pdf, "MOST_SECONDS", 1)
    with pytest.raises(PenwrightError, match=r"a\.pdf took longer than 1 s.*\.txt"):
        lines(tmp_path, "a.pdf", portable([["x"]]))


def test_the_program_that_reads_a_pdf_learns_nothing_of_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "do not tell")
    (tmp_path / "spy.py").write_text("import json, os; print(json.dumps(os.environ.get('SECRET', 'nothing')))")
    monkeypatch.setattr(pdf.pdf_worker, "__file__", str(tmp_path / "spy.py"))
    assert lines(tmp_path, "a.pdf", portable([["x"]])) == ["nothing"]


@pytest.mark.parametrize("name", ["a.docx", "a.odt", "a.epub", "a.pdf", "a.xlsx"])
def test_a_document_that_was_cut_off_is_named(tmp_path: Path, name: str) -> None:
    whole = {"a.pdf": portable([["x"]] * 9)}.get(name, word(paragraph("x") * 99))
    with pytest.raises(PenwrightError, match=rf"{name} is damaged"):
        lines(tmp_path, name, whole[: len(whole) // 2])


def test_what_unpacks_to_far_more_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGE", 1 << 16)
    with pytest.raises(PenwrightError, match=r"a\.docx .*zip bomb"):
        lines(tmp_path, "a.docx", word(paragraph(" " * 10_000_000)))


def test_entities_are_not_expanded(tmp_path: Path) -> None:
    document = f'<!DOCTYPE a [<!ENTITY b "ha">]><w:document xmlns:w="{WORD}">{paragraph("&b;")}</w:document>'
    with pytest.raises(PenwrightError, match="DTD"):
        lines(tmp_path, "a.docx", packed({"word/document.xml": document}))


def test_a_missing_library_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None)
    with pytest.raises(PenwrightError, match=r"pip install 'penwright\[documents\]'"):
        lines(tmp_path, "a.rtf", r"{\rtf1 x}")


TIMES = "00:00:01,000 --> 00:00:02,000", "00:00:03,000 --> 00:00:04,000"
WEB = (
    "WEBVTT\n\nNOTE no\n\nintro\n00:01.000 --> 00:02.000 align:left\n<v Ann>One two.\n\n00:03.000 --> 00:04.000\nThree."
)
SPOKEN = "Dialogue: 0,0:0:1,0:0:2,D,,0,0,0,,One\\Ntwo.\nDialogue: 0,0:0:3,0:0:4,D,,0,0,0,,{\\i1}Three."


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.srt", f"1\n{TIMES[0]}\n<i>One</i>\ntwo.\n\n2\n{TIMES[1]}\n{{\\an8}}Three.\n"),
        ("a.txt", f"1\r\n{TIMES[0]}\r\nOne\r\ntwo.\r\n\r\n2\r\n{TIMES[1]}\r\nThree."),
        ("a.vtt", WEB),
        ("a.ass", f"[Script Info]\n\n[Events]\n{SPOKEN}"),
    ],
)
def test_subtitles_give_what_is_said(tmp_path: Path, name: str, content: str) -> None:
    assert lines(tmp_path, name, content) == ["One two.", "Three."]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "git lfs pull"),
        ("a.txt", b"<!DOCTYPE html><html><body>404</body></html>", r"web page.*\.html"),
        ("a.tar.gz", gzip.compress(bytes(257) + b"ustar" + bytes(250), mtime=0), "unpack it"),
        ("a.txt", b"7z\xbc\xaf\x27\x1c", "7z archive; unpack it"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), r"password.*\.docx"),
        ("a.xml", b'<?xml version="1.0"?><note>text</note>', "XML"),
        ("a.pptx", packed({"ppt/presentation.xml": "<p/>"}), "presentation"),
        ("noise", packed({"a.txt": "x"}), r"ends in \.zip"),
        ("a.tmx", b"<tmx><body></body></tmx>", "translation memory"),
    ],
)
def test_what_is_not_read_is_named_with_what_to_do(tmp_path: Path, name: str, content: bytes, told: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PenwrightError, match=told) as error:
        open_text([tmp_path / name])
    assert str(tmp_path / name) in str(error.value)


def test_prose_about_markup_is_prose(tmp_path: Path) -> None:
    for text in (
        '# Notes\n\nUse <b> or\nmsgid "x"\nmsgstr "y"\n',
        "<p align=center>A README</p>\n",
        "WEBVTTs are files\n",
    ):
        assert "\n".join(lines(tmp_path, "a.md", text)) == text.rstrip("\n")


def test_a_folder_reads_its_documents_and_says_what_it_left(tmp_path: Path) -> None:
    (tmp_path / "novel.docx").write_bytes(word(paragraph("Once upon a time. " * 20)))
    (tmp_path / "novel.rtf").write_text(r"{\rtf1 Once upon a time.}")
    (tmp_path / "torn.epub").write_bytes(book(first="x")[:100])
    (tmp_path / "more.txt").write_text("There was a text. " * 20)
    (tmp_path / "cover.png").write_bytes(b"\x89PNG")
    corpus = open_text([tmp_path])
    assert [Path(file.path).name for file in corpus.files] == ["more.txt", "novel.docx"]
    notes = "\n".join(corpus.report.notes)
    for told in ("1 .docx, 1 .txt", "torn.epub is damaged", "novel.rtf", "1 .png"):
        assert told in notes


def test_the_members_of_an_archive_are_files(tmp_path: Path) -> None:
    parts = {"b/2.txt": "Two. " * 50, "1.txt": "One. " * 50, "novel.docx": word(paragraph("Three. " * 50))}
    hidden = {"__MACOSX/x.txt": "no", "../up.txt": "no", ".x.txt": "no"}
    (tmp_path / "texts.zip").write_bytes(packed({**parts, **hidden}))
    corpus = open_text([tmp_path / "texts.zip"])
    names = [Path(file.path).relative_to(tmp_path).as_posix() for file in corpus.files]
    assert names == ["texts.zip/1.txt", "texts.zip/b/2.txt", "texts.zip/novel.docx"]
    assert list(examine(tmp_path / "texts.zip" / "b" / "2.txt").lines()) == ["Two. " * 50]
    assert not (tmp_path / "up.txt").exists() and not (tmp_path.parent / "up.txt").exists()
    with pytest.raises(PenwrightError, match=r"none\.txt"):
        examine(tmp_path / "texts.zip" / "none.txt")


def test_a_changed_document_is_extracted_again(tmp_path: Path) -> None:
    assert lines(tmp_path, "a.docx", word(paragraph("One"))) == ["One"]
    assert lines(tmp_path, "a.docx", word(paragraph("Another"))) == ["Another"]


def test_a_pipe_is_read_once_and_its_text_as_often_as_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Fünf große Bären.\n" * 20
    for encoding in ("utf-8", "utf-16", "utf-16-le", "latin-1"):
        pipe = tmp_path / encoding
        subprocess.run(["mkfifo", str(pipe)], check=True)
        (tmp_path / "content").write_bytes(text.encode(encoding))
        with subprocess.Popen(f"cat '{tmp_path}/content' > '{pipe}'", shell=True):
            file = examine(pipe)
        assert "".join(file.blocks()) == "".join(file.blocks()) == text
        assert examine(pipe) == file
    monkeypatch.setattr(blocks, "MOST_COPIED", 10)
    subprocess.run(["mkfifo", str(tmp_path / "long")], check=True)
    with (
        subprocess.Popen(f"cat '{tmp_path}/content' > '{tmp_path}/long'", shell=True),
        pytest.raises(PenwrightError, match="save it as a file"),
    ):
        examine(tmp_path / "long")


def test_a_pipe_that_has_ended_says_so() -> None:
    with pytest.raises(PenwrightError, match="has ended and cannot be read again"):
        examine("/dev/fd/917")


@pytest.mark.parametrize("form", ["folder", "pattern"])
def test_the_parts_of_a_large_table_are_read_by_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(documents, "MANY_ROWS", 1)
    for part in range(3):
        lines = [json.dumps({"text": f"document {part} {n} " * 9, "url": f"u{n}"}) for n in range(20)]
        (tmp_path / "data" / f"part-{part}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / "data" / f"part-{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    path = str(tmp_path / "data") if form == "folder" else str(tmp_path / "data" / "*.jsonl")
    assert detect_task([path])[0] == "generate"
    corpus = open_text([path])
    assert corpus.n_training + corpus.n_held_out == 60
    assert {str(file.path) for file in corpus.files} == {str(tmp_path / "data" / f"part-{n}.jsonl") for n in range(3)}
    assert open_text([path]).fingerprint == corpus.fingerprint  # from the cache


def test_a_folder_with_text_and_tables_reads_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text " * 100)
    (tmp_path / "b.jsonl").write_text('{"text": "row"}')
    assert [file.path for file in open_text([str(tmp_path)]).files] == [str(tmp_path / "a.txt")]
