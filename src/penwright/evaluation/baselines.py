"""Baselines: n-gram models as language models, and a word-by-word dictionary as a translator."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penwright.text import CHINESE_OR_JAPANESE, words

ORDER = 5  # maximum number of tokens in an n-gram of the Kneser-Ney model
MOST_COUNTED = 2_000_000  # maximum number of training tokens of the Kneser-Ney model; its counts take 0.3 GB
CHUNK = 1_000_000  # number of held-out tokens to score at once
MOST_LINKS = 2_000_000  # maximum number of word pairs for learning the dictionary
LONGEST = 60  # maximum number of words per sentence for learning the dictionary
ROUNDS = 5  # number of rounds of expectation maximization
PUNCTUATION = re.compile(r"[^\w\s'’-]")
CLOSING = re.compile(r"[.,;:!?…%)\]}»”]")  # punctuation that is never preceded by a space

Counts = NDArray[np.float64]
Tokens = NDArray[np.integer]
Scored = NDArray[np.bool_]


def ngram_baselines(
    training: Tokens, held_out: Tokens, vocab_size: int, order: int = ORDER, is_scored: Scored | None = None
) -> dict[str, float]:
    """Return the nats per token of a unigram model, a bigram model and a Kneser-Ney 5-gram model.

    Smoothing gives every token a positive probability. The unigram model uses add-one smoothing. The bigram model uses
    Witten-Bell smoothing (1991): the more distinct tokens have followed a context, the less the context counts. The
    5-gram model counts at most MOST_COUNTED tokens. With an `order` of 1, only the unigram model is scored. `is_scored`
    says which held-out tokens count as targets; the first one never does. The result is empty if none does.
    """
    chosen = (np.ones(len(held_out), dtype=np.bool_) if is_scored is None else is_scored)[1:]
    if not chosen.any():
        return {}
    counts = np.bincount(training, minlength=vocab_size).astype(np.float64) + 1
    unigram = counts / counts.sum()
    if order == 1:
        return {"unigram": float(-np.log(unigram[held_out[1:][chosen]]).mean())}
    before, after = (part[chosen].astype(np.int64) for part in (held_out[:-1], held_out[1:]))
    pairs, pair_counts = np.unique(training[:-1].astype(np.int64) * vocab_size + training[1:], return_counts=True)
    seen = np.bincount(pairs // vocab_size, weights=pair_counts, minlength=vocab_size)[before]
    kinds = np.bincount(pairs // vocab_size, minlength=vocab_size)[before]
    wanted = before * vocab_size + after
    pairs, pair_counts = np.append(pairs, -1), np.append(pair_counts, 0)  # a sentinel for lookups past the last pair
    place = np.searchsorted(pairs[:-1], wanted)
    together = np.where(pairs[place] == wanted, pair_counts[place], 0)
    bigram = (together + kinds * unigram[after]) / np.maximum(seen + kinds, 1)
    bigram = np.where(seen == 0, unigram[after], bigram)
    counted = training[:MOST_COUNTED]
    part = f" of the first {len(counted):,} tokens" if len(counted) < len(training) else ""
    return {
        "unigram": float(-np.log(unigram[after]).mean()),
        "bigram": float(-np.log(bigram).mean()),
        f"Kneser-Ney {ORDER}-gram{part}": kneser_ney(counted, held_out, vocab_size, is_scored),
    }


class _Order(NamedTuple):
    """The n-grams of one length, with their counts. `codes` identifies each n-gram by one integer."""

    codes: NDArray[np.int64]  # (index of the first n - 1 tokens) * vocabulary size + last token
    # The arrays below end with a zero, which represents n-grams and contexts that were not counted.
    discounted: Counts  # count of each n-gram, minus the discount
    totals: Counts  # sum of the counts of all n-grams with the same context
    freed: Counts  # total discount of each context, which is redistributed to shorter n-grams

    def find(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index of each n-gram in `codes`, or -1 if the n-gram was not counted."""
        places = np.searchsorted(self.codes, codes)
        return np.where(np.append(self.codes, -1)[places] == codes, places, -1)


def kneser_ney(training: Tokens, held_out: Tokens, vocab_size: int, is_scored: Scored | None = None) -> float:
    """Return the nats per token of an interpolated model with modified Kneser-Ney smoothing (Chen and Goodman 1998).

    The first held-out token is not scored, nor those that `is_scored` leaves out.
    """
    orders, nats = _count(training.astype(np.int64), vocab_size), 0.0
    chosen = np.ones(len(held_out), dtype=np.bool_) if is_scored is None else is_scored
    for begin in range(1, len(held_out), CHUNK):
        first = max(0, begin - ORDER + 1)
        tokens = held_out[first : begin + CHUNK].astype(np.int64)
        probabilities = _probabilities(orders, tokens, vocab_size)[begin - first :]
        nats -= float(np.log(probabilities[chosen[begin : begin + CHUNK]]).sum())
    return nats / int(chosen[1:].sum())


