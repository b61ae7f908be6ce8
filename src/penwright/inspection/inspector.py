"""The `Inspector`, which shows what a model computes for a text."""

from collections.abc import Generator as Steps
from collections.abc import Sequence
from warnings import warn

import torch

from penwright.application import ModelKind
from penwright.errors import PenwrightWarning, UsageError
from penwright.inspection.ablation import Ablation, HeadImportance, Occlusion, ablate, head_importance, occlusion
from penwright.inspection.arithmetic import HeadArithmetic, head_arithmetic
from penwright.inspection.attention_maps import (
    Alignment,
    AttentionMaps,
    PackedPart,
    Rollout,
    alignment,
    all_heads,
    attention_maps,
    packed_maps,
    parse_head,
    rollouts,
)
from penwright.inspection.beams import Beams, beams
from penwright.inspection.circuits import CircuitInspector
from penwright.inspection.comparison import TokenNlls
from penwright.inspection.embeddings import (
    EmbeddingMap,
    Neighbours,
    PositionalSimilarity,
    embedding_map,
    neighbours,
    positional_similarity,
)
from penwright.inspection.forward_pass import ForwardPass, Side, scores
from penwright.inspection.gradients import (
    N_STEPS,
    Attribution,
    Method,
    attribution,
    likeliest_outcome,
)
from penwright.inspection.head_statistics import HeadStatistics, head_statistics, joined
from penwright.inspection.logit_attribution import Lens, logit_lens
from penwright.inspection.token_scores import (
    LossByPosition,
    TokenScores,
    loss_by_position,
    token_scores,
    token_scores_in_steps,
)
from penwright.model import evaluating
from penwright.model.transformer import EncoderOnly
from penwright.translation.translator import Translator


