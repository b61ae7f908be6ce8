"""What a model reads in one pass, and the pass itself, whichever of the three shapes the model has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from penwright.decoding.batches import diverged
from penwright.errors import UsageError
from penwright.inspection.tokens import Token
from penwright.model import Model
from penwright.model.block import Stack
from penwright.model.decoder_only import DecoderOnly
from penwright.model.embedding import Embedding
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.model.encoder_only import EncoderOnly

Side = Literal["source", "target"]  # of an encoder-decoder, whose two sides may have embeddings of their own
PartName = Literal["encoder", "decoder", "cross"]  # where attention is; cross: from the decoder to the encoder


@dataclass(frozen=True)
class ForwardPass:
    """The tokens that an encoder reads and those that a decoder does; a side that the model lacks is empty."""

    source: tuple[Token, ...]
    target: tuple[Token, ...]
    answers: tuple[Token, ...]  # what follows each target token, as far as the text goes

    @property
    def answer_ids(self) -> Int[np.ndarray, " answers"]:
        return np.array([token.id for token in self.answers], dtype=np.int64)

    def sides(self, part: PartName) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
        """Who looks in a part, and what is looked at."""
        return self.source if part == "encoder" else self.target, self.target if part == "decoder" else self.source

    def cut(self, longest: int) -> "ForwardPass":
        """The first tokens of each side: a pass over them gives what a pass over all of a text's beginning gives."""
        return ForwardPass(self.source[:longest], self.target[:longest], self.answers[:longest])


@dataclass(frozen=True)
class TopPredictions:
    """The k likeliest outcomes at each place, likeliest first."""

    ids: Int[np.ndarray, "*places k"]
    probabilities: Float[np.ndarray, "*places k"]
    texts: list[object]  # nested as the places are


def scores(model: Model, reading: ForwardPass, rows: int = 1) -> Float[Tensor, "rows positions outcomes"]:
    """The logits of what comes after each target token, or, at one position, of a text's labels; in float64.

    All rows read the same; they differ where somebody changes what an embedding gives.
    """
    with_source = _ids(model, reading.source, rows)
    if isinstance(model, DecoderOnly):
        logits = model(_ids(model, reading.target, rows))
    elif isinstance(model, EncoderDecoder):
        logits = model(with_source, _all_real(with_source), _ids(model, reading.target, rows))
    else:
        logits = model(with_source, _all_real(with_source))[:, None]
    if logits.isnan().any():
        raise diverged()
    return logits.double()


def _all_real(tokens: Int[Tensor, "rows length"]) -> Bool[Tensor, "rows length"]:
    """The padding of tokens none of which is padding."""
    return torch.ones_like(tokens, dtype=torch.bool)


def _ids(model: Model, tokens: Sequence[Token], rows: int) -> Int[Tensor, "rows length"]:
    device = next(model.parameters()).device
    return torch.tensor([[token.id for token in tokens]], dtype=torch.long, device=device).expand(rows, -1)


def embeddings(model: Model) -> dict[Side, Embedding]:
    """Of each side that the model reads."""
    match model:
        case EncoderDecoder():
            return {"source": model.source_embedding, "target": model.target_embedding}
        case EncoderOnly():
            return {"source": model.embedding}
        case DecoderOnly():
            return {"target": model.embedding}


def embedding_of(model: Model, side: Side | None = None) -> Embedding:
    """That of a side, or the first; raises UsageError for a side that the model has not."""
    sides = embeddings(model)
    if side is not None and side not in sides:
        raise UsageError(f"only a translator has a {side} beside its {next(iter(sides))}")
    return sides[next(iter(sides)) if side is None else side]


def last_stack(model: Model) -> Stack:
    """The stack whose output is read out as scores."""
    return model.encoder if isinstance(model, EncoderOnly) else model.decoder


def residual_stream(model: Model, run: Callable[[], object]) -> list[Float[Tensor, "rows positions d_model"]]:
    """What goes into the first block of the last stack while `run` runs, then what comes out of each."""
    kept: list[Tensor] = []
    blocks = last_stack(model).blocks
    hooks = [blocks[0].register_forward_pre_hook(lambda block, given: kept.append(given[0]))]
    hooks += [block.register_forward_hook(lambda block, given, out: kept.append(out)) for block in blocks]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return kept


def need_answers(model: Model) -> None:
    """Raises UsageError for a model that predicts no tokens."""
    if isinstance(model, EncoderOnly):
        raise UsageError("a classifier predicts a label and no tokens, so tokens have no probabilities in it")


def likeliest(probabilities: Float[Tensor, "*places outcomes"], names: Sequence[str], k: int) -> TopPredictions:
    """Ties go to the lower id; `names` are those of all outcomes."""
    order = probabilities.argsort(dim=-1, descending=True, stable=True)[..., : max(1, k)]
    ids = order.cpu().numpy()
    texts = np.array(names, dtype=object)[ids].tolist()  # objects: NumPy's own strings lose a NUL at the end
    return TopPredictions(ids, probabilities.gather(-1, order).cpu().numpy(), texts)


def ranks(log_probs: Float[Tensor, "*places outcomes"], answers: Int[Tensor, "*places"]) -> Int[np.ndarray, "*places"]:
    """How many outcomes are as likely as the answer or likelier, itself included, of equals only those before it."""
    own = log_probs.gather(-1, answers[..., None])
    earlier = torch.arange(log_probs.shape[-1], device=log_probs.device) < answers[..., None]
    ahead = (log_probs > own) | ((log_probs == own) & earlier)
    ranks: Int[np.ndarray, "*places"] = ahead.sum(-1).add(1).cpu().numpy()
    return ranks
