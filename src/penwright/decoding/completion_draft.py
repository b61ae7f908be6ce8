"""A completion while it is written, and how it is to be written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penwright.config import DecodingSettings
from penwright.decoding.constraints.constraints import CompletionConstraint, GuidedRows, is_constrained
from penwright.decoding.constraints.expressions import never_end
from penwright.decoding.generation_loop import Finish, TokenConstraint
from penwright.decoding.sampling.penalties import Bias
from penwright.decoding.sampling.sampler import Sampling
from penwright.decoding.sampling.topk import Choose, likeliest
from penwright.decoding.sampling.utf8 import Utf8Rules
from penwright.decoding.sampling.utf8_rows import SpelledRows
from penwright.decoding.unknown_tokens import never_written
from penwright.errors import UsageError
from penwright.tokenizers import TextStream, Tokenizer


class StopFilter:
    """Passes text on until a stop string is complete; holds back what may be the beginning of one."""

    def __init__(self, stops: Sequence[str]):
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """The text that can be shown; nothing more once a stop string has come.

        Of several stop strings that one counts which is complete first, and of those the longest, so that it makes no
        difference in what portions the text comes.
        """
        if self.stopped:
            return ""
        text = self._held + text
        places = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if places:
            self.stopped, self._held = True, ""
            return text[: min(places)[1]]
        n_held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def finish(self) -> str:
        """What was held back in vain."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of the text that a stop string begins with."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)


MAX_NEW_TOKENS = 400  # where the settings name no number
APART = {"seed", "stop", "max_new_tokens", "min_new_tokens", "pattern", "banned_words", "required_words"}
# ... settings that say nothing about how a token is drawn, so that rows need not share them to be sampled together


class DecodingPlan(NamedTuple):
    """How all completions of one call are written."""

    sampling: Sampling
    n_new: int
    guide: CompletionConstraint | None
    spelling: Utf8Rules
    key: str  # completions with the same one are sampled alike

    def constraint(self, prompts: Sequence[str], choose: Choose = likeliest) -> TokenConstraint:
        """What binds the completions of these prompts: their characters stay whole in any case."""
        if self.guide:
            return GuidedRows(self.guide, prompts)
        return SpelledRows(self.spelling, [self.n_new] * len(prompts), choose)


def manner_of(
    tokenizer: Tokenizer,
    settings: DecodingSettings,
    prompts: Sequence[str],
    biases: Mapping[int, float] | None = None,
    check: Callable[[], None] = never_end,
) -> DecodingPlan:
    """Return what the settings say, for these prompts; `biases` are for single tokens.

    `check` is called often while constraints are built; what it raises ends that. Raises UsageError for settings that
    no completion of one of the prompts can meet.
    """
    n_new = settings.max_new_tokens or MAX_NEW_TOKENS
    of_texts = [_bias(tokenizer, text, value) for text, value in settings.logit_bias.items()]
    of_tokens = [Bias([[token]], value) for token, value in (biases or {}).items()]
    breakers = _holding(tokenizer, settings.dry_breakers) if settings.dry_multiplier else ()
    banned = never_written(tokenizer)
    sampling = Sampling(banned, settings, (*of_texts, *of_tokens), breakers)
    guide = (
        CompletionConstraint(settings, tokenizer, prompts, n_new, check)
        if prompts and is_constrained(settings)
        else None
    )
    key = f"{settings.model_dump_json(exclude=APART)} {biases or ''}"
    return DecodingPlan(sampling, n_new, guide, Utf8Rules.of(tokenizer, banned), key)


@dataclass
class CompletionDraft:
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

    @classmethod
    def begin(
        cls, tokenizer: Tokenizer, prompt: str, prompt_tokens: list[int], number: int, stop: Sequence[str]
    ) -> "CompletionDraft":
        """Nothing is written yet."""
        return cls(prompt, number, prompt_tokens, TextStream(tokenizer), StopFilter(stop))

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
