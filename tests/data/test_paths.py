"""Resolution of paths, folders and patterns to files."""

import gzip
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penwright.data.paths import (
    describe_skipped,
    existing_file,
    files_to_evaluate,
    relative_to_folder,
    resolve_from,
    suffix_of,
    tables_in,
    text_files,
)
from penwright.errors import PenwrightError


def test_missing_file_suggests_the_nearest_name(tmp_path):
    (tmp_path / "train.txt").write_text("a", encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"no file .*trian\.txt; did you mean .*train\.txt\?"):
        existing_file(tmp_path / "trian.txt")
    (tmp_path / "my texts").mkdir()
    with pytest.raises(PenwrightError, match=r"did you mean '.*my texts'\? Put a name that contains spaces in quotes"):
        existing_file(tmp_path / "my")


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(PenwrightError, match=r"there is no folder .*nowhere"):
        existing_file(tmp_path / "nowhere" / "a.txt")


def test_folder_yields_its_visible_text_files_sorted_by_path(tmp_path):
    for name in ("b.txt", "a/z.md", "a.text", ".hidden.txt", "picture.png", ".git/x.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"x"))
    found = [path.relative_to(tmp_path).as_posix() for path in text_files([tmp_path])]
    assert found == ["a.text", "a/z.md", "b.txt", "c.txt.gz"]


def test_file_given_twice_is_read_once(tmp_path):
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    assert text_files([tmp_path, tmp_path / "a.txt"]) == [tmp_path / "a.txt"]


def test_folder_without_text_lists_other_file_types(tmp_path):
    (tmp_path / "table.xlsx").write_text("x", encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"no text .* 1 of other types, including 1 \.xlsx"):
        text_files([tmp_path])


def test_file_name_too_long_for_the_system_is_refused():
    with pytest.raises(PenwrightError):
        existing_file("x" * 5000)


@pytest.mark.parametrize(("path", "suffix"), [("a/train.TSV.gz", ".tsv"), ("x.en", ".en"), ("x.gz", ""), ("x", "")])
def test_suffix_ignores_gz(path, suffix):
    assert suffix_of(path) == suffix


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ("train.csv test.csv validation.csv", "test.csv"),
        ("train.txt dev.txt README.md", "dev.txt"),
        ("train/pos/1.txt train/neg/2.txt test/pos/3.txt test/neg/4.txt notes.txt", "test"),
        (".git/x.txt en.train.tsv en.test.tsv", "en.test.tsv"),
        ("test.txt other.txt", ""),
        ("train.txt", ""),
    ],
)
def test_test_files_of_a_folder_or_archive(tmp_path, names, chosen):
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for name in names.split():
            (tmp_path / "data" / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / "data" / name).write_text("x", encoding="utf-8")
            archive.writestr(name, "x")
    assert files_to_evaluate(str(tmp_path / "data")) == [str(tmp_path / "data" / chosen)]
    assert files_to_evaluate(f"{tmp_path}/data/*.txt") == [f"{tmp_path}/data/*.txt"]
    if "/" not in names:
        assert files_to_evaluate(str(tmp_path / "data.zip")) == [str(tmp_path / "data.zip" / chosen)]


