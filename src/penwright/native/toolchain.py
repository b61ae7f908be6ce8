"""What compiling needs of a machine, and where its results are kept."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from penwright.config import cache_folder
from penwright.errors import PenwrightError

KEPT_AT = "TORCHINDUCTOR_CACHE_DIR"
SOURCES = Path(__file__).parent  # of the operators in C++


def keep_what_is_compiled() -> None:
    """Have torch's compiler keep its results where ours are: /tmp may be emptied at any time.

    torch writes its own choice, /tmp/torchinductor_USER, into the variable as soon as any of its parts is asked for it;
    only a choice of the user's stays.
    """
    chosen = os.environ.get(KEPT_AT)
    if chosen is None or Path(chosen).name.startswith("torchinductor_"):
        os.environ[KEPT_AT] = str(cache_folder("compiled"))


def require() -> None:
    """Raise PenwrightError, naming what is missing, where nothing can be compiled."""
    missing = what_is_missing()
    if missing:
        raise PenwrightError(f"nothing can be compiled here: {missing}")


def what_is_missing() -> str:
    """What torch.compile would need and does not find."""
    if sys.platform != "linux":
        return "that was tried on Linux only"
    if not shutil.which(os.environ.get("CXX", "g++")):
        return "there is no C++ compiler (g++, or what CXX names)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's headers are not installed"
    return ""
