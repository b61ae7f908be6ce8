"""Completions that are written together though they come and go at any time (continuous batching).

After Yu et al. (2022, "Orca", section 3): what is scheduled is not a batch from its beginning to its end but one token
of each row. A request draws from chances of its own and is masked by nothing but its own past, so that it is written as
it would be alone, up to ties within the rounding of its precision.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from penwright.decoding.batches import LiveBatch, PromptBatch, evaluating, in_view
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.generation_loop import log_probs_of, not_nan
from penwright.decoding.requests import News, Request, Row
from penwright.decoding.sampling.filters import Logits
from penwright.decoding.sampling.penalties import History
from penwright.decoding.sampling.sampler import Together
from penwright.decoding.sampling.utf8 import FREE, Situations, Utf8Rules
from penwright.decoding.unknown_tokens import never_written
from penwright.model.attention import KeysValues
from penwright.model.decoder_only import DecoderOnly
from penwright.tokenizers import Tokenizer

Tokens = Int64[np.ndarray, "_"]
WORTH = 32  # tokens in common that are worth the trouble


class Prefix(NamedTuple):
    """Tokens from position 0 on, with their keys and values in each layer."""

    tokens: Tokens
    layers: Sequence[KeysValues]

    def cut(self, n_tokens: int) -> list[KeysValues]:
        """Those of the first tokens."""
        return [KeysValues(*(x[:, :, :n_tokens] for x in layer)) for layer in self.layers]

    @property
    def n_bytes(self) -> int:
        return sum(x.numel() * x.element_size() for layer in self.layers for x in layer)


@dataclass
class Prefixes:
    """Texts that were read or written lately, as many as fit."""

    max_bytes: int = 128 * 2**20
    kept: list[Prefix] = field(default_factory=list)  # the latest last

    def keep(self, tokens: Tokens, layers: Sequence[KeysValues]) -> None:
        """Copy what there is of this text; what it begins with need not be kept any longer."""
        if len(tokens) < WORTH or any(n_common(each.tokens, tokens) == len(tokens) for each in self.kept):
            return
        self.kept = [each for each in self.kept if n_common(each.tokens, tokens) < len(each.tokens)]
        self.kept.append(Prefix(tokens, [KeysValues(*(x.clone() for x in layer)) for layer in layers]))
        while sum(each.n_bytes for each in self.kept) > self.max_bytes:
            del self.kept[0]


def n_common(one: Tokens, other: Tokens) -> int:
    """How many tokens both begin with."""
    n = min(len(one), len(other))
    different = np.flatnonzero(one[:n] != other[:n])
    return int(different[0]) if len(different) else n


Known = Callable[[int], list[KeysValues]]  # those of so many tokens
READ_TOKENS = 1024  # of prompts at a time, with padding, so that those who are written need not wait for long


class Pool:
    """The rows of a model that writes. All but `join` is for one thread."""

    def __init__(self, model: DecoderOnly, tokenizer: Tokenizer, stepper: DecodeEngine, max_rows: int = 64):
        self._model, self._tokenizer, self._stepper = model, tokenizer, stepper
        self._max_rows, self._context = max_rows, model.settings.context_length
        self._coming = LiveBatch(model, stepper)
        self._rows: list[Row] = []
        self._waiting: deque[Request] = deque()
        self._prefixes = Prefixes()
        self._spelling = Utf8Rules.of(tokenizer, never_written(tokenizer))

    @property
    def n_rows(self) -> int:
        """How many are written now."""
        return len(self._rows)

    @property
    def n_waiting(self) -> int:
        return len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._rows or self._waiting)

    def join(self, request: Request) -> None:
        """Wait for a place."""
        self._waiting.append(request)

    def clear(self) -> list[Request]:
        """Give up all requests, after an error."""
        given_up = [row.request for row in self._rows] + list(self._waiting)
        self._coming, self._rows = LiveBatch(self._model, self._stepper), []
        self._waiting.clear()
        return given_up

    @torch.inference_mode()
    def step(self) -> list[tuple[Request, News]]:
        """A token for each row: those that have left are let go first, and those that wait come in where they fit.

        A row that is alone may be given several.
        """
        with evaluating(self._model) as device:
            self._keep([not row.request.left for row in self._rows])
            last = torch.tensor([row.draft.tokens[-1] for row in self._rows], dtype=torch.long, device=device)
            if several := self._several(last):
                return several
            logits = [self._coming.step(last)] if self._rows else []
            logits += self._read(self._newcomers())
            news = self._write(torch.cat(logits)) if logits else []
            self._keep([each.finish is None for _, each in news])
        return news

    def _several(self, last: Int[Tensor, " rows"]) -> list[tuple[Request, News]]:
        """Tokens of the only row, where nobody waits and nothing but its spelling says which may come."""
        if len(self._rows) != 1 or self._waiting or not (rule := self._rows[0].rule()):
            return []
        row, news = self._rows[0], list[tuple[Request, News]]()
        for token, log_prob in self._coming.several(last, rule):
            news.append((row.request, row.push(token, not_nan(log_prob), None)))
            if news[-1][1].finish is not None:
                self._keep([False])
                break
        return news

    def _newcomers(self) -> list[Request]:
        found: list[Request] = []
        longest = 0
        while self._waiting and len(self._rows) + len(found) < self._max_rows:
            longest = max(longest, len(in_view(self._waiting[0].prompt_tokens, self._context)))
            if found and (len(found) + 1) * longest > READ_TOKENS:
                break
            request = self._waiting.popleft()
            if not request.left:
                found.append(request)
        return found

    def _read(self, requests: Sequence[Request]) -> Iterator[Logits]:
        """Read the prompts of new rows, each distinct one once, and after what is known of their beginnings."""
        if not requests:
            return
        groups: dict[tuple[int, int], list[Request]] = {}
        known = self._known()
        for request in requests:
            tokens = np.array(in_view(request.prompt_tokens, self._context))
            groups.setdefault(_longest(tokens, [seen for seen, _ in known]), []).append(request)
        for (place, n_tokens), group in groups.items():
            numbers = {tokens: n for n, tokens in enumerate(dict.fromkeys(tuple(r.prompt_tokens) for r in group))}
            begun = known[place][1](n_tokens) if n_tokens else ()
            read = PromptBatch(self._model, list(numbers), 0, self._stepper, begun)
            logits = read.first()
            if len(group) > len(numbers):
                rows = torch.tensor([numbers[tuple(r.prompt_tokens)] for r in group], device=logits.device)
                read.select(rows)
                logits = logits[rows]
            self._coming.take_in(read)
            self._rows += [Row(request, self._tokenizer, logits) for request in group]
            yield logits

    def _known(self) -> "list[tuple[Tokens, Known]]":
        """Texts whose keys and values are at hand: those that are written now, and lately."""
        running = [(self._coming.seen(row), partial(self._coming.known, row)) for row in range(len(self._rows))]
        return running + [(prefix.tokens, prefix.cut) for prefix in self._prefixes.kept]

    def _write(self, logits: Logits) -> list[tuple[Request, News]]:
        tokens, reshaped = self._choose(self._possible(logits))
        values, chosen = log_probs_of(tokens, logits), tokens.tolist()
        news = []
        for place, row in enumerate(self._rows):
            look = row.look(logits[place].float(), reshaped[place], chosen[place]) if row.request.n_likely else None
            news.append((row.request, row.push(chosen[place], values[place], look)))
        return news

    def _possible(self, logits: Logits) -> Logits:
        """The scores without the tokens that must not come next."""
        logits = logits.clone()
        self._spelling.forbid(logits, self._situations())
        if not any(row.is_bound for row in self._rows):
            return logits
        rows = zip(self._rows, logits.split(1), strict=True)
        return torch.cat([row.possible(scores) if row.is_bound else scores for row, scores in rows])

    def _situations(self) -> Situations:
        """Of the rows, as they are spelled; a guide knows of characters itself."""
        states = np.array([row.state for row in self._rows], dtype=np.uint8)
        found = self._spelling.situations(states, np.array([row.n_left - 1 for row in self._rows]))
        return np.where([row.guided is None for row in self._rows], found, FREE)

    def _choose(self, possible: Logits) -> tuple[Int[Tensor, " rows"], dict[int, Float[Tensor, " vocab_size"]]]:
        """The next tokens, and the distributions that they were drawn from where there is to be a look at them.

        Rows with the same settings are sampled together.
        """
        tokens = torch.zeros(len(possible), dtype=torch.long, device=possible.device)
        drawn_from: dict[int, Float[Tensor, " vocab_size"]] = {}
        groups: dict[str, list[int]] = {}
        for place, row in enumerate(self._rows):
            groups.setdefault(row.request.manner.key, []).append(place)
        for places in groups.values():
            rows = [self._rows[place] for place in places]
            sampling, histories = rows[0].sampling, [row.history for row in rows if row.history is not None]
            history = History.joined(histories) if histories else None
            reshaped = sampling.reshape(possible[places], history)
            tokens[places] = sampling.pick(reshaped, Together([row.chances for row in rows]))
            drawn_from.update(zip(places, reshaped, strict=True))
        return tokens, drawn_from

    def _keep(self, stays: Sequence[bool]) -> None:
        """Let go of the other rows; the last ones take their places, so that few are copied."""
        if all(stays):
            return
        for row, here in enumerate(stays):
            if not here:
                seen = self._coming.seen(row)
                self._prefixes.keep(seen, self._coming.known(row, len(seen)))
        n = sum(stays)
        movers = [row for row in range(n, len(stays)) if stays[row]]
        order = [row if stays[row] else movers.pop() for row in range(n)]
        self._coming.select(torch.tensor(order, dtype=torch.long))
        self._rows = [self._rows[row] for row in order]


def _longest(tokens: Tokens, known: Sequence[Tokens]) -> tuple[int, int]:
    """Which of the known texts has most in common with these tokens, and how many; 0 where that is not worth while.

    The last token is to be read in any case, since what comes after it is asked for.
    """
    n, place = max(((n_common(tokens[:-1], seen), place) for place, seen in enumerate(known)), default=(0, 0))
    return (place, n) if n >= WORTH else (0, 0)
