"""`penwright embed` and `penwright search`: vectors of texts, and search by meaning."""

import json
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import torch

import penwright as api
from penwright.errors import PenwrightError
from penwright.generation.generator import Generator
from penwright.run.folder import Run
from penwright.storage import cache_folder, locked
from penwright.workflows import search

from .conftest import Command


@pytest.mark.parametrize("kind", ["writer", "classifier"])
def test_embed_prints_a_unit_vector_for_each_text(penwright: Command, runs: Path, tmp_path: Path, kind: str) -> None:
    printed = penwright("embed", runs / kind, "a fine film", "day 7 " * 50, "").stdout.splitlines()
    records = [json.loads(line) for line in printed]
    assert [each["text"] for each in records] == ["a fine film", "day 7 " * 50, ""]
    vectors = np.array([each["embedding"] for each in records])
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    penwright("embed", runs / kind, "-o", tmp_path / "v.npy", stdin="a fine film\n" + "day 7 " * 50 + "\n\n")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy", allow_pickle=False), vectors, atol=1e-5)


def test_writers_embedding_is_the_mean_hidden_state(runs: Path) -> None:
    writer = api.load(runs / "writer")
    assert isinstance(writer, Generator)
    tokens = torch.tensor([writer.tokenizer.prompt(writer.tokenizer.encode("It was day 3"))])
    with torch.inference_mode():
        mean = writer.model.hidden(tokens)[0].mean(0)
    found = writer.embed(["It was day 3", "It was"])[0]
    torch.testing.assert_close(found, torch.nn.functional.normalize(mean, dim=0), atol=1e-5, rtol=0)
    assert writer.embed([]).shape == (0, writer.model.settings.d_model)


def test_embed_refuses_a_translator(penwright: Command, runs: Path) -> None:
    done = penwright("embed", runs / "translator", "eins")
    assert done.returncode == 2 and "`embed` needs an encoder, a classifier or a language model" in done.stderr


def test_search_finds_the_line_itself_and_caches_embeddings(penwright: Command, runs: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("a fine film number 3\n\na dull film number 7\nsomething else\n", encoding="utf-8")
    first = penwright("search", runs / "classifier", corpus, "a dull film number 7", "--top", 2)
    lines = [line.split("\t") for line in first.stdout.splitlines()]
    assert lines[0] == ["1.000", "3", "a dull film number 7"] and len(lines) == 2
    assert "embedding 3 lines" in first.stderr
    swapped = penwright("search", runs / "classifier", "a dull film number 7", corpus)
    assert swapped.returncode == 2 and "file comes before the query" in swapped.stderr
    again = penwright("search", runs / "classifier", corpus, "a dull film number 7", "--json")
    assert "embedding" not in again.stderr
    assert json.loads(again.stdout.splitlines()[0])["line"] == 3 and len(again.stdout.splitlines()) == 3
    for cached in cache_folder("vectors").glob("*/vectors.npy"):
        cached.write_bytes(cached.read_bytes()[:-4])
    repaired = penwright("search", runs / "classifier", corpus, "a dull film number 7", "--top", 2)
    assert repaired.stdout == first.stdout and "embedding 3 lines" in repaired.stderr


def test_search_embeds_only_lines_that_have_changed(runs: Path, tmp_path: Path) -> None:
    said: list[str] = []

    def index(lines: list[str], path: str = "corpus.txt") -> search.SearchIndex:
        return search.SearchIndex(runs / "classifier", str(tmp_path / path), lines, say=said.append)

    before = {path.name for path in cache_folder("vectors").glob("*-*")}
    first = index(["a fine film", "a dull film", "day 7"]).vectors.copy()
    changed = index(["day 8", "a dull film", "a fine film"]).vectors.copy()
    assert [text.split(" lines")[0] for text in said] == ["embedding 3", "embedding 1 of 3"]
    np.testing.assert_array_equal(changed[1:], first[[1, 0]])
    np.testing.assert_allclose(changed, index(["day 8", "a dull film", "a fine film"], "other.txt").vectors, atol=1e-5)
    assert len({path.name for path in cache_folder("vectors").glob("*-*")} - before) == 2  # one index for each file
    np.testing.assert_array_equal(index(["a dull film", "day 8"]).vectors, changed[[1, 0]])
    assert len(said) == 3


def test_search_on_a_full_disk_ends_with_a_message(runs: Path, tmp_path: Path) -> None:
    index = search.SearchIndex(runs / "classifier", str(tmp_path / "corpus.txt"), [f"day {n}" for n in range(500)])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, before[1]))
    try:
        with pytest.raises(PenwrightError, match="could not be written"):
            _ = index.vectors
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(index.vectors) == 500


def test_search_caches_vectors_under_the_weights_that_made_them(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "writer", run := tmp_path / "run")
    first = search.SearchIndex(run, str(tmp_path / "corpus.txt"), ["day 1", "day 2"])
    loaded, _ = Run(run).checkpoints.best()
    weights = {name: tensor + 1 for name, tensor in loaded.weights().items()}
    newest = Run(run).checkpoints.newest()[0].step + 1
    Run(run).checkpoints.save(newest, weights, loaded.training(), {**loaded.state(), "best_step": newest})
    assert first.opened.best.weights_sha256 == loaded.weights_sha256 != Run(run).checkpoints.best()[0].weights_sha256
    earlier = search.SearchIndex(loaded.folder, str(tmp_path / "corpus.txt"), ["day 1", "day 2"])  # a named checkpoint
    assert earlier.opened.best.weights_sha256 == loaded.weights_sha256


