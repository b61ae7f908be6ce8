"""A completion that is being generated, and the plan for generating it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from penwright.config import DecodingSettings
from penwright.decoding.constraints.constraints import CompletionConstraint, is_constrained
from penwright.decoding.constraints.expressions import never_end
from penwright.decoding.sampling.penalties import Bias
from penwright.decoding.sampling.sampler import Sampling
from penwright.decoding.sampling.utf8 import Utf8Rules
from penwright.errors import UsageError
from penwright.tokenizers import TextStream, Tokenizer
from penwright.tokenizers.tokenizer import never_generated

Finish = Literal["end", "stop", "length"]  # why a completion ended: end token, stop string or maximum length


class StopFilter:
    """A filter that passes on text up to the first stop string, and holds back text that may begin one."""

    def __init__(self, stops: Sequence[str]):
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Return the text that can be shown; return "" after a stop string.

        If several stop strings occur, the one that is complete first counts; of those that end together, the longest
        counts. So the result does not depend on how the text is divided into pieces.
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
        """Return the text that was held back as the possible beginning of a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of the text that is a proper prefix of the stop string."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(stop[:n])), 0)


MAX_NEW_TOKENS = 400  # default of max_new_tokens
# These settings do not affect how a token is drawn. Rows that differ only in these settings are sampled together.
PER_ROW_SETTINGS = {"seed", "stop", "max_new_tokens", "min_new_tokens", "pattern", "banned_words", "required_words"}


class DecodingPlan(NamedTuple):
    """The plan for generating all completions of one call."""

    sampling: Sampling
    n_new: int
    guide: CompletionConstraint | None
    spelling: Utf8Rules
    key: str  # completions with the same key are sampled together


def plan_of(
    tokenizer: Tokenizer,
    settings: DecodingSettings,
    prompts: Sequence[str],
    biases: Mapping[int, float] | None = None,
    check: Callable[[], None] = never_end,
) -> DecodingPlan:
    """Return the plan for completing these prompts with these settings; `biases` apply to single tokens.

    `check` is called repeatedly while constraints are built, and may raise an exception to abort. Raises UsageError if
    no completion of one of the prompts can satisfy the settings.
    """
    n_new = settings.max_new_tokens or MAX_NEW_TOKENS
    text_biases = [_bias(tokenizer, text, value) for text, value in settings.logit_bias.items()]
    token_biases = [Bias([[token]], value) for token, value in (biases or {}).items()]
    breakers = _tokens_containing(tokenizer, settings.dry_breakers) if settings.dry_multiplier else ()
    banned = never_generated(tokenizer)
    sampling = Sampling(banned, settings, (*text_biases, *token_biases), breakers)
    guide = (
        CompletionConstraint(settings, tokenizer, prompts, n_new, check)
        if prompts and is_constrained(settings)
        else None
    )
    key = f"{settings.model_dump_json(exclude=PER_ROW_SETTINGS)} {biases or ''}"
    return DecodingPlan(sampling, n_new, guide, Utf8Rules.of(tokenizer, banned), key)


@dataclass
class CompletionDraft:
    """A completion that is being generated."""

    prompt: str
    number: int  # number of earlier completions of the same prompt
    prompt_tokens: list[int]
    stream: TextStream
    stop_filter: StopFilter
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # the text so far, without what the stop filter holds back
    finish: Finish | None = None  # why the completion ended; None until then

    @classmethod
    def begin(
        cls, tokenizer: Tokenizer, prompt: str, prompt_tokens: list[int], number: int, stop: Sequence[str]
    ) -> "CompletionDraft":
        """Return an empty completion of a prompt."""
        return cls(prompt, number, prompt_tokens, TextStream(tokenizer), StopFilter(stop))

    def push(self, token: int) -> bool:
        """Add the text of a token; return whether a stop string is complete."""
        self._show(self.stop_filter.push(self.stream.push(token)))
        return self.stop_filter.stopped

    def close(self, finish: Finish) -> None:
        """Finish the completion; unless a stop string ended it, add the text that is still held back."""
        self.finish = finish
        if finish != "stop":
            self._show(self.stop_filter.push(self.stream.finish()) + self.stop_filter.finish())

    def _show(self, text: str) -> None:
        if text:
            self.pieces.append(text)


def _bias(tokenizer: Tokenizer, text: str, value: float) -> Bias:
    """Build the bias for a text tokenized by itself and, if the tokens differ, for the text tokenized after a space."""
    unknown = tokenizer.unknown_characters(text)
    if not text or unknown:
        what = f"characters the model does not know ({' '.join(unknown)})" if unknown else "no characters"
        raise UsageError(
            f"the bias for '{text}' cannot be applied, because the text has {what}: choose a different text"
        )
    alone, spaced = tokenizer.encode(text), tokenizer.encode(f" {text}")
    same = spaced[-len(alone) :] == alone
    return Bias([alone] if same else [alone, spaced], value)


def _tokens_containing(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[int, ...]:
    """Return the tokens that contain one of these texts."""
    wanted = [text.encode("utf-8", errors="replace") for text in texts if text]
    all_tokens = ((token, tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
    return tuple(token for token, spelled in all_tokens if any(text in spelled for text in wanted))
