"""Where things are kept that can be made again."""

import os
from pathlib import Path
from typing import Literal


def cache_folder(of: Literal["tokens", "compiled"]) -> Path:
    """In the folder that PENWRIGHT_CACHE names, or ~/.cache/penwright; all of it may be deleted at any time."""
    chosen = os.environ.get("PENWRIGHT_CACHE")
    return (Path(chosen) if chosen else Path.home() / ".cache" / "penwright") / of
