"""What requests are made of, checked as they come in; and how a route gets at the models."""

from typing import Annotated

from fastapi import Depends, Request
from pydantic import AfterValidator

from penwright.serving.served import Shelf
from penwright.serving.settings import ServingSettings


def _well_formed(text: str) -> str:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("half of a surrogate pair is no text")
    return text


Text = Annotated[str, AfterValidator(_well_formed)]  # of any length: `TheSettings` has the limits


def _shelf(request: Request) -> Shelf:
    shelf: Shelf = request.app.state.shelf
    return shelf


def _settings(request: Request) -> ServingSettings:
    settings: ServingSettings = request.app.state.settings
    return settings


TheShelf = Annotated[Shelf, Depends(_shelf)]
TheSettings = Annotated[ServingSettings, Depends(_settings)]
