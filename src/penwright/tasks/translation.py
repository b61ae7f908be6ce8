"""Translation: an encoder-decoder model, trained on sentence pairs and on dictionary entries."""

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from math import ceil
from pathlib import Path
from random import Random

from penwright.data.bucketing import PairBatches
from penwright.data.corpus import DEFAULT_READING, Corpus, CorpusPart, Pair, ReadingOptions
from penwright.data.files import SourceFile, examine
from penwright.data.parallel import open_evaluation_pairs, open_pairs
from penwright.data.store import TokenStore
from penwright.data.store_writer import Cell
from penwright.errors import PenwrightError, Say, say_nothing
from penwright.evaluation.baselines import learn_dictionary, translate_words
from penwright.evaluation.perplexity import negative_log_likelihood
from penwright.evaluation.scores import Sample, Score
from penwright.evaluation.translation import translation_scores
from penwright.storage import write_output
from penwright.tasks.context import AnyCorpus, AnyPart, RunContext
from penwright.text import count
from penwright.translation.constraints.glossary import (
    Entry,
    Glossary,
    are_column_names,
    inflected,
    unquoted,
    with_hints,
)
from penwright.translation.constraints.requirements import NO_CONSTRAINTS
from penwright.translation.translator import Translator

N_SAMPLES = 3
MOST_EVALUATED = 2000  # maximum number of pairs that a quick evaluation translates
EVALUATED_PER_MINUTE = 200  # maximum number of pairs per minute of budget, so that evaluations take up little of it
MOST_LEARNED = 50_000  # maximum number of pairs from which the dictionary of the baseline is learned
MOST_HINTS = 2  # maximum number of dictionary hints in a sentence
SYNTHETIC = 0.75  # share of the sentences with hints in which words are swapped for translations of new terms
MANY_REVERSED = 10  # number of terms in the targets that suggests reversed columns; half of a small dictionary suffices
SHORTEST = 3  # minimum length of a term that gets a hint, in characters
MOST_READ = 200_000  # maximum number of sentences that are searched for terms before training
# maximum number of dictionary entries added: ENTRIES times the number of sentences, or FEW_ENTRIES if that is larger
ENTRIES, FEW_ENTRIES = 0.05, 1_000
TEXT_COLUMNS, LABEL_COLUMNS = ("source", "target"), ()

open_evaluation = open_evaluation_pairs


def rows(part: AnyPart, labels: Sequence[str]) -> Iterator[Sequence[Cell]]:
    """Yield the source and the target of each pair."""
    yield from _pairs(part)


def texts(corpus: AnyCorpus) -> Iterator[str]:
    """Yield the training sentences of both languages."""
    for pair in _pairs(corpus.training):
        yield from pair


def batches(context: RunContext, store: TokenStore) -> PairBatches:
    """Return the batches of a token store."""
    model, tokens, seed = context.recipe.model, context.recipe.training.batch_tokens, context.recipe.seed
    # only learned position embeddings limit the length
    longest = model.context_length if model.positions.type == "learned" else None
    return PairBatches(store.column("source"), store.column("target"), tokens, context.markers, seed, longest)


def evaluate(context: RunContext, beam_size: int | None = None, output: Path | None = None) -> Sequence[Score]:
    """Score the whole held-out set: BLEU, chrF, nats per token. Translations are written to `output`, one per line."""
    pairs = list(_pairs(context.corpus.held_out))
    translations = _translate(context, pairs, beam_size or context.recipe.decoding.beam_size)
    if output is not None:
        # line breaks inside a translation become spaces, so that each line of the file belongs to one pair
        lines = (" ".join(line.splitlines()) for line in translations)
        write_output(output, "".join(f"{line}\n" for line in lines).encode())
    return _scores(context, pairs, translations)


def quick_evaluate(context: RunContext) -> Sequence[Score]:
    """Score greedy translations of a sample of the held-out pairs.

    These scores rank checkpoints as reliably as beam search on all pairs.
    """
    pairs = _sample_of_pairs(context)
    return _scores(context, pairs, _translate(context, pairs, beam_size=1))


def _sample_of_pairs(context: RunContext) -> Sequence[Pair]:
    minutes = context.recipe.training.minutes
    most = MOST_EVALUATED if minutes is None else min(MOST_EVALUATED, ceil(EVALUATED_PER_MINUTE * minutes))
    return _chosen_pairs(context.corpus.held_out, max(N_SAMPLES, most))


