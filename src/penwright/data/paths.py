"""Paths to files: single files, patterns, folders and archives, and suggestions for misspelled names."""

import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path

from penwright.data.globs import WILDCARD, matches_pattern, split_pattern
from penwright.data.readers.archives import NON_DATA, archive_of, data_members, is_archive, members
from penwright.data.readers.formats import TABLE_SUFFIXES, unpacked_name
from penwright.data.splits import TESTS, VALIDATION, files_of_split, training_files
from penwright.errors import PenwrightError, near_miss

PLAIN_SUFFIXES = (".txt", ".md", ".text")
SUBTITLE_SUFFIXES = (".srt", ".vtt", ".ass", ".ssa")
# Suffixes of documents, in order of preference.
DOCUMENT_SUFFIXES = (".docx", ".odt", ".epub", ".html", ".htm", ".xhtml", ".rtf", ".pdf")
TEXT_SUFFIXES = (*PLAIN_SUFFIXES, *DOCUMENT_SUFFIXES, *SUBTITLE_SUFFIXES)
LONGEST_SUFFIX = 12  # a longer suffix, in characters, is part of the name
STANDARD_INPUT = "-"
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".tif", ".tiff", ".bmp", ".heic")
NEVER_TEXT = (*IMAGES, ".mp3", ".wav", ".mp4", ".zip", ".tar", ".7z", ".rar")
HUB = "hub:"
PIPE = re.compile(r"/dev/(stdin|fd/\d+)|/proc/self/fd/\d+")  # the paths that a shell substitutes for `<(...)`
LONGEST_SHOWN = 300  # maximum length of a path in a message, in characters


def suffix_of(path: str | Path) -> str:
    """Return the last suffix in lower case, not counting .gz and .zst: '.tsv' for train.TSV.gz."""
    return Path(unpacked_name(Path(path).name)).suffix


def is_text_name(path: str | Path) -> bool:
    """Return whether this is the name of a text file. Names in collections of e-mails are often numbers or hashes."""
    suffix = suffix_of(path)
    return suffix in (*TEXT_SUFFIXES, ".eml", "") or len(suffix) > LONGEST_SUFFIX or suffix[1:].isdecimal()


def existing_file(path: str | Path) -> Path:
    """Return the path if it is a file. Otherwise raise PenwrightError, which suggests a similar name."""
    path = Path(path)
    try:
        if path.is_file():
            return path
        if path.is_dir():
            raise PenwrightError(f"{path} is a folder; pass the files in it instead")
        if PIPE.match(str(path)):
            raise PenwrightError(f"the pipe {path} has ended and cannot be read again; save its data as a file")
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        raise PenwrightError(f"there is no file {path}{where}{near_miss(path)}")
    except OSError as error:  # for example because the name is too long or a folder is not accessible
        raise PenwrightError(f"{_shortened(path)} cannot be read: {error.strerror}") from None


def text_files(paths: Sequence[str | Path]) -> list[Path]:
    """Return the files that these paths, folders and patterns (such as code/**/*.py) stand for, without duplicates."""
    return list(dict.fromkeys(file for path in paths for file in _files_of(path)))


def is_pattern(path: str | Path) -> bool:
    """Return whether the path is a pattern. A file with exactly this name takes precedence."""
    name = str(path)
    return not name.startswith(HUB) and WILDCARD.search(name) is not None and not Path(path).exists()


def resolve_from(folder: Path, path: str) -> str:
    """Return the path resolved against this folder, or unchanged if nothing exists there."""
    if path.startswith(HUB) or Path(path).is_absolute():
        return path
    resolved = os.path.normpath(folder / path)
    return resolved if _exists(resolved) else path


def relative_to_folder(folder: Path, path: str) -> str:
    """Return the path relative to this folder, unless it is absolute. resolve_from() reverses this."""
    stays = path == STANDARD_INPUT or path.startswith(HUB) or Path(path).is_absolute()
    return path if stays else os.path.relpath(path, folder)


def _exists(path: str) -> bool:
    """Return whether the path is a file, folder, archive member or pattern with matches."""
    try:
        return Path(path).exists() or archive_of(path) is not None or (is_pattern(path) and bool(_matching_files(path)))
    except (OSError, PenwrightError):
        return False


def is_folder(path: str | Path) -> bool:
    """Return whether the path is an accessible folder."""
    try:
        return Path(path).is_dir()
    except OSError:
        return False


