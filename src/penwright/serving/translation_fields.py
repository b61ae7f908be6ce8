"""The request and response fields of the translation screen's routes."""

from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field

from penwright.serving.fields import MAX_ENTRIES, ModelRequest, Name, Text

MAX_BEAMS = 16


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
    """A request for the alternatives or the beam tree of one sentence."""

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
    aligned_by: str  # description of the attention heads that provide the weights


class SourceSentence(BaseModel):
    """A sentence and the white space around it."""

    before: str
    text: str
    after: str
    words: list[str]  # words of the text


class Paragraph(BaseModel):
    """A paragraph with its layout; see translation/documents.py."""

    first: str  # white space and bullet before the first line
    rest: str  # white space before each further line
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
    prefix: str  # prefix of the translation that ends with this word


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
