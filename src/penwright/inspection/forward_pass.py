"""Tokens in readable form, and the forward pass on them, for every architecture."""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from penwright.decoding.batches import diverged
from penwright.devices import to_float64
from penwright.errors import UsageError
from penwright.model import Model, evaluating
from penwright.model.block import Stack
from penwright.model.embedding import Embedding
from penwright.model.transformer import DecoderOnly, EncoderDecoder, EncoderOnly
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed

Side = Literal["source", "target"]  # the sides of an encoder-decoder; each may have its own embedding
# parts of a model that contain attention; "cross" attends from the decoder to the encoder
PartName = Literal["encoder", "decoder", "cross"]
_AS_BYTES = "penwright.as_bytes"
STEP_ROWS = 32  # number of positions whose logits are computed at a time


@dataclass(frozen=True)
class Token:
    """A token and the characters that it covers in whole or in part: from `start` up to, but not including, `end`."""

    text: str  # its text, the name of a special token, or the bytes of an incomplete character, like ⟨c3⟩
    id: int
    start: int
    end: int


def tokens_of(tokenizer: Tokenizer, text: str) -> tuple[Token, ...]:
    """Return the tokens of a text without special tokens; several tokens may cover the same character.

    Offsets refer to the text that the tokenizer receives, in which an unpaired surrogate becomes U+FFFD.
    """
    ids, text = tokenizer.encode(text), well_formed(text)
    character_of_byte = np.repeat(np.arange(len(text)), [len(character.encode()) for character in text])
    tokens: list[Token] = []
    end = 0
    for token, size in zip(ids, tokenizer.sizes(text), strict=True):
        start, end = end, end + size
        at = tokens[-1].end if tokens else 0  # a token without bytes of its own is a part of the character before it
        place = (int(character_of_byte[start]), int(character_of_byte[end - 1]) + 1) if size else (max(0, at - 1), at)
        tokens.append(Token(readable(tokenizer, token), token, *place))
    return tuple(tokens)


def special_token(tokenizer: Tokenizer, token: int, place: int) -> Token:
    """Return a Token for a special token, which covers no characters of the text."""
    return Token(readable(tokenizer, token), token, place, place)


def readable(tokenizer: Tokenizer, token: int) -> str:
    """Return a token in readable form: its text, the name of a special token, or bytes like ⟨c3⟩."""
    piece = tokenizer.token_bytes(token)
    if not piece or token == tokenizer.unknown_id:
        return tokenizer.token_text(token)
    return with_bytes(piece)


def spelling(tokenizer: Tokenizer, tokens: Sequence[Token]) -> list[bytes]:
    """Return the bytes of each token of a text, without the space that some tokenizers put before the text."""
    pieces = [tokenizer.token_bytes(token.id) for token in tokens]
    return [pieces[0].removeprefix(b" "), *pieces[1:]] if pieces and tokenizer.prefix_space else pieces


def with_bytes(text: bytes) -> str:
    """Decode a text; the bytes of incomplete characters are written like ⟨c3⟩."""
    return text.decode("utf-8", errors=_AS_BYTES)


def vocabulary(tokenizer: Tokenizer) -> list[str]:
    """Return the readable form of every token, by id."""
    return [readable(tokenizer, token) for token in range(tokenizer.vocab_size)]


