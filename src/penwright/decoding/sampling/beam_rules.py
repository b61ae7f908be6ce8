"""A simple rule for extending beams, by which compiled code takes several steps in one call."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from penwright.decoding.sampling.topk import MaskedTopK
from penwright.decoding.sampling.utf8 import States, Utf8Rules


class BeamStep(NamedTuple):
    """One search step of the beams of a source, best first."""

    log_probs: Float[np.ndarray, " beams"]  # cumulative, in nats
    tokens: Int[np.ndarray, " beams"]
    parents: Int[np.ndarray, " beams"]  # the previous beam that each extends


class BeamRule(NamedTuple):
    """A rule for extending the beams of a source when only UTF-8 validity limits their tokens."""

    spelling: Utf8Rules
    states: States  # of the beams
    n_left: int  # tokens that may come after the next one
    log_probs: Float[np.ndarray, " beams"]  # in nats; -inf: no such beam
    end_id: int

    def tensors(self, n_steps: int) -> list[Tensor]:
        """Return the rule for `n_steps` steps, as MultiBeamStep takes it."""
        n_left = torch.arange(self.n_left, self.n_left - n_steps, -1)
        spelled = [self.spelling.bits, self.spelling.states_after, torch.from_numpy(self.states.astype(np.int64))]
        return [*spelled, n_left, torch.from_numpy(self.log_probs), torch.tensor([self.end_id])]


def best_continuations(
    log_probs: Float[Tensor, " beams"], best: MaskedTopK
) -> tuple[Float[Tensor, " beams"], Int[Tensor, " beams"], Int[Tensor, " beams"]]:
    """Return the best continuations of the beams of one source, one per beam, as the tensors of a BeamStep."""
    candidates = (best.values.double() + (log_probs - best.normalisers.double())[:, None]).flatten()
    in_order = torch.sort(-candidates, stable=True).indices  # ties stay in order, as in beam_search.py
    places = in_order[: log_probs.shape[0]]
    return candidates[places], best.places.flatten()[places], places // best.values.shape[1]
