"""UTF-8 validity: the tokens that may follow a text, given the bytes of an unfinished character at its end."""

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, UInt8
from torch import Tensor

from penwright.decoding.sampling.logits_process import NEG_INF
from penwright.devices import copy_to
from penwright.tokenizers import Tokenizer

WORD = 64  # bits per integer of a bit mask
# The states at the end of a text: no byte missing (0), one to three bytes missing (1 to 3), or a first byte that limits
# the second byte (4 to 7; table 3-7 of the Unicode standard). STEPS: state, first and last byte of a range, next state.
STEPS = (
    (0, 0x00, 0x7F, 0), (0, 0xC2, 0xDF, 1), (0, 0xE0, 0xE0, 4), (0, 0xE1, 0xEC, 2), (0, 0xED, 0xED, 5),
    (0, 0xEE, 0xEF, 2), (0, 0xF0, 0xF0, 6), (0, 0xF1, 0xF3, 3), (0, 0xF4, 0xF4, 7),
    (1, 0x80, 0xBF, 0), (2, 0x80, 0xBF, 1), (3, 0x80, 0xBF, 2),
    (4, 0xA0, 0xBF, 1), (5, 0x80, 0x9F, 1), (6, 0x90, 0xBF, 2), (7, 0x80, 0x8F, 2),
)  # fmt: skip
MISSING = np.array([0, 1, 2, 3, 2, 2, 3, 3, 255])  # number of bytes still missing in each state
BROKEN = N_STATES = 8  # the state of invalid UTF-8
MOST_LEFT = 3  # with this many tokens left, any character can be completed
FREE = N_STATES * (MOST_LEFT + 1)  # row of `may_come` that allows any bytes; constrained texts use it
GO_ON = FREE + 1  # offset from a row of `may_come` to its variant for texts that must not end yet

States = UInt8[np.ndarray, "*texts"]
Situations = Int64[np.ndarray, "*texts"]  # each for a UTF-8 state and the number of tokens allowed after the next one


class Utf8Rules:
    """The UTF-8 rules of a vocabulary: the state after each token, and the tokens that may come next.

    Which tokens may come next depends on the situation: the state, and how many more tokens fit after the next one.
    """

    def __init__(self, tokens: Sequence[bytes], banned: Sequence[int] = (), end_ids: Sequence[int] = ()):
        """Make the UTF-8 rules from each token's bytes. End tokens are allowed only after whole characters."""
        after = _states_after(tokens)[:N_STATES]
        self.after = np.where(after == BROKEN, 0, after)  # the state after each token; 0 after invalid bytes
        missing = MISSING[after]
        missing[1:, list(end_ids)] = MISSING[BROKEN]
        may_come = np.concatenate([*(missing <= left for left in range(MOST_LEFT)), missing <= MOST_LEFT])
        may_come = np.concatenate([may_come, np.ones_like(may_come[:1])])
        may_come[:, list(banned)] = False
        going_on = may_come.copy()
        going_on[:, list(end_ids)] = False
        # rows without any other token keep the end tokens
        going_on = np.where(going_on.any(1, keepdims=True), going_on, may_come)
        self.may_come: Bool[np.ndarray, "situations vocab_size"] = np.concatenate([may_come, going_on])
        # forbidden tokens for each row of `may_come` and each device
        self._masked: dict[tuple[int, torch.device], Int64[Tensor, " tokens"]] = {}

    @classmethod
    @lru_cache(16)
    def free(cls, vocab_size: int, banned: tuple[int, ...] = ()) -> "Utf8Rules":
        """Return rules that allow every token except the banned ones, even if the text becomes invalid UTF-8."""
        return cls([b""] * vocab_size, banned)

    @classmethod
    @lru_cache(16)
    def of(cls, tokenizer: Tokenizer, banned: tuple[int, ...], end_ids: tuple[int, ...]) -> "Utf8Rules":
        """Return the rules that keep a text of this tokenizer valid UTF-8. `end_ids` are the tokens that end a text."""
        tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        return cls(tokens, banned, end_ids)

    @cached_property
    def bits(self) -> Int64[Tensor, "situations words"]:
        """Bit masks of the allowed next tokens, one for each state of the UTF-8 decoder and number of tokens left."""
        n_situations, vocab_size = self.may_come.shape
        bits = np.zeros((n_situations, -(-vocab_size // WORD) * WORD), dtype=np.uint8)
        bits[:, :vocab_size] = self.may_come
        return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int64))

    def state_after(self, tokens: Sequence[int], n_left: int) -> np.uint8:
        """Return the state after these tokens; 0 if `n_left` more tokens are too few to complete the last character."""
        state = np.uint8(0)
        for token in tokens:
            state = self.after[state, token]
        return state if MISSING[state] <= n_left else np.uint8(0)

    def situations(self, states: States, n_left: Int[np.ndarray, "*#texts"]) -> Situations:
        """Return the row of `may_come` for each UTF-8 state when `n_left` tokens may follow the next one."""
        return states + N_STATES * np.minimum(np.maximum(n_left, 0), MOST_LEFT)  # faster than np.clip

    def forbid(self, logits: Float[Tensor, "rows vocab_size"], situations: Int64[np.ndarray, " rows"]) -> None:
        """Mask the forbidden tokens in place."""
        first = int(situations[0])
        if (situations == first).all():  # the usual case: the same rules apply to all rows
            logits.index_fill_(1, self._forbidden_in(first, logits.device), NEG_INF)
            return
        for situation in np.unique(situations).tolist():
            rows = copy_to(torch.from_numpy(np.flatnonzero(situations == situation)), logits.device)
            logits[rows[:, None], self._forbidden_in(situation, logits.device)] = NEG_INF

    def _forbidden_in(self, situation: int, device: torch.device) -> Int64[Tensor, " tokens"]:
        if (situation, device) not in self._masked:
            with torch.inference_mode(mode=False):  # the cached tensor is also used outside inference mode
                tokens = torch.from_numpy(np.flatnonzero(~self.may_come[situation]))
                self._masked[situation, device] = tokens.to(device)
        return self._masked[situation, device]


def _states_after(tokens: Sequence[bytes]) -> UInt8[np.ndarray, "all_states vocab_size"]:
    """Return the next state for each state and token. All tokens are processed together, byte by byte."""
    steps = np.full((N_STATES + 1, 256), BROKEN, dtype=np.uint8)
    for state, first, last, then in STEPS:
        steps[state, first : last + 1] = then
    lengths = np.array([len(token) for token in tokens])
    token_bytes = np.zeros((len(tokens), int(lengths.max(initial=0))), dtype=np.uint8)
    token_bytes[np.arange(token_bytes.shape[1]) < lengths[:, None]] = np.frombuffer(b"".join(tokens), dtype=np.uint8)
    states = np.repeat(np.arange(N_STATES + 1, dtype=np.uint8)[:, None], len(tokens), axis=1)
    for position, column in enumerate(token_bytes.T):
        states = np.where(position < lengths, steps[states, column], states)
    return states
