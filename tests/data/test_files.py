"""Reading of files as text: encodings, damaged bytes, line ends."""

import gzip
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.data import blocks, files
from penwright.data.encoding import decode
from penwright.data.files import SourceFile, examine, examine_text
from penwright.errors import PenwrightError

POLISH = "Zażółć gęślą jaźń.\nPchnąć w tę łódź jeża lub ośm skrzyń fig.\n"


def write(folder: Path, content: bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def read(path: Path, encoding: str | None = None) -> tuple[SourceFile, str]:
    file = examine(path, encoding)
    return file, "".join(file.blocks())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "cp1250", "iso8859-2"])
def test_polish_is_read_in_every_encoding(tmp_path, encoding):
    assert read(write(tmp_path, (POLISH * 5).encode(encoding)))[1] == POLISH * 5


def test_western_encoding_is_detected_without_a_bom(tmp_path):
    french = "Un garçon a mangé à côté du café où l'été est très long.\nDéjà vu, ça va, forêt, œuvre.\n"
    assert read(write(tmp_path, french.encode("cp1252")))[1] == french


def test_guessed_encoding_is_reported_as_guessed(tmp_path):
    file, _ = read(write(tmp_path, POLISH.encode("cp1250")))
    assert (file.encoding, file.guessed) == ("cp1250", True)


def test_requested_encoding_overrides_detection(tmp_path):
    assert read(write(tmp_path, "café".encode()), "latin-1")[1] == "cafÃ©"


def test_replacement_characters_in_a_file_with_a_bom_are_not_counted(tmp_path):
    file, text = read(write(tmp_path, "\ufeffone \ufffd two".encode()), "utf-8-sig")
    assert (text, file.n_replaced) == ("one \ufffd two", 0)


def test_unknown_encoding_suggests_the_nearest_name(tmp_path):
    with pytest.raises(PenwrightError, match=r"no encoding 'cp125O'; did you mean 'cp125\d'"):
        examine(write(tmp_path, b"text"), "cp125O")


def test_few_invalid_bytes_do_not_change_detected_utf8(tmp_path):
    content = (POLISH * 100).encode() + b"bad \xff byte\n" + POLISH.encode()
    file, text = read(write(tmp_path, content))
    assert (file.encoding, file.n_replaced, text.count("\ufffd")) == ("utf-8", 1, 1)
    assert file.first_replaced == content.index(b"\xff")


def test_replacement_characters_in_the_text_are_not_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 4)  # so that blocks split the three bytes of a character
    content = "ab\ufffdcd\ufffd\ufffd" * 20
    file, text = read(write(tmp_path, content.encode()))
    assert (text, file.n_replaced) == (content, 0)


@pytest.mark.parametrize(
    ("encoding", "invalid"),
    [("utf-16-le", b"\x00\xd8"), ("utf-16-be", b"\xd8\x00"), ("utf-32-le", b"\xff" * 4), ("gb18030", b"\xff")],
)
def test_invalid_bytes_are_counted_in_unicode_encodings(tmp_path, monkeypatch, encoding, invalid):
    monkeypatch.setattr(files, "BLOCK_BYTES", 5)  # so that blocks split characters
    whole = "one \ufffd two\n".encode(encoding)
    file, text = read(write(tmp_path, whole + invalid + whole), encoding)
    assert (text, file.n_replaced) == ("one \ufffd two\n\ufffdone \ufffd two\n", 1)


def test_nul_characters_are_removed_and_counted(tmp_path):
    file, text = read(write(tmp_path, b"one\0 two\0\n" + b"a line of text\n" * 20))
    assert text.startswith("one two\n")
    assert file.n_nul == 2


def test_only_a_leading_bom_is_dropped(tmp_path):
    assert read(write(tmp_path, "\ufeffone\n\ufefftwo\n".encode()))[1] == "one\n\ufefftwo\n"


def test_only_newlines_end_lines(tmp_path):
    lines = ["a\u2028b", "c\u0085d", "e\vf\fg", "h\ri", ""]
    assert list(examine(write(tmp_path, "\n".join(lines).encode() + b"\nend")).lines()) == [*lines, "end"]


