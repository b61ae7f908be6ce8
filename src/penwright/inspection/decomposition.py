"""The residual stream as a sum: what the tokens, positions, heads and feed-forward networks each contribute to it.

In a pre-norm model, each sublayer adds its output to the stream, so the stream is the sum of all outputs (Elhage et al.
2021). A norm is a linear map once its statistics are fixed; here, they are fixed to those of the text. The stream of a
post-norm model is then also a sum, and so is the input of the output layer.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from penwright.errors import UsageError
from penwright.inspection.recording import StackRecord, SublayerRecord

BIASES, TOKENS, POSITIONS = range(3)  # indices of the contributions with which every stack begins
MOST_NUMBERS = 250_000_000  # maximum number of values in the contributions' vectors (1 GB in float32)


class Contributions(NamedTuple):
    """The vectors that add up to the residual stream, and the source of each.

    Names are for example "decoder.3.2" (a head), "decoder.3.feed_forward", "decoder.tokens", "decoder.positions" and
    "decoder.biases". The biases are those of norms and of attention outputs.
    """

    names: list[str]
    vectors: Float[Tensor, "contributions positions d_model"]


def walk(stack: StackRecord, at: Sequence[int] | None = None) -> Iterator[tuple[SublayerRecord | None, Contributions]]:
    """Yield each sublayer with the contributions to the residual stream before it, then None with all contributions.

    The vectors are overwritten when the iteration continues. `at` selects positions; the default is all.
    """
    places = torch.arange(len(stack.embedded)) if at is None else torch.tensor(at)
    n_heads = sum(len(each.heads.outputs) if each.kind == "attention" else 1 for each in stack.sublayers)
    size = (3 + n_heads, len(places), stack.embedded.shape[1])
    if size[0] * size[1] * size[2] > MOST_NUMBERS:
        longest = MOST_NUMBERS // (size[0] * size[2])
        raise UsageError(f"the text has {size[1]} tokens, too many for this model. Use at most {longest} tokens")
    names = [f"{stack.name}.{each}" for each in ("biases", "tokens", "positions")]
    vectors = stack.embedded.new_zeros(size)
    whole = stack.token_vectors if stack.embedding.positions is None else _before_norm(stack)
    vectors[TOKENS] = stack.token_vectors[places]
    vectors[POSITIONS] = (whole - stack.token_vectors)[places]
    _normalize(stack.embedding.norm, whole[places], vectors)
    for each in stack.sublayers:
        yield each, Contributions(names, vectors[: len(names)])
        n = len(names)
        if each.kind == "attention":
            names = [*names, *(f"{each.part}.{each.layer}.{head}" for head in range(len(each.heads.outputs)))]
            vectors[n : len(names)] = each.head_outputs()[:, places]
        else:
            names = [*names, f"{each.part}.{each.layer}.feed_forward"]
            vectors[n] = each.output[places]
        vectors[BIASES] += each.output[places] - vectors[n : len(names)].sum(0)
        if not each.residual.norm_first:
            _normalize(each.residual.norm, (each.before + each.output)[places], vectors[: len(names)])
    yield None, Contributions(names, vectors)


def apply_final_norm(stack: StackRecord, contributions: Contributions, at: Sequence[int] | None = None) -> None:
    """Apply the stack's final norm to the contributions in place."""
    _normalize(stack.stack.norm, stack.output if at is None else stack.output[list(at)], contributions.vectors)


def _before_norm(stack: StackRecord) -> Float[Tensor, "positions d_model"]:
    """Return the token vectors plus the position vectors."""
    assert stack.embedding.positions is not None
    n = torch.arange(len(stack.token_vectors), device=stack.token_vectors.device)[None]
    with torch.no_grad():
        return stack.token_vectors + stack.embedding.positions(n)[0].to(stack.token_vectors.dtype)


def _normalize(
    norm: nn.Module, stream: Float[Tensor, "positions d_model"], vectors: Float[Tensor, "_ positions d_model"]
) -> None:
    """Apply a norm to each vector in place, with the statistics of `stream`, the sum of the vectors."""
    if isinstance(norm, nn.Identity):
        return
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    if isinstance(norm, nn.LayerNorm):
        vectors -= vectors.mean(-1, keepdim=True)
        stream = stream - stream.mean(-1, keepdim=True)
    eps = torch.finfo(stream.dtype).eps if norm.eps is None else norm.eps
    vectors *= (stream.square().mean(-1, keepdim=True) + eps).rsqrt() * norm.weight.detach().to(stream.dtype)
    if isinstance(norm, nn.LayerNorm) and norm.bias is not None:
        vectors[BIASES] += norm.bias.detach()