class Inspector(CircuitInspector):
    """An inspector of a model and its tokenizer, for any text.

    `target` is a translation for a translator, or a label for a classifier; the default is the model's own prediction.
    A language model has no target. A text longer than the context is cut, with a message in `warnings`; only
    `token_scores` and `loss_by_position` process all of a language model's text. Methods raise UsageError for parts
    that the model lacks, for example layer 6 of a model with six layers.
    """

    @property
    def heads(self) -> list[str]:
        """The names of all heads, for `arithmetic` and `ablate`."""
        return [str(head) for head in all_heads(self.model)]

    def warnings(self, text: str, target: str | None = None) -> tuple[str, ...]:
        """Return warnings about unknown characters in a text, and about text that does not fit the context."""
        return self.reader.warnings(text, target)

    def attention(self, text: str, target: str | None = None, layers: Sequence[int] | None = None) -> AttentionMaps:
        """Return the attention weights of every head, in all layers or in `layers`."""
        return attention_maps(self.model, self.read(text, target), layers)

    def alignment(self, text: str, target: str | None = None) -> Alignment:
        """Return a translator's attention to each source token while it chooses each target token."""
        return alignment(self.attention(text, target))

    def packed_attention(self, text: str, target: str | None = None) -> tuple[PackedPart, ...]:
        """Return the attention weights of every head, packed into one byte per weight to save memory."""
        return packed_maps(self.model, self.read(text, target))

    def head_statistics(self, text: str, target: str | None = None) -> tuple[HeadStatistics, ...]:
        """Return the statistics of every head, by part."""
        reading, model = self.read(text, target), self.model
        deepest = max(head.layer for head in all_heads(model))
        # one layer at a time, to save memory
        maps_by_layer = (attention_maps(model, reading, [layer]) for layer in range(deepest + 1))
        parts = [head_statistics(part) for maps in maps_by_layer for part in maps.parts]
        return tuple(joined([part for part in parts if part.name == name]) for name in self._parts)

    def beams(self, text: str, beam_size: int | None = None) -> Beams:
        """Return the tree of a translator's beam search for a sentence."""
        if not isinstance(self.application, Translator):
            raise UsageError("only a translator uses beam search; this is a " + self.kind)
        return beams(self.application, text, beam_size)

    def rollout(self, text: str, target: str | None = None) -> tuple[Rollout, ...]:
        """Return each part's attention rollout: the share of each position's content that comes from each token."""
        return rollouts(self.attention(text, target))

    def lens(self, text: str, target: str | None = None, k: int = 5) -> Lens:
        """Return the predictions that the model would make if it stopped after each layer."""
        return logit_lens(self.model, self.read(text, target), self.outcome.names, k)

    def token_scores(self, text: str, target: str | None = None, k: int = 5) -> TokenScores:
        """Return the probability and rank of each token, and the `k` most likely tokens at its position."""
        return token_scores(self.model, self._scored(text, target), self.words, k)

    def token_scores_in_steps(self, text: str, target: str | None = None, k: int = 5) -> Steps[None, None, TokenScores]:
        """Compute `token_scores` as a generator that yields after each short step, so that other work can run."""
        return token_scores_in_steps(self.model, self._scored(text, target), self.words, k)

    def token_nlls(self, text: str, target: str | None = None) -> TokenNlls:
        """Return the surprisal (-log p) of each token, or of each label of a classifier."""
        if self.kind == "classifier":
            with evaluating(self.model), torch.inference_mode():
                label_log_probs = scores(self.model, self.read(text))[0, 0].log_softmax(-1)
            return TokenNlls(self.outcomes, -label_log_probs.cpu().numpy())
        scored = self.token_scores(text, target, k=1)
        return TokenNlls([token.text for token in scored.tokens], -scored.log_probs)

    def loss_by_position(self, texts: Sequence[str], targets: Sequence[str] | None = None) -> LossByPosition:
        """Return the mean loss at each position.

        A language model reads each text in adjacent windows of the context length. For a translator, `targets` are
        required.
        """
        if self.kind == "writer":
            readings = [window for text in texts for window in self.reader.windows(text)]
        else:
            given = [None] * len(texts) if targets is None else targets
            readings = [self.read(text, target) for text, target in zip(texts, given, strict=True)]
        return loss_by_position(self.model, readings)

    def attribution(
        self,
        text: str,
        target: str | None = None,
        *,
        position: int | None = None,
        method: Method = "integrated_gradients",
        n_steps: int = N_STEPS,
    ) -> Attribution:
        """Attribute the token after a position, or a classifier's label, to the model's input tokens.

        The default position is the last for a language model, and the first for a translator. At the end of a text, the
        most likely next token is attributed.
        """
        reading = self.read(text, target)
        objective = self.outcome.aim(reading, target, position)
        return attribution(self.model, reading, objective, self.outcome.names, method, n_steps)

    def occlusion(self, text: str, target: str | None = None) -> Occlusion:
        """Return the effect of each token on a classifier's label, measured by leaving the token out."""
        if not isinstance(self.model, EncoderOnly):
            raise UsageError("occlusion needs a classifier; this is a " + self.kind)
        reading, label = self.read(text), self.outcome.label(target)
        label = likeliest_outcome(self.model, reading, 0) if label is None else label
        return occlusion(self.model, reading, label, self.outcomes[label])

    @property
    def shape(self) -> ModelKind:
        """The attribute `kind`. Deprecated alias, kept for older scripts."""
        warn("Inspector.shape is deprecated: use Inspector.kind", PenwrightWarning, stacklevel=2)
        return self.kind

    def surprises(self, text: str, target: str | None = None) -> TokenNlls:
        """Call `token_nlls`. Deprecated alias, kept for older scripts."""
        warn("Inspector.surprises is deprecated: use Inspector.token_nlls", PenwrightWarning, stacklevel=2)
        return self.token_nlls(text, target)

    def leaving_out(self, text: str, target: str | None = None) -> Occlusion:
        """Call `occlusion`. Deprecated alias, kept for older scripts."""
        warn("Inspector.leaving_out is deprecated: use Inspector.occlusion", PenwrightWarning, stacklevel=2)
        return self.occlusion(text, target)

    def ablate(self, text: str, heads: Sequence[str], target: str | None = None, k: int = 5) -> Ablation:
        """Return the effect of ablating heads; "3.2" is head 2 of layer 3, "cross.3.2" a cross-attention head."""
        chosen = [parse_head(head, self.model) for head in heads]
        return ablate(self.model, self.read(text, target), chosen, self.outcome.names, k, self.outcome.label(target))

    def head_importance(self, text: str, target: str | None = None) -> tuple[HeadImportance, ...]:
        """Return the increase in loss when each head is ablated, one at a time."""
        return head_importance(self.model, self.read(text, target), self.outcome.label(target))

    def arithmetic(self, text: str, head: str, target: str | None = None) -> HeadArithmetic:
        """Return the steps of one head's computation: queries, keys, scores, weights, values and output."""
        return head_arithmetic(self.model, self.read(text, target), parse_head(head, self.model))

    def neighbours(self, word: str, k: int = 10, side: Side | None = None) -> Neighbours:
        """Return the tokens nearest to a word, which is read with a leading space if this yields a single token."""
        return neighbours(self.model, self.tokenizer, word, k, side)

    def embedding_map(self, words: Sequence[str] | None = None, n: int = 500, side: Side | None = None) -> EmbeddingMap:
        """Project words, or the first `n` tokens, onto the first two principal components of their vectors."""
        return embedding_map(self.model, self.tokenizer, words, n, side)

    def positions(self, n: int | None = None, side: Side | None = None) -> PositionalSimilarity:
        """Return the vectors of positions and their similarities."""
        return positional_similarity(self.model, n, side)

    def induction(self, n: int = 50, seed: int = 0) -> HeadStatistics:
        """Return the head statistics of a language model on a sequence of `n` random tokens, repeated once.

        Only induction can predict the second half. In ordinary texts, words may repeat for other reasons. This is the
        test of Olsson et al. (2022).
        """
        if self.kind != "writer":
            raise UsageError("induction needs a language model; this is a " + self.kind)
        return head_statistics(attention_maps(self.model, self.reader.repeated(n, seed)).parts[0])

    @property
    def _parts(self) -> list[str]:
        return list(dict.fromkeys(head.part for head in all_heads(self.model)))

    def _scored(self, text: str, target: str | None) -> ForwardPass:
        """Return the tokens to score: the whole text for a language model, else the part that fits in the context."""
        return self.reader.whole(text, target) if self.kind == "writer" else self.read(text, target)
