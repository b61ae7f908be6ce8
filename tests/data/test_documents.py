"""Documents, subtitles and archives, read as text within size limits."""

import gzip
import json
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest

from penwright.data import blocks, documents
from penwright.data.detection import detect_task
from penwright.data.files import examine
from penwright.data.readers import archives, markup, pdf
from penwright.data.text import open_text
from penwright.errors import PenwrightError

WORD_NAMESPACE = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
ODF_OFFICE_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:office:1.0"
ODF_TEXT_NAMESPACE = "urn:oasis:names:tc:opendocument:xmlns:text:1.0"
CONTAINER = '<container><rootfiles><rootfile full-path="OEBPS/book.opf"/></rootfiles></container>'
PACKAGE = (
    '<package xmlns="http://www.idpf.org/2007/opf"><manifest>'
    '<item id="b" href="second%20part.xhtml"/><item id="a" href="first.xhtml"/>'
    '<item id="n" href="nav.xhtml" properties="nav"/></manifest>'
    '<spine><itemref idref="n"/><itemref idref="a"/><itemref idref="b"/></spine></package>'
)


def zip_bytes(parts: dict[str, str | bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)
    return stream.getvalue()


def docx(body: str, **parts: str) -> bytes:
    document = f'<w:document xmlns:w="{WORD_NAMESPACE}"><w:body>{body}</w:body></w:document>'
    return zip_bytes({"word/document.xml": document, **{f"word/{name}.xml": part for name, part in parts.items()}})


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def odt(body: str) -> bytes:
    names = f'xmlns:office="{ODF_OFFICE_NAMESPACE}" xmlns:text="{ODF_TEXT_NAMESPACE}"'
    content = f"<office:document-content {names}><office:body><office:text>{body}</office:text></office:body>"
    mime = "application/vnd.oasis.opendocument.text"
    return zip_bytes({"mimetype": mime, "content.xml": f"{content}</office:document-content>"})


def epub(package: str = PACKAGE, **pages: str) -> bytes:
    parts = {
        f"OEBPS/{name.replace('_', ' ')}.xhtml": f"<html><body>{page}</body></html>" for name, page in pages.items()
    }
    return zip_bytes(
        {"mimetype": "application/epub+zip", "META-INF/container.xml": CONTAINER, "OEBPS/book.opf": package, **parts}
    )


def pdf_bytes(pages: list[list[str]]) -> bytes:
    """Return a PDF document with the given lines on each page."""
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


def read_lines(folder: Path, name: str, content: bytes | str) -> list[str]:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return list(examine(path).lines())


def paragraph(text: str) -> str:
    return f"<w:p>{run(text)}</w:p>"


def test_docx_yields_paragraphs_and_footnotes_without_deleted_text(tmp_path: Path) -> None:
    notes = f'<w:footnotes xmlns:w="{WORD_NAMESPACE}"><w:footnote>{paragraph("A note.")}</w:footnote></w:footnotes>'
    body = (
        '<w:p><w:pPr><w:pStyle w:val="TOC1"/></w:pPr><w:r><w:t>One 3</w:t></w:r></w:p>'
        + paragraph("One")
        + f"<w:p>{run('I ')}<w:ins>{run('will ')}</w:ins><w:del><w:r><w:delText>not </w:delText></w:r></w:del>"
        + f"{run('come')}<w:r><w:br/></w:r>{run('home.')}</w:p>"
        + f"<w:tbl><w:tr><w:tc>{paragraph('cell')}</w:tc></w:tr></w:tbl>"
    )
    found = read_lines(tmp_path, "a.docx", docx(body, footnotes=notes))
    assert found == ["One", "I will come", "home.", "cell", "A note."]


def test_docx_in_strict_open_xml_is_read(tmp_path: Path) -> None:
    document = f'<w:document xmlns:w="{archives.STRICT[1:-1]}">{paragraph("One")}{paragraph("Two")}</w:document>'
    assert read_lines(tmp_path, "a.docx", zip_bytes({"word/document.xml": document})) == ["One", "Two"]


@pytest.mark.parametrize("namespace", [WORD_NAMESPACE, archives.STRICT[1:-1]])
def test_contents_of_docx_are_omitted_in_any_language(tmp_path: Path, namespace: str) -> None:
    body = "".join(
        f'<w:p><w:pPr><w:pStyle w:val="{style}"/></w:pPr>{run(style)}</w:p>'
        for style in ("Verzeichnis1", "berschrift1", "TOC2")
    )
    names = {"Verzeichnis1": "toc 1", "berschrift1": "heading 1"}
    styles = "".join(f'<w:style w:styleId="{key}"><w:name w:val="{name}"/></w:style>' for key, name in names.items())
    parts = {
        "word/document.xml": f'<w:document xmlns:w="{namespace}">{body}</w:document>',
        "word/styles.xml": f'<w:styles xmlns:w="{namespace}">{styles}</w:styles>',
    }
    assert read_lines(tmp_path, "a.docx", zip_bytes(parts)) == ["berschrift1"]


def test_docx_with_damaged_styles_is_read(tmp_path: Path) -> None:
    assert read_lines(tmp_path, "a.docx", docx(paragraph("One"), styles="<w:styles")) == ["One"]


def test_odt_yields_paragraphs_followed_by_their_notes(tmp_path: Path) -> None:
    note = "<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Why.</text:p></text:note-body>"
    left = f"He<text:s text:c='2'/>left{note}</text:note> <text:span>soon</text:span>."
    body = f"<text:h>One</text:h><text:p>{left}</text:p>"
    removed = "<text:tracked-changes><text:p>gone</text:p></text:tracked-changes>"
    assert read_lines(tmp_path, "a.odt", odt(removed + body)) == ["One", "He  left soon.", "Why."]


@pytest.mark.parametrize("name", ["first", "First"])
@pytest.mark.parametrize("before", ["", "\n"])
def test_epub_is_read_in_spine_order(tmp_path: Path, name: str, before: str) -> None:
    package = f'{before}<?xml version="1.0"?>{PACKAGE}'
    pages = {"second_part": "<h1>Two</h1>", name: "<h1>One</h1><p>caf&eacute;&nbsp;<b>x</b></p>", "nav": "Contents"}
    assert read_lines(tmp_path, "a.epub", epub(package, **pages)) == ["One", "café x", "Two"]


def test_html_yields_paragraphs_without_scripts_and_menus(tmp_path: Path) -> None:
    page = (
        "<!doctype html><title>t</title><style>p {}</style><nav>menu</nav><script>if (a < b) {}</script>"
        "<div>One <i>two</i>\nthree<p>four<br>five</div><ul><li>six<li>seven</ul><pre>a\n  b</pre>"
    )
    assert read_lines(tmp_path, "a.html", page) == ["One two three", "four", "five", "six", "seven", "a", "  b"]


def test_html_in_a_form_is_read_without_its_controls(tmp_path: Path) -> None:
    page = "<html><form><p>One <select><option>x</select>two<div><button>Go</button>Three</div></form>four</html>"
    assert read_lines(tmp_path, "a.html", page) == ["One two", "Three", "four"]


def test_html_after_an_element_without_end_tag_is_read(tmp_path: Path) -> None:
    page = "<html><div>One<nav><ul><li>menu<li>more</ul><p>x</p></div><td><button>Go</td><p>Two</html>"
    assert read_lines(tmp_path, "a.html", page) == ["One", "Two"]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("<select><option>A<option>B", ""),
        ("<![other[ x ]>", ""),
        ("<![ 1 ]>", ""),
        ("<!--", "<!--"),
        ("<a b='", "<a b='"),
    ],
)
def test_html_after_damaged_markup_is_read(tmp_path: Path, damage: str, text: str) -> None:
    page = f"<html><p>One{damage}<p>Two</p><p>Three &amp; 3</html>"
    first = ["One"] if not text else [f"One{text}<p>Two"]
    assert read_lines(tmp_path, "a.html", page) == [*first, *["Two"] * (not text), "Three & 3"]


