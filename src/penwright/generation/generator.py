"""Prompt in, completion out: a decoder-only model with its tokenizer."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Generator as Stream
from dataclasses import dataclass
from math import log
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from penwright.config import DecodingSettings, GivenSettings, decoding_settings
from penwright.decoding.batches import Decodable, PromptBatch, evaluating, newest_half
from penwright.decoding.brief import brief, described, noted
from penwright.decoding.completion_draft import CompletionDraft, DecodingPlan, manner_of
from penwright.decoding.constraints.expressions import never_end
from penwright.decoding.continuous_batching import Pool
from penwright.decoding.engine import DecodeEngine
from penwright.decoding.generation_loop import Finish, GeneratedTokens, generate
from penwright.decoding.requests import Request
from penwright.decoding.sampling.next_token import Rule, Written
from penwright.decoding.sampling.sampler import RowRng
from penwright.decoding.unknown_tokens import unknown_warnings
from penwright.errors import UsageError
from penwright.model.decoder_only import DecoderOnly
from penwright.tokenizers import Tokenizer

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

    def __repr__(self) -> str:
        ended = f"{len(self.tokens)} tokens, finish={self.finish!r}"
        return f"<Completion {brief(self.prompt)} + {brief(self.text)} ({ended}{noted(self.warnings)})>"

    @property
    def mean_log_prob(self) -> float:
        """Of a token, in nats."""
        return sum(self.log_probs) / len(self.log_probs)


class Generator:
    """Continues prompts; the same prompt, settings and seed give the same text, alone or among others."""

    kind: Literal["writer"] = "writer"

    def __init__(self, model: DecoderOnly, tokenizer: Tokenizer, defaults: DecodingSettings | None = None):
        self.model, self.tokenizer = model, tokenizer
        self.defaults = defaults or DecodingSettings()
        self._stepper = DecodeEngine(model)

    def __repr__(self) -> str:
        return described("Generator", self.model, self.tokenizer)

    def generate(
        self, prompts: str | Sequence[str], settings: GivenSettings = None, *, n: int = 1, **options: Any
    ) -> list[Completion]:
        """Write n completions of each prompt: `generate("It was", temperature=0.7, max_new_tokens=50)`.

        Options are the settings of [decoding], by the same names; what is not given is as in the run's recipe.
        `settings` are all of them together, as an object or a table. A prompt that is given again continues
        differently from the first time, unless the temperature is 0.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise UsageError(f"n is {n!r}; it must be a whole number of 1 or more")
        prompts = [prompts] if isinstance(prompts, str) else prompts
        return list(self.each([prompt for prompt in prompts for _ in range(n)], settings, **options))

    def each(self, prompts: Sequence[str], settings: GivenSettings = None, **options: Any) -> Iterator[Completion]:
        """Yield a completion of each prompt, in their order, as soon as it is written; options as in `generate`.

        Raises UsageError for settings that no completion of one of the prompts can meet, before anything is written.
        """
        settings = decoding_settings(self.defaults, settings, options)
        drafts, manner = self._drafts(prompts, settings), manner_of(self.tokenizer, settings, prompts)
        for start in range(0, len(drafts), WINDOW):
            window = drafts[start : start + WINDOW]
            by_length = sorted(window, key=lambda draft: (len(draft.prompt_tokens), draft.prompt))
            for first in range(0, len(window), BATCH_ROWS):
                for _ in self._write(by_length[first : first + BATCH_ROWS], manner):
                    pass
            yield from map(self._completion, window)

    def stream(self, prompt: str, settings: GivenSettings = None, **options: Any) -> Stream[str, None, Completion]:
        """Yield the text as it is written, in whole characters; options as in `generate`.

        Returns the completion (`done = yield from ...`).
        """
        settings = decoding_settings(self.defaults, settings, options)
        (draft,) = self._drafts([prompt], settings)
        n_shown = 0
        for _ in self._write([draft], manner_of(self.tokenizer, settings, [prompt])):
            yield from draft.pieces[n_shown:]
            n_shown = len(draft.pieces)
        return self._completion(draft)

    def requests(
        self,
        prompt: str | Sequence[int],
        settings: GivenSettings = None,
        n: int = 1,
        *,
        n_likely: int = 0,
        biases: Mapping[int, float] | None = None,
        check: Callable[[], None] = never_end,
    ) -> list[Request]:
        """Return what a `pool` takes to write n completions: those of generate() for a prompt that comes n times.

        A prompt can be given as tokens; `biases` are scores for single tokens. `check` may end the building of
        constraints by raising. Raises UsageError as `each` does.
        """
        text = prompt if isinstance(prompt, str) else self.tokenizer.decode(prompt)
        tokens = self._encode(prompt) if isinstance(prompt, str) else [self.tokenizer.start_id, *prompt]
        manner = manner_of(self.tokenizer, decoding_settings(self.defaults, settings), [text], biases, check)
        return [Request(text, tokens, manner, number, n_likely) for number in range(n)]

    def pool(self, max_rows: int = 64) -> Pool:
        """Where completions of different prompts and settings are written together, and come and go at any time."""
        return Pool(self.model, self.tokenizer, self._stepper, max_rows)

    @torch.inference_mode()
    def next_logits(self, tokens: Sequence[int]) -> Float[Tensor, " vocab_size"]:
        """Of the token after these, of which the first is the start token."""
        with evaluating(self.model):
            return PromptBatch(self.model, [tokens], 1, self._stepper).first()[0]

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

    def _drafts(self, prompts: Sequence[str], settings: DecodingSettings) -> list[CompletionDraft]:
        times = Counter[str]()
        drafts = []
        for prompt in prompts:
            number, tokens = times[prompt], self._encode(prompt)
            drafts.append(CompletionDraft.begin(self.tokenizer, prompt, tokens, number, settings.stop))
            times[prompt] += 1
        return drafts

    def _write(self, drafts: list[CompletionDraft], manner: DecodingPlan) -> Iterator[GeneratedTokens]:
        """Write all drafts to their end, in one batch; each distinct prompt is read once."""
        distinct = list({draft.prompt: draft.prompt_tokens for draft in drafts}.values())
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(draft.prompt for draft in drafts))}
        with evaluating(self.model):
            steps = generate(
                Shared(
                    PromptBatch(self.model, distinct, manner.n_new, self._stepper),
                    [places[draft.prompt] for draft in drafts],
                ),
                manner.sampling,
                RowRng(manner.sampling.settings.seed, [draft.number for draft in drafts]),
                end_id=self.tokenizer.end_id,
                max_new_tokens=manner.n_new,
                prompts=[draft.prompt_tokens for draft in drafts],
                should_stop=lambda row, token: drafts[row].push(token),
                constraint=manner.constraint([draft.prompt for draft in drafts], self._stepper.likeliest),
            )
            for step in steps:
                for row, token, log_prob in zip(step.rows, step.tokens, step.log_probs, strict=True):
                    drafts[row].tokens.append(token)
                    drafts[row].log_probs.append(log_prob)
                for row, finish in step.finished.items():
                    drafts[row].close(finish)
                yield step

    def _completion(self, draft: CompletionDraft) -> Completion:
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

    def several(self, token: Int[Tensor, "1"], rule: Rule) -> Sequence[Written]:
        """Tokens that come after this one of the only row."""
        return self._model.several(token, rule)

    def select(self, rows: Int[Tensor, " selected"]) -> None:
        """Keep these rows."""
        self._model.select(rows)
