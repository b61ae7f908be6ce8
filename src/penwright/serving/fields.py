"""Common parts of the routes: request bodies, field types, decoding settings, size limits, access to the models."""

import asyncio
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any, NamedTuple
from urllib.parse import parse_qs

from fastapi import Depends, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser

from penwright.config import DecodingSettings, with_present_names
from penwright.errors import UsageError
from penwright.serving.errors import RequestTooLarge, first_problem
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.settings import ServingSettings

FORM, PARTS = "application/x-www-form-urlencoded", "multipart/form-data"
MAX_FIELDS = 1000  # maximum number of fields of a form
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")  # JSON escape of a surrogate, which is half of a character


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair, which is not valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_well_formed)]  # a text in valid Unicode; `check_texts` limits its length
Name = Annotated[Text, Field(max_length=500)]  # the name of a model or a run
MAX_ENTRIES = 10_000  # maximum number of entries of a list; checked before the limits in ServingSettings
MAX_INT = 2**31 - 1  # the largest integer that a field accepts
TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]


class ModelRequest(BaseModel):
    """A request body with strict JSON types and without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, data: Any) -> Any:
        """Report only the first unknown field. pydantic would report every one, even if there were a million."""
        names = data if isinstance(data, dict) else ()
        unknown = next((name for name in names if name not in cls.model_fields), None)
        if unknown is not None:
            raise ValueError(f"there is no field '{str(unknown)[:40]}'. The fields are {', '.join(cls.model_fields)}")
        return data


async def as_json(make: Callable[[], BaseModel]) -> Response:
    """Build an answer on a thread, and return it as JSON. On the main thread, a large answer would block the server."""
    content = await asyncio.to_thread(lambda: make().model_dump_json().encode())
    return Response(content, media_type="application/json")


def _registry(request: Request) -> ModelRegistry:
    registry: ModelRegistry = request.app.state.registry
    return registry


def _settings(request: Request) -> ServingSettings:
    settings: ServingSettings = request.app.state.settings
    return settings


Registry = Annotated[ModelRegistry, Depends(_registry)]
Limits = Annotated[ServingSettings, Depends(_settings)]


def check_texts(texts: Sequence[str], limits: ServingSettings) -> None:
    """Check the number and the lengths of the texts. Raises RequestTooLarge, naming the exceeded limit."""
    if len(texts) > limits.max_texts:
        raise RequestTooLarge(
            f"the request has {len(texts)} texts, but this server accepts at most {limits.max_texts} (max_texts). "
            "Send fewer"
        )
    check_lengths(texts, limits)


def check_lengths(texts: Sequence[str | None], limits: ServingSettings) -> None:
    """Check the lengths of the texts of one request; None represents a missing text. Raises RequestTooLarge."""
    longest = max((len(text or "") for text in texts), default=0)
    if longest > limits.max_characters:
        raise RequestTooLarge(
            f"a text has {longest:,} characters, but this server accepts at most {limits.max_characters:,} "
            "(max_characters). Shorten it"
        )


def check_tokens(tokens: Iterable[object], known: Collection[object], where: str = "") -> None:
    """Check that the token ids are known. Raises UsageError, naming the first that is not."""
    unknown = next((token for token in tokens if token not in known), None)
    if unknown is not None:
        raise UsageError(f"{where}there is no token {unknown!r:.20}. The token ids are 0 to {len(known) - 1}")


class _MaxSize(NamedTuple):
    entries: int
    characters: int  # maximum number of characters of all entries together


LISTS: Mapping[str, _MaxSize] = {
    "banned_words": _MaxSize(500, 8000),
    "required_words": _MaxSize(50, 2000),
    "dry_breakers": _MaxSize(64, 1000),
    "stop": _MaxSize(16, 4000),
    "logit_bias": _MaxSize(300, 2000),
}


def decoding_settings(defaults: DecodingSettings, changes: Mapping[str, Any], where: str) -> DecodingSettings:
    """Return the default settings with these changes. Raises UsageError or RequestTooLarge, naming the setting."""
    changes, keys = with_present_names(changes, "decoding."), DecodingSettings.model_fields
    unknown = next((name for name in changes if name not in keys), None)
    if unknown is not None:
        near = get_close_matches(str(unknown), keys, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"the keys are {', '.join(keys)}"
        raise UsageError(f"unknown key '{str(unknown)[:40]}' in {where}: {hint}")
    for name, most in LISTS.items():
        _check_size(f"{where}.{name}", changes.get(name), most)
    plain = {name: tuple(value) if isinstance(value, list) else value for name, value in changes.items()}
    table = {**defaults.model_dump(), **plain}
    try:
        return DecodingSettings.model_validate(table, strict=True)
    except ValidationError as error:
        place, reason = first_problem(error.errors(include_url=False), table)
        raise UsageError(f"{where}.{place}: {reason}") from None


def _check_size(name: str, value: object, most: _MaxSize) -> None:
    if not isinstance(value, list | dict):
        return
    if len(value) > most.entries:
        raise RequestTooLarge(
            f"{name} has {len(value):,} entries, but this server accepts at most {most.entries}. Send fewer"
        )
    n = sum(len(each) for each in value if isinstance(each, str))
    if n > most.characters:
        raise RequestTooLarge(
            f"{name} has {n:,} characters in total, but this server accepts at most {most.characters:,}. Send fewer"
        )


def kind_of(content_type: str, body: bytes) -> str:
    """Return the media type of a body: a form type, or else JSON. An object is JSON even if the header names a form.

    `curl -d '{"text": ""}'` sends JSON with the content type of a form.
    """
    kind = content_type.partition(";")[0].strip().lower()
    is_object = kind == FORM and body.lstrip()[:1] == b"{"
    return kind if kind in (FORM, PARTS) and not is_object else "application/json"


def problem_of_json(body: bytes) -> str | None:
    """Return why a JSON body is not valid Unicode, or None if it is valid. Syntax errors are detected later."""
    try:
        body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"the body is not UTF-8: byte {error.start} is invalid"
    if _SURROGATE.search(body) is None:
        return None
    try:
        json.dumps(json.loads(body), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return "the body contains half of a surrogate pair (\\ud800 to \\udfff alone), which is not valid Unicode"
    except (ValueError, RecursionError):
        return None
    return None


async def read_fields(content_type: str, body: bytes) -> Mapping[str, Any]:
    """Return the fields of a JSON object or a form. A form field that occurs several times becomes a list.

    Raises ValueError or RecursionError for any other body.
    """
    kind = kind_of(content_type, body)
    if kind == "application/json":
        content = json.loads(body)
        if not isinstance(content, dict):
            raise ValueError("the body is not a JSON object")
        return content
    fields: Mapping[str, list[Any]]
    if kind == FORM:
        fields = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS)
    else:
        fields = await _parts(content_type, body)
    return {name: values if len(values) > 1 else values[0] for name, values in fields.items()}


async def _parts(content_type: str, body: bytes) -> Mapping[str, list[Any]]:
    async def stream() -> Any:
        yield body

    try:
        parser = MultiPartParser(Headers({"content-type": content_type}), stream(), max_fields=MAX_FIELDS, max_files=0)
        form = await parser.parse()
    except (MultiPartException, HTTPException, KeyError, LookupError, AttributeError) as error:
        raise ValueError(f"the form cannot be read: {error}") from None
    return {name: form.getlist(name) for name in form}
