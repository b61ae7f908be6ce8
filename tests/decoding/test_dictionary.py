"""Dictionaries for training a translator, and glossary terms as hints in the source."""

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

import penwright
from penwright.data.corpus import Pair, ReadingOptions
from penwright.data.files import examine
from penwright.data.parallel import open_pairs
from penwright.errors import PenwrightError, UsageError
from penwright.run.folder import Run
from penwright.tasks.translation import FEW_ENTRIES, hinted_source, open_corpus, read_entries
from penwright.translation.constraints.glossary import Entry, Glossary, with_hints
from penwright.translation.constraints.requirements import Constraints, constraints_of, find_spans
from penwright.translation.results import Segment, source_tokens
from penwright.workflows.resume import resume

DOG = Glossary((Entry("dog", ("Hund", "Köter")), Entry("black cat", ("schwarze Katze",))))
QUICK = {
    "model": {"d_model": 16, "n_layers": 1, "n_heads": 2},
    "training": {"steps": 4, "batch_tokens": 256, "threads": 1, "precision": "float32", "evaluate_every": 2},
    "tokenizer": {"type": "bpe", "vocab_size": 320},
}


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8")
    return path


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    lines = [f"the dog {n} runs to house {n % 7}\tder Hund {n} läuft zum Haus {n % 7}\n" for n in range(200)]
    return write(tmp_path / "pairs.tsv", "".join(lines))


@pytest.fixture
def terms(tmp_path: Path) -> Path:
    return write(tmp_path / "terms.tsv", "# a comment\ndog\tHund\tn\nDog\tKöter\nwheel\tRad\n\nhouse\tHaus\n")


def test_translations_of_a_term_are_collected(terms: Path) -> None:
    expected = [Entry("dog", ("Hund", "Köter")), Entry("wheel", ("Rad",)), Entry("house", ("Haus",))]
    assert read_entries(examine(terms)) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [("dog\tHund\ncat\n", "line 2 is not a dictionary entry"), ("dog\t\n", "line 1 is not"), ("# x\n", "no entries")],
)
def test_line_without_a_translation_is_refused(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PenwrightError, match=message):
        read_entries(examine(write(tmp_path / "terms.tsv", content)))


def test_hint_requires_that_the_target_contains_the_translation() -> None:
    pair = Pair("a dog and a black cat", "ein Tier mit Hunden und eine Katze")
    found = {hinted_source(pair, DOG, Random(seed)) for seed in range(30)}
    assert found == {"a dog \u27e6Hund\u27e7 and a black cat"}  # Hunden is a form of Hund


def test_entries_become_training_examples_and_hints(pairs: Path, terms: Path) -> None:
    plain, reading = open_pairs([pairs]), ReadingOptions(dictionary=str(terms), hints=0.5)
    corpus = open_corpus([pairs], reading)
    found = list(corpus.training)
    assert len(found) == len(corpus.training) == len(plain.training) + 4
    # the new term comes first, then the first translations of the others
    assert found[-4] == ("wheel", "Rad") and found[-1] == ("dog", "Köter")
    assert {*found[-3:-1]} == {("dog", "Hund"), ("house", "Haus")}
    assert corpus.new_terms == (("wheel", ("Rad",)),)
    assert corpus.training.n_bytes == sum(len(pair.target.encode()) for pair in found)
    hinted = [pair for pair in found if "\u27e6" in pair.source]
    assert 0.3 * len(found) < len(hinted) < 0.7 * len(found)
    assert found == list(corpus.training)  # the same in each epoch
    assert list(corpus.held_out) == list(plain.held_out)
    assert corpus.fingerprint != plain.fingerprint
    assert "3 terms, 1 of them in no training sentence" in corpus.report.lines()[-2]
    without = open_corpus([pairs], replace(reading, hints=0.0))
    assert not [pair for pair in without.training if "\u27e6" in pair.source]
    assert without.fingerprint != corpus.fingerprint


