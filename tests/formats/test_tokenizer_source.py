"""`tokenizer.from`: a tokenizer of another project or run for a model trained from scratch."""

import base64
import json
from pathlib import Path

import pytest
import transformers
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

import penwright
from penwright.errors import PenwrightError, UsageError
from penwright.formats.huggingface_tokenizer import read_tokenizer
from penwright.formats.tokenizer_files import parse_tokenizer_json, tokenizer_json
from penwright.formats.tokenizer_source import read_tokenizer_source
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.sentencepiece import SentencePiece, SentencePieceModel, as_protobuf
from penwright.tokenizers.training import train_tokenizer
from penwright.workflows.load import open_run
from penwright.workflows.resume import resume

from .conftest import TEXTS

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
QUICK = {
    "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "context_length": 32},
    "training": {"steps": 4, "batch_tokens": 128, "precision": "float32", "threads": 1, "compile": "off"},
}


def vocab_txt(folder: Path) -> Path:
    letters = sorted({letter for text in TEXTS for letter in text.lower() if letter.isalnum()} | set(".,;'!:"))
    words = ["the", "cat", "dog", "##s", "sat", "on", "mat", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *words]) + "\n", encoding="utf-8")
    return folder / "vocab.txt"


def test_vocab_txt_with_capital_letters_is_cased(tmp_path: Path) -> None:
    words = ["The", "the", "cat", "##s", "sat", ".", "?", "-"]
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, *words]) + "\n", encoding="utf-8")
    cased = read_tokenizer_source(str(tmp_path / "vocab.txt"))
    assert cased.decode(cased.encode("The cats sat. the cat - the cats?")) == "The cats sat. the cat - the cats?"
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}', encoding="utf-8")
    assert read_tokenizer_source(str(tmp_path)).encode("The") == cased.encode("the") != cased.encode("The")


def byte_level(folder: Path) -> Path:
    """Save a tokenizer.json without special tokens."""
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    library.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    library.save(str(folder / "their-tokenizer.json"))
    return folder / "their-tokenizer.json"


def own_run(folder: Path) -> Path:
    run = folder / "run"
    run.mkdir()
    (run / "recipe.toml").write_text("", encoding="utf-8")
    train_tokenizer("bpe", TEXTS, 300).save(run / "tokenizer.json")
    return run


def write_novel(folder: Path) -> Path:
    (folder / "novel.txt").write_text("The cats sat on the mat, and 12 dogs sat there.\n" * 80, encoding="utf-8")
    return folder / "novel.txt"


@pytest.mark.parametrize("make", [vocab_txt, byte_level, own_run, "unigram", "bpe"])
def test_each_tokenizer_is_used_unchanged(make, spm, tmp_path: Path) -> None:
    path = spm(make) if isinstance(make, str) else make(tmp_path)
    ours = read_tokenizer_source(str(path))
    assert len({ours.start_id, ours.end_id, ours.pad_id}) == 3
    assert ours.decode(ours.encode("the cat sat on the mat")) == "the cat sat on the mat"
    assert not {ours.start_id, ours.end_id, ours.pad_id} & set(ours.encode("</s><pad> [SEP] <s>"))
    if make is byte_level:
        theirs = LibraryTokenizer.from_file(str(path))
        assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text).ids for text in TEXTS]
        assert ours.vocab_size == theirs.get_vocab_size() + 3
    if make is vocab_txt:
        assert (ours.pad_id, ours.start_id, ours.end_id) == (0, 2, 3)
    if isinstance(make, str):
        import sentencepiece

        theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
        assert [ours.encode(text) for text in TEXTS] == [theirs.encode(text) for text in TEXTS]
        path = spm(make, remove_extra_whitespaces=False)
        ours, theirs = read_tokenizer_source(str(path)), sentencepiece.SentencePieceProcessor(model_file=str(path))
        for text in ("", " ", " the", "  the  cat "):
            assert ours.encode(text) == theirs.encode(text)


