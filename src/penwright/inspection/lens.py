"""The logit lens (nostalgebraist 2020): the predictions that a model would make if it stopped after each layer.

This is softmax(output(norm(h_l))), where h_0 is the embedding and h_l is the output of block l. `norm` is the final
norm of a pre-norm model. It does nothing in a post-norm model, since block outputs are already normalized. The last row
is the model's own prediction. Early layers may use a different representation from the last one, so their predictions
can mislead; Belrose et al. (2023) train an affine map for each layer instead. For a translator, the lens reads the
decoder; for a classifier, it predicts labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from penwright.inspection.forward_pass import ForwardPass, last_stack, ranks, residual_stream, scores, top_predictions
from penwright.inspection.tokens import Token
from penwright.model import Model, evaluating
from penwright.model.transformer import EncoderOnly


@dataclass(frozen=True)
class Lens:
    """The most likely outcomes after the embedding and after each layer, at each position.

    Positions are the target tokens of a language model or translator; a classifier has one position. The true token is
    the next token of the text. The end of the text has no true token: the probability is NaN, and the rank is 0. Ranks
    count from 1.
    """

    tokens: tuple[Token, ...]  # the input token at each position; empty for a classifier
    top_tokens: list[object]  # [n_layers + 1][places][k], most likely first: readable tokens, or labels
    top_probabilities: Float64[np.ndarray, "n_layers_and_one places k"]
    true_probabilities: Float64[np.ndarray, "n_layers_and_one places"]
    true_ranks: Int[np.ndarray, "n_layers_and_one places"]


@torch.inference_mode()
def logit_lens(model: Model, reading: ForwardPass, names: Sequence[str], k: int = 5) -> Lens:
    """Compute the logit lens; `names` has the names of all outcomes: the vocabulary, or the labels."""
    with evaluating(model):
        stream = residual_stream(model, lambda: scores(model, reading))
        log_probs = torch.stack([read_out(model, hidden)[0] for hidden in stream]).double().log_softmax(-1)
    answers = torch.tensor(reading.answer_ids, device=log_probs.device)
    known = log_probs[:, : len(answers)]
    index = answers.expand(known.shape[:2])
    shape = log_probs.shape[:2]
    probabilities, places = np.full(shape, np.nan), np.zeros(shape, dtype=np.int64)
    if len(answers):
        probabilities[:, : len(answers)] = known.gather(-1, index[..., None])[..., 0].exp().cpu().numpy()
        places[:, : len(answers)] = ranks(known, index)
    top = top_predictions(log_probs.exp(), names, k)
    return Lens(reading.target, top.texts, top.probabilities, probabilities, places)


def read_out(model: Model, hidden: Float[Tensor, "rows length d_model"]) -> Float[Tensor, "rows places outcomes"]:
    """Return the logits that the model would compute from this residual stream."""
    normed = last_stack(model).norm(hidden)
    if isinstance(model, EncoderOnly):
        return model.label_logits(normed, torch.ones_like(normed[..., 0], dtype=torch.bool))[:, None]
    return model.output(normed)
