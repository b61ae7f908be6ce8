"""Training logs of runs, and alerts about problems that their curves show. Damaged lines are skipped."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

Record = dict[str, Any]
MAX_BYTES = 64_000_000  # maximum number of bytes to read from the end of a file
N_SHOWN = 3  # maximum number of damaged lines that are named
KEYS: Mapping[str, Mapping[str, type]] = {  # required keys of a line, with the types of their values
    "steps.jsonl": {"step": int, "seconds": float, "targets": int},
    "metrics.jsonl": {"step": int},
    "samples.jsonl": {"step": int, "prompt": str, "completion": str},
}
WINDOW = 20  # number of records before a possible spike; their median is the usual loss
SPIKE = 8.0  # minimum height of a spike above the median, in median absolute deviations
OVER_FITTED = 0.01  # relative rise above the lowest held-out loss that counts as overfitting, not as noise
FLAT, N_FLAT = 0.003, 4  # on a plateau, the loss changes by at most the fraction FLAT over N_FLAT evaluations


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
    lines = content.split(b"\n")
    found, bad = _records(lines, path.name)
    return RunRecords(found, _problem(path.name, [number for number in bad if number < len(lines)]))


class LogEnd(NamedTuple):
    """The last record of a log file, and what to know to read on from there."""

    last: Record  # {} if there is none
    problem: str = ""  # description of the damaged lines; "" if there are none
    state: tuple[int, int] = (0, 0)  # size and time of change of the file when it was read
    offset: int = 0  # end of the last complete line, in bytes
    last_line: bytes = b""  # the last complete line; if it is no longer there, the file is read again from the start
    n_lines: int = 0
    bad: tuple[int, ...] = ()  # the first damaged lines


_ends: dict[Path, LogEnd] = {}  # of the log files read so far; replaced as a whole, since several threads use it


def read_end(path: Path) -> LogEnd:
    """Return the last record of steps.jsonl or metrics.jsonl. Only the lines since the previous call are read."""
    if not path.is_file():
        return LogEnd({})
    try:
        with path.open("rb") as file:
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
    except OSError as error:
        return LogEnd({}, problem=f"{path.name} cannot be read: {error.strerror}")
    *whole, rest = content.split(b"\n")
    found, bad = _records([*whole, rest], path.name)
    bad = [*known.bad, *(known.n_lines + number for number in bad if number <= len(whole))][: N_SHOWN + 1]
    _ends[path] = end = LogEnd(
        last=found[-1] if found else known.last,
        problem=_problem(path.name, bad),
        state=state,
        offset=begin + len(content) - len(rest),
        last_line=whole[-1] + b"\n" if whole else known.last_line,
        n_lines=known.n_lines + len(whole),
        bad=tuple(bad),
    )
    return end


def finite_or_none(value: object) -> float | None:
    """Return the value as a float if it is a finite number, which JSON can hold; otherwise None."""
    try:
        return float(value) if isinstance(value, int | float) and isfinite(value) else None
    except OverflowError:
        return None


def _records(lines: Sequence[bytes], name: str) -> tuple[list[Record], list[int]]:
    """Return the valid records of a file with this name, and the numbers of the other lines that are not empty."""
    parsed = [(number, _record(line, KEYS[name])) for number, line in enumerate(lines, start=1) if line.strip()]
    return [record for _, record in parsed if record is not None], [at for at, record in parsed if record is None]


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
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


def _problem(name: str, bad: Sequence[int]) -> str:
    if not bad:
        return ""
    lines = "line" if len(bad) == 1 else "lines"
    shown = ", ".join(map(str, bad[:N_SHOWN])) + (", ..." if len(bad) > N_SHOWN else "")
    return f"{name}: {lines} {shown} cannot be read and {'is' if len(bad) == 1 else 'are'} skipped"


class Alert(NamedTuple):
    """A problem, the step at which it occurred, and what to do about it."""

    kind: Literal["not finite", "spike", "plateau", "over-fitting"]
    step: int
    text: str


def alerts(steps: Sequence[Record], evaluations: Sequence[Record]) -> list[Alert]:
    """Return the alerts for the records of steps.jsonl and metrics.jsonl, ordered by step."""
    nats = next((name for name in (evaluations[0] if evaluations else ()) if name.startswith("nats")), None)
    held_out = [(int(each["step"]), float(each[nats])) for each in evaluations if nats and _is_number(each.get(nats))]
    found = [*_not_finite(steps), *_spikes(steps), *_over_fitting(held_out, steps), *_plateau(held_out)]
    return sorted(found, key=lambda alert: alert.step)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def _not_finite(steps: Sequence[Record]) -> Iterator[Alert]:
    grown = [after for before, after in pairwise([{"skipped": 0}, *steps]) if _more_skipped(before, after)]
    if grown:
        skipped = grown[-1]["skipped"]
        yield Alert(
            "not finite",
            grown[0]["step"],
            f"the gradient was not finite; {skipped} step{'s were' if skipped > 1 else ' was'} skipped up to step "
            f"{grown[-1]['step']:,}. A few are harmless. If they become more frequent, lower "
            "optimizer.learning_rate, lengthen schedule.warmup_steps, or set training.precision=float32.",
        )


def _more_skipped(before: Record, after: Record) -> bool:
    one, other = after.get("skipped"), before.get("skipped")
    return _is_number(one) and int(one or 0) > int(other if _is_number(other) and other else 0)


def _spikes(steps: Sequence[Record]) -> Iterator[Alert]:
    """Yield an alert for each loss far above the preceding losses. Spikes close together share one alert."""
    known = [(each["step"], each["loss"]) for each in steps if _is_number(each.get("loss"))]
    quiet_from = 0
    for place in range(WINDOW, len(known)):
        before = [loss for _, loss in known[place - WINDOW : place]]
        usual = median(before)
        spread = median(abs(loss - usual) for loss in before)
        step, loss = known[place]
        if place >= quiet_from and loss > usual + SPIKE * spread + 0.05 * abs(usual):
            quiet_from = place + WINDOW
            yield Alert(
                "spike",
                step,
                f"the loss jumped from about {usual:.3g} to {loss:.3g}. If it falls again, no action is needed. "
                "If spikes recur, lower the learning rate or lengthen the warm-up.",
            )


def _over_fitting(held_out: Sequence[tuple[int, float]], steps: Sequence[Record]) -> Iterator[Alert]:
    if not held_out:
        return
    best_step, best = min(held_out, key=lambda pair: pair[1])
    last_step, last = held_out[-1]
    if last <= best * (1 + OVER_FITTED) or last_step == best_step:
        return
    then, now = (_loss_at(steps, step) for step in (best_step, last_step))
    fell = (
        f", while the training loss went from {then:.3g} to {now:.3g}" if then is not None and now is not None else ""
    )
    yield Alert(
        "over-fitting",
        best_step,
        f"after this step the held-out loss rose from {best:.3g} to {last:.3g}{fell}: the model overfits. "
        "The best checkpoint is kept. More text, more dropout or fewer steps help.",
    )


def _loss_at(steps: Sequence[Record], step: int) -> float | None:
    known = [each["loss"] for each in steps if each["step"] <= step and _is_number(each.get("loss"))]
    return float(known[-1]) if known else None


def _plateau(held_out: Sequence[tuple[int, float]]) -> Iterator[Alert]:
    if len(held_out) <= N_FLAT:
        return
    (since, before), last = held_out[-N_FLAT - 1], min(loss for _, loss in held_out[-N_FLAT:])
    if abs(before - last) <= FLAT * abs(before):
        yield Alert(
            "plateau",
            since,
            f"the held-out loss has hardly changed since this step: {before:.4g} then, {last:.4g} now. "
            "More steps at this size gain little. A larger model or more text may help.",
        )