@pytest.mark.parametrize("block", [3, 4, 5, 1 << 20])
def test_crlf_is_a_line_end_across_block_boundaries(tmp_path, monkeypatch, block):
    monkeypatch.setattr(files, "BLOCK_BYTES", block)
    file = examine(write(tmp_path, b"one\r\ntwo\r\n\r\nlone\rhere\r"))
    assert list(file.lines()) == ["one", "two", "", "lone\rhere\r"]
    assert (file.n_crlf, file.n_lines) == (3, 4)


@settings(max_examples=50)
@given(st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufeff") | st.just("\n"), min_size=1))
def test_joined_chunks_are_the_text(tmp_path_factory, text):
    file = examine(write(tmp_path_factory.mktemp("chunks"), text.encode()), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK_BYTES", 7)
        chunks = list(file.chunks())
    assert "".join(chunks) == text
    assert file.n_characters == len(text)
    assert file.n_utf8_bytes == len(text.encode())


def test_chunks_end_at_line_ends(tmp_path, monkeypatch):
    file = examine(write(tmp_path, b"one two\nthree\nfour five\n" * 50))
    monkeypatch.setattr(files, "BLOCK_BYTES", 64)
    assert all(chunk.endswith("\n") for chunk in file.chunks())


def test_line_longer_than_a_block_is_read_in_bounded_chunks(tmp_path, monkeypatch):
    file = examine(write(tmp_path, b"x" * 100_000))
    monkeypatch.setattr(files, "BLOCK_BYTES", 1000)
    chunks = list(file.chunks())
    assert sum(map(len, chunks)) == 100_000
    assert max(map(len, chunks)) <= 2000
    assert list(file.lines()) == ["x" * 100_000]


def test_gzip_is_recognized_by_its_first_bytes(tmp_path):
    file, text = read(write(tmp_path, gzip.compress(POLISH.encode()), "no_suffix"))
    assert text == POLISH
    assert file.n_bytes == len(gzip.compress(POLISH.encode()))


def test_truncated_gzip_is_refused(tmp_path):
    with pytest.raises(PenwrightError, match=r"truncated \.gz file"):
        examine(write(tmp_path, gzip.compress(POLISH.encode() * 100)[:-12]))


def test_damaged_gzip_is_refused(tmp_path):
    with pytest.raises(PenwrightError, match="damaged"):
        examine(write(tmp_path, gzip.compress(POLISH.encode() * 9)[:12] + b"\xff" * 50))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n\t\r\n \n", "only whitespace"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "a PNG image"),
        (b"\x80\x04\x95\x10\0\0\0\0\0\0\0]\x94(K\x01K\x02e.", "a pickle"),
        (bytes(range(256)) * 8, "binary data"),
        (b"PK\x03\x04rest", "unpack it"),
    ],
)
def test_non_text_file_is_refused_with_its_kind(tmp_path, content, message):
    path = write(tmp_path, content)
    with pytest.raises(PenwrightError, match=message) as error:
        examine_text(path)
    assert str(path) in str(error.value)


def test_sha256_is_that_of_the_stored_bytes(tmp_path):
    assert examine(write(tmp_path, b"abc")).sha256.startswith("ba7816bf8f01cfea")


CHINESE = "话说宝玉听了，笑道：“这话说得是。你们且坐着，我去去就来。”众人都笑了。"
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
HEBREW = "בראשית ברא אלהים את השמים ואת הארץ. והארץ היתה תהו ובהו וחשך על פני תהום. "
ARABIC = "هل أنت هنا؟ نعم، أنا هنا منذ الصباح، وقد قرأت الكتاب الذي أعطيتني إياه. "
THAI = "ฉันรักคุณมาก และคุณก็รักฉันเช่นกัน เราไปตลาดด้วยกันทุกวัน "
RUSSIAN = "Князь Василий говорил всегда лениво, как актёр говорит роль старой пьесы. "
TURKISH = "Kapının önünde yaşlı bir kadın oturuyordu; çocuklar bağrışıyor, kırmızı bir top sokağa yuvarlanıyordu. "

