"""Batches of token sequences, grouped and padded, and an interface to the next-token logits of unfinished texts."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from penwright.decoding.engine import DecodeEngine
from penwright.decoding.exported import output_logits
from penwright.errors import PenwrightError
from penwright.model.attention import KeysValues
from penwright.model.cache import Cache, ContinuousCache
from penwright.model.transformer import DecoderOnly, EncoderDecoder

SHORTEST = 2  # minimum number of tokens per source; torch.export would specialize on a length of 1


@runtime_checkable
class Branching(Protocol):
    """A batch of unfinished texts whose rows can branch into beams.

    The beams of a source are adjacent, and are kept or dropped together.
    """

    def first(self) -> Float[Tensor, "rows vocab_size"]:
        """Return the logits of each row's first new token."""

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Append a token to each row; return the logits of the next tokens."""

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows, in this order; a row that is named twice is repeated."""

    def branch(self, n: int) -> None:
        """Turn each row into n adjacent copies."""

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Reorder beams: like select(), but each row is replaced by a row of the same source."""


def diverged() -> PenwrightError:
    """Return the error to raise when logits are NaN."""
    return PenwrightError("the model's scores are not numbers: its training diverged. Use an earlier checkpoint.")


def newest_half(context_length: int) -> int:
    """Return how many of the newest tokens stay in the context when a text exceeds context_length."""
    return context_length - context_length // 2


def in_view(prompt: Sequence[int], context_length: int) -> Sequence[int]:
    """Return the part of a prompt that the model sees: if the prompt is too long, its last newest_half() tokens."""
    return prompt if len(prompt) <= context_length else prompt[-newest_half(context_length) :]


class _DecoderRows:
    """Rows of a decoder-only model: the tokens in the context, their number in each row, and the cache.

    When a row exceeds context_length tokens, the newest half of them is processed again from position 0, and the older
    half is dropped. So positions never exceed those of training, and the text depends only on the row's tokens, not on
    the rest of the batch.
    """

    def __init__(
        self,
        model: DecoderOnly,
        engine: DecodeEngine,
        tokens: Int[Tensor, "rows capacity"],
        lengths: Int64[np.ndarray, " rows"],
        cache: Cache,
    ):
        self._model, self._engine = model, engine
        self._context = model.settings.context_length
        self._tokens, self._lengths, self._cache = tokens, lengths, cache  # lengths stay on the CPU to avoid GPU syncs

    @property
    def device(self) -> torch.device:
        """The device of the tokens."""
        return self._tokens.device

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Append a token to each row; return the logits of the next tokens."""
        if self._cache.longest == self._context:
            self._make_room()
        self._tokens.scatter_(1, self._cache.lengths[:, None], tokens[:, None])
        logits = self._engine(tokens, self._cache)
        self._lengths += 1
        return logits

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep only these rows."""
        self._tokens = self._tokens[rows]
        self._lengths = self._lengths[rows.cpu().numpy()]
        self._cache.select(rows)
        self._update_cache()

    def _make_room(self) -> None:
        """Shorten rows that fill the context: recompute only their newest tokens, to make room (newest_half())."""
        full, n_kept = np.flatnonzero(self._lengths == self._context), newest_half(self._context) - 1
        rows = torch.from_numpy(full).to(self._tokens.device)
        if n_kept and len(self._lengths) == 1 and self._engine.has_compiled_prefill(self._tokens.device):
            self._tokens[:, :n_kept] = self._tokens[:, self._context - n_kept :].clone()
            self._lengths[:] = 0
            self._update_cache()
            self._engine.prefill(self._tokens[0, :n_kept], self._cache)
        elif n_kept:
            kept = self._tokens[rows, self._context - n_kept :]
            reread = self._model.new_cache(len(full), n_kept)
            self._model.hidden(kept, cache=reread)
            self._tokens[rows, :n_kept] = kept
            for layer, new in zip(self._cache.layers, reread.layers, strict=True):
                layer.cached.keys[rows, :, :n_kept] = new.cached.keys
                layer.cached.values[rows, :, :n_kept] = new.cached.values
        self._lengths[full] = n_kept
        self._update_cache()

    def _update_cache(self) -> None:
        self._cache.lengths = torch.from_numpy(self._lengths).to(self._tokens.device, copy=True)
        self._cache.longest = int(self._lengths.max(initial=0))
        self._cache.ragged = bool((self._lengths != self._cache.longest).any())


class PromptBatch(_DecoderRows):
    """A batch of prompts that a decoder-only model continues."""

    def __init__(
        self,
        model: DecoderOnly,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        engine: DecodeEngine | None = None,
        known: Sequence[KeysValues] = (),
    ):
        """Make a batch of prompts of at least one token each; in_view() shortens those that do not fit.

        `known` holds the keys and values of a common prefix, one item per layer. The prefix is shorter than any prompt.
        """
        context = model.settings.context_length
        seen = [in_view(prompt, context) for prompt in prompts]
        lengths = np.array([len(tokens) for tokens in seen])
        capacity = min(context, int(lengths.max()) + max_new_tokens)
        tokens = right_padded(seen, model.embedding.tokens.weight.device, capacity).tokens
        super().__init__(model, engine or DecodeEngine(model), tokens, lengths, model.new_cache(len(seen), capacity))
        self._known = known

    def first(self) -> Float[Tensor, "rows vocab_size"]:
        """Prefill all prompts in one pass; return the logits after the last token of each."""
        if self._known:
            self._cache.begin(self._known)
        n_known = self._cache.longest
        tokens = self._tokens[:, n_known : self._lengths.max()]
        if len(tokens) == 1 and self._engine.has_compiled_prefill(tokens.device):
            return self._engine.prefill(tokens[0], self._cache)
        hidden = self._model.hidden(tokens, cache=self._cache)
        self._update_cache()
        rows = torch.arange(len(self._lengths), device=hidden.device)
        return output_logits(self._model, hidden[rows, self._cache.lengths - 1 - n_known])


class LiveBatch(_DecoderRows):
    """An initially empty batch; rows can be added and removed between tokens."""

    def __init__(self, model: DecoderOnly, engine: DecodeEngine):
        context, like = model.settings.context_length, model.decoder.cache_like
        tokens = torch.zeros(0, context, dtype=torch.long, device=like.device)
        self._open = ContinuousCache(model.settings, model.settings.n_layers, context, like)
        super().__init__(model, engine, tokens, np.zeros(0, dtype=np.int64), self._open)

    def extend(self, others: PromptBatch) -> None:
        """Append rows whose prompts the model has already processed."""
        n, room = others._tokens.shape
        self._tokens = torch.cat([self._tokens, others._tokens.new_zeros(n, self._context)])
        self._tokens[-n:, :room] = others._tokens
        self._lengths = np.concatenate([self._lengths, others._lengths])
        self._open.extend(others._cache)

    def seen(self, row: int) -> Int64[np.ndarray, " tokens"]:
        """Return the tokens of a row that are in the context."""
        return self._tokens[row, : self._lengths[row]].cpu().numpy()

    def known(self, row: int, n_tokens: int) -> list[KeysValues]:
        """Return a view of the keys and values of a row's first tokens, by layer; later steps may overwrite it."""
        return self._cache.row(row, n_tokens)


