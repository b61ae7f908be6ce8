"""A requested completion: the plan for generating it, its text so far, and the report on each new token."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from penwright.config import DecodingSettings
from penwright.decoding.constraints.constraints import CompletionConstraint, ConstrainedText, is_constrained
from penwright.decoding.sampling.logits_process import NEG_INF, Bias, History, Logits
from penwright.decoding.sampling.sampler import RowRng, Sampling
from penwright.decoding.sampling.utf8 import FREE, GO_ON, MOST_LEFT, N_STATES, Utf8Rules
from penwright.errors import UsageError, do_nothing
from penwright.tokenizers import TextStream, Tokenizer
from penwright.tokenizers.tokenizer import never_generated

Finish = Literal["end", "stop", "length"]  # why a completion ended: end token, stop string or maximum length


class StopFilter:
    """A filter that passes on text up to the first stop string, and holds back text that may be the start of one."""

    def __init__(self, stops: Sequence[str]):
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self.stopped = False

    def push(self, text: str) -> str:
        """Return the text that can be shown; return "" after a stop string.

        If several stop strings occur, the one that is complete first counts; of those that end together, the longest
        counts. So the result does not depend on how the text is split into chunks.
        """
        if self.stopped:
            return ""
        text = self._held + text
        matches = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        if matches:
            self.stopped, self._held = True, ""
            return text[: min(matches)[1]]
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
LONGEST_TAIL = 8  # the last character of a prompt begins in one of its last tokens
# These settings do not affect how a token is drawn. Rows that differ only in these settings are sampled together.
PER_ROW_SETTINGS = {"seed", "stop", "max_new_tokens", "min_new_tokens", "pattern", "banned_words", "required_words"}


class DecodingPlan(NamedTuple):
    """The plan for generating all completions of one call."""

    sampling: Sampling
    n_new: int
    guide: CompletionConstraint | None
    utf8_rules: Utf8Rules
    end_ids: list[int]  # tokens that end a completion
    key: str  # completions with the same key are sampled together


def plan_of(
    tokenizer: Tokenizer,
    settings: DecodingSettings,
    prompts: Sequence[str],
    end_ids: Collection[int],
    biases: Mapping[int, float] | None = None,
    check: Callable[[], None] = do_nothing,
) -> DecodingPlan:
    """Return the plan for completing these prompts with these settings; `biases` apply to single tokens.

    `end_ids` are the tokens that end a completion. `check` is called repeatedly while constraints are built, and may
    raise an exception to abort. Raises UsageError if no completion of one of the prompts can satisfy the settings.
    """
    n_new, banned = settings.max_new_tokens or MAX_NEW_TOKENS, never_generated(tokenizer)
    if settings.min_new_tokens > n_new:
        raise UsageError(
            f"min_new_tokens is {settings.min_new_tokens}, but a completion has at most {n_new} tokens "
            "(max_new_tokens). Lower min_new_tokens, or raise max_new_tokens"
        )
    sampling = sampling_of(tokenizer, settings, (), biases)  # the UTF-8 rules exclude the banned tokens
    guide = (
        CompletionConstraint(settings, tokenizer, prompts, n_new, end_ids, check)
        if prompts and is_constrained(settings)
        else None
    )
    key = f"{settings.model_dump_json(exclude=PER_ROW_SETTINGS)} {biases or ''}"
    utf8_rules = Utf8Rules.of(tokenizer, banned, tuple(sorted(end_ids)))
    return DecodingPlan(sampling, n_new, guide, utf8_rules, list(end_ids), key)


def sampling_of(
    tokenizer: Tokenizer,
    settings: DecodingSettings,
    banned: tuple[int, ...],
    biases: Mapping[int, float] | None = None,
) -> Sampling:
    """Return the rules for choosing tokens with these settings; `biases` apply to single tokens."""
    text_biases = [_bias(tokenizer, text, value) for text, value in settings.logit_bias.items()]
    token_biases = [Bias([[token]], value) for token, value in (biases or {}).items()]
    breakers = _tokens_containing(tokenizer, settings.dry_breakers) if settings.dry_multiplier else ()
    return Sampling(banned, settings, (*text_biases, *token_biases), breakers)


@dataclass
class CompletionDraft:
    """The text of a completion so far."""

    stream: TextStream
    stop_filter: StopFilter
    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)  # the text so far, without what the stop filter holds back
    finish: Finish | None = None  # why the completion ended; None until then

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
    return tuple(token for token, token_bytes in all_tokens if any(text in token_bytes for text in wanted))


class TokenCandidate(NamedTuple):
    """A candidate for the next token."""

    token: int
    log_prob: float  # log-probability in nats, before sampling settings are applied
    draw_probability: float  # probability after sampling settings are applied, except XTC, which is random


class CandidateReport(NamedTuple):
    """The candidates from which a token was chosen."""

    rank: int  # rank of the chosen token, before sampling settings are applied; 1 is the likeliest
    entropy: float  # entropy of the model's distribution, in nats
    likely: tuple[TokenCandidate, ...]  # the most likely candidates, best first


class TokenUpdate(NamedTuple):
    """A new token of a completion, and the text that it adds."""

    token: int
    log_prob: float  # log-probability in nats, before sampling settings are applied
    text: str  # text that can be shown now: whole characters, no part of a stop string
    finish: Finish | None = None  # why the completion ended, if this is its last token
    candidates: CandidateReport | None = None


@dataclass(eq=False)
class Request:
    """A requested completion, which can be cancelled at any time."""

    prompt: str
    prompt_tokens: Sequence[int]  # the prompt, with the start token
    plan: DecodingPlan
    number: int = 0  # index among the completions of this prompt with this seed; each index gives a different text
    n_likely: int = 0  # number of candidates to report for each token; 0: no report
    cancelled: bool = False  # set to cancel the request; any thread may set it
    draft: CompletionDraft | None = None  # the completion so far; None until its generation starts

    @property
    def is_finished(self) -> bool:
        """Whether the completion is finished."""
        return self.draft is not None and self.draft.finish is not None


class RunningCompletion:
    """A completion that is being generated."""

    def __init__(self, request: Request, tokenizer: Tokenizer, logits: Logits):
        """Start the completion; its tensors have the shape and device of `logits`."""
        plan, settings = request.plan, request.plan.sampling.settings
        self.request, self.sampling = request, plan.sampling
        end = () if plan.guide else request.prompt_tokens[-LONGEST_TAIL:]
        self.state = int(plan.utf8_rules.state_after(end, plan.n_new))  # the prompt may end inside a character
        stream = TextStream(tokenizer, end if self.state else ())
        self.draft = request.draft = CompletionDraft(stream, StopFilter(settings.stop))
        self.rng = RowRng(settings.seed, [request.number])
        self.history = History([list(request.prompt_tokens)], logits[:1]) if plan.sampling.uses_history else None
        self.guided = ConstrainedText(plan.guide, request.prompt) if plan.guide else None
        self.n_left = plan.n_new

    @property
    def situation(self) -> int:
        """The index of the UTF-8 rules for the next token; FREE if a constraint ensures valid UTF-8."""
        if self.guided is not None:
            return FREE
        situation = self.state + N_STATES * min(self.n_left - 1, MOST_LEFT)
        return situation if self._may_end else situation + GO_ON

    @property
    def takes_best(self) -> bool:
        """Whether the next token is simply the most likely one that keeps the UTF-8 valid."""
        return self.sampling.greedy and not (self.sampling.uses_history or self.guided or self.request.n_likely)

    @property
    def _may_end(self) -> bool:
        return len(self.draft.tokens) >= self.sampling.settings.min_new_tokens

    def possible(self, logits: Float[Tensor, "1 vocab_size"]) -> Float[Tensor, "1 vocab_size"]:
        """Mask the tokens that the completion's constraint forbids, but leave at least one."""
        if self.guided is None:
            return logits
        logits = self.guided.possible(logits, self.n_left - 1)
        if self._may_end:
            return logits
        others = logits.clone()
        others[:, self.request.plan.end_ids] = NEG_INF
        return others if bool((others > NEG_INF).any()) else logits

    def push(self, token: int, log_prob: float, candidates: CandidateReport | None) -> TokenUpdate:
        """Append a token; return the update of the completion."""
        draft, n_shown = self.draft, len(self.draft.pieces)
        draft.tokens.append(token)
        draft.log_probs.append(log_prob)
        self.n_left -= 1
        finish: Finish | None = "length" if self.n_left == 0 else None
        if token in self.request.plan.end_ids:
            finish = "end"
        elif draft.push(token):
            finish = "stop"
        if finish is not None:
            draft.close(finish)
        else:
            self._advance(token)
        return TokenUpdate(token, log_prob, "".join(draft.pieces[n_shown:]), finish, candidates)

    def report_candidates(
        self, logits: Float[Tensor, " vocab_size"], processed: Float[Tensor, " vocab_size"], token: int
    ) -> CandidateReport:
        """Describe the candidates from which this token was chosen."""
        log_probs = logits.log_softmax(-1)
        best = log_probs.topk(min(self.request.n_likely, len(log_probs)))
        probabilities = self.sampling.probabilities(processed)
        likely = zip(best.indices.tolist(), best.values.tolist(), probabilities[best.indices].tolist(), strict=True)
        entropy = torch.special.entr(log_probs.exp()).sum()
        return CandidateReport(
            int((log_probs > log_probs[token]).sum()) + 1, float(entropy), tuple(TokenCandidate(*x) for x in likely)
        )

    def _advance(self, token: int) -> None:
        self.state = int(self.request.plan.utf8_rules.after[self.state, token])
        if self.history is not None:
            self.history.push(torch.tensor([token]))
        if self.guided is not None:
            self.guided.push(token)
