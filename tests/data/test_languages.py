import json
from pathlib import Path

import pytest

import penwright
from penwright.config import DataSettings
from penwright.data.corpus import Columns, ReadingOptions
from penwright.data.parallel import open_pairs
from penwright.languages import Languages, checked_languages, languages_between, requested_languages, same_languages

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
def test_languages_are_inferred_from_columns_and_file_names(
    settings: dict[str, object], languages: tuple[str, str] | None
) -> None:
    assert requested_languages(DataSettings.model_validate(settings)) == languages


@pytest.mark.parametrize(
    ("named", "found"), [(("spa", "eng"), ("eng", "spa")), (("en", "es"), ("en", "es")), (("fr", "es"), ("fr", "es"))]
)
def test_order_of_the_languages_in_a_file_name_is_checked(named: tuple[str, str], found: tuple[str, str]) -> None:
    pairs = [("The dog is of the king.", "El perro es del rey."), ("It was you.", "Fuiste tú.")]
    assert checked_languages(Languages(*named), pairs) == found
    assert checked_languages(None, pairs) is None


@pytest.mark.parametrize(
    ("other", "is_same"), [(("en", "de"), True), (("eng_Latn", "deu_Latn"), True), (("de", "en"), False)]
)
def test_regions_and_scripts_of_languages_are_ignored(other: tuple[str, str], is_same: bool) -> None:
    assert same_languages(Languages("en-GB", "German"), Languages(*other)) == is_same


def test_run_records_the_languages_in_the_order_of_the_columns(tmp_path: Path) -> None:
    lines = [f"El perro {n} es del rey.\tThe dog {n} is of the king.\n" for n in range(60)]
    (tmp_path / "eng-spa.tsv").write_text("".join(lines))
    model = {"d_model": 16, "n_layers": 1, "n_heads": 2, "context_length": 32}
    settings = {"task": "translate", "model": model, "training": {"steps": 1, "threads": 1}}
    penwright.train(tmp_path / "eng-spa.tsv", run=tmp_path / "run", settings=settings, quiet=True)
    record = json.loads((tmp_path / "run" / "corpus.json").read_text())
    assert record["card"]["languages"] == ["spa", "eng"]


def test_language_names_come_from_the_columns(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(["id\ten\tde\n", *(f"{n}\t{line}" for n, line in enumerate(LINES))]))
    assert languages_between(open_pairs([tmp_path / "pairs.tsv"]).names) == ("en", "de")


def test_language_names_come_from_the_tmx(tmp_path: Path) -> None:
    unit = "<tu><tuv xml:lang='de-CH'><seg>{}</seg></tuv><tuv xml:lang='en'><seg>{}</seg></tuv></tu>"
    body = "".join(unit.format(*line.split()) for line in LINES)
    (tmp_path / "memory.tmx").write_text(f"<tmx><header/><body>{body}</body></tmx>")
    assert languages_between(open_pairs([tmp_path / "memory.tmx"]).names) == ("de", "en")


def test_languages_are_none_for_other_names_or_mixed_pairs(tmp_path: Path) -> None:
    for name in ("x.de", "x.en", "y.fr", "y.it"):
        (tmp_path / name).write_text("".join(LINES).replace("\t", name))
    one, both = ([tmp_path / name for name in names] for names in (["x.de", "x.en"], ["x.de", "x.en", "y.fr", "y.it"]))
    assert languages_between(open_pairs(one).names) == ("de", "en")
    assert open_pairs(both).names == ()
    assert languages_between(("source", "target")) is languages_between(()) is None


@pytest.mark.parametrize("named_by", ["settings", "files", "columns"])
def test_later_files_are_turned_to_the_direction_of_the_first(tmp_path: Path, named_by: str) -> None:
    sides = [("de", [line.split("\t")[0] + "\n" for line in LINES]), ("en", [line.split("\t")[1] for line in LINES])]
    if named_by == "files":
        for stem in "ab":
            for language, lines in sides:
                text = "".join(f"{stem} {line}" for line in lines)
                (tmp_path / f"{stem}.{language}").write_text(text, encoding="utf-8")
        paths = [tmp_path / name for name in ("a.de", "a.en", "b.en", "b.de")]
    else:
        paths = [tmp_path / "a.tsv", tmp_path / "b.tsv"]
        for path, (first, second) in zip(paths, (sides, sides[::-1]), strict=True):
            rows = "".join(
                f"{path.stem} {a.strip()}\t{path.stem} {b}" for a, b in zip(first[1], second[1], strict=True)
            )
            path.write_text(f"{first[0]}\t{second[0]}\n{rows}", encoding="utf-8")
    columns = Columns(source="en", target="de") if named_by == "settings" else Columns()
    corpus = open_pairs(paths, ReadingOptions(columns))
    found = {pair for part in (corpus.training, corpus.held_out) for pair in part}
    german_first = {
        (f"{stem} {de}", f"{stem} {en.strip()}") for stem in "ab" for de, en in (x.split("\t") for x in LINES)
    }
    assert found == ({(en, de) for de, en in german_first} if named_by == "settings" else german_first)
    assert corpus.names == (("en", "de") if named_by == "settings" else ("de", "en"))
    assert sum("to match" in note for note in corpus.report.notes) == (0 if named_by == "settings" else 1)
