"""Data sets from the Hugging Face Hub, or folders in its formats, as tables. They require the extra `hub`."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from penwright.data.corpus import Broken
from penwright.data.files import SourceFile, remember_file
from penwright.data.paths import HUB
from penwright.data.readers.records import Records
from penwright.errors import PenwrightError, import_extra

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

ROWS = 1000  # number of rows per batch
FIRST_ROWS = re.compile(r"(?P<split>\w*)\[:(?P<number>[1-9][0-9]{0,11})\]")  # a split such as train[:1000]
MANY = 100_000  # for a data set with at least this many rows, size and hash are cached


def is_hub(path: str | Path) -> bool:
    """Return whether the path names a data set.

    The forms are `hub:name`, `hub:user/name/config` and `hub:/a/folder`. Each may end in `@split`, or in
    `@split[:1000]` for the first 1,000 rows of the split.
    """
    return str(path).startswith(HUB)


def open_hub(path: str) -> Records:
    """Open one split of a data set, `train` by default. Class numbers become class names.

    If the path selects the first rows of a data set on the Hub, only these rows are downloaded.

    Raises PenwrightError if the data set or the split does not exist, or has no rows.
    """
    name, _, split = path.removeprefix(HUB).partition("@")
    if not name:
        raise PenwrightError("hub: needs the name of a data set, for example hub:wmt14/de-en or hub:/my/folder@train")
    if first := FIRST_ROWS.fullmatch(split):
        rows = _first_rows(name, first["split"], int(first["number"]))
    else:
        rows = _choose_split(_load(name), name, split)

    def read() -> Iterator[Mapping[str, object] | Broken | None]:
        return _records(rows)

    table = Records(path, (), read)
    if not table.columns:
        raise PenwrightError(f"{path} has no rows")
    if len(rows) < MANY:
        return replace(table, files=(_as_file(path, _records(rows)),))
    key = [path, rows._fingerprint, len(rows)]  # `datasets` identifies the content by this hash
    return replace(table, files=(remember_file(key, lambda: _as_file(path, _records(rows))),))


def _first_rows(name: str, split: str, number: int) -> "Dataset":
    if _folder(name):
        rows = _choose_split(_load(name), name, split)
        return rows.select(range(min(number, len(rows))))
    datasets = import_extra("datasets", "hub", f"data sets such as {HUB}{name}")
    try:
        with _quiet():  # `datasets` keeps the rows on disk
            arguments = {"name": name, "split": split, "number": number}
            return datasets.Dataset.from_generator(_stream, gen_kwargs=arguments)
    except datasets.exceptions.DatasetGenerationError as error:
        if isinstance(error.__cause__, PenwrightError):
            raise error.__cause__ from None
        raise PenwrightError(f"the data set {HUB}{name} cannot be streamed: {error.__cause__ or error}") from None


def _stream(name: str, split: str, number: int) -> Iterator[Mapping[str, object]]:
    yield from _records(_choose_split(_load(name, streaming=True), name, split).take(number))


def _load(name: str, **options: bool) -> "Dataset | DatasetDict":
    datasets, folder = import_extra("datasets", "hub", f"data sets such as {HUB}{name}"), _folder(name)
    try:
        with _quiet():
            if folder and any((folder / mark).exists() for mark in ("state.json", "dataset_dict.json")):
                return datasets.load_from_disk(str(folder))
            if folder:
                return datasets.load_dataset(str(folder))
            return _download(name, **options)
    except Exception as error:  # the libraries that `datasets` uses raise many kinds of errors
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise PenwrightError(
            f"the data set {HUB}{name} cannot be loaded: {reason}. Check the name (hub:name/config or "
            f"hub:user/name/config) and the network connection"
        ) from None


def _folder(name: str) -> Path | None:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if name.startswith((".", "/", "~")):
        raise PenwrightError(f"the folder {folder} does not exist")
    return None


def _download(name: str, **options: bool) -> "DatasetDict":
    datasets = import_extra("datasets", "hub", f"data sets such as {HUB}{name}")
    *parts, last = name.split("/")
    if len(parts) == 2:
        return datasets.load_dataset("/".join(parts), last, **options)
    try:
        return datasets.load_dataset(name, **options)
    except datasets.exceptions.DatasetNotFoundError:
        if not parts:
            raise
        return datasets.load_dataset(parts[0], last, **options)  # the form is name/config, not user/name


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the progress bars and warnings of the library `datasets`."""
    import datasets  # noqa: PLC0415 - an extra, and slow to import

    shown = not datasets.are_progress_bars_disabled()
    level = datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()


def _choose_split(loaded: "Dataset | DatasetDict", name: str, split: str) -> "Dataset":
    if not isinstance(loaded, dict):
        if split and split != str(loaded.split):
            raise PenwrightError(f"{HUB}{name} has a single split. Leave out @{split}")
        return loaded
    chosen = split or ("train" if "train" in loaded or len(loaded) > 1 else next(iter(loaded)))
    if chosen not in loaded:
        raise PenwrightError(f"{HUB}{name} has no split '{chosen}'. It has: {', '.join(map(str, loaded))}")
    return loaded[chosen]


def _records(rows: "Dataset") -> Iterator[Mapping[str, object]]:
    names = {key: feature.names for key, feature in (rows.features or {}).items() if hasattr(feature, "names")}
    for batch in rows.iter(batch_size=ROWS):
        for key, classes in names.items():
            # -1 marks a withheld label; many test sets have such labels
            batch[key] = [classes[value] if value is not None and value >= 0 else "" for value in batch[key]]
        yield from (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))


def _as_file(path: str, records: Iterator[Mapping[str, object]]) -> SourceFile:
    """Return the size, hash and number of lines that the data set would have as a file of JSON lines."""
    digest, n_bytes, n_lines = hashlib.sha256(), 0, 0
    for record in records:
        line = json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
        digest.update(line)
        n_bytes += len(line)
        n_lines += 1
    return SourceFile(path, n_bytes, digest.hexdigest(), n_lines=n_lines)
