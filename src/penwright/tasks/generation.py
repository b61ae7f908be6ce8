"""Generation: a decoder-only model of running text."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from penwright.data.batches import IGNORED, TextBatches
from penwright.data.corpus import Document
from penwright.data.store import Column, TokenStore
from penwright.data.store_writer import Cell
from penwright.data.text import open_evaluation_text, open_text
from penwright.evaluation.baselines import ngram_baselines
from penwright.evaluation.perplexity import NegativeLogLikelihood, negative_log_likelihood, text_scores
from penwright.evaluation.scores import Sample, Score
from penwright.generation.generator import Generator
from penwright.model import DecoderOnly, evaluating
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext
from penwright.text import first_words
from penwright.tokenizers.foreign import ForeignTokenizer

N_PROMPTS, WORDS = 2, 3  # number of default prompts for samples, and number of words per prompt
SAMPLE_TOKENS, FEW_TOKENS = 150, 50  # tokens per sample: by default, and for slow imported models on a CPU
MOST_EVALUATED = 500_000  # maximum number of tokens in a quick evaluation
EVALUATED_PER_MINUTE = 60_000  # maximum number of tokens evaluated per minute of budget, to keep evaluations short
# On a CPU, maximum product of parameters and tokens in a quick evaluation of an imported model (about 15 seconds).
MOST_COMPUTED = 5 * 10**11
# The possible factors for calibrating the logits, the maximum number of held-out tokens to choose one, and the minimum
# relative decrease of the loss that is worth a factor.
FACTORS, CALIBRATION_TOKENS, LEAST_DECREASE = [percent / 100 for percent in range(60, 125, 5)], 20_000, 0.002
ROWS = 512  # number of tokens whose logits are computed at once, to limit memory
LONGEST_WINDOW = 1024  # maximum window for imported models, in tokens, as in transformers' examples
COUNTED = 5_000_000  # maximum number of training tokens for the baselines, to limit memory and time
# Number of characters of the held-out text in which unknown tokens are measured, and in which changes are sought.
CHECKED, COMPARED = 1_000_000, 50_000
LONGEST_EXAMPLE = 20  # maximum number of characters of a word in an example
TEXT_COLUMNS, LABEL_COLUMNS = ("text",), ()

open_corpus, open_evaluation = open_text, open_evaluation_text


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    """Yield the text of each document, in chunks."""
    for document in part:
        assert isinstance(document, Document)
        yield (document.chunks,)


def texts(corpus: AnyCorpus) -> Iterator[str]:
    """Yield the chunks of the training documents."""
    yield from _chunks(corpus.training)


def _chunks(part: AnyPart) -> Iterator[str]:
    for document in part:
        assert isinstance(document, Document)
        yield from document.chunks


def evaluate(context: RunContext) -> Sequence[Score]:
    """Score the whole held-out set."""
    return _scores(context, 1)


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score a sample of windows, spread over the held-out set, and scale the result up to the whole set."""
    with context.quick_precision():
        return _scores(context, _window_stride(context))


