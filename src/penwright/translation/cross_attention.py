"""The cross-attention of all decoder heads, recorded while given translations are read."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float

from penwright.decoding.batches import batches_by_length, evaluating, right_padded
from penwright.model.attention_recording import record_attention
from penwright.model.encoder_decoder import EncoderDecoder
from penwright.tokenizers import Tokenizer

BATCH_TOKENS = 2048
Maps = Float[np.ndarray, "layers heads steps sources"]


class TokenPair(NamedTuple):
    """A source and a target, both without start and end tokens."""

    source: Sequence[int]
    target: Sequence[int]


@torch.inference_mode()
def cross_attention(model: EncoderDecoder, tokenizer: Tokenizer, pairs: Sequence[TokenPair]) -> list[Maps]:
    """Return the cross-attention of each pair, with a row for the start token and for each target token.

    The end token of the source is left out.
    """
    found: dict[int, Maps] = {}
    before = (tokenizer.start_id, *tokenizer.target_prefix)
    first_row, first_column = len(before) - 1, tokenizer.n_before_source
    names = [f"blocks.{layer}.cross_attention" for layer in range(model.n_decoder_layers)]
    with evaluating(model) as device:
        for batch in batches_by_length([max(map(len, pair)) + 1 for pair in pairs], BATCH_TOKENS):
            sources = right_padded([tokenizer.source(pairs[number].source) for number in batch], device)
            targets = right_padded([[*before, *pairs[number].target] for number in batch], device)
            with record_attention(model.decoder) as maps:
                model(*sources, targets.tokens)
            layers = torch.stack([maps[name][0] for name in names]).float().cpu().numpy()
            for place, number in enumerate(batch):
                source, target = pairs[number]
                maps_of_pair = layers[:, place, :, first_row:, first_column:]
                found[number] = maps_of_pair[:, :, : len(target) + 1, : len(source)]
    return [found[number] for number in range(len(pairs))]


def coverage(maps: Maps) -> float:
    """Return the coverage of the source in nats: 0 if each source token receives a total attention of at least 1.

    This is the sum over source tokens of log(min(1, attention received)) (Wu et al. 2016, equation 14). The attention
    is the mean of all heads.
    """
    received = maps.mean((0, 1)).sum(0)
    return float(np.log(np.clip(received, 1e-6, 1.0)).sum())
