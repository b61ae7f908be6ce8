"""The routes of the translation screen: sentences with word probabilities, alternatives, alignments and beam trees.

Texts are split into words as in `translation/words.py`. A word is sent with the text before it, not with an offset:
browsers and Python count characters differently.
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
from penwright.serving.dynamic_batching import ClientsDisconnected
from penwright.serving.errors import REFUSALS, RequestTooLarge
from penwright.serving.fields import Limits, Registry, as_json, check_texts
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
    SentenceTranslation,
    SentenceWord,
    SourceSentence,
    TermResult,
    TranslatedDocument,
    TranslationOptions,
    Tree,
    TreeNode,
)
from penwright.tokenizers import Tokenizer
from penwright.translation.alignment import Aligner, Weights
from penwright.translation.constraints.glossary import Glossary
from penwright.translation.constraints.requirements import ConstraintResult, Constraints
from penwright.translation.documents import TextBlock, blocks
from penwright.translation.results import Alternative, Candidate, Translation
from penwright.translation.segments import sentences
from penwright.translation.translator import Translator
from penwright.translation.words import WordSpan, complete_last_word, pieces_of_words, span_indices, word_spans

router = APIRouter(prefix="/translating", responses=REFUSALS)
T = TypeVar("T")
MOST_WORDS, MOST_CHARACTERS = 300, 3000  # per sentence: the cost of search and attention is quadratic in its length
LONGER = 4  # a translation may have this many times MOST_CHARACTERS
WEAKEST = 0.01  # smallest attention weight that is sent


@router.post("/cut", response_model=TranslatedDocument)
async def cut(asked: AskedDocument, shelf: Registry, limits: Limits) -> Response:
    """Split a text into paragraphs and sentences. Sentences too long to translate at once are split as well."""
    check_texts([asked.text], limits)
    translator = shelf.get(asked.model, "translator").translator
    text = asked.text.replace("\r\n", "\n")

    def answer() -> TranslatedDocument:
        return TranslatedDocument(paragraphs=[_paragraph(block, translator) for block in blocks(text)])

    return await as_json(answer)


@router.post("/sentences", response_model=Sentences)
async def translate(asked: AskedSentences, shelf: Registry, limits: Limits) -> Response:
    """Translate sentences. Return the probability of each word and the result of each glossary term."""
    served = shelf.get(asked.model, "translator")
    translator = served.translator
    check_texts([each.text + each.prefix for each in asked.sentences], limits)
    for number, each in enumerate(asked.sentences):
        check_sentence(each.text, each.prefix, f"sentence {number}")
    total = sum(len(each.text) for each in asked.sentences)
    if total > limits.max_characters:
        most = f"{limits.max_characters:,} (max_characters)"
        raise RequestTooLarge(
            f"the sentences have {total:,} characters in total: this server accepts {most}. Send fewer"
        )
    demands = await _constraints(asked, limits)

    def find() -> list[Translation]:
        beam_size = asked.beam_size or translator.defaults.beam_size
        return translator.translate(
            [each.text for each in asked.sentences],
            beam_size=beam_size,
            n_best=beam_size,
            length_penalty=asked.length_penalty,
            constraints=demands,
            prefixes=[each.prefix for each in asked.sentences],
        )

    found = await _run_while_connected(served, find)
    return await as_json(lambda: Sentences(sentences=[_sentence(each, translator.tokenizer) for each in found]))


@router.post("/links", response_model=Links)
async def links(asked: AskedLinks, shelf: Registry, limits: Limits) -> Response:
    """Return how much each word of a translation attends to each word of its sentence."""
    served = shelf.get(asked.model, "translator")
    translator = served.translator
    check_texts([asked.text, asked.target], limits)
    check_sentence(asked.text, "", "the sentence")
    if len(asked.target) > LONGER * MOST_CHARACTERS:
        raise RequestTooLarge(
            f"the translation has {len(asked.target):,} characters, but the limit is {LONGER * MOST_CHARACTERS:,}. "
            "Shorten it"
        )
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
async def other_words(asked: AskedSentence, shelf: Registry, limits: Limits) -> OtherWords:
    """Return the most likely next words after the prefix, each with a new translation of the rest."""
    served = shelf.get(asked.model, "translator")
    translator = served.translator
    check_texts([asked.text + asked.prefix], limits)
    check_sentence(asked.text, asked.prefix, "the sentence")
    demands = await _constraints(asked, limits)
    found = await _run_while_connected(
        served, lambda: translator.alternatives(asked.text, asked.prefix, asked.n, demands)
    )
    return OtherWords(words=[_other_word(each, asked.prefix) for each in found])


@router.post("/tree", response_model=Tree)
async def tree(asked: AskedSentence, shelf: Registry, limits: Limits) -> Response:
    """Return the tree of the beam search that translates a sentence."""
    served = shelf.get(asked.model, "translator")
    translator = served.translator
    check_texts([asked.text + asked.prefix], limits)
    check_sentence(asked.text, asked.prefix, "the sentence")
    demands = await _constraints(asked, limits)
    grown = BeamTree()

    def answer() -> None:
        def watch(source: int, extension: Extension) -> None:
            if source != 0:
                raise UsageError("the tree shows one sentence only. Send a single line that is not too long")
            grown(source, extension)

        beam_size = asked.beam_size or translator.defaults.beam_size
        translator.translate(
            [asked.text],
            beam_size=beam_size,
            n_best=beam_size,
            length_penalty=asked.length_penalty,
            constraints=demands,
            prefixes=asked.prefix,
            watch=watch,
        )

    await _run_while_connected(served, answer)
    return await as_json(lambda: Tree(nodes=[TreeNode(**node._asdict()) for node in grown.nodes(translator.tokenizer)]))


def check_sentence(text: str, prefix: str, name: str) -> None:
    """Raise TooMuch for a sentence whose search or answer would be too large."""
    longest = max(len(text), len(prefix))
    if longest > MOST_CHARACTERS:
        raise RequestTooLarge(
            f"{name} has {longest:,} characters, but the limit is {MOST_CHARACTERS:,}. "
            "Split it first (/translating/cut)"
        )
    n_words = max(len(word_spans(each)) for each in (text, prefix))
    if n_words > MOST_WORDS:
        raise RequestTooLarge(
            f"{name} has {n_words:,} words, but the limit is {MOST_WORDS:,}. Split it first (/translating/cut)"
        )


async def _run_while_connected(served: ModelWorker, function: Callable[[], T]) -> T:
    """Run a search and return its result. If the client disconnects, the search ends within a step."""
    disconnected = Event()

    def check() -> None:
        if disconnected.is_set():
            raise ClientsDisconnected("the client has disconnected")

    def work() -> T:
        with served.translator.watched(check):
            return function()

    try:
        return await served.run(work)
    finally:
        disconnected.set()


async def _constraints(asked: TranslationOptions, limits: ServingSettings) -> Constraints:
    check_texts([asked.glossary], limits)
    return Constraints(await asyncio.to_thread(Glossary.parse, asked.glossary.encode(), "the glossary,"))


def _other_word(found: Alternative, prefix: str) -> OtherWord:
    end = found.text.find(found.word, len(prefix.strip())) + len(found.word)
    probability = exp(found.log_prob)
    return OtherWord(
        word=found.word, probability=probability, text=found.text, prefix=complete_last_word(found.text[:end])
    )


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
    """Split a text into parts that `check_sentence` accepts, before a word if possible."""
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
        ways=[_translation(places, candidate, tokenizer) for candidate in found.candidates],
        warnings=list(found.warnings),
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
    """Return the joint probability of each word's tokens, or None if the tokens do not spell the text."""
    spelled = [tokenizer.token_bytes(piece.token) for piece in candidate.pieces if piece.token != tokenizer.end_id]
    if not places or b"".join(spelled) != candidate.text.encode():
        return [None] * len(places)
    numbers = span_indices(candidate.text, places, map(len, spelled))
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
    """Yield the indices of the words that a span overlaps."""
    return (number for number, place in enumerate(places) if place.start < end and start < place.end)
