"""START HERE: the table of tasks. Each task is a module that defines its corpus, batches, scores and samples.

In every run, `workflows/plan.py` opens the corpus and plans the recipe. Then `workflows/train.py` trains the tokenizer
and stores the tokens. A `Session` runs the steps of a `Trainer`, evaluates the model and saves the run. Classifiers of
all kinds share `labelled.py`; each kind of labels is scored by a module of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import Protocol, runtime_checkable

from penwright.config import Recipe, Task
from penwright.data.bucketing import AnyBatches
from penwright.data.corpus import ReadingOptions
from penwright.data.store import TokenStore, cached_store, open_store, store_key
from penwright.data.store_writer import Cell, write_store
from penwright.errors import PenwrightError
from penwright.evaluation.scores import Sample, Score
from penwright.storage import cache_folder, sha256_of
from penwright.tasks import chat, classification, encoding, generation, labelled, multi_label, regression, translation
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext, make_card, reading_of
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.markup import text_in_pieces

__all__ = [
    "TASKS",
    "AnyCorpus",
    "RunContext",
    "kept_training_tokens",
    "make_card",
    "reading_of",
    "scoring_of",
    "token_store",
]


@runtime_checkable
class TaskParts(Protocol):
    """The columns and functions of a task that do not depend on the kind of labels."""

    @property
    def TEXT_COLUMNS(self) -> tuple[str, ...]:
        """Text columns of the token store."""

    @property
    def LABEL_COLUMNS(self) -> tuple[str, ...]:
        """Label columns of the token store."""

    def open_corpus(self, paths: Sequence[str], reading: ReadingOptions, /) -> AnyCorpus:
        """Open files for training."""

    def open_evaluation(self, paths: Sequence[str], reading: ReadingOptions, /) -> AnyCorpus:
        """Open files that contain only held-out text."""

    def rows(self, part: AnyPart, labels: Sequence[str], /) -> Iterator[Sequence[Cell]]:
        """Yield the token store's rows for the training or held-out set. `labels` lists all labels."""

    def texts(self, corpus: AnyCorpus, /) -> Iterator[str]:
        """Yield the training texts for the tokenizer."""

    def batches(self, context: RunContext, store: TokenStore, /) -> AnyBatches:
        """Return the batches of a token store."""

    def sample(self, context: RunContext, /) -> Sequence[Sample]:
        """Return samples of the model's output for held-out texts."""


@runtime_checkable
class Scoring(Protocol):
    """The functions of a task that score a model on the held-out set."""

    def quick_evaluate(self, context: RunContext, /) -> Sequence[Score]:
        """Return the scores during training; the first score ranks checkpoints."""

    def evaluate(self, context: RunContext, /) -> Sequence[Score]:
        """Return the scores of `quick_evaluate`, computed on the whole held-out set."""

    def baselines(self, context: RunContext, /, *, whole: bool = False) -> Sequence[Score]:
        """Return the scores of baselines, under the same names as the model's scores."""


TASKS: Mapping[Task, TaskParts] = {
    "chat": chat,
    "generate": generation,
    "translate": translation,
    "classify": labelled,
    "encode": encoding,
}
SCORING: Mapping[str, Scoring] = {
    "chat": chat,
    "generate": generation,
    "translate": translation,
    "single_label_classification": classification,
    "multi_label_classification": multi_label,
    "regression": regression,
    "encode": encoding,
}


def scoring_of(recipe: Recipe) -> Scoring:
    """Return the functions that score a model of this recipe: those of its task or, for classifiers, its label kind."""
    return SCORING[recipe.model.problem_type if recipe.task == "classify" else recipe.task]


def token_store(
    task: Task, corpus: AnyCorpus, tokenizer: Tokenizer, labels: Sequence[str], *, held_out: bool
) -> TokenStore:
    """Return the tokens of the training or held-out set, from the cache if possible."""
    part, data = corpus.held_out if held_out else corpus.training, TASKS[task]
    key = _store_key(corpus.fingerprint, tokenizer, labels, held_out=held_out)

    def build(folder: Path) -> None:
        rows = data.rows(part, corpus.label_values or labels)
        if corpus.text_pairs:
            rows = ((text_in_pieces(str(text), tokenizer), *labels) for text, *labels in rows)
        write_store(folder, data.TEXT_COLUMNS, rows, tokenizer, key, data.LABEL_COLUMNS)
        for file in corpus.files:  # a temporary copy cannot change
            if not file.copy and (path := Path(file.path)).is_file() and sha256_of(path.resolve()) != file.sha256:
                rmtree(folder)
                raise PenwrightError(
                    f"{path} changed while it was read. Run the same command again when it is complete, or pass a copy"
                )

    return cached_store(cache_folder("tokens"), key, build)


def kept_training_tokens(fingerprint: str, tokenizer: Tokenizer, labels: Sequence[str]) -> TokenStore | None:
    """Return the cached training tokens of the corpus with this fingerprint, or None. The corpus is not read."""
    try:
        return open_store(cache_folder("tokens") / _store_key(fingerprint, tokenizer, labels, held_out=False))
    except PenwrightError:
        return None


def _store_key(fingerprint: str, tokenizer: Tokenizer, labels: Sequence[str], *, held_out: bool) -> str:
    """Return a cache key that covers everything that affects how a split is tokenized."""
    return store_key(fingerprint, tokenizer.fingerprint, "held out" if held_out else "training", *labels)
