"""How each kind of tokenizer is trained and made up; a new kind is a function, a row in KINDS, a case in kind_of."""

import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as LibraryTokenizer

from penwright.errors import PenwrightError
from penwright.tokenizers.bytelevel import SPELLING

Kind = Literal["characters", "bytes", "bpe", "unigram"]

PAD, START, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"
SPECIALS = [PAD, START, END]  # <unk>, which only characters know, is a piece of their model

_N_CODE_POINTS = 0x110000
_SMALLEST = len(SPELLING) + len(SPECIALS)
_DEFAULT = 8_000
_LOOKED_AT = 1_000_000  # characters, to see whether a text has marks
_MANY_MARKS = 0.01  # of them
MARKED_WORDS = r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
# ... the words of GPT-2, but that a mark (a vowel of Hebrew, Arabic, Hindi or Thai, an accent) does not end one


class Trained(NamedTuple):
    """A tokenizer without its special tokens, and what training could not do as asked."""

    library: LibraryTokenizer
    notes: tuple[str, ...] = ()


def train_characters(texts: Iterable[str], vocab_size: int | None) -> Trained:
    """A token for each character, or for the most frequent ones only; the others become <unk>."""
    counts = _count_characters(texts)
    by_frequency = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    n_kept = len(by_frequency) if vocab_size is None else vocab_size - len(SPECIALS) - 1
    if n_kept < 1:
        raise PenwrightError(f"a vocabulary of {vocab_size} has no room for characters; ask for 5 tokens or more")
    characters = [chr(code_point) for code_point in np.sort(by_frequency[:n_kept])]
    vocabulary = {token: token_id for token_id, token in enumerate([*characters, UNKNOWN])}
    library = LibraryTokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN, fuse_unk=False))
    library.decoder = decoders.Fuse()
    library.add_special_tokens([UNKNOWN])
    n_lost = len(by_frequency) - len(characters)
    note = f"the rarest {n_lost:,} of the {len(by_frequency):,} characters of the text become {UNKNOWN}"
    return Trained(library, (note,) if n_lost else ())


def train_bytes(texts: Iterable[str], vocab_size: int | None) -> Trained:
    """A token for each byte, whatever the texts are: its id is the byte."""
    vocabulary = {character: byte for byte, character in enumerate(SPELLING)}
    library = _byte_level(models.BPE(vocab=vocabulary, merges=[]), split_words=False)
    note = f"a vocabulary of bytes always has {_SMALLEST} tokens, not {vocab_size}"
    return Trained(library, (note,) if vocab_size not in (None, _SMALLEST) else ())


def train_bpe(texts: Iterable[str], vocab_size: int | None) -> Trained:
    """Byte-level BPE (Sennrich et al. 2016, Radford et al. 2019): join the most frequent pair again and again."""
    size = _checked(vocab_size)
    marked, texts = _is_marked(texts)
    library = _byte_level(models.BPE(), split_words=True, marked=marked)
    trainer = trainers.BpeTrainer(
        vocab_size=size - len(SPECIALS), min_frequency=2, initial_alphabet=SPELLING, show_progress=False
    )
    library.train_from_iterator(texts, trainer=trainer)
    return Trained(library, _shortfall(library, size))


def train_unigram(texts: Iterable[str], vocab_size: int | None) -> Trained:
    """Unigram language model over bytes (Kudo 2018): many pieces first, then drop those that are missed least."""
    size = _checked(vocab_size)
    marked, texts = _is_marked(texts)
    draft = _byte_level(models.Unigram(), split_words=True, marked=marked)
    trainer = trainers.UnigramTrainer(vocab_size=size - len(SPECIALS), initial_alphabet=SPELLING, show_progress=False)
    draft.train_from_iterator(texts, trainer=trainer)
    scores = _settled_scores(dict(json.loads(draft.to_str())["model"]["vocab"]))
    library = _byte_level(models.Unigram(vocab=scores), split_words=True, marked=marked)
    return Trained(library, _shortfall(library, size))


KINDS: dict[Kind, Callable[[Iterable[str], int | None], Trained]] = {
    "characters": train_characters,
    "bytes": train_bytes,
    "bpe": train_bpe,
    "unigram": train_unigram,
}


def kind_of(library: LibraryTokenizer) -> Kind:
    """Each kind has a make-up of its own, so the file need not name it; raises ValueError for any other make-up."""
    makeup = json.loads(library.to_str())
    splitter = makeup["pre_tokenizer"]
    match makeup["model"]["type"], splitter and (splitter["type"], splitter.get("use_regex")):
        case "BPE", None:
            return "characters"
        case "BPE", ("ByteLevel", False):
            return "bytes"
        case "BPE", ("ByteLevel", True) | ("Sequence", None):
            return "bpe"
        case "Unigram", ("ByteLevel", True) | ("Sequence", None):
            return "unigram"
        case other:
            raise ValueError(f"no kind of tokenizer is made up as {other}")


def _count_characters(texts: Iterable[str]) -> NDArray[np.int64]:
    counts = np.zeros(_N_CODE_POINTS, dtype=np.int64)
    for text in texts:
        code_points, times = np.unique(np.frombuffer(text.encode("utf-32-le"), dtype="<u4"), return_counts=True)
        counts[code_points] += times
    return counts


def _is_marked(texts: Iterable[str]) -> tuple[bool, Iterator[str]]:
    """Whether the beginning of these texts has many combining marks; and the texts, whole."""
    texts, seen, looked_at = iter(texts), [], 0
    for text in texts:
        seen.append(text)
        looked_at += len(text)
        if looked_at >= _LOOKED_AT:
            break
    beginning = "".join(seen)[:_LOOKED_AT]
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


def _checked(vocab_size: int | None) -> int:
    if vocab_size is not None and vocab_size < _SMALLEST:
        raise PenwrightError(
            f"a vocabulary of {vocab_size} has no room for the 256 bytes; ask for {_SMALLEST} tokens or more, "
            "or for a tokenizer of characters"
        )
    return vocab_size or _DEFAULT


def _shortfall(library: LibraryTokenizer, size: int) -> tuple[str, ...]:
    found = library.get_vocab_size() + len(SPECIALS)
    return (f"the text only supports a vocabulary of {found:,} tokens, not {size:,}",) if found < size else ()


def _settled_scores(vocabulary: Mapping[str, float | None]) -> list[tuple[str, float]]:
    """The trainer's result without its chance: it adds in any order, and gives bytes without evidence a random rank.

    Such bytes get the lowest score plus up to 256 times 0.0001 from it (or none in a text too short); here the lowest.
    """
    floor = round(min((score for score in vocabulary.values() if score is not None), default=0.0), 6)

    def settled(piece: str, score: float | None) -> float:
        if score is None or (len(piece) == 1 and score < floor + 0.0256):
            return floor
        return round(score, 6)

    pieces = [(piece, settled(piece, score)) for piece, score in vocabulary.items()]
    return sorted(pieces, key=lambda piece: (-piece[1], piece[0]))
