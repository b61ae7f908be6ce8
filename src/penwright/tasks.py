"""START HERE: one row for each task says which corpus, model, batches, scores and samples make it up.

What happens in a run, whichever its task: `api.train` opens the corpus, plans the recipe, trains the tokenizer, stores
the tokens, and lets a `Session` step a `Trainer` through the batches, look at held-out examples, and save.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from math import log
from pathlib import Path

import torch

from penwright.config import DataSettings, Recipe, Task
from penwright.data.batching import AnyBatches, LabelledBatches, Markers, PairBatches, TextBatches
from penwright.data.corpora import (
    Cleaning,
    Columns,
    Corpus,
    Document,
    Labelled,
    Pair,
    Part,
    measured_labelled,
    measured_pairs,
    measured_text,
    open_labelled,
    open_pairs,
    open_text,
)
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.decoding import Classifier, Generator, Translator
from penwright.errors import PenwrightError
from penwright.evaluation.classification import classification_scores, confusion
from penwright.evaluation.perplexity import baselines, surprise, text_scores
from penwright.evaluation.scores import Score
from penwright.evaluation.translation import translation_scores
from penwright.models import DecoderOnly, EncoderDecoder, EncoderOnly, Model
from penwright.runs import write_atomically
from penwright.tokenizers import Tokenizer
from penwright.training.session import Sample

Application = Generator | Translator | Classifier
AnyCorpus = Corpus[Document] | Corpus[Pair] | Corpus[Labelled]
AnyPart = Part[Document] | Part[Pair] | Part[Labelled]
N_SAMPLES = 3
SAMPLE_TOKENS = 150
N_PROMPTS, WORDS = 2, 3


@dataclass
class Workbench:
    """All parts of one run, laid out."""

    recipe: Recipe
    corpus: AnyCorpus
    tokenizer: Tokenizer
    training: TokenStore | None  # None where a model is only measured
    held_out: TokenStore
    model: Model
    device: torch.device
    card: "Card"

    @property
    def markers(self) -> Markers:
        return Markers(self.tokenizer.pad_id, self.tokenizer.start_id, self.tokenizer.end_id)

    @property
    def application(self) -> Application:
        """The model with its tokenizer, as a person uses it."""
        return make_application(self.model, self.tokenizer, self.recipe, self.card)


@dataclass(frozen=True)
class Card:
    """What a person's use of a model needs to know of its training."""

    labels: tuple[str, ...] = ()
    max_source_tokens: int | None = None  # of the longest source seen, with its end token


def make_card(corpus: AnyCorpus, training: TokenStore) -> Card:
    """What is known after the corpus was read."""
    sources = training.columns.get("source")
    return Card(corpus.labels, None if sources is None else int(sources.lengths.max()) + 1)


@dataclass(frozen=True)
class TaskParts:
    """What makes up a task."""

    purpose: str
    verb: str  # the command that uses such a model
    open_corpus: Callable[[DataSettings, int], AnyCorpus]
    open_measured: Callable[[DataSettings, Sequence[str]], AnyCorpus]  # other files, to measure a model on
    columns: tuple[str, ...]  # of texts, in the token store
    labels: tuple[str, ...]  # columns of labels there
    rows: Callable[[AnyPart, Sequence[str]], Iterator[Sequence[Cell]]]  # what goes into them, given all labels
    texts: Callable[[AnyCorpus], Iterator[str]]  # what the tokenizer learns from
    batches: Callable[[Workbench, TokenStore], AnyBatches]
    evaluate: Callable[[Workbench], Sequence[Score]]  # the first score ranks
    baselines: Callable[[Workbench], Sequence[Score]]  # what a model must beat, under the name of the score it beats
    sample: Callable[[Workbench], Sequence[Sample]]


def make_application(model: Model, tokenizer: Tokenizer, recipe: Recipe, card: Card) -> Application:
    """The model with its tokenizer: text in, text or labels out."""
    match model:
        case DecoderOnly():
            return Generator(model, tokenizer, recipe.decoding)
        case EncoderDecoder():
            return Translator(model, tokenizer, recipe.decoding, max_source_tokens=card.max_source_tokens)
        case EncoderOnly():
            return Classifier(model, tokenizer, card.labels)


def _open_text(data: DataSettings, seed: int) -> Corpus[Document]:
    return open_text(
        data.train,
        validation=data.validation,
        held_out=data.held_out,
        seed=seed,
        encoding=data.encoding,
        cleaning=_cleaning(data),
    )


