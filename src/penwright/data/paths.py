"""Which files are meant: given paths and patterns, folders with text in them, and near misses by name."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from glob import glob
from pathlib import Path

from penwright.errors import PenwrightError

TEXT_SUFFIXES = (".txt", ".md", ".text")
HUB = "hub:"
WILDCARD = re.compile(r"[*?\[]")
LONGEST_SHOWN = 300  # characters of a path in a message


def suffix_of(path: str | Path) -> str:
    """The last suffix in lower case, not counting .gz: '.tsv' of train.TSV.gz."""
    name = Path(path).name.lower().removesuffix(".gz")
    return Path(name).suffix


def existing_file(path: str | Path) -> Path:
    """The path, when a file stands there; else PenwrightError with the nearest name beside it."""
    path = Path(path)
    try:
        if path.is_file():
            return path
        if path.is_dir():
            raise PenwrightError(f"{path} is a folder; give the files in it that are meant")
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise PenwrightError(f"there is no file {path}{where}{_near_miss(path)}")
    except OSError as error:  # a name too long for the system, a folder that may not be entered
        raise PenwrightError(f"{_shortened(path)} cannot be read: {error.strerror}") from None


def text_files(paths: Sequence[str | Path]) -> list[Path]:
    """The files named, those with text in the folders named, and those that patterns (code/**/*.py) fit, each once."""
    return list(dict.fromkeys(file for path in paths for file in _files_of(path)))


def is_pattern(path: str | Path) -> bool:
    """Whether it stands for the files that it fits; a file of that very name goes before."""
    return WILDCARD.search(str(path)) is not None and not Path(path).exists()


def found_from(folder: Path, path: str) -> str:
    """The path as it leads there from this folder, or as it is, where that leads to nothing."""
    if path.startswith(HUB) or Path(path).is_absolute():
        return path
    there = os.path.normpath(folder / path)
    return there if _leads_somewhere(there) else path


def seen_from(folder: Path, path: str) -> str:
    """The path as it leads there from that folder, where it is no absolute one: what found_from() takes back."""
    return path if path.startswith(HUB) or Path(path).is_absolute() else os.path.relpath(path, folder)


def _leads_somewhere(path: str) -> bool:
    try:
        return Path(path).exists() or (WILDCARD.search(path) is not None and bool(glob(path, recursive=True)))
    except (OSError, RecursionError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether a folder stands there that may be looked into."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def left_aside(folder: Path) -> str:
    """Of which kind the files of a folder are that are not taken for text, and what would read them; "" for none."""
    others = Counter(suffix_of(file) for file in _visible_files(folder) if suffix_of(file) not in TEXT_SUFFIXES)
    if not others:
        return ""
    suffix, most = max(others.items(), key=lambda each: (each[1], each[0]))
    pattern = folder / "**" / f"*{suffix}"
    kind = f"{most:,} end in {suffix}" if suffix else f"{most:,} have no ending"
    return f"{others.total():,} other files, of which {kind} (to read these: '{pattern}')"


def _files_of(path: str | Path) -> list[Path]:
    if is_folder(path):
        return _text_in(Path(path))
    if is_pattern(path):
        return _fitting(str(path))
    return [existing_file(path)]


def _fitting(pattern: str) -> list[Path]:
    try:
        files = sorted(path for path in map(Path, glob(pattern, recursive=True)) if path.is_file())
    except RecursionError:
        raise PenwrightError(
            f"the folders that fit {pattern} are nested too deeply for a pattern: name the folder instead"
        ) from None
    except OSError as error:
        raise PenwrightError(f"{_shortened(pattern)} cannot be read: {error.strerror}") from None
    if not files:
        raise PenwrightError(f"no file fits the pattern {pattern}")
    return files


def _text_in(folder: Path) -> list[Path]:
    files = sorted(_visible_files(folder), key=lambda file: file.relative_to(folder).as_posix())
    chosen = [file for file in files if suffix_of(file) in TEXT_SUFFIXES]
    if not chosen:
        kinds = ", ".join(f"*{suffix}" for suffix in TEXT_SUFFIXES)
        others = left_aside(folder)
        has = f"it has {others}" if others else "it is empty"
        raise PenwrightError(f"there is no text ({kinds}, or these as .gz) in the folder {folder}; {has}")
    return chosen


def _visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those inside it, however deep; hidden ones are left out."""
    waiting = [folder]
    while waiting:
        inner = waiting.pop()
        try:
            for entry in inner.iterdir():
                if entry.name.startswith("."):
                    continue
                if entry.is_dir() and not entry.is_symlink():  # a link may lead back to where we came from
                    waiting.append(entry)
                elif entry.is_file():
                    yield entry
        except OSError as error:
            raise PenwrightError(f"{_shortened(inner)} cannot be read: {error.strerror}") from None


def _shortened(path: str | Path) -> str:
    """The path as a message can hold it: of one too long for the system, its beginning."""
    text = str(path)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text):,} characters)"


def _near_miss(path: Path) -> str:
    if not path.parent.is_dir():
        return f": there is no folder {path.parent}"
    names = [entry.name for entry in path.parent.iterdir()]
    nearest = get_close_matches(path.name, names, n=1, cutoff=0.7)
    return f"; did you mean {path.parent / nearest[0]}?" if nearest else ""
