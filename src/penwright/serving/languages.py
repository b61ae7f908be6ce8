"""The languages of a translator, and language detection."""

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from penwright.application import languages_of as known_languages
from penwright.languages import Languages, languages_in
from penwright.serving.model_worker import ModelWorker, TranslationChoices
from penwright.workflows.load import OpenedRun

NAMES = {
    "ar": "Arabic",
    "cs": "Czech",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "ja": "Japanese",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ru": "Russian",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "zh": "Chinese",
}
UNKNOWN = Languages("source", "target")


class LanguageGuess(NamedTuple):
    """A possible language of a text, and the mean token probability of a translation from this language."""

    language: str
    share: float


def languages_of(name: str, opened: OpenedRun) -> Languages:
    """Return the languages of a run, from its served name (e.g. de-en) or its training data."""
    return languages_in(name) or known_languages(opened.recipe, opened.card) or UNKNOWN


async def detect(text: str, translators: Sequence[ModelWorker]) -> list[LanguageGuess]:
    """Rank the source languages of the translators by the likelihood that the text is written in them, best first."""
    guesses = []
    for served in translators:
        (found,) = await served.translate([text], TranslationChoices(beam_size=1))
        n_tokens = len(found.candidates[0].pieces)
        share = exp(found.candidates[0].log_prob / n_tokens) if n_tokens else 0.0
        guesses.append(LanguageGuess(languages_of(served.name, served.opened).source, share))
    best = sorted(guesses, key=lambda guess: -guess.share)
    return list({guess.language: guess for guess in reversed(best)}.values())[::-1]


def name_of(code: str) -> str:
    """Return the English name of a language, or its code if it has no known name."""
    return NAMES.get(code, code)
