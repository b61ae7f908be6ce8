"""What compiling needs of a machine, and where its results are kept.

What is kept is machine code, which a later process runs. So a folder that others can write to is not used.
"""

import atexit
import os
import shutil
import stat
import sys
import sysconfig
from pathlib import Path
from tempfile import mkdtemp
from warnings import warn

from penwright.config import cache_folder
from penwright.errors import PenwrightError, PenwrightWarning

KEPT_AT = "TORCHINDUCTOR_CACHE_DIR"
SOURCES = Path(__file__).parent  # of the operators in C++


def keep_what_is_compiled() -> None:
    """Have torch's compiler keep its results where ours are: /tmp may be emptied at any time.

    torch writes its own choice, /tmp/torchinductor_USER, into the variable as soon as any of its parts is asked for it;
    only a choice of the user's stays. If others can write to the folder, this process compiles anew in one of its own.
    """
    chosen = os.environ.get(KEPT_AT)
    if chosen is None or Path(chosen).name.startswith("torchinductor_"):
        os.environ[KEPT_AT] = str(cache_folder("compiled"))
    danger = why_not_trusted(Path(os.environ[KEPT_AT]))
    if danger:
        warn(f"what was compiled before is not used: {danger}", PenwrightWarning, stacklevel=3)
        os.environ[KEPT_AT] = mkdtemp(prefix="penwright-compiled-")
        atexit.register(shutil.rmtree, os.environ[KEPT_AT], ignore_errors=True)


def trusted_folder() -> Path:
    """The folder for compiled code, made if it is missing; raises PenwrightError if others can write to it."""
    folder = cache_folder("compiled")
    danger = why_not_trusted(folder)
    if danger:
        raise PenwrightError(f"nothing can be kept that is compiled: {danger}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PenwrightError(
            f"{folder} cannot be made: {error.strerror}. Set PENWRIGHT_CACHE to a folder that you can write to"
        ) from None
    return folder


def why_not_trusted(path: Path) -> str:
    """Why code in this file or folder is not run: another user could have put it there; "" if none could.

    The file and all folders above it must belong to this user or root. Nobody else may write to them, as ssh demands.
    A folder above it may be writable if it is sticky, as /tmp is. What is missing is looked for further up.
    """
    if not hasattr(os, "getuid"):  # Windows, where nothing is kept
        return ""
    try:
        named, whole = path.absolute(), path.resolve()
    except (OSError, RuntimeError):
        return f"{path} cannot be followed"
    places = dict.fromkeys((named, whole, *named.parents, *whole.parents))
    dangers = (_danger_of(place, is_above=place not in (named, whole)) for place in places)
    return next(filter(None, dangers), "")


def _danger_of(place: Path, *, is_above: bool) -> str:
    """What others could do with this file or folder alone, and what to do about it."""
    try:
        found, itself = place.stat(), place.lstat()  # of what a link points to, and of the link
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{place} cannot be looked at: {error.strerror}"
    remedy = "or set PENWRIGHT_CACHE to a folder that only you can write to"
    if not {found.st_uid, itself.st_uid} <= {0, os.getuid()}:
        return f"{place} belongs to another user. Delete it if you can, {remedy}"
    is_sticky = is_above and found.st_mode & stat.S_ISVTX
    is_open = found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid))
    if is_open and not is_sticky:
        return f"other users can write to {place}. Run `chmod go-w {place}` and delete what you did not make, {remedy}"
    return ""


def _is_own_group(gid: int) -> bool:
    """Whether a group is that of this user alone, as many systems make one for each."""
    import grp  # noqa: PLC0415 - Windows has none
    import pwd  # noqa: PLC0415

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and user.pw_gid == gid and set(group.gr_mem) <= {user.pw_name}


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
