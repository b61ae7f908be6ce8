"""What the page needs to translate: sentences with what is known of each word, and other ways to put them.

Texts are cut into words as `translation/words.py` says. A word comes as a text with what stands before it, and not as a
place, since browsers count characters otherwise than Python.
"""

from collections.abc import Callable, Iterator, Sequence
from math import exp, fsum
from threading import Event
from typing import TypeVar

from fastapi import APIRouter

from penwright.decoding.hypotheses import Extension
from penwright.errors import UsageError
from penwright.inspection.beams import BeamTree
from penwright.serving.dynamic_batching import Unwanted
from penwright.serving.errors import REFUSALS
from penwright.serving.fields import TheSettings, TheShelf, check_texts
from penwright.serving.model_worker import ModelWorker
from penwright.serving.settings import ServingSettings
from penwright.serving.translation_fields import (
    AskedDocument,
    AskedSentence,
    AskedSentences,
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
from penwright.translation.words import WordSpan, numbers_of, pieces_of_words, whole
from penwright.workflows.optimize import kept_alignment

router = APIRouter(prefix="/translating", responses=REFUSALS)
T = TypeVar("T")


@router.post("/cut")
async def cut(asked: AskedDocument, shelf: TheShelf, limits: TheSettings) -> TranslatedDocument:
    """Paragraphs and sentences of a text; no model is needed for it."""
    check_texts([asked.text], limits)
    translator = shelf.get(asked.model, "translator").translator
    text = asked.text.replace("\r\n", "\n")
    return TranslatedDocument(paragraphs=[_paragraph(block, translator) for block in blocks(text)])


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
        tokenizer = translator.tokenizer
        aligner = Aligner(translator.model, tokenizer, head, lambda text: pieces_of_words(text, tokenizer))
        weights = iter(aligner.weights([(each.source, way.text) for each in found for way in each.candidates]))
        return [
            Sentence(
                source=_words(each.source, pieces_of_words(each.source, tokenizer)),
                ways=[_way(each, way, next(weights), tokenizer) for way in each.candidates],
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
    return OtherWords(words=[_other_word(each, asked.prefix) for each in found])


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


async def _while_wanted(served: ModelWorker, function: Callable[[], T]) -> T:
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


def _demands(asked: TranslationOptions, limits: ServingSettings) -> Constraints:
    check_texts([asked.glossary], limits)
    return Constraints(Glossary.parse(asked.glossary.encode(), "the glossary,"))


def _other_word(found: Alternative, prefix: str) -> OtherWord:
    end = found.text.find(found.word, len(prefix.strip())) + len(found.word)
    probability = exp(found.log_prob)
    return OtherWord(word=found.word, probability=probability, text=found.text, prefix=whole(found.text[:end]))


def _paragraph(block: TextBlock, translator: Translator) -> Paragraph:
    found = sentences(block.text, translator.source_language) if block.text.strip() else []
    return Paragraph(
        first=block.first,
        rest=block.rest,
        width=block.width,
        sentences=[_source_sentence(each, translator.tokenizer) for each in found if each.strip()],
    )


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


def _way(found: Translation, candidate: Candidate, weights: Weights, tokenizer: Tokenizer) -> Way:
    sides = pieces_of_words(found.source, tokenizer), pieces_of_words(candidate.text, tokenizer)
    return Way(
        text=candidate.text,
        log_prob=candidate.log_prob,
        score=candidate.score,
        words=_words(candidate.text, sides[1], _probabilities(candidate, sides[1], tokenizer)),
        weights=weights.round(4).tolist(),
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
