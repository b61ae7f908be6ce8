"""START HERE: one row for each task says which corpus, batches, scores and samples make it up.

What happens in a run, whichever its task: preparing.py opens the corpus and plans the recipe; making.py trains the
tokenizer, stores the tokens, and lets a `Session` step a `Trainer` through the batches, look at held-out examples, and
save. Each task's functions stand in a page of its own: writing.py, translating.py, classifying.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from penwright.config import Task
from penwright.data.batching import AnyBatches
from penwright.data.corpora import (
    Reading,
    measured_labelled,
    measured_pairs,
    measured_text,
    open_labelled,
    open_pairs,
    open_text,
)
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.evaluation.scores import Score
from penwright.tasks import classifying, translating, writing
from penwright.tasks.bench import (
    AnyCorpus,
    AnyPart,
    Application,
    Card,
    Workbench,
    languages_of,
    make_application,
    make_card,
    reading_of,
)
from penwright.training.session import Sample

__all__ = [
    "TASKS",
    "AnyCorpus",
    "Application",
    "Card",
    "TaskParts",
    "Workbench",
    "languages_of",
    "make_application",
    "make_card",
    "reading_of",
]


@dataclass(frozen=True)
class TaskParts:
    """What makes up a task."""

    purpose: str
    open_corpus: Callable[[Sequence[str], Reading], AnyCorpus]
    open_measured: Callable[[Sequence[str], Reading], AnyCorpus]  # all of it, to measure a model on
    columns: tuple[str, ...]  # of texts, in the token store
    labels: tuple[str, ...]  # columns of labels there
    rows: Callable[[AnyPart, Sequence[str]], Iterator[Sequence[Cell]]]  # what goes into them, given all labels
    texts: Callable[[AnyCorpus], Iterator[str]]  # what the tokenizer learns from
    batches: Callable[[Workbench, TokenStore], AnyBatches]
    look: Callable[[Workbench], Sequence[Score]]  # while it learns, so a quick one; the first score ranks
    evaluate: Callable[[Workbench], Sequence[Score]]  # the same scores of the whole held-out part
    baselines: Callable[
        [Workbench, bool], Sequence[Score]
    ]  # what a model must beat, under the name of the score it beats
    sample: Callable[[Workbench], Sequence[Sample]]


TASKS: dict[Task, TaskParts] = {
    "generate": TaskParts(
        purpose="writes on in the manner of a text",
        open_corpus=open_text,
        open_measured=measured_text,
        columns=("text",),
        labels=(),
        rows=writing.rows,
        texts=writing.texts,
        batches=writing.batches,
        look=writing.look,
        evaluate=writing.evaluate,
        baselines=writing.beaten,
        sample=writing.sample,
    ),
    "translate": TaskParts(
        purpose="translates sentences",
        open_corpus=open_pairs,
        open_measured=measured_pairs,
        columns=("source", "target"),
        labels=(),
        rows=translating.rows,
        texts=translating.texts,
        batches=translating.batches,
        look=translating.look,
        evaluate=translating.evaluate,
        baselines=translating.beaten,
        sample=translating.sample,
    ),
    "classify": TaskParts(
        purpose="puts texts into classes",
        open_corpus=open_labelled,
        open_measured=measured_labelled,
        columns=("text",),
        labels=("label",),
        rows=classifying.rows,
        texts=classifying.texts,
        batches=classifying.batches,
        look=classifying.look,
        evaluate=classifying.evaluate,
        baselines=classifying.beaten,
        sample=classifying.sample,
    ),
}
