"""Which files are meant: given paths and patterns, folders with text in them, and near misses by name."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from fnmatch import fnmatchcase
from glob import glob
from pathlib import Path

from penwright.data.readers.archives import archive_of, data_members, is_archive, members
from penwright.errors import PenwrightError

PLAIN_SUFFIXES = (".txt", ".md", ".text")
SUBTITLE_SUFFIXES = (".srt", ".vtt", ".ass", ".ssa")
DOCUMENT_SUFFIXES = (".docx", ".odt", ".epub", ".html", ".htm", ".xhtml", ".rtf", ".pdf")  # the first reads best
TEXT_SUFFIXES = (*PLAIN_SUFFIXES, *DOCUMENT_SUFFIXES, *SUBTITLE_SUFFIXES)
STANDARD_INPUT = "-"
NEVER_TEXT = {f".{each}" for each in "png jpg jpeg gif webp tif tiff bmp heic mp3 wav mp4 zip tar 7z rar".split()}  # noqa: SIM905
HUB = "hub:"
WILDCARD = re.compile(r"[*?\[]")
PIPE = re.compile(r"/dev/(stdin|fd/\d+)|/proc/self/fd/\d+")  # what a shell makes of `<(...)`
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
        if PIPE.match(str(path)):
            raise PenwrightError(f"{path} is a pipe that has ended, and can be read only once; save it as a file")
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
    stays = path == STANDARD_INPUT or path.startswith(HUB) or Path(path).is_absolute()
    return path if stays else os.path.relpath(path, folder)


def _leads_somewhere(path: str) -> bool:
    try:
        return Path(path).exists() or archive_of(path) is not None or (is_pattern(path) and bool(_fitting(path)))
    except (OSError, PenwrightError):
        return False


def is_folder(path: str | Path) -> bool:
    """Whether a folder stands there that may be looked into."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def is_collection(path: str | Path) -> bool:
    """Whether it stands for several files: a folder, a .zip archive or a pattern."""
    return is_folder(path) or is_archive(path) or is_pattern(path)


def unzipped(paths: Sequence[str]) -> list[str]:
    """Put the files in .zip archives, but for README and the like, in place of the archives."""
    found = [[str(each) for each in data_members(path)] if is_archive(path) else [path] for path in paths]
    return [path for each in found for path in each]


def is_pipe_name(path: str) -> bool:
    """Whether it stands for standard input or for what a shell makes of `<(...)`."""
    return path == STANDARD_INPUT or PIPE.fullmatch(path) is not None


def left_aside(folder: Path) -> str:
    """Describe the files of a folder or archive that are not read as text, and what would read them; "" for none."""
    files = _files_in(folder)
    _, doubles = _chosen(files)
    others = Counter(suffix_of(file) for file in files if suffix_of(file) not in TEXT_SUFFIXES)
    remarks = []
    if doubles:
        remarks.append(f"{len(doubles):,} whose text is there in another format, such as {doubles[0].name}")
    if others:
        suffix, most = max(others.items(), key=lambda each: (each[1], each[0]))
        kind = f"{most:,} end in {suffix}" if suffix else f"{most:,} have no ending"
        hint = f" (to read these as text: '{folder / '**' / f'*{suffix}'}')" if is_folder(folder) else ""
        remarks.append(f"{others.total():,} other files, of which {kind}{'' if suffix in NEVER_TEXT else hint}")
    return "; ".join(remarks)


def kinds_of(files: Sequence[Path]) -> str:
    """Say how many files there are of each suffix: `2 .docx, 10 .txt`."""
    counts = Counter(suffix_of(file) or "without an ending" for file in files)
    return ", ".join(f"{n:,} {suffix}" for suffix, n in sorted(counts.items()))


def _files_of(path: str | Path) -> list[Path]:
    if is_folder(path) or is_archive(path):
        return _text_in(Path(path))
    if is_pattern(path):
        return _fitting(str(path))
    return [Path(path) if str(path) == STANDARD_INPUT else existing_file(path)]


