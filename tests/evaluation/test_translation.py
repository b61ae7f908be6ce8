from math import nan

import pytest
import sacrebleu

from penwright.evaluation.scores import Score
from penwright.evaluation.translation import bleu_in_words, translation_scores

HYPOTHESES = ["The cat sat on the mat.", "Dogs bark loudly at night.", ""]
REFERENCES = ["The cat sits on the mat.", "Dogs bark at night.", "Birds sing."]


def test_scores_equal_sacrebleus_with_its_signature() -> None:
    bleu, chrf = translation_scores(HYPOTHESES, REFERENCES)
    assert bleu.value == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score)
    assert chrf.value == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score)
    assert "case:mixed" in bleu.note and "tok:13a" in bleu.note


def test_references_themselves_score_100() -> None:
    assert [score.value for score in translation_scores(REFERENCES, REFERENCES)] == pytest.approx([100.0, 100.0])


@pytest.mark.parametrize(("higher", "value", "other", "beats"), [
    (True, 2.0, 1.0, True), (True, 1.0, 2.0, False), (False, 1.0, 2.0, True), (True, 1.0, None, True),
    (True, nan, None, False), (False, float("-inf"), 1.0, False),
])  # fmt: skip
def test_non_finite_score_beats_nothing(higher: bool, value: float, other: float | None, beats: bool) -> None:
    assert Score("a score", value, higher).beats(other) is beats


@pytest.mark.parametrize(
    ("references", "tokenizer"),
    [
        (["我来了。", "你好吗？", "我用 Python 写程序。"], "zh"),
        (["吾輩は猫である。", "名前はまだ無い。"], "char"),
        (["ฉันรักคุณ"], "char"),
        (["A cat, 猫, sat on the mat.", "He said 你好 to me, and I to him."], "13a"),
        (["나는 학생입니다."], "13a"),
        (["هل أنت هنا؟"], "13a"),
        ([""], "13a"),
    ],
)
def test_bleu_tokenizer_depends_on_the_script(references: list[str], tokenizer: str) -> None:
    assert f"tok:{tokenizer}" in translation_scores(references, references)[0].note


def test_partly_correct_chinese_sentence_has_partial_bleu() -> None:
    bleu = translation_scores(["我昨天在学校里看见了他。"], ["我昨天在学校里看到了他。"])[0]
    assert 40 < bleu.value < 90


def test_bleu_is_described_in_words() -> None:
    assert bleu_in_words(17.0) == "the gist is hard to get"
    assert bleu_in_words(9.99) == "almost useless"
    assert "human" in bleu_in_words(72.0)


def test_tokenized_references_are_noted_instead_of_warnings(caplog: pytest.LogCaptureFixture) -> None:
    texts = [f"cat {number} sat on the mat ." for number in range(120)]
    bleu, _ = translation_scores(texts, texts)
    assert bleu.note.endswith("the references are tokenized, so scores on raw text differ") and not caplog.records
    raw = [text.replace(" .", ".") for text in texts]
    assert "tokenized" not in translation_scores(texts, raw)[0].note