def test_tokenizer_of_a_gguf_file_is_used(bpe: Tokenizer, random_model, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="the extra penwright[gguf] is not installed")
    from penwright.workflows.export import save_as

    save_as("gguf", random_model("generate", bpe), bpe, tmp_path / "gguf")
    ours = read_tokenizer_source(str(tmp_path / "gguf" / "model.gguf"))
    assert [ours.encode(text) for text in TEXTS] == [bpe.encode(text) for text in TEXTS]


@pytest.mark.parametrize("make", [vocab_txt, byte_level, own_run])
def test_run_with_a_given_tokenizer_is_trained_and_exported(make, tmp_path: Path) -> None:
    settings = {**QUICK, "tokenizer": {"from": str(make(tmp_path))}}
    ours = penwright.train(write_novel(tmp_path), run=tmp_path / "new", settings=settings, quiet=True)
    recipe = open_run(tmp_path / "new").recipe
    expected = read_tokenizer_source(settings["tokenizer"]["from"])
    assert recipe.tokenizer.from_ == settings["tokenizer"]["from"]
    assert recipe.tokenizer.type == ("bpe" if make is own_run else "imported")
    assert recipe.tokenizer.vocab_size == expected.vocab_size
    assert ours.tokenizer.fingerprint == expected.fingerprint
    assert not recipe.tokenizer.is_pretrained
    resume(tmp_path / "new", {"training": {"steps": 2}})
    penwright.export(tmp_path / "new", "huggingface", tmp_path / "exported")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert theirs("the cats sat", add_special_tokens=False)["input_ids"] == ours.tokenizer.encode("the cats sat")
    again = penwright.import_model(tmp_path / "exported", tmp_path / "again")
    text = penwright.load(tmp_path / "new").generate("the cat", temperature=0, max_new_tokens=8)[0].text
    assert again.generate("the cat", temperature=0, max_new_tokens=8)[0].text == text


def test_run_with_a_given_tokenizer_is_fine_tuned_like_our_own(tmp_path: Path) -> None:
    settings = {**QUICK, "tokenizer": {"from": str(vocab_txt(tmp_path))}}
    novel = write_novel(tmp_path)
    penwright.train(novel, run=tmp_path / "new", settings=settings, quiet=True)
    (tmp_path / "vocab.txt").unlink()  # the run has its own copy
    further = {"training": QUICK["training"]}
    penwright.train(novel, run=tmp_path / "further", base=tmp_path / "new", settings=further, quiet=True)
    assert open_run(tmp_path / "further").recipe.optimizer.type == "muon"  # not the settings for pretrained models


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "bytes"}, r"tokenizer.type = 'bytes', but the tokenizer of .* has 'imported'"),
        ({"vocab_size": 500}, r"tokenizer.vocab_size = 500, but the tokenizer of"),
    ],
)
def test_conflicting_tokenizer_settings_are_refused(changes, message: str, tmp_path: Path) -> None:
    settings = {**QUICK, "tokenizer": {"from": str(vocab_txt(tmp_path)), **changes}}
    with pytest.raises(UsageError, match=message):
        penwright.train(write_novel(tmp_path), run=tmp_path / "new", settings=settings, quiet=True)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("nothing", None, "there is no tokenizer"),
        ("tokenizer.json", b"{", "cannot be used"),
        ("tokenizer.json", b'{"model": {"type": "Mystery", "vocab": {}}, "added_tokens": []}', "Mystery"),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {}}}', "it has no list of added_tokens"),
        ("tokenizer.json", b'{"model": null}', "it has no model with a type and a vocab"),
        ("spiece.model", b"\x0a\xff", "it is truncated"),
        ("long.model", as_protobuf(SentencePieceModel([SentencePiece("a" * 1001, 0.0)])), "more than 1,000 characters"),
        ("weights.gguf", b"GGML", "cannot be read as GGUF"),
        ("empty", b"", "pieces"),
    ],
)
def test_damaged_tokenizer_is_refused(name: str, content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(PenwrightError, match=message):
        read_tokenizer_source(str(tmp_path / name))


@pytest.mark.parametrize("charsmap", [b"\x01", b"\4\0\0\0\0\0\0\0"])  # damage found when reading, when encoding
def test_tokenizer_with_damaged_normalization_is_refused(charsmap: bytes, spm, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(spm("unigram").read_bytes())
    file = tokenizer_json(tmp_path, {})
    damaged = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file | {"normalizer": damaged}), encoding="utf-8")
    ids = {"bos_token_id": 1, "eos_token_id": 2}
    for read in (read_tokenizer_source, lambda folder: read_tokenizer(Path(folder), ids, "generate", None)):
        with pytest.raises(PenwrightError, match="The file is damaged"):
            read(str(tmp_path))


