"""Token and position vectors: nearest neighbours, a two-dimensional map, and the similarity of positions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int

from penwright.errors import UsageError
from penwright.inspection.forward_pass import Side, embedding_of, special_ids, vocabulary
from penwright.model import Model
from penwright.model.embedding import Embedding, Learned, Rotary, rotary_positions
from penwright.tokenizers import Tokenizer


@dataclass(frozen=True)
class Neighbours:
    """The tokens whose vectors have the largest cosine with a word's vector, nearest first."""

    word: str
    pieces: tuple[str, ...]  # tokens of the word; the word's vector is the mean of the token vectors
    ids: Int[np.ndarray, " k"]
    texts: tuple[str, ...]
    cosines: Float64[np.ndarray, " k"]


@dataclass(frozen=True)
class EmbeddingMap:
    """Tokens as points in the plane in which their vectors vary most."""

    ids: Int[np.ndarray, " n"]
    texts: tuple[str, ...]
    xy: Float64[np.ndarray, "n 2"]
    explained: Float64[np.ndarray, "2"]  # share of the variance along each axis


def cosines(matrix: Float[np.ndarray, "n d_model"], vector: Float[np.ndarray, " d_model"]) -> Float64[np.ndarray, " n"]:
    """Return the cosine x . y / (|x| |y|) of each row with the vector; 0 if either vector is zero."""
    rows, other = matrix.astype(np.float64), vector.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(other)
    return np.divide(rows @ other, lengths, out=np.zeros(len(rows)), where=lengths > 0)


def nearest(
    matrix: Float[np.ndarray, "n d_model"], vector: Float[np.ndarray, " d_model"], k: int, left_out: Sequence[int] = ()
) -> tuple[Int[np.ndarray, " k"], Float64[np.ndarray, " k"]]:
    """Return the k rows with the largest cosine with the vector, and the cosines; skip the rows in `left_out`."""
    close = cosines(matrix, vector)
    close[list(left_out)] = -np.inf
    order = np.argsort(-close, kind="stable")[: max(0, min(k, len(close) - len(set(left_out))))]
    return order, close[order]


def plane(matrix: Float[np.ndarray, "n d_model"]) -> tuple[Float64[np.ndarray, "n 2"], Float64[np.ndarray, "2"]]:
    """Return coordinates in the first two principal components (Pearson 1901), and their shares of the variance.

    Each axis points in the direction that makes its largest coefficient positive, so a model always gives the same map.
    """
    centered = matrix.astype(np.float64) - matrix.mean(0)
    variances, axes = np.linalg.eigh(centered.T @ centered)
    axes = axes[:, :-3:-1]
    axes = axes * np.sign(axes[abs(axes).argmax(0), range(axes.shape[1])])
    xy, share = np.zeros((len(matrix), 2)), np.zeros(2)
    xy[:, : axes.shape[1]] = centered @ axes
    total = variances.clip(0).sum()
    share[: axes.shape[1]] = variances[:-3:-1].clip(0) / total if total > 0 else 0.0
    return xy, share


def neighbours(
    model: Model, tokenizer: Tokenizer, word: str, k: int = 10, side: Side | None = None, token: int | None = None
) -> Neighbours:
    """Return the tokens nearest to a word. If several tokens have this text, `token` is the id of the right one.

    The word is tokenized with a leading space if this yields a single token; otherwise, without one.
    """
    table, words = _table(model, side), vocabulary(tokenizer)
    is_known = token is not None and words[token : token + 1] == [word]
    ids = [token] if token is not None and is_known else _ids_of(tokenizer, word, side)
    nearest_ids, similarities = nearest(table, table[ids].mean(0), k, [*ids, *special_ids(tokenizer)])
    return Neighbours(
        word,
        tuple(words[token] for token in ids),
        nearest_ids,
        tuple(words[token] for token in nearest_ids),
        similarities,
    )


