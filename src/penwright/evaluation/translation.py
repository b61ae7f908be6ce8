"""BLEU and chrF of translations, computed by sacrebleu, with the signatures that make scores comparable."""

from collections.abc import Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from penwright.evaluation.scores import Score
from penwright.text import HAN, KANA, OTHERS

MUCH = 0.2  # BLEU uses the tokenizer `13a` if less than this share of the letters is in scripts without spaces
QUALITY = (  # upper limits of BLEU scores, and their meaning, as in the documentation of Google Cloud Translation
    (10.0, "almost useless"),
    (20.0, "the gist is hard to get"),
    (30.0, "the gist is clear, but there are many errors"),
    (40.0, "understandable to good"),
    (50.0, "high quality"),
    (60.0, "very high quality"),
)


def translation_scores(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Score, ...]:
    """Return corpus BLEU (cased) and corpus chrF, both from 0 to 100."""
    bleu, chrf = bleu_for(references), CHRF()
    bleu_score = bleu.corpus_score(list(hypotheses), [list(references)]).score
    chrf_score = chrf.corpus_score(list(hypotheses), [list(references)]).score
    n_tokenized = sum(reference.endswith(" .") for reference in references)
    remark = "; the references are tokenized, so scores on raw text differ" if n_tokenized > len(references) / 2 else ""
    return (
        Score("BLEU", float(bleu_score), True, f"{bleu.get_signature()}{remark}"),
        Score("chrF", float(chrf_score), True, str(chrf.get_signature())),
    )


def bleu_for(references: Sequence[str]) -> BLEU:
    """Return BLEU with the tokenizer that suits the script of the references.

    The standard tokenizer, `13a`, splits words at spaces, which would make a whole Chinese sentence one word. Chinese
    is scored with `zh`, the standard tokenizer for Chinese. Other languages without spaces are scored with `char`.
    """
    text = "".join(references)
    letters = max(1, sum(map(str.isalpha, text)))
    han, kana, others = (len(script.findall(text)) for script in (HAN, KANA, OTHERS))
    without_spaces = "zh" if han > 20 * (kana + others) else "char"
    tokenizer = "13a" if han + kana + others < MUCH * letters else without_spaces
    return BLEU(tokenize=tokenizer, force=True)  # `force` turns off a warning about tokenized translations


def bleu_in_words(value: float) -> str:
    """Return the translation quality that a BLEU score suggests. Scores on different texts are hardly comparable."""
    return next((words for limit, words in QUALITY if value < limit), "often as good as a human translation")
