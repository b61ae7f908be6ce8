"""The `Inspector`, which shows what a model computes for a text."""

from collections.abc import Generator as Steps
from collections.abc import Sequence
from warnings import warn

from penwright.application import ModelKind
from penwright.classification.classifier import Classifier
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
from penwright.inspection.comparison import TokenNlls
from penwright.inspection.embeddings import (
    EmbeddingMap,
    Neighbours,
    PositionalSimilarity,
    embedding_map,
    neighbours,
    positional_similarity,
)
from penwright.inspection.forward_pass import ForwardPass, Side, spelling, vocabulary
from penwright.inspection.gradients import N_STEPS, Attribution, Method, attribution
from penwright.inspection.head_statistics import HeadStatistics, head_statistics, statistics_by_part
from penwright.inspection.inputs import Inspected, Outcomes, TextReader
from penwright.inspection.logit_attribution import Lens, LogitAttribution, logit_attribution, logit_lens
from penwright.inspection.model_map import ModelMap, PlaceDetail, model_map, place_detail
from penwright.inspection.patching import Patching, PatchKind, patching, preferences
from penwright.inspection.paths import Paths, paths
from penwright.inspection.token_scores import (
    LossByPosition,
    TokenScores,
    label_log_probs,
    loss_by_position,
    token_scores,
    token_scores_in_steps,
)
from penwright.model.transformer import EncoderOnly
from penwright.translation.translator import Translator


