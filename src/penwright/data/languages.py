"""Which languages sentence pairs are in, as far as the names of their files and columns tell."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penwright.config import DataSettings
from penwright.data.headers import CODES, LANGUAGE_NAMES

CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z]{2,4})?")
PAIR = re.compile(r"(?:^|[^A-Za-z])([a-z]{2,3})-([a-z]{2,3})(?:[^A-Za-z]|$)")
HOW_WRITTEN = {".gz", ".xz", ".bz2", ".zst", ".txt", ".tsv", ".csv", ".json", ".jsonl", ".tmx"}
HOW_WRITTEN |= {".srt", ".vtt", ".ass", ".sgm", ".sgml"}
PACKED = re.compile(r"\.(gz|xz|bz2|zst)$")
PART = re.compile(r"[a-z]{2,3}[-_](?:[A-Z]{2}|[A-Z][a-z]{3}|419)(?![A-Za-z])|[^\W_]+")  # pt_BR is one part of a name
SOURCES, TARGETS = {"source", "src", "input"}, {"target", "tgt", "trg", "ref", "reference", "output"}


class Languages(NamedTuple):
    """From one to another, as codes."""

    source: str
    target: str


class Sides(NamedTuple):
    """What the names of two files say about them: which languages they are in, and whether the target comes first."""

    names: tuple[str, str]  # "" where only the roles are known
    is_target_first: bool


def languages_between(names: Sequence[str]) -> Languages | None:
    """Return the languages that the two sides of a corpus are named after; None unless both are known."""
    codes = [_code(name) for name in names]
    return Languages(*codes) if len(codes) == 2 and all(codes) else None


def _code(name: str) -> str:
    """Return the code of a language (de of German and deu, pt-br of pt_BR); "" for other words."""
    language, *region = name.lower().replace("_", "-").split("-")
    language = CODES.get(language, language)
    return "-".join([language, *region]) if language in LANGUAGE_NAMES else ""


def side_names(first: str, second: str) -> Sides | None:
    """Tell whether two paths are the sides of one translation: they differ only in languages, or in source and target.

    Examples: a.en a.de, train.en.txt train.de.txt, src-train.txt tgt-train.txt, en/a.txt de/a.txt.
    """
    parts = [PART.findall(PACKED.sub("", path)) for path in (first, second)]
    if len(parts[0]) != len(parts[1]):
        return None
    different = {(a, b) for a, b in zip(*parts, strict=True) if a != b}
    roles = {pair for pair in different if _roles(*pair) is not None}
    languages = different - roles
    if not different or len(roles) > 1 or len(languages) > 1:
        return None
    codes = [(_code(a), _code(b)) for a, b in languages]
    if any(not (a and b) for a, b in codes):
        return None
    return Sides(codes[0] if codes else ("", ""), any(_roles(*pair) == (False, True) for pair in roles))


def _roles(first: str, second: str) -> tuple[bool, bool] | None:
    """Return whether each word stands for the source; None unless one stands for the source and one for the target."""
    words = first.lower(), second.lower()
    if (words[0] in SOURCES and words[1] in TARGETS) or (words[0] in TARGETS and words[1] in SOURCES):
        return words[0] in SOURCES, words[1] in SOURCES
    return None


def languages_in(name: str) -> Languages | None:
    """Those of a name such as de-en or wmt14.de-en.tsv."""
    found = PAIR.search(name)
    return Languages(*found.groups()) if found else None


def languages_told(data: DataSettings) -> Languages | None:
    """By the names of the columns that were asked for, or of the files."""
    if isinstance(data.source, str) and isinstance(data.target, str):
        codes = [column.lower() for column in (data.source, data.target)]
    else:
        codes = list(dict.fromkeys(map(side_name, data.train)))
    if len(codes) == 2 and all(map(CODE.fullmatch, codes)):
        return Languages(*codes)
    pairs = {found for path in data.train if (found := languages_in(Path(path).name))}
    return pairs.pop() if len(pairs) == 1 else None


def side_name(path: str) -> str:
    """What a file of one side is called by: train.de.gz and news-de.txt are in German."""
    suffixes = [suffix[1:] for suffix in Path(path).suffixes if suffix not in HOW_WRITTEN]
    if suffixes:
        return suffixes[-1]
    last = re.split("[-_]", Path(path).name.partition(".")[0].lower())[-1]
    return last if last in LANGUAGE_NAMES else ""
