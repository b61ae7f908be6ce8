"""Training progress on standard error: a live display on a terminal, plain lines otherwise."""

import sys
from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from time import monotonic

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from penwright.evaluation.scores import Sample, Score
from penwright.streams import Stream, escaped, print_message, without_escaping
from penwright.text import count
from penwright.training.observers import Observer, tensorboard_observer
from penwright.training.trainer import StepReport, Trainer

# ASCII replacements, for encodings that lack these characters.
ASCII_STAND_INS = str.maketrans("━▁▂▃▄▅▆▇█░▒▓…→←↵␣⟨⟩", "-_.:-=+*#.:%~><|_<>")
SPARKS = "▁▂▃▄▅▆▇█"
LOG_EVERY = 15.0  # seconds between log lines
CONSISTENCY_BEGINS = (
    "each batch now passes through the model twice, with different dropout (training.consistency). Steps take longer, "
    "and the loss is higher, since it also measures how much the two passes differ"
)
SHOWN = 400  # maximum number of characters to print of a prompt, a completion or a reference


class SafeConsole(Console):
    """A `rich.console.Console` that sends its own escape sequences, but escapes control characters in the text."""

    def __init__(self, stream: Stream):
        super().__init__(file=without_escaping(stream), markup=False, highlight=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as usual, but escape control characters, and replace drawing characters that the encoding lacks."""
        has_drawings = self.encoding.startswith("utf")
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                text = escaped(segment.text)
                yield Segment(text if has_drawings else text.translate(ASCII_STAND_INS), segment.style)


def progress_observer() -> Observer:
    """Return a live display if standard error is a terminal, and a display that prints lines otherwise."""
    console = SafeConsole(sys.stderr)
    return LiveProgress(console) if console.is_terminal else LineProgress()


def observers_of(folder: Path) -> list[Observer]:
    """Return the progress display, and a TensorBoard writer for this run if TensorBoard is installed."""
    board = tensorboard_observer(folder)
    return [progress_observer(), *([board] if board else [])]


class _Progress(Observer):
    """The figures that both progress displays show."""

    def __init__(self) -> None:
        self.trainer: Trainer | None = None  # the trainer whose figures are displayed
        self._reset()

    def _reset(self) -> None:
        self.is_consistent = False  # whether the loss includes the disagreement of two passes
        self.losses: list[float] = []
        self.mean_loss: float | None = None
        # step, elapsed seconds and number of target tokens after the first step
        self.began: tuple[int, float, int] | None = None
        self.samples_due = [0.0, 0.5]  # fractions of the training time at which samples are still to be shown
        self.newest_samples: Sequence[Sample] = ()  # samples not yet shown

    def due_samples(self, trainer: Trainer, samples: Sequence[Sample]) -> Sequence[Sample]:
        """Return the samples at the first evaluation, and at the first one in the second half of training.

        The samples of other evaluations are printed only if training ends before the next one.
        """
        progress = trainer.budget.progress
        is_due = any(progress >= due for due in self.samples_due)
        self.samples_due = [due for due in self.samples_due if progress < due]
        self.newest_samples = () if is_due else samples
        return samples if is_due else ()

    def note(self, trainer: Trainer, report: StepReport) -> None:
        """Update the displayed figures with the report on a step. For a new trainer, reset the figures first."""
        if trainer is not self.trainer:
            self.trainer = trainer
            self._reset()
        if self.began is None:
            self.began = (trainer.state.step, trainer.state.seconds, trainer.state.targets)
        if trainer.is_consistent and not self.is_consistent:
            self.is_consistent, self.mean_loss = True, None
            self.message(CONSISTENCY_BEGINS)
        if isfinite(report.loss):  # skipped steps have no finite loss
            self.mean_loss = report.loss if self.mean_loss is None else 0.95 * self.mean_loss + 0.05 * report.loss

    def line(self, trainer: Trainer) -> str:
        """Return a line with step, epoch, loss, throughput, elapsed time and time left."""
        state = trainer.state
        of_total = f"/{state.total_steps:,}" if state.total_steps else ""
        _, first_seconds, first_targets = self.began or (0, 0.0, 0)
        speed = (state.targets - first_targets) / max(1e-9, state.seconds - first_seconds)
        skipped = f"  {count(state.skipped, 'step')} skipped (loss or gradient not finite)" if state.skipped else ""
        loss = "" if self.mean_loss is None else f"  loss {self.mean_loss:.3f}"
        pace = f"  {speed:,.0f} {trainer.unit}/s" if state.targets > first_targets else ""  # no throughput at step 1
        return (
            f"step {state.step:,}{of_total}  epoch {trainer.budget.epoch:.2f}{loss}{pace}  "
            f"{clock(state.seconds)} elapsed{self._left(trainer)}{skipped}"
        )

    def _left(self, trainer: Trainer) -> str:
        """Return the time left in words: the rest of a budget in minutes, or else an estimate from the steps so far.

        It is "" before the second step of a budget that is not in minutes.
        """
        state, minutes = trainer.state, trainer.settings.minutes
        first_step, first_seconds, _ = self.began or (state.step, 0.0, 0)
        if state.stopped_early or state.step == state.total_steps:
            left = 0.0
        elif minutes is not None and not state.ends_early:
            left = max(0.0, 60 * minutes - (state.seconds - state.first_second))
        elif state.total_steps is not None and state.step > first_step:
            pace = (state.seconds - first_seconds) / (state.step - first_step)
            left = (state.total_steps - state.step) * pace
        else:
            return ""
        return f", {clock(left)} left"


class LineProgress(_Progress):
    """A progress display that prints occasional lines, for logs and files."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.last_line = monotonic(), ""

    def message(self, text: str) -> None:
        """Print a message."""
        print_message(text)

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        """Print a line if LOG_EVERY seconds have passed since the last line."""
        self.note(trainer, report)
        if monotonic() - self.last > LOG_EVERY:
            self._print_line(trainer)

    def evaluated(self, trainer: Trainer, scores: Sequence[Score], samples: Sequence[Sample], best: bool) -> None:
        """Print the scores of an evaluation, and its samples at the start and in the middle of training."""
        self._print_line(trainer)
        print_message(f"  held-out: {scores_in_words(scores)}{' (best so far)' if best else ''}")
        for sample in self.due_samples(trainer, samples):
            print_message(sample_in_words(sample))

    def finished(self, trainer: Trainer) -> None:
        """Print the samples of the last evaluation."""
        for sample in self.newest_samples:
            print_message(sample_in_words(sample))
        self.trainer = None  # its model may be large

    def _print_line(self, trainer: Trainer) -> None:
        """Print the line of this step, unless it is already printed."""
        if (line := self.line(trainer)) != self.last_line:
            print_message(line)
        self.last, self.last_line = monotonic(), line


class LiveProgress(_Progress):
    """A progress display that is redrawn in place, with messages and samples scrolling above it."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console
        # the display is rendered only when it is redrawn: rendering it at each step would keep a GPU waiting
        self.live = Live(console=console, refresh_per_second=4, transient=False, get_renderable=self._display)
        self.history: list[tuple[int, Sequence[Score]]] = []

    def message(self, text: str) -> None:
        """Print a message above the display."""
        self.console.print(text)

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        """Update the displayed figures. Start the display at the first step."""
        self.note(trainer, report)
        self.losses.append(self.mean_loss or 0.0)
        if not self.live.is_started:
            self.live.start()

    def evaluated(self, trainer: Trainer, scores: Sequence[Score], samples: Sequence[Sample], best: bool) -> None:
        """Add the scores to the display. At the start and in the middle of training, print the samples above it."""
        self.history.append((trainer.state.step, scores))
        self._print_samples(self.due_samples(trainer, samples))

    def finished(self, trainer: Trainer) -> None:
        """Print the samples of the last evaluation, and stop the display. Its last state stays on the screen."""
        self._print_samples(self.newest_samples)
        if self.live.is_started:
            self.live.stop()
        self.trainer = None  # its model may be large

    def _print_samples(self, samples: Sequence[Sample]) -> None:
        for sample in samples:
            self.console.print(Text(sample_in_words(sample), style="cyan"))

    def _display(self) -> Group:
        """Return the current display: figures, progress bar, loss curve and the last six evaluations."""
        trainer = self.trainer
        if trainer is None:
            return Group()
        bar = ProgressBar(total=1.0, completed=trainer.budget.progress, width=40)
        table = Table(box=None, padding=(0, 2, 0, 0))
        for column in ["step", *[score.name for score in self.history[-1][1]]] if self.history else []:
            table.add_column(column, justify="right")
        for step, scores in self.history[-6:]:
            table.add_row(f"{step:,}", *[f"{score.value:.3f}" for score in scores])
        return Group(Text(self.line(trainer)), bar, Text(f"loss {sparkline(self.losses, 60)}"), table)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return the values as a row of bars, scaled from the lowest to the highest."""
    if not values:
        return ""
    step = max(1, len(values) // width)
    shown = values[::step][-width:]
    low, high = min(shown), max(shown)
    return "".join(SPARKS[round((value - low) / (high - low) * 7) if high > low else 0] for value in shown)


def clock(seconds: float) -> str:
    """Format seconds as 1:02:03, or as 02:03 below an hour."""
    minutes, second = divmod(int(min(seconds, 1e8)), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute:02}:{second:02}"


def scores_in_words(scores: Sequence[Score]) -> str:
    """Return the names and values of scores on one line."""
    return ", ".join(f"{score.name} {score.value:.4g}" for score in scores)


def sample_in_words(sample: Sample) -> str:
    """Return a sample as indented lines: prompt, completion, and the reference if there is one."""
    prompt = sample.prompt.strip()[:SHOWN]
    lines = [f"  > {prompt}"] if prompt else []
    lines += [f"  {line}" for line in sample.completion.strip("\n")[:SHOWN].split("\n")]
    return "\n".join(lines + ([f"  (reference: {sample.reference[:SHOWN]})"] if sample.reference else []))
