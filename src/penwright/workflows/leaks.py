"""Notes on what makes the scores of held-out texts misleading.

A model may know these texts, from copies in its training text or from its base. Or it has never seen their characters.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from threading import Timer
from typing import Any

from penwright import __version__
from penwright.config import Recipe
from penwright.data.corpus import Document, Labelled, Pair
from penwright.data.near_duplicates import near_duplicates_note
from penwright.data.paths import is_pipe_name
from penwright.data.readers.hub import is_hub
from penwright.data.repeats import Repeats, find_repeats
from penwright.errors import PenwrightError, Say
from penwright.run.provenance import corpus_record
from penwright.storage import remember
from penwright.tasks import AnyCorpus
from penwright.tasks.context import AnyPart
from penwright.workflows.evaluate import open_corpus_of, with_resolved_paths
from penwright.workflows.load import OpenedRun, open_run

SECONDS_IN_SILENCE = 1.0  # time after which a message says what takes so long
MANY_NEW = 5e-4  # new characters get a note if they are more than this share of the held-out text


def with_notes_on_held_out(corpus: AnyCorpus, say: Say) -> AnyCorpus:
    """Add notes on whatever makes the held-out scores misleading; return the corpus.

    The notes count near-duplicates of training texts. For running text, they count lines that also occur in the
    training text, and characters that do not. They are cached: an ensemble needs them for each member, and the studio
    for each change of a plan.
    """
    key = ["notes on held-out texts", __version__, corpus.fingerprint, corpus.report.split]
    doing = "comparing the held-out texts with the training texts"
    notes = _remember(key, lambda: {"notes": _notes_on(corpus)}, say, doing)["notes"]
    return replace(corpus, report=replace(corpus.report, notes=(*corpus.report.notes, *notes)))


def _notes_on(corpus: AnyCorpus) -> list[str]:
    if corpus.report.unit != "document":
        unit = "source" if corpus.report.unit == "pair" else "text"
        notes = [near_duplicates_note(_texts(corpus.training), _texts(corpus.held_out), unit)]
    else:
        repeats = find_repeats(corpus.held_out, corpus.training)
        found = f"{repeats.describe('held-out ')} also occur in the training text, so the scores may be too optimistic"
        notes = [found if repeats.are_many else "", _note_on_new_characters(corpus)]
    return [note for note in notes if note]


def _note_on_new_characters(corpus: AnyCorpus) -> str:
    """Return a note if many characters of the held-out text do not occur in the training text; "" if few do."""
    new = Counter(chain.from_iterable(_texts(corpus.held_out)))
    total = new.total()
    for chunk in _texts(corpus.training):
        for character in new.keys() & set(chunk):
            del new[character]
        if new.total() <= MANY_NEW * total:
            return ""
    (example, _), *_ = new.most_common(1)
    found = f"{new.total():,} of {total:,} held-out characters, such as {example!r}, do not occur in the training text"
    return f"{found}, so the scores may be too pessimistic"


def _texts(part: AnyPart) -> Iterator[str]:
    """Yield labelled texts, the sources of pairs, and running text in chunks."""
    for example in part:
        if isinstance(example, Labelled):
            yield example.text
        elif isinstance(example, Pair):
            yield example.source
        elif isinstance(example, Document):
            yield from example.chunks


def texts_known_to_base(recipe: Recipe, base: OpenedRun, corpus: AnyCorpus, say: Say) -> Iterator[str]:
    """Yield a note if held-out texts were in the training text of the base, and one for each earlier base.

    If the text of a base cannot be opened, the note says so only if this run reads the same file, with other content.
    """
    for each in _with_earlier_bases(base):
        known = corpus_record(each.run)
        if each.recipe.task != recipe.task or known.is_untrained:
            continue
        key = ["known to base", __version__, corpus.fingerprint, corpus.report.split, known.fingerprint]
        doing = f"looking for training texts of {each.run.folder} among the held-out texts"
        make = partial(_search, each, corpus)
        try:
            repeats = Repeats(**_remember(key, make, say, doing))
        except PenwrightError:
            if paths := _paths(recipe) & _paths(with_resolved_paths(each.run, each.recipe)):
                yield (
                    f"{each.run.folder} was trained on {min(paths)}, which has changed since then, so it may know "
                    "held-out texts. If it does, the scores are too optimistic. Hold out new texts: --validation FILE"
                )
            continue
        if repeats.are_many:
            yield (
                f"{repeats.describe('held-out ')} also occur in the training text of {each.run.folder}, so the scores "
                "are too optimistic. Hold out other texts: --validation FILE"
            )


def _paths(recipe: Recipe) -> set[str]:
    return {os.path.realpath(path) for path in recipe.data.train if not is_hub(path) and not is_pipe_name(path)}


def _search(base: OpenedRun, corpus: AnyCorpus) -> dict[str, Any]:
    return find_repeats(corpus.held_out, open_corpus_of(base).training)._asdict()


def _with_earlier_bases(base: OpenedRun) -> Iterator[OpenedRun]:
    """Yield the base, the base that it was trained from, and so on, as far as they can be opened."""
    folders = set[object]()
    while (folder := base.run.folder.resolve()) not in folders:
        yield base
        folders.add(folder)
        finetuning = with_resolved_paths(base.run, base.recipe).finetuning
        if finetuning is None:
            return
        try:
            base = open_run(finetuning.base)
        except PenwrightError:
            return


def _remember(key: Sequence[object], make: Callable[[], dict[str, Any]], say: Say, doing: str) -> dict[str, Any]:
    """Return the cached object or make it. If this takes long, say what is being done."""
    timer = Timer(SECONDS_IN_SILENCE, say, [doing])
    timer.start()
    try:
        return remember(key, make)
    finally:
        timer.cancel()
