"""Which languages sentence pairs are in, as far as the names of their files and columns tell."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from penwright.config import DataSettings
from penwright.data.headers import LANGUAGE_NAMES

CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z]{2,4})?")
PAIR = re.compile(r"(?:^|[^A-Za-z])([a-z]{2,3})-([a-z]{2,3})(?:[^A-Za-z]|$)")
HOW_WRITTEN = {
    ".gz",
    ".xz",
    ".bz2",
    ".zst",
    ".txt",
    ".tsv",
    ".csv",
    ".json",
    ".jsonl",
    ".tmx",
    ".srt",
    ".vtt",
    ".ass",
    ".sgm",
}


class Languages(NamedTuple):
    """From one to another, as codes."""

    source: str
    target: str


def languages_between(names: Sequence[str]) -> Languages | None:
    """By what the two sides of a corpus are called there; None unless both are codes of languages."""
    codes = [name.lower().replace("_", "-") for name in names]
    known = len(codes) == 2 and all(code.split("-")[0] in LANGUAGE_NAMES for code in codes)
    return Languages(*codes) if known else None


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