def _count(tokens: NDArray[np.int64], vocab_size: int) -> list[_Order]:
    """Count the n-grams of the longest length; for shorter n-grams, count the distinct tokens that precede them."""
    numbers, n_contexts = np.zeros(len(tokens) + 1, np.int64), 1
    shorter: tuple[NDArray[np.int64], int] | None = None  # codes of the (n - 1)-grams, and number of (n - 2)-grams
    orders: list[_Order] = []
    for n in range(1, ORDER + 1):
        own = numbers[: max(0, len(tokens) - n + 1)] * vocab_size + tokens[n - 1 :]
        codes, firsts, inverse, counts = np.unique(own, return_index=True, return_inverse=True, return_counts=True)
        if shorter is not None:
            n_before = np.bincount(numbers[firsts + 1], minlength=len(shorter[0]))
            orders.append(_smooth(shorter[0], n_before, shorter[1], vocab_size))
            n_contexts = len(shorter[0])
        shorter, numbers = (codes, n_contexts), inverse.reshape(-1)
    return [*orders, _smooth(codes, counts, n_contexts, vocab_size)]


def _smooth(codes: NDArray[np.int64], counts: NDArray[np.int64], n_contexts: int, vocab_size: int) -> _Order:
    """Discount the counts. N-grams with count 1, 2, and 3 or more have different discounts, estimated from the text."""
    one, two, three, four = (max(1, int((counts == n).sum())) for n in range(1, 5))
    share = one / (one + 2 * two)
    steps = [0.0, 1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three]
    bounded = np.array([max(0.1 * n, min(0.95 * n, step)) for n, step in enumerate(steps)])
    discounts = bounded[np.minimum(counts, 3)]
    contexts = codes // vocab_size
    totals = np.bincount(contexts, weights=counts, minlength=n_contexts)
    freed = np.bincount(contexts, weights=discounts, minlength=n_contexts)
    return _Order(codes, *(np.append(each, 0) for each in (counts - discounts, totals, freed)))


def _probabilities(orders: Sequence[_Order], tokens: NDArray[np.int64], vocab_size: int) -> Counts:
    """Return the probability of each token, given the ones before it."""
    probabilities, numbers = np.full(len(tokens), 1 / vocab_size), np.zeros(len(tokens) + 1, np.int64)
    for n, order in enumerate(orders, 1):
        contexts, shorter = numbers[: max(0, len(tokens) - n + 1)], probabilities[n - 1 :]
        numbers = np.where(contexts < 0, -1, order.find(contexts * vocab_size + tokens[n - 1 :]))
        totals = order.totals[contexts]
        mixed = (order.discounted[numbers] + order.freed[contexts] * shorter) / np.maximum(totals, 1)
        probabilities[n - 1 :] = np.where(totals > 0, mixed, shorter)
    return probabilities


def learn_dictionary(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the most probable translation of each word, by IBM Model 1 (Brown et al. 1993)."""
    sides: tuple[dict[str, int], dict[str, int]] = ({}, {})
    blocks: list[
        NDArray[np.int64]
    ] = []  # one array per sentence pair, with three rows: target position, source word, target word
    n_links = n_targets = 0
    for texts in pairs:
        source, target = (
            np.array([own.setdefault(word, len(own)) for word in words(text)[:LONGEST]], np.int64)
            for own, text in zip(sides, map(_separated, texts), strict=True)
        )
        places = n_targets + np.arange(len(target))
        blocks.append(
            np.stack([np.repeat(places, len(source)), np.tile(source, len(target)), np.repeat(target, len(source))])
        )
        n_links, n_targets = n_links + len(source) * len(target), n_targets + len(target)
        if n_links > MOST_LINKS:
            break
    if not n_links:
        return {}
    places, sources, targets = np.concatenate(blocks, 1)
    codes, inverse = np.unique(sources * len(sides[1]) + targets, return_inverse=True)
    inverse, given = inverse.reshape(-1), codes // len(sides[1])
    probabilities = np.ones(len(codes))  # probability of the target word, given the source word
    for _ in range(ROUNDS):
        shares = probabilities[inverse] / np.bincount(places, probabilities[inverse])[places]
        expected = np.bincount(inverse, shares)
        probabilities = expected / np.bincount(given, expected)[given]
    order = np.lexsort((probabilities, given))
    last = order[np.append(given[order][1:] != given[order][:-1], True)]
    source_words, target_words = map(list, sides)
    return {source_words[given[each]]: target_words[codes[each] % len(target_words)] for each in last.tolist()}


def translate_words(sources: Iterable[str], dictionary: Mapping[str, str]) -> Iterator[str]:
    """Yield the translation of each source, word by word. Unknown words are copied."""
    for source in sources:
        translated = [dictionary.get(word, word) for word in words(_separated(source))]
        gaps = [
            "" if CLOSING.match(b) or all(map(CHINESE_OR_JAPANESE.match, (a, b))) else " "
            for a, b in pairwise(translated)
        ]
        yield "".join(chain.from_iterable(zip(translated, [*gaps, ""], strict=False)))


def _separated(text: str) -> str:
    """Return the text with spaces around punctuation, to separate it from words."""
    return PUNCTUATION.sub(r" \g<0> ", text)
