"""Tables in Parquet files."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from penwright.data.files import SourceFile
from penwright.data.readers.records import Record, Records
from penwright.errors import PenwrightError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BATCH = 1000  # number of rows in memory at a time
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,  # prevents DuckDB from downloading extensions
    "autoload_known_extensions": False,
    "threads": 1,  # one thread keeps the rows in order and uses little memory
}


def parquet_table(file: SourceFile) -> Records:
    """Open a Parquet file as a table. Class numbers become class names if the file contains the names."""
    try:
        classes = _class_names(str(file.stored))
    except _errors() as error:
        reason = str(error).split("\n")[0]
        raise PenwrightError(f"{file.path} is a damaged Parquet file: {reason}. Download or write it again.") from None
    table = Records(file.path, (file,), partial(_records, file, classes))
    if not table.columns:
        raise PenwrightError(f"{file.path} has no rows")
    return table


def _errors() -> type[Exception]:
    """Return the base class of DuckDB's errors."""
    import duckdb  # noqa: PLC0415 - slow to import

    return duckdb.Error


def _connect(path: str) -> "DuckDBPyConnection":
    """Return a connection that can read this file and nothing else."""
    import duckdb  # noqa: PLC0415 - slow to import

    connection = duckdb.connect(config=SETTINGS)
    quoted = path.replace("'", "''")
    connection.execute(f"SET allowed_paths = ['{quoted}']")
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _records(file: SourceFile, classes: Mapping[str, list[str]]) -> Iterator[Record]:
    path = str(file.stored)
    with _connect(path) as connection:
        try:
            rows = connection.execute("FROM read_parquet(?, hive_partitioning = false)", [path])
            names = [column[0] for column in rows.description]
            converters = {column[0]: _in_single_precision for column in rows.description if str(column[1]) == "FLOAT"}
            converters |= {name: partial(_class_name, names=known) for name, known in classes.items()}
            while batch := rows.fetchmany(BATCH):
                for values in batch:
                    record = dict(zip(names, values, strict=True))
                    for name, converted in converters.items():
                        record[name] = converted(record[name])
                    yield record
        except _errors() as error:
            reason = str(error).split("\n")[0]
            raise PenwrightError(f"{file.path} cannot be read: {reason}. Download or write it again.") from None


def _in_single_precision(value: object) -> object:
    """Return a float32 as the shortest number that stands for it, such as 0.1 instead of 0.10000000149011612."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _class_name(value: object, names: list[str]) -> object:
    """Return the name of a class number, or the names of a list of class numbers."""
    if isinstance(value, list):
        return [_class_name(each, names) for each in value]
    if isinstance(value, int):  # -1 marks a withheld label; many test sets have such labels
        return names[value] if 0 <= value < len(names) else ""
    return value


def _class_names(path: str) -> dict[str, list[str]]:
    """Return the class names of each column, as stored by the library `datasets`."""
    with _connect(path) as connection:
        stored = connection.execute("SELECT value FROM parquet_kv_metadata(?) WHERE key = 'huggingface'", [path])
        text = stored.fetchone()
    try:
        features = json.loads(bytes(text[0]))["info"]["features"] if text else {}
        single = {name: each for name, each in features.items() if isinstance(each, dict)}
        # in a column of lists, the feature of the items
        inner = {name: each if "names" in each else each.get("feature") for name, each in single.items()}
        found = {name: each.get("names") for name, each in inner.items() if isinstance(each, dict)}
        return {name: names for name, names in found.items() if isinstance(names, list)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
