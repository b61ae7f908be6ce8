"""Continuous batching: completions are generated together, and can be added or removed at any time.

After Yu et al. (2022, "Orca", section 3): the unit of scheduling is one token of each row, not a whole batch. Each
request has its own random numbers and sees only its own tokens. So the batch does not change the text of a request,
except when candidates tie within rounding error.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isnan
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from penwright.decoding import cuda_graphs
from penwright.decoding.batches import LiveBatch, PromptBatch, diverged, in_view
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.requests import Request, RunningCompletion, TokenUpdate
from penwright.decoding.sampling.logits_process import History, Logits
from penwright.decoding.sampling.sampler import JoinedRng
from penwright.decoding.sampling.utf8 import Situations, Utf8Rules
from penwright.devices import copy_to_cpu
from penwright.model import evaluating
from penwright.model.attention import KeysValues
from penwright.model.transformer import DecoderOnly
from penwright.tokenizers import Tokenizer

Tokens = Int64[np.ndarray, "_"]
MIN_PREFIX = 32  # minimum number of common tokens for which reusing a prefix pays off


class Prefix(NamedTuple):
    """The first tokens of a text, with their keys and values in each layer."""

    tokens: Tokens
    layers: Sequence[KeysValues]

    def cut(self, n_tokens: int) -> list[KeysValues]:
        """Return the keys and values of the first `n_tokens` tokens."""
        return [KeysValues(*(x[:, :, :n_tokens] for x in layer)) for layer in self.layers]

    @property
    def n_bytes(self) -> int:
        """The size of the keys and values in bytes."""
        return sum(x.numel() * x.element_size() for layer in self.layers for x in layer)


@dataclass
class Prefixes:
    """A cache of recently read or generated texts with their keys and values; it holds at most `max_bytes`."""

    max_bytes: int = 128 * 2**20
    entries: list[Prefix] = field(default_factory=list)  # the most recent text comes last

    def keep(self, tokens: Tokens, layers: Sequence[KeysValues]) -> None:
        """Cache a copy of the keys and values of a text, or of its first tokens if it is longer than the whole cache.

        Drop cached texts that are prefixes of it.
        """
        text = Prefix(tokens, layers)
        n_fitting = self.max_bytes * len(tokens) // max(1, text.n_bytes)
        tokens, layers = tokens[:n_fitting], text.cut(n_fitting)
        if len(tokens) < MIN_PREFIX or any(n_common(entry.tokens, tokens) == len(tokens) for entry in self.entries):
            return
        self.entries = [entry for entry in self.entries if n_common(entry.tokens, tokens) < len(entry.tokens)]
        self.entries.append(Prefix(tokens, [KeysValues(*(x.clone() for x in layer)) for layer in layers]))
        while sum(entry.n_bytes for entry in self.entries) > self.max_bytes:
            del self.entries[0]


def n_common(one: Tokens, other: Tokens) -> int:
    """Return the length of the longest common prefix of two token sequences."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if len(different) else n


Known = Callable[[int], list[KeysValues]]  # a function that returns the keys and values of a text's first n tokens
READ_TOKENS = 1024  # maximum number of prompt tokens per pass, padding included; larger passes would delay other rows


