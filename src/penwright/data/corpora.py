"""The public interface to corpora: opens files as examples, with a training and a held-out part."""

from penwright.data.conversations import Conversation, open_conversations, open_evaluation_conversations
from penwright.data.detection import detect_task
from penwright.data.examples import (
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
from penwright.data.labelled import open_evaluation_labelled, open_labelled
from penwright.data.parallel import open_evaluation_pairs, open_pairs
from penwright.data.report import Dropped, Report
from penwright.data.text import open_evaluation_text, open_text

__all__ = [
    "Cleaning",
    "Columns",
    "Conversation",
    "Corpus",
    "CorpusPart",
    "Document",
    "Dropped",
    "Labelled",
    "Pair",
    "ReadingOptions",
    "Report",
    "Roles",
    "detect_task",
    "open_conversations",
    "open_evaluation_conversations",
    "open_evaluation_labelled",
    "open_evaluation_pairs",
    "open_evaluation_text",
    "open_labelled",
    "open_pairs",
    "open_text",
]
