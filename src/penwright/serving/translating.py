"""What the page needs to translate: sentences with what is known of each word, and other ways to put them.

Texts are cut into words at white space. A word comes as a text with what stands before it, and not as a place, since
browsers count characters otherwise than Python.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from math import exp, fsum
from threading import Event
from typing import Annotated, Literal, NamedTuple, TypeVar

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from penwright.decoding import Aligner
from penwright.decoding.alignment import Weights, words_of_pieces
from penwright.decoding.beam import Extension
from penwright.decoding.demands import Demands, Outcome
from penwright.decoding.documents import Block, blocks, sentences
from penwright.decoding.glossary import Glossary
from penwright.decoding.translator import Candidate, Translation
from penwright.decoding.tree import BeamTree
from penwright.errors import UsageError
from penwright.refining import kept_alignment
from penwright.serving.fields import Text, TheSettings, TheShelf, check_texts
from penwright.serving.gathering import Unwanted
from penwright.serving.refusals import REFUSALS
from penwright.serving.served import Served
from penwright.serving.settings import ServingSettings
from penwright.tokenizers import Tokenizer

router = APIRouter(prefix="/translating", responses=REFUSALS)
MOST_BEAMS = 16
T = TypeVar("T")


class Word(BaseModel):
    """A word of a text, and what stands between it and the word before."""

    before: str
    text: str
    probability: float | None = None  # of all its tokens, given what stands before; None where they are not known


class Term(BaseModel):
    """What became of a wished word, or of a span that stays as it is."""

    source: str
    target: str
    state: Literal["found", "forced", "inserted", "missed"]
    protected: bool
    source_words: list[int]  # places among the words
    target_words: list[int]


class Way(BaseModel):
    """One way to put a sentence."""

    text: str
    log_prob: float  # in nats
    score: float
    words: list[Word]
    weights: list[list[float]]  # how much each word looks at each source word
    terms: list[Term]


class Sentence(BaseModel):
    """A sentence with its translations, best first."""

    source: list[Word]
    ways: list[Way]
    warnings: list[str]


class Question(BaseModel):
    """What is sent here."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: Text | None = None  # None: the first translator


