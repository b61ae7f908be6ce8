"""The context of a run, which all tasks share, and the application that a trained model becomes."""

from dataclasses import dataclass

import torch

from penwright.classification.classifier import Classifier
from penwright.config import Recipe
from penwright.data.batching import Markers
from penwright.data.corpora import (
    Cleaning,
    Columns,
    Corpus,
    CorpusPart,
    Document,
    Labelled,
    Pair,
    ReadingOptions,
    Roles,
)
from penwright.data.languages import Languages, languages_between, requested_languages
from penwright.data.store import TokenStore
from penwright.generation.generator import Generator
from penwright.model import Model
from penwright.model.decoder_only import DecoderOnly
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.model.encoder_only import EncoderOnly
from penwright.tokenizers import Tokenizer
from penwright.translation.translator import Translator

Application = Generator | Translator | Classifier
AnyCorpus = Corpus[Document] | Corpus[Pair] | Corpus[Labelled]
AnyPart = CorpusPart[Document] | CorpusPart[Pair] | CorpusPart[Labelled]


@dataclass
class RunContext:
    """The parts of a run that tasks work with."""

    recipe: Recipe
    corpus: AnyCorpus
    tokenizer: Tokenizer
    training: TokenStore | None  # None if the model is only evaluated
    held_out: TokenStore
    model: Model
    device: torch.device
    card: "ModelCard"

    @property
    def markers(self) -> Markers:
        """Ids of the padding, start and end tokens."""
        return Markers(self.tokenizer.pad_id, self.tokenizer.start_id, self.tokenizer.end_id)

    @property
    def application(self) -> Application:
        """The model with its tokenizer, ready to use."""
        return make_application(self.model, self.tokenizer, self.recipe, self.card)


@dataclass(frozen=True)
class ModelCard:
    """Facts from training that a model needs when it is used."""

    labels: tuple[str, ...] = ()
    max_source_tokens: int | None = None  # length of the longest training source, end token included
    languages: Languages | None = None  # source and target language, if known


def make_card(corpus: AnyCorpus, training: TokenStore) -> ModelCard:
    """Collect the facts from the corpus and its token store."""
    sources = training.columns.get("source")
    longest = None if sources is None else int(sources.lengths.max()) + 1
    return ModelCard(corpus.labels, longest, languages_between(corpus.names))


def languages_of(recipe: Recipe, card: ModelCard) -> Languages | None:
    """Return the languages of a translator, from its corpus or else from its recipe, or None if unknown."""
    return card.languages or requested_languages(recipe.data)


def make_application(model: Model, tokenizer: Tokenizer, recipe: Recipe, card: ModelCard) -> Application:
    """Combine the model with its tokenizer into an application: text in, text or labels out."""
    match model:
        case DecoderOnly():
            return Generator(model, tokenizer, recipe.decoding)
        case EncoderDecoder():
            languages = languages_of(recipe, card)
            return Translator(
                model,
                tokenizer,
                recipe.decoding,
                source_language=languages.source if languages else None,
                max_source_tokens=card.max_source_tokens,
            )
        case EncoderOnly():
            return Classifier(model, tokenizer, card.labels)


def reading_of(recipe: Recipe, roles: Roles | None = None) -> ReadingOptions:
    """Return how files are read: which columns (from the recipe, else from `roles`), and what is left out."""
    data = recipe.data
    return ReadingOptions(
        columns=Columns(data.source, data.target, data.text, data.label, data.label_names, roles or {}),
        validation=data.validation,
        held_out=data.held_out,
        seed=recipe.seed if data.seed is None else data.seed,
        encoding=data.encoding,
        cleaning=Cleaning(data.max_characters, data.max_ratio, data.deduplicate),
    )
