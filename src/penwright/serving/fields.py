"""What requests are made of, checked as they come in; and how a route gets at the models."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Request
from pydantic import AfterValidator

from penwright.serving.errors import TooMuch
from penwright.serving.model_worker import ModelRegistry
from penwright.serving.settings import ServingSettings


def _well_formed(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("half of a surrogate pair is no text")
    return text


Text = Annotated[str, AfterValidator(_well_formed)]  # of any length: see `check_texts`


def _shelf(request: Request) -> ModelRegistry:
    shelf: ModelRegistry = request.app.state.shelf
    return shelf


def _settings(request: Request) -> ServingSettings:
    settings: ServingSettings = request.app.state.settings
    return settings


TheShelf = Annotated[ModelRegistry, Depends(_shelf)]
TheSettings = Annotated[ServingSettings, Depends(_settings)]


def check_texts(texts: Sequence[str], limits: ServingSettings) -> None:
    """Raises TooMuch, which says which limit it is about."""
    if len(texts) > limits.max_texts:
        raise TooMuch(f"{len(texts)} texts at once: this server takes {limits.max_texts} (max_texts)")
    check_lengths(texts, limits)


def check_lengths(texts: Sequence[str | None], limits: ServingSettings) -> None:
    """Of what is a single question, though it has several texts; None is no text."""
    longest = max((len(text or "") for text in texts), default=0)
    if longest > limits.max_characters:
        raise TooMuch(f"a text of {longest:,} characters: this server takes {limits.max_characters:,} (max_characters)")
