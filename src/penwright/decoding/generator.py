"""Prompt in, completion out: a decoder-only model with its tokenizer."""

from collections import Counter
from collections.abc import Generator as Stream
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from penwright.config import DecodingSettings
from penwright.decoding.constraints import Constraint, Guide, is_constrained
from penwright.decoding.decodable import Continuing, Decodable, evaluating, newest_half
from penwright.decoding.generate import Finish, Step, generate
from penwright.decoding.penalties import Bias
from penwright.decoding.sampling import Chances, Sampling
from penwright.decoding.step import Stepper
from penwright.decoding.stopping import StopFilter
from penwright.decoding.unknown import never_written, unknown_warnings
from penwright.errors import UsageError
from penwright.models import DecoderOnly
from penwright.tokenizers import TextStream, Tokenizer

MAX_NEW_TOKENS = 400  # where the settings name no number
BATCH_ROWS = 32
WINDOW = 8 * BATCH_ROWS  # completions of which those with prompts of one length go together


@dataclass(frozen=True)
class Completion:
    """What a model wrote after a prompt, and why it stopped."""

    prompt: str
    text: str  # without the stop string
    tokens: tuple[int, ...]  # all that were written, with the end token
    log_probs: tuple[float, ...]  # of each token, in nats, under the model itself
    finish: Finish
    warnings: tuple[str, ...] = ()

    @property
    def mean_log_prob(self) -> float:
        """Of a token, in nats."""
        return sum(self.log_probs) / len(self.log_probs)


class Generator:
    """Continues prompts; the same prompt, settings and seed give the same text, alone or among others."""

    def __init__(self, model: DecoderOnly, tokenizer: Tokenizer, defaults: DecodingSettings | None = None):
        self.model, self.tokenizer = model, tokenizer
        self.defaults = defaults or DecodingSettings()
        self._stepper = Stepper(model)

    def generate(self, prompts: str | Sequence[str], settings: DecodingSettings | None = None) -> list[Completion]:
        """A completion for each prompt (one prompt is a list of one).

        A prompt that is given again continues differently from the first time, unless the temperature is 0.
        """
        return list(self.each([prompts] if isinstance(prompts, str) else prompts, settings))

    def each(self, prompts: Sequence[str], settings: DecodingSettings | None = None) -> Iterator[Completion]:
        """The same, one by one in the order of the prompts, as soon as they are written.

        Raises UsageError for settings that no completion of one of the prompts can meet, before anything is written.
        """
        settings = settings or self.defaults
        drafts, manner = self._drafts(prompts, settings), self._manner(prompts, settings)
        for start in range(0, len(drafts), WINDOW):
            window = drafts[start : start + WINDOW]
            by_length = sorted(window, key=lambda draft: (len(draft.prompt_tokens), draft.prompt))
            for first in range(0, len(window), BATCH_ROWS):
                for _ in self._write(by_length[first : first + BATCH_ROWS], manner):
                    pass
            yield from map(self._completion, window)

    def stream(self, prompt: str, settings: DecodingSettings | None = None) -> Stream[str, None, Completion]:
        """The text as it is written, in whole characters; returns the completion (`done = yield from ...`)."""
        settings = settings or self.defaults
        (draft,) = self._drafts([prompt], settings)
        n_shown = 0
        for _ in self._write([draft], self._manner([prompt], settings)):
            yield from draft.pieces[n_shown:]
            n_shown = len(draft.pieces)
        return self._completion(draft)

    def bits_per_byte(self, completion: Completion) -> float | None:
        """Of all that was written, stop strings too, under the model itself; None where that is no text."""
        pairs = zip(completion.tokens, completion.log_probs, strict=True)
        nats = -sum(log_prob for token, log_prob in pairs if token != self.tokenizer.end_id)
        n_bytes = sum(len(self.tokenizer.token_bytes(token)) for token in completion.tokens)
        return nats / log(2) / n_bytes if n_bytes else None

    def warnings(self, prompt: str) -> tuple[str, ...]:
        """What the model does not read of a prompt."""
        warnings = unknown_warnings(self.tokenizer, prompt)
        n_prompt, context_length = len(self._encode(prompt)), self.model.settings.context_length
        if n_prompt > context_length:
            warnings.append(
                f"the prompt has {n_prompt} tokens and the model reads {context_length}: "
                f"only the last {newest_half(context_length)} are read"
            )
        return tuple(warnings)

    def _encode(self, prompt: str) -> list[int]:
        return [self.tokenizer.start_id, *self.tokenizer.encode(prompt)]

    def _drafts(self, prompts: Sequence[str], settings: DecodingSettings) -> "list[_Draft]":
        times = Counter[str]()
        drafts = []
        for prompt in prompts:
            text, stops = TextStream(self.tokenizer), StopFilter(settings.stop)
            drafts.append(_Draft(prompt, times[prompt], self._encode(prompt), text, stops))
            times[prompt] += 1
        return drafts

    def _manner(self, prompts: Sequence[str], settings: DecodingSettings) -> "_Manner":
        tokenizer, n_new = self.tokenizer, settings.max_new_tokens or MAX_NEW_TOKENS
        biases = tuple(_bias(tokenizer, text, value) for text, value in settings.logit_bias.items())
        breakers = _holding(tokenizer, settings.dry_breakers) if settings.dry_multiplier else ()
        sampling = Sampling(never_written(tokenizer), settings, biases, breakers)
        constrained = is_constrained(settings) and prompts
        return _Manner(sampling, n_new, Guide(settings, tokenizer, prompts, n_new) if constrained else None)

    def _write(self, drafts: "list[_Draft]", manner: "_Manner") -> Iterator[Step]:
        """Write all drafts to their end, in one batch; each distinct prompt is read once."""
        distinct = list({draft.prompt: draft.prompt_tokens for draft in drafts}.values())
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(draft.prompt for draft in drafts))}
        with evaluating(self.model):
            steps = generate(
                Shared(
                    Continuing(self.model, distinct, manner.n_new, self._stepper),
                    [places[draft.prompt] for draft in drafts],
                ),
                manner.sampling,
                Chances(manner.sampling.settings.seed, [draft.number for draft in drafts]),
                end_id=self.tokenizer.end_id,
                max_new_tokens=manner.n_new,
                prompts=[draft.prompt_tokens for draft in drafts],
                should_stop=lambda row, token: drafts[row].push(token),
                constraint=Constraint(manner.guide, [draft.prompt for draft in drafts]) if manner.guide else None,
            )
            for step in steps:
                for row, token, log_prob in zip(step.rows, step.tokens, step.log_probs, strict=True):
                    drafts[row].tokens.append(token)
                    drafts[row].log_probs.append(log_prob)
                for row, finish in step.finished.items():
                    drafts[row].close(finish)
                yield step

    def _completion(self, draft: "_Draft") -> Completion:
        text, warnings = "".join(draft.pieces), self.warnings(draft.prompt)
        return Completion(draft.prompt, text, tuple(draft.tokens), tuple(draft.log_probs), draft.finish, warnings)


