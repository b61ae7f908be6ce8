"""The cache: where things are kept that can be made again."""

import os
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

from penwright.errors import PenwrightError

CACHE_ADVICE = "Set PENWRIGHT_CACHE to a folder that you can write to."


def cache_folder(of: Literal["tokens", "compiled"]) -> Path:
    """Return this folder of the cache: in PENWRIGHT_CACHE, or in ~/.cache/penwright. It may be deleted at any time.

    Raises PenwrightError where PENWRIGHT_CACHE is not set and there is no home folder.
    """
    chosen = os.environ.get("PENWRIGHT_CACHE")
    try:
        return (Path(chosen) if chosen else Path.home() / ".cache" / "penwright") / of
    except RuntimeError:
        raise PenwrightError(f"There is no home folder to keep the cache in. {CACHE_ADVICE}") from None


def require_writable_cache() -> None:
    """Raise PenwrightError unless files can be written to the cache; call it before work that would be lost."""
    for folder in (cache_folder("tokens"), cache_folder("compiled")):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                file.write(bytes(4096))  # which a full disk refuses
        except OSError as error:
            raise PenwrightError(f"The cache {folder} cannot be written: {error.strerror}. {CACHE_ADVICE}") from None
