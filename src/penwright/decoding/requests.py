"""A completion that is written among others: what is asked for, where it stands, and what is told of each token."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from penwright.decoding.completion_draft import CompletionDraft, DecodingPlan
from penwright.decoding.constraints.constraints import GuidedRows
from penwright.decoding.generation_loop import Finish, possible
from penwright.decoding.sampling.filters import Logits
from penwright.decoding.sampling.next_token import Rule
from penwright.decoding.sampling.penalties import History
from penwright.decoding.sampling.sampler import RowRng
from penwright.tokenizers import Tokenizer


class Likely(NamedTuple):
    """A token that could have come."""

    token: int
    log_prob: float  # in nats, under the model itself
    chance: float  # of being drawn, as the settings have it (but for XTC, which is up to chance)


class Look(NamedTuple):
    """What stood to choose from."""

    rank: int  # of the token that came, under the model itself; 1 is the likeliest
    entropy: float  # of the model's distribution, in nats
    likely: tuple[Likely, ...]  # likeliest first


class News(NamedTuple):
    """A token of a completion."""

    token: int
    log_prob: float  # in nats, under the model itself
    text: str  # that can be shown now: whole characters, and nothing of a stop string
    finish: Finish | None = None  # why the completion ends with this token
    look: Look | None = None


@dataclass(eq=False)
class Request:
    """A completion that is asked for, and whether it still is."""

    prompt: str
    prompt_tokens: Sequence[int]  # with the start token
    manner: DecodingPlan
    number: int = 0  # of the completions of this prompt with this seed, each of which is another
    n_likely: int = 0  # of the tokens to look at; 0: no look
    left: bool = False  # set by whoever no longer wants it, in any thread


class Row:
    """A completion while it is written."""

    def __init__(self, request: Request, tokenizer: Tokenizer, logits: Logits):
        """`logits` gives the shape and the device."""
        manner, settings = request.manner, request.manner.sampling.settings
        prompt = list(request.prompt_tokens)
        self.request, self.sampling, self._end_id = request, manner.sampling, tokenizer.end_id
        self.draft = CompletionDraft.begin(tokenizer, request.prompt, prompt, request.number, settings.stop)
        self.chances = RowRng(settings.seed, [request.number])
        self.history = History([prompt], logits[:1]) if manner.sampling.looks_back else None
        self.guided = GuidedRows(manner.guide, [request.prompt]) if manner.guide else None
        self._spelling, self.state = manner.spelling, np.uint8(0)
        self.n_left = manner.n_new

    @property
    def is_bound(self) -> bool:
        """Whether more than its spelling says which tokens may come next."""
        return self.guided is not None or not self._may_end

    def rule(self) -> Rule | None:
        """By which it goes on, if that is so simple that nobody need look at each token."""
        if self.is_bound or self.request.n_likely or not self.sampling.is_simple:
            return None
        temperature = self.sampling.settings.temperature
        return Rule(self._spelling, int(self.state), self.n_left - 1, temperature, self.chances)

    @property
    def _may_end(self) -> bool:
        return len(self.draft.tokens) >= self.sampling.settings.min_new_tokens

    def possible(self, logits: Float[Tensor, "1 vocab_size"]) -> Float[Tensor, "1 vocab_size"]:
        """The scores without the tokens that must not come next."""
        return possible(logits, self.guided, self.n_left - 1, None if self._may_end else self._end_id)

    def push(self, token: int, log_prob: float, look: Look | None) -> News:
        """Write a token."""
        draft, n_shown = self.draft, len(self.draft.pieces)
        draft.tokens.append(token)
        self.n_left -= 1
        finish: Finish | None = "length" if self.n_left == 0 else None
        if token == self._end_id:
            finish = "end"
        elif draft.push(token):
            finish = "stop"
        if finish is not None:
            draft.close(finish)
        else:
            self._remember(token)
        return News(token, log_prob, "".join(draft.pieces[n_shown:]), finish, look)

    def look(self, logits: Float[Tensor, " vocab_size"], reshaped: Float[Tensor, " vocab_size"], token: int) -> Look:
        """At what stood to choose from when this token came."""
        log_probs = logits.log_softmax(-1)
        best = log_probs.topk(min(self.request.n_likely, len(log_probs)))
        if self.sampling.greedy:
            chances = torch.zeros_like(reshaped).index_fill(0, reshaped.argmax(), 1.0)
        else:
            chances = reshaped.softmax(-1)
        likely = zip(best.indices.tolist(), best.values.tolist(), chances[best.indices].tolist(), strict=True)
        entropy = torch.special.entr(log_probs.exp()).sum()
        return Look(int((log_probs > log_probs[token]).sum()) + 1, float(entropy), tuple(Likely(*x) for x in likely))

    def _remember(self, token: int) -> None:
        self.state = self._spelling.after[self.state, token]
        for part in (self.history, self.guided):
            if part is not None:
                part.push(torch.tensor([token]))
