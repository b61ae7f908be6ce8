"""A translator that obeys: glossary terms from references, and terms that no reference has, on Multi30k's test2016.

Terms are pairs of a dictionary whose English word stands in the source: "drawn" ones have their German word in the
reference, "foreign" ones have a German word that is not. Times are of whole translations, beam 5, one after the other.

Run: python -m benchmarks.obedience RUN MULTI30K_FOLDER DICTIONARY_TSV [SENTENCES] [TERMS]
"""

import random
import re
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from time import perf_counter

from benchmarks.report import Result, write_result
from penwright.api import load_translator
from penwright.decoding import Demands, Entry, Glossary, Translation
from penwright.evaluation.translation import translation_scores

NAME = "obedience"
WORD = re.compile(r"[^\W\d_]{3,}")
Terms = list[tuple[str, str]]


def dictionary(path: Path) -> dict[str, list[str]]:
    """The German nouns for each English word that is a noun and nothing else."""
    found: dict[str, list[str]] = {}
    others = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        source, target, kind = line.split("\t")
        if kind != "n":
            others.add(source.lower())
        elif WORD.fullmatch(source) and WORD.fullmatch(target):
            found.setdefault(source.lower(), []).append(target)
    return {source: targets for source, targets in found.items() if source not in others}


def terms(
    sources: Sequence[str], references: Sequence[str], known: dict[str, list[str]], n: int
) -> tuple[list[Terms], list[Terms]]:
    """For each sentence up to n drawn terms, and up to n foreign ones."""
    chance = random.Random(1)
    drawn: list[Terms] = []
    foreign: list[Terms] = []
    for source, reference in zip(sources, references, strict=True):
        there = set(WORD.findall(reference))
        words = [word for word in dict.fromkeys(WORD.findall(source)) if word.lower() in known]
        hits = [(word, target) for word in words for target in known[word.lower()] if target in there]
        misses = [
            (w, t) for w in words for t in known[w.lower()] if t[0].isupper() and t.lower() not in reference.lower()
        ]
        drawn.append(sample(chance, hits, n))
        foreign.append(sample(chance, misses, n))
    return drawn, foreign


def sample(chance: random.Random, pairs: Terms, n: int) -> Terms:
    """At most n of them, with different words on each side."""
    chance.shuffle(pairs)
    return list(islice({target: (source, target) for source, target in dict(pairs).items()}.values(), n))


def demands(all_terms: Sequence[Terms]) -> list[Demands]:
    return [Demands(Glossary(tuple(Entry(s, (t,)) for s, t in chosen))) for chosen in all_terms]


def placed(translations: Sequence[Translation]) -> float:
    """Percent of the terms that stand in their translations."""
    states = [
        outcome.state for each in translations for outcome in each.candidates[0].outcomes if not outcome.protected
    ]
    return 100 * sum(state != "missed" for state in states) / max(1, len(states))


def main(run: Path, multi30k: Path, words: Path, n_sentences: int = 1000, n_terms: int = 2) -> None:
    sources, references = (
        (multi30k / f"test_2016_flickr.{side}").read_text(encoding="utf-8").splitlines()[:n_sentences]
        for side in ("en", "de")
    )
    translator = load_translator(run)
    translator.translate(sources[:20])  # warm
    drawn, foreign = terms(sources, references, dictionary(words), n_terms)
    results = []
    first = None
    for name, asked in (("without terms", None), ("drawn terms", drawn), ("foreign terms", foreign)):
        start = perf_counter()
        wished = demands(asked) if asked else Demands()
        translations = translator.translate(sources, demands=wished)
        seconds = perf_counter() - start
        first = first or seconds
        bleu = translation_scores([each.text for each in translations], references)[0].value
        n = float(sum(map(len, asked or [])))
        results.append(
            Result(
                name,
                {
                    "terms": [n],
                    "placed, %": [placed(translations) if asked else 0.0],
                    "BLEU": [bleu],
                    "seconds": [seconds],
                    "times the first": [seconds / first],
                },
            )
        )
    command = f"python -m benchmarks.{NAME} RUN multi30k en-de.tsv {n_sentences} {n_terms}"
    write_result(NAME, command, results, (__doc__ or "").split("\n\n")[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
