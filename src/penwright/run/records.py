"""The records of a run: steps.jsonl, metrics.jsonl, samples.jsonl and quickened.json; whether they show overfitting."""

import json
import os
from collections.abc import Mapping, Sequence
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

from penwright.config import Precision
from penwright.errors import PenwrightError
from penwright.run.checkpoints import Record
from penwright.storage import open_plain, read_bytes, write_bytes_atomically

STEPS, METRICS, SAMPLES = "steps.jsonl", "metrics.jsonl", "samples.jsonl"
MAX_BYTES = 64_000_000  # maximum number of bytes to read from the end of a file
N_SHOWN = 3  # maximum number of damaged lines listed in a message
KEYS: Mapping[str, Mapping[str, type]] = {  # required keys of a line, with the types of their values
    STEPS: {"step": int, "seconds": float, "targets": int},
    METRICS: {"step": int},
    SAMPLES: {"step": int, "prompt": str, "completion": str},
}
OVERFITTED = 0.01  # relative rise of the held-out loss above its minimum that counts as overfitting, not noise


class OptimizeRecord(BaseModel):
    """The content of quickened.json: the precision in which a run decodes."""

    precision: Precision


class RunRecords(NamedTuple):
    """The valid records of a file, and a description of the damaged lines."""

    lines: Sequence[Record]
    problem: str  # description of the damaged lines; "" if there are none


def read_records(path: Path) -> RunRecords:
    """Return the records of steps.jsonl, metrics.jsonl or samples.jsonl. A missing file has no records.

    An incomplete last line is not reported, since a killed process may leave one. Raises PenwrightError if the file
    cannot be read, and UnsafeFile if it is a link or a pipe.
    """
    try:
        with open(open_plain(path, os.O_RDONLY), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_BYTES))
            lines = file.read(MAX_BYTES).split(b"\n")
    except FileNotFoundError:
        return RunRecords((), "")
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error}") from None
    records, bad = _records(lines, path.name)
    return RunRecords(records, _problem(path.name, [number for number in bad if number < len(lines)]))


class LogEnd(NamedTuple):
    """The last record of a log file, and the position from which to continue reading."""

    last: Record  # {} if the file has no valid record
    problem: str = ""  # description of the damaged lines; "" if there are none
    state: tuple[int, int] = (0, 0)  # size and modification time of the file when it was read
    offset: int = 0  # end of the last complete line, in bytes
    last_line: bytes = b""  # the last complete line; if it is no longer there, the file is read again from the start
    n_lines: int = 0
    bad: tuple[int, ...] = ()  # line numbers of the first damaged lines


_ends: dict[Path, LogEnd] = {}  # keyed by log file; several threads read the entries, so each is replaced as a whole


def read_end(path: Path) -> LogEnd:
    """Return the last record of steps.jsonl or metrics.jsonl. Read only the lines added since the previous call.

    Raises PenwrightError like read_records().
    """
    try:
        with open(open_plain(path, os.O_RDONLY), "rb") as file:
            status = os.fstat(file.fileno())
            known, state = _ends.get(path, LogEnd({})), (status.st_size, status.st_mtime_ns)
            if known.state == state:
                return known
            file.seek(known.offset - len(known.last_line))
            if file.read(len(known.last_line)) != known.last_line:
                known = LogEnd({})
            begin = max(known.offset, status.st_size - MAX_BYTES)
            file.seek(begin)
            content = file.read(MAX_BYTES)
    except FileNotFoundError:
        return LogEnd({})
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error}") from None
    *whole, rest = content.split(b"\n")
    records, bad = _records([*whole, rest], path.name)
    bad = [*known.bad, *(known.n_lines + number for number in bad if number <= len(whole))][: N_SHOWN + 1]
    _ends[path] = end = LogEnd(
        last=records[-1] if records else known.last,
        problem=_problem(path.name, bad),
        state=state,
        offset=begin + len(content) - len(rest),
        last_line=whole[-1] + b"\n" if whole else known.last_line,
        n_lines=known.n_lines + len(whole),
        bad=tuple(bad),
    )
    return end


def _records(lines: Sequence[bytes], name: str) -> tuple[list[Record], list[int]]:
    """Return the valid records among the lines of the named file, and the line numbers of the damaged ones."""
    parsed = [(number, parse_record(line, KEYS[name])) for number, line in enumerate(lines, start=1) if line.strip()]
    return [record for _, record in parsed if record is not None], [at for at, record in parsed if record is None]


def parse_record(line: bytes, keys: Mapping[str, type]) -> Record | None:
    """Return the record in a line, or None if it is damaged or lacks one of the keys. Infinite numbers become None."""
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
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _problem(name: str, bad: Sequence[int]) -> str:
    if not bad:
        return ""
    lines = "line" if len(bad) == 1 else "lines"
    shown = ", ".join(map(str, bad[:N_SHOWN])) + (", ..." if len(bad) > N_SHOWN else "")
    return f"{name}: {lines} {shown} cannot be read and {'is' if len(bad) == 1 else 'are'} skipped"


def delete_records_after(path: Path, step: int) -> None:
    """Delete the records after this step, and damaged lines, from a file."""
    try:
        lines = read_bytes(path).split(b"\n") if os.path.lexists(path) else []
    except OSError as error:
        raise PenwrightError(f"{path} cannot be read: {error}") from None
    records = [(line, parse_record(line, {"step": int})) for line in lines]
    kept = [line + b"\n" for line, record in records if record and record["step"] <= step]
    try:
        write_bytes_atomically(path, b"".join(kept))
    except OSError as error:
        raise PenwrightError(f"{path} could not be written: {error}") from None


def finite_or_none(value: object) -> float | None:
    """Return the value as a float if it is a finite number, which JSON can hold; otherwise None."""
    try:
        return float(value) if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:
        return None


def held_out_losses(evaluations: Sequence[Record]) -> dict[int, float]:
    """Return the held-out loss in nats at each step, from the records of metrics.jsonl."""
    losses = {
        record["step"]: finite_or_none(value)
        for record in evaluations
        for name, value in record.items()
        if name.startswith("nats")
    }
    return {step: loss for step, loss in losses.items() if loss is not None}


def rises_above(loss: float, lowest: float) -> bool:
    """Return whether a held-out loss exceeds the lowest one by enough to indicate overfitting rather than noise."""
    return loss > lowest * (1 + OVERFITTED)


def is_overfitted(evaluations: Sequence[Record], step: int, best_step: int) -> bool:
    """Return whether the model at `step` overfits: its held-out loss is clearly higher than at `best_step`.

    During the first epoch, a rise of the loss does not count as overfitting.
    """
    losses, epoch = held_out_losses(evaluations), finite_or_none(evaluations[-1].get("epoch")) if evaluations else None
    return (epoch is None or epoch >= 1) and rises_above(losses.get(step, 0.0), losses.get(best_step, inf))
