"""Changes to a vocabulary: adding tokens, and removing the tokens that a text does not use."""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

from tokenizers import Tokenizer as LibraryTokenizer

from penwright.errors import PenwrightError
from penwright.tokenizers.checks import FOREIGN, MOST_PIECES
from penwright.tokenizers.foreign import SPACE, ForeignTokenizer
from penwright.tokenizers.tokenizer import Tokenizer

File = dict[str, Any]  # the content of a tokenizer.json
NEVER = -1e6  # score of special tokens in a unigram model, so low that no text is encoded as one
SAMPLE = 5_000_000  # maximum size of the text from which new tokens are learned, in characters
ROLES = ("pad", "start", "end")


def trimmed(tokenizer: Tokenizer, used: Collection[int]) -> Tokenizer:
    """Return a tokenizer without unused tokens. Texts that only need the `used` tokens are encoded as before.

    Special tokens, bytes and single characters stay, and so do the tokens that BPE needs to build the remaining ones.

    Raises PenwrightError if this tokenizer cannot be changed.
    """
    file, names = _changeable(tokenizer), tokenizer.pieces
    model = file["model"]
    special = {token["id"] for token in file["added_tokens"]} | {
        tokenizer.pad_id,
        tokenizer.start_id,
        *tokenizer.end_ids,
    }
    short = {token for token, name in enumerate(names) if len(name.removeprefix("##").lstrip(SPACE)) <= 1}
    bytes_ = {token for token, name in enumerate(names) if re.fullmatch("<0x..>", name)}
    kept = {*map(int, used)} | special | short | bytes_
    if tokenizer.unknown_id is not None:
        kept.add(tokenizer.unknown_id)
    if model["type"] == "BPE":
        kept = _with_parts(kept, names, tokenizer.merges)
    if model["type"] == "Unigram":  # keep the lowest score: it sets the penalty of unknown characters
        kept.add(min(range(len(model["vocab"])), key=lambda token: model["vocab"][token][1]))
    is_gap = {token for token in range(len(names)) if names[token] == f"<unused {token}>"}
    order = sorted(kept - is_gap)
    numbers = {token: number for number, token in enumerate(order)}
    if isinstance(model["vocab"], list):
        model["vocab"] = [piece for token, piece in enumerate(model["vocab"]) if token in numbers]
        model["unk_id"] = None if model.get("unk_id") is None else numbers[model["unk_id"]]
    else:
        model["vocab"] = {piece: numbers[token] for piece, token in model["vocab"].items() if token in numbers}
    if model.get("merges"):
        left = model["vocab"].keys()
        model["merges"] = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= left]
    file["added_tokens"] = [{**token, "id": numbers[token["id"]]} for token in file["added_tokens"]]
    file["post_processor"] = _renumbered(file.get("post_processor"), numbers)
    if own := file.get(FOREIGN):
        own.update({role: numbers[own[role]] for role in ROLES})
        for key in ("ends", "source_prefix", "target_prefix"):
            own[key] = [numbers[token] for token in own.get(key, ())]
    return _checked(file, [names[token] for token in order])


def extended(tokenizer: Tokenizer, new: int | Sequence[str], texts: Iterable[str] = ()) -> Tokenizer:
    """Return a tokenizer with tokens added at the end of its vocabulary.

    `new` is a list of words to add, or the number of tokens to learn from `texts`. With BPE,
    the learned tokens are new merges; otherwise, they are the words that save the most tokens. A token never spans
    several words, and no token is added twice.

    Raises PenwrightError if this tokenizer cannot be changed.
    """
    file = _changeable(tokenizer)
    library = tokenizer.library
    units = Counter[str]()
    if isinstance(new, int):
        for text in _sample(texts):
            units.update(_units(library, text))
    else:  # most tokenizers have a different token for a word that follows a space
        units.update(unit for word in new for form in (f" {word}", word) for unit in _units(library, form))
    growing = _Growing(file, tokenizer.pieces)
    growing.add_characters(units, new if isinstance(new, int) else MOST_PIECES)
    if isinstance(new, int) and file["model"]["type"] == "BPE":
        growing.learn_merges(units, len(tokenizer.pieces) + new)
    else:
        split = {unit: growing.split(unit) for unit in units}
        gain = {unit: units[unit] * (len(parts) - 1) for unit, parts in split.items() if len(parts) > 1}
        best = sorted(gain, key=lambda unit: (-gain[unit], unit)) if isinstance(new, int) else list(gain)
        for unit in best:
            if not isinstance(new, int) or len(growing.names) < len(tokenizer.pieces) + new:
                growing.add_unit(unit)
    return _checked(growing.file, growing.names)