def replacement(pattern: dict[str, str], content: str) -> dict[str, object]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    "steps",
    [
        [replacement({"String": "t"}, "t" * 10)] * 10,
        [{"type": "Sequence", "normalizers": [replacement({"String": "tt"}, "t" * 20)] * 10}],
        [replacement({"Regex": "(?=t)"}, "t")] * 40,
        [replacement({"String": "t"}, "\ufdfa"), replacement({"Regex": "\\w"}, "t"), {"type": "NFKC"}] * 10,
        [{"type": "Prepend", "prepend": "t" * 101}],
        [replacement({"String": ""}, "t")],
        [{"type": "ByteLevel"}] * 30,
    ],
)
@pytest.mark.parametrize(
    "read", [read_tokenizer_source, lambda folder: read_tokenizer(Path(folder), {}, "generate", None)]
)
def test_normalizer_that_would_exhaust_memory_is_refused(read, steps: list[dict[str, object]], tmp_path: Path) -> None:
    file = json.loads(byte_level(tmp_path).read_bytes()) | {"normalizer": {"type": "Sequence", "normalizers": steps}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"exhausts memory|replaces nothing"):
        read(str(tmp_path))


def test_text_that_a_pattern_cannot_split_is_refused(tmp_path: Path) -> None:
    file = json.loads(byte_level(tmp_path).read_bytes())
    slow = {"type": "Split", "pattern": {"Regex": r"(a+)+\d"}, "behavior": "Isolated", "invert": False}
    file["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [slow, file["pre_tokenizer"]]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    ours = read_tokenizer_source(str(tmp_path / "tokenizer.json"))
    for use in (ours.encode, ours.sizes, ours.unknown_characters):
        with pytest.raises(PenwrightError, match="cannot split this text"):
            use("a" * 99)


@pytest.mark.parametrize("text", ["Μῆνιν ἄειδε θεὰ Πηληϊάδεω Ἀχιλῆος", "spottingω matteω thedogω"])
def test_text_of_unknown_characters_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "greek.txt").write_text(f"{text}\n" * 100, encoding="utf-8")
    settings = {**QUICK, "tokenizer": {"from": str(vocab_txt(tmp_path))}}
    with pytest.raises(PenwrightError, match="% of this text is in words that the tokenizer does not know"):
        penwright.train(tmp_path / "greek.txt", run=tmp_path / "new", settings=settings, quiet=True)


def test_model_without_a_type_is_recognized(tmp_path: Path) -> None:
    path = byte_level(tmp_path)
    file, whole = json.loads(path.read_bytes()), read_tokenizer_source(str(path))
    del file["model"]["type"]  # as in the file of GPT-2
    path.write_text(json.dumps(file), encoding="utf-8")
    assert read_tokenizer_source(str(path)).encode(TEXTS[0]) == whole.encode(TEXTS[0])
    parts = ({"vocab": {"a": 0}, "merges": []}, {"vocab": {"a": 0}}, {"vocab": [["a", 0.0]]})
    kinds = [parse_tokenizer_json(json.dumps({"model": part}).encode())["model"]["type"] for part in parts]
    assert kinds == ["BPE", "WordPiece", "Unigram"]


def test_tokenizer_folder_of_another_project_is_read(tmp_path: Path) -> None:
    byte_level(tmp_path).rename(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<|endoftext|>"}), encoding="utf-8")
    ours = read_tokenizer_source(str(tmp_path))
    assert ours.token_text(ours.start_id) == "<s>"  # the configured name is not a token of the file
    assert ours.token_text(ours.pad_id) == "<pad>"
