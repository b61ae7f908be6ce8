"""A completion while it is written, and how it is to be written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penwright.config import DecodingSettings
from penwright.decoding.choosing.largest import Choose, likeliest
from penwright.decoding.choosing.penalties import Bias
from penwright.decoding.choosing.sampling import Sampling
from penwright.decoding.choosing.spelled import SpelledRows
from penwright.decoding.choosing.spelling import Spelling
from penwright.decoding.constraining.constraints import Guide, GuidedRows, is_constrained
from penwright.decoding.constraining.expressions import never_end
from penwright.decoding.generate import Constraint, Finish
from penwright.decoding.stopping import StopFilter
from penwright.decoding.unknown import never_written
from penwright.errors import UsageError
from penwright.tokenizers import TextStream, Tokenizer

MAX_NEW_TOKENS = 400  # where the settings name no number
APART = {"seed", "stop", "max_new_tokens", "min_new_tokens", "pattern", "banned_words", "required_words"}
# ... settings that say nothing about how a token is drawn, so that rows need not share them to be sampled together


class Manner(NamedTuple):
    """How all completions of one call are written."""

    sampling: Sampling
    n_new: int
    guide: Guide | None
    spelling: Spelling
    key: str  # completions with the same one are sampled alike

    def constraint(self, prompts: Sequence[str], choose: Choose = likeliest) -> Constraint:
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
) -> Manner:
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
    guide = Guide(settings, tokenizer, prompts, n_new, check) if prompts and is_constrained(settings) else None
    key = f"{settings.model_dump_json(exclude=APART)} {biases or ''}"
    return Manner(sampling, n_new, guide, Spelling.of(tokenizer, banned), key)


@dataclass
class Draft:
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
    ) -> "Draft":
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
