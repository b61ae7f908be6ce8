"""BLEU and chrF of translations, by sacrebleu, with the signature that makes them comparable."""

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from penwright.evaluation.scores import Score


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Score, ...]:
    """BLEU (13a, cased) and chrF of the whole set, 0 to 100."""
    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)]).score
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)]).score
    return (
        Score("BLEU", float(bleu_score), True, str(bleu.get_signature())),
        Score("chrF", float(chrf_score), True, str(chrf.get_signature())),
    )
