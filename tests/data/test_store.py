"""Token stores: exact contents, and complete files or none."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penwright.data import store as store_module
from penwright.data import store_writer
from penwright.data.store import TokenStore, cached_store, open_store, store_key
from penwright.data.store_writer import Cell, write_store
from penwright.errors import PenwrightError
from penwright.storage import sha256_of
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.processes import EncodingProcesses
from penwright.tokenizers.training import train_tokenizer

PAIRS = [("a cat", "un chat"), ("", "vide"), ("two dogs\n", ""), ("", "")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("bpe", ["a cat, two cats; un chat, deux chats"] * 3, 270)


@pytest.fixture
def store(tmp_path: Path, tokenizer: Tokenizer) -> TokenStore:
    return write_store(tmp_path / "pairs", ["source", "target"], PAIRS, tokenizer, "key")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_row_decodes_to_its_text(store: TokenStore, tokenizer: Tokenizer):
    rows = [tuple(tokenizer.decode(store.column(name)[row]) for name in ("source", "target")) for row in range(4)]
    assert rows == PAIRS


def test_empty_texts_are_empty_rows(store: TokenStore):
    assert len(store) == len(store.column("source")) == 4
    assert store.column("source").lengths[[1, 3]].tolist() == [0, 0]


def test_tokens_and_bytes_are_counted(store: TokenStore, tokenizer: Tokenizer):
    assert store.n_tokens("target") == len(tokenizer.encode("un chat")) + len(tokenizer.encode("vide"))
    assert store.n_bytes("target") == len("un chatvide")


def test_n_bytes_counts_utf8_bytes(tmp_path: Path, tokenizer: Tokenizer):
    assert write_store(tmp_path / "text", ["text"], [("ż字",)], tokenizer, "key").n_bytes("text") == 5


def test_row_out_of_range_raises_index_error(store: TokenStore):
    with pytest.raises(IndexError):
        store.column("source")[4]


@settings(max_examples=50)
@given(documents=st.lists(st.lists(st.text(max_size=20))), batch=st.integers(1, 50))
def test_chunked_documents_hold_the_tokens_of_their_chunks(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer, documents: list[list[str]], batch: int
):
    rows = [(iter(chunks),) for chunks in documents]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_writer, "_BATCH_CHARACTERS", batch)
        store = write_store(tmp_path_factory.mktemp("stores") / "text", ["text"], rows, tokenizer, "key")
    column = store.column("text")
    expected = [[token_id for chunk in chunks for token_id in tokenizer.encode(chunk)] for chunks in documents]
    assert [column[row].tolist() for row in range(len(column))] == expected


def test_labels_are_stored_beside_the_texts(tmp_path: Path, tokenizer: Tokenizer):
    rows: list[tuple[Cell, ...]] = [("good", 1), ("bad", 0), ("?", -1)]
    store = write_store(tmp_path / "labelled", ["text"], rows, tokenizer, "key", labels=["label"])
    assert store.labels["label"].tolist() == [1, 0, -1]


def test_empty_store_can_be_opened(tmp_path: Path, tokenizer: Tokenizer):
    store = write_store(tmp_path / "nothing", ["text"], [], tokenizer, "key", labels=["label"])
    assert (len(store), store.n_tokens("text"), len(store.labels["label"])) == (0, 0, 0)


def test_tokens_are_memory_mapped_and_read_only(store: TokenStore):
    tokens = store.column("source").tokens
    assert isinstance(tokens, np.memmap) and not tokens.flags.writeable


def test_large_vocabularies_take_four_bytes_per_token(tmp_path: Path):
    tokenizer = train_tokenizer("characters", ["".join(map(chr, range(0x10000, 0x10000 + 65_533)))])
    store = write_store(tmp_path / "wide", ["text"], [("\U00010000\U0001fffc",)], tokenizer, "key")
    assert store.column("text").tokens.dtype == np.uint32
    assert tokenizer.decode(store.column("text")[0]) == "\U00010000\U0001fffc"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device"), ValueError()])
def test_interrupted_build_leaves_no_files(tmp_path: Path, tokenizer: Tokenizer, error: BaseException):
    def rows() -> Iterator[tuple[str]]:
        yield ("a cat",)
        raise error

    with pytest.raises((PenwrightError, type(error))):
        write_store(tmp_path / "text", ["text"], rows(), tokenizer, "key")
    assert names_in(tmp_path) == []


def test_full_disk_is_reported(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PenwrightError, match=r"text cannot be written: .*No space left on device"):
        write_store(tmp_path / "text", ["text"], [("a cat",)], tokenizer, "key")


def test_week_old_remains_of_killed_builds_are_removed(tmp_path: Path, tokenizer: Tokenizer):
    for name in ("one.part", "two.part", "other.tmp-1"):
        (tmp_path / name).mkdir()
    for name in ("one.part", "other.tmp-1"):
        os.utime(tmp_path / name, (0, 0))
    write_store(tmp_path / "text", ["text"], [], tokenizer, "key")
    assert names_in(tmp_path) == ["text", "two.part"]


CHUNKS = [
    [f"{word} {row} {n} chats\n" for n in range(row)] for row, word in enumerate(["a", "cat", "un", "deux", "two"])
]


class Killed(BaseException):
    """Simulates a killed process."""


@pytest.mark.parametrize("killed_after", range(0, 10, 3))
def test_interrupted_build_resumes_from_its_saved_progress(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, killed_after: int
):
    monkeypatch.setattr(store_writer, "SAVE_EVERY", 20)
    read: list[str] = []

    def rows(killed_after: int) -> Iterator[tuple[Iterator[str]]]:
        def chunks(row: list[str]) -> Iterator[str]:
            for chunk in row:
                if len(read) == killed_after:
                    raise Killed
                read.append(chunk)
                yield chunk

        yield from ((chunks(row),) for row in CHUNKS)

    whole = write_store(tmp_path / "whole", ["text"], rows(99), tokenizer, "key")
    read.clear()
    with pytest.raises(Killed):
        write_store(tmp_path / "text", ["text"], rows(killed_after), tokenizer, "key")
    assert names_in(tmp_path) == (["text.part", "whole"] if killed_after > 1 else ["whole"])
    read.clear()
    encoded: list[str] = []
    encode = Tokenizer.encode_ragged
    monkeypatch.setattr(Tokenizer, "encode_ragged", lambda self, texts: (encoded.extend(texts), encode(self, texts))[1])
    resumed = write_store(tmp_path / "text", ["text"], rows(99), tokenizer, "key")
    assert resumed.hashes == whole.hashes and resumed.n_bytes("text") == whole.n_bytes("text")
    assert len(encoded) <= 10 - killed_after + 2  # chunks hold 14 characters or more
    assert names_in(tmp_path) == ["text", "whole"]


def test_interrupted_build_of_pairs_and_labels_resumes(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(store_writer, "SAVE_EVERY", 20)
    every = [(f"a cat {n}", f"un chat {n}", n) for n in range(10)]

    def interrupted() -> Iterator[tuple[str, str, int]]:
        yield from every[:7]
        raise Killed

    def write(name: str, rows: Iterator[tuple[str, str, int]]) -> TokenStore:
        return write_store(tmp_path / name, ["source", "target"], rows, tokenizer, "key", labels=["label"])

    with pytest.raises(Killed):
        write("text", interrupted())
    assert write("text", iter(every)).hashes == write("whole", iter(every)).hashes


def test_progress_of_another_store_is_discarded(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(store_writer, "SAVE_EVERY", 1)
    with pytest.raises(Killed):
        write_store(tmp_path / "text", ["text"], (_killed() if n else ("a cat",) for n in range(2)), tokenizer, "old")
    store = write_store(tmp_path / "text", ["text"], [("two",)], tokenizer, "new")
    assert [tokenizer.decode(store.column("text")[row]) for row in range(len(store))] == ["two"]


def _killed() -> tuple[str]:
    raise Killed


def test_several_processes_write_the_same_store(tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    def write(name: str) -> TokenStore:
        return write_store(tmp_path / name, ["text"], [(iter(row),) for row in CHUNKS], tokenizer, "key")

    alone = write("alone")
    monkeypatch.setattr(store_writer, "FEW", 1)
    monkeypatch.setattr(store_writer, "_BATCH_CHARACTERS", 30)
    monkeypatch.setattr(store_writer, "_n_processes", lambda: 2)
    (tmp_path / "json.py").write_text("raise ImportError('a file of the working folder is no module')")
    monkeypatch.chdir(tmp_path)
    assert write("together").hashes == alone.hashes


def test_killed_encoding_process_is_reported_with_advice(tokenizer: Tokenizer):
    processes = EncodingProcesses(tokenizer, 1)
    try:
        assert processes.submit([b"a cat"]).result().tokens.tolist() == tokenizer.encode("a cat")
        processes._processes[0].kill()
        with pytest.raises(PenwrightError, match="Run the same command again"):
            processes.submit([b"a cat"]).result()
    finally:
        processes.close()


def test_second_equal_build_keeps_the_first_store(store: TokenStore, tokenizer: Tokenizer):
    write_store(store.folder, ["source", "target"], PAIRS, tokenizer, "key")
    assert names_in(store.folder.parent) == ["pairs"]


def test_store_with_another_key_is_not_overwritten(store: TokenStore, tokenizer: Tokenizer):
    with pytest.raises(PenwrightError, match="pairs cannot be written"):
        write_store(store.folder, ["text"], [], tokenizer, "another key")
    assert open_store(store.folder).key == "key"


def test_cached_store_is_built_once(tmp_path: Path, tokenizer: Tokenizer):
    built = []

    def build(folder: Path) -> None:
        built.append(folder.name)
        write_store(folder, ["text"], [("a cat",)], tokenizer, folder.name)

    for key in ("one", "one", "two", "one"):
        assert cached_store(tmp_path / "cache", key, build).key == key
    assert built == ["one", "two"]


@pytest.mark.parametrize("name", ["source.tokens.bin", "target.offsets.bin", "store.json"])
@pytest.mark.parametrize("damage", ["missing", "cut"])
def test_damaged_store_is_rebuilt(store: TokenStore, tokenizer: Tokenizer, name: str, damage: str):
    path = store.folder / name
    content = path.read_bytes()
    path.unlink()
    if damage == "cut":
        path.write_bytes(content[:-2])
    with pytest.raises(PenwrightError):
        open_store(store.folder)
    rebuilt = cached_store(
        store.folder.parent,
        store.folder.name,
        lambda folder: write_store(folder, ["source", "target"], PAIRS, tokenizer, "key"),
    )
    assert rebuilt.hashes == store.hashes


def test_verify_finds_a_changed_byte(store: TokenStore):
    store.verify()
    path = store.folder / "source.tokens.bin"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)
    with pytest.raises(PenwrightError, match=r"source\.tokens\.bin is damaged"):
        store.verify()


def test_store_of_another_version_is_refused(store: TokenStore):
    path = store.folder / "store.json"
    path.write_text(path.read_text(encoding="utf-8").replace('"version": 3', '"version": 0'), encoding="utf-8")
    with pytest.raises(PenwrightError, match="format 0"):
        open_store(store.folder)


def test_store_key_depends_on_each_part():
    keys = {store_key("ab", "c"), store_key("a", "bc"), store_key("abc"), store_key("c", "ab")}
    assert len(keys) == 4


def test_stores_can_be_moved(store: TokenStore, tmp_path: Path):
    shutil.move(store.folder, tmp_path / "elsewhere")
    open_store(tmp_path / "elsewhere").verify()


def test_cached_store_with_changed_bytes_is_rebuilt(tmp_path: Path, tokenizer: Tokenizer):
    def build(folder: Path) -> None:
        write_store(folder, ["source", "target"], PAIRS, tokenizer, "key")

    first = cached_store(tmp_path, "key", build)
    file = next(path for path in first.folder.iterdir() if path.name == "target.tokens.bin")
    sound = file.read_bytes()
    file.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    cached_store(tmp_path, "key", build).verify()
    assert file.read_bytes() == sound


def test_large_files_are_read_again_only_after_a_change(
    store: TokenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read: list[str] = []

    def read_and_note(path: Path) -> str:
        read.append(path.name)
        return sha256_of(path)

    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(store_module, "sha256_of", read_and_note)
    path = store.folder / "source.tokens.bin"
    monkeypatch.setattr(store_module, "LARGE", path.stat().st_size)
    store.trust()
    store.verify()
    assert path.name not in read
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(PenwrightError, match=r"source\.tokens\.bin is damaged"):
        store.verify()
    path.write_bytes(content)
    store.verify()
    store.verify()
    assert read.count(path.name) == 2
