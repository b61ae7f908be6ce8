"""Which words of a translation stand for which words of its source: from one head of attention, chosen on data.

No head is the right one in every model, and least of all the last layer's by habit. So each is asked, at the step that
writes a word and at the step that reads it (Chen et al. 2020, "Accurate Word Alignment Induction from Neural Machine
Translation"), and the one is taken that agrees best with what the corpus itself tells: links that a lexical model finds
in both directions (IBM model 1 with a preference for the diagonal, after Dyer et al. 2013).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from penwright.model.encoder_decoder import EncoderDecoder
from penwright.text import words
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.tokenizer import well_formed
from penwright.translation.cross_attention import Maps, TokenPair, cross_attention
from penwright.translation.words import WordSpan, numbers_of, token_sizes, word_spans

ITERATIONS = 8  # of expectation and maximisation
TENSION = 4.0  # how much less likely a link is that is one whole sentence off the diagonal, in nats
Links = frozenset[tuple[int, int]]  # numbers of a source word and a target word, as words() parts them
Cut = Callable[[str], Sequence[WordSpan]]  # a text into words
Weights = Float[np.ndarray, "target_words source_words"]  # of each target word on each source word


class AlignmentHead(NamedTuple):
    """A head of a decoder's cross-attention."""

    layer: int
    head: int
    shift: int  # 0: when a token is written; 1: when it has been written, and is read


class Agreement(NamedTuple):
    """How well a head's links agree with those of a lexical model."""

    head: AlignmentHead
    f1: float


class Aligner:
    """Aligns pairs of sentences by one head of the model that could have translated them; None: by all at once.

    Words are what white space parts, and single characters in scripts that have none, unless `cut` says otherwise.
    """

    def __init__(self, model: EncoderDecoder, tokenizer: Tokenizer, head: AlignmentHead | None, cut: Cut = word_spans):
        self._model, self._tokenizer, self.head, self._cut = model, tokenizer, head, cut

    def align(self, pairs: Sequence[tuple[str, str]]) -> list[Links]:
        """The links of each pair: every target word has the source word that it looks at most, if any.

        Pairs longer than the model's context have none.
        """
        return [links_of(weights) for weights in self.weights(pairs)]

    def weights(self, pairs: Sequence[tuple[str, str]]) -> list[Weights]:
        """How much each target word of each pair looks at each source word; less than 1 in all.

        The sum over the source word's tokens, and the mean over the target word's. 0 for pairs longer than the context.
        """
        longest = self._model.settings.context_length - 1
        short = [
            n for n, pair in enumerate(pairs) if max(len(self._tokenizer.encode(side)) for side in pair) <= longest
        ]
        maps = _maps(self._model, self._tokenizer, [pairs[number] for number in short])
        weights = [np.zeros((len(self._cut(target)), len(self._cut(source)))) for source, target in pairs]
        for number, each in zip(short, maps, strict=True):
            weights[number] = word_weights(each, pairs[number], self.head, self._tokenizer, self._cut)
        return weights


def choose_head(model: EncoderDecoder, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Agreement]:
    """All heads, the one that agrees best with the lexical links of the pairs first."""
    heads = [
        AlignmentHead(layer, head, shift)
        for layer in range(model.n_decoder_layers)
        for head in range(model.settings.n_heads)
        for shift in (0, 1)
    ]
    links: dict[AlignmentHead, list[Links]] = {head: [] for head in heads}
    for each, pair in zip(_maps(model, tokenizer, pairs), pairs, strict=True):
        for head in heads:
            links[head].append(links_of(word_weights(each, pair, head, tokenizer)))
    silver = lexical_links(pairs)
    agreements = [Agreement(head, f1(links[head], silver)) for head in heads]
    return sorted(agreements, key=lambda agreement: -agreement.f1)


def pharaoh(links: Iterable[tuple[int, int]]) -> str:
    """Links as i-j, in order."""
    return " ".join(f"{source}-{target}" for source, target in sorted(links))


def error_rate(found: Sequence[Links], expected: Sequence[Links]) -> float:
    """Alignment error rate (Och and Ney 2003) against links that are all sure, 0 to 1."""
    return 1 - f1(found, expected)


def f1(found: Sequence[Links], expected: Sequence[Links]) -> float:
    """The harmonic mean of precision and recall, 0 to 1."""
    common = sum(len(one & other) for one, other in zip(found, expected, strict=True))
    return 2 * common / max(1, sum(map(len, found)) + sum(map(len, expected)))


def _maps(model: EncoderDecoder, tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]]) -> list[Maps]:
    return cross_attention(model, tokenizer, [TokenPair(*map(tokenizer.encode, pair)) for pair in pairs])