ICELANDIC = "Ég þekki ekki þennan mann, en það er gott að hann kom; nýja húsið stóð autt í þrjú ár og enginn bjó þar. "


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        *((CHINESE, encoding) for encoding in ("gb18030", "gbk")),
        *((JAPANESE, encoding) for encoding in ("shift_jis", "euc_jp")),
        *((HEBREW, encoding) for encoding in ("cp1255", "iso8859_8")),
        *((ARABIC, encoding) for encoding in ("cp1256", "iso8859_6")),
        *((RUSSIAN, encoding) for encoding in ("cp1251", "koi8_r", "iso8859_5", "cp866")),
        (THAI, "cp874"),
        (TURKISH, "cp1254"),
        (ICELANDIC, "cp1252"),
    ],
)
@pytest.mark.parametrize("end", ["\n", ""], ids=["lines", "one line"])
@pytest.mark.parametrize("times", [10, 2000], ids=["short", "long"])
def test_encoding_is_detected_from_letters_at_any_sample_boundary(tmp_path, text, encoding, end, times):
    content = (text + end) * times
    assert read(write(tmp_path, content.encode(encoding)))[1] == content


@pytest.mark.parametrize("block", [3, 4, 1 << 20])
def test_bare_carriage_returns_end_lines_when_they_dominate(tmp_path, monkeypatch, block):
    monkeypatch.setattr(files, "BLOCK_BYTES", block)
    file = examine(write(tmp_path, b"one\rtwo\r\rfour\r" * 10 + b"end\r\n"))
    assert list(file.lines()) == ["one", "two", "", "four"] * 10 + ["end"]
    assert (file.n_cr, file.n_lines) == (40, 41)


@pytest.mark.parametrize("name", ["hex", "base64", "rot13", "zlib"])
def test_codec_that_is_no_text_encoding_is_refused(tmp_path, name):
    (tmp_path / "a.txt").write_text("some text\n")
    with pytest.raises(PenwrightError, match="there is no encoding"):
        examine(tmp_path / "a.txt", name)


