"""Decoding of standard input, which must agree with the decoding of files."""

from pathlib import Path

import pytest

from penwright.data.encoding import decode
from penwright.data.files import examine
from penwright.errors import PenwrightError

GERMAN = "Der große Bär läßt die Käfer über die Brücke.\nFünf schöne Mädchen grüßen.\n" * 3
POLISH = "Zażółć gęślą jaźń, rzekł żółw do wilgi.\nŁódź płynie ku źródłom.\n" * 3
FEW = "The quick brown fox jumps over the lazy dog.\n" * 100 + "He went to the café with Zoë.\n"


@pytest.mark.parametrize("text", [GERMAN, POLISH, FEW, "plain\r\nASCII\n", ""])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp1250"])
def test_decode_agrees_with_reading_a_file(tmp_path: Path, text: str, encoding: str) -> None:
    if encoding == "cp1250" and text is not POLISH:
        encoding = "latin-1"
    content = text.encode(encoding)
    (tmp_path / "file.txt").write_bytes(content)
    found, _ = decode(content)
    assert found == text
    assert found.replace("\r\n", "\n") == "".join(examine(tmp_path / "file.txt").blocks())


def test_invalid_bytes_are_replaced_and_binary_input_is_refused() -> None:
    text, encoding = decode(POLISH.encode() * 9 + b"\xff")
    assert encoding == "utf-8" and text == POLISH * 9 + "\ufffd"
    with pytest.raises(PenwrightError, match="PNG"):
        decode(b"\x89PNG\r\n\x1a\n" + bytes(50))
