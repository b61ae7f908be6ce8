"""Translation: an encoder-decoder model of sentence pairs."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path

from penwright.data.bucketing import PairBatches
from penwright.data.corpus import Pair
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.evaluation.baselines import learn_dictionary, translate_words
from penwright.evaluation.perplexity import negative_log_likelihood
from penwright.evaluation.scores import Sample, Score
from penwright.evaluation.translation import translation_scores
from penwright.storage import write_atomically
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext
from penwright.translation.constraints.requirements import NO_CONSTRAINTS
from penwright.translation.translator import Translator

N_SAMPLES = 3
MOST_EVALUATED = 2000  # maximum number of pairs that a quick evaluation translates
MOST_LEARNED = 50_000  # maximum number of pairs that the dictionary of the baseline is learned from


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    """Yield the source and the target of each pair."""
    yield from _pairs(part)


def texts(corpus: AnyCorpus) -> Iterator[str]:
    """Yield the training sentences of both languages."""
    for pair in _pairs(corpus.training):
        yield from pair


def batches(context: RunContext, store: TokenStore) -> PairBatches:
    """Return the batches of a token store."""
    model, tokens, seed = context.recipe.model, context.recipe.training.batch_tokens, context.recipe.seed
    # only learned position embeddings limit the length
    longest = model.context_length if model.positions.type == "learned" else None
    return PairBatches(store.column("source"), store.column("target"), tokens, context.markers, seed, longest)


def evaluate(context: RunContext, beam_size: int | None = None, output: Path | None = None) -> Sequence[Score]:
    """Score the whole held-out part: BLEU, chrF, nats per token. Translations are written to `output`, one per line."""
    pairs = list(_pairs(context.corpus.held_out))
    translations = _translate(context, pairs, beam_size or context.recipe.decoding.beam_size)
    if output is not None:
        write_atomically(output, "".join(f"{line}\n" for line in translations))
    return _scores(context, pairs, translations)


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score greedy translations of a sample of the held-out pairs.

    They rank checkpoints as reliably as beam search on all pairs.
    """
    pairs = _chosen_pairs(context.corpus.held_out)
    return _scores(context, pairs, _translate(context, pairs, beam_size=1))


@lru_cache(maxsize=1)
def _chosen_pairs(part: AnyPart) -> Sequence[Pair]:
    """Return a sample of pairs, spread over the part. It is cached, because all pairs must be read to draw it."""
    n = min(len(part), MOST_EVALUATED)
    chosen = {number * len(part) // n for number in range(n)}
    return [pair for number, pair in enumerate(_pairs(part)) if number in chosen]


def _scores(context: RunContext, pairs: Sequence[Pair], translations: Sequence[str]) -> Sequence[Score]:
    """Score the translations. Add the nats per token of the whole held-out part, which takes only seconds."""
    total = negative_log_likelihood(context.model, batches(context, context.held_out).in_order(), context.device)
    scores = translation_scores(translations, [pair.target for pair in pairs])
    return [*scores, Score("nats per token", total.mean)]


def baselines(context: RunContext, whole: bool = False) -> Sequence[Score]:
    """Score two baselines: the untranslated sources, and word-by-word translations.

    They are scored on the pairs of a quick evaluation or, with `whole`, on all held-out pairs.
    """
    pairs = list(_pairs(context.corpus.held_out)) if whole else _chosen_pairs(context.corpus.held_out)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    n_pairs = len(context.corpus.held_out)
    coverage = f"; evaluated on {len(pairs):,} of the {n_pairs:,} held-out pairs" if len(pairs) < n_pairs else ""
    found = [("the source, untranslated", sources)]
    if dictionary := context.dictionary or learn_dictionary_of(context.corpus.training):
        found.append(
            ("word by word, with a dictionary learned from the pairs", list(translate_words(sources, dictionary)))
        )
    return [
        Score("BLEU", translation_scores(texts, targets)[0].value, True, note=f"{name}{coverage}")
        for name, texts in found
    ]


def learn_dictionary_of(part: AnyPart) -> dict[str, str]:
    """Return a dictionary of words, learned from pairs that are spread over this part."""
    return learn_dictionary(islice(_pairs(part), 0, None, -(-len(part) // MOST_LEARNED) or 1))


def sample(context: RunContext) -> Sequence[Sample]:
    """Translate the prompts in the settings or, if the settings have no prompts, a few held-out sources."""
    asked = [Pair(prompt, "") for prompt in context.recipe.training.prompts]
    pairs = asked or _chosen_pairs(context.corpus.held_out)[:N_SAMPLES]
    translations = _translate(context, pairs, beam_size=1)
    return [Sample(pair.source, each, pair.target) for pair, each in zip(pairs, translations, strict=True)]


def _translate(context: RunContext, pairs: Sequence[Pair], beam_size: int) -> list[str]:
    translator = context.application
    assert isinstance(translator, Translator)
    sources = [pair.source for pair in pairs]
    return [each.text for each in translator.translate(sources, beam_size=beam_size, constraints=NO_CONSTRAINTS)]


def _pairs(part: AnyPart) -> Iterator[Pair]:
    for example in part:
        assert isinstance(example, Pair)
        yield example