class Asked(Question):
    """How to translate."""

    glossary: Text = ""  # the lines of a glossary file
    beam_size: Annotated[int, Field(ge=1, le=MOST_BEAMS)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None


class Wanted(BaseModel):
    """A sentence, and how its translation begins; a beginning that ends in white space ends a word."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: Text
    prefix: Text = ""


class AskedSentences(Asked):
    """Several sentences."""

    sentences: list[Wanted]


class AskedSentence(Asked, Wanted):
    """One sentence."""

    n: Annotated[int, Field(ge=1, le=20)] = 6


class Sentences(BaseModel):
    """In the order of what was asked."""

    sentences: list[Sentence]
    aligned_by: str  # whose attention the weights are


class SourceSentence(BaseModel):
    """A sentence and the white space around it."""

    before: str
    text: str
    after: str


class Paragraph(BaseModel):
    """Lines that belong together; see decoding/documents.py."""

    first: str  # white space and bullet before the first line
    rest: str  # white space before the others
    width: int  # of the longest line; 0 where there is one line only
    sentences: list[SourceSentence]


class Document(BaseModel):
    """A text in paragraphs."""

    paragraphs: list[Paragraph]


class AskedDocument(Question):
    """A text to be cut."""

    text: Text


class OtherWord(BaseModel):
    """A word that could come next, with the best way to go on."""

    word: str
    probability: float  # of its first token
    text: str


class OtherWords(BaseModel):
    """Likeliest first."""

    words: list[OtherWord]


class TreeNode(BaseModel):
    """A node of the tree of a search, as views/modules/beam.js draws it."""

    id: int
    parent: int | None
    token: str
    log_prob: float
    step: int
    kept: bool
    final: bool


class Tree(BaseModel):
    """What search tried."""

    nodes: list[TreeNode]


@router.post("/cut")
async def cut(asked: AskedDocument, shelf: TheShelf, limits: TheSettings) -> Document:
    """Paragraphs and sentences of a text; no model is needed for it."""
    check_texts([asked.text], limits)
    language = shelf.get(asked.model, "translator").translator.source_language
    text = asked.text.replace("\r\n", "\n")
    return Document(paragraphs=[_paragraph(block, language) for block in blocks(text)])


@router.post("/sentences")
async def translate(asked: AskedSentences, shelf: TheShelf, limits: TheSettings) -> Sentences:
    """Translations with the probability of each word, what became of terms, and where each word looks."""
    served = shelf.get(asked.model, "translator")
    translator, demands = served.translator, _demands(asked, limits)
    check_texts([each.text + each.prefix for each in asked.sentences], limits)
    head = kept_alignment(served.opened.run.folder)

    def answer() -> list[Sentence]:
        beam_size = asked.beam_size or translator.defaults.beam_size
        found = translator.translate(
            [each.text for each in asked.sentences],
            beam_size=beam_size,
            n_best=beam_size,
            length_penalty=asked.length_penalty,
            demands=demands,
            prefixes=[each.prefix for each in asked.sentences],
        )
        aligner = Aligner(translator.model, translator.tokenizer, head)
        weights = iter(aligner.weights([(each.source, way.text) for each in found for way in each.candidates]))
        return [
            Sentence(
                source=_words(each.source),
                ways=[_way(each, way, next(weights), translator.tokenizer) for way in each.candidates],
                warnings=list(each.warnings),
            )
            for each in found
        ]

    aligned_by = "the mean of all heads" if head is None else f"head cross.{head.layer}.{head.head}, which aligns best"
    return Sentences(sentences=await _while_wanted(served, answer), aligned_by=aligned_by)


@router.post("/words")
async def other_words(asked: AskedSentence, shelf: TheShelf, limits: TheSettings) -> OtherWords:
    """The likeliest next words after the prefix, each with the rest translated anew."""
    served = shelf.get(asked.model, "translator")
    translator, demands = served.translator, _demands(asked, limits)
    check_texts([asked.text + asked.prefix], limits)
    found = await _while_wanted(served, lambda: translator.alternatives(asked.text, asked.prefix, asked.n, demands))
    return OtherWords(
        words=[OtherWord(word=each.word, probability=exp(each.log_prob), text=each.text) for each in found]
    )


@router.post("/tree")
async def tree(asked: AskedSentence, shelf: TheShelf, limits: TheSettings) -> Tree:
    """The tree of the search that leads to the translation of a sentence."""
    served = shelf.get(asked.model, "translator")
    translator, demands = served.translator, _demands(asked, limits)
    check_texts([asked.text + asked.prefix], limits)
    grown = BeamTree()

    def answer() -> None:
        def watch(source: int, extension: Extension) -> None:
            if source != 0:
                raise UsageError("a tree is drawn of one sentence: give a single line that is not too long")
            grown(source, extension)

        beam_size = asked.beam_size or translator.defaults.beam_size
        translator.translate(
            [asked.text],
            beam_size=beam_size,
            n_best=beam_size,
            length_penalty=asked.length_penalty,
            demands=demands,
            prefixes=asked.prefix,
            watch=watch,
        )

    await _while_wanted(served, answer)
    return Tree(nodes=[TreeNode(**node._asdict()) for node in grown.nodes(translator.tokenizer)])


async def _while_wanted(served: Served, function: Callable[[], T]) -> T:
    """What a function returns that searches; when its client goes away, the search ends within a step."""
    gone = Event()

    def check() -> None:
        if gone.is_set():
            raise Unwanted("whoever asked has gone")

    def work() -> T:
        with served.translator.watched(check):
            return function()

    try:
        return await served.run(work)
    finally:
        gone.set()


def _demands(asked: Asked, limits: ServingSettings) -> Demands:
    check_texts([asked.glossary], limits)
    return Demands(Glossary.parse(asked.glossary.encode(), "the glossary,"))


def _paragraph(block: Block, language: str) -> Paragraph:
    found = sentences(block.text, language) if block.text.strip() else []
    return Paragraph(
        first=block.first,
        rest=block.rest,
        width=block.width,
        sentences=[_source_sentence(each) for each in found if each.strip()],
    )


def _source_sentence(text: str) -> SourceSentence:
    core = text.strip()
    start = text.find(core)
    return SourceSentence(before=text[:start], text=core, after=text[start + len(core) :])


class _Place(NamedTuple):
    start: int
    end: int


def _places(text: str) -> list[_Place]:
    return [_Place(*match.span()) for match in re.finditer(r"\S+", text)]


def _words(text: str, probabilities: Sequence[float | None] = ()) -> list[Word]:
    places = _places(text)
    ends = [0, *(place.end for place in places)]
    known = probabilities or [None] * len(places)
    return [
        Word(before=text[end : place.start], text=text[place.start : place.end], probability=probability)
        for end, place, probability in zip(ends, places, known, strict=False)
    ]


def _way(found: Translation, candidate: Candidate, weights: Weights, tokenizer: Tokenizer) -> Way:
    sides = _places(found.source), _places(candidate.text)
    return Way(
        text=candidate.text,
        log_prob=candidate.log_prob,
        score=candidate.score,
        words=_words(candidate.text, _probabilities(candidate, tokenizer)),
        weights=weights.round(4).tolist(),
        terms=[_term(outcome, *sides) for outcome in candidate.outcomes],
    )


def _probabilities(candidate: Candidate, tokenizer: Tokenizer) -> list[float | None]:
    """That of each word, of its tokens together; none where the text is not what its tokens spell."""
    spelled = [tokenizer.token_bytes(piece.token) for piece in candidate.pieces if piece.token != tokenizer.end_id]
    n_words = len(_places(candidate.text))
    if b"".join(spelled) != candidate.text.encode():
        return [None] * n_words
    numbers = words_of_pieces(candidate.text, map(len, spelled))
    return [
        exp(fsum(piece.log_prob for piece, number in zip(candidate.pieces, numbers, strict=False) if number == word))
        for word in range(n_words)
    ]


def _term(outcome: Outcome, sources: Sequence[_Place], targets: Sequence[_Place]) -> Term:
    return Term(
        source=outcome.source,
        target=outcome.target,
        state=outcome.state,
        protected=outcome.protected,
        source_words=list(_among(sources, outcome.start, outcome.end)),
        target_words=list(_among(targets, outcome.target_start, outcome.target_end)),
    )


def _among(places: Sequence[_Place], start: int, end: int) -> Iterator[int]:
    """The words that a span touches."""
    return (number for number, place in enumerate(places) if place.start < end and start < place.end)