def embedding_map(
    model: Model, tokenizer: Tokenizer, chosen: Sequence[str] | None = None, n: int = 500, side: Side | None = None
) -> EmbeddingMap:
    """Project the chosen words, or the first `n` tokens, onto the first two principal components of their vectors."""
    words, specials = vocabulary(tokenizer), set(special_ids(tokenizer))
    if chosen is None:
        groups = [[token] for token in range(len(words)) if token not in specials][:n]
    else:
        groups = [_ids_of(tokenizer, word, side) for word in chosen]
    if not groups:
        raise UsageError("a map needs at least one word. Name a word")
    table = _table(model, side)
    xy, explained = plane(np.stack([table[ids].mean(0) for ids in groups]))
    texts = tuple("".join(words[token] for token in ids) for ids in groups)
    return EmbeddingMap(np.array([ids[0] for ids in groups]), texts, xy, explained)


def _ids_of(tokenizer: Tokenizer, word: str, side: Side | None) -> list[int]:
    if not word:
        raise UsageError("the word is empty. Name a word")
    tokenizer = tokenizer.target if side == "target" else tokenizer
    inside, ids = tokenizer.encode(f" {word}"), tokenizer.encode(word)
    if not ids:
        raise UsageError(f"{word!r} has no tokens: the tokenizer removes these characters. Name another word")
    return inside if len(inside) == 1 else ids


def _table(model: Model, side: Side | None) -> Float[np.ndarray, "vocab d_model"]:
    weight = embedding_of(model, side).tokens.weight
    table: np.ndarray = weight.detach().to(torch.float32).cpu().numpy()
    return table


@dataclass(frozen=True)
class PositionalSimilarity:
    """The vector of each position, and the cosine between any two.

    Sinusoidal and learned vectors are added to embeddings. Rotary positions instead rotate each pair of numbers of a
    query or key by an angle that grows with the position. A rotary position's vector holds the points (cos, sin) of all
    pairs, the slowest pair last. The cosine between two positions is then the mean of cos(angle) over the pairs: the
    score of a query and a key that are equal before the rotation (Su et al. 2021, section 3.4.3).
    """

    kind: Literal["sinusoidal", "learned", "rotary", "none"]
    encodings: Float64[np.ndarray, "positions width"]
    frequencies: Float64[np.ndarray, " pairs"] | None  # in radians per position; None for learned positions
    similarity: Float64[np.ndarray, "positions positions"]


def positional_similarity(
    model: Model, n_positions: int | None = None, side: Side | None = None
) -> PositionalSimilarity:
    """Compare the first `n_positions` positions, by default the whole context.

    `side` selects the embedding of a translator's source (the default) or target; each has its own learned positions.
    Raises UsageError for a model without position encodings.
    """
    settings = model.settings
    n_positions = settings.context_length if n_positions is None else n_positions
    if settings.positions.type == "learned":
        n_positions = min(n_positions, settings.context_length)
    if settings.positions.type == "none":
        raise UsageError("this model has no position encodings: it knows the order of tokens only from its causal mask")
    rope, embedding = rotary_positions(settings), embedding_of(model, side)
    encodings = _added(embedding, n_positions) if rope is None else _circles(rope, n_positions)
    waves = embedding.positions if rope is None else rope
    frequencies = None if isinstance(waves, Learned) or waves is None else waves.frequencies.cpu().double().numpy()
    lengths = np.linalg.norm(encodings, axis=1, keepdims=True)
    unit = encodings / np.where(lengths > 0, lengths, 1)
    return PositionalSimilarity(settings.positions.type, encodings, frequencies, unit @ unit.T)


@torch.inference_mode()
def _added(embedding: Embedding, n_positions: int) -> Float64[np.ndarray, "positions width"]:
    assert embedding.positions is not None
    places = torch.arange(n_positions, device=embedding.tokens.weight.device)[None]
    encodings: Float64[np.ndarray, "positions width"] = embedding.positions(places)[0].cpu().double().numpy()
    return encodings


def _circles(rotary: Rotary, n_positions: int) -> Float64[np.ndarray, "positions width"]:
    rotation = rotary(torch.arange(n_positions)[None])
    points = torch.stack([rotation.cosines[0, 0], rotation.sines[0, 0]], -1).flatten(-2)
    encodings: Float64[np.ndarray, "positions width"] = points.double().numpy()
    return encodings