def word_weights(
    maps: Maps, pair: tuple[str, str], head: AlignmentHead | None, tokenizer: Tokenizer, cut: Cut = word_spans
) -> Weights:
    """Those of one head, or of the mean of all heads at the steps that write a word."""
    sources, targets = (np.array(word_numbers(side, tokenizer, cut), dtype=np.int64) for side in pair)
    if head is None:
        by_token = maps.mean((0, 1))[: len(targets)]
    else:
        by_token = maps[head.layer, head.head, head.shift : head.shift + len(targets)]
    found = np.zeros((len(cut(pair[1])), len(cut(pair[0]))))
    targets = targets[: len(by_token)]
    for word in range(len(found)):
        of_word = np.flatnonzero(targets == word)
        if not of_word.size:  # one of several characters of a token
            of_word = np.flatnonzero(targets > word)[:1]
        mine = by_token[of_word]
        if mine.size and found.size:
            np.add.at(found[word], sources, mine.mean(0))
    return found


def links_of(weights: Weights) -> Links:
    """Each target word with the source word that it looks at most, if any."""
    return frozenset((int(row.argmax()), word) for word, row in enumerate(weights) if row.size and row.max() > 0)


def word_numbers(text: str, tokenizer: Tokenizer, cut: Cut = word_spans) -> list[int]:
    """For each token of the text, the number of the word that it ends in, or that stands before it."""
    text = well_formed(text)
    return numbers_of(text, cut(text), token_sizes(text, tokenizer))


def lexical_links(pairs: Sequence[tuple[str, str]]) -> list[Links]:
    """The links that a lexical model of these pairs finds in both directions."""
    forwards = _best_partners(pairs)
    backwards = _best_partners([(target, source) for source, target in pairs])
    return [one & frozenset((i, j) for j, i in other) for one, other in zip(forwards, backwards, strict=True)]


def _best_partners(pairs: Sequence[tuple[str, str]]) -> list[Links]:
    """For each target word the likeliest source word, by expectation and maximisation over all pairs."""
    source_ids, target_ids, place, sizes = _co_occurrences(pairs)
    keys, which = np.unique(source_ids * (target_ids.max(initial=0) + 1) + target_ids, return_inverse=True)
    source_of_key = keys // (target_ids.max(initial=0) + 1)
    table = np.ones(len(keys))
    for iteration in range(ITERATIONS):
        weights = table[which] * (place.prior if 2 * iteration >= ITERATIONS else 1.0)  # words first, then places
        shares = weights / np.maximum(np.bincount(place.target, weights=weights), 1e-300)[place.target]
        counts = np.bincount(which, weights=shares, minlength=len(keys))
        table = counts / np.maximum(np.bincount(source_of_key, weights=counts), 1e-300)[source_of_key]
    weights = table[which] * place.prior
    links, start = [], 0
    for n_source, n_target in sizes:
        block = weights[start : start + n_source * n_target].reshape(n_target, n_source)
        start += n_source * n_target
        links.append(frozenset((int(i), j) for j, i in enumerate(block.argmax(1))) if block.size else frozenset())
    return links


class _Places(NamedTuple):
    """Of each co-occurrence: the running number of its target word, and how likely its place is."""

    target: NDArray[np.int64]
    prior: NDArray[np.float64]


def _co_occurrences(
    pairs: Sequence[tuple[str, str]],
) -> tuple[NDArray[np.int64], NDArray[np.int64], _Places, list[tuple[int, int]]]:
    """Every target word with every source word of its pair, target by target."""
    known: tuple[dict[str, int], dict[str, int]] = ({}, {})
    sources, targets, places, priors, sizes = [], [], [], [], []
    n_targets = 0
    for pair in pairs:
        source, target = (
            np.array([ids.setdefault(_plain(word), len(ids)) for word in words(text)], dtype=np.int64)
            for ids, text in zip(known, pair, strict=True)
        )
        sources.append(np.tile(source, len(target)))
        targets.append(np.repeat(target, len(source)))
        places.append(np.repeat(np.arange(n_targets, n_targets + len(target)), len(source)))
        across = np.arange(len(source)) / max(1, len(source)) - (np.arange(len(target)) / max(1, len(target)))[:, None]
        priors.append(np.exp(-TENSION * np.abs(across)).ravel())
        sizes.append((len(source), len(target)))
        n_targets += len(target)
    return (
        np.concatenate(sources),
        np.concatenate(targets),
        _Places(np.concatenate(places), np.concatenate(priors)),
        sizes,
    )


def _plain(word: str) -> str:
    return word.strip(".,;:!?\"'()„“”«»").casefold() or word
