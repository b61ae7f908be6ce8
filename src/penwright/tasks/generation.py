"""To write: a decoder-only model of running text."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from penwright.data.batching import TextBatches
from penwright.data.corpora import Document
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.evaluation.perplexity import Surprise, baselines, surprise, text_scores
from penwright.evaluation.scores import Sample, Score
from penwright.generation.generator import Generator
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext
from penwright.text import first_words

N_PROMPTS, WORDS = 2, 3  # of the samples, unless the settings have prompts
SAMPLE_TOKENS = 150
MOST_LOOKED_AT = 500_000  # tokens at a look
COUNTED = 20_000_000  # tokens for the baselines: enough to count pairs of them well, and they fit into memory


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    for document in part:
        assert isinstance(document, Document)
        yield (document.chunks,)


def texts(corpus: AnyCorpus) -> Iterator[str]:
    for document in corpus.training:
        assert isinstance(document, Document)
        yield from document.chunks


def evaluate(bench: RunContext) -> Sequence[Score]:
    return _scores(bench, 1)


def look(bench: RunContext) -> Sequence[Score]:
    """Of windows from all over the held-out part, as if they were all."""
    return _scores(bench, _one_in(bench))


def _one_in(bench: RunContext) -> int:
    """Of so many batches one is looked at."""
    return -(-len(bench.held_out.column("text").tokens) // MOST_LOOKED_AT)


def _scores(bench: RunContext, one_in: int) -> Sequence[Score]:
    tokens, unknown = bench.held_out.column("text").tokens, bench.tokenizer.unknown_id
    windows = batches(bench, bench.held_out).in_order(one_in)
    total = surprise(bench.model, windows, bench.device, ignored=bench.tokenizer.end_id)
    if one_in > 1:
        total = Surprise(total.mean * len(tokens), len(tokens))
    n_unknown = 0 if unknown is None else int((tokens[:] == unknown).sum())
    return text_scores(total, bench.corpus.held_out_bytes, n_unknown)


def beaten(bench: RunContext, whole: bool = False) -> Sequence[Score]:
    """Score predicting by token frequency (unigram), and by the token before (bigram), on the held-out part."""
    assert bench.training is not None
    training = bench.training.column("text").tokens[:COUNTED]
    nats = baselines(training, bench.held_out.column("text").tokens, bench.tokenizer.vocab_size)
    looks = f"; looks take one in {_one_in(bench)} windows" if _one_in(bench) > 1 and not whole else ""
    return [Score("nats per token", value, note=f"{name}{looks}") for name, value in nats.items()]


def batches(bench: RunContext, store: TokenStore) -> TextBatches:
    recipe = bench.recipe
    context, tokens = recipe.model.context_length, recipe.training.batch_tokens
    return TextBatches(store.column("text"), context, tokens, bench.markers, recipe.seed)


def sample(bench: RunContext) -> Sequence[Sample]:
    prompts = bench.recipe.training.prompts or _openings(bench.corpus.held_out)
    generator = bench.application
    assert isinstance(generator, Generator)
    length = bench.recipe.decoding.max_new_tokens or SAMPLE_TOKENS
    completions = generator.generate(prompts, bench.recipe.decoding.model_copy(update={"max_new_tokens": length}))
    return [Sample(prompt, each.text) for prompt, each in zip(prompts, completions, strict=True)]


@lru_cache(maxsize=1)
def _openings(part: AnyPart) -> list[str]:
    """The first words of the first lines of the held-out text, before which all of a file may have to be read."""
    chunks = (chunk for document in part if isinstance(document, Document) for chunk in document.chunks)
    lines = [line[:200] for line in next(chunks, "").split("\n") if any(map(str.isalpha, line[:200]))]
    return [first_words(line, WORDS) for line in lines[:N_PROMPTS]] or ["\n"]
