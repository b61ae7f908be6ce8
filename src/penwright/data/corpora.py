"""The public interface to corpora: opens files as examples, with a training and a held-out part."""

from penwright.data.detection import detect_task
from penwright.data.examples import Cleaning, Columns, Corpus, Document, Labelled, Pair, Part, Reading, Roles
from penwright.data.labelled import measured_labelled, open_labelled
from penwright.data.parallel import measured_pairs, open_pairs
from penwright.data.report import Dropped, Report
from penwright.data.text import measured_text, open_text

__all__ = [
    "Cleaning",
    "Columns",
    "Corpus",
    "Document",
    "Dropped",
    "Labelled",
    "Pair",
    "Part",
    "Reading",
    "Report",
    "Roles",
    "detect_task",
    "measured_labelled",
    "measured_pairs",
    "measured_text",
    "open_labelled",
    "open_pairs",
    "open_text",
]
