"""Checks for the libraries that read documents (the extra `documents`)."""

from importlib.util import find_spec

from penwright.errors import PenwrightError


class MissingLibrary(PenwrightError):
    """Error for a file whose library is not installed."""


def require_library(library: str, what: str) -> None:
    """Raise MissingLibrary, with the install command, unless the library that reads `description` is installed."""
    if find_spec(library) is None:
        raise MissingLibrary(f"{what} need the library {library}. Install it: pip install 'penwright[documents]'")
