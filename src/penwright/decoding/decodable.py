"""What search needs of a model: the scores of the next token of each row. One adapter for each kind of model."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from penwright.decoding.padding import right_padded
from penwright.decoding.step import Stepper
from penwright.errors import PenwrightError
from penwright.layers.attention import KeysValues
from penwright.layers.cache import OpenCache
from penwright.models import DecoderOnly, EncoderDecoder

SHORTEST = 2  # tokens of sources, and room for targets: a compiled step takes one for a special case


@runtime_checkable
class Decodable(Protocol):
    """Rows of unfinished text, whatever model writes them."""

    def first(self) -> Float[Tensor, "rows vocab_size"]:
        """The logits of each row's first token."""

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Append a token to each row; the logits of the one after it."""

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows, in this order, repeated where a row is named twice."""

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """What select does, when each row becomes one of the same source: beams that change places."""


def diverged() -> PenwrightError:
    """The error of search when there is nothing to choose from."""
    return PenwrightError("the model's scores are not numbers: its training diverged. Use an earlier checkpoint.")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """No dropout inside, and the mode it had before afterwards; gives the device the model is on."""
    training = model.training
    model.eval()
    try:
        yield next(model.parameters()).device
    finally:
        model.train(training)


def newest_half(context_length: int) -> int:
    """How many tokens stay in view when there are more than context_length."""
    return context_length - context_length // 2


def in_view(prompt: Sequence[int], context_length: int) -> Sequence[int]:
    """What is read of a prompt."""
    return prompt if len(prompt) <= context_length else prompt[-newest_half(context_length) :]


class Continuing:
    """Prompts that a decoder-only model goes on with.

    When a row has more than context_length tokens, its newest half context is read again from position 0, and the rest
    is out of view from then on. So no position is one that training has not shown, and what is written depends on the
    tokens alone, not on the batch.
    """

    def __init__(
        self,
        model: DecoderOnly,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stepper: Stepper | None = None,
        known: Sequence[KeysValues] = (),
    ):
        """Prompts are token ids, at least one each; of those that do not fit, the newest half context is read.

        `known` are the keys and values, by layer, of tokens that all prompts begin with, and of which none is the end.
        """
        self._model, self._stepper, self._known = model, stepper or Stepper(model), known
        self._context = model.settings.context_length
        self._half = newest_half(self._context)
        seen = [in_view(prompt, self._context) for prompt in prompts]
        self._lengths = np.array([len(tokens) for tokens in seen])  # known without asking the device
        capacity = min(self._context, int(self._lengths.max()) + max_new_tokens)
        self._tokens = right_padded(seen, model.embedding.tokens.weight.device, capacity).tokens
        self._cache = model.new_cache(len(seen), capacity)

    def first(self) -> Float[Tensor, "rows vocab_size"]:
        """One pass over all prompts; only the last token of each goes through the output layer."""
        if self._known:
            self._cache.begin(self._known)
        n_known = self._cache.longest
        hidden = self._model.hidden(self._tokens[:, n_known : self._lengths.max()], cache=self._cache)
        self._tell_cache()
        rows = torch.arange(len(self._lengths), device=hidden.device)
        return self._model.output(hidden[rows, self._cache.lengths - 1 - n_known])

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Append a token to each row; the logits of the one after it."""
        if (self._lengths == self._context).any():
            self._make_room()
        self._tokens.scatter_(1, self._cache.lengths[:, None], tokens[:, None])
        logits = self._stepper(tokens, self._cache)
        self._lengths += 1
        return logits

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows."""
        self._tokens = self._tokens[rows]
        self._lengths = self._lengths[rows.cpu().numpy()]
        self._cache.select(rows)
        self._tell_cache()

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """A prompt has no source that could stay in place."""
        self.select(rows)

    def _make_room(self) -> None:
        """Read the newest tokens of full rows again, one less than stay in view, since one more is about to come."""
        full, n_kept = np.flatnonzero(self._lengths == self._context), self._half - 1
        rows = torch.from_numpy(full).to(self._tokens.device)
        if n_kept:
            kept = self._tokens[rows, self._context - n_kept :]
            reread = self._model.new_cache(len(full), n_kept)
            self._model.hidden(kept, cache=reread)
            self._tokens[rows, :n_kept] = kept
            for layer, new in zip(self._cache.layers, reread.layers, strict=True):
                layer.kept.keys[rows, :, :n_kept] = new.kept.keys
                layer.kept.values[rows, :, :n_kept] = new.kept.values
        self._lengths[full] = n_kept
        self._tell_cache()

    def _tell_cache(self) -> None:
        self._cache.lengths = torch.from_numpy(self._lengths).to(self._tokens.device, copy=True)
        self._cache.longest = int(self._lengths.max(initial=0))
        self._cache.ragged = bool((self._lengths != self._cache.longest).any())


class Coming(Continuing):
    """Rows that come and go between tokens: none at first."""

    def __init__(self, model: DecoderOnly, stepper: Stepper):
        context, like = model.settings.context_length, model.embedding.tokens.weight
        self._model, self._stepper, self._known = model, stepper, ()
        self._context, self._half = context, newest_half(context)
        self._lengths = np.zeros(0, dtype=np.int64)
        self._tokens = torch.zeros(0, context, dtype=torch.long, device=like.device)
        self._open = OpenCache(model.settings, model.settings.n_layers, context, like)
        self._cache = self._open

    def take_in(self, others: Continuing) -> None:
        """The rows of another one, which were read, after those that are here."""
        n, room = others._tokens.shape
        self._tokens = torch.cat([self._tokens, others._tokens.new_zeros(n, self._context)])
        self._tokens[-n:, :room] = others._tokens
        self._lengths = np.concatenate([self._lengths, others._lengths])
        self._open.take_in(others._cache)

    def seen(self, row: int) -> Int64[np.ndarray, " tokens"]:
        """The tokens that are in view."""
        return self._tokens[row, : self._lengths[row]].cpu().numpy()

    def known(self, row: int, n_tokens: int) -> list[KeysValues]:
        """The keys and values of a row's first tokens, by layer; they are overwritten as rows come and go."""
        return self._cache.row(row, n_tokens)


class Translating:
    """Targets that an encoder-decoder writes, each beside its source."""

    def __init__(
        self,
        model: EncoderDecoder,
        sources: Sequence[Sequence[int]],
        *,
        start_id: int,
        max_new_tokens: int,
        stepper: Stepper | None = None,
    ):
        """Sources are token ids with the end token; max_new_tokens is at most the model's context_length."""
        self._start_id, self._stepper = start_id, stepper or Stepper(model)
        device = model.source_embedding.tokens.weight.device
        self._encoded = model.encode(*right_padded(sources, device, SHORTEST)).contiguous()
        self._cache = model.new_cache(len(sources), max(SHORTEST, max_new_tokens))

    def first(self) -> Float[Tensor, "rows vocab_size"]:
        """The logits after the start token."""
        padding = self._encoded.padding
        return self.step(torch.full(padding.shape[:1], self._start_id, device=padding.device))

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Append a token to each row; the logits of the one after it."""
        return self._stepper(tokens, self._cache, self._encoded)

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows."""
        self._encoded = self._encoded.select(rows)
        self._cache.select(rows)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """The sources stay as they are."""
        self._cache.select(rows)
