"""Encoding: an encoder-only model of running text, trained to predict masked tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from penwright.data.batches import IGNORED
from penwright.data.bucketing import LabelledBatches
from penwright.data.corpus import Corpus, Document, ReadingOptions
from penwright.data.masking import MaskedBatches, passages
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.data.text import open_evaluation_text, open_text
from penwright.evaluation.baselines import ngram_baselines
from penwright.evaluation.perplexity import negative_log_likelihood
from penwright.evaluation.scores import Sample, Score
from penwright.model import evaluating
from penwright.model.transformer import EncoderOnly
from penwright.tasks import generation
from penwright.tasks.context import AnyPart, RunContext

N_SAMPLES, LONGEST_SAMPLE = 3, 60  # number of samples, and their maximum length in tokens
MOST_EVALUATED = 500_000  # maximum number of tokens in a quick evaluation
COUNTED = 20_000_000  # maximum number of training tokens for the baseline, to limit its memory use
SCORE = "nats per hidden token"
TEXT_COLUMNS, LABEL_COLUMNS = ("text",), ()

open_evaluation, texts = open_evaluation_text, generation.texts


def open_corpus(paths: Sequence[str | Path], reading: ReadingOptions) -> Corpus[Document]:
    """Open running text for training."""
    corpus = open_text(paths, reading)
    # a different fingerprint than for generation, since different tokens are cached for the same text
    return replace(corpus, fingerprint=f"{corpus.fingerprint}-passages")


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    """Yield the passages of each document."""
    for document in part:
        assert isinstance(document, Document)
        for passage in passages(document.chunks):
            yield (passage,)


def batches(context: RunContext, store: TokenStore) -> MaskedBatches:
    """Return the batches of a token store."""
    recipe, column = context.recipe, store.column("text")
    length, tokens = recipe.model.context_length, recipe.training.batch_tokens
    no_labels = np.zeros(len(column), dtype=np.int32)
    texts = LabelledBatches(column, no_labels, length, tokens, context.markers, recipe.seed)
    return MaskedBatches(texts, context.tokenizer.vocab_size)


def evaluate(context: RunContext) -> Sequence[Score]:
    """Score the whole held-out set."""
    return _scores(context, 1)


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score a sample of passages, evenly spaced in the held-out set."""
    return _scores(context, -(-len(context.held_out.column("text").tokens) // MOST_EVALUATED))


def _scores(context: RunContext, one_in: int) -> Sequence[Score]:
    held_out = batches(context, context.held_out).in_order(one_in)
    return [Score(SCORE, negative_log_likelihood(context.model, held_out, context.device).mean)]


def baselines(context: RunContext, whole: bool = False) -> Sequence[Score]:
    """Score a unigram model, which knows only the frequencies of tokens."""
    assert context.training is not None
    training, held_out = (store.column("text").tokens for store in (context.training, context.held_out))
    nats = ngram_baselines(training[:COUNTED], held_out[:COUNTED], context.tokenizer.vocab_size, order=1)
    return [Score(SCORE, value, note=name) for name, value in nats.items()]


def sample(context: RunContext) -> Sequence[Sample]:
    """Fill in the masked tokens at the beginning of a few held-out passages."""
    model, hidden = context.model, batches(context, context.held_out)
    assert isinstance(model, EncoderOnly)
    samples = []
    for row in range(min(N_SAMPLES, len(context.held_out.column("text")))):
        batch = hidden.examples(np.array([row]))
        with torch.inference_mode(), evaluating(model) as device:
            states = model.hidden(batch.tokens.to(device), batch.padding.to(device))[0]
            guesses = (states @ model.embedding.tokens.weight.T).argmax(-1).cpu()
        inside = slice(1, min(1 + LONGEST_SAMPLE, int(batch.padding.sum()) - 1))  # leave out the start and end tokens
        targets = batch.targets[0, inside]
        is_target = targets != IGNORED
        truth = torch.where(is_target, targets, batch.tokens[0, inside])
        filled = torch.where(is_target, guesses[inside], truth)
        shown = [b"[...]" if each else None for each in is_target.tolist()]
        samples.append(
            Sample(
                _text(context, truth.tolist(), shown), _text(context, filled.tolist()), _text(context, truth.tolist())
            )
        )
    return samples


def _text(context: RunContext, tokens: Sequence[int], shown: Sequence[bytes | None] = ()) -> str:
    """Return the text of these tokens; entries of `shown` that are not None replace the bytes of their tokens."""
    own = [context.tokenizer.token_bytes(token) for token in tokens]
    parts = [other or each for each, other in zip(own, shown or [None] * len(own), strict=True)]
    return b"".join(parts).decode("utf-8", "replace").strip()
