"""Parquet files as tables, read with DuckDB."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from penwright.data.files import SourceFile
from penwright.data.readers.records import Record, Records
from penwright.errors import PenwrightError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

BATCH = 1000  # rows held at a time
SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,  # nothing is fetched from the network
    "autoload_known_extensions": False,
    "threads": 1,  # as many as keep the order of rows and the memory small
}


def parquet_table(file: SourceFile) -> Records:
    """Read the rows of a Parquet file. Class numbers become the names of the classes where the file has them."""
    try:
        classes = _class_names(str(file.stored))
    except _errors() as error:
        reason = str(error).split("\n")[0]
        raise PenwrightError(f"{file.path} is a damaged Parquet file: {reason}. Fetch or write it again.") from None
    table = Records(file.path, (file,), partial(_records, file, classes))
    if not table.columns:
        raise PenwrightError(f"{file.path} has no rows")
    return table


def _errors() -> type[Exception]:
    import duckdb  # noqa: PLC0415 - slow to import

    return duckdb.Error


def _connect(path: str) -> "DuckDBPyConnection":
    """A connection that can read this file and nothing else."""
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
            while batch := rows.fetchmany(BATCH):
                for values in batch:
                    record = dict(zip(names, values, strict=True))
                    for name, known in classes.items():
                        record[name] = _class_name(record[name], known)
                    yield record
        except _errors() as error:
            reason = str(error).split("\n")[0]
            raise PenwrightError(f"{file.path} cannot be read: {reason}. Fetch or write it again.") from None


def _class_name(value: object, names: list[str]) -> object:
    if isinstance(value, int):  # -1 stands for a class that is kept secret
        return names[value] if 0 <= value < len(names) else ""
    return value


def _class_names(path: str) -> dict[str, list[str]]:
    """The names of the classes of each column, as the library `datasets` stores them."""
    with _connect(path) as connection:
        stored = connection.execute("SELECT value FROM parquet_kv_metadata(?) WHERE key = 'huggingface'", [path])
        text = stored.fetchone()
    try:
        features = json.loads(bytes(text[0]))["info"]["features"] if text else {}
        return {name: feature["names"] for name, feature in features.items() if "names" in feature}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}
