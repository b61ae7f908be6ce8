"""Properties of every kind of tokenizer, and of each kind alone."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as LibraryTokenizer
from transformers import PreTrainedTokenizerFast

from penwright.errors import PenwrightError
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.encoders import WordEncoder, ids_type
from penwright.tokenizers.training import KINDS, train_tokenizer

HARD = [
    "",
    " ",
    "  two leading, double  inside, trailing  ",
    "\ttabs\t\tand\r\nCRLF\n\n\n  indented\n",
    "don't we'll I'VE 1234567 3.14 _under_ a-b",
    "family 👨‍👩‍👧‍👦 flag 🇵🇱 skin 👍🏽",
    "right \u200fto left\u200e \u202eoverride\u202c שלום مرحبا",
    "nul \0 separator \u2028 paragraph \u2029 bom \ufeff nbsp\u00a0 \u3000wide",
    "controls \x1b\x1c\x1d .\x1e\x1f\x7f\x85 .\x1c",
    "</s><pad><s><unk> </s> text",
    "Zażółć gęślą jaźń",
    "Zaz\u0307o\u0301łc\u0301 combining",
    "replacement \ufffd itself, last \U0010ffff",
    "日本語の文章です。",
    "Ġ Ċ Ā spelling of bytes",
]
MARKED = "בְּרֵאשִׁית בָּרָא אֱלֹהִים אֵת הַשָּׁמַיִם וְאֵת הָאָרֶץ ฉันรักน้ำที่นี่ हिन्दी में लिखा "
TRAINING = ["The cat sat on the mat, and the dog's mat was sat on. " * 20, *HARD]


@pytest.fixture(scope="module", params=[*KINDS, "bpe of marks", "bpe after a space", "unigram after a space"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    if request.param == "bpe of marks":
        return train_tokenizer("bpe", [*TRAINING, MARKED * 9], 300)
    if request.param.endswith("after a space"):
        return train_tokenizer(request.param.split()[0], TRAINING, 300, prefix_space=True)
    return train_tokenizer(request.param, TRAINING, 300 if request.param in ("bpe", "unigram") else None)


@pytest.fixture(scope="module", params=["bytes", "bpe", "unigram"])
def byte_tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return train_tokenizer(request.param, TRAINING, None if request.param == "bytes" else 300)


@pytest.fixture(scope="module")
def letters() -> Tokenizer:
    return train_tokenizer("characters", ["abc\n"])


@pytest.mark.parametrize("text", HARD)
def test_encode_and_decode_round_trip(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@settings(max_examples=50)
@given(text=st.text())
def test_byte_tokenizers_encode_every_text(byte_tokenizer: Tokenizer, text: str):
    assert byte_tokenizer.decode(byte_tokenizer.encode(text)) == text


@pytest.mark.parametrize("text", HARD)
def test_no_text_encodes_to_a_special_token(tokenizer: Tokenizer, text: str):
    assert max(tokenizer.encode(text), default=0) < tokenizer.vocab_size - (4 if tokenizer.kind == "characters" else 3)


def test_prefix_space_gives_the_first_word_its_usual_token():
    tokenizer = train_tokenizer("bpe", ["the cat and the dog"] * 3, 300, prefix_space=True)
    assert tokenizer.encode("the") == tokenizer.encode("dog the")[1:] and tokenizer.encode("") == []


def test_special_tokens_come_last_in_the_vocabulary(tokenizer: Tokenizer):
    n = tokenizer.vocab_size
    assert (tokenizer.pad_id, tokenizer.start_id, tokenizer.end_id) == (n - 3, n - 2, n - 1)
    assert tokenizer.unknown_id == (n - 4 if tokenizer.kind == "characters" else None)


def test_special_tokens_decode_to_nothing(tokenizer: Tokenizer):
    ids = [tokenizer.start_id, *tokenizer.encode("The mat"), tokenizer.end_id, tokenizer.pad_id]
    assert tokenizer.decode(ids) == "The mat"


def test_encode_batch_agrees_with_encode(tokenizer: Tokenizer):
    batch = tokenizer.encode_batch(HARD)
    assert [ids.tolist() for ids in batch] == [tokenizer.encode(text) for text in HARD]
    assert {ids.dtype for ids in batch} == {np.dtype(np.uint16)}


def test_save_and_load_round_trip(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert (loaded.kind, loaded.vocab_size, loaded.fingerprint) == (
        tokenizer.kind,
        tokenizer.vocab_size,
        tokenizer.fingerprint,
    )
    assert [loaded.encode(text) for text in HARD] == [tokenizer.encode(text) for text in HARD]


@pytest.mark.parametrize("text", HARD)
def test_tokenizers_library_gives_the_same_ids(tokenizer: Tokenizer, text: str, tmp_path: Path):
    tokenizer.save(tmp_path / "tokenizer.json")
    library = LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.encode_special_tokens = True
    assert library.encode(text).ids == tokenizer.encode(text)
    assert library.decode(tokenizer.encode(text)) == text


@settings(max_examples=50)
@given(text=st.text(st.sampled_from("ab.é'_1 \t\n\x1c\x1f\u00a0\u2028\u3000\u0301字👍")))
def test_words_are_split_as_by_the_tokenizers_library(byte_tokenizer: Tokenizer, text: str):
    library = LibraryTokenizer.from_str(byte_tokenizer._library.to_str())
    assert byte_tokenizer.encode(text) == library.encode(text).ids


def test_transformers_loads_the_file_and_gives_the_same_ids(tokenizer: Tokenizer, tmp_path: Path):
    tokenizer.save(tmp_path / "tokenizer.json")
    reference = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json"), split_special_tokens=True)
    for text in HARD:
        assert reference.encode(text, add_special_tokens=False) == tokenizer.encode(text)


def test_lone_surrogate_becomes_a_replacement_character(byte_tokenizer: Tokenizer):
    assert byte_tokenizer.decode(byte_tokenizer.encode("a\ud800b")) == "a\ufffdb"


def test_token_text_is_readable(tokenizer: Tokenizer):
    assert tokenizer.token_text(tokenizer.end_id) == "</s>"
    read = " the mat" if tokenizer.prefix_space else "the mat"
    assert "".join(map(tokenizer.token_text, tokenizer.encode("the mat"))) == read


def test_partial_character_is_shown_in_hexadecimal():
    tokenizer = train_tokenizer("bytes", ["ó"])
    assert [tokenizer.token_text(token_id) for token_id in tokenizer.encode("ó")] == [r"\xc3", r"\xb3"]


def test_unseen_characters_are_encoded_as_unknown_and_listed(letters: Tokenizer):
    ids = letters.encode("aXbYX\ud800")
    assert letters.decode(ids) == "a\ufffdb\ufffd\ufffd\ufffd"
    assert ids.count(letters.unknown_id) == 4
    assert letters.unknown_characters("aXbYX\ud800") == ["X", "Y", "\ufffd"]


def test_byte_tokenizers_have_no_unknown_characters(byte_tokenizer: Tokenizer):
    assert byte_tokenizer.unknown_characters("Xé字") == []


def test_overflow_of_the_word_cache_is_harmless(byte_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(WordEncoder, "max_characters", 5)
    for _ in range(3):
        assert [byte_tokenizer.decode(byte_tokenizer.encode(text)) for text in HARD] == HARD


def test_ids_use_the_smallest_sufficient_dtype():
    assert (ids_type(65_536), ids_type(65_537)) == (np.uint16, np.uint32)


def test_missing_file_is_named(tmp_path: Path):
    with pytest.raises(PenwrightError, match=r"missing\.json"):
        Tokenizer.load(tmp_path / "missing.json")


@pytest.mark.parametrize("damage", ["", "{}", "[]", '{"version": "1.0"', "\x00"])
def test_damaged_file_is_named(tmp_path: Path, damage: str):
    (tmp_path / "tokenizer.json").write_text(damage, encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"tokenizer\.json is damaged or was not made by Penwright"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def test_file_without_our_special_tokens_is_refused(tmp_path: Path, letters: Tokenizer):
    letters.save(tmp_path / "tokenizer.json")
    content = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    (tmp_path / "tokenizer.json").write_text(json.dumps(content | {"added_tokens": []}), encoding="utf-8")
    with pytest.raises(PenwrightError, match="was not made by Penwright"):
        Tokenizer.load(tmp_path / "tokenizer.json")


def _with_pattern(file: dict[str, Any]) -> None:
    (part,) = (each for each in file["pre_tokenizer"]["pretokenizers"] if each["type"] == "Split")
    part["pattern"] = {"Regex": "(x+x+)+y"}


TRUNCATION = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
PADDING = {"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None}
PADDING |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
ENDS = {"type": "BertProcessing", "sep": ["</s>", 1], "cls": ["<s>", 0]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.update(truncation=TRUNCATION), "it defines truncation"),
        (lambda file: file.update(padding=PADDING), "it defines padding"),
        (lambda file: file.update(normalizer={"type": "Lowercase"}), "a normalizer that Penwright does not use"),
        (lambda file: file.update(post_processor=ENDS), "a post_processor that Penwright does not use"),
        (_with_pattern, "a pattern that is not Penwright's"),
        (lambda file: file["model"]["vocab"].update(a=file["model"]["vocab"]["b"]), "two of its tokens have the same"),
        (lambda file: file["model"]["vocab"].update(a=10**6), "not consecutive numbers"),
    ],
)
def test_tokenizer_that_penwright_cannot_have_written_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = tmp_path / "tokenizer.json"
    train_tokenizer("bpe", [*TRAINING, MARKED * 9], 300).save(path)
    Tokenizer.load(path)
    file = json.loads(path.read_text(encoding="utf-8"))
    change(file)
    path.write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(PenwrightError, match=message):
        Tokenizer.load(path)


def test_failed_save_leaves_no_files(tmp_path: Path, letters: Tokenizer):
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(PenwrightError, match="cannot be saved"):
        letters.save(tmp_path / "tokenizer.json")
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