@pytest.mark.parametrize("part", ["<a ", "<!--a ", "<![CDATA[ ", "</a ", "<a '"])
def test_html_after_much_unclosed_markup_is_read_without_it(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(markup, "FEWEST_REPAIRS", 2)
    monkeypatch.setattr(markup, "MOST_REREAD", 0)  # each repair reads the rest of the page again
    lines = markup.html_lines(f"<p>One{part * 50}Two &amp; 2")
    assert lines[0].startswith("One")
    assert "".join(lines).count("<") == 2


def test_cdata_sections_are_read(tmp_path: Path) -> None:
    page = "<html><body><p>one</p><p><![CDATA[two & <three>]]></p><p>four</p></body></html>"
    assert read_lines(tmp_path, "a.xhtml", page) == ["one", "two & <three>", "four"]


def test_line_breaks_in_chinese_text_add_no_spaces(tmp_path: Path) -> None:
    assert read_lines(tmp_path, "a.html", "<html><p>这是一个\n句子, 又\nword.</html>") == ["这是一个句子, 又 word."]
    assert read_lines(tmp_path, "a.srt", f"1\n{TIMES[0]}\n<i>这是</i>\n第二行\n") == ["这是第二行"]
    assert list(pdf.paragraphs(["这是一个很长的句子，没有结束因", "此继续到下一行才结束，很长的句", "子。"])) == [
        "这是一个很长的句子，没有结束因此继续到下一行才结束，很长的句子。"
    ]


@pytest.mark.parametrize(
    "page",
    [
        '<!doctype html><meta charset="cp1250"><p>Żółć'.encode("cp1250"),
        '<?xml version="1.0" encoding="iso-8859-2"?><html><p>Żółć</p></html>'.encode("iso-8859-2"),
        '<!doctype html><meta charset="latin-1"><p>Żółć'.encode(),  # a wrong declaration
        "<!doctype html><p>Żółć".encode("utf-16"),
    ],
)
def test_html_is_decoded_as_declared_unless_that_is_invalid(tmp_path: Path, page: bytes) -> None:
    assert read_lines(tmp_path, "a.html", page) == ["Żółć"]


@pytest.mark.parametrize(
    ("declared", "encoding", "text"),
    [
        ("iso-8859-1", "cp1252", "He said, “It’s late” – and left."),
        ("gb2312", "gbk", "朱镕基说：“喆”字很少见，瞭解一下。"),
        ("shift_jis", "cp932", "①髙﨑さん"),
        ("ks_c_5601-1987", "cp949", "똠방각하"),
        ("iso-2022-jp", "iso2022_jp", "吾輩は猫である。"),
    ],
)
def test_declared_encoding_is_read_as_in_browsers(tmp_path: Path, declared: str, encoding: str, text: str) -> None:
    page = f'<!doctype html><meta charset="{declared}"><p>{text}</p>'.encode(encoding)
    assert read_lines(tmp_path, "a.html", page) == [text]
    if encoding != "iso2022_jp":
        assert text in markup.decode_markup(page)


def test_encoding_that_a_text_mentions_is_not_its_own(tmp_path: Path) -> None:
    lines = ['Write <meta charset="iso-8859-1">.', *["plain words"] * 9000, "“Schöne Grüße” – naïve"]
    assert read_lines(tmp_path, "a.txt", "\n".join(lines)) == lines
    page = "".join(f"<p>{line}</p>" for line in ["<meta charset=latin-1>", *lines[1:]])
    assert read_lines(tmp_path, "b.html", f"<html>{page}</html>") == lines[1:]


def test_deeply_nested_html_is_read(tmp_path: Path) -> None:
    page = "<!doctype html>" + "<div>" * 50_000 + "deep"
    assert read_lines(tmp_path, "a.html", page) == ["deep"]


@pytest.mark.parametrize("name", ["a.rtf", "a.txt", "a"])
def test_rtf_is_recognized_by_its_first_bytes(tmp_path: Path, name: str) -> None:
    assert read_lines(tmp_path, name, r"{\rtf1\ansi{\fonttbl{\f0 Times;}}\f0 One caf\'e9.\par Two.}") == [
        "One café.",
        "Two.",
    ]


def test_characters_beyond_the_basic_plane_are_read_from_rtf(tmp_path: Path) -> None:
    text = r"{\rtf1\ansi\uc1 Hello \u-10179?\u-8704? and half \u-10179?.}"
    assert read_lines(tmp_path, "a.rtf", text) == ["Hello \U0001f600 and half \ufffd."]


def test_pdf_yields_joined_paragraphs_without_headers_and_page_numbers(tmp_path: Path) -> None:
    body = [
        "This is the first line of a paragraph that was hyphen-",
        "ated at its end, as printers are wont to do now",
        "and then.",
    ]
    pages = [["A Running Head", *body, str(number)] for number in range(1, 5)]
    whole = (
        "This is the first line of a paragraph that was hyphenated at its end, as printers are wont to do now and then."
    )
    assert read_lines(tmp_path, "a.pdf", pdf_bytes(pages)) == [whole] * 4
    assert read_lines(tmp_path, "b.pdf.gz", gzip.compress(pdf_bytes(pages))) == [whole] * 4


def test_pdf_without_text_suggests_ocr(tmp_path: Path) -> None:
    with pytest.raises(PenwrightError, match=r"a\.pdf .*no text.*OCR"):
        read_lines(tmp_path, "a.pdf", pdf_bytes([[]]))


def test_pdf_conversion_is_stopped_after_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(pdf, "WORKER", str(tmp_path / "slow.py"))
    monkeypatch.setattr(pdf, "MOST_SECONDS", 1)
    with pytest.raises(PenwrightError, match=r"a\.pdf took longer than 1 s.*\.txt"):
        read_lines(tmp_path, "a.pdf", pdf_bytes([["x"]]))


def test_pdf_worker_does_not_inherit_environment_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "do not tell")
    (tmp_path / "spy.py").write_text("import json, os; print(json.dumps(os.environ.get('SECRET', 'nothing')))")
    monkeypatch.setattr(pdf, "WORKER", str(tmp_path / "spy.py"))
    assert read_lines(tmp_path, "a.pdf", pdf_bytes([["x"]])) == ["nothing"]


