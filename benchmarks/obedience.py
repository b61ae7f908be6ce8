"""Constraints of a translator on Multi30k's test2016: glossary terms, protected spans and word alignment.

Terms are pairs of a dictionary whose English word occurs in the source. The German word of "drawn" terms occurs in the
reference, that of "foreign" terms does not. Times are for whole translations with beam size 5, each way in turn, three
times.

Spans are inserted into 500 of the sentences, and must come out letter by letter. Alignment is compared with 20 pairs
that were aligned by hand, and with links between dictionary words.

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
from penwright.evaluation.translation import translation_scores
from penwright.translation.alignment import f1
from penwright.translation.constraints.glossary import Entry, Glossary
from penwright.translation.constraints.requirements import Constraints
from penwright.translation.results import Translation
from penwright.translation.translator import Translator
from penwright.workflows.load import load_translator
from penwright.workflows.optimize import load_aligner

NAME = "obedience"
GOLD = Path(__file__).parent / "aligned.en-de.tsv"
WORD = re.compile(r"[^\W\d_]{3,}")
TURNS = 3
Terms = list[tuple[str, str]]
Figures = dict[str, list[float]]


def dictionary(path: Path, *, nouns_only: bool = True) -> dict[str, list[str]]:
    """Return the German words for each English word. `nouns_only` keeps words that are nothing but nouns."""
    found: dict[str, list[str]] = {}
    others = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        source, target, kind = line.split("\t")
        if nouns_only and kind != "n":
            others.add(source.lower())
        elif WORD.fullmatch(source) and WORD.fullmatch(target) and not (nouns_only and source.endswith("ing")):
            found.setdefault(source.lower(), []).append(target)
    return {source: targets for source, targets in found.items() if source not in others}


def terms(
    sources: Sequence[str], references: Sequence[str], known: dict[str, list[str]], n: int
) -> tuple[list[Terms], list[Terms]]:
    """Return up to n drawn and up to n foreign terms for each sentence."""
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
    """Return at most n of the pairs, with different words on each side."""
    chance.shuffle(pairs)
    return list(islice({target: (source, target) for source, target in dict(pairs).items()}.values(), n))


def demands(all_terms: Sequence[Terms]) -> list[Constraints]:
    """Return constraints that ask for these terms, one for each sentence."""
    return [Constraints(Glossary(tuple(Entry(s, (t,)) for s, t in chosen))) for chosen in all_terms]


def placed(translations: Sequence[Translation]) -> float:
    """Return the percentage of terms that occur in their translations."""
    states = [
        outcome.state for each in translations for outcome in each.candidates[0].outcomes if not outcome.protected
    ]
    return 100 * sum(state != "missed" for state in states) / max(1, len(states))


SPANS = (
    "https://www.example.org/a_b?c=d&e=%20f#g",
    "jo.doe+news@mail.example.org",
    "3.75 kg",
    "1,200 €",
    "`x = f(y)`",
    "<b>",
    "{user_name}",
)


def spans_kept(translator: Translator, sources: Sequence[str]) -> float:
    """Return the percentage of sentences whose span was kept unchanged."""
    chance = random.Random(2)
    spans = [chance.choice(SPANS) for _ in sources]
    made = []
    for source, span in zip(sources, spans, strict=True):
        words = source.split()
        words.insert(chance.randrange(len(words)), span)
        made.append(" ".join(words))
    translations = translator.translate(made)
    kept = [each.text.count(span) == 1 for each, span in zip(translations, spans, strict=True)]
    return 100 * sum(kept) / len(kept)


def alignment_errors(run: Path, words: dict[str, list[str]]) -> dict[str, float]:
    """Return the alignment error rates on the pairs of aligned.en-de.tsv, in percent."""
    rows = [line.split("\t") for line in GOLD.read_text(encoding="utf-8").splitlines()]
    pairs = [(source, target) for source, target, _ in rows]
    gold = [frozenset((int(i), int(j)) for i, j in (link.split("-") for link in row[2].split())) for row in rows]
    aligner = load_aligner(run)
    found = {"head chosen on data": aligner.align(pairs), "dictionary": [by_dictionary(pair, words) for pair in pairs]}
    return {name: 100 * (1 - f1(links, gold)) for name, links in found.items()}


def by_dictionary(pair: tuple[str, str], words: dict[str, list[str]]) -> frozenset[tuple[int, int]]:
    """Return the links between words that the dictionary translates into each other."""
    source, target = ([word.strip(".,").lower() for word in side.split()] for side in pair)
    known = [[each.lower() for each in words.get(word, [])] for word in source]
    return frozenset((i, j) for i, wanted in enumerate(known) for j, word in enumerate(target) if word in wanted)


def main(run: Path, multi30k: Path, words: Path, n_sentences: int = 1000, n_terms: int = 2) -> None:
    """Measure terms, spans and alignment; write two results."""
    sources, references = (
        (multi30k / f"test_2016_flickr.{side}").read_text(encoding="utf-8").splitlines()[:n_sentences]
        for side in ("en", "de")
    )
    translator = load_translator(run)
    translator.translate(sources[:20])  # warm up
    drawn, foreign = terms(sources, references, dictionary(words), n_terms)
    ways: dict[str, list[Terms]] = {"without terms": [], "drawn terms": drawn, "foreign terms": foreign}
    found: dict[str, Figures] = {name: {} for name in ways}
    for _ in range(TURNS):
        seconds = []
        for name, asked in ways.items():
            start = perf_counter()
            translations = translator.translate(sources, constraints=demands(asked) if asked else Constraints())
            seconds.append(perf_counter() - start)
            bleu = translation_scores([each.text for each in translations], references)[0].value
            for figure, value in (
                ("terms", float(sum(map(len, asked)))),
                ("placed, %", placed(translations) if asked else 0.0),
                ("BLEU", bleu),
                ("seconds", seconds[-1]),
                ("times the first", seconds[-1] / seconds[0]),
            ):
                found[name].setdefault(figure, []).append(value)
    results = [Result(name, figures) for name, figures in found.items()]
    kept = spans_kept(translator, sources[:500])
    results.append(
        Result("500 sentences with spans", {**{name: [0.0] for name in results[0].figures}, "placed, %": [kept]})
    )
    command = f"python -m benchmarks.{NAME} RUN multi30k en-de.tsv {n_sentences} {n_terms}"
    write_result(NAME, command, results, (__doc__ or "").split("\n\n")[1])
    errors = alignment_errors(run, dictionary(words, nouns_only=False))
    rates = [Result(name, {"alignment error rate, %": [rate]}) for name, rate in errors.items()]
    write_result("alignment", command, rates, (__doc__ or "").split("\n\n")[2])


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:]))
