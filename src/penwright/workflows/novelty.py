"""Measure how much of a run's texts is copied from its training text."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from penwright.data.corpus import Document
from penwright.errors import UsageError
from penwright.evaluation.novelty import NoveltyReport, measure, passages
from penwright.workflows.evaluate import open_corpus_of
from penwright.workflows.load import open_run


def novelty(folder: Path, texts: Sequence[str]) -> NoveltyReport:
    """Measure how much of these texts and of held-out passages also occurs in the run's training text."""
    opened_run = open_run(folder)
    if opened_run.recipe.task != "generate":
        raise UsageError(f"{folder} does not generate text, so there is no novelty to measure")
    corpus = open_corpus_of(opened_run)
    training, held_out = (
        [document for document in part if isinstance(document, Document)] for part in (corpus.training, corpus.held_out)
    )
    pieces = passages(held_out, int(median(map(len, texts))) or 1) if texts else []
    measured = tuple(measure([*texts, *pieces], training))
    return NoveltyReport(measured[: len(texts)], measured[len(texts) :])