@lru_cache(maxsize=1)
def _chosen_pairs(part: AnyPart, most: int) -> Sequence[Pair]:
    """Return an evenly spaced sample of pairs. It is cached, because all pairs must be read to draw it."""
    n = min(len(part), most)
    chosen = {number * len(part) // n for number in range(n)}
    return [pair for number, pair in enumerate(_pairs(part)) if number in chosen]


def _scores(context: RunContext, pairs: Sequence[Pair], translations: Sequence[str]) -> Sequence[Score]:
    """Score the translations, and add the nats per token of the whole held-out set, which are fast to compute."""
    total = negative_log_likelihood(context.model, batches(context, context.held_out).in_order(), context.device)
    scores = translation_scores(translations, [pair.target for pair in pairs])
    return [*scores, Score("nats per token", total.mean)]


def baselines(context: RunContext, *, whole: bool = False) -> Sequence[Score]:
    """Score two baselines: the untranslated sources, and word-by-word translations.

    They are scored on the pairs of a quick evaluation or, with `whole`, on all held-out pairs.
    """
    pairs = list(_pairs(context.corpus.held_out)) if whole else _sample_of_pairs(context)
    sources, targets = [pair.source for pair in pairs], [pair.target for pair in pairs]
    n_pairs = len(context.corpus.held_out)
    coverage = f"; evaluated on {len(pairs):,} of the {n_pairs:,} held-out pairs" if len(pairs) < n_pairs else ""
    outputs = [("the source, untranslated", sources)]
    if dictionary := context.dictionary or learn_dictionary_of(context.corpus.training):
        outputs.append(
            ("word by word, with a dictionary learned from the pairs", list(translate_words(sources, dictionary)))
        )
    return [
        Score("BLEU", translation_scores(texts, targets)[0].value, True, note=f"{name}{coverage}")
        for name, texts in outputs
    ]


def learn_dictionary_of(part: AnyPart) -> dict[str, str]:
    """Return a word dictionary, learned from a sample of pairs spread evenly over this part of the corpus."""
    return learn_dictionary(islice(_pairs(part), 0, None, -(-len(part) // MOST_LEARNED) or 1))


def sample(context: RunContext) -> Sequence[Sample]:
    """Translate the prompts in the settings or, if the settings have no prompts, a few held-out sources."""
    requested = [Pair(prompt, "") for prompt in context.recipe.training.prompts]
    pairs = requested or _sample_of_pairs(context)[:N_SAMPLES]
    translations = _translate(context, pairs, beam_size=1)
    return [Sample(pair.source, each, pair.target) for pair, each in zip(pairs, translations, strict=True)]


def _translate(context: RunContext, pairs: Sequence[Pair], beam_size: int) -> list[str]:
    translator = context.application
    assert isinstance(translator, Translator)
    sources = [pair.source for pair in pairs]
    return [each.text for each in translator.translate(sources, beam_size=beam_size, constraints=NO_CONSTRAINTS)]


def _pairs(part: AnyPart) -> Iterator[Pair]:
    for example in part:
        assert isinstance(example, Pair)
        yield example


def open_corpus(paths: Sequence[str | Path], reading: ReadingOptions = DEFAULT_READING) -> Corpus[Pair]:
    """Open sentence pairs for training. If the options name a dictionary, add it to the training set."""
    corpus = open_pairs(paths, reading)
    if reading.dictionary is None:
        return corpus
    file, remarks = examine(reading.dictionary, reading.encoding), list[str]()
    entries = read_entries(file, remarks.append)
    part, glossary = corpus.training, Glossary(tuple(each for each in entries if len(each.source) >= SHORTEST))
    seen = {id(occurrence.entry) for pair in islice(part, MOST_READ) for occurrence in glossary.find(pair.source)}
    new = [entry for entry in glossary.entries if id(entry) not in seen]
    remarks += [] if seen else _note_if_reversed(file, glossary, part)
    held_out = {side.casefold() for pair in _pairs(corpus.held_out) for side in pair}
    examples = _examples(entries, {*map(id, new)})
    pairs = [each for each in examples if held_out.isdisjoint(map(str.casefold, each))]
    if n_held_out := len(examples) - len(pairs):
        remarks.append(f"{file.path}: not learned, since a side is held out: {count(n_held_out, 'translation')}")
    del pairs[max(FEW_ENTRIES, int(ENTRIES * len(part))) :]
    training = CorpusPart(
        partial(_read, part, pairs, glossary, _single_words(new), reading),
        len(part) + len(pairs),
        part.n_characters + sum(len(pair.target) for pair in pairs),
        part.n_bytes + sum(len(pair.target.encode()) for pair in pairs),
    )
    note = (
        f"{file.path}: {count(len(entries), 'term')}, {len(new):,} of them in no training sentence; for these, the "
        f"dictionary's translations are enforced. {len(pairs):,} entries become training examples"
        f"{', and some training sentences have translations in place of terms' if reading.hints else ''}"
    )
    hints = (reading.hints, MOST_HINTS, SYNTHETIC) if reading.hints else 0.0
    key = f"{corpus.fingerprint} {file.sha256} {hints} {ENTRIES}{f' {n_held_out}' if n_held_out else ''}"
    fingerprint = hashlib.sha256(key.encode()).hexdigest()
    report = replace(corpus.report, notes=(*corpus.report.notes, *remarks, note))
    terms = tuple((entry.source, entry.targets) for entry in new)
    named = frozenset(entry.source.casefold() for entry in entries)
    corpus = replace(corpus, files=(*corpus.files, file), new_terms=terms, dictionary_terms=named)
    return replace(corpus, training=training, fingerprint=fingerprint, report=report)


def _note_if_reversed(file: SourceFile, glossary: Glossary, part: CorpusPart[Pair]) -> list[str]:
    """Return a note if many terms of a dictionary occur in the targets, as none of them occurs in the sources."""
    found = {id(each.entry) for pair in islice(part, MOST_READ) for each in glossary.find(pair.target)}
    if not found or len(found) < min(MANY_REVERSED, len(glossary.entries) / 2):
        return []
    occur = f"none of its terms occurs in the sources, but {len(found):,} of them in the targets"
    return [f"{file.path}: {occur}. Are its columns reversed? Each line needs the term first, then its translation"]


def read_entries(file: SourceFile, say: Say = say_nothing) -> list[Entry]:
    """Return the entries of a dictionary, one for each term, with all translations of the term.

    Each line has a term and its translations (separated by |) in columns separated by a tab. Further columns are
    ignored, and so are blank lines and lines that begin with #. A header and lines without words are left out, which
    `say` reports. Raises PenwrightError for a line without a translation.
    """
    targets_of: dict[str, tuple[str, dict[str, None]]] = {}
    n_read = n_wordless = 0
    for number, line in enumerate(file.lines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        source, target = map(unquoted, [*line.split("\t"), ""][:2])
        if not source or not target:
            raise PenwrightError(
                f"{file.path} line {number:,} is not a dictionary entry: it needs a term, a tab and a translation"
            )
        n_read += 1
        if n_read == 1 and are_column_names(source, target):
            say(f"{file.path}: line {number:,} is a header, not an entry: {source}, {target}")
        elif re.search(r"\w", source) and re.search(r"\w", target):
            forms = [form.strip() for form in target.split("|") if re.search(r"\w", form)]
            targets_of.setdefault(source.casefold(), (source, {}))[1].update(dict.fromkeys(forms))
        else:
            n_wordless += 1
    if n_wordless:
        say(f"{file.path}: left out: {count(n_wordless, 'line')} in which a side has no letter and no digit")
    if not targets_of:
        raise PenwrightError(f"{file.path} has no entries: each line needs a term, a tab and a translation")
    return [Entry(source, tuple(targets)) for source, targets in targets_of.values()]


def _examples(entries: Sequence[Entry], new: Collection[int]) -> list[Pair]:
    """Return all translations of the entries as examples, the most useful ones first.

    The first translation of every term comes before any second translation, and so on. Within each of these groups,
    terms in `new` come first. The rest of the order is random, since dictionaries are sorted, and most entries of a
    large one are left out.
    """
    pairs = [
        (number, id(entry) not in new, Pair(entry.source, target))
        for entry in entries
        for number, target in enumerate(entry.targets)
    ]
    Random(0).shuffle(pairs)
    return [pair for *_, pair in sorted(pairs, key=lambda each: each[:2])]


def _single_words(entries: Sequence[Entry]) -> Mapping[bool, Sequence[str]]:
    """Return the first translations that are single words: the capitalized ones (True) and the others (False)."""
    words = [entry.targets[0] for entry in entries if re.fullmatch(rf"[^\W\d_]{{{SHORTEST},}}", entry.targets[0])]
    return {case: [word for word in words if word[0].isupper() == case] for case in (False, True)}


def _read(
    part: CorpusPart[Pair],
    entries: Sequence[Pair],
    glossary: Glossary,
    new_words: Mapping[bool, Sequence[str]],
    reading: ReadingOptions,
) -> Iterator[Pair]:
    """Yield the pairs, some with dictionary translations as hints, and then the dictionary entries."""
    for pair in part:
        rng = Random(f"{reading.seed} {pair.source}")
        yield hinted_pair(pair, glossary, new_words, rng) if rng.random() < reading.hints else pair
    yield from entries


def hinted_pair(pair: Pair, glossary: Glossary, new_words: Mapping[bool, Sequence[str]], rng: Random) -> Pair:
    """Return a pair with hints in place of some terms. Only terms whose translation occurs in the target get hints.

    In most pairs, a new word that suits the case is the hint instead, and replaces the translation in the target. The
    model thus learns to copy words that it does not know.
    """
    hints, target = [], pair.target
    for start, end, entry in glossary.find(pair.source):
        used = [form for form in entry.targets if form[:4] in target and re.search(inflected(form), target)]
        hints += [(start, end, max(used, key=len))] if used else []
    hints = rng.sample(hints, min(len(hints), rng.randint(1, MOST_HINTS)))
    if any(new_words.values()) and rng.random() < SYNTHETIC:
        real, hints = hints, []
        for start, end, form in real:
            found = re.findall(inflected(form), target)
            if len(found) == 1 and " " not in found[0] and (words := new_words[found[0][0].isupper()]):
                hints.append((start, end, rng.choice(words)))
                target = re.sub(inflected(form), hints[-1][2], target)
    return Pair(with_hints(pair.source, hints), target)