@pytest.mark.parametrize("name", ["a.docx", "a.odt", "a.epub", "a.pdf", "a.xlsx"])
def test_truncated_document_is_refused_by_name(tmp_path: Path, name: str) -> None:
    whole = {"a.pdf": pdf_bytes([["x"]] * 9)}.get(name, docx(paragraph("x") * 99))
    with pytest.raises(PenwrightError, match=rf"{name} is damaged"):
        read_lines(tmp_path, name, whole[: len(whole) // 2])


def test_zip_bomb_is_refused_before_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "LARGE", 1 << 16)
    with pytest.raises(PenwrightError, match=r"a\.docx .*zip bomb"):
        read_lines(tmp_path, "a.docx", docx(paragraph(" " * 10_000_000)))


def test_documents_with_a_dtd_are_refused(tmp_path: Path) -> None:
    document = f'<!DOCTYPE a [<!ENTITY b "ha">]><w:document xmlns:w="{WORD_NAMESPACE}">{paragraph("&b;")}</w:document>'
    with pytest.raises(PenwrightError, match="DTD"):
        read_lines(tmp_path, "a.docx", zip_bytes({"word/document.xml": document}))


def test_missing_library_error_gives_the_install_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "striprtf.striprtf", None)
    with pytest.raises(PenwrightError, match=r"pip install 'penwright\[documents\]'"):
        read_lines(tmp_path, "a.rtf", r"{\rtf1 x}")


