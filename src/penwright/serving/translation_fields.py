"""The requests and answers of the translation screen's routes: texts and translations, split into words."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import exp, fsum
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field

from penwright.serving.errors import RequestTooLarge
from penwright.serving.fields import MAX_ENTRIES, ModelRequest, Name, Text
from penwright.text import WordSpan, complete_last_word, span_indices, word_spans
from penwright.tokenizers import Tokenizer
from penwright.translation.alignment import pieces_of_words
from penwright.translation.constraints.requirements import ConstraintResult
from penwright.translation.documents import TextBlock, sentences
from penwright.translation.results import Alternative, Candidate, Translation
from penwright.translation.translator import Translator

MAX_BEAMS = 16
# limits for a sentence, because the cost of search and attention is quadratic in its length
MAX_WORDS, MAX_CHARACTERS = 300, 3000


class SentenceWord(BaseModel):
    """A word of a text, with the text between the previous word and this one."""

    before: str
    text: str
    probability: float | None = None  # joint probability of the word's tokens; None if unknown


class TermResult(BaseModel):
    """The result for a glossary term or a protected span."""

    source: str
    target: str
    state: Literal["found", "forced", "inserted", "missed"]
    protected: bool
    source_words: list[int]  # indices of the words of `source` in the sentence
    target_words: list[int]


class SentenceTranslation(BaseModel):
    """One translation of a sentence."""

    text: str
    log_prob: float  # log-probability in nats
    score: float
    words: list[SentenceWord]
    terms: list[TermResult]


class Sentence(BaseModel):
    """A sentence with its translations, best first."""

    source: list[SentenceWord]
    ways: list[SentenceTranslation]
    warnings: list[str]


class TranslationOptions(ModelRequest):
    """The options of a translation request."""

    model: Name | None = None  # name of a model; None for the first translator
    glossary: Text = ""  # content of a glossary file
    beam_size: Annotated[int, Field(ge=1, le=MAX_BEAMS)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None


class SentenceRequest(ModelRequest):
    """A sentence and the prefix of its translation. White space after the prefix marks the last word as complete."""

    text: Text
    prefix: Text = ""


class SentencesRequest(TranslationOptions):
    """A request to translate several sentences."""

    sentences: Annotated[list[SentenceRequest], Field(max_length=MAX_ENTRIES, fail_fast=True)]


class SearchRequest(TranslationOptions, SentenceRequest):
    """A request for the alternative words or the beam search tree of one sentence."""

    n: Annotated[int, Field(ge=1, le=20)] = 6


class Sentences(BaseModel):
    """The translated sentences, in the order of the request."""

    sentences: list[Sentence]


class LinksRequest(ModelRequest):
    """A request for the word alignment of a sentence and a translation."""

    model: Name | None = None
    text: Text
    target: Text


class Link(NamedTuple):
    """The attention of a target word to a source word."""

    target: int  # index of the target word
    source: int
    weight: float


class Links(BaseModel):
    """The word alignment of a translation, without weights below 0.01."""

    links: list[Link]
    aligned_by: str  # description of the attention heads that the weights come from


class SourceSentence(BaseModel):
    """A sentence and the white space around it."""

    before: str
    text: str
    after: str
    words: list[str]  # words of the text


class Paragraph(BaseModel):
    """A paragraph with its layout; see translation/documents.py."""

    first: str  # white space and bullet before the first line
    rest: str  # white space before each subsequent line
    width: int  # width of the longest line, in columns; 0 for a single line
    sentences: list[SourceSentence]


class TranslatedDocument(BaseModel):
    """A text split into paragraphs and sentences."""

    paragraphs: list[Paragraph]


class DocumentRequest(ModelRequest):
    """A request to split a text into sentences."""

    model: Name | None = None
    text: Text


class OtherWord(BaseModel):
    """A possible next word, with the best translation that contains it."""

    word: str
    probability: float  # probability of the word's first token
    text: str
    prefix: str  # the translation up to and including this word


class OtherWords(BaseModel):
    """The possible next words, most likely first."""

    words: list[OtherWord]


class TreeNode(BaseModel):
    """A node of a beam search tree in the format of views/modules/beam.js."""

    id: int
    parent: int | None
    token: str
    log_prob: float
    step: int
    kept: bool
    final: bool


class Tree(BaseModel):
    """The tree of all hypotheses that a beam search tried."""

    nodes: list[TreeNode]


def check_sentence(text: str, prefix: str, name: str) -> None:
    """Raise RequestTooLarge if a sentence or its prefix has too many characters or words."""
    longest = max(len(text), len(prefix))
    if longest > MAX_CHARACTERS:
        raise RequestTooLarge(
            f"{name} has {longest:,} characters, but the limit is {MAX_CHARACTERS:,}. Split it first (/translating/cut)"
        )
    n_words = max(len(word_spans(each)) for each in (text, prefix))
    if n_words > MAX_WORDS:
        raise RequestTooLarge(
            f"{name} has {n_words:,} words, but the limit is {MAX_WORDS:,}. Split it first (/translating/cut)"
        )


def other_word(alternative: Alternative, prefix: str) -> OtherWord:
    """Return a possible next word, the best translation that contains it, and the part that ends with this word."""
    end = alternative.text.find(alternative.word, len(prefix.strip())) + len(alternative.word)
    probability = exp(alternative.log_prob)
    return OtherWord(
        word=alternative.word,
        probability=probability,
        text=alternative.text,
        prefix=complete_last_word(alternative.text[:end]),
    )


def paragraph(block: TextBlock, translator: Translator) -> Paragraph:
    """Return a paragraph split into sentences. Sentences that are too long for one translation are split, too."""
    whole_ones = sentences(block.text, translator.source_language) if block.text.strip() else []
    parts = [part for sentence in whole_ones for part in short_parts(sentence)]
    return Paragraph(
        first=block.first,
        rest=block.rest,
        width=block.width,
        sentences=[_source_sentence(each, translator.tokenizer) for each in parts if each.strip()],
    )


def short_parts(text: str) -> list[str]:
    """Split a text, between words if possible, into parts that `check_sentence` accepts."""
    cuts, start, n_words = [0], 0, 0
    for span in word_spans(text):
        if n_words == MAX_WORDS or (span.end - start > MAX_CHARACTERS and span.start > start):
            start, n_words = span.start, 0
            cuts.append(start)
        while span.end - start > MAX_CHARACTERS:
            start += MAX_CHARACTERS
            cuts.append(start)
        n_words += 1
    return [text[start:end] for start, end in pairwise([*cuts, len(text)])]


def _source_sentence(text: str, tokenizer: Tokenizer) -> SourceSentence:
    core = text.strip()
    start = text.find(core)
    parts = [core[span.start : span.end] for span in pieces_of_words(core, tokenizer)]
    return SourceSentence(before=text[:start], text=core, after=text[start + len(core) :], words=parts)


def _words(text: str, places: Sequence[WordSpan], probabilities: Sequence[float | None] = ()) -> list[SentenceWord]:
    ends = [0, *(place.end for place in places)]
    known = probabilities or [None] * len(places)
    return [
        SentenceWord(before=text[end : place.start], text=text[place.start : place.end], probability=probability)
        for end, place, probability in zip(ends, places, known, strict=False)
    ]


def sentence(translation: Translation, tokenizer: Tokenizer) -> Sentence:
    """Return a sentence and its translations, all split into words."""
    places = pieces_of_words(translation.source, tokenizer)
    return Sentence(
        source=_words(translation.source, places),
        ways=[_translation(places, candidate, tokenizer) for candidate in translation.candidates],
        warnings=list(translation.warnings),
    )


def _translation(source: Sequence[WordSpan], candidate: Candidate, tokenizer: Tokenizer) -> SentenceTranslation:
    sides = source, pieces_of_words(candidate.text, tokenizer)
    return SentenceTranslation(
        text=candidate.text,
        log_prob=candidate.log_prob,
        score=candidate.score,
        words=_words(candidate.text, sides[1], _probabilities(candidate, sides[1], tokenizer)),
        terms=[_term(outcome, *sides) for outcome in candidate.outcomes],
    )


def _probabilities(candidate: Candidate, places: Sequence[WordSpan], tokenizer: Tokenizer) -> list[float | None]:
    """Return the joint probability of the tokens of each word, or None if the tokens do not spell the text."""
    pieces = [tokenizer.token_bytes(piece.token) for piece in candidate.pieces if piece.token != tokenizer.end_id]
    if pieces:
        pieces[0] = pieces[0].lstrip(b" ")  # the first token may begin with a space that is not in the text
    if not places or b"".join(pieces) != candidate.text.encode():
        return [None] * len(places)
    numbers = span_indices(candidate.text, places, map(len, pieces))
    of_words: list[list[float]] = [[] for _ in places]
    for piece, number in zip(candidate.pieces, numbers, strict=False):
        of_words[number].append(piece.log_prob)
    return [exp(fsum(log_probs)) if log_probs else None for log_probs in of_words]


def _term(outcome: ConstraintResult, sources: Sequence[WordSpan], targets: Sequence[WordSpan]) -> TermResult:
    return TermResult(
        source=outcome.source,
        target=outcome.target,
        state=outcome.state,
        protected=outcome.protected,
        source_words=list(_overlapping(sources, outcome.start, outcome.end)),
        target_words=list(_overlapping(targets, outcome.target_start, outcome.target_end)),
    )


def _overlapping(places: Sequence[WordSpan], start: int, end: int) -> Iterator[int]:
    """Yield the indices of the words that overlap the span from `start` to `end`."""
    return (number for number, place in enumerate(places) if place.start < end and start < place.end)
