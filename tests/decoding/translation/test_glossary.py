"""Glossary files, and where their terms occur in a text."""

from pathlib import Path

import pytest

from penwright.errors import PenwrightError
from penwright.translation.constraints.glossary import Entry, Glossary


def read(tmp_path: Path, content: str | bytes) -> Glossary:
    path = tmp_path / "terms.tsv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return Glossary.read(path)


def found(glossary: Glossary, text: str) -> list[str]:
    return [text[place.start : place.end] for place in glossary.find(text)]


def test_glossary_file_gives_terms_forms_and_case_rules(tmp_path: Path) -> None:
    glossary = read(
        tmp_path, "\ufeff# mine\ndog\tHund|Hunde\r\n\nUS\tVereinigte Staaten\texact\n the cat \t Katze \tfollow"
    )
    assert glossary.entries == (
        Entry("dog", ("Hund", "Hunde")),
        Entry("US", ("Vereinigte Staaten",), "exact"),
        Entry("the cat", ("Katze",), "follow"),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("dog\tHund\ncat Katze\n", 'line 2 has no tab .*"cat Katze"'),
        ("dog\t\n", "line 1 has an empty translation"),
        ("\tHund\n", "line 1 has an empty term"),
        ("dog\tHund|\n", "line 1 has an empty translation"),
        ("dog\tHund\n\nDog\tKöter\n", 'line 3: "Dog" is already in line 1'),
        ("dog\tHund\nDog\tHund\tfollow\n", 'line 2: "Dog" is already in line 1 with a different .* case rule'),
        ("dog\tHund\tsometimes\n", "line 1: .*any, exact, follow"),
        ("dog\tHund\ncat\tKätzchen\n".encode("latin-1"), "line 2 is not UTF-8"),
        ("dog\tHund\n".encode("utf-16"), "line 1 is not UTF-8"),
    ],
)
def test_error_in_a_glossary_file_names_its_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(PenwrightError, match=f"terms.tsv {message}".replace("|", r"\|")):
        read(tmp_path, content)


@pytest.mark.parametrize("header", ["en\tde", "source\ttarget", "Term\tTranslation"])
def test_header_is_no_term_and_quoted_cells_are_terms(tmp_path: Path, header: str) -> None:
    glossary = read(tmp_path, f'# mine\n{header}\n"Smith, Inc."\tFirma\ndog\t"der ""Hund"""\n')
    assert glossary.entries == (Entry("Smith, Inc.", ("Firma",)), Entry("dog", ('der "Hund"',)))


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PenwrightError, match=r"there is no glossary .*none.tsv"):
        Glossary.read(tmp_path / "none.tsv")
    (tmp_path / "terms.tsv").write_text("dog\tHund\n")
    with pytest.raises(PenwrightError, match=r"did you mean .*terms.tsv\?"):
        Glossary.read(tmp_path / "term.tsv")


def test_repeated_line_is_one_term(tmp_path: Path) -> None:
    assert len(read(tmp_path, "dog\tHund\ndog\tHund\n").entries) == 1


def test_terms_are_whole_words_in_any_case_and_the_longest_wins() -> None:
    glossary = Glossary((Entry("hot dog", ("Hotdog",)), Entry("dog", ("Hund",)), Entry("US", ("USA",), "exact")))
    assert found(glossary, "The Dog, a hot dog; dogs, sheep-dog and us in the US: DOG.") == [
        "Dog",
        "hot dog",
        "US",
        "DOG",
    ]
    assert found(glossary, "") == [] and found(glossary, "🙂") == []


def test_exact_term_takes_precedence_over_any_case() -> None:
    glossary = Glossary((Entry("us", ("uns",)), Entry("US", ("USA",), "exact")))
    assert [place.entry.targets[0] for place in glossary.find("US, us, Us")] == ["USA", "uns", "uns"]


@pytest.mark.parametrize(("term", "required"), [("dog", "hund"), ("Dog", "Hund"), ("DOG", "HUND")])
def test_required_form_follows_the_case_of_the_term_on_request(term: str, required: str) -> None:
    assert Entry("dog", ("hund",), "follow").required_forms(term) == (required,)
    assert Entry("dog", ("hund",)).required_forms(term) == ("hund",)


@pytest.mark.parametrize(
    ("term", "text"),
    [("宝玉", "却说宝玉笑道"), ("猫", "吾輩は猫である。"), ("แมว", "ฉันรักแมวมาก"), ("Python", "我用Python写程序")],
)
def test_terms_are_found_in_scripts_without_spaces(term: str, text: str) -> None:
    assert found(Glossary((Entry(term, ("x",)),)), text) == [term]


@pytest.mark.parametrize(
    ("term", "text", "is_found"),
    [("कम", "यह कम है", True), ("कम", "यह कमी है", False), ("कमी", "यह कमी है", True), ("cafe", "the cafe\u0301", False)],
)
def test_combining_mark_is_part_of_the_word(term: str, text: str, is_found: bool) -> None:
    assert bool(found(Glossary((Entry(term, ("x",)),)), text)) is is_found