class ContinuousBatch:
    """A continuous batch of completions. Only `join` may be called from other threads."""

    def __init__(self, model: DecoderOnly, tokenizer: Tokenizer, engine: DecodeEngine, max_rows: int = 64):
        self._model, self._tokenizer, self._engine = model, tokenizer, engine
        self._max_rows, self._context = max_rows, model.settings.context_length
        self._batch = LiveBatch(model, engine)
        self._rows: list[RunningCompletion] = []
        self._ahead: Logits | None = None  # logits of the next step, if it has already started
        self._waiting: deque[Request] = deque()
        self._entering: list[Request] = []  # requests whose prompts are being read
        self._prefixes = Prefixes()

    @property
    def n_rows(self) -> int:
        """The number of completions that are being generated."""
        return len(self._rows)

    @property
    def busy(self) -> bool:
        """Whether any request is running or waiting."""
        return bool(self._rows or self._waiting)

    @property
    def _utf8_rules(self) -> Utf8Rules:
        return self._rows[0].request.plan.utf8_rules  # the plans of all rows share the rules of the vocabulary

    def join(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def clear(self) -> list[Request]:
        """Drop all requests after an error, and return them."""
        dropped = dict.fromkeys([*(row.request for row in self._rows), *self._entering, *self._waiting])
        self._batch, self._rows, self._ahead = LiveBatch(self._model, self._engine), [], None
        self._entering = []
        self._waiting.clear()
        return list(dropped)

    @torch.inference_mode()
    def step(self) -> list[tuple[Request, TokenUpdate]]:
        """Generate a token for each row, after dropping cancelled rows and adding waiting requests that fit."""
        if self._model.training:  # to check this first takes less time than evaluating()
            with evaluating(self._model):
                return self.step()
        if not self._rows:
            self._engine.refresh()
        self._keep([not row.request.cancelled for row in self._rows])
        if self._rows and self._ahead is None:
            last = torch.tensor([row.draft.tokens[-1] for row in self._rows], device=self._batch.device)
            self._ahead = self._batch.step(last)
        logits, self._ahead = [] if self._ahead is None else [self._ahead], None
        self._entering = self._admit()
        logits += self._prefill(self._entering)
        self._entering = []
        pieces = self._write(logits[0] if len(logits) == 1 else torch.cat(logits)) if logits else []
        self._keep([update.finish is None for _, update in pieces])
        return pieces

    def _admit(self) -> list[Request]:
        """Return the waiting requests that fit. Drop all cancelled ones: their prompts would stay in memory."""
        for request in [each for each in tuple(self._waiting) if each.cancelled]:
            self._waiting.remove(request)
        admitted: list[Request] = []
        longest = 0
        while self._waiting and len(self._rows) + len(admitted) < self._max_rows:
            longest = max(longest, len(in_view(self._waiting[0].prompt_tokens, self._context)))
            if admitted and (len(admitted) + 1) * longest > READ_TOKENS:
                break
            admitted.append(self._waiting.popleft())
        return admitted

    def _prefill(self, requests: Sequence[Request]) -> Iterator[Logits]:
        """Prefill new rows: process each distinct prompt once, except for a prefix that is already cached."""
        if not requests:
            return
        groups: dict[tuple[int, int], list[Request]] = {}
        known = self._known()
        for request in requests:
            tokens = np.array(in_view(request.prompt_tokens, self._context))
            groups.setdefault(_longest_prefix(tokens, [seen for seen, _ in known]), []).append(request)
        for (index, n_tokens), group in groups.items():
            numbers = {tokens: n for n, tokens in enumerate(dict.fromkeys(tuple(r.prompt_tokens) for r in group))}
            begun = known[index][1](n_tokens) if n_tokens else ()
            new_rows = PromptBatch(self._model, list(numbers), 0, self._engine, begun)
            logits = new_rows.first()
            if len(group) > len(numbers):
                rows = torch.tensor([numbers[tuple(r.prompt_tokens)] for r in group], device=logits.device)
                new_rows.select(rows)
                logits = logits[rows]
            self._batch.extend(new_rows)
            self._rows += [RunningCompletion(request, self._tokenizer, logits) for request in group]
            yield logits

    def _known(self) -> list[tuple[Tokens, Known]]:
        """Return the texts whose keys and values can be reused: those of running rows and those in the cache."""
        running = [(self._batch.seen(row), partial(self._batch.known, row)) for row in range(len(self._rows))]
        return running + [(prefix.tokens, prefix.cut) for prefix in self._prefixes.entries]

    def _write(self, logits: Logits) -> list[tuple[Request, TokenUpdate]]:
        """Choose the next token of each row and append it to the row."""
        if all(row.takes_best for row in self._rows):
            best = self._engine.masked_topk(logits.float(), self._utf8_rules, self._situations(), 1)
            chosen, log_probs, processed = best.indices[:, 0], best.values[:, 0] - best.logsumexp, logits
        else:
            chosen, processed = self._choose(self._possible(logits))
            log_probs = log_probs_of(chosen, logits)
        copied = copy_to_cpu(chosen, log_probs)
        self._step_ahead(chosen)
        pieces = []
        for index, (row, token, value) in enumerate(zip(self._rows, *copied(), strict=True)):
            candidates = (
                row.report_candidates(logits[index].float(), processed[index], token) if row.request.n_likely else None
            )
            pieces.append((row.request, row.push(token, not_nan(value), candidates)))
        return pieces

    def _step_ahead(self, chosen: Int[Tensor, " rows"]) -> None:
        """Start the next step on a GPU, which then computes while Python writes the chosen tokens.

        The step is wasted for rows whose text ends with these tokens.
        """
        if chosen.device.type in cuda_graphs.DEVICES and any(row.n_left > 1 for row in self._rows):
            self._ahead = self._batch.step(chosen)

    def _possible(self, logits: Logits) -> Logits:
        """Mask the tokens that must not come next."""
        logits = logits.clone()
        self._utf8_rules.forbid(logits, self._situations())
        if not any(row.guided for row in self._rows):
            return logits
        rows = zip(self._rows, logits.split(1), strict=True)
        return torch.cat([row.possible(scores) for row, scores in rows])

    def _situations(self) -> Situations:
        return np.array([row.situation for row in self._rows])

    def _choose(self, possible: Logits) -> tuple[Int[Tensor, " rows"], Logits]:
        """Choose the next token of each row; also return the logits after penalties and filters.

        Rows with the same settings are sampled together.
        """
        groups: dict[str, list[int]] = {}
        for index, row in enumerate(self._rows):
            groups.setdefault(row.request.plan.key, []).append(index)
        if len(groups) == 1:
            return _sample(self._rows, possible)
        tokens, processed = possible.new_zeros(len(possible), dtype=torch.long), torch.empty_like(possible)
        for indices in groups.values():
            tokens[indices], processed[indices] = _sample([self._rows[index] for index in indices], possible[indices])
        return tokens, processed

    def _keep(self, stays: Sequence[bool]) -> None:
        """Drop finished rows, and cache their texts. The last rows move into the gaps, so few rows are copied."""
        if all(stays):
            return
        for row, here in enumerate(stays):
            if not here:
                seen = self._batch.seen(row)
                self._prefixes.keep(seen, self._batch.known(row, len(seen)))
        n = sum(stays)
        movers = [row for row in range(n, len(stays)) if stays[row]]
        order = [row if stays[row] else movers.pop() for row in range(n)]
        kept = torch.tensor(order, dtype=torch.long)
        self._batch.select(kept)
        self._ahead = self._ahead[kept] if self._ahead is not None and order else None
        self._rows = [self._rows[row] for row in order]


def _longest_prefix(tokens: Tokens, known: Sequence[Tokens]) -> tuple[int, int]:
    """Return the index of the text in `known` with the longest common prefix, and the prefix length (0 if too short).

    The prefix excludes the last token of the prompt, which the model must process to return logits.
    """
    n, index = max(((n_common(tokens[:-1], seen), index) for index, seen in enumerate(known)), default=(0, 0))
    return (index, n) if n >= MIN_PREFIX else (0, 0)


def _sample(rows: Sequence[RunningCompletion], possible: Logits) -> tuple[Int[Tensor, " rows"], Logits]:
    """Sample the next tokens of rows with the same settings; also return the logits after penalties and filters."""
    histories = [row.history for row in rows if row.history is not None]
    processed = rows[0].sampling.process(possible, History.joined(histories) if histories else None)
    tokens = rows[0].sampling.sample(processed, JoinedRng([row.rng for row in rows]))
    return tokens.to(possible.device), processed.to(possible.device)


def log_probs_of(tokens: Int[Tensor, " rows"], logits: Logits) -> Float[Tensor, " rows"]:
    """Return the log-probabilities of these tokens in nats."""
    return logits.float().log_softmax(-1).gather(1, tokens[:, None])[:, 0]  # faster than with logsumexp


def not_nan(log_prob: float) -> float:
    """Return the log-probability unchanged; raise an error if it is NaN, which means that training diverged."""
    if isnan(log_prob):
        raise diverged()
    return log_prob
