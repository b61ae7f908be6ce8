"""Word alignment from the cross-attention of a translator, recorded in forward passes over given translations."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt

from penwright.decoding.batches import batches_by_length, right_padded
from penwright.errors import PenwrightError
from penwright.model import evaluating
from penwright.model.attention_kernels import record_attention
from penwright.model.transformer import EncoderDecoder
from penwright.text import WordSpan, joined, span_indices, word_spans, words
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed

BATCH_TOKENS = 2048
Maps = Float[np.ndarray, "layers heads steps sources"]
ITERATIONS = 8  # number of EM iterations
TENSION = 4.0  # penalty in nats for a link that is a whole sentence length away from the diagonal
Links = frozenset[tuple[int, int]]  # (index of the source word, index of the target word)
Cut = Callable[[str], Sequence[WordSpan]]  # a function that splits a text into words
Weights = Float[np.ndarray, "target_words source_words"]  # attention of target words to source words


class TokenPair(NamedTuple):
    """A source and a target, both without start and end tokens."""

    source: Sequence[int]
    target: Sequence[int]


@torch.inference_mode()
def cross_attention(model: EncoderDecoder, tokenizer: Tokenizer, pairs: Sequence[TokenPair]) -> list[Maps | None]:
    """Return the cross-attention of each pair, with a row for the start token and for each target token.

    The end token of the source is left out. The result of a pair that is longer than the model's context is None.
    """
    results: dict[int, Maps] = {}
    before = (tokenizer.start_id, *tokenizer.target_prefix)
    first_row, first_column = len(before) - 1, tokenizer.n_before_source
    names = [f"blocks.{layer}.cross_attention" for layer in range(model.n_decoder_layers)]
    lengths = [max(len(tokenizer.source(pair.source)), len(before) + len(pair.target)) for pair in pairs]
    fitting = [number for number, length in enumerate(lengths) if length <= model.settings.context_length]
    with evaluating(model) as device:
        for places in batches_by_length([lengths[number] for number in fitting], BATCH_TOKENS):
            batch = [fitting[place] for place in places]
            sources = right_padded([tokenizer.source(pairs[number].source) for number in batch], device)
            targets = right_padded([[*before, *pairs[number].target] for number in batch], device)
            with record_attention(model.decoder) as maps:
                model(*sources, targets.tokens)
            layers = torch.stack([maps[name][0] for name in names]).float().cpu().numpy()
            for row, number in enumerate(batch):
                source, target = pairs[number]
                maps_of_pair = layers[:, row, :, first_row:, first_column:]
                results[number] = maps_of_pair[:, :, : len(target) + 1, : len(source)]
    return [results.get(number) for number in range(len(pairs))]


def coverage(maps: Maps | None) -> float:
    """Return the coverage of the source in nats: 0 if each source token receives a total attention of at least 1.

    This is the sum over source tokens of log(min(1, attention received)) (Wu et al. 2016, equation 14). The attention
    is the mean of all heads. The result for None, a pair longer than the context, is 0.
    """
    if maps is None:
        return 0.0
    received = maps.mean((0, 1)).sum(0)
    return float(np.log(np.clip(received, 1e-6, 1.0)).sum())


@dataclass(frozen=True)
class AlignmentHead:
    """A cross-attention head, and the decoding step from which its weights are taken."""

    layer: NonNegativeInt
    head: NonNegativeInt
    # 0 for the step that outputs a token, 1 for the next step, which takes this token as input
    shift: Annotated[int, Field(ge=0, le=1)]


class Agreement(NamedTuple):
    """The agreement of an attention head's links with the links of a lexical model."""

    head: AlignmentHead
    f1: float


