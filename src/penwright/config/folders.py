"""The cache folder, for files that can be recreated."""

import os
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal

from penwright.errors import PenwrightError

CACHE_ADVICE = "Set PENWRIGHT_CACHE to a folder that you can write to."


def cache_folder(of: Literal["tokens", "compiled"]) -> Path:
    """Return a subfolder of the cache, which is PENWRIGHT_CACHE or ~/.cache/penwright. It may be deleted at any time.

    Raises PenwrightError if PENWRIGHT_CACHE is not set and there is no home folder.
    """
    chosen = os.environ.get("PENWRIGHT_CACHE")
    try:
        return (Path(chosen) if chosen else Path.home() / ".cache" / "penwright") / of
    except RuntimeError:
        raise PenwrightError(f"There is no home folder for the cache. {CACHE_ADVICE}") from None


def require_writable_cache() -> None:
    """Raise PenwrightError unless the cache is writable. Call this before work that would otherwise be lost."""
    for folder in (cache_folder("tokens"), cache_folder("compiled")):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=folder) as file:
                file.write(bytes(4096))  # fails on a full disk
        except OSError as error:
            raise PenwrightError(
                f"The cache folder {folder} is not writable: {error.strerror}. {CACHE_ADVICE}"
            ) from None