def test_pattern_expands_to_the_matching_files(tmp_path):
    for name in ("a.py", "b/c.py", "b/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    found = text_files([f"{tmp_path}/**/*.py"])
    assert [path.relative_to(tmp_path).as_posix() for path in found] == ["a.py", "b/c.py"]


def test_existing_file_with_pattern_characters_is_that_file(tmp_path):
    (tmp_path / "a[1].txt").write_text("x", encoding="utf-8")
    assert text_files([tmp_path / "a[1].txt"]) == [tmp_path / "a[1].txt"]


def test_pattern_without_matches_is_refused(tmp_path):
    with pytest.raises(PenwrightError, match="no file matches the pattern"):
        text_files([f"{tmp_path}/*.py"])


def test_folder_of_other_files_suggests_a_working_pattern(tmp_path):
    for name in ("a.py", "b.py", "c.toml"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    with pytest.raises(PenwrightError) as error:
        text_files([tmp_path])
    pattern = str(error.value).split("'")[1]
    assert [path.name for path in text_files([pattern])] == ["a.py", "b.py"]


@pytest.mark.parametrize(
    ("names", "tables"),
    [
        ("train.csv test.csv", "train.csv"),
        ("a.csv b.tsv c.jsonl", "a.csv b.tsv c.jsonl"),
        ("README.md LICENSE.txt a.jsonl info.json", "a.jsonl"),
        ("a.json b.json", "a.json b.json"),
        ("a.csv notes.txt", ""),
        ("a.json b.py", ""),
        ("README.md", ""),
        ("manifest.jsonl", "manifest.jsonl"),
        ("a.jsonl b.eml", "a.jsonl"),
        ("index.csv sci/0 rec/1", ""),
        ("a.csv scripts/Makefile", "a.csv"),
    ],
)
def test_tables_in_a_folder(tmp_path: Path, names: str, tables: str) -> None:
    for name in names.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert [path.name for path in tables_in(str(tmp_path))] == tables.split()


def test_tables_in_a_pattern_or_archive(tmp_path: Path) -> None:
    for name in ("a.csv", "b.json", "c.csv"):
        (tmp_path / name).write_text("x", encoding="utf-8")
    with zipfile.ZipFile(tmp_path / "d.zip", "w") as archive:
        for name in ("README.md", "a.csv", "b.csv", "c.csv"):
            archive.writestr(name, "x")
    assert [path.name for path in tables_in(f"{tmp_path}/*.csv")] == ["a.csv", "c.csv"]
    assert [path.name for path in tables_in(f"{tmp_path}/*.json")] == ["b.json"]
    assert len(tables_in(f"{tmp_path}/d.zip")) == 3 and tables_in(f"{tmp_path}/*") == []


@contextmanager
def nested(name: str, depth: int) -> Iterator[None]:
    """Nest folders with a text in the innermost, and remove them one by one: shutil.rmtree cannot go as deep."""
    for _ in range(depth):
        os.mkdir(name)
        os.chdir(name)
    Path("a.txt").write_text("text", encoding="utf-8")
    for _ in range(depth):
        os.chdir("..")
    try:
        yield
    finally:
        for _ in range(depth):
            os.chdir(name)
        os.remove("a.txt")
        for _ in range(depth):
            os.chdir("..")
            os.rmdir(name)


def test_deeply_nested_folders_are_read_and_too_long_paths_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with nested("d", 1100):
        (found,) = text_files(["d"])
        assert len(found.parts) == 1101
        assert text_files(["d/**/*.txt"]) == [found]
    with nested("long" * 50, 30), pytest.raises(PenwrightError) as error:
        text_files(["long" * 50])
    assert len(str(error.value)) < 500


def test_folder_links_are_followed_and_each_folder_is_read_once(tmp_path: Path) -> None:
    texts, data = tmp_path / "texts" / "inner", tmp_path / "data"
    texts.mkdir(parents=True)
    data.mkdir()
    (texts / "a.txt").write_text("text", encoding="utf-8")
    (tmp_path / "outside.txt").write_text("text", encoding="utf-8")
    (texts / "back").symlink_to("..")
    (data / "link").symlink_to(tmp_path / "texts")
    (data / "again").symlink_to(texts)
    (data / "up").symlink_to("..")
    (data / "self").symlink_to("self")
    (data / "gone").symlink_to("nowhere")
    (found,) = text_files([data])
    assert found.resolve() == texts / "a.txt"
    assert text_files([f"{data}/**/*.txt"]) == [found]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/*.txt", ["a.txt", "b/c.txt", "b/d/e.txt"]),
        ("b/**", ["b/c.txt", "b/d/e.txt", "b/d/f.md"]),
        ("**/d/*", ["b/d/e.txt", "b/d/f.md"]),
        ("**/b/**/e.*", ["b/d/e.txt"]),
        ("*/*.txt", ["b/c.txt"]),
        ("**/**/a.txt", ["a.txt"]),
    ],
)
def test_double_star_matches_any_folders(tmp_path: Path, pattern: str, names: list[str]) -> None:
    for name in ("a.txt", "b/c.txt", "b/d/e.txt", "b/d/f.md", ".g/h.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    assert [path.relative_to(tmp_path).as_posix() for path in text_files([f"{tmp_path}/{pattern}"])] == names


def test_one_of_several_formats_of_the_same_text_is_read(tmp_path: Path) -> None:
    for name in ("novel.pdf", "novel.epub", "Novel.docx", "notes.txt", "notes.html", "b/novel.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x", encoding="utf-8")
    found = [path.relative_to(tmp_path).as_posix() for path in text_files([tmp_path])]
    assert found == ["Novel.docx", "b/novel.pdf", "notes.txt"]
    assert "3 also present in another format" in describe_skipped(tmp_path)


def test_folder_of_images_is_refused_without_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    with pytest.raises(PenwrightError, match=r"no text .* including \d+ \.png$"):
        text_files([tmp_path])


def test_pipe_and_archive_member_paths_resolve_from_a_run(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("in/b.txt", "x")
    assert relative_to_folder(tmp_path, "-") == resolve_from(tmp_path, "-") == "-"
    assert resolve_from(tmp_path, "a.zip/in/b.txt") == f"{tmp_path}/a.zip/in/b.txt"