def _open_pairs(data: DataSettings, seed: int) -> Corpus[Pair]:
    return open_pairs(
        data.train,
        columns=_columns(data),
        validation=data.validation,
        held_out=data.held_out,
        seed=seed,
        encoding=data.encoding,
        cleaning=_cleaning(data),
    )


def _open_labelled(data: DataSettings, seed: int) -> Corpus[Labelled]:
    return open_labelled(
        data.train,
        columns=_columns(data),
        validation=data.validation,
        held_out=data.held_out,
        seed=seed,
        encoding=data.encoding,
        cleaning=_cleaning(data),
    )


def _columns(data: DataSettings) -> Columns:
    return Columns(
        source=data.source, target=data.target, text=data.text, label=data.label, label_names=data.label_names
    )


def _cleaning(data: DataSettings) -> Cleaning:
    return Cleaning(max_characters=data.max_characters, max_ratio=data.max_ratio, deduplicate=data.deduplicate)


# To write: a decoder-only model of running text


def _text_rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    for document in part:
        assert isinstance(document, Document)
        yield (document.chunks,)


def _text_texts(corpus: AnyCorpus) -> Iterator[str]:
    for document in corpus.training:
        assert isinstance(document, Document)
        yield from document.chunks


def _text_scores(bench: Workbench) -> Sequence[Score]:
    batches = _text_batches(bench, bench.held_out).in_order()
    total = surprise(bench.model, batches, bench.device, ignored=bench.tokenizer.end_id)
    return text_scores(total, bench.corpus.held_out_bytes)


def _text_baselines(bench: Workbench) -> Sequence[Score]:
    most = 20_000_000  # tokens: enough to count pairs of them well, and they fit into memory
    assert bench.training is not None
    training = bench.training.column("text").tokens[:most]
    nats = baselines(training, bench.held_out.column("text").tokens, bench.tokenizer.vocab_size)
    return [Score("nats per token", value, note=name) for name, value in nats.items()]


def _text_batches(bench: Workbench, store: TokenStore) -> TextBatches:
    recipe = bench.recipe
    context, tokens = recipe.model.context_length, recipe.training.batch_tokens
    return TextBatches(store.column("text"), context, tokens, bench.markers, recipe.seed)


def _text_samples(bench: Workbench) -> Sequence[Sample]:
    prompts = bench.recipe.training.prompts or _openings(bench.corpus.held_out)
    generator = bench.application
    assert isinstance(generator, Generator)
    length = bench.recipe.decoding.max_new_tokens or SAMPLE_TOKENS
    completions = generator.generate(prompts, bench.recipe.decoding.model_copy(update={"max_new_tokens": length}))
    return [Sample(prompt, each.text) for prompt, each in zip(prompts, completions, strict=True)]


def _openings(part: AnyPart) -> list[str]:
    """The first words of the first lines of the held-out text."""
    chunks = (chunk for document in part if isinstance(document, Document) for chunk in document.chunks)
    lines = [line for line in next(chunks, "").split("\n") if line.strip()]
    return [" ".join(line[:200].split(" ")[:WORDS]) for line in lines[:N_PROMPTS]] or ["\n"]


# To translate: an encoder-decoder of sentence pairs


def _pair_rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    yield from _pairs(part)


def _pair_texts(corpus: AnyCorpus) -> Iterator[str]:
    for pair in _pairs(corpus.training):
        yield from pair


def _pair_batches(bench: Workbench, store: TokenStore) -> PairBatches:
    tokens, seed = bench.recipe.training.batch_tokens, bench.recipe.seed
    return PairBatches(store.column("source"), store.column("target"), tokens, bench.markers, seed)


def score_translations(bench: Workbench, beam_size: int, output: Path | None = None) -> Sequence[Score]:
    """BLEU, chrF and nats a token on the whole held-out part; the translations go into `output`, a line each."""
    pairs = list(_pairs(bench.corpus.held_out))
    translations = _translate(bench, pairs, beam_size)
    if output is not None:
        write_atomically(output, "".join(f"{line}\n" for line in translations))
    total = surprise(bench.model, _pair_batches(bench, bench.held_out).in_order(), bench.device)
    scores = translation_scores(translations, [pair.target for pair in pairs])
    return [*scores, Score("nats per token", total.mean)]


def _pair_scores(bench: Workbench) -> Sequence[Score]:
    return score_translations(bench, beam_size=1)  # ranks evaluations as well as a beam does, in a fraction of the time


