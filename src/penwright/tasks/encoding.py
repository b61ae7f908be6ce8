"""Encoding: an encoder-only model of running text, trained to predict masked tokens (Devlin et al. 2019)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from penwright.data.batches import IGNORED, Batches, Indices, LabelledBatch, MaskedBatch
from penwright.data.bucketing import LabelledBatches
from penwright.data.corpus import Corpus, Document, ReadingOptions
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
from penwright.tokenizers import Tokenizer

N_SAMPLES, LONGEST_SAMPLE = 3, 60  # number of samples, and their maximum length in tokens
MOST_EVALUATED = 500_000  # maximum number of tokens in a quick evaluation
COUNTED = 20_000_000  # maximum number of training tokens for the baseline, to limit its memory use
SCORE = "nats per hidden token"
MASKED = 0.2  # share of the tokens that are targets
REPLACED = 0.8  # share of the targets that are replaced by the mask token; half of the rest become random tokens
MASKS = ("[MASK]", "<mask>")  # names of the mask in imported tokenizers
MOST_CHARACTERS = 400  # maximum length, in characters, of a passage that consists of several lines
TEXT_COLUMNS, LABEL_COLUMNS = ("text",), ()

open_evaluation, texts = open_evaluation_text, generation.texts


def passages(chunks: Iterable[str]) -> Iterator[str]:
    """Yield the passages of a document: lines joined up to MOST_CHARACTERS characters. A blank line ends a passage."""
    passage, unfinished = "", ""
    for chunk in chunks:
        *lines, unfinished = (unfinished + chunk).split("\n")
        for line in lines:
            if passage and (not line.strip() or len(passage) + len(line) >= MOST_CHARACTERS):
                yield passage
                passage = ""
            if line.strip():
                passage = f"{passage}\n{line}" if passage else line
    yield from filter(str.strip, [passage, unfinished])


class MaskedBatches(Batches[MaskedBatch]):
    """Batches of texts in which a random share of the tokens is masked. Each epoch masks different tokens."""

    def __init__(self, texts: LabelledBatches, vocab_size: int, mask: int):
        """Wrap batches of labelled texts, without their labels; `mask` is the token that replaces a masked one."""
        self.texts, self.vocab_size, self.mask = texts, vocab_size, mask
        self.per_epoch, self.tokens_per_epoch = texts.per_epoch, texts.tokens_per_epoch
        self.n_cut = texts.n_cut

    def batch(self, number: int) -> MaskedBatch:
        """Return the batch with this number, with a random selection of its tokens masked."""
        return self._masked(self.texts.batch(number), np.random.default_rng((self.texts.seed, number, 2)))

    def in_order(self, one_in: int = 1) -> Iterator[MaskedBatch]:
        """Yield all texts, the shortest first. Every call masks the same tokens."""
        for number, batch in enumerate(self.texts.in_order(one_in)):
            yield self._masked(batch, np.random.default_rng((0, number, 2)))

    def examples(self, rows: Indices) -> MaskedBatch:
        """Truncate these texts to the context length, and return them as a batch. Every call masks the same tokens."""
        return self._masked(self.texts.examples(rows), np.random.default_rng((0, *rows.tolist())))

    def _masked(self, batch: LabelledBatch, random: np.random.Generator) -> MaskedBatch:
        markers, shape = self.texts.markers, tuple(batch.tokens.shape)
        is_text = batch.is_token & (batch.tokens != markers.start) & (batch.tokens != markers.end)
        is_target = is_text & torch.from_numpy(random.random(shape) < MASKED)
        fate, others = random.random(shape), torch.from_numpy(random.integers(self.vocab_size, size=shape))
        tokens = batch.tokens.masked_fill(is_target & torch.from_numpy(fate < REPLACED), self.mask)
        is_replaced = is_target & torch.from_numpy((fate >= REPLACED) & (fate < (1 + REPLACED) / 2))
        targets = batch.tokens.masked_fill(~is_target, IGNORED)
        return MaskedBatch(int(is_target.sum()), torch.where(is_replaced, others, tokens), batch.is_token, targets)


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
    return MaskedBatches(texts, context.tokenizer.vocab_size, mask_of(context.tokenizer))


def mask_of(tokenizer: Tokenizer) -> int:
    """Return the token that replaces masked tokens: the mask of an imported tokenizer, otherwise the padding token."""
    return next((tokenizer.special_ids[name] for name in MASKS if name in tokenizer.special_ids), tokenizer.pad_id)


def evaluate(context: RunContext) -> Sequence[Score]:
    """Score the whole held-out set."""
    return _scores(context, 1)


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score a sample of passages, evenly spaced in the held-out set."""
    return _scores(context, -(-len(context.held_out.column("text").tokens) // MOST_EVALUATED))


def _scores(context: RunContext, one_in: int) -> Sequence[Score]:
    held_out = batches(context, context.held_out).in_order(one_in)
    return [Score(SCORE, negative_log_likelihood(context.model, held_out, context.device).mean)]


def baselines(context: RunContext, *, whole: bool = False) -> Sequence[Score]:
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
            states = model.hidden(batch.tokens.to(device), batch.is_token.to(device))[0]
            guesses = (states @ model.embedding.tokens.weight.T).argmax(-1).cpu()
        inside = slice(1, min(1 + LONGEST_SAMPLE, int(batch.is_token.sum()) - 1))  # leave out the start and end tokens
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
