from pathlib import Path

import pytest

from penwright.config import DataSettings
from penwright.data.parallel import open_pairs
from penwright.languages import languages_between, requested_languages

LINES = ["eins\tone\n", "zwei\ttwo\n", "drei\tthree\n"]


@pytest.mark.parametrize(
    ("settings", "languages"),
    [
        ({"train": ("train.de.gz", "train.en.gz")}, ("de", "en")),
        ({"train": ("a.de", "a.en", "b.de", "b.en")}, ("de", "en")),
        ({"train": ("news-de.txt", "news-en.txt")}, ("de", "en")),
        ({"train": ("pairs.tsv",), "source": "DE", "target": "en"}, ("de", "en")),
        ({"train": ("wmt14.de-en.tsv",)}, ("de", "en")),
        ({"train": ("hub:wmt14/de-en",)}, ("de", "en")),
        ({"train": ("pairs.tsv",)}, None),
        ({"train": ("one.txt", "two.txt")}, None),
        ({"train": ("one.tsv", "two.csv")}, None),
        ({"train": ("de-en.tsv", "fr-en.tsv")}, None),
    ],
)
def test_a_recipe_tells_languages_by_columns_and_files(
    settings: dict[str, object], languages: tuple[str, str] | None
) -> None:
    assert requested_languages(DataSettings.model_validate(settings)) == languages


def test_sides_are_called_as_the_columns_are(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(["id\ten\tde\n", *(f"{n}\t{line}" for n, line in enumerate(LINES))]))
    assert languages_between(open_pairs([tmp_path / "pairs.tsv"]).names) == ("en", "de")


def test_sides_are_called_as_a_translation_memory_calls_them(tmp_path: Path) -> None:
    unit = "<tu><tuv xml:lang='de-CH'><seg>{}</seg></tuv><tuv xml:lang='en'><seg>{}</seg></tuv></tu>"
    body = "".join(unit.format(*line.split()) for line in LINES)
    (tmp_path / "memory.tmx").write_text(f"<tmx><header/><body>{body}</body></tmx>")
    assert languages_between(open_pairs([tmp_path / "memory.tmx"]).names) == ("de", "en")


def test_what_is_no_language_is_none_and_sides_that_are_called_otherwise_are_not_told(tmp_path: Path) -> None:
    for name in ("x.de", "x.en", "y.fr", "y.it"):
        (tmp_path / name).write_text("".join(LINES).replace("\t", name))
    one, both = ([tmp_path / name for name in names] for names in (["x.de", "x.en"], ["x.de", "x.en", "y.fr", "y.it"]))
    assert languages_between(open_pairs(one).names) == ("de", "en")
    assert open_pairs(both).names == ()
    assert languages_between(("source", "target")) is languages_between(()) is None
