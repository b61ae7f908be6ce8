"""Exports of models with tokenizers of other projects run in other engines, with the right special tokens."""

import json
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from penwright.classification.classifier import Classifier
from penwright.config import Table
from penwright.formats.ctranslate2 import save_ctranslate2, usage_of
from penwright.formats.export import ModelMetadata
from penwright.formats.gguf import save_gguf
from penwright.formats.huggingface import read_huggingface
from penwright.formats.huggingface_export import save_huggingface
from penwright.generation.generator import Generator
from penwright.languages import Languages
from penwright.model import Model
from penwright.model.transformer import EncoderDecoder
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.checks import FOREIGN
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.tokenizers.sentencepiece import as_tokenizer_json, parse_sentencepiece
from penwright.translation.translator import Translator

from .conftest import TEXTS
from .huggingface_models import load_huggingface

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


def test_code_in_the_readme_stops_at_every_end_token(random_model, tmp_path):
    pytest.importorskip("ctranslate2", reason="the extra penwright[ctranslate2] is not installed")
    tokenizer = foreign({"ends": (4,)})
    model = random_model("generate", tokenizer, output_bias=True)
    for end in (4, 5):
        with torch.no_grad():
            model.output.bias[end] = 10_000 * end
        save_ctranslate2(model, tokenizer, tmp_path)
        assert run_usage(usage_of(model, tokenizer, 5), tmp_path) == ""
    assert "end_token" not in usage_of(model, foreign({}), 2)


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


def with_likely_padding(model: EncoderDecoder, tokenizer: Tokenizer) -> EncoderDecoder:
    """Return the model with the padding as its likeliest token, as in an OPUS-MT model."""
    with torch.no_grad():
        model.output.bias[tokenizer.pad_id] += 50
    return writing_ascii(model, tokenizer)


TRANSLATOR = {
    "norm": {"type": "layer", "eps": 1e-5},
    "bias": True,
    "feed_forward": "relu",
    "tie_embeddings": "all",
}
MARIAN = {
    "norm_position": "post",
    "output_bias": True,
    "positions": {"type": "sinusoidal", "layout": "halves"},
}
M2M100 = {"positions": {"type": "sinusoidal", "layout": "tensor2tensor", "offset": 2}}


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_exported_marian_never_writes_padding(marian, random_model, tmp_path):
    model = with_likely_padding(random_model("translate", marian, **TRANSLATOR, **MARIAN), marian)
    assert_transformers_translates_the_same(model, marian, tmp_path)
    with torch.no_grad():
        again, tokens = load_huggingface(tmp_path), torch.randint(60, (1, 9))
        assert torch.equal(again(tokens, tokens >= 0, tokens), model(tokens, tokens >= 0, tokens))


def test_ctranslate2_never_writes_padding(marian, random_model, tmp_path):
    pytest.importorskip("ctranslate2", reason="the extra penwright[ctranslate2] is not installed")
    model = random_model("translate", marian, **TRANSLATOR, **MARIAN)
    assert_same_translation(with_likely_padding(model, marian), marian, tmp_path)


def test_exported_multilingual_translator_keeps_its_languages(random_model, tmp_path):
    tokenizer = foreign({"start": 2, **LANGUAGES}, "deu_Latn $A </s>")
    model = random_model("translate", tokenizer, **TRANSLATOR, **M2M100)
    assert_transformers_translates_the_same(model, tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == tokenizer.source(tokenizer.encode(text))
    again = read_huggingface(tmp_path, Languages("eng_Latn", "deu_Latn")).tokenizer
    assert again.source(()) == tokenizer.source(()) and again.target_prefix == tokenizer.target_prefix


def assert_transformers_translates_the_same(model, tokenizer: Tokenizer, folder: Path) -> None:
    save_huggingface(model, tokenizer, folder)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    given = transformers.AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
    written = theirs.generate(**given, num_beams=1, do_sample=False, max_new_tokens=9)[0].tolist()
    source = tokenizer.source(tokenizer.encode(TEXT))
    assert given["input_ids"].tolist() == [source]
    prefix = [tokenizer.start_id, *tokenizer.target_prefix]
    assert written[: len(prefix)] == prefix
    with torch.no_grad():
        for n in range(len(prefix), len(written) - 1):  # transformers forces the end token at the limit
            read = torch.tensor([source])
            logits = model(read, read >= 0, torch.tensor([written[:n]]))[0, -1]
            logits[tokenizer.pad_id] = -torch.inf
            assert written[n] == logits.argmax()


ENCODER = {
    "norm": {"type": "layer", "eps": 1e-12},
    "norm_position": "post",
    "bias": True,
    "feed_forward": "gelu",
    "positions": {"type": "learned"},
    "embedding_norm": True,
}
CLASSIFIER = ENCODER | {"pooling": "first", "pooler": True, "text_pairs": True}


@pytest.mark.parametrize(("ends", "types"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("template", [None, "<s> $A </s>"])
def test_exported_classifier_reads_texts_and_pairs_as_ours(ends, types, template, random_model, tmp_path):
    tokenizer = foreign({"pair_ends": ends}, template)
    model = random_model("classify", tokenizer, **CLASSIFIER, token_types=types)
    labels = ("no", "yes")
    save_huggingface(model, tokenizer, tmp_path, metadata=ModelMetadata(labels))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    encode = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Classifier(model, tokenizer, labels)
    pairs = [("The cat", "the dogs sat"), ("12 dogs", "sat")]
    given = [encode(*pair, return_tensors="pt") for pair in pairs]
    with torch.no_grad():
        for inputs, expected in zip(given, ours.classify(pairs), strict=True):
            found = theirs(**inputs).logits.softmax(-1)[0].tolist()
            assert dict(zip(labels, found, strict=True)) == pytest.approx(expected.scores, abs=1e-5)
    assert encode(TEXT)["input_ids"] == [0, *tokenizer.encode(TEXT), 2]
    again = read_huggingface(tmp_path, pairs=True)
    assert (again.tokenizer.pair_ends, again.outline.settings.token_types) == (ends, types)


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_exported_encoder_keeps_its_pooling(pooling, random_model, tmp_path):
    tokenizer = foreign({})
    model = random_model("classify", tokenizer, 0, **ENCODER, pooling=pooling)
    save_huggingface(model, tokenizer, tmp_path)
    modules = json.loads((tmp_path / "modules.json").read_text())
    kinds = [each["type"].rpartition(".")[2] for each in modules]
    assert kinds == ["Transformer", "Pooling", "Normalize"]
    settings = json.loads((tmp_path / modules[1]["path"] / "config.json").read_text())
    assert settings["word_embedding_dimension"] == model.settings.d_model
    found = read_huggingface(tmp_path).outline.settings
    assert (found.pooling, found.pooler) == (pooling, False)
