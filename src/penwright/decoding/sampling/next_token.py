"""The next token by a simple rule, inside of what is compiled, which writes several before Python is asked."""

from typing import NamedTuple

import torch
from torch import Tensor

from penwright.decoding.sampling.filters import NEVER
from penwright.decoding.sampling.sampler import Draws, best, draw, with_temperature
from penwright.decoding.sampling.topk import may_come
from penwright.decoding.sampling.utf8 import Utf8Rules
from penwright.native.toolchain import SOURCES

SOURCE = SOURCES / "next_token.cpp"


class Rule(NamedTuple):
    """How a row goes on, if nothing but its spelling says which tokens may come."""

    spelling: Utf8Rules
    state: int  # of its text
    n_left: int  # tokens that may come after the next one
    temperature: float  # 0: the likeliest token comes
    chances: Draws | None = None  # not needed then

    def tensors(self, n_tokens: int) -> list[Tensor]:
        """What the choice of so many tokens depends on, as parts.Several takes it."""
        drawn, temperature = torch.zeros(n_tokens, dtype=torch.double), torch.zeros(1)
        if self.temperature > 0 and self.chances is not None:
            drawn = torch.cat([self.chances.next() for _ in range(n_tokens)])
            temperature = temperature + self.temperature
        spelled = [self.spelling.bits, self.spelling.states_after, torch.tensor([self.state])]
        return [*spelled, torch.tensor([self.n_left]), temperature, drawn]


class Written(NamedTuple):
    """A token that was chosen."""

    token: int
    log_prob: float  # in nats, under the model itself: before temperature and the like


@torch.library.custom_op("penwright::next_token", mutates_args=())
def _next_token(
    logits: torch.Tensor,
    allowed: torch.Tensor,
    situations: torch.Tensor,
    temperatures: torch.Tensor,
    chances: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What next_token.cpp does, as torch does it: tokens, and their log-probabilities before any rule."""
    possible = logits.masked_fill(~may_come(allowed, situations, logits.shape[1]), NEVER)
    drawn = draw(with_temperature(possible, temperatures[:, None]), chances)
    tokens = torch.where(temperatures > 0, drawn, best(possible))
    return tokens, logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]


@_next_token.register_fake
def _(logits: torch.Tensor, allowed: torch.Tensor, *_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rows = logits.shape[0]
    return allowed.new_empty(rows), logits.new_empty(rows)