@pytest.mark.parametrize("change", ["precision", "format"])
def test_search_does_not_reuse_vectors_of_another_kind(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    said: list[str] = []
    for _ in range(2):
        index = search.SearchIndex(runs / "writer", str(tmp_path / "corpus.txt"), ["day 1", "day 2"], say=said.append)
        assert len(index.vectors) == 2
        if change == "precision":
            monkeypatch.setattr(search, "best_precision", lambda *_: "int8")
        else:
            monkeypatch.setattr(search, "FORMAT", search.FORMAT + 1)
    assert [text.split(" lines")[0] for text in said] == ["embedding 2", "embedding 2"]


def test_two_searches_in_the_same_file_make_one_index(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    first, second = (
        search.SearchIndex(runs / "classifier", str(tmp_path / "corpus.txt"), ["day 1", "day 2"], say=said.append)
        for _ in range(2)
    )
    # cached_property of Python 3.11 lets only one thread compute a value
    waits, found, embed = Event(), [], first.embedder.embed
    other = Thread(target=lambda: found.append(search.SearchIndex.vectors.func(second)))

    @contextmanager
    def lock(path: Path) -> Iterator[None]:
        if other.is_alive():
            waits.set()
        with locked(path):
            yield

    def embed_slowly(texts: str | Sequence[str]) -> torch.Tensor:
        other.start()
        assert waits.wait(60), "the second search waits for the first one"
        return embed(texts)

    monkeypatch.setattr(search, "locked", lock)
    monkeypatch.setattr(first.embedder, "embed", embed_slowly)
    assert len(first.vectors) == 2
    other.join()
    np.testing.assert_array_equal(first.vectors, found[0])
    assert len(said) == 1


def test_search_refuses_a_text_without_lines(penwright: Command, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n \n")
    done = penwright("search", runs / "classifier", tmp_path / "empty.txt", "x")
    assert done.returncode == 1 and "the text has no lines" in done.stderr


def test_search_compares_the_lines_with_each_other(penwright: Command, runs: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    lines = [f"a {word} film number {n} {'xyzw'[n % 4] * (n + 3)}" for n in range(12) for word in ("fine", "dull")]
    corpus.write_text("\n".join([*lines, "", lines[4]]) + "\n", encoding="utf-8")
    found = penwright("search", runs / "classifier", corpus, "--duplicates", "--json")
    records = [json.loads(line) for line in found.stdout.splitlines()]
    assert (records[0]["similarity"], records[0]["line"], records[0]["earlier_line"]) == (1.0, 26, 5)
    printed = penwright("search", runs / "classifier", corpus, "--duplicates", "--top", 1)
    assert printed.stdout == f"1.000\t26\t{lines[4]}\t5\t{lines[4]}\n" and "in 25 lines" in printed.stderr
    clusters = penwright("search", runs / "classifier", corpus, "--clusters", 2, "--json").stdout.splitlines()
    assert sorted(each["line"] for line in clusters for each in json.loads(line)["lines"]) == [*range(1, 25), 26]
    text = penwright("search", runs / "classifier", corpus, "--clusters", "auto", "--top", 1).stdout
    assert text.startswith("cluster 1, ") and text.count("\t") == 2 * text.count("cluster ")


@pytest.mark.parametrize(("name", "delimiter"), [("t.csv", ","), ("t.tsv", "\t"), ("t.txt", ",")])
def test_search_in_a_table_says_how_to_search_a_column(
    penwright: Command, runs: Path, tmp_path: Path, name: str, delimiter: str
) -> None:
    path = tmp_path / name
    path.write_text(f"id{delimiter}text\n1{delimiter}a fine film\n2{delimiter}a dull film\n", encoding="utf-8")
    done = penwright("search", runs / "classifier", path, "film")
    assert done.returncode == 0 and ("looks like a table" in done.stderr) == (name != "t.txt")
    if name != "t.txt":
        program = shlex.split(done.stderr.split("such as text: ")[1].splitlines()[0])[2]
        printed = subprocess.check_output([sys.executable, "-c", program], input=path.read_text(), text=True)
        assert printed == "a fine film\na dull film\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["query", "--duplicates"], "exactly one of these"),
        ([], "exactly one of these"),
        ([" \t"], "the query is blank"),
        (["query", "--similarity", "0.99"], "--similarity has no effect without --duplicates"),
        (["--clusters", "x"], "--clusters x is not a number"),
        (["--clusters", "99"], "Choose a number from 2 to 30"),
        (["--duplicates"], "only 9 different texts"),
    ],
)
def test_search_refuses_unclear_requests(
    penwright: Command, runs: Path, tmp_path: Path, options: list[str], said: str
) -> None:
    (tmp_path / "corpus.txt").write_text("\n".join(f"day {n}" for n in range(9)))
    done = penwright("search", runs / "classifier", tmp_path / "corpus.txt", *options)
    assert done.returncode == 2 and said in done.stderr and "embedding" not in done.stderr
