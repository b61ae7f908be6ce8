"""Libraries that read documents: the extra `documents`."""

from importlib.util import find_spec

from penwright.errors import PenwrightError


class MissingLibrary(PenwrightError):
    """A library is not installed without which a file cannot be read."""


def need(library: str, what: str) -> None:
    """Raise MissingLibrary, with the command that installs it, unless this library is there to read `what`."""
    if find_spec(library) is None:
        raise MissingLibrary(f"{what} are read with {library}: pip install 'penwright[documents]'")
