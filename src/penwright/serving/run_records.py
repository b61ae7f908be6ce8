"""Readers of training logs. Damaged lines are skipped."""

import json
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]
MAX_BYTES = 64_000_000  # maximum number of bytes to read from the end of a file
KEYS: Mapping[str, Mapping[str, type]] = {  # required keys of a line, with the types of their values
    "steps.jsonl": {"step": int, "seconds": float, "targets": int},
    "metrics.jsonl": {"step": int},
    "samples.jsonl": {"step": int, "prompt": str, "completion": str},
}


class RunRecords(NamedTuple):
    """The valid records of a log file, and a description of the damaged lines."""

    lines: Sequence[Record]
    problem: str  # description of the damaged lines; "" if there are none


def read_records(path: Path) -> RunRecords:
    """Return the records of steps.jsonl, metrics.jsonl or samples.jsonl. A missing file has no records.

    An incomplete last line is not reported, since a killed process may leave one.
    """
    if not path.is_file():  # the file is missing, or is a pipe that may never end
        return RunRecords((), "")
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_BYTES))
            content = file.read(MAX_BYTES)
    except OSError as error:
        return RunRecords((), f"{path.name} cannot be read: {error.strerror}")
    found, bad = [], []
    *whole, rest = content.split(b"\n")
    for number, line in enumerate([*whole, rest], start=1):
        record = _record(line, KEYS[path.name])
        if record is not None:
            found.append(record)
        elif line.strip() and number <= len(whole):
            bad.append(number)
    return RunRecords(found, _problem(path.name, bad))


def finite_or_none(value: object) -> float | None:
    """Return the value as a float if it is a finite number, which JSON can hold; otherwise None."""
    try:
        return float(value) if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:
        return None


def _record(line: bytes, keys: Mapping[str, type]) -> Record | None:
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not all(_fits(record.get(key), kind) for key, kind in keys.items()):
        return None
    sound = {key: value for key, value in record.items() if _is_text(key)}
    return {
        key: value if _is_text(value) or finite_or_none(value) is not None else None for key, value in sound.items()
    }


def _fits(value: object, kind: type) -> bool:
    if kind is str:
        return _is_text(value)
    return finite_or_none(value) is not None and (kind is float or isinstance(value, int))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _problem(name: str, bad: Sequence[int]) -> str:
    if not bad:
        return ""
    lines = "line" if len(bad) == 1 else "lines"
    shown = ", ".join(map(str, bad[:3])) + (", ..." if len(bad) > 3 else "")
    return f"{name}: {lines} {shown} cannot be read and {'is' if len(bad) == 1 else 'are'} skipped"
