"""The routes of LibreTranslate's API, for clients that already use it, and the languages of translators."""

import asyncio
from collections.abc import Mapping, Sequence
from math import exp
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penwright.application import languages_of as known_languages
from penwright.errors import UsageError
from penwright.languages import Languages, languages_in
from penwright.serving.errors import PLAIN_ERROR_RESPONSES, RequestTooLarge
from penwright.serving.fields import (
    FORM,
    MAX_ENTRIES,
    MAX_INT,
    PARTS,
    Limits,
    Name,
    Registry,
    Text,
    check_texts,
    kind_of,
    read_fields,
)
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.model_worker import ModelWorker, TranslationChoices
from penwright.translation.html_tags import Piece, pieces, texts_of, with_texts
from penwright.workflows.load import OpenedRun

NAMES = {
    "ar": "Arabic",
    "cs": "Czech",
    "de": "German",
    "en": "English",
    "es": "Spanish",
    "fr": "French",
    "it": "Italian",
    "ja": "Japanese",
    "nl": "Dutch",
    "pl": "Polish",
    "pt": "Portuguese",
    "ru": "Russian",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "zh": "Chinese",
}
UNKNOWN = Languages("source", "target")
MOST_ROUNDS = 16  # maximum number of batches of `max_texts` texts into which the texts of HTML pages are divided
router = APIRouter(responses=PLAIN_ERROR_RESPONSES)
Body = TypeVar("Body", bound=BaseModel)


class LanguageGuess(NamedTuple):
    """A possible language of a text, and the mean token probability of a translation from this language."""

    language: str
    share: float


def languages_of(name: str, opened: OpenedRun) -> Languages:
    """Return the languages of a run, from its served name (e.g. de-en) or its training data."""
    return languages_in(name) or known_languages(opened.recipe, opened.card) or UNKNOWN


async def detect(text: str, translators: Sequence[ModelWorker]) -> list[LanguageGuess]:
    """Rank the source languages of the translators by the likelihood that the text is written in them, best first."""
    guesses = []
    for worker in translators:
        (result,) = await worker.translate([text], TranslationChoices(beam_size=1))
        n_tokens = len(result.candidates[0].pieces)
        share = exp(result.candidates[0].log_prob / n_tokens) if n_tokens else 0.0
        guesses.append(LanguageGuess(languages_of(worker.name, worker.opened).source, share))
    best = sorted(guesses, key=lambda guess: -guess.share)
    return list({guess.language: guess for guess in reversed(best)}.values())[::-1]


def name_of(code: str) -> str:
    """Return the English name of a language, or its code if it has no known name."""
    return NAMES.get(code, code)


class TranslateRequest(BaseModel):
    """A request to translate one or more texts. Unknown fields are ignored."""

    model_config = ConfigDict(allow_inf_nan=False)

    q: Text | Annotated[list[Text], Field(max_length=MAX_ENTRIES, fail_fast=True)]  # texts to translate
    source: Name = "auto"  # language code, or "auto" to detect the language
    target: Name  # language code
    format: Literal["text", "html"] = "text"  # "html": keep the tags, and translate the text between them
    alternatives: Annotated[int, Field(ge=0, le=MAX_INT)] = 0  # number of alternative translations to return
    api_key: Text | None = None  # the server's key, if it has one


class DetectRequest(BaseModel):
    """A request to detect the language of a text."""

    q: Text  # text whose language to detect
    api_key: Text | None = None  # the server's key, if it has one


class Detected(BaseModel):
    """A detected language, with the confidence in percent."""

    confidence: float
    language: str


class Translated(BaseModel):
    """The translations: a string if the request contains a string, or a list if it contains a list."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None


class Language(BaseModel):
    """A source language and its target languages."""

    code: str
    name: str
    targets: list[str]


def _body(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a request body that may be sent as JSON or as a form."""
    kinds = ("application/json", FORM, PARTS)
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


@router.post("/translate", response_model_exclude_none=True, openapi_extra=_body(TranslateRequest))
async def translate(request: Request, registry: Registry, limits: Limits) -> Translated:
    """Translate texts. In HTML, tags, scripts, code and elements with translate="no" are not changed."""
    body = await _read(request, TranslateRequest)
    several = isinstance(body.q, list)
    texts = body.q if isinstance(body.q, list) else [body.q]
    check_texts(texts, limits)
    if body.alternatives >= limits.max_n:
        raise UsageError(
            f"alternatives is {body.alternatives}, but this server allows fewer than {limits.max_n} (max_n)"
        )
    pages = [await asyncio.to_thread(pieces, text) if body.format == "html" else [Piece("", text)] for text in texts]
    unique_texts = list(dict.fromkeys(text for page in pages for text in texts_of(page)))
    if len(unique_texts) > (most := MOST_ROUNDS * limits.max_texts):
        raise RequestTooLarge(
            f"the pages have {len(unique_texts):,} different texts, but this server accepts at most {most:,} "
            f"({MOST_ROUNDS} times max_texts). Send them in several requests"
        )
    async with asyncio.timeout(limits.deadline_seconds):
        worker, guess = await _translator(registry, body, " ".join(unique_texts)[:500])
        ranked = await _ranked_translations(worker, unique_texts, body.alternatives + 1)
    put_together = with_texts if body.format == "html" else _plain
    versions = [
        [put_together(page, {text: way[:rank][-1] for text, way in ranked.items()}) for rank in _ranks(page, ranked)]
        for page in pages
    ]
    others = [page[1:] for page in versions]
    detected = None if guess is None else Detected(confidence=round(100 * guess.share, 1), language=guess.language)
    return Translated(
        translatedText=[page[0] for page in versions] if several else versions[0][0],
        alternatives=None if not body.alternatives else others if several else others[0],
        detectedLanguage=[detected] * len(texts) if several and detected else detected,
    )


