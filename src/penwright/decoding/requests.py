"""A completion in a continuous batch: its request, its state, and the report on each new token."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from penwright.decoding.completion_draft import CompletionDraft, DecodingPlan, Finish
from penwright.decoding.constraints.constraints import ConstrainedRows
from penwright.decoding.sampling.filters import NEG_INF, Logits
from penwright.decoding.sampling.penalties import History
from penwright.decoding.sampling.sampler import RowRng
from penwright.tokenizers import Tokenizer


class TokenCandidate(NamedTuple):
    """A candidate for the next token."""

    token: int
    log_prob: float  # log-probability in nats, before sampling settings are applied
    chance: float  # probability of being drawn after sampling settings are applied, except XTC, which is random


class CandidateReport(NamedTuple):
    """The candidates from which a token was chosen."""

    rank: int  # rank of the chosen token, before sampling settings are applied; 1 is the likeliest
    entropy: float  # entropy of the model's distribution, in nats
    likely: tuple[TokenCandidate, ...]  # likely candidates, likeliest first


class TokenUpdate(NamedTuple):
    """A new token of a completion, and the text that it adds."""

    token: int
    log_prob: float  # log-probability in nats, before sampling settings are applied
    text: str  # text that can be shown now: whole characters, no part of a stop string
    finish: Finish | None = None  # why the completion ended, if this is its last token
    look: CandidateReport | None = None


@dataclass(eq=False)
class Request:
    """A requested completion, which can be canceled at any time."""

    prompt: str
    prompt_tokens: Sequence[int]  # the prompt, with the start token
    manner: DecodingPlan
    number: int = 0  # index among the completions of this prompt with this seed; each index gives a different text
    n_likely: int = 0  # number of candidates to report for each token; 0: no report
    left: bool = False  # set to cancel the request; any thread may set it
    draft: CompletionDraft | None = None  # the completion so far; None until its generation starts

    @property
    def is_finished(self) -> bool:
        """Whether the completion is finished."""
        return self.draft is not None and self.draft.finish is not None


class RunningCompletion:
    """A completion that is being generated."""

    def __init__(self, request: Request, tokenizer: Tokenizer, logits: Logits, end_ids: Collection[int]):
        """Start the completion; its tensors have the shape and device of `logits`."""
        manner, settings = request.manner, request.manner.sampling.settings
        prompt = list(request.prompt_tokens)
        self.request, self.sampling, self._end_ids = request, manner.sampling, list(end_ids)
        self.draft = CompletionDraft.begin(tokenizer, request.prompt, prompt, request.number, settings.stop)
        request.draft = self.draft
        self.chances = RowRng(settings.seed, [request.number])
        self.history = History([prompt], logits[:1]) if manner.sampling.uses_history else None
        self.guided = ConstrainedRows(manner.guide, [request.prompt]) if manner.guide else None
        self._spelling, self.state = manner.spelling, np.uint8(0)
        self.n_left = manner.n_new

    @property
    def is_bound(self) -> bool:
        """Whether the next token is restricted by anything other than UTF-8 validity."""
        return self.guided is not None or not self._may_end

    @property
    def takes_best(self) -> bool:
        """Whether the next token is simply the most likely one that keeps the UTF-8 valid."""
        return self.sampling.greedy and not (self.sampling.uses_history or self.is_bound or self.request.n_likely)

    @property
    def _may_end(self) -> bool:
        return len(self.draft.tokens) >= self.sampling.settings.min_new_tokens

    def possible(self, logits: Float[Tensor, "1 vocab_size"]) -> Float[Tensor, "1 vocab_size"]:
        """Mask the tokens that are not allowed next, but leave at least one."""
        if self.guided is not None:
            logits = self.guided.possible(logits, self.n_left - 1)
        if self._may_end:
            return logits
        others = logits.clone()
        others[:, self._end_ids] = NEG_INF
        return others if bool((others > NEG_INF).any()) else logits

    def push(self, token: int, log_prob: float, look: CandidateReport | None) -> TokenUpdate:
        """Append a token; return the update of the completion."""
        draft, n_shown = self.draft, len(self.draft.pieces)
        draft.tokens.append(token)
        draft.log_probs.append(log_prob)
        self.n_left -= 1
        finish: Finish | None = "length" if self.n_left == 0 else None
        if token in self._end_ids:
            finish = "end"
        elif draft.push(token):
            finish = "stop"
        if finish is not None:
            draft.close(finish)
        else:
            self._advance(token)
        return TokenUpdate(token, log_prob, "".join(draft.pieces[n_shown:]), finish, look)

    def look(
        self, logits: Float[Tensor, " vocab_size"], reshaped: Float[Tensor, " vocab_size"], token: int
    ) -> CandidateReport:
        """Describe the candidates from which this token was chosen."""
        log_probs = logits.log_softmax(-1)
        best = log_probs.topk(min(self.request.n_likely, len(log_probs)))
        if self.sampling.greedy:
            chances = torch.zeros_like(reshaped).index_fill(0, reshaped.argmax(), 1.0)
        else:
            chances = reshaped.softmax(-1)
        likely = zip(best.indices.tolist(), best.values.tolist(), chances[best.indices].tolist(), strict=True)
        entropy = torch.special.entr(log_probs.exp()).sum()
        return CandidateReport(
            int((log_probs > log_probs[token]).sum()) + 1, float(entropy), tuple(TokenCandidate(*x) for x in likely)
        )

    def _advance(self, token: int) -> None:
        self.state = self._spelling.after[self.state, token]
        for part in (self.history, self.guided):
            if part is not None:
                part.push(torch.tensor([token]))
