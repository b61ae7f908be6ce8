"""The context of a run: the objects that all tasks share."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from penwright.application import Application, make_application
from penwright.classification.linear import LinearClassifier
from penwright.config import DataSettings, Recipe
from penwright.data.batches import Markers
from penwright.data.cleaning import LONGEST_TEXT, STANDARD, Cleaning
from penwright.data.conversations import Conversation
from penwright.data.corpus import (
    Columns,
    Corpus,
    CorpusPart,
    Document,
    LabelKind,
    Labelled,
    Pair,
    ReadingOptions,
    Roles,
)
from penwright.data.store import TokenStore
from penwright.languages import checked_languages, languages_between, requested_languages
from penwright.model import Model
from penwright.run.provenance import ModelCard
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.chat_template import template_of

AnyCorpus = Corpus[Document] | Corpus[Pair] | Corpus[Labelled] | Corpus[Conversation]
AnyPart = CorpusPart[Document] | CorpusPart[Pair] | CorpusPart[Labelled] | CorpusPart[Conversation]

FIRST = 500  # number of pairs to search for English words, to tell which side is English


@dataclass
class RunContext:
    """The context of a run: all objects that the tasks need, such as the model and the tokenizer."""

    recipe: Recipe
    corpus: AnyCorpus
    tokenizer: Tokenizer
    training: TokenStore | None  # tokens of the training set; None if the model is only evaluated
    held_out: TokenStore
    model: Model
    device: torch.device
    card: ModelCard
    linear: LinearClassifier | None = None  # linear classifier on n-grams; for classification only
    whole_linear: LinearClassifier | None = None  # linear classifier fitted on all texts, for use outside the corpus
    linear_outputs: Tensor | None = None  # outputs of `linear` for the texts of quick evaluations
    dictionary: Mapping[str, str] | None = None  # word translations for the baseline; None: learned from the corpus
    has_new_head: bool = False  # whether a fine-tuned model has a new, untrained head
    skips_training: bool = False  # whether contrastive fine-tuning replaces ordinary training

    @property
    def is_slow(self) -> bool:
        """Whether the model is imported and runs on a CPU, where its evaluations would take much of the budget."""
        return self.recipe.tokenizer.is_pretrained and self.device.type == "cpu"

    def quick_precision(self) -> AbstractContextManager[Any]:
        """Return a context for quick evaluations, in which slow models use the training precision."""
        in_bfloat16 = self.is_slow and self.recipe.training.precision == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=in_bfloat16)

    @property
    def markers(self) -> Markers:
        """The special tokens that the tokenizer adds around texts."""
        own = self.tokenizer
        prefix = tuple(own.source(())[: own.n_before_source])
        return Markers(own.pad_id, own.start_id, own.end_id, own.begins, prefix, own.target_prefix)

    @property
    def application(self) -> Application:
        """The model with its tokenizer, ready to use."""
        return make_application(self.model, self.tokenizer, self.recipe, self.card, self.whole_linear or self.linear)


def make_card(
    corpus: AnyCorpus, training: TokenStore, tokenizer: Tokenizer, data: DataSettings, base: ModelCard | None = None
) -> ModelCard:
    """Make a model card from the corpus, the token store, the tokenizer and the data settings.

    A fine-tuned translator still translates sources as long as its base does. It keeps the languages of its base unless
    the corpus names others, and the dictionary terms of its base that are not in its own dictionary.
    """
    pairs = (each for each in islice(corpus.training, FIRST) if isinstance(each, Pair))
    languages = languages_between(corpus.names) or checked_languages(requested_languages(data), pairs)
    sources, terms = training.columns.get("source"), corpus.new_terms
    longest = None if sources is None else int(sources.lengths.max()) + len(tokenizer.source(()))
    if base is not None and longest is not None:
        longest = base.max_source_tokens and max(longest, base.max_source_tokens)
        languages = languages or base.languages
        terms = (*(term for term in base.new_terms if term[0].casefold() not in corpus.dictionary_terms), *terms)
    counts = tuple(corpus.label_counts.values())
    hints = data.dictionary is not None and bool(data.dictionary_hints)
    return ModelCard(corpus.labels, longest, languages, terms, hints, counts)


def reading_of(recipe: Recipe, roles: Roles | None = None) -> ReadingOptions:
    """Return the options for reading files: columns (from the recipe or, if unset, from `roles`) and rows to skip."""
    data = recipe.data
    most = STANDARD.max_characters if recipe.task == "translate" else LONGEST_TEXT
    return ReadingOptions(
        columns=Columns(
            source=data.source,
            target=data.target,
            text=data.text,
            text_pairs=recipe.model.text_pairs,
            label=data.label,
            label_kind=LabelKind(recipe.model.problem_type, data.label_separator),
            group=data.group,
            label_names=data.label_names,
            as_trained=roles or {},
        ),
        validation=data.validation,
        held_out=data.held_out,
        seed=recipe.seed if data.seed is None else data.seed,
        encoding=data.encoding,
        template=template_of(recipe.chat),
        dictionary=data.dictionary,
        hints=data.dictionary_hints or 0.0,
        cleaning=Cleaning(data.max_characters or most, data.max_ratio or None, data.deduplicate),
    )
