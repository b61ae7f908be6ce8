"""How beams go on by a simple rule, inside of what is compiled, which takes several steps before Python is asked."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from penwright.decoding.sampling.topk import MaskedTopK
from penwright.decoding.sampling.utf8 import States, Utf8Rules


class BeamStep(NamedTuple):
    """How the beams of a source went on, best first."""

    log_probs: Float[np.ndarray, " beams"]  # in nats, of all tokens so far
    tokens: Int[np.ndarray, " beams"]
    parents: Int[np.ndarray, " beams"]  # the beam before, from which each goes on


class BeamRule(NamedTuple):
    """How the beams of a source go on, if nothing but their spelling says which tokens may come."""

    spelling: Utf8Rules
    states: States  # of the beams
    n_left: int  # tokens that may come after the next one
    log_probs: Float[np.ndarray, " beams"]  # -inf where there is no such beam
    end_id: int

    def tensors(self, n_steps: int) -> list[Tensor]:
        """What so many steps depend on, as parts.Beams takes it."""
        n_left = torch.arange(self.n_left, self.n_left - n_steps, -1)
        spelled = [self.spelling.bits, self.spelling.states_after, torch.from_numpy(self.states.astype(np.int64))]
        return [*spelled, n_left, torch.from_numpy(self.log_probs), torch.tensor([self.end_id])]


def best_continuations(
    log_probs: Float[Tensor, " beams"], best: MaskedTopK
) -> tuple[Float[Tensor, " beams"], Int[Tensor, " beams"], Int[Tensor, " beams"]]:
    """The best of what comes after the beams of one source, as many as they are: a BeamStep, as tensors."""
    candidates = (best.values.double() + (log_probs - best.normalisers.double())[:, None]).flatten()
    in_order = torch.sort(-candidates, stable=True).indices  # of equal ones the first comes first, as in beam.py
    places = in_order[: log_probs.shape[0]]
    return candidates[places], best.places.flatten()[places], places // best.values.shape[1]