async def _ranked_translations(worker: ModelWorker, texts: Sequence[str], n: int) -> dict[str, list[str]]:
    """Return up to n translations of each text, best first. Many texts are translated in several rounds."""
    ranked: dict[str, list[str]] = {}
    options = TranslationChoices(max(worker.translator.defaults.beam_size, n), n)
    at_once = min(len(texts), worker.limits.max_texts, worker.limits.max_waiting)
    for start in range(0, len(texts), max(1, at_once)):
        batch = texts[start : start + at_once]
        translations = await worker.translate(batch, options)
        ranked |= {text: [each.text for each in one.candidates] for text, one in zip(batch, translations, strict=True)}
    return ranked


def _ranks(page: Sequence[Piece], ranked: Mapping[str, Sequence[str]]) -> range:
    """Return the ranks 1 to n, where n is the largest number of candidate translations that a text has."""
    return range(1, 1 + max((len(ranked[text]) for text in texts_of(page)), default=1))


def _plain(page: Sequence[Piece], translations: Mapping[str, str]) -> str:
    return "".join(translations.get(part.text, part.text) for part in page)


@router.post("/detect", openapi_extra=_body(DetectRequest))
async def which_language(request: Request, registry: Registry, limits: Limits) -> list[Detected]:
    """Guess which of the translators' source languages a text is written in."""
    body = await _read(request, DetectRequest)
    check_texts([body.q], limits)
    async with asyncio.timeout(limits.deadline_seconds):
        guesses = await detect(body.q[:500], _translators(registry))
    return [Detected(confidence=round(100 * guess.share, 1), language=guess.language) for guess in guesses]


@router.get("/languages")
async def languages(registry: Registry) -> list[Language]:
    """List the source languages, each with its target languages."""
    return _languages(registry)


@router.get("/frontend/settings")
async def frontend_settings(registry: Registry, limits: Limits) -> dict[str, Any]:
    """Return the settings that LibreTranslate's web page requests when it opens."""
    first = next(iter(_languages(registry)), None)
    source = {"code": first.code, "name": first.name} if first else None
    target = {"code": first.targets[0], "name": name_of(first.targets[0])} if first else None
    return {
        "apiKeys": limits.api_key is not None,
        "keyRequired": limits.api_key is not None,
        "charLimit": limits.max_characters,
        "frontendTimeout": 500,
        "language": {"source": source, "target": target},
        "suggestions": False,
        "supportedFilesFormat": [],
    }


def _languages(registry: ModelRegistry) -> list[Language]:
    targets: dict[str, list[str]] = {}
    for worker in _translators(registry):
        pair = languages_of(worker.name, worker.opened)
        targets.setdefault(pair.source, []).append(pair.target)
    return [Language(code=code, name=name_of(code), targets=to) for code, to in targets.items()]


def _translators(registry: ModelRegistry) -> list[ModelWorker]:
    registry.get(None, "translator")  # raises UnknownModel if there is none
    return [registry.get(worker.name) for worker in registry if worker.kind == "translator"]


async def _translator(
    registry: ModelRegistry, body: TranslateRequest, sample: str
) -> tuple[ModelWorker, LanguageGuess | None]:
    """Return the translator for a request and, if its source is "auto", the detected language."""
    pairs = {worker: languages_of(worker.name, worker.opened) for worker in _translators(registry)}
    source, target = body.source.lower(), body.target.lower()
    suitable = [worker for worker, pair in pairs.items() if target in {pair.target.lower(), "target"}]
    if source != "auto":
        suitable = [worker for worker in suitable if source in {pairs[worker].source.lower(), "source"}]
    unknown = [worker for worker, pair in pairs.items() if pair.source == "source"]
    if not suitable and len(pairs) == len(unknown) == 1:
        suitable = unknown  # there is only one translator; its languages are unknown, so it may support the request
    if not suitable:
        supported = ", ".join(f"{pair.source} to {pair.target}" for pair in pairs.values())
        raise UsageError(
            f"{body.source[:20]} to {body.target[:20]} is not supported. This server translates {supported}"
        )
    if source != "auto":
        return suitable[0], None
    guess = (await detect(sample, suitable))[0]
    return next(worker for worker in suitable if pairs[worker].source == guess.language), guess


async def _read(request: Request, model: type[Body]) -> Body:
    """Parse the request, which is JSON or a form. All values of a form are text; one without a value is left out."""
    content_type, content = request.headers.get("content-type", ""), await request.body()
    is_json = kind_of(content_type, content) == "application/json"
    try:
        given = await read_fields(content_type, content)
    except (ValueError, RecursionError):
        raise UsageError("the body is neither a JSON object nor a form. Send one or the other") from None
    if not is_json:
        optional = {name for name, field in model.model_fields.items() if not field.is_required()}
        given = {name: value for name, value in given.items() if value or name not in optional}
    try:
        return model.model_validate(given, strict=is_json)
    except ValidationError as error:
        problems = [{**each, "loc": ("body", *each["loc"])} for each in error.errors(include_url=False)]
        raise RequestValidationError(problems, body=given) from None