def test_large_dictionary_does_not_outweigh_the_sentences(pairs: Path, tmp_path: Path) -> None:
    terms = write(tmp_path / "terms.tsv", "".join(f"term{n}\tWort{n}\n" for n in range(6000)))
    plain, corpus = open_pairs([pairs]), open_corpus([pairs], ReadingOptions(dictionary=str(terms)))
    assert len(corpus.training) == len(plain.training) + FEW_ENTRIES
    assert len(corpus.new_terms) == 6000
    chosen = [int(pair.source.removeprefix("term")) for pair in list(corpus.training)[-FEW_ENTRIES:]]
    assert 2400 < sum(chosen) / len(chosen) < 3600  # not only the beginning of the dictionary


def test_new_terms_are_required_unless_the_glossary_has_them() -> None:
    new = Glossary((Entry("wheel", ("Rad", "Reifen")), Entry("dog", ("Köter",))))
    wanted = Constraints(Glossary((Entry("dog", ("Hund",)),)), hints=True, new_terms=new)
    found = [(wish.forms, wish.inflects) for wish in constraints_of("the dog has a wheel", wanted)]
    assert found == [(("Hund",), True), (("Rad", "Reifen"), False)]


def test_hints_follow_their_terms() -> None:
    assert with_hints("a dog, a cat", [(5, "Hund"), (12, "Katze")]) == "a dog ⟦Hund⟧, a cat ⟦Katze⟧"


def test_new_terms_are_translated_without_hints(pairs: Path, terms: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "data": {"dictionary": str(terms)}}
    translator = penwright.train(pairs, run=tmp_path / "run", settings=settings, quiet=True)
    assert not translator.hints
    assert "Rad" in translator.translate("the wheel runs", max_new_tokens=12)[0].text


def test_inflected_form_satisfies_a_hint() -> None:
    for hints, place in ((True, (8, 14)), (False, None)):
        required = constraints_of("two wheels", Constraints(Glossary((Entry("wheels", ("Hund",)),)), hints=hints))
        assert find_spans("Es sind Hunden.", required) == [place]
    required = constraints_of("dogs", Constraints(Glossary((Entry("dogs", ("Hund",)),)), hints=True))
    assert find_spans("Ein Hundekuchen", required) == [None]


def test_translator_trains_with_a_dictionary_and_uses_hints(pairs: Path, terms: Path, tmp_path: Path) -> None:
    settings = {**QUICK, "data": {"dictionary": str(terms), "dictionary_hints": 0.5}}
    translator = penwright.train(pairs, run=tmp_path / "run", settings=settings, quiet=True)
    assert translator.hints
    assert "Rad" in translator.translate("the wheel runs", max_new_tokens=12)[0].text  # no training sentence has it
    without = penwright.load(tmp_path / "run").translate("the dog 3 runs", max_new_tokens=12)[0]
    assert not [each for each in without.candidates[0].outcomes if not each.protected]  # known from sentences
    glossary = Glossary((Entry("dog", ("Hund",)),))
    segment = Segment("the dog runs", Constraints(glossary, hints=True))
    assert translator.tokenizer.decode(source_tokens(translator.tokenizer, segment)) == "the dog ⟦Hund⟧ runs"
    found = translator.translate("the dog 3 runs", constraints=Constraints(glossary), max_new_tokens=12)[0]
    assert "Hund" in found.text  # required if the hint is not enough
    assert next(each.state for each in found.candidates[0].outcomes if not each.protected) in ("found", "forced")
    resume(tmp_path / "run", {"training": {"steps": 2}})
    assert Run(tmp_path / "run").checkpoints.last_step() == 6
    assert penwright.evaluate(tmp_path / "run", quiet=True)
    terms.write_text("dog\tHund\n", encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"terms\.tsv changed since then"):
        resume(tmp_path / "run", {"training": {"steps": 2}})


def test_dictionary_is_refused_for_other_tasks(terms: Path, tmp_path: Path) -> None:
    novel = write(tmp_path / "novel.txt", "It was a dark night, and the rain fell.\n" * 100)
    with pytest.raises(UsageError, match="dictionary is for translators only"):
        penwright.train(novel, run=tmp_path / "run", settings={**QUICK, "data": {"dictionary": str(terms)}}, quiet=True)