class Aligner:
    """A word aligner for sentence pairs, based on one cross-attention head (None: the mean of all heads).

    Unless `cut` is given, texts are split into words at white space. In scripts without spaces, each character is a
    word.
    """

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, head: AlignmentHead | None, cut: Cut = word_spans):
        self._model, self._tokenizer, self.head, self._cut = model, tokenizer, head, cut

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[Links]:
        """Link each target word of each pair to the source word that it attends to most.

        Target words without attention have no link. Pairs longer than the model's context have no links.
        """
        return [links_of(weights) for weights in self.weights(pairs)]

    def weights(self, pairs: Sequence[tuple[str, str]]) -> list[Weights]:
        """Return the attention of each target word to each source word, for each pair.

        Weights are summed over the tokens of a source word and averaged over the tokens of a target word. Rows sum to
        less than 1, since the source's end token is left out. Pairs longer than the context have weights of 0.
        """
        return [
            np.zeros((len(self._cut(pair[1])), len(self._cut(pair[0]))))
            if attention is None
            else word_weights(attention, pair, self.head, self._tokenizer, self._cut)
            for attention, pair in zip(_maps(self._model, self._tokenizer, pairs), pairs, strict=True)
        ]


def choose_head(model: EncoderDecoder, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Agreement]:
    """Rank all heads, best first, by how well their word links agree with those that a lexical model finds.

    Pairs that are longer than the model's context are left out. Raises PenwrightError if no pair remains.
    """
    found = zip(_maps(model, tokenizer, pairs), pairs, strict=True)
    known = [(maps, pair) for maps, pair in found if maps is not None]
    if not known:
        raise PenwrightError("there is no sentence pair that fits the model's context: give other pairs")
    heads = [
        AlignmentHead(layer, head, shift)
        for layer in range(model.n_decoder_layers)
        for head in range(model.settings.n_heads)
        for shift in (0, 1)
    ]
    links: dict[AlignmentHead, list[Links]] = {head: [] for head in heads}
    for attention, pair in known:
        for head in heads:
            links[head].append(links_of(word_weights(attention, pair, head, tokenizer)))
    silver = lexical_links([pair for _, pair in known])
    agreements = [Agreement(head, f1(links[head], silver)) for head in heads]
    return sorted(agreements, key=lambda agreement: -agreement.f1)


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Format links as sorted `i-j` pairs (the Pharaoh format)."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def f1(predicted: Sequence[Links], expected: Sequence[Links]) -> float:
    """Return the harmonic mean of precision and recall, 0 to 1: 1 minus the alignment error rate (Och and Ney 2003)."""
    common = sum(len(one & other) for one, other in zip(predicted, expected, strict=True))
    return 2 * common / max(1, sum(map(len, predicted)) + sum(map(len, expected)))


def _maps(model: EncoderDecoder, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Maps | None]:
    encoded = [TokenPair(tokenizer.encode(source), tokenizer.target.encode(target)) for source, target in pairs]
    return cross_attention(model, tokenizer, encoded)


def word_weights(
    maps: Maps, pair: tuple[str, str], head: AlignmentHead | None, tokenizer: Tokenizer, cut: Cut = word_spans
) -> Weights:
    """Return the attention between words, for one head or, if `head` is None, averaged over all heads."""
    sources, targets = (
        np.array(word_numbers(side, side_tokenizer, cut), dtype=np.int64)
        for side, side_tokenizer in zip(pair, (tokenizer, tokenizer.target), strict=True)
    )
    if head is None:
        by_token = maps.mean((0, 1))[: len(targets)]
    else:
        by_token = maps[head.layer, head.head, head.shift : head.shift + len(targets)]
    weights = np.zeros((len(cut(pair[1])), len(cut(pair[0]))))
    targets = targets[: len(by_token)]
    for word in range(len(weights)):
        of_word = np.flatnonzero(targets == word)
        if not of_word.size:  # no token ends in this word: it shares its token with a later word
            of_word = np.flatnonzero(targets > word)[:1]
        token_rows = by_token[of_word]
        if token_rows.size and weights.size:
            np.add.at(weights[word], sources, token_rows.mean(0))
    return weights


def links_of(weights: Weights) -> Links:
    """Link each target word to the source word that it attends to most; words without attention have no link."""
    return frozenset((int(row.argmax()), word) for word, row in enumerate(weights) if row.size and row.max() > 0)