def is_collection(path: str | Path) -> bool:
    """Return whether the path refers to several files: a folder, a .zip archive or a pattern."""
    return is_folder(path) or is_archive(path) or is_pattern(path)


def expand_archives(paths: Sequence[str]) -> list[str]:
    """Replace .zip archives with their data files (not README and the like), and folders with their tables.

    If the names of the files say so, only those of the training split are read.
    """
    return [str(file) for path in paths for file in training_files(path, _parts_of(path)) or [Path(path)]]


def tables_in(path: str) -> list[Path]:
    """Return the tables in a folder, archive or pattern; [] if there are none, or other text files too."""
    parts = _parts_of(path)
    return training_files(path, parts) if all(suffix_of(part) in TABLE_SUFFIXES for part in parts) else []


def _parts_of(path: str) -> list[Path]:
    """Return the data files of an archive, or the tables of a folder or pattern."""
    if is_archive(path):
        return data_members(path)
    if is_pattern(path):
        files = _matching_files(path)
        return files if all(suffix_of(file) in TABLE_SUFFIXES for file in files) else []
    return _only_tables(_files_in(Path(path)), Path(path)) if is_folder(path) else []


def _only_tables(files: Sequence[Path], folder: Path) -> list[Path]:
    """Return the tables among the files of a folder; [] if there are none, texts other than README, or class folders.

    JSON beside other tables describes them. It is a table if there is nothing else.
    """
    tables = [file for file in files if suffix_of(file) in TABLE_SUFFIXES and suffix_of(file) != ".json"]
    data = [file for file in files if re.split(r"[\W_]", file.name.lower())[0] not in NON_DATA]
    suffixes = {suffix_of(file) for file in data}
    if suffixes == {".json"} and not tables:
        return data
    parents = {file.parent for file in data if is_text_name(file)} - {folder}
    return [] if suffixes & set(TEXT_SUFFIXES) or len(parents) > 1 else tables


def files_to_evaluate(path: str) -> list[str]:
    """Return the test files or test folders in a folder or archive that also has training files or folders.

    Without test files, return the validation files. If the names say nothing about splits, return the path itself.
    """
    files = _files_in(Path(path)) if is_folder(path) or is_archive(path) else []
    inner = {file.relative_to(path).parts[0] for file in files if file.parent != Path(path) and is_folder(path)}
    for parts in ([Path(path, name) for name in sorted(inner)], files):
        for names in (TESTS, VALIDATION):
            if found := files_of_split(path, parts, names):
                return list(map(str, found))
    return [path]


def describe_other_splits(path: str) -> str:
    """Describe the data files of other splits (test, validation, ...), which are not read; "" if there are none."""
    files = _parts_of(path)
    others = set(files) - set(training_files(path, files))
    return f"not read: {describe_unread(others)}" if others else ""


def describe_unread(paths: Collection[Path]) -> str:
    """List the files or folders that are not read because they belong to other splits, and say how to use them."""
    shown = ", ".join(map(str, sorted(paths)[:3])) + (f" and {len(paths) - 3:,} more" if len(paths) > 3 else "")
    return f"{shown} (for evaluation, use --validation or `penwright evaluate`)"


def is_pipe_name(path: str) -> bool:
    """Return whether the path is standard input, or the path that a shell substitutes for `<(...)`."""
    return path == STANDARD_INPUT or PIPE.fullmatch(path) is not None


def describe_skipped(folder: Path) -> str:
    """Describe the files of a folder or archive that are not read, and how to read them; "" if there are none."""
    files = _files_in(folder)
    texts, doubles = _chosen(files)
    others = Counter(suffix_of(file) for file in files if suffix_of(file) not in TEXT_SUFFIXES)
    splits = set(texts) - set(training_files(folder, texts))
    remarks = [describe_unread(splits)] if splits else []
    if doubles:
        remarks.append(f"{len(doubles):,} also present in another format, such as {doubles[0].name}")
    if others:
        suffix, most = max(others.items(), key=lambda each: (each[1], each[0]))
        kind = f"{most:,} {suffix}" if suffix else f"{most:,} without an extension"
        pattern = f"'{folder / '**' / f'*{suffix}'}'"
        hint = f" (to read these {'alone' if suffix in TABLE_SUFFIXES else 'as text'}: {pattern})"
        hint = hint if is_folder(folder) else ""
        remarks.append(f"{others.total():,} of other types, including {kind}{'' if suffix in NEVER_TEXT else hint}")
    return "; ".join(remarks)


