from math import nan

import pytest
import sacrebleu

from penwright.evaluation.scores import Score
from penwright.evaluation.translation import translation_scores

HYPOTHESES = ["The cat sat on the mat.", "Dogs bark loudly at night.", ""]
REFERENCES = ["The cat sits on the mat.", "Dogs bark at night.", "Birds sing."]


def test_scores_are_those_of_sacrebleu_with_its_signature() -> None:
    bleu, chrf = translation_scores(HYPOTHESES, REFERENCES)
    assert bleu.value == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score)
    assert chrf.value == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert "case:mixed" in bleu.note and "tok:13a" in bleu.note


def test_a_copy_of_the_references_is_perfect() -> None:
    assert [score.value for score in translation_scores(REFERENCES, REFERENCES)] == pytest.approx([100.0, 100.0])


@pytest.mark.parametrize(("higher", "value", "other", "beats"), [
    (True, 2.0, 1.0, True), (True, 1.0, 2.0, False), (False, 1.0, 2.0, True), (True, 1.0, None, True),
    (True, nan, None, False), (False, float("-inf"), 1.0, False),
])  # fmt: skip
def test_what_is_not_finite_beats_nothing(higher: bool, value: float, other: float | None, beats: bool) -> None:
    assert Score("a score", value, higher).beats(other) is beats
