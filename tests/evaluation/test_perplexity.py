import json
from collections.abc import Iterator
from math import log
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers.decoders import Metaspace as MetaspaceDecoder
from tokenizers.models import Unigram
from tokenizers.normalizers import Lowercase, Normalizer, Replace
from tokenizers.pre_tokenizers import Metaspace

from penwright.config import ModelSettings
from penwright.data.batches import IGNORED, Batch, Markers, TextBatch, TextBatches
from penwright.data.corpus import CorpusPart, Document
from penwright.data.store import Column
from penwright.evaluation.perplexity import NegativeLogLikelihood, negative_log_likelihood, text_scores
from penwright.model.transformer import DecoderOnly
from penwright.tasks import RunContext, generation
from penwright.tokenizers.checks import FOREIGN
from penwright.tokenizers.foreign import ForeignTokenizer

CPU = torch.device("cpu")


@pytest.fixture
def model() -> DecoderOnly:
    torch.manual_seed(0)
    return DecoderOnly(12, ModelSettings(d_model=16, n_layers=1, n_heads=2, dropout=0.5, zero_init_outputs=False))


def batches_of(n_tokens: int, rows: int) -> TextBatches:
    tokens = np.arange(n_tokens, dtype=np.uint16) % 8
    return TextBatches(Column(tokens, np.array([0, n_tokens]), n_tokens), 8, 8 * rows, Markers(9, 10, 11))


def test_nll_is_the_summed_negative_log_probability(model: DecoderOnly) -> None:
    tokens, targets = torch.randint(0, 8, (2, 5)), torch.randint(0, 8, (2, 5))
    with torch.no_grad():
        expected = -model.eval()(tokens).log_softmax(-1).gather(-1, targets[..., None]).sum()
    found = negative_log_likelihood(model, [TextBatch(10, tokens, targets, None)], CPU)
    assert found.nats == pytest.approx(float(expected), rel=1e-5) and found.n_targets == 10


def test_nll_does_not_depend_on_batching(model: DecoderOnly) -> None:
    one, many = (negative_log_likelihood(model, batches_of(100, rows).in_order(), CPU) for rows in (1, 5))
    assert one.n_targets == many.n_targets == 101
    assert one.nats == pytest.approx(many.nats, rel=1e-5)


def test_ignored_targets_do_not_count(model: DecoderOnly) -> None:
    tokens = torch.randint(0, 8, (1, 4))
    some = torch.tensor([[3, IGNORED, 11, 5]])
    found = negative_log_likelihood(model, [TextBatch(3, tokens, some, None)], CPU, ignored=11)
    assert found.n_targets == 2


def test_evaluation_restores_training_mode(model: DecoderOnly) -> None:
    model.train()
    negative_log_likelihood(model, batches_of(20, 1).in_order(), CPU)
    assert model.training


def test_failed_evaluation_restores_training_mode(model: DecoderOnly) -> None:
    def broken() -> Iterator[Batch]:
        yield from batches_of(20, 1).in_order()
        raise OSError("the text was deleted")

    model.train()
    with pytest.raises(OSError, match="deleted"):
        negative_log_likelihood(model, broken(), CPU)
    assert model.training


def test_bits_per_byte_use_the_bytes_of_the_text() -> None:
    scores = {
        score.name: score.value
        for score in text_scores(NegativeLogLikelihood(nats=8 * log(2), n_targets=4), n_bytes=16)
    }
    assert scores == pytest.approx({"nats per token": 2 * log(2), "bits per byte": 0.5})


def test_unknown_characters_cost_log2_of_the_unicode_range() -> None:
    known, unknown = (text_scores(NegativeLogLikelihood(nats=8 * log(2), n_targets=4), 16, n)[1] for n in (0, 2))
    assert unknown.value - known.value == pytest.approx(2 * 17.3 / 16, abs=0.01)
    assert "2 unknown characters" in unknown.note


@pytest.mark.parametrize(
    ("normalizer", "text", "n_unknown", "change"),
    [
        (None, "ab ba\nab b", 0, ""),
        (None, "ab Привет\nab", 6, ""),
        (Lowercase(), "Привет\nab\nBa ab", 6, "'Ba' becomes 'ba'"),
        (Replace("\n", " "), "ab\nba", 0, "white space is lost"),
    ],
)
def test_what_an_imported_tokenizer_loses_is_counted_or_named(
    normalizer: Normalizer | None, text: str, n_unknown: int, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces = [("</s>", 0.0), ("<unk>", -9.0), *((letter, -1.0) for letter in "ab\n\u2581")]
    library = LibraryTokenizer(Unigram(pieces, 1))
    library.add_special_tokens(["</s>", "<unk>"])
    library.pre_tokenizer, library.decoder = Metaspace(), MetaspaceDecoder()
    if normalizer is not None:
        library.normalizer = normalizer
    tokenizer = ForeignTokenizer({**json.loads(library.to_str()), FOREIGN: {"pad": 0, "start": 0, "end": 0}})
    column = Mock(tokens=np.array(tokenizer.encode(text)))
    held_out = CorpusPart(lambda: iter([Document("", [text])]), 1, len(text), len(text.encode()))
    corpus = Mock(held_out=held_out, held_out_bytes=held_out.n_bytes)
    context = Mock(spec=RunContext, corpus=corpus, tokenizer=tokenizer, held_out=Mock(column=lambda _: column))
    context.model, context.device = Mock(), CPU
    monkeypatch.setattr(generation, "batches", Mock())
    monkeypatch.setattr(generation, "negative_log_likelihood", lambda *_, **__: NegativeLogLikelihood(8.0, 4))
    _, bits = generation.evaluate(context)
    assert (f"{n_unknown} unknown characters" in bits.note) == bool(n_unknown) and bits.note.endswith(change)
    assert ("across tokenizers" in bits.note) == bool(change)