def _files_of(path: str | Path) -> list[Path]:
    if is_folder(path) or is_archive(path):
        return _text_in(Path(path))
    if is_pattern(path):
        return _matching_files(str(path))
    return [Path(path) if str(path) == STANDARD_INPUT else existing_file(path)]


def _matching_files(pattern: str) -> list[Path]:
    """Return the files that match a pattern. Raises PenwrightError if there are none."""
    base, parts = split_pattern(pattern)
    try:
        if "**" in parts:  # glob() recurses into each folder, and deep trees exceed the recursion limit
            candidates = visible_files(base) if base.is_dir() else iter(())
            files = sorted(file for file in candidates if matches_pattern(file.relative_to(base).parts, parts))
        else:
            files = sorted(path for path in map(Path, glob(pattern)) if path.is_file())
    except OSError as error:
        raise PenwrightError(f"{_shortened(pattern)} cannot be read: {error.strerror}") from None
    if not files:
        raise PenwrightError(f"no file matches the pattern {pattern}")
    return files


def _text_in(folder: Path) -> list[Path]:
    """Return the text files of a folder or archive. Raises PenwrightError if there are none."""
    chosen = training_files(folder, _chosen(_files_in(folder))[0])
    if not chosen:
        kinds = ", ".join(f"*{suffix}" for suffix in TEXT_SUFFIXES)
        others = describe_skipped(folder)
        has = f"files not read: {others}" if others else "it is empty"
        what = "folder" if is_folder(folder) else "archive"
        raise PenwrightError(
            f"there is no text ({kinds}, or any of these as .gz or .zst) in the {what} {folder}; {has}"
        )
    return chosen


def _files_in(folder: Path) -> list[Path]:
    if is_archive(folder):
        return members(folder)
    return sorted(visible_files(folder), key=lambda file: file.relative_to(folder).as_posix())


def _chosen(files: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the text files to read, and the documents left out because they also exist in a better format."""
    text = [file for file in files if suffix_of(file) in TEXT_SUFFIXES]
    best: dict[Path, int] = {}
    for file in text:
        best[_stem(file)] = min(best.get(_stem(file), len(TEXT_SUFFIXES)), _rank(file))
    doubles = [
        file for file in text if _rank(file) > max(0, best[_stem(file)]) and suffix_of(file) in DOCUMENT_SUFFIXES
    ]
    return [file for file in text if file not in set(doubles)], doubles


def _stem(file: Path) -> Path:
    """Return the path without its suffixes, with its name in lower case."""
    return file.with_name(unpacked_name(file.name)).with_suffix("")


def _rank(file: Path) -> int:
    """Return the rank of a file's format, 0 for plain text. Of several copies, the one with the lowest rank is read."""
    suffix = suffix_of(file)
    return DOCUMENT_SUFFIXES.index(suffix) + 1 if suffix in DOCUMENT_SUFFIXES else 0


def visible_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, without hidden ones.

    Links are followed, but no folder is read twice.
    """
    waiting, seen = [folder], _folders_above(folder)
    while waiting:
        current = waiting.pop()
        try:
            status = current.stat()
            if (status.st_dev, status.st_ino) in seen:  # a link to a parent folder or to a folder already read
                continue
            seen.add((status.st_dev, status.st_ino))
            entries = sorted((each for each in current.iterdir() if not each.name.startswith(".")), reverse=True)
            folders, files = [each for each in entries if each.is_dir()], [each for each in entries if each.is_file()]
        except OSError as error:
            raise PenwrightError(f"{_shortened(current)} cannot be read: {error.strerror}") from None
        # `waiting` is a stack: real folders are read before links, so files keep their real paths
        waiting += [each for each in folders if each.is_symlink()]
        waiting += [each for each in folders if not each.is_symlink()]
        yield from files


def _folders_above(folder: Path) -> set[tuple[int, int]]:
    """Return the device and inode numbers of the folders above this one.

    Links to these folders are not followed, because they lead to far too many files.
    """
    identities = set()
    for above in folder.resolve().parents:
        with suppress(OSError):
            status = above.stat()
            identities.add((status.st_dev, status.st_ino))
    return identities


def _shortened(path: str | Path) -> str:
    """Return the path for a message, cut off if it is very long."""
    text = str(path)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}... ({len(text):,} characters)"
