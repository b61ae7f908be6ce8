"""What a classifier would say of a text without each of its tokens: attribution by nothing but asking again.

Li et al. 2016, "Understanding neural networks through representation erasure".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from penwright.decoding.batches import diverged, evaluating
from penwright.inspection.forward_pass import ForwardPass
from penwright.inspection.tokens import Token
from penwright.model.encoder_only import EncoderOnly

ROWS = 32  # texts that go through the model at once


@dataclass(frozen=True)
class LeavingOut:
    """By how much each token raises (or lowers) a label's log-probability, in nats: with it less without it."""

    target: str  # the label
    log_prob: float  # with all tokens
    tokens: tuple[Token, ...]
    values: Float64[np.ndarray, " tokens"]  # 0 for special tokens, which cannot be left out


def leaving_out(model: EncoderOnly, reading: ForwardPass, label: int, name: str) -> LeavingOut:
    """A text for each token, all of one length."""
    ids = [token.id for token in reading.source]
    places = [place for place, token in enumerate(reading.source) if token.start < token.end]
    values = np.zeros(len(ids))
    with evaluating(model), torch.inference_mode():
        whole = _log_probs(model, [ids])[0, label]
        for some in (places[start : start + ROWS] for start in range(0, len(places), ROWS)):
            without = [ids[:place] + ids[place + 1 :] for place in some]
            values[some] = (whole - _log_probs(model, without)[:, label]).cpu().numpy()
    return LeavingOut(name, float(whole), reading.source, values)


def _log_probs(model: EncoderOnly, texts: Sequence[Sequence[int]]) -> Float[Tensor, "texts labels"]:
    tokens = torch.tensor(texts, device=next(model.parameters()).device)
    found = model(tokens, torch.ones_like(tokens, dtype=torch.bool)).double().log_softmax(-1)
    if found.isnan().any():
        raise diverged()
    return found