def _fitting(pattern: str) -> list[Path]:
    base, parts = _split_pattern(pattern)
    try:
        if "**" in parts:  # glob() calls itself for each folder, which deep ones do not allow
            places = visible_files(base) if base.is_dir() else iter(())
            files = sorted(file for file in places if _fits(file.relative_to(base).parts, parts))
        else:
            files = sorted(path for path in map(Path, glob(pattern)) if path.is_file())
    except OSError as error:
        raise PenwrightError(f"{_shortened(pattern)} cannot be read: {error.strerror}") from None
    if not files:
        raise PenwrightError(f"no file fits the pattern {pattern}")
    return files


def _split_pattern(pattern: str) -> tuple[Path, tuple[str, ...]]:
    """Split a pattern into the folder before its first wildcard and the parts from there on."""
    parts = Path(pattern).parts
    first = next(place for place, part in enumerate(parts) if WILDCARD.search(part))
    return Path(*parts[:first]), parts[first:]


def _fits(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Whether the names of a path fit the parts of a pattern, in which `**` stands for any number of folders."""
    reached = {0}  # how many parts of the pattern the names so far may have used
    for name in names:
        stay = set()
        for place, part in enumerate(parts):
            if place in reached and part == "**":
                stay.add(place)
                reached.add(place + 1)  # it may stand for no folder
        fitting = {place for place in reached - stay if place < len(parts) and fnmatchcase(name, parts[place])}
        reached = stay | {place + 1 for place in fitting}
    return any(part == len(parts) or set(parts[part:]) == {"**"} for part in reached)


def _text_in(folder: Path) -> list[Path]:
    chosen, _ = _chosen(_files_in(folder))
    if not chosen:
        kinds = ", ".join(f"*{suffix}" for suffix in TEXT_SUFFIXES)
        others = left_aside(folder)
        has = f"it has {others}" if others else "it is empty"
        what = "folder" if is_folder(folder) else "archive"
        raise PenwrightError(f"there is no text ({kinds}, or these as .gz) in the {what} {folder}; {has}")
    return chosen


def _files_in(folder: Path) -> list[Path]:
    if is_archive(folder):
        return members(folder)
    return sorted(visible_files(folder), key=lambda file: file.relative_to(folder).as_posix())


def _chosen(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files of text, and the documents whose text another file of the same name has already."""
    text = [file for file in files if suffix_of(file) in TEXT_SUFFIXES]
    best: dict[Path, int] = {}
    for file in text:
        best[_stem(file)] = min(best.get(_stem(file), len(TEXT_SUFFIXES)), _rank(file))
    doubles = [
        file for file in text if _rank(file) > max(0, best[_stem(file)]) and suffix_of(file) in DOCUMENT_SUFFIXES
    ]
    return [file for file in text if file not in set(doubles)], doubles


def _stem(file: Path) -> Path:
    return file.with_name(file.name.lower().removesuffix(".gz")).with_suffix("")


def _rank(file: Path) -> int:
    """0 for plain text; documents are better the earlier they stand in DOCUMENT_SUFFIXES."""
    suffix = suffix_of(file)
    return DOCUMENT_SUFFIXES.index(suffix) + 1 if suffix in DOCUMENT_SUFFIXES else 0


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and of all folders in it, each folder once, also those that links lead to."""
    waiting, seen = [folder], _places_above(folder)
    while waiting:
        here = waiting.pop()
        try:
            status = here.stat()
            if (status.st_dev, status.st_ino) in seen:  # a link that leads back, or to a folder read already
                continue
            seen.add((status.st_dev, status.st_ino))
            entries = sorted((each for each in here.iterdir() if not each.name.startswith(".")), reverse=True)
            folders, files = [each for each in entries if each.is_dir()], [each for each in entries if each.is_file()]
        except OSError as error:
            raise PenwrightError(f"{_shortened(here)} cannot be read: {error.strerror}") from None
        # the last is read first: real folders go before links, so that files have their own names
        waiting += [each for each in folders if each.is_symlink()]
        waiting += [each for each in folders if not each.is_symlink()]
        yield from files


def _places_above(folder: Path) -> set[tuple[int, int]]:
    """Identify the folders above this one, to which no link may lead: with them, everything would be read."""
    places = set()
    for above in folder.resolve().parents:
        with suppress(OSError):
            status = above.stat()
            places.add((status.st_dev, status.st_ino))
    return places


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
