"""Prompt in, completion out: a decoder-only model with its tokenizer."""

from collections import Counter
from collections.abc import Generator as Stream
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penwright.config import DecodingSettings
from penwright.decoding.decodable import Continuing, evaluating, newest_half
from penwright.decoding.generate import Finish, Step, generate
from penwright.decoding.sampling import Chances, Sampling
from penwright.decoding.step import Stepper
from penwright.decoding.stopping import StopFilter
from penwright.decoding.unknown import never_written, unknown_warnings
from penwright.models import DecoderOnly
from penwright.tokenizers import TextStream, Tokenizer

MAX_NEW_TOKENS = 400  # where the settings name no number
BATCH_ROWS = 32


@dataclass(frozen=True)
class Completion:
    """What a model wrote after a prompt, and why it stopped."""

    prompt: str
    text: str  # without the stop string
    tokens: tuple[int, ...]  # all that were written, with the end token
    log_probs: tuple[float, ...]  # of each token, in nats, under the model itself
    finish: Finish
    warnings: tuple[str, ...] = ()


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
        settings = settings or self.defaults
        drafts = self._drafts([prompts] if isinstance(prompts, str) else prompts, settings)
        by_length = sorted(drafts, key=lambda draft: len(draft.prompt_tokens))
        for start in range(0, len(drafts), BATCH_ROWS):
            for _ in self._write(by_length[start : start + BATCH_ROWS], settings):
                pass
        return [self._completion(draft) for draft in drafts]

    def stream(self, prompt: str, settings: DecodingSettings | None = None) -> Stream[str, None, Completion]:
        """The text as it is written, in whole characters; returns the completion (`done = yield from ...`)."""
        settings = settings or self.defaults
        (draft,) = self._drafts([prompt], settings)
        n_shown = 0
        for _ in self._write([draft], settings):
            yield from draft.pieces[n_shown:]
            n_shown = len(draft.pieces)
        return self._completion(draft)

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

    def _write(self, drafts: "list[_Draft]", settings: DecodingSettings) -> Iterator[Step]:
        """Write all drafts to their end, in one batch."""
        prompts = [draft.prompt_tokens for draft in drafts]
        n_new = settings.max_new_tokens or MAX_NEW_TOKENS
        with evaluating(self.model):
            steps = generate(
                Continuing(self.model, prompts, n_new, self._stepper),
                Sampling.from_settings(settings, never_written(self.tokenizer)),
                Chances(settings.seed, [draft.number for draft in drafts]),
                end_id=self.tokenizer.end_id,
                max_new_tokens=n_new,
                prompts=prompts,
                should_stop=lambda row, token: drafts[row].push(token),
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
