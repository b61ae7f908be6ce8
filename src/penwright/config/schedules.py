"""Learning-rate schedules: frozen objects whose factor(step, total_steps) scales the peak learning rate."""

from abc import abstractmethod
from math import ceil, cos, inf, pi, sqrt
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt

from penwright.config.ranges import From0To1
from penwright.config.settings import Settings


class EndShift(NamedTuple):
    """The last step at which the planned end of a run changed, and the progress at that step.

    Afterwards, the progress is linear.
    """

    step: int = 0
    progress: float = 0.0  # progress at this step, from 0 to 1


NO_SHIFT = EndShift()


class _Warmup(Settings):
    """The base class of the schedules, with a linear warm-up over the first steps."""

    settles_at: ClassVar[float] = 0.1  # share of a time budget after which the number of steps must be known
    warmup_steps: NonNegativeInt = 0  # steps of linear warm-up

    def factor(self, step: int, total_steps: int | None, turn: EndShift = NO_SHIFT) -> float:
        """Return the learning rate at a step (from 0), relative to the peak; `total_steps` is None while unknown."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return self._after_warmup(self.progress(step, total_steps, turn), step)

    def progress(self, step: int, total_steps: int | None, turn: EndShift = NO_SHIFT) -> float:
        """Return the progress (0 to 1) from the end of the warm-up to the end of the run."""
        since = max(turn.step, self.warmup_steps)
        length = max(1, total_steps - since) if total_steps is not None else inf
        return min(1.0, turn.progress + (1 - turn.progress) * max(0, step - since) / length)

    @abstractmethod
    def _after_warmup(self, progress: float, step: int) -> float:
        """Return the learning rate after the warm-up, relative to the peak. The progress is from 0 to 1."""


class InverseSquareRoot(_Warmup):
    """Inverse-square-root decay after the warm-up, down to a floor (Vaswani et al. 2017, section 5.3)."""

    type: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup_steps: PositiveInt = 400  # steps of linear warm-up
    final_fraction: From0To1 = 0.0  # lowest learning rate, as a share of the peak

    def _after_warmup(self, progress: float, step: int) -> float:
        return max(self.final_fraction, sqrt(self.warmup_steps / (step + 1)))


class Cosine(_Warmup):
    """Cosine decay to final_fraction of the peak (Loshchilov and Hutter 2017)."""

    type: Literal["cosine"] = "cosine"
    final_fraction: From0To1 = 0.1  # final learning rate, as a share of the peak

    def _after_warmup(self, progress: float, step: int) -> float:
        return self.final_fraction + (1 - self.final_fraction) * (1 + cos(pi * progress)) / 2


class Linear(_Warmup):
    """Linear decay to final_fraction of the peak."""

    type: Literal["linear"] = "linear"
    final_fraction: From0To1 = 0.0  # final learning rate, as a share of the peak

    def _after_warmup(self, progress: float, step: int) -> float:
        return 1 - (1 - self.final_fraction) * progress


class WarmupStableDecay(_Warmup):
    """A constant learning rate, then a linear cooldown (warmup-stable-decay; Hu et al. 2024, MiniCPM, section 4)."""

    type: Literal["wsd"] = "wsd"
    cooldown_fraction: From0To1 = 0.5  # length of the cooldown, as a share of the steps after the warm-up
    final_fraction: From0To1 = 0.0  # final learning rate, as a share of the peak

    def _after_warmup(self, progress: float, step: int) -> float:
        if self.cooldown_fraction == 0:
            return 1.0
        into_cooldown = max(0.0, (progress - (1 - self.cooldown_fraction)) / self.cooldown_fraction)
        return 1 - (1 - self.final_fraction) * into_cooldown

    def total_if_cooled_from(self, step: int) -> int:
        """Return the total number of steps of a run whose cooldown begins at this step."""
        after_warmup = max(1, step - self.warmup_steps)
        return self.warmup_steps + ceil(after_warmup / (1 - self.cooldown_fraction))


class Constant(_Warmup):
    """A constant learning rate after the warm-up."""

    type: Literal["constant"] = "constant"

    def _after_warmup(self, progress: float, step: int) -> float:
        return 1.0


Schedule = Annotated[InverseSquareRoot | Cosine | Linear | WarmupStableDecay | Constant, Field(discriminator="type")]
