"""The training session: steps, evaluations on held-out examples, samples, checkpoints, and an orderly shutdown."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shlex import quote
from time import monotonic

from torch import Tensor

from penwright.errors import Interrupted
from penwright.evaluation.scores import Sample, Score, nats_in
from penwright.run.checkpoints import Record, Tensors, folder_name
from penwright.run.folder import Run
from penwright.run.records import METRICS, SAMPLES, rises_above
from penwright.text import count
from penwright.training.auto.machine import uncompiled
from penwright.training.distributed.launcher import stop_requests
from penwright.training.observers import Observer, notify
from penwright.training.trainer import Trainer

# Seconds between two checkpoints: minimum, maximum, and minimum per weight (large models take longer to save).
LEAST_INTERVAL, MOST_INTERVAL, INTERVAL_PER_WEIGHT = 10.0, 300.0, 2e-6
EVALUATIONS = 10  # default number of evaluations per run
# Fraction of a budget in minutes before the first evaluation by time, whose cost is not yet known.
FIRST_EVALUATION = 1 / 6
# Number of consecutive evaluations with overfitting after which the cooldown starts, and after which training stops.
COOL_AFTER, STOP_AFTER = 2, 3
# Evaluate after FRESH epochs, then each time the number of epochs has grown by the factor GROWTH.
FRESH, GROWTH = 2.0, 1.5
# An evaluation that takes at most this share of the budget is made whenever the epochs have grown, since there are
# only about 15 such moments in 1,000 epochs. A GPU reads a small text dozens of times between two other evaluations.
CHEAP = 0.005
# First step at which a run with a budget in minutes is evaluated. Before this step, evaluation is slow, because the
# model always generates up to the length limit.
FEWEST_STEPS = 20
# A run is not stopped early above this fraction of the peak learning rate: the cooldown may still lower the loss.
STOP_BELOW = 0.5
# The last model replaces a best one whose held-out loss is lower by at most this fraction. On other texts, the last one
# is usually better: the learning rate was still high at an earlier step, and its low loss was partly luck.
LUCK = 0.02


class Session:
    """A training session: the steps, evaluations and checkpoints of a run until its budget is spent."""

    def __init__(
        self,
        run: Run,
        trainer: Trainer,
        evaluate: Callable[[], Sequence[Score]],
        sample: Callable[[], Sequence[Sample]],
        observers: Sequence[Observer],
    ):
        """Prepare the session. `evaluate` and `sample` use the trainer's model.

        The first score that `evaluate` returns ranks the checkpoints. The functions in `checks` are called after each
        step, and may end the session by an exception, before anything of that step is saved.

        Several ranks run the same session, but only rank 0 evaluates and writes to the run folder.
        """
        self.run, self.trainer, self.evaluate, self.sample, self.observers = run, trainer, evaluate, sample, observers
        self.checks: list[Callable[[Trainer], object]] = []
        trainer.synchronize()
        self.last_evaluated_step, self.last_evaluated_at = trainer.state.step, trainer.state.seconds
        self.save_interval = save_interval(trainer.settings.minutes, trainer.model.parameters())
        self.saved_step, seconds = trainer.state.step, trainer.state.seconds
        # a run that is trained longer is saved after its first step, so that a kill does not lose the new budget
        self.saved_at = -self.save_interval if 0 < self.saved_step == trainer.state.first_step else seconds
        marks = (10.0**n for n in range(trainer.settings.early))
        self.early_marks = [mark for mark in marks if mark > trainer.state.seconds]  # when to save early checkpoints

    def fit(self) -> None:
        """Train until the budget is spent, or until the run stops early.

        Save and raise Interrupted after SIGINT, SIGTERM, SIGHUP or a stop file in the run folder (Run.request_stop).
        """
        try:
            with stop_requests() as received:
                self.trainer.should_stop = lambda: bool(received) or (self.is_main and self.run.is_stop_requested)
                for report in self.trainer.steps():
                    notify(self.observers, "stepped", self.trainer, report)
                    self._check()
                    self._keep_early()
                    if self._evaluation_is_due():
                        self.evaluate_now()
                    elif self.trainer.state.seconds - self.saved_at > self.save_interval:
                        self._save()
                    if self.trainer.state.stopped_early:
                        break
                    unfinished = self.trainer.state.step != self.trainer.state.total_steps
                    if unfinished and self._is_asked_to_stop():
                        self._save_and_raise()
                if self.last_evaluated_step != self.trainer.state.step:
                    self.evaluate_now()
                self._wait_for_saving()
                if self.is_main:
                    self.run.clear_stop_files()
        finally:
            if self.trainer.saver:
                self.trainer.saver.close()
            with ExitStack() as stack:  # notify every observer, even if another observer fails
                for observer in reversed(self.observers):
                    stack.callback(notify, [observer], "finished", self.trainer)

    @property
    def is_main(self) -> bool:
        """Whether this process is rank 0."""
        return self.trainer.ranks.is_main

    def _check(self) -> None:
        for check in self.checks:
            check(self.trainer)

    def _is_asked_to_stop(self) -> bool:
        """Return whether to stop after this step. Several ranks make this decision together, during the step."""
        return self.trainer.stops if self.trainer.ranks.size > 1 else self.trainer.should_stop()

    def _evaluation_is_due(self) -> bool:
        state, settings = self.trainer.state, self.trainer.settings
        if state.step == state.total_steps:
            return True
        if settings.evaluate_every is not None:
            return state.step % settings.evaluate_every == 0
        if settings.minutes is None and state.total_steps is not None:
            every = max(1, (state.total_steps - state.first_step) // EVALUATIONS)
            return (state.step - state.first_step) % every == 0 or self._passes_epoch_mark()
        if state.step - state.first_step < FEWEST_STEPS:
            return False
        budget, cost = 60 * (settings.minutes or 1), state.reserved_seconds  # both in seconds; `cost` of an evaluation
        since = state.seconds - self.last_evaluated_at
        if since < 20 * cost and cost > CHEAP * budget:  # slow evaluations may take up to 5 % of the time
            return False
        interval = max(20 * cost, budget / EVALUATIONS) if cost else budget * FIRST_EVALUATION
        return since >= interval or self._epochs_have_grown()

    def _passes_epoch_mark(self) -> bool:
        """Return whether this step passes epoch 2, 3, 4.5, ...: in a long run, the best epoch is often an early one."""
        before, now = map(self.trainer.budget.epochs_until, (self.trainer.state.step - 1, self.trainer.state.step))
        mark = FRESH
        while mark <= before:
            mark *= GROWTH
        return mark <= now

    def _epochs_have_grown(self) -> bool:
        """Return whether enough epochs have passed since the last evaluation.

        A small text has many short epochs. Without this rule, the best step could fall between two evaluations.
        """
        state, epochs = self.trainer.state, self.trainer.budget.epochs_until
        return epochs(state.step) >= max(FRESH, GROWTH * epochs(self.last_evaluated_step))

    def evaluate_now(self) -> Sequence[Score]:
        """Evaluate on the held-out set, write samples, record whether this step is the best, and save the run.

        Only rank 0 evaluates. The other ranks wait, copy the counters of rank 0 and return no scores.
        """
        trainer, begin, before = self.trainer, monotonic(), self.trainer.state.seconds
        with trainer.evaluation():
            scores = self._evaluate() if self.is_main else []
        self.last_evaluated_step = trainer.state.step
        if self.is_main:
            self._handle_overfitting(scores)
            self._prefer_last(scores)
        trainer.synchronize()  # the other ranks wait for a message, because a collective has a time limit
        trainer.state.reserved_seconds = monotonic() - begin
        # before saving, count the evaluation's time as spent, so that a resumed run does not get it back
        trainer.state.seconds = before + trainer.state.reserved_seconds
        self._save()
        trainer.state.reserved_seconds = monotonic() - begin
        trainer.state.seconds = before + trainer.state.reserved_seconds
        trainer.synchronize()
        self.last_evaluated_at = self.saved_at = trainer.state.seconds
        return scores

    def _evaluate(self) -> Sequence[Score]:
        trainer, state = self.trainer, self.trainer.state
        with uncompiled():
            scores, samples = self.evaluate(), self.sample()
        best = self._is_best(scores)
        if best:
            state.best, state.best_step, state.nats_of_best = scores[0].value, state.step, nats_in(scores)
        state.evaluations_since_best = 0 if best else state.evaluations_since_best + 1
        record = {score.name: score.value for score in scores}
        counters = {"step": state.step, "seconds": round(state.seconds, 2), "epoch": round(trainer.budget.epoch, 3)}
        self.run.append(METRICS, {**counters, "targets": state.targets, "skipped": state.skipped, **record})
        for sample in samples:
            self.run.append(SAMPLES, {"step": state.step, **sample._asdict()})
        notify(self.observers, "evaluated", trainer, scores, samples, best)
        return scores

    def _is_best(self, scores: Sequence[Score]) -> bool:
        """Return whether these scores are the best so far.

        The first score decides. If it differs by at most its standard error, the lower held-out loss in nats decides.
        """
        state, score, nats = self.trainer.state, scores[0], nats_in(scores)
        if state.best is None or nats is None or state.nats_of_best is None:
            return score.beats(state.best)
        return nats < state.nats_of_best if score.is_level_with(state.best) else score.beats(state.best)

    def _prefer_last(self, scores: Sequence[Score]) -> None:
        """At the end of a run, keep the last model if its scores are nearly as good as the best ones."""
        state, score, nats = self.trainer.state, scores[0], nats_in(scores)
        is_last = state.stopped_early or state.step == state.total_steps
        if not is_last or state.best is None or nats is None or state.nats_of_best is None:
            return
        alike = score.is_level_with(state.best) and nats <= (1 + LUCK) * state.nats_of_best
        if alike and score.standard_error and state.best_step not in {0, state.step}:
            message = f"keeping the last model: the best one (step {state.best_step:,}) is hardly better"
            notify(self.observers, "message", message)
            state.best, state.best_step, state.nats_of_best = score.value, state.step, nats

    def _keep_early(self) -> None:
        """Save an early checkpoint, of weights only, after 1, 10, 100 ... seconds of training."""
        state = self.trainer.state
        if self.early_marks and state.seconds >= self.early_marks[0]:
            self.early_marks = [mark for mark in self.early_marks if mark > state.seconds]
            weights = self.trainer.weights()
            if self.is_main:
                self.run.checkpoints.save_early(state.step, weights, self.trainer.budget.save())

    def _save(self) -> None:
        tensors, record = self.trainer.save()
        weights = self.trainer.weights()
        step = self.saved_step = self.trainer.state.step
        self.saved_at = self.trainer.state.seconds
        if self.trainer.saver:
            self.trainer.saver.start(folder_name(step), tensors, partial(self._complete, step, weights, record))
        elif self.is_main:
            self.run.checkpoints.save(step, weights, tensors, record)
            self._keep_first_and_best(step, weights, record)

    def _complete(self, step: int, weights: Tensors, record: Record, folder: Path, parts: Record) -> None:
        """Complete a checkpoint whose parts all ranks have saved."""
        self.run.checkpoints.complete(step, folder, parts, weights, record)
        self._keep_first_and_best(step, weights, record)

    def _keep_first_and_best(self, step: int, weights: Tensors, record: Record) -> None:
        self.run.checkpoints.save_first(step, weights, record)
        self.run.checkpoints.prune(self.trainer.settings.keep)

    def _wait_for_saving(self) -> None:
        if self.trainer.saver:
            self.trainer.saver.wait()

    def _save_and_raise(self) -> None:
        if self.saved_step != self.trainer.state.step:
            self._save()
        self._wait_for_saving()
        if self.is_main:
            self.run.mark_stopped()
        n = self.trainer.ranks.size
        raise Interrupted(
            f"stopped after step {self.trainer.state.step:,}; everything is saved. "
            f"Resume with: penwright train --resume {quote(str(self.run.folder))}{f' --processes {n}' if n > 1 else ''}"
        )

    def _handle_overfitting(self, scores: Sequence[Score]) -> None:
        """Stop when patience is exhausted. With `cooldown_on_overfitting`, overfitting first starts the cooldown.

        Overfitting is judged by the held-out loss, since accuracy and similar scores are too noisy.
        """
        settings, state = self.trainer.settings, self.trainer.state
        nats = nats_in(scores)
        if nats is not None and state.step:  # ignore step 0: fine-tuning often raises the loss at first
            state.best_nats = nats if state.best_nats is None else min(nats, state.best_nats)
            over = rises_above(nats, state.best_nats)
            state.evaluations_over_fitted = state.evaluations_over_fitted + 1 if over else 0
        if state.step == state.total_steps:
            return
        if settings.patience is not None and state.evaluations_since_best >= settings.patience:
            self._stop_early(f"no better score in {count(settings.patience, 'evaluation')}")
        elif (
            settings.cooldown_on_overfitting
            and state.evaluations_over_fitted >= COOL_AFTER
            and self.trainer.budget.cool_down()
        ):
            state.evaluations_over_fitted = 0
            message = f"overfitting begins: the learning rate falls from now on until step {state.total_steps:,}"
            notify(self.observers, "message", message)
        elif (
            settings.cooldown_on_overfitting
            and min(state.evaluations_over_fitted, state.evaluations_since_best) >= STOP_AFTER
            and not self.trainer.budget.rate_falls_below(STOP_BELOW)
        ):
            self._stop_early("overfitting continues")

    def _stop_early(self, reason: str) -> None:
        self.trainer.state.stopped_early = True
        notify(self.observers, "message", f"stopped early at step {self.trainer.state.step:,}: {reason}")


def save_interval(minutes: float | None, weights: Iterable[Tensor]) -> float:
    """Return the maximum number of seconds between two checkpoints, for a budget in minutes and these weights."""
    if minutes is None:
        return MOST_INTERVAL
    n_trained = sum(weight.numel() for weight in weights if weight.requires_grad)
    return min(MOST_INTERVAL, max(LEAST_INTERVAL, 60 * minutes / EVALUATIONS, n_trained * INTERVAL_PER_WEIGHT))
