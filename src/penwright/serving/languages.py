"""Which languages a translator is for, as far as a run tells, and which one a text seems to be in."""

import re
from collections.abc import Sequence
from math import exp
from pathlib import Path
from typing import NamedTuple

from penwright.serving.served import Served, Wording
from penwright.using import Opened

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
CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z]{2,4})?")
PAIR = re.compile(r"(?:^|[^A-Za-z])([a-z]{2,3})-([a-z]{2,3})(?:[^A-Za-z]|$)")


class Languages(NamedTuple):
    """From one to another, as codes; "source" and "target" where they are not known."""

    source: str
    target: str


class Guess(NamedTuple):
    """How sure the translator from a language is of what it makes of a text: the probability of a token, on average."""

    language: str
    share: float


def languages_of(name: str, it: Opened) -> Languages:
    """Told by the name under which a run is served (de-en), the names of its columns or the ends of its files."""
    data = it.recipe.data
    if pair := PAIR.search(name):
        return Languages(*pair.groups())
    if isinstance(data.source, str) and isinstance(data.target, str):
        codes = [column.lower() for column in (data.source, data.target)]
    else:
        codes = list(dict.fromkeys(_ending(path) for path in data.train))
    if len(codes) == 2 and all(map(CODE.fullmatch, codes)):
        return Languages(*codes)
    pairs = {match.groups() for path in data.train if (match := PAIR.search(Path(path).name))}
    return Languages(*pairs.pop()) if len(pairs) == 1 else Languages("source", "target")


async def detect(text: str, translators: Sequence[Served]) -> list[Guess]:
    """The languages that are translated from, the likeliest first."""
    guesses = []
    for served in translators:
        (found,) = await served.translate([text], Wording(beam_size=1))
        n_tokens = len(found.candidates[0].pieces)
        share = exp(found.candidates[0].log_prob / n_tokens) if n_tokens else 0.0
        guesses.append(Guess(languages_of(served.name, served.opened).source, share))
    best = sorted(guesses, key=lambda guess: -guess.share)
    return list({guess.language: guess for guess in reversed(best)}.values())[::-1]


def name_of(code: str) -> str:
    """For people."""
    return NAMES.get(code, code)


def _ending(path: str) -> str:
    """The last suffix of a file that is not about how it is written: train.de.gz is in German."""
    suffixes = [suffix[1:] for suffix in Path(path).suffixes if suffix not in {".gz", ".xz", ".bz2", ".txt", ".zst"}]
    return suffixes[-1] if suffixes else ""