@pytest.mark.parametrize("text", ["", "a", "a\n", "a\nb", "a\nb\n", "\n\na", "a\n\n"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_first_lines_agree_with_lines(tmp_path, text, n):
    (tmp_path / "a.txt").write_text(text)
    file = examine(tmp_path / "a.txt")
    assert file.first_lines(n) == list(file.lines())[:n]


def test_first_lines_reads_only_a_bounded_part_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK_BYTES", 100)
    monkeypatch.setattr(files, "HEAD", 400)
    (tmp_path / "one.txt").write_text("x" * 100_000)
    (line,) = examine(tmp_path / "one.txt").first_lines(1000)
    assert line == "x" * len(line) and 400 <= len(line) <= 500
    (tmp_path / "two.txt").write_text("short\n" + "x" * 100_000 + "\nlast\n")
    assert examine(tmp_path / "two.txt").first_lines(1000) == ["short"]


@pytest.mark.parametrize("other", ["cp1252", "cp1250", "cp1251", "shift_jis"])
@pytest.mark.parametrize("block", [7, 1 << 20])
def test_file_in_two_encodings_is_decoded_line_by_line(tmp_path, monkeypatch, other, block):
    monkeypatch.setattr(files, "BLOCK_BYTES", block)
    text = {"cp1252": "Où est l'été, garçon ?", "cp1250": POLISH, "cp1251": RUSSIAN, "shift_jis": JAPANESE}[
        other
    ] + "\n"
    utf8_part = "Grüße aus Österreich, schöne Mädchen.\nplain\n" * 30
    file, found = read(write(tmp_path, utf8_part.encode() + text.encode(other) * 30 + utf8_part.encode()))
    assert found == utf8_part + text * 30 + utf8_part
    assert (file.n_replaced, file.encoding.split("|")[0]) == (0, "utf-8")
    assert decode(utf8_part.encode() + text.encode(other) * 30)[0] == utf8_part + text * 30


def test_invalid_bytes_in_a_mixed_encoding_file_are_replaced(tmp_path):
    content = POLISH.encode() * 9 + b"za\xc5 \xc5\xbc\n" + "Où est l'été ?\n".encode("cp1252") * 9
    file, found = read(write(tmp_path, content))
    assert found == POLISH * 9 + "za\ufffd ż\n" + "Où est l'été ?\n" * 9
    assert file.n_replaced == 1


@pytest.fixture
def large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat small files like large ones."""
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(files, "LARGE", 1)
    monkeypatch.setattr(files, "BLOCK_BYTES", 64)
    monkeypatch.setattr(blocks, "BLOCK", 64)
    monkeypatch.setattr(blocks, "MARK_EVERY", 200)


LINES = "".join(f"{n} żółwi\r\n" if n % 7 else f"{n} źdźbeł\n" for n in range(300))


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_large_file_is_read_from_a_mark_near_the_position(
    tmp_path: Path, large_files: None, compress: Callable[[bytes], bytes]
):
    file = examine(write(tmp_path, compress(LINES.encode())))
    whole = list(file.chunks())
    assert len(file.marks) > 5
    for position in range(0, file.n_characters, 97):
        start, pieces = file.chunks_from(position)
        rest = list(pieces)
        before = "".join(whole[: len(whole) - len(rest)])
        assert rest == whole[len(whole) - len(rest) :]
        assert start == (len(before), len(before.encode())) and start.characters <= position
        assert position - start.characters < 500


@pytest.mark.parametrize("text", ["x" * 5000, "y" * 1000 + "\n" + "z" * 3000])
def test_long_line_is_read_from_its_beginning(tmp_path: Path, large_files: None, text: str):
    file = examine(write(tmp_path, text.encode()))
    start, pieces = file.chunks_from(3500)
    assert (start.characters, "".join(pieces)) == (0, text)


def test_large_file_is_examined_again_only_after_a_change(
    tmp_path: Path, large_files: None, monkeypatch: pytest.MonkeyPatch
):
    path = write(tmp_path, LINES.encode())
    first = examine(path)
    monkeypatch.setattr(files, "count_text", None)
    assert examine(path) == first
    assert examine(path.resolve()) == replace(first, path=str(path.resolve()))
    monkeypatch.undo()
    path.write_bytes(LINES.replace("żółwi", "krabów").encode())
    assert examine(path).text_sha256 != first.text_sha256


def test_large_document_is_extracted_again_by_another_process(
    tmp_path: Path, large_files: None, monkeypatch: pytest.MonkeyPatch
):
    path = write(tmp_path, b"<html><body><p>One.</p><p>Two.</p></body></html>", "page.html")
    first = examine(path)
    Path(first.copy).unlink()  # as at the end of a process
    monkeypatch.setattr(blocks, "_copies", {})
    monkeypatch.setattr(blocks, "_folder", lambda: tmp_path)
    assert list(examine(path).lines()) == ["One.", "Two."]


def test_damaged_cache_entry_is_computed_again(tmp_path: Path, large_files: None):
    path = write(tmp_path, LINES.encode())
    first = examine(path)
    for entry in (tmp_path / "cache" / "facts").iterdir():
        entry.write_text("{")
    assert examine(path) == first


def test_zstd_is_decompressed_and_truncation_is_refused(tmp_path: Path, large_files: None):
    path = tmp_path / "text.txt.zst"
    with pyarrow.CompressedOutputStream(str(path), "zstd") as stream:
        stream.write(LINES.encode())
    file = examine(path)
    start, pieces = file.chunks_from(3000)
    assert "".join(file.blocks()) == LINES.replace("\r\n", "\n")
    assert start.characters > 2000 and "".join(pieces) == "".join(file.blocks())[start.characters :]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(PenwrightError, match=r"text\.txt\.zst"):
        examine(path)