@torch.inference_mode()
def calibrate(context: RunContext) -> str:
    """Multiply the logits of the model by the factor that is best on held-out text; return a message about it, or "".

    A writer that has read a small text many times is too sure of its predictions. A factor below 1 then lowers the
    held-out loss ("temperature scaling", Guo et al. 2017). It becomes part of the final norm, and so of every export.
    Models without a final norm or with a bias in the output layer stay as they are, and so do those that are trained
    with LoRA, and imported ones on a CPU.
    """
    model, n_tokens = context.model, len(context.held_out.column("text").tokens)
    if not isinstance(model, DecoderOnly) or context.recipe.lora or context.is_slow:
        return ""
    if isinstance(model.decoder.norm, nn.Identity) or model.output.bias is not None:
        return ""
    nats, n_targets = dict.fromkeys(FACTORS, 0.0), 0
    with evaluating(model):
        for windows in batches(context, context.held_out).in_order(-(-n_tokens // CALIBRATION_TOKENS)):
            batch = windows.to(context.device)
            n_targets += batch.n_targets
            hidden = model.hidden(batch.tokens, batch.segments).flatten(0, 1)
            for rows, targets in zip(hidden.split(ROWS), batch.targets.flatten().split(ROWS), strict=True):
                logits = model.output(rows).float()
                for factor in FACTORS:
                    loss = F.cross_entropy(factor * logits, targets, ignore_index=IGNORED, reduction="sum")
                    nats[factor] += float(loss)
    best = min(FACTORS, key=nats.__getitem__)
    if not nats[best] < (1 - LEAST_DECREASE) * nats[1.0]:  # also true if a loss is NaN
        return ""
    for parameter in model.decoder.norm.parameters():
        parameter.mul_(best)
    change = f"lowers the held-out loss from {nats[1.0] / n_targets:.3f} to {nats[best] / n_targets:.3f} nats per token"
    return f"the model is too {'un' * (best > 1)}sure of its predictions: multiplying its logits by {best} {change}"


def _window_stride(context: RunContext) -> int:
    """Return the stride n of a quick evaluation, which scores every nth window."""
    minutes = context.recipe.training.minutes
    most = MOST_EVALUATED if minutes is None else min(MOST_EVALUATED, ceil(EVALUATED_PER_MINUTE * minutes))
    if context.is_slow:
        n_parameters = sum(parameter.numel() for parameter in context.model.parameters())
        most = min(most, max(1, MOST_COMPUTED // n_parameters))
    return -(-len(context.held_out.column("text").tokens) // most)


def _scores(context: RunContext, one_in: int) -> Sequence[Score]:
    tokens, tokenizer = context.held_out.column("text").tokens, context.tokenizer
    windows = batches(context, context.held_out).in_order(one_in)
    total = negative_log_likelihood(context.model, windows, context.device, ignored=tokenizer.end_id)
    if one_in > 1 or not tokenizer.begins:  # without a start token, the first token of a text is not scored
        total = NegativeLogLikelihood(total.mean * len(tokens), len(tokens))
    n_unknown, change = 0 if tokenizer.unknown_id is None else int((tokens[:] == tokenizer.unknown_id).sum()), ""
    if isinstance(tokenizer, ForeignTokenizer):
        held_out = context.corpus.held_out
        n_unknown = n_unknown and round(n_unknown * _characters_per_unknown(tokenizer, held_out))
        change = _example_of_change(tokenizer, held_out)
    return text_scores(total, context.corpus.held_out_bytes, n_unknown, change)


@lru_cache(maxsize=1)
def _characters_per_unknown(tokenizer: ForeignTokenizer, part: AnyPart) -> float:
    """Return the mean number of characters for which an unknown token stands at the beginning of the text."""
    parts, n_read = list[str](), 0
    for chunk in _chunks(part):
        parts += tokenizer.unknown_parts(chunk)
        n_read += len(chunk)
        if n_read >= CHECKED:
            break
    return sum(map(len, parts)) / len(parts) if parts else 1.0


@lru_cache(maxsize=1)
def _example_of_change(tokenizer: ForeignTokenizer, part: AnyPart) -> str:
    """Return an example of what the tokenizer changes apart from unknown characters, or "" if nothing changes.

    The beginning of the text is encoded and decoded, two lines at a time.
    """
    n_read = 0
    for chunk in _chunks(part):
        lines = [*chunk[: COMPARED - n_read].split("\n"), ""]
        for before in (f"{line}\n{following}".strip() for line, following in pairwise(lines)):
            ids = tokenizer.encode(before)
            if (after := tokenizer.decode(ids)) != before and tokenizer.unknown_id not in ids:
                return _first_difference(before.split(), after.split())
        n_read += len(chunk)
        if n_read >= COMPARED:
            break
    return ""


def _first_difference(before: Sequence[str], after: Sequence[str]) -> str:
    for old, new in zip(before, after, strict=False):
        if old != new:
            shorter = min(len(old), len(new))
            begin = next((place for place in range(shorter) if old[place] != new[place]), shorter)
            return f"'{old[begin:][:LONGEST_EXAMPLE]}' becomes '{new[begin:][:LONGEST_EXAMPLE]}'"
    return "white space is lost"


def baselines(context: RunContext, *, whole: bool = False) -> Sequence[Score]:
    """Score n-gram models on the held-out set. An end token separates documents, but is not scored."""
    assert context.training is not None
    end, begins, vocab_size = context.tokenizer.end_id, context.tokenizer.begins, context.tokenizer.vocab_size
    training = _with_ends(context.training.column("text"), end, COUNTED)
    held_out = _with_ends(context.held_out.column("text"), end)
    is_scored = held_out != end
    if not begins:  # without a start token, the first token of a document is not scored, either
        is_scored[1:] &= held_out[:-1] != end
    nats = ngram_baselines(training, held_out, vocab_size, is_scored=is_scored)
    stride = _window_stride(context)
    coverage = f"; quick evaluations score one in {stride} windows" if stride > 1 and not whole else ""
    return [Score("nats per token", value, note=f"{name}{coverage}") for name, value in nats.items()]


def _with_ends(column: Column, end: int, most: int | None = None) -> NDArray[np.integer]:
    """Return the first `most` tokens of a column, with an end token between two documents."""
    tokens, ends = column.tokens[:most], column.offsets[1:-1]
    return np.insert(tokens, ends[ends < len(tokens)], end)


def batches(context: RunContext, store: TokenStore) -> TextBatches:
    """Return the batches of a token store. For imported models with long contexts, windows are shorter.

    A training window must also fit in a batch. Windows for evaluation need not.
    """
    recipe = context.recipe
    length, tokens = recipe.model.context_length, recipe.training.batch_tokens
    if recipe.tokenizer.is_pretrained:
        length = min(length, LONGEST_WINDOW if store is context.held_out else min(tokens, LONGEST_WINDOW))
    return TextBatches(store.column("text"), length, tokens, context.markers, recipe.seed)


def sample(context: RunContext) -> Sequence[Sample]:
    """Complete the prompts in the settings or, if the settings have no prompts, the beginnings of held-out lines."""
    prompts = context.recipe.training.prompts or _default_prompts(context.corpus.held_out)
    generator = context.application
    assert isinstance(generator, Generator)
    settings = context.recipe.decoding
    length = settings.max_new_tokens or (FEW_TOKENS if context.is_slow else SAMPLE_TOKENS)
    longest = max(length, settings.min_new_tokens)
    completions = generator.generate(prompts, settings.model_copy(update={"max_new_tokens": longest}))
    return [Sample(prompt, each.text) for prompt, each in zip(prompts, completions, strict=True)]


@lru_cache(maxsize=1)
def _default_prompts(part: AnyPart) -> list[str]:
    """Return the first words of a few held-out lines, preferably lines that do not begin with a lowercase letter.

    The result is cached, because finding these lines may require reading a whole file.
    """
    lines = [line[:200] for line in next(_chunks(part), "").split("\n") if any(map(str.isalpha, line[:200]))]
    lines.sort(key=lambda line: next(filter(str.isalpha, line)).islower())
    return [first_words(line, WORDS) for line in lines[:N_PROMPTS]] or ["\n"]
