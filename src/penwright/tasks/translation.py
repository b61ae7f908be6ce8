"""To translate: an encoder-decoder of sentence pairs."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from penwright.data.batching import PairBatches
from penwright.data.corpora import Pair
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.evaluation.perplexity import surprise
from penwright.evaluation.scores import Sample, Score
from penwright.evaluation.translation import translation_scores
from penwright.run.folder import write_atomically
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext
from penwright.translation.constraints.requirements import NO_CONSTRAINTS
from penwright.translation.translator import Translator

N_SAMPLES = 3
MOST_LOOKED_AT = 2000  # pairs that are translated at a look


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    yield from _pairs(part)


def texts(corpus: AnyCorpus) -> Iterator[str]:
    for pair in _pairs(corpus.training):
        yield from pair


def batches(bench: RunContext, store: TokenStore) -> PairBatches:
    model, tokens, seed = bench.recipe.model, bench.recipe.training.batch_tokens, bench.recipe.seed
    longest = model.context_length if model.positions.type == "learned" else None  # others reach as far as wanted
    return PairBatches(store.column("source"), store.column("target"), tokens, bench.markers, seed, longest)


def evaluate(bench: RunContext, beam_size: int | None = None, output: Path | None = None) -> Sequence[Score]:
    """BLEU, chrF and nats a token on the whole held-out part; the translations go into `output`, a line each."""
    pairs = list(_pairs(bench.corpus.held_out))
    translations = _translate(bench, pairs, beam_size or bench.recipe.decoding.beam_size)
    if output is not None:
        write_atomically(output, "".join(f"{line}\n" for line in translations))
    return _scores(bench, pairs, translations)


def look(bench: RunContext) -> Sequence[Score]:
    """Greedy translations rank a model's states as well as a beam's do, and few as well as many, in far less time."""
    pairs = _looked_at(bench.corpus.held_out)
    return _scores(bench, pairs, _translate(bench, pairs, beam_size=1))


@lru_cache(maxsize=1)
def _looked_at(part: AnyPart) -> Sequence[Pair]:
    """From all over the part, kept, since all pairs of a file are read to find those that are held out."""
    n = min(len(part), MOST_LOOKED_AT)
    chosen = {number * len(part) // n for number in range(n)}
    return [pair for number, pair in enumerate(_pairs(part)) if number in chosen]


def _scores(bench: RunContext, pairs: Sequence[Pair], translations: Sequence[str]) -> Sequence[Score]:
    """Nats are of the whole held-out part, which takes seconds."""
    total = surprise(bench.model, batches(bench, bench.held_out).in_order(), bench.device)
    scores = translation_scores(translations, [pair.target for pair in pairs])
    return [*scores, Score("nats per token", total.mean)]


def beaten(bench: RunContext, whole: bool = False) -> Sequence[Score]:
    """Score the untranslated sources: of the pairs of a look, or of the `whole` held-out part."""
    some = list(_pairs(bench.corpus.held_out)) if whole else _looked_at(bench.corpus.held_out)
    n_pairs = len(bench.corpus.held_out)
    scores = translation_scores([pair.source for pair in some], [pair.target for pair in some])
    looks = f"; {len(some):,} of the {n_pairs:,} held-out pairs are looked at" if len(some) < n_pairs else ""
    return [Score("BLEU", scores[0].value, True, note=f"the source, untranslated{looks}")]


def sample(bench: RunContext) -> Sequence[Sample]:
    asked = [Pair(prompt, "") for prompt in bench.recipe.training.prompts]
    pairs = asked or _looked_at(bench.corpus.held_out)[:N_SAMPLES]
    translations = _translate(bench, pairs, beam_size=1)
    return [Sample(pair.source, each, pair.target) for pair, each in zip(pairs, translations, strict=True)]


def _translate(bench: RunContext, pairs: Sequence[Pair], beam_size: int) -> list[str]:
    translator = bench.application
    assert isinstance(translator, Translator)
    sources = [pair.source for pair in pairs]
    return [each.text for each in translator.translate(sources, beam_size=beam_size, demands=NO_CONSTRAINTS)]


def _pairs(part: AnyPart) -> Iterator[Pair]:
    for example in part:
        assert isinstance(example, Pair)
        yield example
