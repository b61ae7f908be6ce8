"""Dictionaries for training a translator, and glossary terms as hints in the source."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import penwright
from penwright.config import DataSettings
from penwright.data.corpus import Pair, ReadingOptions
from penwright.data.files import examine
from penwright.data.parallel import open_pairs
from penwright.data.store import Column, TokenStore
from penwright.decoding.hypotheses import Hypothesis
from penwright.errors import PenwrightError, UsageError
from penwright.run.folder import Run
from penwright.run.provenance import CorpusRecord, ModelCard
from penwright.tasks.context import make_card
from penwright.tasks.translation import FEW_ENTRIES, hinted_pair, open_corpus, read_entries
from penwright.tokenizers import Tokenizer
from penwright.training.auto.planner import HINT_EPOCHS, HINTS
from penwright.translation.constraints import revision
from penwright.translation.constraints.glossary import Entry, Glossary, with_hints
from penwright.translation.constraints.requirements import (
    ConstraintResult,
    Constraints,
    constraints_of,
    find_spans,
)
from penwright.translation.results import Segment, SegmentResult, source_text, source_tokens
from penwright.workflows import make_trainer
from penwright.workflows.evaluate import is_trained_on
from penwright.workflows.plan import prepare
from penwright.workflows.resume import resume

NEW_WORDS = {False: ["grün"], True: ["Rad", "Grotte"]}
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
    return write(tmp_path / "terms.tsv", "# a comment\ndog\tHund\tn\nDog\tKöter| Hund|\nwheel\tRad\n\nhouse\tHaus\n")


def test_translations_of_a_term_are_collected(terms: Path) -> None:
    expected = [Entry("dog", ("Hund", "Köter")), Entry("wheel", ("Rad",)), Entry("house", ("Haus",))]
    assert read_entries(examine(terms)) == expected


@pytest.mark.parametrize(
    ("content", "n_said"),
    [
        ("source\ttarget\n", 1),
        ("Term\tTranslation\n", 1),
        ("# x\nen\tde_DE\n", 1),
        ("English\tGerman\nzorro\t-\n", 2),
        ("?\tFrage\n", 1),
        ('"dog"\t"Hund"\n', 0),
    ],
)
def test_headers_quotes_and_lines_without_words_are_no_terms(content: str, n_said: int, tmp_path: Path) -> None:
    said: list[str] = []
    file = examine(write(tmp_path / "terms.tsv", f'{content}dog\tHund\n"a ""b"", c"\tno\nno\tno\n'))
    assert read_entries(file, said.append) == [
        Entry("dog", ("Hund",)),
        Entry('a "b", c', ("no",)),
        Entry("no", ("no",)),
    ]
    assert len(said) == n_said


def test_reversed_dictionary_is_reported(pairs: Path, tmp_path: Path) -> None:
    for content, is_reversed in (("Hund\tdog\nHaus\thouse\n", True), ("wheel\tRad\n", False)):
        terms = write(tmp_path / "terms.tsv", content)
        notes = open_corpus([pairs], ReadingOptions(dictionary=str(terms))).report.notes
        assert any("Are its columns reversed?" in note for note in notes) == is_reversed


@pytest.mark.parametrize(
    ("content", "message"),
    [("dog\tHund\ncat\n", "line 2 is not a dictionary entry"), ("dog\t\n", "line 1 is not"), ("# x\n", "no entries")],
)
def test_line_without_a_translation_is_refused(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(PenwrightError, match=message):
        read_entries(examine(write(tmp_path / "terms.tsv", content)))


def test_hint_requires_that_the_target_contains_the_translation() -> None:
    pair = Pair("a dog and a black cat", "ein Tier mit Hunden und eine Katze")
    found = {hinted_pair(pair, DOG, {False: [], True: []}, Random(seed)).source for seed in range(30)}
    assert found == {"a ⟦ Hund⟧ and a black cat"}  # Hunden is a form of Hund


def test_synthetic_hints_replace_the_translation_in_both_sentences() -> None:
    pair = Pair("dog and dog and black cat", "Köter und eine schwarze Katze")
    counts = Counter(hinted_pair(pair, DOG, NEW_WORDS, Random(seed)) for seed in range(400))
    real = [each for each in counts if each.target == pair.target and "⟦" in each.source]
    assert {each.source.replace("⟦ Köter⟧", "dog").replace("⟦ schwarze Katze⟧", "black cat") for each in real} == {
        pair.source
    }
    synthetic = [each for each in counts if each.target != pair.target]
    assert {each.target for each in synthetic} == {f"{word} und eine schwarze Katze" for word in NEW_WORDS[True]}
    for source, target in synthetic:
        assert source.count("⟦") == source.count(f"⟦ {target.split()[0]}⟧") == 1  # phrases are not replaced
    assert 0.4 < sum(counts[each] for each in synthetic) / 400 < 0.75


def test_word_that_occurs_twice_in_the_target_is_not_replaced() -> None:
    pair = Pair("a dog", "Hund und Hunde")
    found = {hinted_pair(pair, DOG, NEW_WORDS, Random(seed)) for seed in range(30)}
    assert found == {pair, Pair("a ⟦ Hund⟧", pair.target)}


def test_entries_become_training_examples_and_hints(pairs: Path, terms: Path) -> None:
    plain, reading = open_pairs([pairs]), ReadingOptions(dictionary=str(terms), hints=0.5)
    corpus = open_corpus([pairs], reading)
    found = list(corpus.training)
    assert len(found) == len(corpus.training) == len(plain.training) + 4
    # the new term comes first, then the first translations of the others
    assert found[-4] == ("wheel", "Rad") and found[-1] == ("dog", "Köter")
    assert {*found[-3:-1]} == {("dog", "Hund"), ("house", "Haus")}
    assert corpus.new_terms == (("wheel", ("Rad",)),)
    hinted = [pair for pair in found if "\u27e6" in pair.source]
    assert 0.3 * len(found) < len(hinted) < 0.7 * len(found)
    synthetic = [pair for pair in hinted if "⟦ Rad⟧" in pair.source]
    assert 0.5 * len(hinted) < len(synthetic) < 0.95 * len(hinted)
    assert all("Rad" in pair.target for pair in synthetic)
    assert found == list(corpus.training)  # the same in each epoch
    assert list(corpus.held_out) == list(plain.held_out)
    assert corpus.fingerprint != plain.fingerprint
    assert "3 terms, 1 of them in no training sentence" in corpus.report.lines()[-2]
    without = open_corpus([pairs], replace(reading, hints=0.0))
    assert not [pair for pair in without.training if "\u27e6" in pair.source]
    assert without.fingerprint != corpus.fingerprint
    assert without.training.n_bytes == sum(len(pair.target.encode()) for pair in without.training)
    assert list(open_corpus([pairs], replace(reading, seed=1)).training) != found


def test_held_out_pairs_are_not_learned_from_the_dictionary(tmp_path: Path) -> None:
    pairs = write(tmp_path / "pairs.tsv", "".join(f"the word {n}\tdas Wort {n}\n" for n in range(200)))
    terms = write(tmp_path / "terms.tsv", "".join(f"The word {n}\tDas Wort {n}\n" for n in range(200)) + "wheel\tRad\n")
    reading = ReadingOptions(dictionary=str(terms))
    corpus = open_corpus([pairs], reading)
    sources = [pair.source.casefold() for pair in corpus.training]
    assert {pair.source for pair in corpus.held_out}.isdisjoint(sources) and "wheel" in sources
    n = len(corpus.held_out)
    assert any(f"not learned, since a side is held out: {n} translations" in note for note in corpus.report.notes)
    assert len(corpus.new_terms) == n + 1  # their translations are still enforced
    files = [{"path": str(file.path), "sha256": file.sha256} for file in corpus.files]
    older = {"fingerprint": "", "files": files, "card": {}, "report": corpus.report.as_dict(), "columns": corpus.roles}
    assert is_trained_on(CorpusRecord.model_validate(older), corpus), "older runs can be resumed"


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


def test_hints_replace_their_terms() -> None:
    assert with_hints("a dog, a cat", [(2, 5, "Hund"), (9, 12, "Katze")]) == "a ⟦ Hund⟧, a ⟦ Katze⟧"
    assert with_hints("dog (dog)", [(0, 3, "Hund"), (5, 8, "Hund")]) == "⟦ Hund⟧ ( ⟦ Hund⟧)"
    assert with_hints("a dog", [(2, 5, "⟦ Hund⟧")]) == "a ⟦ Hund⟧"  # brackets of the translation are left out
    assert with_hints("a dog", [(2, 5, "⟦ ⟧")]) == "a dog"


def test_model_reads_hints_as_in_training() -> None:
    glossary = Glossary((Entry("black cat", ("schwarze Katze",)), Entry("cat", ("Kater",)), Entry("dog", ("Hund",))))
    source, target = "dog, black cat and cat 7", "Hund, schwarze Katze und Kater"
    constraints = Constraints(glossary, new_terms=Glossary((Entry("dog", ("Köter",)),)), hints=True)
    read = source_text(Segment(source, constraints))
    assert read == "⟦ Hund⟧, ⟦ schwarze Katze⟧ and ⟦ Kater⟧ 7"
    hinted = [(each.start, each.end, each.entry.targets[0]) for each in glossary.find(source)]
    assert read == with_hints(source, hinted)
    written = {hinted_pair(Pair(source, target), glossary, NEW_WORDS, Random(seed)).source for seed in range(300)}
    assert {with_hints(source, hinted[:2]), with_hints(source, hinted[1:])} <= written
    assert source_text(Segment(source, replace(constraints, hints=False))) == source
    without_form = Constraints(Glossary((Entry("dog", ()),)), hints=True)
    assert source_text(Segment(source, without_form)) == source


def test_protected_spans_are_not_replaced_by_hints() -> None:
    glossary = Glossary((Entry("mail", ("Post",)), Entry("dog", ("Hund",))))
    source = "the dog has mail at dog@mail.org"
    assert source_text(Segment(source, Constraints(glossary, hints=True))) == "the ⟦ Hund⟧ has ⟦ Post⟧ at dog@mail.org"


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
    assert translator.tokenizer.decode(source_tokens(translator.tokenizer, segment)) == "the ⟦ Hund⟧ runs"
    found = translator.translate("the dog 3 runs", constraints=Constraints(glossary), max_new_tokens=12)[0]
    assert "Hund" in found.text  # required if the hint is not enough
    assert next(each.state for each in found.candidates[0].outcomes if not each.protected) in ("found", "forced")
    wheel = "the wheel runs"
    assert "Rad" in translator.translate(wheel, n_best=2, beam_size=3, max_new_tokens=12)[0].candidates[1].text
    assert translator.diverse(wheel, 2)[0].text and translator.sample(wheel, 2)[0].text
    assert translator.alternatives(wheel, "das ", 2)
    resume(tmp_path / "run", {"training": {"steps": 2}})
    assert Run(tmp_path / "run").checkpoints.last_step() == 6
    with pytest.raises(UsageError, match="dictionary_hints cannot change when a run is resumed"):
        resume(tmp_path / "run", {"data": {"dictionary_hints": 0.0}})
    assert penwright.evaluate(tmp_path / "run", quiet=True)
    terms.write_text("dog\tHund\n", encoding="utf-8")
    with pytest.raises(PenwrightError, match=r"terms\.tsv changed since then"):
        resume(tmp_path / "run", {"training": {"steps": 2}})


def test_new_dictionary_replaces_the_terms_of_the_base(pairs: Path, tmp_path: Path, raw_bytes: Tokenizer) -> None:
    corrected = str(write(tmp_path / "new.tsv", "wheel\tReifen\nDog\tKöter\n"))
    corpus = open_corpus([pairs], ReadingOptions(dictionary=corrected))
    store = TokenStore(tmp_path, "", 1, {"source": Column(np.zeros(3, np.uint16), np.array([0, 3]), 3)}, {}, {})
    base = ModelCard(new_terms=(("Wheel", ("Rad",)), ("dog", ("Hund",)), ("tree", ("Baum",))))
    card = make_card(corpus, store, raw_bytes, DataSettings(train=[str(pairs)], dictionary=corrected), base)
    assert card.new_terms == (("tree", ("Baum",)), ("wheel", ("Reifen",)))


def test_run_trained_with_hints_of_another_format_translates_without_hints(
    pairs: Path, terms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def card_of_old_run(*asked: Any) -> ModelCard:
        return replace(make_card(*asked), hints=False)  # older runs do not record hints, so this is read

    monkeypatch.setattr(make_trainer, "make_card", card_of_old_run)
    settings = {**QUICK, "data": {"dictionary": str(terms), "dictionary_hints": 0.5}}
    translator = penwright.train(pairs, run=tmp_path / "run", settings=settings, quiet=True)
    assert not translator.hints
    assert "Rad" in translator.translate("the wheel runs", max_new_tokens=12)[0].text
    monkeypatch.undo()
    resume(tmp_path / "run", {"training": {"steps": 2}})
    assert not penwright.load(tmp_path / "run").hints


def test_missed_term_is_located_by_hiding_its_hint(
    pairs: Path, terms: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator = penwright.train(pairs, run=tmp_path / "run", settings=QUICK, quiet=True)
    tokenizer, source = translator.tokenizer, "the house and the dog run"
    glossary = Glossary((Entry("house", ("Gebäude",)), Entry("dog", ("Hund",))))
    found: dict[bool, revision.HiddenSource] = {}
    for hints in (True, False):
        constraints = Constraints(glossary, hints=hints)
        house, dog = constraints_of(source, constraints)
        results = [ConstraintResult("house", 4, 9, False, "found"), ConstraintResult("dog", 18, 21, False, "missed")]
        draft = SegmentResult("", Hypothesis((), 0.0, 0.0, "end"), [house, dog], results)

        def keep(scorer: object, pairs: list[revision.HiddenSource], seen: object) -> list[None]:
            (found[hints],) = pairs  # noqa: B023 - called in this iteration only
            return [None]

        monkeypatch.setattr(revision, "replaced_words", keep)
        segment = Segment(source, constraints)
        revision.Revision(translator.model, tokenizer).drafts([segment], [draft])
        assert found[hints].source == source_tokens(tokenizer, segment)
    hidden = [tokenizer.decode(pair.source[pair.hidden.start : pair.hidden.stop]) for pair in found.values()]
    assert [text.strip() for text in hidden] == ["⟦ Hund⟧", "dog"]


@pytest.mark.parametrize(("epochs", "share"), [(10, 0.0), (20, HINTS)])
def test_plan_chooses_hints_for_long_runs(epochs: int, share: float, pairs: Path, terms: Path) -> None:
    assert 10 < HINT_EPOCHS < 20
    settings = {**QUICK, "data": {"train": str(pairs), "dictionary": str(terms)}}
    settings["training"] = {"epochs": epochs, "batch_tokens": 256, "threads": 1, "precision": "float32"}
    prepared = prepare(settings)
    assert prepared.plan.recipe.data.dictionary_hints == share
    reason = next(each.reason for each in prepared.plan.choices if each.key == "data.dictionary_hints")
    assert f"{epochs} epochs" in reason
    assert any("⟦" in pair.source for pair in prepared.corpus.training if isinstance(pair, Pair)) == (share > 0)
    assert any("in place of terms" in line for line in prepared.corpus.report.lines()) == (share > 0)
    settings["data"] = {**settings["data"], "dictionary_hints": 0.1}
    assert prepare(settings).plan.recipe.data.dictionary_hints == 0.1
    settings["data"] = {"train": str(pairs)}
    assert prepare(settings).plan.recipe.data.dictionary_hints is None


def test_new_plan_for_less_time_keeps_the_hints_of_the_corpus(pairs: Path, terms: Path) -> None:
    data = {"train": str(pairs), "dictionary": str(terms)}
    prepared = prepare({**QUICK, "data": data, "training": {"minutes": 5, "threads": 1, "precision": "float32"}})
    assert prepared.plan.recipe.data.dictionary_hints == HINTS
    assert prepared.replan is not None
    again = prepared.replan(1e-6)
    assert again.epochs < HINT_EPOCHS and again.recipe.data.dictionary_hints == HINTS


def test_dictionary_is_refused_for_other_tasks(terms: Path, tmp_path: Path) -> None:
    novel = write(tmp_path / "novel.txt", "It was a dark night, and the rain fell.\n" * 100)
    with pytest.raises(UsageError, match="dictionary is only for translators"):
        penwright.train(novel, run=tmp_path / "run", settings={**QUICK, "data": {"dictionary": str(terms)}}, quiet=True)
