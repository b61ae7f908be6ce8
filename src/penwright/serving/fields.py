"""Shared building blocks of routes: validated field types, size limits, and access to the models and settings."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from penwright.serving.errors import RequestTooLarge
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.settings import ServingSettings


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("contains half of a surrogate pair, which is not valid Unicode") from None
    return text


Text = Annotated[str, AfterValidator(_well_formed)]  # a text of any length; `check_texts` limits the length
Name = Annotated[Text, Field(max_length=500)]  # the name of a model or a run
MAX_ENTRIES = 10_000  # maximum number of entries of a list; checked before the limits in ServingSettings
MAX_INT = 2**31 - 1  # the largest integer that a field accepts
TokenId = Annotated[int, Field(ge=0, le=MAX_INT)]


class ModelRequest(BaseModel):
    """A request body with strict JSON types and without unknown fields."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, given: Any) -> Any:
        """Report only the first unknown field. pydantic would report every unknown field, even a million."""
        names = given if isinstance(given, dict) else ()
        unknown = next((name for name in names if name not in cls.model_fields), None)
        if unknown is not None:
            raise ValueError(f"there is no field '{str(unknown)[:40]}'. The fields are {', '.join(cls.model_fields)}")
        return given


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
