"""Exports of models with tokenizers of other projects run in other engines, with the right special tokens."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from penwright.config import Table
from penwright.formats.ctranslate2 import save_ctranslate2, usage_of
from penwright.formats.gguf import save_gguf
from penwright.generation.generator import Generator
from penwright.model import Model
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.checks import FOREIGN
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.tokenizers.sentencepiece import as_tokenizer_json, parse_sentencepiece
from penwright.translation.translator import Translator

from .conftest import TEXTS

TEXT = "It was"
HEAD = {"pad": 1, "start": 0, "end": 2}
LANGUAGES = {"source_prefix": (4,), "target_prefix": (5,)}


def foreign(conventions: Table, template: str | None = None) -> ForeignTokenizer:
    """Return a byte-level BPE with the special tokens of RoBERTa and NLLB."""
    library = LibraryTokenizer(models.BPE())
    library.pre_tokenizer, library.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "eng_Latn", "deu_Latn"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator(TEXTS, trainer)
    if template is not None:
        ids = [(name, number) for number, name in enumerate(special)]
        library.post_processor = processors.TemplateProcessing(single=template, special_tokens=ids)
    return ForeignTokenizer({**json.loads(library.to_str()), FOREIGN: HEAD | conventions})


@pytest.fixture
def marian(spm) -> ForeignTokenizer:
    """The tokenizer of a Marian with different SentencePiece models for source and target."""
    files = [as_tokenizer_json(parse_sentencepiece(spm("unigram", seed).read_bytes())) for seed in (0, 1)]
    pieces = dict.fromkeys(["</s>", "<unk>"]) | dict.fromkeys(
        piece for file in files for piece, _ in file["model"]["vocab"] if piece != "<s>"
    )
    numbers = {piece: number for number, piece in enumerate([*pieces, "<pad>"])}
    sides = [
        {
            "ids": [numbers.get(piece, 1) for piece, _ in file["model"]["vocab"]],
            "extra": {piece: n for piece, n in numbers.items() if piece not in dict(file["model"]["vocab"])},
        }
        for file in files
    ]
    ends = {"pad": numbers["<pad>"], "start": numbers["<pad>"], "end": 0}
    target = {**files[1], FOREIGN: sides[1]}
    return ForeignTokenizer({**files[0], FOREIGN: {**ends, **sides[0], "target": target}})


def writing_ascii(model: Model, tokenizer: Tokenizer) -> Model:
    """Return the model with a bias against all tokens but ASCII words, so that no engine ends or repairs its output."""
    with torch.no_grad():
        for token in range(tokenizer.vocab_size):
            text = tokenizer.target.token_bytes(token)
            if not (text.isascii() and text.strip().isalnum()):
                model.output.bias[token] -= 50
    return model


def run_usage(usage: str, folder: Path) -> str:
    """Run the Python code of a README.md in a folder; return what it prints."""
    (code,) = re.findall(r"```python\n(.*?)```", usage, re.DOTALL)
    code = code.replace('folder = "."', f"folder = {str(folder)!r}")
    code = code.replace(
        "batch([tokens]", f"batch([tokens], beam_size=1{', max_decoding_length=9' * ('Translator' in code)}"
    )
    with redirect_stdout(StringIO()) as printed:
        exec(code, {})
    return printed.getvalue().removesuffix("\n")


@pytest.mark.parametrize(("conventions", "template"), [({"begins": False}, None), ({}, "<s> $A"), ({"start": 3}, None)])
def test_code_in_the_readme_runs_an_imported_writer(conventions, template, random_model, tmp_path):
    pytest.importorskip("ctranslate2", reason="the extra penwright[ctranslate2] is not installed")
    tokenizer = foreign(conventions, template)
    model = writing_ascii(random_model("generate", tokenizer, output_bias=True), tokenizer)
    save_ctranslate2(model, tokenizer, tmp_path)
    (expected,) = Generator(model, tokenizer).generate(TEXT, temperature=0, max_new_tokens=15)
    found = run_usage(usage_of(model, tokenizer), tmp_path)
    assert len(expected.text) > 14 and found.startswith(expected.text)


@pytest.mark.parametrize("languages", [{}, LANGUAGES])
def test_code_in_the_readme_runs_an_imported_translator(languages, random_model, tmp_path):
    pytest.importorskip("ctranslate2", reason="the extra penwright[ctranslate2] is not installed")
    tokenizer = foreign(languages, f"{'eng_Latn ' * bool(languages)}$A </s>")
    assert_same_translation(random_model("translate", tokenizer, output_bias=True), tokenizer, tmp_path)


def test_marian_with_two_vocabularies_is_exported_with_both(marian, random_model, tmp_path):
    pytest.importorskip("ctranslate2", reason="the extra penwright[ctranslate2] is not installed")
    assert_same_translation(random_model("translate", marian, output_bias=True), marian, tmp_path)
    for name, ours in (("tokenizer.json", marian), ("target_tokenizer.json", marian.target)):
        theirs = LibraryTokenizer.from_file(str(tmp_path / name))
        for text in TEXTS:
            tokens = theirs.encode(text, add_special_tokens=False).tokens
            known = [token if token in ours.pieces else "<unk>" for token in tokens]
            assert known == [ours.pieces[token] for token in ours.encode(text)]


def assert_same_translation(model, tokenizer: Tokenizer, folder: Path) -> None:
    save_ctranslate2(writing_ascii(model, tokenizer), tokenizer, folder)
    (expected,) = Translator(model, tokenizer).translate(TEXT, beam_size=1, max_new_tokens=9)
    found = run_usage(usage_of(model, tokenizer), folder)  # the limit of CTranslate2 counts the target prefix, too
    assert len(found) > 6 and expected.text.startswith(found)


def test_tokenizers_reads_the_file_beside_a_gguf_model(random_model, tmp_path):
    pytest.importorskip("gguf", reason="the extra penwright[gguf] is not installed")
    tokenizer = foreign({})
    save_gguf(random_model("generate", tokenizer), tokenizer, tmp_path)
    theirs = LibraryTokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in TEXTS:
        assert theirs.encode(text, add_special_tokens=False).ids == tokenizer.encode(text)