def _pair_baselines(bench: Workbench) -> Sequence[Score]:
    pairs = list(_pairs(bench.corpus.held_out))
    scores = translation_scores([pair.source for pair in pairs], [pair.target for pair in pairs])
    return [Score("BLEU", scores[0].value, True, note="the source, untranslated")]


def _pair_samples(bench: Workbench) -> Sequence[Sample]:
    pairs = [Pair(prompt, "") for prompt in bench.recipe.training.prompts]
    pairs = pairs or list(islice(_pairs(bench.corpus.held_out), N_SAMPLES))
    translations = _translate(bench, pairs, beam_size=1)
    return [Sample(pair.source, each, pair.target) for pair, each in zip(pairs, translations, strict=True)]


def _translate(bench: Workbench, pairs: Sequence[Pair], beam_size: int) -> list[str]:
    translator = bench.application
    assert isinstance(translator, Translator)
    return [each.text for each in translator.translate([pair.source for pair in pairs], beam_size=beam_size)]


def _pairs(part: AnyPart) -> Iterator[Pair]:
    for example in part:
        assert isinstance(example, Pair)
        yield example


# To classify: an encoder-only model of labelled texts


def _labelled_rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    number = {label: place for place, label in enumerate(labels)}
    for example in part:
        assert isinstance(example, Labelled)
        if example.label not in number:
            raise PenwrightError(f"no text of training has the label '{example.label}'; it had {', '.join(labels)}")
        yield example.text, number[example.label]


def _labelled_texts(corpus: AnyCorpus) -> Iterator[str]:
    for example in corpus.training:
        assert isinstance(example, Labelled)
        yield example.text


def _labelled_batches(bench: Workbench, store: TokenStore) -> LabelledBatches:
    recipe = bench.recipe
    context, tokens = recipe.model.context_length, recipe.training.batch_tokens
    return LabelledBatches(store.column("text"), store.labels["label"], context, tokens, bench.markers, recipe.seed)


def _label_scores(bench: Workbench) -> Sequence[Score]:
    assert isinstance(bench.model, EncoderOnly)
    batches = _labelled_batches(bench, bench.held_out)
    counts = confusion(bench.model, batches.in_order(), len(bench.card.labels), bench.device)
    total = surprise(bench.model, batches.in_order(), bench.device)
    return [*classification_scores(counts), Score("nats per text", total.mean)]


def _label_baselines(bench: Workbench) -> Sequence[Score]:
    counts = torch.bincount(torch.from_numpy(bench.held_out.labels["label"].astype("int64")))
    frequent = 100 * float(counts.max() / counts.sum())
    return [
        Score("accuracy", frequent, True, note="always the most frequent label"),
        Score("nats per text", log(len(bench.card.labels)), note="all labels equally likely"),
    ]


def _label_samples(bench: Workbench) -> Sequence[Sample]:
    examples = [example for example in islice(bench.corpus.held_out, N_SAMPLES) if isinstance(example, Labelled)]
    classifier = bench.application
    assert isinstance(classifier, Classifier)
    given = classifier.classify([example.text for example in examples])
    return [Sample(example.text, each.label, example.label) for example, each in zip(examples, given, strict=True)]


TASKS: dict[Task, TaskParts] = {
    "generate": TaskParts(
        purpose="writes on in the manner of a text",
        verb="generate",
        open_corpus=_open_text,
        open_measured=lambda data, paths: measured_text(paths, data.encoding),
        columns=("text",),
        labels=(),
        rows=_text_rows,
        texts=_text_texts,
        batches=_text_batches,
        evaluate=_text_scores,
        baselines=_text_baselines,
        sample=_text_samples,
    ),
    "translate": TaskParts(
        purpose="translates sentences",
        verb="translate",
        open_corpus=_open_pairs,
        open_measured=lambda data, paths: measured_pairs(paths, _columns(data), data.encoding),
        columns=("source", "target"),
        labels=(),
        rows=_pair_rows,
        texts=_pair_texts,
        batches=_pair_batches,
        evaluate=_pair_scores,
        baselines=_pair_baselines,
        sample=_pair_samples,
    ),
    "classify": TaskParts(
        purpose="puts texts into classes",
        verb="classify",
        open_corpus=_open_labelled,
        open_measured=lambda data, paths: measured_labelled(paths, _columns(data), data.encoding),
        columns=("text",),
        labels=("label",),
        rows=_labelled_rows,
        texts=_labelled_texts,
        batches=_labelled_batches,
        evaluate=_label_scores,
        baselines=_label_baselines,
        sample=_label_samples,
    ),
}