class Shared:
    """Rows of which several go on from the same prompt, which is read once."""

    def __init__(self, model: Decodable, prompts: Sequence[int]):
        """`prompts` says which of the model's rows each row goes on from."""
        self._model, self._prompts = model, torch.tensor(prompts)

    def first(self) -> Float[Tensor, "rows vocab_size"]:
        """The logits of each row's first token."""
        logits = self._model.first()
        if len(self._prompts) > len(logits):
            rows = self._prompts.to(logits.device)
            self._model.select(rows)
            logits = logits[rows]
        return logits

    def step(self, tokens: Int[Tensor, " rows"]) -> Float[Tensor, "rows vocab_size"]:
        """Append a token to each row; the logits of the one after it."""
        return self._model.step(tokens)

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows."""
        self._model.select(rows)

    def reorder(self, rows: Int[Tensor, " rows"]) -> None:
        """Let rows change places."""
        self._model.reorder(rows)


class _Manner(NamedTuple):
    """How all completions of one call are written."""

    sampling: Sampling
    n_new: int
    guide: Guide | None


@dataclass
class _Draft:
    """A completion while it is written."""

    prompt: str
    number: int  # how often the same prompt came before
    prompt_tokens: list[int]
    stream: TextStream
    stop_filter: StopFilter
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # of the text that can be shown
    finish: Finish = "length"

    def push(self, token: int) -> bool:
        """Add the text of a token; says whether a stop string is complete."""
        self._show(self.stop_filter.push(self.stream.push(token)))
        return self.stop_filter.stopped

    def close(self, finish: Finish) -> None:
        self.finish = finish
        if finish != "stop":
            self._show(self.stop_filter.push(self.stream.finish()) + self.stop_filter.finish())

    def _show(self, text: str) -> None:
        if text:
            self.pieces.append(text)


def _bias(tokenizer: Tokenizer, text: str, value: float) -> Bias:
    """The text alone and after a space, where the space is not a token of its own."""
    unknown = tokenizer.unknown_characters(text)
    if not text or unknown:
        what = f"characters the model does not know ({' '.join(unknown)})" if unknown else "no characters"
        raise UsageError(f"the bias for '{text}' cannot be given: the text has {what}")
    alone, spaced = tokenizer.encode(text), tokenizer.encode(f" {text}")
    same = spaced[-len(alone) :] == alone
    return Bias([alone] if same else [alone, spaced], value)


def _holding(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[int, ...]:
    """The tokens that have one of these texts in them."""
    wanted = [text.encode("utf-8", errors="replace") for text in texts if text]
    every = ((token, tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
    return tuple(token for token, spelled in every if any(text in spelled for text in wanted))
