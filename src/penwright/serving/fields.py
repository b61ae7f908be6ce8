"""What requests are made of, checked as they come in; and how a route gets at the models."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from fastapi import Depends, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from penwright.serving.errors import TooMuch
from penwright.serving.model_worker import ModelRegistry
from penwright.serving.settings import ServingSettings


def _well_formed(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("half of a surrogate pair is no text") from None
    return text


Text = Annotated[str, AfterValidator(_well_formed)]  # of any length: see `check_texts`
Name = Annotated[Text, Field(max_length=500)]  # of a model or a run
MOST_ENTRIES = 10_000  # of a list of texts, before the server's own limit is looked at
LARGEST = 2**31 - 1  # whole number that any field takes
TokenId = Annotated[int, Field(ge=0, le=LARGEST)]


class ModelRequest(BaseModel):
    """The body of a request: types as JSON has them, and no field that is not known."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _name_strange(cls, given: Any) -> Any:
        """Refuse unknown fields one at a time: pydantic would write an error for each of a million."""
        names = given if isinstance(given, dict) else ()
        strange = next((name for name in names if name not in cls.model_fields), None)
        if strange is not None:
            raise ValueError(f"there is no field '{str(strange)[:40]}': there are {', '.join(cls.model_fields)}")
        return given


async def as_json(make: Callable[[], BaseModel]) -> Response:
    """Return an answer that may be large: made, and turned into JSON, on a thread, while others are served."""
    content = await asyncio.to_thread(lambda: make().model_dump_json().encode())
    return Response(content, media_type="application/json")


def _shelf(request: Request) -> ModelRegistry:
    shelf: ModelRegistry = request.app.state.shelf
    return shelf


def _settings(request: Request) -> ServingSettings:
    settings: ServingSettings = request.app.state.settings
    return settings


TheShelf = Annotated[ModelRegistry, Depends(_shelf)]
TheSettings = Annotated[ServingSettings, Depends(_settings)]


def check_texts(texts: Sequence[str], limits: ServingSettings) -> None:
    """Check the number and the lengths of texts; raises TooMuch, which names the limit."""
    if len(texts) > limits.max_texts:
        raise TooMuch(f"{len(texts)} texts at once: this server takes {limits.max_texts} (max_texts)")
    check_lengths(texts, limits)


def check_lengths(texts: Sequence[str | None], limits: ServingSettings) -> None:
    """Check the lengths of the texts of a single question; None is no text. Raises TooMuch."""
    longest = max((len(text or "") for text in texts), default=0)
    if longest > limits.max_characters:
        raise TooMuch(f"a text of {longest:,} characters: this server takes {limits.max_characters:,} (max_characters)")
