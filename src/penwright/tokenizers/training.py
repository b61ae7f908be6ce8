"""Tokenizer training on a stream of texts; the same texts always give the same file."""

import random
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Literal

from tokenizers import decoders, normalizers

from penwright.errors import PenwrightError, UsageError
from penwright.tokenizers.algorithms import KINDS, SPECIALS, Kind
from penwright.tokenizers.tokenizer import Tokenizer, well_formed, with_space

_SAMPLE_BYTES: dict[Kind, int] = {"bpe": 50_000_000, "unigram": 10_000_000}  # the unigram trainer is ten times slower
_PIECE_LENGTH = 1 << 16

# Very long spans without white space, or of white space only, are useless for training. BPE takes time that is
# quadratic in the length of a span.
_LONG_RUN = re.compile(r"(\S{256}|\s{256})")
# A quick check: every run of 256 characters contains a block of 128 characters that begins at a multiple of 128.
_MAYBE_LONG_RUN = re.compile(r"(?s:(?:.{128})*?)(?:\S{128}|\s{128})")


def train_tokenizer(
    kind: Kind | Literal["imported"],
    texts: Iterable[str],
    vocab_size: int | None = None,
    max_bytes: int | None = None,
    *,
    prefix_space: bool = False,
) -> Tokenizer:
    """Train a tokenizer on a stream of texts.

    `vocab_size` includes special tokens (default: all characters, or 8,000 tokens for BPE and unigram). BPE and
    unigram train on a sample of at most about `max_bytes` of the stream (default: 50 MB and 10 MB). `prefix_space`
    adds a space before each text, so the first word has the same token as elsewhere. Raises PenwrightError if there is
    no text or the vocabulary is too small.
    """
    if kind not in KINDS:
        raise UsageError(f'there is no tokenizer.type "{kind}" to train. Choose one of {", ".join(KINDS)}')
    texts = map(with_space, texts) if prefix_space else texts
    pieces: Iterator[str] = chain.from_iterable(map(_pieces, texts))
    if kind in _SAMPLE_BYTES:
        pieces = iter(_sample(pieces, max_bytes or _SAMPLE_BYTES[kind]))
    first = next(pieces, None)
    if first is None:
        raise PenwrightError(
            "there is no text to train a tokenizer on: all texts are empty. Pass files that contain text"
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
        piece = text[start : start + _PIECE_LENGTH]
        yield from filter(None, _LONG_RUN.split(piece)) if _MAYBE_LONG_RUN.match(piece) else [piece]


def _sample(pieces: Iterable[str], max_bytes: int) -> list[str]:
    """Draw a random sample in one pass and in bounded memory.

    Each piece gets a random number, and stays in the sample while this number is below a threshold. The threshold is
    halved whenever the sample is too large. Taking every nth line instead could miss one of two alternating languages.
    """
    rng = random.Random(0)
    sample: list[tuple[float, str]] = []
    n_bytes, threshold = 0, 1.0
    for piece in pieces:
        draw = rng.random()
        if draw < threshold:
            sample.append((draw, piece))
            n_bytes += len(piece.encode("utf-8"))
        while n_bytes > max_bytes and len(sample) > 1:
            threshold /= 2
            sample = [(draw, piece) for draw, piece in sample if draw < threshold]
            n_bytes = sum(len(piece.encode("utf-8")) for _, piece in sample)
    return [piece for _, piece in sample]
