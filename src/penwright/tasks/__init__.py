"""START HERE: the table of tasks. Each entry names the corpus, batches, scores and samples of one task.

In every run, `workflows/plan.py` opens the corpus and plans the recipe. Then `workflows/train.py` trains the tokenizer
and stores the tokens. A `Session` steps a `Trainer` through the batches, evaluates and saves. Each task has a module of
its own: `generation.py`, `translation.py`, `classification.py`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penwright.config import Task
from penwright.data.bucketing import AnyBatches
from penwright.data.corpus import ReadingOptions
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.data.parallel import open_evaluation_pairs, open_pairs
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.data.text import open_evaluation_text, open_text
from penwright.evaluation.scores import Sample, Score
from penwright.tasks import classification, generation, translation
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext, make_card, reading_of

__all__ = [
    "TASKS",
    "AnyCorpus",
    "RunContext",
    "TaskParts",
    "make_card",
    "reading_of",
]


@dataclass(frozen=True)
class TaskParts:
    """The functions and columns that make up a task."""

    purpose: str
    open_corpus: Callable[[Sequence[str], ReadingOptions], AnyCorpus]
    open_measured: Callable[
        [Sequence[str], ReadingOptions], AnyCorpus
    ]  # opens files to evaluate on, all of them held out
    columns: tuple[str, ...]  # text columns of the token store
    labels: tuple[str, ...]  # label columns of the token store
    rows: Callable[[AnyPart, Sequence[str]], Iterator[Sequence[Cell]]]  # values of these columns, given all labels
    texts: Callable[[AnyCorpus], Iterator[str]]  # training texts for the tokenizer
    batches: Callable[[RunContext, TokenStore], AnyBatches]
    look: Callable[[RunContext], Sequence[Score]]  # quick evaluation while training; the first score ranks
    evaluate: Callable[[RunContext], Sequence[Score]]  # the same scores on the whole held-out part
    baselines: Callable[
        [RunContext, bool], Sequence[Score]
    ]  # what a model must beat, under the names of the scores of `evaluate`
    sample: Callable[[RunContext], Sequence[Sample]]


TASKS: dict[Task, TaskParts] = {
    "generate": TaskParts(
        purpose="continues a text in its style",
        open_corpus=open_text,
        open_measured=open_evaluation_text,
        columns=("text",),
        labels=(),
        rows=generation.rows,
        texts=generation.texts,
        batches=generation.batches,
        look=generation.look,
        evaluate=generation.evaluate,
        baselines=generation.beaten,
        sample=generation.sample,
    ),
    "translate": TaskParts(
        purpose="translates sentences",
        open_corpus=open_pairs,
        open_measured=open_evaluation_pairs,
        columns=("source", "target"),
        labels=(),
        rows=translation.rows,
        texts=translation.texts,
        batches=translation.batches,
        look=translation.look,
        evaluate=translation.evaluate,
        baselines=translation.beaten,
        sample=translation.sample,
    ),
    "classify": TaskParts(
        purpose="assigns labels to texts",
        open_corpus=open_labelled,
        open_measured=open_evaluation_labelled,
        columns=("text",),
        labels=("label",),
        rows=classification.rows,
        texts=classification.texts,
        batches=classification.batches,
        look=classification.look,
        evaluate=classification.evaluate,
        baselines=classification.beaten,
        sample=classification.sample,
    ),
}
