"""The computations of decoding as modules that take and return only tensors, so each can be compiled ahead of time."""

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from penwright.decoding.ahead_of_time import ModelPart
from penwright.decoding.sampling.beam_rules import best_continuations
from penwright.decoding.sampling.filters import NEG_INF
from penwright.decoding.sampling.topk import MAX_K, MaskedTopK
from penwright.decoding.sampling.utf8 import MOST_LEFT, N_STATES
from penwright.model.attention import Kernel, KeysValues
from penwright.model.attention_recording import swap_kernels
from penwright.model.block import Encoded
from penwright.model.cache import Cache, WholeLayerCache
from penwright.model.cached_attention import stepping_attention
from penwright.model.decoder_only import DecoderOnly
from penwright.model.encoder_decoder import EncoderDecoder


class DecodeStep(ModelPart):
    """One decoding step: it reads a token of each row and gives the logits of the next one."""

    def forward(
        self,
        tokens: Int[Tensor, "*rows"],
        lengths: Int[Tensor, "*rows"],
        kept: list[Float[Tensor, "kept_rows n_kv_heads room d_head"]],
        origins: Int[Tensor, "*rows room"] | None,
        source: list[Float[Tensor, "sources n_kv_heads length d_head"]],
        padding: Bool[Tensor, "sources length"] | None,
    ) -> Float[Tensor, "all_rows vocab_size"]:
        """Append the tokens and return the logits of the next ones.

        `kept` holds the keys and values of each layer in turn; the new ones are written there, in place. With sources,
        `*rows` are the sources and the beams of each. The logits are never bfloat16, which is too coarse to rank the
        best tokens.
        """
        tokens, lengths = tokens.flatten()[:, None], lengths.flatten()
        origins = None if origins is None else origins.flatten(0, 1)
        encoded = None if padding is None else Encoded(as_layers(source), padding)
        if torch.compiler.is_exporting():
            with swap_kernels(self.model.decoder, lambda name, _: _kernel_of(name, origins)):
                return self.logits(tokens, Cache.over(as_layers(kept), lengths, kind=WholeLayerCache), encoded)
        return self.logits(tokens, Cache.over(as_layers(kept), lengths, origins), encoded)

    def logits(
        self, tokens: Int[Tensor, "rows 1"], cache: Cache, encoded: Encoded | None
    ) -> Float[Tensor, "rows vocab_size"]:
        """Append the tokens to the cache, whose lengths stay the same; return the logits of the next ones."""
        model = self.model
        if isinstance(model, DecoderOnly):
            hidden = model.hidden(tokens, cache=cache)
        else:
            assert encoded is not None
            hidden = model.hidden(tokens, encoded, cache)
        return _not_bfloat16(model.output(hidden[:, -1]))


class MultiTokenStep(ModelPart):
    """Several decoding steps of a single row, which also choose the tokens."""

    def __init__(self, model: DecoderOnly | EncoderDecoder):
        super().__init__(model)
        self.step = DecodeStep(model)

    def forward(
        self,
        tokens: Int[Tensor, "*rows"],
        lengths: Int[Tensor, "*rows"],
        kept: list[Float[Tensor, "1 n_kv_heads room d_head"]],
        source: list[Float[Tensor, "1 n_kv_heads length d_head"]],
        padding: Bool[Tensor, "1 length"] | None,
        rule: list[Tensor],
    ) -> tuple[Float[Tensor, " tokens"], Int64[Tensor, " tokens"]]:
        """Choose the next tokens; return their log-probabilities in nats, under the model itself, and the tokens.

        `kept` takes in this token and all chosen ones but the last. `rule` is the result of `Rule.tensors()`. It holds
        the `bits` and `states_after` of Utf8Rules, the state of the text, and how many tokens may come after the next
        one. The temperature and a random number for each token follow.
        """
        allowed, states_after, state, n_left, temperature, chances = rule
        found = []
        for n, chance in enumerate(chances.split(1)):
            logits = self.step(tokens, lengths, kept, None, source, padding)
            situation = state + N_STATES * (n_left - n).clamp(0, MOST_LEFT)
            token, log_prob = torch.ops.penwright.next_token(logits, allowed, situation, temperature, chance)
            found.append((log_prob, token))
            tokens, lengths, state = token.view_as(tokens), lengths + 1, states_after[state, token].long()
        log_probs, written = zip(*found, strict=True)
        return torch.cat(log_probs), torch.cat(written)