def word_numbers(text: str, tokenizer: Tokenizer, cut: Cut = word_spans) -> list[int]:
    """Return the index of the word in which each token ends (of the preceding word if it ends between words)."""
    text = well_formed(text)
    return span_indices(text, cut(text), tokenizer.sizes(text))


def lexical_links(pairs: Sequence[tuple[str, str]]) -> list[Links]:
    """Return the links that a lexical model, trained on these pairs, finds in both directions."""
    forwards = _best_partners(pairs)
    backwards = _best_partners([(target, source) for source, target in pairs])
    return [one & frozenset((i, j) for j, i in other) for one, other in zip(forwards, backwards, strict=True)]


def _best_partners(pairs: Sequence[tuple[str, str]]) -> list[Links]:
    """Link each target word to its most probable source word, by EM over all pairs."""
    source_ids, target_ids, target_words, sizes = _co_occurrences(pairs)
    keys, which = np.unique(source_ids * (target_ids.max(initial=0) + 1) + target_ids, return_inverse=True)
    source_of_key = keys // (target_ids.max(initial=0) + 1)
    table = np.ones(len(keys))
    for iteration in range(ITERATIONS):
        # the first half of the iterations ignores the diagonal prior
        weights = table[which] * (target_words.prior if 2 * iteration >= ITERATIONS else 1.0)
        shares = weights / np.maximum(np.bincount(target_words.target, weights=weights), 1e-300)[target_words.target]
        counts = np.bincount(which, weights=shares, minlength=len(keys))
        table = counts / np.maximum(np.bincount(source_of_key, weights=counts), 1e-300)[source_of_key]
    weights = table[which] * target_words.prior
    links, start = [], 0
    for n_source, n_target in sizes:
        block = weights[start : start + n_source * n_target].reshape(n_target, n_source)
        start += n_source * n_target
        links.append(frozenset((int(i), j) for j, i in enumerate(block.argmax(1))) if block.size else frozenset())
    return links


class _TargetWords(NamedTuple):
    """The index of the target word and the prior weight of the link, for each pair of a source and a target word."""

    target: NDArray[np.int64]
    prior: NDArray[np.float64]


def _co_occurrences(
    pairs: Sequence[tuple[str, str]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], _TargetWords, list[tuple[int, int]]]:
    """Pair each target word with each source word of the same sentence pair, in the order of target words."""
    known: tuple[dict[str, int], dict[str, int]] = ({}, {})
    sources, targets, target_numbers, priors, sizes = [], [], [], [], []
    n_targets = 0
    for pair in pairs:
        source, target = (
            np.array([ids.setdefault(_plain(word), len(ids)) for word in words(text)], dtype=np.int64)
            for ids, text in zip(known, pair, strict=True)
        )
        sources.append(np.tile(source, len(target)))
        targets.append(np.repeat(target, len(source)))
        target_numbers.append(np.repeat(np.arange(n_targets, n_targets + len(target)), len(source)))
        offsets = np.arange(len(source)) / max(1, len(source)) - (np.arange(len(target)) / max(1, len(target)))[:, None]
        priors.append(np.exp(-TENSION * np.abs(offsets)).ravel())
        sizes.append((len(source), len(target)))
        n_targets += len(target)
    return (
        np.concatenate(sources),
        np.concatenate(targets),
        _TargetWords(np.concatenate(target_numbers), np.concatenate(priors)),
        sizes,
    )


def _plain(word: str) -> str:
    return word.strip(".,;:!?\"'()„“”«»").casefold() or word


def pieces_of_words(text: str, tokenizer: Tokenizer) -> list[WordSpan]:
    """Return the word spans of a text, joining words that share a token.

    In Chinese, Japanese, Thai, Lao, Khmer and Burmese, which do not separate words, words end where tokens end.
    """
    return joined(text, word_spans(text), tokenizer.sizes(text))