class TargetBatch:
    """A batch of targets that an encoder-decoder generates, each with its source."""

    def __init__(
        self,
        model: EncoderDecoder,
        sources: Sequence[Sequence[int]],
        *,
        start_id: int,
        max_new_tokens: int,
        target_prefix: Sequence[int] = (),
        engine: DecodeEngine | None = None,
        masked: Sequence[range] = (),
    ):
        """Encode the sources, which include their end tokens.

        Each target begins with the start token and `target_prefix`, and can grow by `max_new_tokens`, up to the
        context length. `masked` may give, for each source, a range of tokens that the model must not see.
        """
        self._start, self._engine = (start_id, *target_prefix), engine or DecodeEngine(model)
        batch = right_padded(sources, model.source_embedding.tokens.weight.device, SHORTEST)
        for row, tokens in zip(batch.is_token, masked, strict=False):
            row[tokens.start : tokens.stop] = False
        self._encoded = self._engine.encode(*batch)
        self._n_beams = 1
        length = len(target_prefix) + max_new_tokens
        self._cache = model.new_cache(len(sources), min(model.settings.context_length, length))

    def first(self) -> Float[Tensor, "rows vocab_size"]:
        """Feed the start token and the prefix of each target; return the logits of the next token."""
        is_token = self._encoded.is_token
        for token in self._start:
            logits = self.step(torch.full(is_token.shape[:1], token, device=is_token.device))
        return logits

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Append a token to each row; return the logits of the next tokens."""
        return self._engine(tokens, self._cache, self._encoded)

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows. With several beams, all rows of a source must be kept or dropped together."""
        self._encoded = self._encoded.select(rows[:: self._n_beams] // self._n_beams)
        self._cache.select(rows)

    def branch(self, n: int) -> None:
        """Turn each row into n adjacent beams, which share one copy of their source."""
        if n > 1:
            rows = torch.arange(len(self._cache.lengths), device=self._cache.lengths.device)
            self._cache.select(rows.repeat_interleave(n))
            self._n_beams *= n

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Reorder the beams of each source; the sources do not change."""
        self._cache.reorder(rows)


class Padded(NamedTuple):
    """Rows of different lengths, padded on the right."""

    tokens: Int[Tensor, "rows width"]
    is_token: Bool[Tensor, "rows width"]  # False at padding


def right_padded(rows: Sequence[Sequence[int]], device: torch.device, width: int = 0) -> Padded:
    """Pad rows on the right with token 0 to the length of the longest row or to `width`."""
    lengths = np.array([len(row) for row in rows])
    is_token = np.arange(max(width, lengths.max())) < lengths[:, None]
    tokens = np.zeros(is_token.shape, dtype=np.int64)
    tokens[is_token] = np.concatenate([np.asarray(row, dtype=np.int64) for row in rows])
    return Padded(torch.from_numpy(tokens).to(device), torch.from_numpy(is_token).to(device))


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Group sequences of similar length; yield the indices of each batch of at most max_tokens, padding included.

    A sequence that is longer than max_tokens gets a batch of its own.
    """
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[number] > max_tokens:
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