class MultiBeamStep(ModelPart):
    """Several steps of beam search for a single source."""

    def __init__(self, model: DecoderOnly | EncoderDecoder):
        super().__init__(model)
        self.step = DecodeStep(model)

    def forward(
        self,
        tokens: Int[Tensor, "1 beams"],
        lengths: Int[Tensor, "1 beams"],
        kept: list[Float[Tensor, "kept_rows n_kv_heads room d_head"]],
        origins: Int[Tensor, "1 beams room"],
        source: list[Float[Tensor, "1 n_kv_heads length d_head"]],
        padding: Bool[Tensor, "1 length"],
        rule: list[Tensor],
    ) -> tuple[Float[Tensor, "steps beams"], Int64[Tensor, "steps beams"], Int64[Tensor, "steps beams"], Tensor]:
        """Return the log-probabilities, tokens and parents of the beams at each step, and the origins at the last one.

        `kept` takes in these tokens, and the tokens of all steps but the last. `rule` is the result of
        `BeamRule.tensors()`. It holds the `bits` and `states_after` of Utf8Rules, the states of the beams, and how many
        tokens may come after each step. The log-probabilities of the beams and the end token follow.
        """
        allowed, states_after, states, n_left, log_probs, end_id = rule
        own = torch.arange(tokens.shape[1], device=tokens.device)[:, None]
        places, parents = torch.arange(origins.shape[2], device=tokens.device), own[:, 0]
        found = list[tuple[Tensor, Tensor, Tensor]]()
        for left in n_left.split(1):
            if found:  # follow beams that changed places, as Cache.reorder() does
                origins = torch.where(places < lengths[0, :1], origins[0, parents], own)[None]
            logits = self.step(tokens, lengths, kept, origins, source, padding)
            situations = states + N_STATES * left.clamp(0, MOST_LEFT)
            best = MaskedTopK(*torch.ops.penwright.likeliest(logits, allowed, situations, MAX_K))
            sums, written, parents = best_continuations(log_probs, best)
            found.append((sums, written, parents))
            log_probs = sums.masked_fill(written == end_id, NEG_INF)
            states = states_after[states[parents], written].long()
            tokens, lengths = written.view_as(tokens), lengths + 1
        log_probs, tokens, parents = (torch.stack(column) for column in zip(*found, strict=True))
        return log_probs, tokens, parents, origins.clone()


class PromptStep(ModelPart):
    """Prefill: several tokens of a single row of a decoder-only model, read at once."""

    def forward(
        self,
        tokens: Int[Tensor, " targets"],
        length: Int[Tensor, "1"],
        kept: list[Float[Tensor, "1 n_kv_heads room d_head"]],
    ) -> Float[Tensor, "1 vocab_size"]:
        """Append all tokens to `kept`; return the logits after the last one."""
        n_new = tokens.shape[0]
        if torch.compiler.is_exporting():
            with swap_kernels(self.model.decoder, lambda *_: stepping_attention()):
                cache = Cache.over(as_layers(kept), length, kind=WholeLayerCache, n_new=n_new)
                return self._logits(tokens, cache)
        return self._logits(tokens, Cache.over(as_layers(kept), length, n_new=n_new))

    def _logits(self, tokens: Int[Tensor, " targets"], cache: Cache) -> Tensor:
        assert isinstance(self.model, DecoderOnly)
        return _not_bfloat16(self.model.output(self.model.hidden(tokens[None], cache=cache)[:, -1]))


def _not_bfloat16(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype == torch.bfloat16 else logits


def _kernel_of(name: str, origins: Int[Tensor, "rows room"] | None) -> Kernel:
    """Return the kernel for the attention with this name; cross-attention needs no `origins`."""
    return stepping_attention(None if name.endswith("cross_attention") else origins)


class EncodeStep(ModelPart):
    """The encoder of a translator, up to the keys and values that its decoder attends to."""

    def forward(
        self, sources: Int[Tensor, "sources length"], padding: Bool[Tensor, "sources length"]
    ) -> list[Float[Tensor, "sources n_kv_heads length d_head"]]:
        """Return the keys and values of each layer in turn, contiguous as compiled steps expect them."""
        assert isinstance(self.model, EncoderDecoder)
        encoded = self.model.encode(sources, padding)
        return [x.contiguous() for layer in encoded.layers for x in layer]


class TopKStep(ModelPart):
    """The likeliest next tokens of each row."""

    def forward(
        self,
        logits: Float[Tensor, "rows vocab_size"],
        allowed: Int64[Tensor, "all_situations words"],
        situations: Int64[Tensor, " rows"],
    ) -> tuple[Float[Tensor, "rows n"], Int[Tensor, "rows n"], Float[Tensor, " rows"]]:
        """Return the fields of a MaskedTopK over the tokens whose bits are set for the situation of each row."""
        found: tuple[Tensor, Tensor, Tensor] = torch.ops.penwright.likeliest(logits, allowed, situations, MAX_K)
        return found


def as_layers(tensors: list[Tensor]) -> tuple[KeysValues, ...]:
    """Group alternating keys and values by layer."""
    return tuple(map(KeysValues, tensors[::2], tensors[1::2]))
