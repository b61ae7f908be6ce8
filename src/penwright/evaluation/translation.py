"""BLEU and chrF of translations, by sacrebleu, with the signature that makes them comparable."""

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from penwright.evaluation.scores import Score
from penwright.text import HAN, KANA, OTHERS

MUCH = 0.2  # of the letters of the references, in a script without spaces: more than names that are quoted


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Score, ...]:
    """BLEU (cased) and chrF of the whole set, 0 to 100."""
    bleu, chrf = bleu_for(references), CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)]).score
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)]).score
    return (
        Score("BLEU", float(bleu_score), True, str(bleu.get_signature())),
        Score("chrF", float(chrf_score), True, str(chrf.get_signature())),
    )


def bleu_for(references: Sequence[str]) -> BLEU:
    """BLEU with the tokenizer that suits the script of the references.

    13a, the customary one, takes what stands between two spaces for a word, which in Chinese is a whole sentence. So
    `zh` for Chinese, as is customary; `char` for Japanese, Thai and others without spaces.
    """
    text = "".join(references)
    letters = max(1, sum(map(str.isalpha, text)))
    han, kana, others = (len(script.findall(text)) for script in (HAN, KANA, OTHERS))
    if han + kana + others < MUCH * letters:
        return BLEU(tokenize="13a")
    return BLEU(tokenize="zh" if han > 20 * (kana + others) else "char")
