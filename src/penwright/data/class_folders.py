"""Folders with a subfolder of text files for each class."""

from pathlib import Path

from penwright.data.corpus import LabelKind, ReadingOptions
from penwright.data.files import SourceFile, examine
from penwright.data.paths import TEXT_SUFFIXES, describe_unread, is_text_name, suffix_of, visible_files
from penwright.data.readers.archives import data_members, is_archive
from penwright.data.rows import RowSource
from penwright.data.splits import TRAINING, training_files
from penwright.errors import PenwrightError
from penwright.text import count

UNLABELLED = ("unsup", "unlabeled", "unlabelled")
CLASSES = {  # common names of class folders
    *("pos", "neg", "neu", "positive", "negative", "neutral", "mixed", "good", "bad", "spam", "ham"),
    *("true", "false", "real", "fake", "yes", "no", "0", "1", "2", "3", "4", "5", "human", "machine", "ai"),
}


def class_folders(folder: str | Path) -> tuple[dict[str, list[Path]], str]:
    """Return the text files of each class, keyed by its name, and a remark on files that are not read.

    If the folder contains `train` and `test`, only `train` is read. Raises PenwrightError for fewer than two classes.
    """
    folder, remarks = Path(folder), []
    inner = _subfolders(folder)
    training = training_files(folder, inner)
    if len(training) == 1 and (len(inner) > 1 or training[0].name.lower() in TRAINING):
        others = [each for each in inner if each not in training]
        if others:
            remarks.append(f"not read: {describe_unread(others)}")
        folder, inner = training[0], _subfolders(training[0])
    unlabelled = [each for each in inner if each.name.lower() in UNLABELLED]
    remarks += [f"not read: {each} (no labels)" for each in unlabelled]
    every = {each.name: sorted(visible_files(each)) for each in inner if each not in unlabelled}
    texts = {name: [file for file in files if is_text_name(file)] for name, files in every.items()}
    classes = {name: files for name, files in texts.items() if files}
    if len(classes) < 2:
        raise PenwrightError(
            f"{folder} does not contain two class folders with texts (found: {', '.join(classes) or 'none'}). Put the "
            "texts of each class into a folder with its name, or pass a table with a text and a label in each row"
        )
    if others := [file for files in every.values() for file in files if not is_text_name(file)]:
        kinds = ", ".join(sorted({suffix_of(file) for file in others}))
        remarks.append(f"not read: {count(len(others), 'file')} of other types in the class folders ({kinds})")
    apart = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    if apart:
        remarks.append(f"not read: {count(len(apart), 'file')} in {folder} outside the class folders")
    return classes, "; ".join(remarks)


def classes_in(folder: str | Path) -> tuple[list[str], bool]:
    """Return the subfolders of a folder or archive that may be classes, and whether all have common class names.

    The list is empty if the folder itself contains text files.
    """
    folder = Path(folder)
    try:
        if is_archive(folder):
            parents = {file.parent for file in data_members(folder) if is_text_name(file)}
            names = sorted({each.name for each in parents})
            classes = names if len(names) > 1 and folder not in parents else []
        else:
            has_own_texts = any(suffix_of(file) in TEXT_SUFFIXES for file in folder.iterdir() if file.is_file())
            classes = [] if has_own_texts else list(class_folders(folder)[0])
    except (PenwrightError, OSError):  # not a folder, or a folder without classes
        return [], False
    return classes, bool(classes) and {name.lower() for name in classes} <= CLASSES


def class_source(folder: str, reading: ReadingOptions) -> RowSource:
    """Return the files of a folder as texts, labelled with the names of their subfolders."""
    if reading.columns.group is not None:
        raise PenwrightError(f"{folder} has no group column. Pass a table that has one, or leave out data.group")
    if reading.columns.label_kind not in (None, LabelKind()):
        raise PenwrightError(f"{folder}: in folders, each text has one label. Pass a table for other kinds of labels")
    found, remark = _class_files(folder, reading.encoding)
    files = tuple(file for _, file in found)
    classes = tuple(reading.columns.label_names.get(name, name) for name, _ in found)
    return RowSource(
        files,
        lambda: (("".join(file.blocks()).strip(), name) for file, name in zip(files, classes, strict=True)),
        lambda number: files[number].path,
        "each folder is a class, each file a text",
        remark=remark,
        label_kind=LabelKind(),
        classes=classes,
        unused_names=reading.columns.label_names.keys() - {name for name, _ in found},
    )


def _class_files(folder: str | Path, encoding: str | None) -> tuple[list[tuple[str, SourceFile]], str]:
    """Examine the files of all classes. Return each with its class, and a remark on unreadable files."""
    classes, remark = class_folders(folder)
    files, remarks = [], [remark] if remark else []
    for name, paths in classes.items():
        for path in paths:
            try:
                files.append((name, examine(path, encoding)))
            except PenwrightError as error:
                remarks.append(f"not read: {error}")
    return files, "; ".join(remarks)


def _subfolders(folder: Path) -> list[Path]:
    # Skip links to this folder, or to a folder above it.
    above = {folder.resolve(), *folder.resolve().parents}
    inner = (each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    return sorted(each for each in inner if each.resolve() not in above)