TIMES = "00:00:01,000 --> 00:00:02,000", "00:00:03,000 --> 00:00:04,000"
WEBVTT = (
    "WEBVTT\n\nNOTE no\n\nintro\n00:01.000 --> 00:02.000 align:left\n<v Ann>One two.\n\n00:03.000 --> 00:04.000\nThree."
)
ROLLING = (  # automatic captions, which repeat the line above
    f"WEBVTT\n\n{TIMES[0]}\n \nOne<00:00:01.500><c> two.</c>\n\n{TIMES[0]}\nOne two.\n \n\n"
    f"{TIMES[1]}\nOne two.\nThree.<00:00:03.500><c> </c>\n\n{TIMES[1]}\nThree.\n \n"
)
ASS_DIALOGUE = "Dialogue: 0,0:0:1,0:0:2,D,,0,0,0,,One\\Ntwo.\nDialogue: 0,0:0:3,0:0:4,D,,0,0,0,,{\\i1}Three."


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.srt", f"1\n{TIMES[0]}\n<i>One</i>\ntwo.\n\n2\n{TIMES[1]}\n{{\\an8}}Three.\n"),
        ("a.txt", f"1\r\n{TIMES[0]}\r\nOne\r\ntwo.\r\n\r\n2\r\n{TIMES[1]}\r\nThree."),
        ("a.srt", f"1\n{TIMES[0]}\nOne\n\ntwo.\n\n2\n{TIMES[1]}\n\nThree.\n\n\n"),
        ("a.vtt", WEBVTT),
        ("a.vtt", ROLLING),
        ("a.ass", f"[Script Info]\n\n[Events]\n{ASS_DIALOGUE}"),
    ],
)
def test_subtitles_yield_the_spoken_lines(tmp_path: Path, name: str, content: str) -> None:
    assert read_lines(tmp_path, name, content) == ["One two.", "Three."]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("sgm", '<seg id="1">One <seg id="2">Two</seg>', "Two"),
        ("srt", f"1\n{TIMES[0]}\n<b One\n<i>Two</i>", "<b One Two"),
        ("srt", f"1\n{TIMES[0]}\n{{\\b One\n{{\\b1}}Two", "{\\b One Two"),
        ("srt", f"1\n{'9' * 5000}:{TIMES[0]}\nOne\n\n{TIMES[1]}\nTwo", "Two"),
        ("vtt", f"WEBVTT\n\n{TIMES[0]}\nNo.\n\n{TIMES[1]}\nNo.", "No. No."),
    ],
)
def test_segments_keep_all_but_their_own_markup(kind: str, text: str, expected: str) -> None:
    assert " ".join(line for _, line in markup.segments(kind, text)) == expected


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "git lfs pull"),
        ("a.txt", b"<!DOCTYPE html><html><body>404</body></html>", r"web page.*\.html"),
        ("a.tar.gz", gzip.compress(bytes(257) + b"ustar" + bytes(250), mtime=0), "unpack it"),
        ("a.txt", b"7z\xbc\xaf\x27\x1c", "7z archive; unpack it"),
        ("a.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500), r"password.*\.docx"),
        ("a.xml", b'<?xml version="1.0"?><note>text</note>', "XML"),
        ("a.pptx", zip_bytes({"ppt/presentation.xml": "<p/>"}), "presentation"),
        ("noise", zip_bytes({"a.txt": "x"}), r"ends in \.zip"),
        ("a.pages", zip_bytes({"Index/Document.iwa": "x"}), r"export it as \.docx"),
        ("a.tmx", b"<tmx><body></body></tmx>", "translation memory"),
    ],
)
def test_unsupported_file_is_refused_with_advice(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(PenwrightError, match=expected) as error:
        open_text([tmp_path / name])
    assert str(tmp_path / name) in str(error.value)


def test_prose_that_mentions_markup_stays_unchanged(tmp_path: Path) -> None:
    for text in (
        '# Notes\n\nUse <b> or\nmsgid "x"\nmsgstr "y"\n',
        "<p align=center>A README</p>\n",
        "WEBVTTs are files\n",
    ):
        assert "\n".join(read_lines(tmp_path, "a.md", text)) == text.rstrip("\n")


def test_folder_reads_its_documents_and_notes_skipped_files(tmp_path: Path) -> None:
    (tmp_path / "novel.docx").write_bytes(docx(paragraph("Once upon a time. " * 20)))
    (tmp_path / "novel.rtf").write_text(r"{\rtf1 Once upon a time.}")
    (tmp_path / "torn.epub").write_bytes(epub(first="x")[:100])
    (tmp_path / "more.txt").write_text("There was a text. " * 20)
    (tmp_path / "cover.png").write_bytes(b"\x89PNG")
    corpus = open_text([tmp_path])
    assert [Path(file.path).name for file in corpus.files] == ["more.txt", "novel.docx"]
    notes = "\n".join(corpus.report.notes)
    for expected in ("1 .docx, 1 .txt", "torn.epub is damaged", "novel.rtf", "1 .png"):
        assert expected in notes


def test_archive_members_are_read_as_files(tmp_path: Path) -> None:
    parts = {"b/2.txt": "Two. " * 50, "1.txt": "One. " * 50, "novel.docx": docx(paragraph("Three. " * 50))}
    hidden = {"__MACOSX/x.txt": "no", "../up.txt": "no", ".x.txt": "no"}
    (tmp_path / "texts.zip").write_bytes(zip_bytes({**parts, **hidden}))
    corpus = open_text([tmp_path / "texts.zip"])
    names = [Path(file.path).relative_to(tmp_path).as_posix() for file in corpus.files]
    assert names == ["texts.zip/1.txt", "texts.zip/b/2.txt", "texts.zip/novel.docx"]
    assert list(examine(tmp_path / "texts.zip" / "b" / "2.txt").lines()) == ["Two. " * 50]
    assert not (tmp_path / "up.txt").exists() and not (tmp_path.parent / "up.txt").exists()
    with pytest.raises(PenwrightError, match=r"none\.txt"):
        examine(tmp_path / "texts.zip" / "none.txt")


def test_names_in_archives_may_begin_with_a_dot(tmp_path: Path) -> None:
    (tmp_path / "texts.zip").write_bytes(zip_bytes({"./a.txt": "One. " * 50, "./b/c.txt": "Two. " * 50}))
    documents = open_text([tmp_path / "texts.zip"]).files
    assert [Path(file.path).name for file in documents] == ["a.txt", "c.txt"]


def test_a_changed_document_is_extracted_again(tmp_path: Path) -> None:
    assert read_lines(tmp_path, "a.docx", docx(paragraph("One"))) == ["One"]
    assert read_lines(tmp_path, "a.docx", docx(paragraph("Another"))) == ["Another"]


def test_pipe_is_read_once_and_its_text_can_be_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_exhausted_pipe_is_refused() -> None:
    with pytest.raises(PenwrightError, match="has ended and cannot be read again"):
        examine("/dev/fd/917")


@pytest.mark.parametrize("form", ["folder", "pattern"])
def test_parts_of_a_large_table_are_read_as_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(documents, "MANY_ROWS", 1)
    for part in range(3):
        lines = [json.dumps({"text": f"document {part} {n} " * 9, "url": f"u{n}"}) for n in range(20)]
        (tmp_path / "data" / f"part-{part}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / "data" / f"part-{part}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    path = str(tmp_path / "data") if form == "folder" else str(tmp_path / "data" / "*.jsonl")
    assert detect_task([path])[0] == "generate"
    corpus = open_text([path])
    assert corpus.n_training + len(corpus.held_out) == 60
    assert {str(file.path) for file in corpus.files} == {str(tmp_path / "data" / f"part-{n}.jsonl") for n in range(3)}
    assert open_text([path]).fingerprint == corpus.fingerprint  # from the cache
    assert len(list((tmp_path / "cache" / "facts").iterdir())) == 3
    for damaged in (tmp_path / "cache" / "facts").glob("*.npy"):
        damaged.write_bytes(b"")
    assert open_text([path]).fingerprint == corpus.fingerprint
    monkeypatch.setattr(documents, "FORMAT_VERSION", 0)
    open_text([path])  # facts of another version are not used
    assert len(list((tmp_path / "cache" / "facts").iterdir())) == 6


@pytest.mark.parametrize("form", ["folder", "zip"])
@pytest.mark.parametrize("suffix", [".jsonl", ".txt"])
def test_only_the_training_split_of_a_data_set_is_read(tmp_path: Path, suffix: str, form: str) -> None:
    names = [f"data/{split}-0-of-1{suffix}" for split in ("test", "train", "validation")]
    files = {}
    for name in names:
        texts = [f"The {name} text {number}" for number in range(60)]
        files[name] = "\n".join(json.dumps({"text": text}) if suffix == ".jsonl" else text for text in texts)
    path = tmp_path / "set"
    if form == "zip":
        path = tmp_path / "set.zip"
        path.write_bytes(zip_bytes(files))
    else:
        (path / "data").mkdir(parents=True)
        for name, content in files.items():
            (path / name).write_text(content, encoding="utf-8")
    corpus = open_text([path])
    assert [file.path for file in corpus.files] == [str(path / names[1])]
    notes = " ".join(corpus.report.notes)
    assert str(path / names[0]) in notes and str(path / names[2]) in notes and "--validation" in notes


def test_stories_named_like_splits_are_read(tmp_path: Path) -> None:
    for name in ("The Train", "The Test", "A Lamp", "A Kettle", "A Garden"):
        (tmp_path / f"{name}.txt").write_text(f"{name} was a story. " * 20)
    assert len(open_text([tmp_path]).files) == 5


def test_folder_with_text_and_tables_reads_only_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text " * 100)
    (tmp_path / "b.jsonl").write_text('{"text": "row"}')
    assert [file.path for file in open_text([str(tmp_path)]).files] == [str(tmp_path / "a.txt")]
