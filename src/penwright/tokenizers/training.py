"""Trains a tokenizer on a stream of texts; the same texts always give the same file."""

import random
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from tokenizers import decoders, normalizers

from penwright.errors import PenwrightError
from penwright.tokenizers.kinds import KINDS, SPECIALS, Kind
from penwright.tokenizers.tokenizer import Tokenizer, well_formed, with_space

_SAMPLE_BYTES: dict[Kind, int] = {"bpe": 50_000_000, "unigram": 10_000_000}  # unigram takes ten times as long
_PIECE_LENGTH = 1 << 16

# Longer runs teach nothing, and BPE takes time in the square of their length.
_LONG_RUN = re.compile(r"(\S{256}|\s{256})")


def train_tokenizer(
    kind: Kind,
    texts: Iterable[str],
    vocab_size: int | None = None,
    max_bytes: int | None = None,
    *,
    prefix_space: bool = False,
) -> Tokenizer:
    """`vocab_size` counts special tokens; without it: all the characters, or 8,000 tokens of BPE or unigram.

    BPE and unigram learn from a sample of about `max_bytes` at most (50 MB and 10 MB) of the whole stream. With a
    `prefix_space` a space is read before each text, so that its first word is the token that it is elsewhere.
    Raises PenwrightError when there is no text or the vocabulary is too small for the kind.
    """
    texts = map(with_space, texts) if prefix_space else texts
    pieces: Iterator[str] = chain.from_iterable(map(_pieces, texts))
    if kind in _SAMPLE_BYTES:
        pieces = iter(_sample(pieces, max_bytes or _SAMPLE_BYTES[kind]))
    first = next(pieces, None)
    if first is None:
        raise PenwrightError(
            "there is no text to train a tokenizer on: all of it is empty; give files with text in them"
        )
    library, notes = KINDS[kind](chain([first], pieces), vocab_size)
    library.add_special_tokens(SPECIALS)
    if prefix_space:
        library.normalizer = normalizers.Prepend(" ")
        library.decoder = decoders.Sequence([library.decoder, decoders.Strip(" ", 1, 0)])
    return Tokenizer(library, notes)


def _pieces(text: str) -> Iterator[str]:
    text = well_formed(text)
    for start in range(0, len(text), _PIECE_LENGTH):
        yield from filter(None, _LONG_RUN.split(text[start : start + _PIECE_LENGTH]))


def _sample(pieces: Iterable[str], max_bytes: int) -> list[str]:
    """One pass in bounded memory: each piece draws a lot, and the bar falls by half whenever the sample is too large.

    Not every n-th piece, which would take a single language from lines that alternate between two.
    """
    lots = random.Random(0)
    sample: list[tuple[float, str]] = []
    n_bytes, bar = 0, 1.0
    for piece in pieces:
        lot = lots.random()
        if lot < bar:
            sample.append((lot, piece))
            n_bytes += len(piece.encode("utf-8"))
        while n_bytes > max_bytes and len(sample) > 1:
            bar /= 2
            sample = [(lot, piece) for lot, piece in sample if lot < bar]
            n_bytes = sum(len(piece.encode("utf-8")) for _, piece in sample)
    return [piece for _, piece in sample]
