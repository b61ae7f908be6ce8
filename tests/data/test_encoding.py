"""Decoding of standard input, which must agree with the decoding of files, and guesses at encodings."""

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


def test_japanese_in_seven_bits_is_recognized(tmp_path: Path) -> None:
    text = "Subject: 猫\n" + "吾輩は猫である。名前はまだ無い。\n" * 3
    (tmp_path / "mail.txt").write_bytes(text.encode("iso2022_jp"))
    assert decode(text.encode("iso2022_jp")) == (text, "iso2022_jp")
    assert "".join(examine(tmp_path / "mail.txt").blocks()) == text


LETTERS = {
    "Az őszi szél hűvösen fújt a tőkék között, és a fiú, aki a kút mellett állt, sűrűn pislogott.": "cp1250 iso8859_2",
    "A fiú így szólt: »Jöjjön már, apám!« És az erdő felől füst szállt, a mezőkön végig.": "cp1250",
    "Bătrânul şedea pe prispă şi aştepta cu răbdare toată viaţa, aşa cum aşteptase.": "cp1250 iso8859_2",
    "Lietuvių kalba yra valstybinė, o Sąjungoje viena iš oficialiųjų. Žmonės kalba šia kalba.": "cp1257",
    "Latviešu valoda ir dzimtā valoda miljoniem cilvēku, kur tā ir vienīgā valsts valoda.": "cp1257",
    "Die schönen Mädchen grüßen den großen Bären. Über Äpfel läßt sich streiten.": "cp1252 cp850 mac_roman",
    "Le français a été très répandu. Où êtes-vous allé cet été, à Besançon ?": "cp1252 cp850 mac_roman",
    "El niño comió jamón en la montaña. Está muy cansado el médico.": "cp1252 cp850 mac_roman",
    "He said: “I don’t know what you’re talking about, it’s nothing.”": "cp1252 mac_roman",
    "Mężczyzna wziął kłódkę i poszedł spać. Był już późny wieczór, a na ulicy świeciło światło.": "cp1250 cp852",
    "Українська мова належить до слов'янських мов, її вивчають у школі.": "cp1251 koi8_u",
    "Русский язык является одним из самых распространённых. Я знаю.": "cp1251 koi8_r mac_cyrillic",
    "As ações e as orações são difíceis, mas os alemães põem os pães à mesa.": "cp1252 cp850 mac_roman",
    "Há leões e é só isso. Os aviões, os botões.": "cp1252",
    "Open the アプリ window, then press the タブ key.": "cp932",
    "Hwæt! wê Gâr-Dena in geâr-dagum þêod-cyninga þrym gefrûnon, hû þâ æðelingas.": "cp1252",
    "Það er þekkt að börnin fóru út í gær og höfðu ánægju.": "cp1252",
}


@pytest.mark.parametrize(("text", "encodings"), LETTERS.items())
def test_letters_show_the_encoding(text: str, encodings: str) -> None:
    for encoding in encodings.split():
        assert decode((text + "\n").encode(encoding) * 5)[0] == (text + "\n") * 5, encoding


def test_invalid_bytes_are_replaced_and_binary_input_is_refused() -> None:
    text, encoding = decode(POLISH.encode() * 9 + b"\xff")
    assert encoding == "utf-8" and text == POLISH * 9 + "\ufffd"
    with pytest.raises(PenwrightError, match="PNG"):
        decode(b"\x89PNG\r\n\x1a\n" + bytes(50))