def earlier_pieces(new: Tokenizer, old: Tokenizer) -> list[list[int]]:
    """Return, for each token of `new`, its token in `old` or, if it was added, the tokens of `old` that it replaces."""
    known, model = {piece: token for token, piece in enumerate(old.pieces)}, old.library.model
    return [
        [known[piece]] if piece in known else [each.id for each in model.tokenize(piece.removeprefix("##"))]
        for piece in new.pieces
    ]


def can_change(tokenizer: Tokenizer) -> bool:
    """Return whether tokens can be added to this tokenizer, and removed from it."""
    with suppress(PenwrightError):
        return bool(_changeable(tokenizer))
    return False


def _changeable(tokenizer: Tokenizer) -> File:
    """Return the content of the tokenizer.json. Raise PenwrightError if its vocabulary cannot be changed."""
    file: File = json.loads(tokenizer.content)
    model = file["model"]
    if tokenizer.kind in ("characters", "bytes"):
        raise PenwrightError(f"a vocabulary of {tokenizer.kind} cannot be changed: it has no subwords")
    if not tokenizer.is_plain or tokenizer.target is not tokenizer:
        raise PenwrightError("a vocabulary whose ids differ from those of its SentencePiece model cannot be changed")
    if model["type"] == "BPE" and (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")):
        raise PenwrightError("a BPE vocabulary with markers of word parts, such as ## or </w>, cannot be changed")
    if model["type"] == "BPE":
        model["merges"] = [list(pair) for pair in tokenizer.merges]  # older files store a merge as a string
    return file


def _with_parts(kept: set[int], names: Sequence[str], merges: Sequence[tuple[str, str]]) -> set[int]:
    """Return these tokens and all tokens that BPE needs to build them."""
    numbers, parts = {name: token for token, name in enumerate(names)}, dict[str, list[str]]()
    for pair in merges:
        parts.setdefault("".join(pair), []).extend(pair)
    closure, waiting = set(kept), list(kept)
    while waiting:
        new = {numbers[part] for part in parts.get(names[waiting.pop()], ()) if part in numbers} - closure
        closure |= new
        waiting += new
    return closure


def _renumbered(processor: Any, numbers: Mapping[int, int]) -> Any:
    """Return the post-processor of a tokenizer.json with the new ids of its special tokens."""
    match processor:
        case {"type": "Sequence", "processors": [*parts]}:
            return {**processor, "processors": [_renumbered(part, numbers) for part in parts]}
        case {"type": "TemplateProcessing"}:
            known: Mapping[str, Any] = processor["special_tokens"]
            new = {name: {**each, "ids": [numbers[token] for token in each["ids"]]} for name, each in known.items()}
            return {**processor, "special_tokens": new}
        case {"sep": [str(sep), int(sep_id)], "cls": [str(cls), int(cls_id)]}:
            return {**processor, "sep": [sep, numbers[sep_id]], "cls": [cls, numbers[cls_id]]}
        case _:
            return processor


def _checked(file: File, names: Sequence[str]) -> Tokenizer:
    """Build the tokenizer, and check its token ids, some of which the tokenizers library chooses itself."""
    try:
        library = LibraryTokenizer.from_str(json.dumps({name: part for name, part in file.items() if name != FOREIGN}))
        made = ForeignTokenizer(file) if FOREIGN in file else Tokenizer(library)
    except Exception as error:  # the tokenizers library raises plain Exception
        raise PenwrightError(f"the vocabulary of this tokenizer cannot be changed: {error}") from error
    if made.pieces != list(names):
        raise PenwrightError("the vocabulary of this tokenizer cannot be changed: its tokens would get different ids")
    return made


def _sample(texts: Iterable[str]) -> Iterator[str]:
    n_read = 0
    for text in texts:
        yield text
        n_read += len(text)
        if n_read >= SAMPLE:
            return


def _units(library: LibraryTokenizer, text: str) -> list[str]:
    """Split a text into the words that the tokenizer's model encodes one by one."""
    text = library.normalizer.normalize_str(text) if library.normalizer else text
    parts = [part for part, _ in library.pre_tokenizer.pre_tokenize_str(text)] if library.pre_tokenizer else [text]
    return [unit for part in parts for unit in re.split(rf"(?<!{SPACE})(?={SPACE})", part) if unit.strip(SPACE)]


class _Growing:
    """A tokenizer.json to which tokens are added."""

    def __init__(self, file: File, names: Sequence[str]) -> None:
        self.file, self.names = file, list(names)
        self._model = file["model"]
        if isinstance(self._model["vocab"], list):
            listed = len(self._model["vocab"])
            # special tokens come before new tokens
            self._model["vocab"] += [[name, NEVER] for name in self.names[listed:]]
        else:
            self._model["vocab"] |= {token["content"]: token["id"] for token in file["added_tokens"]}
        self._known = set(self.names)
        self._is_wordpiece, self._is_list = self._model["type"] == "WordPiece", isinstance(self._model["vocab"], list)
        self._read()
        self._ranks: dict[tuple[str, str], int] = {}  # priorities of the new merges, which all come after the old ones

    def _read(self) -> None:
        plain = {name: part for name, part in self.file.items() if name != FOREIGN}
        self._library = LibraryTokenizer.from_str(json.dumps(plain)).model
        self._scores = dict(self._model["vocab"]) if self._is_list else {}

    def _add(self, name: str, score: float = 0.0) -> None:
        if name in self._known:
            return
        if len(self.names) >= MOST_PIECES:
            raise PenwrightError(f"a vocabulary has at most {MOST_PIECES:,} tokens. Add fewer tokens")
        if self._is_list:
            self._model["vocab"].append([name, score])
        else:
            self._model["vocab"][name] = len(self.names)
        self.names.append(name)
        self._known.add(name)

    def add_characters(self, units: Mapping[str, int], most: int) -> None:
        """Add the most frequent characters that the tokenizer lacks."""
        counts = Counter[str]()
        for unit, count in units.items():
            counts.update(dict.fromkeys(unit, count))
        lowest = (
            min((score for _, score in self._model["vocab"] if score > NEVER), default=0.0) if self._is_list else 0.0
        )
        new = sorted(counts.keys() - self._known, key=lambda letter: (-counts[letter], letter))
        for letter in new[: most // 2 if self._is_wordpiece else most]:
            self._add(letter, lowest)
            if self._is_wordpiece:
                self._add(f"##{letter}")
        self._read()

    def split(self, unit: str) -> list[str]:
        """Split a word into pieces with the tokenizer's own merges, then with the new ones."""
        pieces = [token.value for token in self._library.tokenize(unit)]
        while len(pieces) > 1 and self._ranks:
            pairs = list(pairwise(pieces))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            pieces = _merged(pieces, best)
        return pieces

    def add_unit(self, unit: str) -> None:
        """Add a token for a whole word. With BPE, also add the intermediate tokens."""
        pieces = self.split(unit)
        if self._model["type"] != "BPE":
            self._add(unit, 0.99 * sum(self._scores.get(piece, 0.0) for piece in pieces))
            return
        while len(pieces) > 1:
            self._merge(pieces[0], pieces[1])
            pieces = [pieces[0] + pieces[1], *pieces[2:]]

    def learn_merges(self, units: Mapping[str, int], size: int) -> None:
        """Continue BPE training on these words until the vocabulary has this size."""
        words = [(self.split(unit), count) for unit, count in units.items()]
        pairs, places = Counter[tuple[str, str]](), dict[tuple[str, str], set[int]]()
        for number, (pieces, count) in enumerate(words):
            for pair in pairwise(pieces):
                pairs[pair] += count
                places.setdefault(pair, set()).add(number)
        heap = [(-count, pair) for pair, count in pairs.items()]
        heapify(heap)
        while len(self.names) < size and heap:
            count, best = heappop(heap)
            if -count != pairs[best] or pairs[best] < 2:  # an outdated heap entry, or a pair that is too rare
                continue
            self._merge(*best)
            changed = set[tuple[str, str]]()
            for number in places.pop(best):
                pieces, count = words[number]
                joined = _merged(pieces, best)
                for pair in pairwise(pieces):
                    pairs[pair] -= count
                for pair in pairwise(joined):
                    pairs[pair] += count
                    places.setdefault(pair, set()).add(number)
                changed |= {*pairwise(pieces), *pairwise(joined)}
                words[number] = joined, count
            for pair in changed:
                heappush(heap, (-pairs[pair], pair))

    def _merge(self, left: str, right: str) -> None:
        self._add(left + right)
        if (left, right) not in self._ranks:
            self._ranks[left, right] = len(self._ranks)
            self._model["merges"].append([left, right])


def _merged(pieces: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """Return the pieces of a word, with each occurrence of this pair merged."""
    joined: list[str] = []
    for piece in pieces:
        if joined and (joined[-1], piece) == pair:
            joined[-1] += piece
        else:
            joined.append(piece)
    return joined