def special_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids of the tokens that have no text."""
    return [token for token in range(tokenizer.vocab_size) if not tokenizer.token_bytes(token)]


def _as_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"⟨{byte:02x}⟩" for byte in error.object[error.start : error.end]), error.end


codecs.register_error(_AS_BYTES, _as_bytes)


@dataclass(frozen=True)
class ForwardPass:
    """The input tokens of an encoder (`source`) and of a decoder (`target`). A side that the model lacks is empty."""

    source: tuple[Token, ...]
    target: tuple[Token, ...]
    answers: tuple[Token, ...]  # the next token at each target position, up to the end of the text

    @property
    def answer_ids(self) -> Int[np.ndarray, " answers"]:
        """The ids of the tokens to predict."""
        return np.array([token.id for token in self.answers], dtype=np.int64)

    @property
    def n_outputs(self) -> int:
        """The number of positions that have an output: one for the text of a classifier."""
        return len(self.target) or 1

    def position(self, given: int | None) -> int:
        """Return the given position. If it is None, return the last for a language model, otherwise the first."""
        if given is not None:
            return given
        return 0 if self.source else len(self.target) - 1

    def sides(self, part: PartName) -> tuple[tuple[Token, ...], tuple[Token, ...]]:
        """Return the tokens that attend in this part of the model, and the tokens that they attend to."""
        return self.source if part == "encoder" else self.target, self.target if part == "decoder" else self.source

    def cut(self, longest: int) -> "ForwardPass":
        """Return a forward pass with only the first `longest` tokens of each side."""
        return ForwardPass(self.source[:longest], self.target[:longest], self.answers[:longest])


@dataclass(frozen=True)
class TopPredictions:
    """The k most likely outcomes at each position, most likely first."""

    ids: Int[np.ndarray, "*places k"]
    probabilities: Float[np.ndarray, "*places k"]
    texts: list[object]  # names of the outcomes, nested like `ids`


def hidden_states(model: Model, reading: ForwardPass, rows: int = 1) -> Float[Tensor, "rows positions d_model"]:
    """Return the inputs of the output layer after each target token; a classifier's text counts as one position.

    The batch has `rows` copies of the same tokens. They differ only if the caller changes activations.
    """
    with_source = _ids(model, reading.source, rows)
    match model:
        case DecoderOnly():
            return model.hidden(_ids(model, reading.target, rows))
        case EncoderDecoder():
            encoded = model.encode(with_source, _all_tokens(with_source))
            return model.hidden(_ids(model, reading.target, rows), encoded)
        case EncoderOnly():
            is_token = _all_tokens(with_source)
            return model.pool(model.hidden(with_source, is_token), is_token)[:, None]


def logits_of(model: Model, hidden: Float[Tensor, "*positions d_model"]) -> Float[Tensor, "*positions outcomes"]:
    """Return the float64 logits that the output layer computes from hidden states.

    Those of a balanced classifier are adjusted to equally frequent labels, as in `Classifier.balance`.
    """
    logits = model.output(hidden)
    if isinstance(model, EncoderOnly) and model.settings.balanced:
        logits = logits - model.log_prior
    if logits.isnan().any():
        raise diverged()
    return to_float64(logits)


def scores(model: Model, reading: ForwardPass, position: int, rows: int = 1) -> Float[Tensor, "rows outcomes"]:
    """Return the float64 logits at one position; a classifier has only position 0."""
    return logits_of(model, hidden_states(model, reading, rows)[:, [position]])[:, 0]


def log_probs_in_steps(
    model: Model, reading: ForwardPass, first: int = 0
) -> Iterator[Float[Tensor, "positions outcomes"]]:
    """Yield the log-probabilities of all outcomes at consecutive positions, from position `first` on.

    Each step has at most STEP_ROWS positions, since all positions of a long text may not fit in memory.
    """
    with evaluating(model), torch.inference_mode():
        hidden = hidden_states(model, reading)[:, first:]
    for part in hidden.split(STEP_ROWS, dim=1):
        with evaluating(model), torch.inference_mode():
            log_probs = logits_of(model, part)[0].log_softmax(-1)
        yield log_probs


def _all_tokens(tokens: Int[Tensor, "rows length"]) -> Bool[Tensor, "rows length"]:
    """Return the mask `is_token` of a batch without padding."""
    return torch.ones_like(tokens, dtype=torch.bool)


def _ids(model: Model, tokens: Sequence[Token], rows: int) -> Int[Tensor, "rows length"]:
    device = next(model.parameters()).device
    return torch.tensor([[token.id for token in tokens]], dtype=torch.long, device=device).expand(rows, -1)


def embeddings(model: Model) -> dict[Side, Embedding]:
    """Return the embedding of each side (source or target) that the model has."""
    match model:
        case EncoderDecoder():
            return {"source": model.source_embedding, "target": model.target_embedding}
        case EncoderOnly():
            return {"source": model.embedding}
        case DecoderOnly():
            return {"target": model.embedding}


def embedding_of(model: Model, side: Side | None = None) -> Embedding:
    """Return the embedding of one side; by default, of the source, or of the target if the model has no source.

    Raises UsageError if the model does not have the requested side.
    """
    sides = embeddings(model)
    if side is not None and side not in sides:
        raise UsageError(f"only a translator has a {side}; this model has only a {next(iter(sides))}")
    return sides[next(iter(sides)) if side is None else side]


def last_stack(model: Model) -> Stack:
    """Return the stack whose output becomes the logits."""
    return model.encoder if isinstance(model, EncoderOnly) else model.decoder


def residual_stream(model: Model, run: Callable[[], object]) -> list[Float[Tensor, "rows positions d_model"]]:
    """Call `run` and return the residual stream that leads to the logits: the first input, and each block's output."""
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


def require_position(position: int, length: int) -> None:
    """Raise UsageError if the position is not in a text of this length."""
    if not 0 <= position < length:
        raise UsageError(f"there is no position {position}: positions are 0 to {length - 1}")


def require_token_model(model: Model) -> None:
    """Raise UsageError for a model that does not predict tokens."""
    if isinstance(model, EncoderOnly):
        raise UsageError("a classifier predicts a label, not tokens, so its tokens have no probabilities")


def top_predictions(probabilities: Float[Tensor, "*places outcomes"], names: Sequence[str], k: int) -> TopPredictions:
    """Return the k most likely outcomes; ties go to the lower id. `names` has the names of all outcomes."""
    order = probabilities.argsort(dim=-1, descending=True, stable=True)[..., : max(1, k)]
    ids = order.cpu().numpy()
    # an object array, since NumPy's string arrays drop trailing NULs
    texts = np.array(names, dtype=object)[ids].tolist()
    return TopPredictions(ids, probabilities.gather(-1, order).cpu().numpy(), texts)


def joined_predictions(parts: Sequence[TopPredictions]) -> TopPredictions:
    """Concatenate the predictions at consecutive positions."""
    return TopPredictions(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.probabilities for part in parts]),
        [text for part in parts for text in part.texts],
    )


def ranks(log_probs: Float[Tensor, "*places outcomes"], answers: Int[Tensor, "*places"]) -> Int[np.ndarray, "*places"]:
    """Return the rank of each true token, counted from 1; ties go to the lower id."""
    own = log_probs.gather(-1, answers[..., None])
    earlier = torch.arange(log_probs.shape[-1], device=log_probs.device) < answers[..., None]
    ahead = (log_probs > own) | ((log_probs == own) & earlier)
    ranks: Int[np.ndarray, "*places"] = ahead.sum(-1).add(1).cpu().numpy()
    return ranks
