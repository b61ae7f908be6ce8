"""Learning-rate schedules: each a frozen object whose factor(step, total) scales the peak rate."""

from abc import abstractmethod
from math import ceil, cos, inf, pi, sqrt
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt

from penwright.config.settings import Settings

Fraction = Annotated[float, Field(ge=0, le=1)]


class Turn(NamedTuple):
    """Where the end of a run was moved last: from there progress goes in a straight line to the new end."""

    step: int = 0
    progress: float = 0.0  # at that step


NEVER = Turn()


class _Warmup(Settings):
    """Linear warm-up over the first steps, which all schedules share."""

    settles_at: ClassVar[float] = 0.1  # the part of a budget in minutes after which the total must be known
    warmup_steps: NonNegativeInt = 0

    def factor(self, step: int, total_steps: int | None, turn: Turn = NEVER) -> float:
        """The factor in [0, 1] of the given step, counted from 0; a total of None is not known yet."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return self._after_warmup(self.progress(step, total_steps, turn), step)

    def progress(self, step: int, total_steps: int | None, turn: Turn = NEVER) -> float:
        """The part in [0, 1] of the way from the warm-up to the end."""
        since = max(turn.step, self.warmup_steps)
        length = max(1, total_steps - since) if total_steps is not None else inf
        return min(1.0, turn.progress + (1 - turn.progress) * max(0, step - since) / length)

    @abstractmethod
    def _after_warmup(self, progress: float, step: int) -> float:
        """The factor at this part of the steps after the warm-up."""


class InverseSquareRoot(_Warmup):
    """Falls as 1 / sqrt(step) after the warm-up, not below a floor (Vaswani et al. 2017, section 5.3)."""

    type: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup_steps: PositiveInt = 400
    final_fraction: Fraction = 0.0

    def _after_warmup(self, progress: float, step: int) -> float:
        return max(self.final_fraction, sqrt(self.warmup_steps / (step + 1)))


class Cosine(_Warmup):
    """Half a cosine wave down to final_fraction of the peak (Loshchilov and Hutter 2017)."""

    type: Literal["cosine"] = "cosine"
    final_fraction: Fraction = 0.1

    def _after_warmup(self, progress: float, step: int) -> float:
        return self.final_fraction + (1 - self.final_fraction) * (1 + cos(pi * progress)) / 2


class Linear(_Warmup):
    """A straight line down to final_fraction of the peak."""

    type: Literal["linear"] = "linear"
    final_fraction: Fraction = 0.0

    def _after_warmup(self, progress: float, step: int) -> float:
        return 1 - (1 - self.final_fraction) * progress


class WarmupStableDecay(_Warmup):
    """The peak for most of the run, then a straight cooldown (Hu et al. 2024, MiniCPM, section 4)."""

    type: Literal["wsd"] = "wsd"
    cooldown_fraction: Fraction = 0.5  # of the steps
    final_fraction: Fraction = 0.0

    def _after_warmup(self, progress: float, step: int) -> float:
        if self.cooldown_fraction == 0:
            return 1.0
        into_cooldown = max(0.0, (progress - (1 - self.cooldown_fraction)) / self.cooldown_fraction)
        return 1 - (1 - self.final_fraction) * into_cooldown

    def total_if_cooled_from(self, step: int) -> int:
        """The number of all steps with which the cooldown would begin at this one."""
        after_warmup = max(1, step - self.warmup_steps)
        return self.warmup_steps + ceil(after_warmup / (1 - self.cooldown_fraction))


class Constant(_Warmup):
    """The peak from the warm-up to the end."""

    type: Literal["constant"] = "constant"

    def _after_warmup(self, progress: float, step: int) -> float:
        return 1.0


Schedule = Annotated[InverseSquareRoot | Cosine | Linear | WarmupStableDecay | Constant, Field(discriminator="type")]
