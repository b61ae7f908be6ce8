"""LibreTranslate's interface, as its clients know it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penwright.errors import UsageError
from penwright.serving.errors import PLAIN_REFUSALS
from penwright.serving.fields import Text, TheSettings, TheShelf, check_texts
from penwright.serving.languages import Guess, detect, languages_of, name_of
from penwright.serving.model_worker import ModelRegistry, ModelWorker, Wording

router = APIRouter(responses=PLAIN_REFUSALS)
Asked = TypeVar("Asked", bound=BaseModel)
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


class ToTranslate(BaseModel):
    """One text, or several. Fields that are not named here change nothing."""

    model_config = ConfigDict(allow_inf_nan=False)

    q: Text | list[Text]
    source: Text = "auto"
    target: Text
    format: Literal["text", "html"] = "text"
    alternatives: Annotated[int, Field(ge=0)] = 0
    api_key: Text | None = None


class ToDetect(BaseModel):
    """A text in a language that is not known."""

    q: Text
    api_key: Text | None = None


class Detected(BaseModel):
    """A language, and how sure that is, in per cent."""

    confidence: float
    language: str


class Translated(BaseModel):
    """A text for a text, a list for a list."""

    translatedText: str | list[str]
    alternatives: list[str] | list[list[str]] | None = None
    detectedLanguage: Detected | list[Detected] | None = None


class Language(BaseModel):
    """A language that is translated from."""

    code: str
    name: str
    targets: list[str]


def _body(model: type[BaseModel]) -> dict[str, Any]:
    """Of JSON or of a form, for the description of the interface."""
    kinds = ("application/json", *FORMS)
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema} for kind in kinds}}}


@router.post("/translate", response_model_exclude_none=True, openapi_extra=_body(ToTranslate))
async def translate(request: Request, shelf: TheShelf, limits: TheSettings) -> Translated:
    """Texts in another language; tags stay as they are."""
    asked = await _read(request, ToTranslate)
    several = isinstance(asked.q, list)
    texts = asked.q if isinstance(asked.q, list) else [asked.q]
    check_texts(texts, limits)
    if asked.alternatives >= limits.max_n:
        raise UsageError(f"{asked.alternatives} alternatives: this server gives fewer than {limits.max_n} (max_n)")
    served, guess = await _translator(shelf, asked, " ".join(texts)[:500])
    beam_size = max(served.translator.defaults.beam_size, asked.alternatives + 1)
    found = await served.translate(texts, Wording(beam_size, asked.alternatives + 1))
    others = [[each.text for each in translation.candidates[1:]] for translation in found]
    detected = None if guess is None else Detected(confidence=round(100 * guess.share, 1), language=guess.language)
    return Translated(
        translatedText=[each.text for each in found] if several else found[0].text,
        alternatives=None if not asked.alternatives else others if several else others[0],
        detectedLanguage=[detected] * len(texts) if several and detected else detected,
    )


@router.post("/detect", openapi_extra=_body(ToDetect))
async def which_language(request: Request, shelf: TheShelf, limits: TheSettings) -> list[Detected]:
    """Among those that can be translated from."""
    asked = await _read(request, ToDetect)
    check_texts([asked.q], limits)
    guesses = await detect(asked.q[:500], _translators(shelf))
    return [Detected(confidence=round(100 * guess.share, 1), language=guess.language) for guess in guesses]


@router.get("/languages")
async def languages(shelf: TheShelf) -> list[Language]:
    """Those that can be translated from, each with what it can be translated to."""
    return _languages(shelf)


@router.get("/frontend/settings")
async def frontend_settings(shelf: TheShelf, limits: TheSettings) -> dict[str, Any]:
    """What pages that are made for LibreTranslate ask first."""
    first = next(iter(_languages(shelf)), None)
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


def _languages(shelf: ModelRegistry) -> list[Language]:
    targets: dict[str, list[str]] = {}
    for served in _translators(shelf):
        pair = languages_of(served.name, served.opened)
        targets.setdefault(pair.source, []).append(pair.target)
    return [Language(code=code, name=name_of(code), targets=to) for code, to in targets.items()]


def _translators(shelf: ModelRegistry) -> list[ModelWorker]:
    shelf.get(None, "translator")
    return [served for served in shelf if served.kind == "translator"]


async def _translator(shelf: ModelRegistry, asked: ToTranslate, sample: str) -> tuple[ModelWorker, Guess | None]:
    """Who translates this, and for source "auto", from which language."""
    pairs = {served: languages_of(served.name, served.opened) for served in _translators(shelf)}
    fitting = [served for served, pair in pairs.items() if asked.target in {pair.target, "target"}]
    if asked.source != "auto":
        fitting = [served for served in fitting if asked.source in {pairs[served].source, "source"}]
    unknown = [served for served, pair in pairs.items() if pair.source == "source"]
    if not fitting and len(pairs) == len(unknown) == 1:
        fitting = unknown  # the only one there is, of which nothing is known
    if not fitting:
        there = ", ".join(f"{pair.source} to {pair.target}" for pair in pairs.values())
        raise UsageError(f"{asked.source[:20]} to {asked.target[:20]} is not supported: there is {there}")
    if asked.source != "auto":
        return fitting[0], None
    guess = (await detect(sample, fitting))[0]
    return next(served for served in fitting if pairs[served].source == guess.language), guess


async def _read(request: Request, model: type[Asked]) -> Asked:
    """JSON or a form, whichever it is."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    try:
        given = await _form(request) if kind in FORMS else await request.json()
        return model.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None
    except (ValueError, RecursionError):
        raise UsageError("this is neither JSON nor a form") from None


async def _form(request: Request) -> Mapping[str, Any]:
    """The fields; one that comes several times is a list."""
    async with request.form() as form:
        fields = {name: form.getlist(name) for name in form}
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}
