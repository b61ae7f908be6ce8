"""Protected spans, which a translation copies exactly."""

import pytest

from penwright.errors import UsageError
from penwright.translation.constraints.protection import Protection


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("See https://example.org/a?b=c&d=(1), please.", ["https://example.org/a?b=c&d=(1"]),
        ("www.example.org.", ["www.example.org"]),
        ("Mail jo.doe+x@mail.example.org!", ["jo.doe+x@mail.example.org"]),
        ("It weighs 3.5 kg, or 1,000 g, or 5%.", ["3.5 kg", "1,000 g", "5%"]),
        ("A run of 12\u00a0345 km, or 1\u202f000\u202f000 kg", ["12\u00a0345 km", "1\u202f000\u202f000 kg"]),
        ("It costs $ 20 or 20 € or EUR 7.", ["$ 20", "20 €"]),
        ("At -4 °C and 80 km/h", ["-4 °C", "80 km/h"]),
        ("Call `f(x) + 1` in <b class='x'>bold</b>", ["`f(x) + 1`", "<b class='x'>", "</b>"]),
        ("Dear {name}, {{ city }}, %s of %(all)d, ${HOME}", ["{name}", "{{ city }}", "%s", "%(all)d", "${HOME}"]),
        ("3 in a row, 2 A teams, 5 houses in 1999, 10 men", []),
        ("En 2019 l'entreprise, nel 1990 l’azienda, le numéro 12 s'élance, číslo 5 s míčem", []),
        ("10 km'lik koşu, '5 m', 30s", ["10 km", "5 m", "30s"]),
        ("* * *", ["* * *"]),
        ("|---|:--:|", ["|---|:--:|"]),
        ("... --- ...", []),  # Morse code
        ("a * b", []),
        ("a < b and b > c", []),
        ("", []),
    ],
)
def test_protected_spans_are_found(text: str, kept: list[str]) -> None:
    assert [text[span.start : span.end] for span in Protection().spans(text)] == kept


@pytest.mark.parametrize(
    ("pattern", "text", "kept"),
    [
        (r"[A-Z]+-\d+ of 5", "Order AB-12 of 5 kg", ["AB-12 of 5 kg"]),
        ("[0-9]+", "See https://a.de/p/2023/x-y.html in 2023", ["https://a.de/p/2023/x-y.html", "2023"]),
        ("[0-9]+", "<a href='1'> `x1` bob7@web.de {n1}", ["<a href='1'>", "`x1`", "bob7@web.de", "{n1}"]),
        ("see 5|kg bag", "see 5 kg bag", ["see 5 kg bag"]),
    ],
)
def test_match_of_a_user_pattern_is_joined_with_the_spans_it_overlaps(pattern: str, text: str, kept: list[str]) -> None:
    assert [text[s.start : s.end] for s in Protection([pattern]).spans(text)] == kept


def test_invalid_pattern_is_refused() -> None:
    with pytest.raises(UsageError, match=r"'\(' is not a regular expression"):
        Protection(["("])


def test_empty_matches_protect_nothing() -> None:
    assert Protection(["x*"]).spans("abc") == []


@pytest.mark.parametrize("text", ["1\u00a0" * 100_000, "a" * 200_000, "a@" * 100_000, "%s" * 100_000])
def test_long_repetitive_text_is_searched_in_linear_time(text: str) -> None:
    spans = Protection().spans(text)
    assert len(spans) == (100_000 if text.startswith("%") else 0) and spans == sorted(spans)
