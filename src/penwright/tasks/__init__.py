"""START HERE: the table of tasks. Each entry names the corpus, batches, scores and samples of one task.

In every run, `workflows/plan.py` opens the corpus and plans the recipe. Then `workflows/train.py` trains the tokenizer
and stores the tokens. A `Session` runs the steps of a `Trainer`, evaluates the model and saves the run. Each task has
its own module: `generation.py`, `chat.py`, `translation.py`, `classification.py` (also `multi_label.py` and
`regression.py`), `encoding.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penwright.config import Task
from penwright.data.bucketing import AnyBatches
from penwright.data.conversations import open_conversations, open_evaluation_conversations
from penwright.data.corpus import ReadingOptions
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.data.parallel import open_evaluation_pairs
from penwright.data.store import TokenStore, cached_store, open_store, store_key
from penwright.data.store_writer import Cell, write_store
from penwright.data.text import open_evaluation_text, open_text
from penwright.errors import PenwrightError
from penwright.evaluation.scores import Sample, Score
from penwright.storage import cache_folder
from penwright.tasks import chat, classification, encoding, generation, labelled, multi_label, regression, translation
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext, make_card, reading_of
from penwright.tasks.translation import open_pairs_with_dictionary
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.markup import text_in_pieces

__all__ = [
    "TASKS",
    "AnyCorpus",
    "RunContext",
    "TaskParts",
    "kept_training_tokens",
    "make_card",
    "reading_of",
]


@dataclass(frozen=True)
class TaskParts:
    """The functions and columns that make up a task."""

    open_corpus: Callable[[Sequence[str], ReadingOptions], AnyCorpus]
    open_evaluation: Callable[[Sequence[str], ReadingOptions], AnyCorpus]  # opens files that contain only held-out text
    columns: tuple[str, ...]  # text columns of the token store
    labels: tuple[str, ...]  # label columns of the token store
    # yields the token store's rows for a part of the corpus (training or held-out), given all labels
    rows: Callable[[AnyPart, Sequence[str]], Iterator[Sequence[Cell]]]
    texts: Callable[[AnyCorpus], Iterator[str]]  # training texts for the tokenizer
    batches: Callable[[RunContext, TokenStore], AnyBatches]
    quick_evaluate: Callable[[RunContext], Sequence[Score]]  # scores during training; the first score ranks checkpoints
    evaluate: Callable[[RunContext], Sequence[Score]]  # like `quick_evaluate`, but on the whole held-out set
    baselines: Callable[[RunContext, bool], Sequence[Score]]  # baseline scores, named like the model's scores
    sample: Callable[[RunContext], Sequence[Sample]]

    def token_store(
        self, corpus: AnyCorpus, tokenizer: Tokenizer, labels: Sequence[str], *, held_out: bool
    ) -> TokenStore:
        """Return the tokens of one part of the corpus, from the cache if possible."""
        part = corpus.held_out if held_out else corpus.training
        key, values = (
            _store_key(corpus.fingerprint, tokenizer, labels, held_out=held_out),
            corpus.label_values or labels,
        )

        def build(folder: Path) -> None:
            rows = self.rows(part, values)
            if corpus.text_pairs:
                rows = ((text_in_pieces(str(text), tokenizer), *labels) for text, *labels in rows)
            write_store(folder, self.columns, rows, tokenizer, key, self.labels)

        return cached_store(cache_folder("tokens"), key, build)


def kept_training_tokens(fingerprint: str, tokenizer: Tokenizer, labels: Sequence[str]) -> TokenStore | None:
    """Return the cached training tokens of the corpus with this fingerprint, or None. The corpus is not read."""
    try:
        return open_store(cache_folder("tokens") / _store_key(fingerprint, tokenizer, labels, held_out=False))
    except PenwrightError:
        return None


def _store_key(fingerprint: str, tokenizer: Tokenizer, labels: Sequence[str], *, held_out: bool) -> str:
    """Return a cache key that depends on everything that determines the tokens of a part."""
    return store_key(fingerprint, tokenizer.fingerprint, "held out" if held_out else "training", *labels)


PROBLEMS = {
    "single_label_classification": classification,
    "multi_label_classification": multi_label,
    "regression": regression,
}


def _of_problem(name: str) -> Callable[..., Any]:
    """Return a function that calls `name` in the module for its context's problem type."""

    def call(context: RunContext, *arguments: object) -> object:
        return getattr(PROBLEMS[context.recipe.model.problem_type], name)(context, *arguments)

    return call


TASKS: dict[Task, TaskParts] = {
    "chat": TaskParts(
        open_corpus=open_conversations,
        open_evaluation=open_evaluation_conversations,
        columns=("prompt", "answer"),
        labels=("turn",),
        rows=chat.rows,
        texts=chat.texts,
        batches=chat.batches,
        quick_evaluate=chat.quick_evaluate,
        evaluate=chat.evaluate,
        baselines=chat.baselines,
        sample=chat.sample,
    ),
    "generate": TaskParts(
        open_corpus=open_text,
        open_evaluation=open_evaluation_text,
        columns=("text",),
        labels=(),
        rows=generation.rows,
        texts=generation.texts,
        batches=generation.batches,
        quick_evaluate=generation.quick_evaluate,
        evaluate=generation.evaluate,
        baselines=generation.baselines,
        sample=generation.sample,
    ),
    "translate": TaskParts(
        open_corpus=open_pairs_with_dictionary,
        open_evaluation=open_evaluation_pairs,
        columns=("source", "target"),
        labels=(),
        rows=translation.rows,
        texts=translation.texts,
        batches=translation.batches,
        quick_evaluate=translation.quick_evaluate,
        evaluate=translation.evaluate,
        baselines=translation.baselines,
        sample=translation.sample,
    ),
    "classify": TaskParts(
        open_corpus=open_labelled,
        open_evaluation=open_evaluation_labelled,
        columns=("text",),
        labels=("label",),
        rows=labelled.rows,
        texts=labelled.texts,
        batches=labelled.batches,
        quick_evaluate=_of_problem("quick_evaluate"),
        evaluate=_of_problem("evaluate"),
        baselines=_of_problem("baselines"),
        sample=_of_problem("sample"),
    ),
    "encode": TaskParts(
        open_corpus=encoding.open_corpus,
        open_evaluation=open_evaluation_text,
        columns=("text",),
        labels=(),
        rows=encoding.rows,
        texts=generation.texts,
        batches=encoding.batches,
        quick_evaluate=encoding.quick_evaluate,
        evaluate=encoding.evaluate,
        baselines=encoding.baselines,
        sample=encoding.sample,
    ),
}
