"""What is asked of translating.py, and what it answers."""

from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field

from penwright.serving.fields import MOST_ENTRIES, ModelRequest, Name, Text

MOST_BEAMS = 16


class SentenceWord(BaseModel):
    """A word of a text, and what stands between it and the word before."""

    before: str
    text: str
    probability: float | None = None  # of all its tokens, given what stands before; None where they are not known


class TermResult(BaseModel):
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
    words: list[SentenceWord]
    terms: list[TermResult]


class Sentence(BaseModel):
    """A sentence with its translations, best first."""

    source: list[SentenceWord]
    ways: list[Way]
    warnings: list[str]


class TranslationOptions(ModelRequest):
    """How to translate."""

    model: Name | None = None  # None: the first translator
    glossary: Text = ""  # the lines of a glossary file
    beam_size: Annotated[int, Field(ge=1, le=MOST_BEAMS)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None


class Wanted(ModelRequest):
    """A sentence, and how its translation begins; a beginning that ends in white space ends a word."""

    text: Text
    prefix: Text = ""


class AskedSentences(TranslationOptions):
    """Several sentences."""

    sentences: Annotated[list[Wanted], Field(max_length=MOST_ENTRIES, fail_fast=True)]


class AskedSentence(TranslationOptions, Wanted):
    """One sentence."""

    n: Annotated[int, Field(ge=1, le=20)] = 6


class Sentences(BaseModel):
    """In the order of what was asked."""

    sentences: list[Sentence]


class AskedLinks(ModelRequest):
    """A sentence and one of its translations."""

    model: Name | None = None
    text: Text
    target: Text


class Link(NamedTuple):
    """How much a word looks at a source word."""

    target: int  # its place among the words
    source: int
    weight: float


class Links(BaseModel):
    """Where the words of a translation look; weights below 0.01 are left out."""

    links: list[Link]
    aligned_by: str  # whose attention the weights are


class SourceSentence(BaseModel):
    """A sentence and the white space around it."""

    before: str
    text: str
    after: str
    words: list[str]  # of the text


class Paragraph(BaseModel):
    """Lines that belong together; see translation/documents.py."""

    first: str  # white space and bullet before the first line
    rest: str  # white space before the others
    width: int  # of the longest line; 0 where there is one line only
    sentences: list[SourceSentence]


class TranslatedDocument(BaseModel):
    """A text in paragraphs."""

    paragraphs: list[Paragraph]


class AskedDocument(ModelRequest):
    """A text to be cut."""

    model: Name | None = None
    text: Text


class OtherWord(BaseModel):
    """A word that could come next, with the best way to go on."""

    word: str
    probability: float  # of its first token
    text: str
    prefix: str  # how a translation begins that is to have it here


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
