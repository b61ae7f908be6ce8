"""A folder for each class: `imdb/pos` and `imdb/neg`, with a text in each file."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from penwright.data.files import SourceFile, examine
from penwright.data.paths import TEXT_SUFFIXES, suffix_of, visible_files
from penwright.errors import PenwrightError

SPLITS = {"train", "training", "test", "testing", "dev", "valid", "val", "validation", "eval"}
UNLABELLED = ("unsup", "unlabeled", "unlabelled")
TRAINING = ("train", "training")
CLASSES = {  # what folders of classes are often called
    *("pos", "neg", "neu", "positive", "negative", "neutral", "mixed", "good", "bad", "spam", "ham"),
    *("true", "false", "real", "fake", "yes", "no", "0", "1", "2", "3", "4", "5", "human", "machine", "ai"),
}


def class_folders(folder: str | Path) -> tuple[dict[str, list[Path]], str]:
    """Return the files of text of each class by its name, and a remark on what is not read.

    Of a folder with `train` and `test`, only `train` is read. Raises PenwrightError if there are no two classes.
    """
    folder, remarks = Path(folder), []
    inner = _folders(folder)
    names = {each.name.lower() for each in inner}
    training = next((each for each in inner if each.name.lower() in TRAINING), None)
    if training and names <= SPLITS:
        others = [str(each) for each in inner if each != training]
        if others:
            remarks.append(f"{', '.join(others)} not read; give it to --validation or `penwright evaluate`")
        folder, inner = training, _folders(training)
    unlabelled = [each for each in inner if each.name.lower() in UNLABELLED]
    remarks += [f"{each} not read: it has no label" for each in unlabelled]
    found = {each.name: _texts(each) for each in inner if each not in unlabelled}
    classes = {name: files for name, files in found.items() if files}
    if len(classes) < 2:
        raise PenwrightError(
            f"{folder} has no folders of texts to tell apart ({', '.join(classes) or 'none'} found); put the texts of "
            "each class into a folder with its name, or give a table with a text and a label in each row"
        )
    apart = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    if apart:
        remarks.append(f"{folder}: {len(apart):,} files in no class's folder are not read")
    return classes, "; ".join(remarks)


def classes_in(folder: str | Path) -> tuple[list[str], bool]:
    """Return the names of the folders in a folder that may be classes, and whether they are named as such.

    There are none if the folder has texts of its own beside them.
    """
    folder = Path(folder)
    try:
        has_own_texts = any(suffix_of(file) in TEXT_SUFFIXES for file in folder.iterdir() if file.is_file())
        classes = [] if has_own_texts else list(class_folders(folder)[0])
    except (PenwrightError, OSError):  # no folder, or one without classes
        return [], False
    return classes, bool(classes) and {name.lower() for name in classes} <= CLASSES


def class_rows(files: Sequence[tuple[str, SourceFile]]) -> Iterator[tuple[str, str]]:
    """Yield the text of each file with its class."""
    return (("".join(file.blocks()).strip(), name) for name, file in files)


def class_files(folder: str | Path, encoding: str | None) -> tuple[list[tuple[str, SourceFile]], str]:
    """Examine the files of all classes. Those that cannot be read are left out and named in the remark."""
    classes, remark = class_folders(folder)
    files, remarks = [], [remark] if remark else []
    for name, paths in classes.items():
        for path in paths:
            try:
                files.append((name, examine(path, encoding)))
            except PenwrightError as error:
                remarks.append(f"not read: {error}")
    return files, "; ".join(remarks)


def _folders(folder: Path) -> list[Path]:
    above = {folder.resolve(), *folder.resolve().parents}  # to which a link may lead
    inner = (each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    return sorted(each for each in inner if each.resolve() not in above)


def _texts(folder: Path) -> list[Path]:
    return sorted(file for file in visible_files(folder) if suffix_of(file) in TEXT_SUFFIXES)
