"""Tokenizer training on a stream of texts; the same texts always give the same file.

A new kind needs a training function and a row in KINDS, and a case in kind_of() (tokenizers/checks.py).
"""

import json
import random
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from penwright.errors import PenwrightError, UsageError
from penwright.tokenizers.checks import MARKED_WORDS, SPECIALS, UNKNOWN, Kind
from penwright.tokenizers.encoders import SPELLING
from penwright.tokenizers.tokenizer import Tokenizer, well_formed, with_space

_SAMPLE_BYTES: dict[Kind, int] = {"bpe": 50_000_000, "unigram": 10_000_000}  # unigram is slower to train than BPE
_PIECE_LENGTH = 1 << 16
# Very long spans without white space, or of white space only, are useless for training. BPE takes time that is
# quadratic in the length of a span.
_LONG_RUN = re.compile(r"(\S{256}|\s{256})")
# A quick check for long spans: 256 consecutive characters always contain an aligned block of 128 characters.
_MAYBE_LONG_RUN = re.compile(r"(?s:(?:.{128})*?)(?:\S{128}|\s{128})")
_N_CODE_POINTS = 0x110000
_MIN_VOCAB_SIZE = len(SPELLING) + len(SPECIALS)
_DEFAULT_VOCAB_SIZE = 8_000
_SAMPLE = 1_000_000  # number of characters, from the start of the texts, that are searched for combining marks
_MANY_MARKS = 0.01  # MARKED_WORDS is used if more than this share of the characters are combining marks


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
        raise UsageError(f'tokenizer.type "{kind}" cannot be trained. Choose one of {", ".join(KINDS)}')
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
    """Draw a random sample of these pieces of text, in one pass and in bounded memory.

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


class TrainedTokenizer(NamedTuple):
    """A tokenizer without special tokens, and notes on requirements that training could not meet."""

    library: LibraryTokenizer
    notes: tuple[str, ...] = ()


def train_characters(texts: Iterable[str], vocab_size: int | None) -> TrainedTokenizer:
    """Train a character tokenizer. With a `vocab_size`, all but the most frequent characters become <unk>."""
    counts = _count_characters(texts)
    by_frequency = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    n_kept = len(by_frequency) if vocab_size is None else vocab_size - len(SPECIALS) - 1
    if n_kept < 1:
        raise PenwrightError(f"a vocabulary of {vocab_size} is too small for characters; use 5 tokens or more")
    characters = [chr(code_point) for code_point in np.sort(by_frequency[:n_kept])]
    vocabulary = {token: token_id for token_id, token in enumerate([*characters, UNKNOWN])}
    library = LibraryTokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False))
    library.decoder = decoders.Fuse()
    library.add_special_tokens([UNKNOWN])
    n_lost = len(by_frequency) - len(characters)
    note = f"the rarest {n_lost:,} of the {len(by_frequency):,} characters of the text become {UNKNOWN}"
    return TrainedTokenizer(library, (note,) if n_lost else ())


def train_bytes(texts: Iterable[str], vocab_size: int | None) -> TrainedTokenizer:
    """Make a byte tokenizer, in which the id of each token is its byte; the texts are ignored."""
    vocabulary = {character: byte for byte, character in enumerate(SPELLING)}
    library = _byte_level(models.BPE(vocab=vocabulary, merges=[]), split_words=False)
    note = f"a vocabulary of bytes always has {_MIN_VOCAB_SIZE} tokens, not {vocab_size}"
    return TrainedTokenizer(library, (note,) if vocab_size not in (None, _MIN_VOCAB_SIZE) else ())


def train_bpe(texts: Iterable[str], vocab_size: int | None) -> TrainedTokenizer:
    """Train byte-level BPE (Sennrich et al. 2016, Radford et al. 2019): repeatedly join the most frequent pair."""
    size = _checked_size(vocab_size)
    marked, texts = _has_many_marks(texts)
    library = _byte_level(models.BPE(), split_words=True, marked=marked)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS), min_frequency=2, initial_alphabet=SPELLING, show_progress=False
    )
    library.train_from_iterator(texts, trainer=trainer)
    return TrainedTokenizer(library, _shortfall(library, size))


def train_unigram(texts: Iterable[str], vocab_size: int | None) -> TrainedTokenizer:
    """Train a unigram model over bytes (Kudo 2018): start with many pieces, then drop the least useful pieces."""
    size = _checked_size(vocab_size)
    marked, texts = _has_many_marks(texts)
    draft = _byte_level(models.Unigram(), split_words=True, marked=marked)
    trainer = trainers.UnigramTrainer(vocab_size=size - len(SPECIALS), initial_alphabet=SPELLING, show_progress=False)
    draft.train_from_iterator(texts, trainer=trainer)
    scores = _deterministic_scores(dict(json.loads(draft.to_str())["model"]["vocab"]))
    library = _byte_level(models.Unigram(vocab=scores), split_words=True, marked=marked)
    return TrainedTokenizer(library, _shortfall(library, size))


KINDS: dict[Kind, Callable[[Iterable[str], int | None], TrainedTokenizer]] = {
    "characters": train_characters,
    "bytes": train_bytes,
    "bpe": train_bpe,
    "unigram": train_unigram,
}


def _count_characters(texts: Iterable[str]) -> NDArray[np.int64]:
    counts = np.zeros(_N_CODE_POINTS, dtype=np.int64)
    for text in texts:
        code_points, times = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype="<u4"), return_counts=True)
        counts[code_points] += times
    return counts


def _has_many_marks(texts: Iterable[str]) -> tuple[bool, Iterator[str]]:
    """Return whether the first texts have many combining marks, and an iterator over all texts."""
    texts, seen, n_seen = iter(texts), [], 0
    for text in texts:
        seen.append(text)
        n_seen += len(text)
        if n_seen >= _SAMPLE:
            break
    beginning = "".join(seen)[:_SAMPLE]
    n_marks = sum(unicodedata.category(letter).startswith("M") for letter in beginning if letter > "\u02ff")
    return n_marks > _MANY_MARKS * len(beginning), chain(seen, texts)


def _byte_level(model: models.Model, split_words: bool, marked: bool = False) -> LibraryTokenizer:
    library = LibraryTokenizer(model)
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split_words and not marked)
    if marked:
        words = pre_tokenizers.Split(Regex(MARKED_WORDS), "isolated")
        library.pre_tokenizer = pre_tokenizers.Sequence([words, library.pre_tokenizer])
    library.decoder = decoders.ByteLevel()
    return library


def _checked_size(vocab_size: int | None) -> int:
    if vocab_size is not None and vocab_size < _MIN_VOCAB_SIZE:
        raise PenwrightError(
            f"a vocabulary of {vocab_size} is too small for the 256 bytes; use {_MIN_VOCAB_SIZE} tokens or more, "
            "or a tokenizer of type characters"
        )
    return vocab_size or _DEFAULT_VOCAB_SIZE


def _shortfall(library: LibraryTokenizer, size: int) -> tuple[str, ...]:
    actual = library.get_vocab_size() + len(SPECIALS)
    return (f"the text only supports a vocabulary of {actual:,} tokens, not {size:,}",) if actual < size else ()


def _deterministic_scores(vocabulary: Mapping[str, float | None]) -> list[tuple[str, float]]:
    """Return the trainer's pieces and scores without their randomness.

    The trainer adds floats in arbitrary order, so scores are rounded. Bytes that do not occur in the text get random
    scores from the trainer, within 256 * 0.0001 of the lowest score, or no scores if the text is very short. This
    function gives them the lowest score.
    """
    floor = round(min((score for score in vocabulary.values() if score is not None), default=0.0), 6)

    def settled(piece: str, score: float | None) -> float:
        if score is None or (len(piece) == 1 and score < floor + 0.0256):
            return floor
        return round(score, 6)

    pieces = [(piece, settled(piece, score)) for piece, score in vocabulary.items()]
    return sorted(pieces, key=lambda piece: (-piece[1], piece[0]))
