"""What the page needs to translate: sentences with what is known of each word, and other ways to put them.

Texts are cut into words as `translation/words.py` says. A word comes as a text with what stands before it, not as a
place: browsers count characters otherwise than Python.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import exp, fsum
from threading import Event
from typing import TypeVar

import numpy as np
from fastapi import APIRouter, Response

from penwright.decoding.hypotheses import Extension
from penwright.errors import UsageError
from penwright.inspection.beams import BeamTree
from penwright.serving.dynamic_batching import Unwanted
from penwright.serving.errors import REFUSALS, TooMuch
from penwright.serving.fields import TheSettings, TheShelf, as_json, check_texts
from penwright.serving.model_worker import ModelWorker
from penwright.serving.settings import ServingSettings
from penwright.serving.translation_fields import (
    AskedDocument,
    AskedLinks,
    AskedSentence,
    AskedSentences,
    Link,
    Links,
    OtherWord,
    OtherWords,
    Paragraph,
    Sentence,
    Sentences,
    SentenceWord,
    SourceSentence,
    TermResult,
    TranslatedDocument,
    TranslationOptions,
    Tree,
    TreeNode,
    Way,
)
from penwright.tokenizers import Tokenizer
from penwright.translation.alignment import Aligner, Weights
from penwright.translation.constraints.glossary import Glossary
from penwright.translation.constraints.requirements import ConstraintResult, Constraints
from penwright.translation.documents import TextBlock, blocks
from penwright.translation.results import Alternative, Candidate, Translation
from penwright.translation.segments import sentences
from penwright.translation.translator import Translator
from penwright.translation.words import WordSpan, numbers_of, pieces_of_words, whole, word_spans

router = APIRouter(prefix="/translating", responses=REFUSALS)
T = TypeVar("T")
MOST_WORDS, MOST_CHARACTERS = 300, 3000  # of a sentence: search and attention grow with the square of its length
LONGER = 4  # times the length of a sentence that its translation may have
WEAKEST = 0.01  # weight of attention that is sent


@router.post("/cut", response_model=TranslatedDocument)
async def cut(asked: AskedDocument, shelf: TheShelf, limits: TheSettings) -> Response:
    """Return the paragraphs and sentences of a text. Sentences too long to be translated at once are cut as well."""
    check_texts([asked.text], limits)
    translator = shelf.get(asked.model, "translator").translator
    text = asked.text.replace("\r\n", "\n")

    def answer() -> TranslatedDocument:
        return TranslatedDocument(paragraphs=[_paragraph(block, translator) for block in blocks(text)])

    return await as_json(answer)


@router.post("/sentences", response_model=Sentences)
async def translate(asked: AskedSentences, shelf: TheShelf, limits: TheSettings) -> Response:
    """Return translations with the probability of each word, and what became of terms."""
    served = shelf.get(asked.model, "translator")
    translator = served.translator
    check_texts([each.text + each.prefix for each in asked.sentences], limits)
    for number, each in enumerate(asked.sentences):
        check_sentence(each.text, each.prefix, f"sentence {number}")
    total = sum(len(each.text) for each in asked.sentences)
    if total > limits.max_characters:
        most = f"{limits.max_characters:,} (max_characters)"
        raise TooMuch(f"sentences of {total:,} characters in all: this server takes {most}")
    demands = await _demands(asked, limits)

    def find() -> list[Translation]:
        beam_size = asked.beam_size or translator.defaults.beam_size
        return translator.translate(
            [each.text for each in asked.sentences],
            beam_size=beam_size,
            n_best=beam_size,
            length_penalty=asked.length_penalty,
            demands=demands,
            prefixes=[each.prefix for each in asked.sentences],
        )

    found = await _while_wanted(served, find)
    return await as_json(lambda: Sentences(sentences=[_sentence(each, translator.tokenizer) for each in found]))


@router.post("/links", response_model=Links)
async def links(asked: AskedLinks, shelf: TheShelf, limits: TheSettings) -> Response:
    """Return how much each word of a translation looks at each word of its sentence."""
    served = shelf.get(asked.model, "translator")
    translator = served.translator
    check_texts([asked.text, asked.target], limits)
    check_sentence(asked.text, "", "the sentence")
    if len(asked.target) > LONGER * MOST_CHARACTERS:
        raise TooMuch(f"a translation of {len(asked.target):,} characters: at most {LONGER * MOST_CHARACTERS:,}")
    head, tokenizer = await asyncio.to_thread(served.alignment), translator.tokenizer

    def look() -> Weights:
        aligner = Aligner(translator.model, tokenizer, head, lambda text: pieces_of_words(text, tokenizer))
        return aligner.weights([(asked.text, asked.target)])[0]

    weights = await served.run(look)

    def answer() -> Links:
        places = np.argwhere(weights >= WEAKEST).tolist()
        strong = [Link(target, source, round(float(weights[target, source]), 4)) for target, source in places]
        by = "the mean of all heads" if head is None else f"head cross.{head.layer}.{head.head}, which aligns best"
        return Links(links=strong, aligned_by=by)

    return await as_json(answer)


@router.post("/words")
async def other_words(asked: AskedSentence, shelf: TheShelf, limits: TheSettings) -> OtherWords:
    """Return the likeliest next words after the prefix, each with the rest translated anew."""
    served = shelf.get(asked.model, "translator")
    translator = served.translator
    check_texts([asked.text + asked.prefix], limits)
    check_sentence(asked.text, asked.prefix, "the sentence")
    demands = await _demands(asked, limits)
    found = await _while_wanted(served, lambda: translator.alternatives(asked.text, asked.prefix, asked.n, demands))
    return OtherWords(words=[_other_word(each, asked.prefix) for each in found])


@router.post("/tree", response_model=Tree)
async def tree(asked: AskedSentence, shelf: TheShelf, limits: TheSettings) -> Response:
    """Return the tree of the search that leads to the translation of a sentence."""
    served = shelf.get(asked.model, "translator")
    translator = served.translator
    check_texts([asked.text + asked.prefix], limits)
    check_sentence(asked.text, asked.prefix, "the sentence")
    demands = await _demands(asked, limits)
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
    return await as_json(lambda: Tree(nodes=[TreeNode(**node._asdict()) for node in grown.nodes(translator.tokenizer)]))


def check_sentence(text: str, prefix: str, name: str) -> None:
    """Refuse a sentence whose search, or whose answer, would be out of proportion; raises TooMuch."""
    longest = max(len(text), len(prefix))
    if longest > MOST_CHARACTERS:
        raise TooMuch(
            f"{name} has {longest:,} characters: at most {MOST_CHARACTERS:,}. Cut it first (/translating/cut)"
        )
    n_words = max(len(word_spans(each)) for each in (text, prefix))
    if n_words > MOST_WORDS:
        raise TooMuch(f"{name} has {n_words:,} words: at most {MOST_WORDS:,}. Cut it first (/translating/cut)")


async def _while_wanted(served: ModelWorker, function: Callable[[], T]) -> T:
    """Return what `function` finds by searching; when its client goes away, the search ends within a step."""
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


async def _demands(asked: TranslationOptions, limits: ServingSettings) -> Constraints:
    check_texts([asked.glossary], limits)
    return Constraints(await asyncio.to_thread(Glossary.parse, asked.glossary.encode(), "the glossary,"))


def _other_word(found: Alternative, prefix: str) -> OtherWord:
    end = found.text.find(found.word, len(prefix.strip())) + len(found.word)
    probability = exp(found.log_prob)
    return OtherWord(word=found.word, probability=probability, text=found.text, prefix=whole(found.text[:end]))


def _paragraph(block: TextBlock, translator: Translator) -> Paragraph:
    whole_ones = sentences(block.text, translator.source_language) if block.text.strip() else []
    found = [part for sentence in whole_ones for part in short_parts(sentence)]
    return Paragraph(
        first=block.first,
        rest=block.rest,
        width=block.width,
        sentences=[_source_sentence(each, translator.tokenizer) for each in found if each.strip()],
    )


def short_parts(text: str) -> list[str]:
    """Return the text in parts that `check_sentence` accepts, cut before words where that is possible."""
    cuts, start, n_words = [0], 0, 0
    for span in word_spans(text):
        if n_words == MOST_WORDS or (span.end - start > MOST_CHARACTERS and span.start > start):
            start, n_words = span.start, 0
            cuts.append(start)
        while span.end - start > MOST_CHARACTERS:
            start += MOST_CHARACTERS
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


def _sentence(found: Translation, tokenizer: Tokenizer) -> Sentence:
    places = pieces_of_words(found.source, tokenizer)
    return Sentence(
        source=_words(found.source, places),
        ways=[_way(places, candidate, tokenizer) for candidate in found.candidates],
        warnings=list(found.warnings),
    )


def _way(source: Sequence[WordSpan], candidate: Candidate, tokenizer: Tokenizer) -> Way:
    sides = source, pieces_of_words(candidate.text, tokenizer)
    return Way(
        text=candidate.text,
        log_prob=candidate.log_prob,
        score=candidate.score,
        words=_words(candidate.text, sides[1], _probabilities(candidate, sides[1], tokenizer)),
        terms=[_term(outcome, *sides) for outcome in candidate.outcomes],
    )


def _probabilities(candidate: Candidate, places: Sequence[WordSpan], tokenizer: Tokenizer) -> list[float | None]:
    """That of each word, of its tokens together; none where the text is not what its tokens spell."""
    spelled = [tokenizer.token_bytes(piece.token) for piece in candidate.pieces if piece.token != tokenizer.end_id]
    if not places or b"".join(spelled) != candidate.text.encode():
        return [None] * len(places)
    numbers = numbers_of(candidate.text, places, map(len, spelled))
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
        source_words=list(_among(sources, outcome.start, outcome.end)),
        target_words=list(_among(targets, outcome.target_start, outcome.target_end)),
    )


def _among(places: Sequence[WordSpan], start: int, end: int) -> Iterator[int]:
    """The words that a span touches."""
    return (number for number, place in enumerate(places) if place.start < end and start < place.end)
