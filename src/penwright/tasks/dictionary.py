"""Dictionaries for training a translator: entries become examples, hints in sentences, and terms of the translator."""

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

from penwright.data.corpus import DEFAULT_READING, Corpus, CorpusPart, Pair, ReadingOptions
from penwright.data.files import SourceFile, examine
from penwright.data.parallel import open_pairs
from penwright.errors import PenwrightError
from penwright.translation.constraints.glossary import Entry, Glossary
from penwright.translation.constraints.hints import inflected, with_hints

SHARE = 0.5  # share of sentences that get hints, among those with usable terms
MOST_HINTS = 3  # maximum number of hints in a sentence
SHORTEST = 3  # minimum length of a term that gets a hint, in characters
MOST_READ = 200_000  # maximum number of sentences that are searched for terms before training
ENTRIES, FEW_ENTRIES = 0.05, 1_000  # maximum number of entries as examples: a share of the sentences, or this number


def open_pairs_with_dictionary(paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING) -> Corpus[Pair]:
    """Open sentence pairs for training. If the options name a dictionary, add it to the training part."""
    corpus = open_pairs(paths, reading)
    if reading.dictionary is None:
        return corpus
    file = examine(reading.dictionary, reading.encoding)
    entries = read_entries(file)
    part, glossary = corpus.training, Glossary(tuple(each for each in entries if len(each.source) >= SHORTEST))
    seen = {id(found.entry) for pair in islice(part, MOST_READ) for found in glossary.find(pair.source)}
    new = [entry for entry in glossary.entries if id(entry) not in seen]
    pairs = _examples(entries, {*map(id, new)}, max(FEW_ENTRIES, int(ENTRIES * len(part))))
    targets = "".join(pair.target for pair in pairs)
    training = CorpusPart(
        partial(_read, part, pairs, glossary, reading.seed),
        len(part) + len(pairs),
        part.n_characters + len(targets),
        part.n_bytes + len(targets.encode()),
    )
    note = (
        f"{file.path}: {len(entries):,} terms, of which no training sentence has {len(new):,}; the translator will "
        f"require their translations. {len(pairs):,} entries are training examples; some are hints in sentences"
    )
    fingerprint = hashlib.sha256(f"{corpus.fingerprint} {file.sha256} {SHARE} {ENTRIES}".encode()).hexdigest()
    report = replace(corpus.report, notes=(*corpus.report.notes, note))
    terms = tuple((entry.source, entry.targets) for entry in new)
    files = (*corpus.files, file)
    return replace(corpus, training=training, files=files, fingerprint=fingerprint, report=report, new_terms=terms)


def read_entries(file: SourceFile) -> list[Entry]:
    """Return the entries of a dictionary, one for each term, with all translations of the term.

    Each line has a term and a translation, separated by a tab; further columns are ignored, and so are blank lines
    and lines that begin with #. Raises PenwrightError for a line without a translation.
    """
    found: dict[str, tuple[str, dict[str, None]]] = {}
    for number, line in enumerate(file.lines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        source, _, rest = line.partition("\t")
        target = rest.partition("\t")[0].strip()
        if not source.strip() or not target:
            raise PenwrightError(
                f"{file.path} line {number:,} is not a dictionary entry: it needs a term, a tab and a translation"
            )
        if re.search(r"\w", source):
            found.setdefault(source.strip().casefold(), (source.strip(), {}))[1][target] = None
    if not found:
        raise PenwrightError(f"{file.path} has no entries: each line needs a term, a tab and a translation")
    return [Entry(source, tuple(targets)) for source, targets in found.values()]


def _examples(entries: Sequence[Entry], new: Collection[int], most: int) -> list[Pair]:
    """Return at most this many entries as examples: `new` terms first, and each first translation before the others."""
    pairs = [
        (number, id(entry) not in new, Pair(entry.source, target))
        for entry in entries
        for number, target in enumerate(entry.targets)
    ]
    return [pair for *_, pair in sorted(pairs, key=lambda each: each[:2])[:most]]


def _read(part: CorpusPart[Pair], entries: Sequence[Pair], glossary: Glossary, seed: int) -> Iterator[Pair]:
    """Yield the pairs, some of them with hints, and then the dictionary entries."""
    for pair in part:
        yield pair._replace(source=hinted_source(pair, glossary, Random(f"{seed} {pair.source}")))
    yield from entries


def hinted_source(pair: Pair, glossary: Glossary, rng: Random) -> str:
    """Return the source of a pair, perhaps with hints. Only translations that occur in the target become hints."""
    if rng.random() >= SHARE:
        return pair.source
    found = []
    for _, end, entry in glossary.find(pair.source):
        used = [form for form in entry.targets if form[:4] in pair.target and re.search(inflected(form), pair.target)]
        found += [(end, max(used, key=len))] if used else []
    chosen = rng.sample(found, min(len(found), rng.randint(1, MOST_HINTS)))
    return with_hints(pair.source, chosen)
