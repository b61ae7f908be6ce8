"""The records of a run for the page, and alerts about problems in its curves."""

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from math import isfinite
from statistics import median
from typing import Literal, NamedTuple

from penwright.errors import PenwrightError
from penwright.run.checkpoints import Record
from penwright.run.folder import Run
from penwright.run.records import LogEnd, RunRecords, held_out_losses, is_overfitted, read_end, read_records

WINDOW = 20  # number of records before a possible spike; their median is the usual loss
SPIKE = 8.0  # minimum height of a spike above the median, in median absolute deviations
FLAT, N_FLAT = 0.003, 4  # on a plateau, the loss changes by at most the fraction FLAT over N_FLAT evaluations


def records_of(run: Run, name: str) -> RunRecords:
    """Return the records in a file or, if it cannot be read, no records and a description of the problem."""
    try:
        return read_records(run.folder / name)
    except PenwrightError as error:
        return RunRecords((), str(error))


def end_of(run: Run, name: str) -> LogEnd:
    """Return the last record of a file or, if it cannot be read, no record and a description of the problem."""
    try:
        return read_end(run.folder / name)
    except PenwrightError as error:
        return LogEnd({}, str(error))


class Alert(NamedTuple):
    """A problem, the step at which it occurred, and what to do about it."""

    kind: Literal["not finite", "spike", "plateau", "over-fitting"]
    step: int
    text: str


def alerts(steps: Sequence[Record], evaluations: Sequence[Record]) -> list[Alert]:
    """Return the alerts for the records of steps.jsonl and metrics.jsonl, ordered by step."""
    held_out = list(held_out_losses(evaluations).items())
    alerts = [*_not_finite(steps), *_spikes(steps), *_overfitting(evaluations, steps), *_plateau(held_out)]
    return sorted(alerts, key=lambda alert: alert.step)


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
    """Yield an alert for each loss far above the preceding losses. Spikes close together share one alert.

    `training.consistency` changes what the loss measures, so the window restarts where it begins.
    """
    for _, part in groupby(steps, lambda each: bool(each.get("consistent"))):
        yield from _spikes_of([(each["step"], each["loss"]) for each in part if _is_number(each.get("loss"))])


def _spikes_of(known: Sequence[tuple[int, float]]) -> Iterator[Alert]:
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


def _overfitting(evaluations: Sequence[Record], steps: Sequence[Record]) -> Iterator[Alert]:
    losses = held_out_losses(evaluations)
    if not losses:
        return
    best_step, last_step = min(losses, key=losses.__getitem__), max(losses)
    best, last = losses[best_step], losses[last_step]
    if not is_overfitted(evaluations, last_step, best_step):
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
