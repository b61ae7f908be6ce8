"""The routes of the translation screen: sentences with word probabilities, alternatives, alignments and beam trees.

`text.py` splits texts into words. A word is sent with the text between it and the previous word instead of an offset,
because browsers and Python count characters differently.
"""

import asyncio

import numpy as np
from fastapi import APIRouter, Response

from penwright.decoding.hypotheses import Extension
from penwright.errors import UsageError
from penwright.inspection.beams import BeamTree
from penwright.serving.errors import ERROR_RESPONSES, RequestTooLarge
from penwright.serving.fields import Limits, Registry, as_json, check_texts
from penwright.serving.settings import ServingSettings
from penwright.serving.translation_fields import (
    MAX_CHARACTERS,
    DocumentRequest,
    Link,
    Links,
    LinksRequest,
    OtherWords,
    SearchRequest,
    Sentences,
    SentencesRequest,
    TranslatedDocument,
    TranslationOptions,
    Tree,
    TreeNode,
    check_sentence,
    other_word,
    paragraph,
    sentence,
)
from penwright.translation.alignment import Aligner, Weights, pieces_of_words
from penwright.translation.constraints.glossary import Glossary
from penwright.translation.constraints.requirements import Constraints
from penwright.translation.documents import blocks
from penwright.translation.results import Translation

router = APIRouter(prefix="/translating", responses=ERROR_RESPONSES)
MAX_TARGET_CHARACTERS = 4 * MAX_CHARACTERS  # maximum length of a translation in a request, in characters
MIN_WEIGHT = 0.01  # alignment links with a smaller attention weight are not sent


@router.post("/cut", response_model=TranslatedDocument)
async def cut(body: DocumentRequest, registry: Registry, limits: Limits) -> Response:
    """Split a text into paragraphs and sentences. Sentences that are too long for one translation are split, too."""
    check_texts([body.text], limits)
    translator = registry.get(body.model, "translator").translator
    text = body.text.replace("\r\n", "\n")

    def answer() -> TranslatedDocument:
        return TranslatedDocument(paragraphs=[paragraph(block, translator) for block in blocks(text)])

    return await as_json(answer)


@router.post("/sentences", response_model=Sentences)
async def translate(body: SentencesRequest, registry: Registry, limits: Limits) -> Response:
    """Translate sentences. Return each word's probability and whether each glossary term was used."""
    worker = registry.get(body.model, "translator")
    translator = worker.translator
    check_texts([each.text + each.prefix for each in body.sentences], limits)
    for number, each in enumerate(body.sentences):
        check_sentence(each.text, each.prefix, f"sentence {number}")
    total = sum(len(each.text) for each in body.sentences)
    if total > limits.max_characters:
        most = f"{limits.max_characters:,} (max_characters)"
        raise RequestTooLarge(
            f"the sentences have {total:,} characters in total, but this server accepts at most {most}. Send fewer"
        )
    constraints = await _constraints(body, limits)

    def find() -> list[Translation]:
        beam_size = body.beam_size or translator.defaults.beam_size
        return translator.translate(
            [each.text for each in body.sentences],
            beam_size=beam_size,
            n_best=beam_size,
            length_penalty=body.length_penalty,
            constraints=constraints,
            prefixes=[each.prefix for each in body.sentences],
        )

    result = await worker.run(find, translator.watched)
    return await as_json(lambda: Sentences(sentences=[sentence(each, translator.tokenizer) for each in result]))


@router.post("/links", response_model=Links)
async def links(body: LinksRequest, registry: Registry, limits: Limits) -> Response:
    """Return how much each word of a translation attends to each word of the source sentence."""
    worker = registry.get(body.model, "translator")
    translator = worker.translator
    check_texts([body.text, body.target], limits)
    check_sentence(body.text, "", "the sentence")
    if len(body.target) > MAX_TARGET_CHARACTERS:
        raise RequestTooLarge(
            f"the translation has {len(body.target):,} characters, but the limit is {MAX_TARGET_CHARACTERS:,}. "
            "Shorten it"
        )
    head, tokenizer = await asyncio.to_thread(worker.alignment), translator.tokenizer

    def compute_weights() -> Weights:
        aligner = Aligner(translator.model, tokenizer, head, lambda text: pieces_of_words(text, tokenizer))
        return aligner.weights([(body.text, body.target)])[0]

    weights = await worker.run(compute_weights)

    def answer() -> Links:
        places = np.argwhere(weights >= MIN_WEIGHT).tolist()
        strong = [Link(target, source, round(float(weights[target, source]), 4)) for target, source in places]
        by = (
            "the mean of all heads" if head is None else f"head cross.{head.layer}.{head.head}, which aligns words best"
        )
        return Links(links=strong, aligned_by=by)

    return await as_json(answer)


@router.post("/words")
async def other_words(body: SearchRequest, registry: Registry, limits: Limits) -> OtherWords:
    """Return the most likely next words after the prefix, each with the best translation that contains it."""
    worker = registry.get(body.model, "translator")
    translator = worker.translator
    check_texts([body.text + body.prefix], limits)
    check_sentence(body.text, body.prefix, "the sentence")
    constraints = await _constraints(body, limits)
    alternatives = await worker.run(
        lambda: translator.alternatives(
            body.text,
            body.prefix,
            body.n,
            constraints,
            beam_size=body.beam_size,
            length_penalty=body.length_penalty,
        ),
        translator.watched,
    )
    return OtherWords(words=[other_word(each, body.prefix) for each in alternatives])


@router.post("/tree", response_model=Tree)
async def tree(body: SearchRequest, registry: Registry, limits: Limits) -> Response:
    """Return the beam search tree for a sentence."""
    worker = registry.get(body.model, "translator")
    translator = worker.translator
    check_texts([body.text + body.prefix], limits)
    check_sentence(body.text, body.prefix, "the sentence")
    constraints = await _constraints(body, limits)
    grown = BeamTree()

    def answer() -> None:
        def watch(source: int, extension: Extension) -> None:
            if source != 0:
                raise UsageError("the tree needs a single sentence. Send one line that fits the model's context")
            grown(source, extension)

        beam_size = body.beam_size or translator.defaults.beam_size
        translator.translate(
            [body.text],
            beam_size=beam_size,
            n_best=beam_size,
            length_penalty=body.length_penalty,
            constraints=constraints,
            prefixes=body.prefix,
            watch=watch,
        )

    await worker.run(answer, translator.watched)
    return await as_json(lambda: Tree(nodes=[TreeNode(**node._asdict()) for node in grown.nodes(translator.tokenizer)]))


async def _constraints(body: TranslationOptions, limits: ServingSettings) -> Constraints:
    check_texts([body.glossary], limits)
    return Constraints(await asyncio.to_thread(Glossary.parse, body.glossary.encode(), "the glossary,"))