class Inspector:
    """An inspector of a model and its tokenizer, for any text.

    `target` is a translation for a translator, or a label for a classifier; the default is the model's own prediction.
    A language model has no target. A text longer than the context is cut, with a message in `warnings`; only
    `token_scores` and `loss_by_position` process all of a language model's text. Methods raise UsageError for parts
    that the model lacks, for example layer 6 of a model with six layers.
    """

    def __init__(self, application: Inspected):
        self.application = application
        self.model, self.tokenizer = application.model, application.tokenizer
        self.reader = TextReader(application)
        self.words = vocabulary(self.tokenizer)  # readable text of each token
        self.outcomes = list(application.labels) if isinstance(application, Classifier) else self.words
        self.outcome = Outcomes(self.model, self.outcomes)

    def __repr__(self) -> str:
        return f"<Inspector of {self.application!r}>"

    @property
    def kind(self) -> ModelKind:
        """The kind of model: `"writer"`, `"translator"` or `"classifier"`."""
        return self.application.kind

    def read(self, text: str, target: str | None = None) -> ForwardPass:
        """Return the model's input tokens for a text, cut to fit the context."""
        return self.reader.read(text, target)

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
        """Return the statistics of every head, grouped by part of the model."""
        return statistics_by_part(self.model, self.read(text, target))

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
        return token_scores(self.model, self.reader.scored(text, target), self.words, k)

    def token_scores_in_steps(self, text: str, target: str | None = None, k: int = 5) -> Steps[None, None, TokenScores]:
        """Compute `token_scores` as a generator that yields after each short step, so that other work can run."""
        return token_scores_in_steps(self.model, self.reader.scored(text, target), self.words, k)

    def token_nlls(self, text: str, target: str | None = None) -> TokenNlls:
        """Return the surprisal (-log p) of each token, or of each label of a classifier."""
        if self.kind == "classifier":
            return TokenNlls(self.outcome.names, -label_log_probs(self.model, self.read(text)), are_labels=True)
        scored = self.token_scores(text, target, k=1)
        texts, spelled = [token.text for token in scored.tokens], spelling(self.tokenizer.target, scored.tokens)
        return TokenNlls(texts, -scored.log_probs, spelled)

    def loss_by_position(self, texts: Sequence[str], targets: Sequence[str] | None = None) -> LossByPosition:
        """Return the mean loss at each position.

        For a language model, each text is split into consecutive windows of the context length. For a translator,
        `targets` are required.
        """
        return loss_by_position(self.model, self.reader.read_all(texts, targets))

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

    def model_map(self, text: str, target: str | None = None, *, position: int | None = None, k: int = 10) -> ModelMap:
        """Return the overview of a whole forward pass, with the attention and prediction at one position.

        The default position is the last for a language model, and the first for a translator or classifier.
        """
        reading = self.read(text, target)
        return model_map(self.model, reading, self.outcome.names, reading.position(position), k)

    def place_detail(
        self, text: str, place: str, target: str | None = None, *, position: int | None = None, k: int = 10
    ) -> PlaceDetail:
        """Return the vectors at a place in the model, for one position.

        Places are "decoder.embedding", blocks such as "decoder.2", and "output".
        """
        reading = self.read(text, target)
        return place_detail(self.model, reading, self.outcome.names, place, reading.position(position), k)

    def logit_attribution(
        self,
        text: str,
        target: str | None = None,
        *,
        position: int | None = None,
        outcome: str | None = None,
        against: str | None = None,
    ) -> LogitAttribution:
        """Split the logit of an outcome into what each head, feed-forward network and embedding adds to it directly.

        `position` and `outcome` have the same defaults as in `attribution`. `against` is an outcome to compare with;
        the default is the mean of all outcomes.
        """
        reading = self.read(text, target)
        objective = self.outcome.aim(reading, target, position, outcome, against)
        return logit_attribution(self.model, reading, objective, self.outcome.names)

    def patching(
        self,
        text: str,
        other: str,
        target: str | None = None,
        *,
        kind: PatchKind = "residual",
        positions: Sequence[int] | None = None,
        position: int | None = None,
        outcome: str | None = None,
        against: str | None = None,
    ) -> tuple[Patching, ...]:
        """Return how much of the prediction for `text` each activation restores when patched into `other`.

        `kind` is "residual", "attention", "feed_forward" or "heads"; `positions` are the positions to patch. By
        default, `outcome` is the model's prediction for `text` at `position`, and `against` is its prediction for
        `other`. A translator uses the same `target` for both texts; its default `position` is the first at which the
        predictions differ.
        """
        texts = self.reader.read_both(text, other, target)
        chosen = [None if name is None else self.outcome.index(name) for name in (outcome, against)]
        objective = preferences(self.model, texts, position, chosen, last=self.kind == "writer")
        return patching(self.model, texts, objective, self.outcome.names, kind, positions)

    def paths(
        self,
        text: str,
        target: str | None = None,
        *,
        position: int | None = None,
        outcome: str | None = None,
        n_edges: int = 20,
    ) -> Paths:
        """Return the strongest paths between parts, with the effect of each path on an outcome.

        `position` and `outcome` have the same defaults as in `attribution`. Only the `n_edges` edges with the largest
        estimates are measured.
        """
        reading = self.read(text, target)
        objective = self.outcome.aim(reading, target, position, outcome)
        return paths(self.model, reading, objective, self.outcome.names, n_edges)

    def occlusion(self, text: str, target: str | None = None) -> Occlusion:
        """Return the effect of each token on a classifier's label, measured by leaving the token out."""
        if not isinstance(self.model, EncoderOnly):
            raise UsageError("occlusion needs a classifier; this is a " + self.kind)
        reading = self.read(text)
        label = self.outcome.aim(reading, target).outcome
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

    def neighbours(self, word: str, k: int = 10, side: Side | None = None, token: int | None = None) -> Neighbours:
        """Return the tokens nearest to a word, with a leading space if it is then one token, or to the given token."""
        return neighbours(self.model, self.tokenizer, word, k, side, token)

    def embedding_map(self, words: Sequence[str] | None = None, n: int = 500, side: Side | None = None) -> EmbeddingMap:
        """Project words, or the first `n` tokens, onto the first two principal components of their vectors."""
        return embedding_map(self.model, self.tokenizer, words, n, side)

    def positions(self, n: int | None = None, side: Side | None = None) -> PositionalSimilarity:
        """Return the position encodings and the similarities between them."""
        return positional_similarity(self.model, n, side)

    def induction(self, n: int = 50, seed: int = 0) -> HeadStatistics:
        """Return the head statistics of a language model on a sequence of `n` random tokens, repeated once.

        Only induction can predict the second half. In ordinary texts, words may repeat for other reasons. This is the
        test of Olsson et al. (2022).
        """
        if self.kind != "writer":
            raise UsageError("induction needs a language model; this is a " + self.kind)
        return head_statistics(attention_maps(self.model, self.reader.repeated(n, seed)).parts[0])
