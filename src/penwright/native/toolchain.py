"""Checks that this machine can compile, and that the folder for compiled code is safe.

Later processes run the machine code in this folder, so a folder that other users can write to is not used.
"""

import atexit
import os
import shutil
import stat
import sys
import sysconfig
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from warnings import warn

from penwright.errors import PenwrightError, PenwrightWarning
from penwright.storage import cache_folder

INDUCTOR_CACHE_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
SOURCES = Path(__file__).parent  # folder of the C++ operators
PROCESSORS = Path("/proc/cpuinfo")


def set_inductor_cache() -> None:
    """Set the cache folder of torch's compiler to Penwright's cache, since /tmp may be emptied at any time.

    Each kind of processor has its own folder, since torch's cache ignores the processor. A folder that the user chose
    is kept; torch's default, /tmp/torchinductor_USER, is replaced. If other users can write to the folder, this process
    compiles again in a temporary folder.
    """
    chosen = os.environ.get(INDUCTOR_CACHE_VARIABLE)
    if chosen is None or Path(chosen).name.startswith("torchinductor_"):
        folder = cache_folder("compiled") / processor_key()
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # torch would let the group write to it
        os.environ[INDUCTOR_CACHE_VARIABLE] = str(folder)
    danger = why_not_trusted(Path(os.environ[INDUCTOR_CACHE_VARIABLE]))
    if danger:
        warn(f"earlier compiled code is not used: {danger}", PenwrightWarning, stacklevel=3)
        os.environ[INDUCTOR_CACHE_VARIABLE] = mkdtemp(prefix="penwright-compiled-")
        atexit.register(shutil.rmtree, os.environ[INDUCTOR_CACHE_VARIABLE], ignore_errors=True)


@cache
def processor_key() -> str:
    """Return a hash of this processor's instruction sets. Code that torch compiles may not run on other processors."""
    instructions = ""
    with suppress(OSError), PROCESSORS.open(encoding="ascii", errors="replace") as file:
        instructions = next((line for line in file if line.startswith(("flags", "Features"))), "")  # x86 or ARM
    return sha256(" ".join(sorted(instructions.split())).encode()).hexdigest()[:16]


def trusted_folder() -> Path:
    """Return the folder for compiled code, created if needed; raise PenwrightError if other users can write to it."""
    folder = cache_folder("compiled")
    danger = why_not_trusted(folder)
    if danger:
        raise PenwrightError(f"compiled code cannot be stored: {danger}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise PenwrightError(
            f"{folder} cannot be created: {error.strerror}. Set PENWRIGHT_CACHE to a folder that you can write to"
        ) from None
    return folder


def why_not_trusted(path: Path) -> str:
    """Return why this file or folder is not trusted, and what to do; "" if no other user could have written to it.

    As in ssh, the file and all its parent folders must belong to this user or root, and nobody else may write to them.
    A parent folder may be writable if it is sticky, like /tmp. Missing files and folders are skipped.
    """
    if not hasattr(os, "getuid"):  # no code is compiled on Windows
        return ""
    try:
        unresolved, resolved = path.absolute(), path.resolve()
    except (OSError, RuntimeError):
        return f"{path} cannot be resolved"
    places = dict.fromkeys((unresolved, resolved, *unresolved.parents, *resolved.parents))
    dangers = (_danger_of(place, is_above=place not in (unresolved, resolved)) for place in places)
    return next(filter(None, dangers), "")


def _danger_of(place: Path, *, is_above: bool) -> str:
    """Return a message with a remedy if other users could change this file or folder; otherwise, return ""."""
    try:
        target, link = place.stat(), place.lstat()  # stat() and lstat() differ only for a symbolic link
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{place} cannot be checked: {error.strerror}"
    remedy = "or set PENWRIGHT_CACHE to a folder that only you can write to"
    if not {target.st_uid, link.st_uid} <= {0, os.getuid()}:
        return f"{place} belongs to another user. Delete it if you can, {remedy}"
    is_sticky = is_above and target.st_mode & stat.S_ISVTX
    is_open = target.st_mode & stat.S_IWOTH or (target.st_mode & stat.S_IWGRP and not _is_own_group(target.st_gid))
    if is_open and not is_sticky:
        return (
            f"other users can write to {place}. Run `chmod go-w {place}` and delete files that are not yours, {remedy}"
        )
    return ""


def _is_own_group(gid: int) -> bool:
    """Return whether this group is the user's private group, without other members."""
    import grp  # noqa: PLC0415 - not available on Windows
    import pwd  # noqa: PLC0415 - not available on Windows

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_name == user.pw_name and user.pw_gid == gid and set(group.gr_mem) <= {user.pw_name}


def require_compiler() -> None:
    """Raise PenwrightError, naming what is missing, if this machine cannot compile."""
    missing = missing_requirement()
    if missing:
        raise PenwrightError(f"this machine cannot compile: {missing}")


def missing_requirement() -> str:
    """Return what torch.compile lacks on this machine; "" if nothing is missing."""
    if sys.platform != "linux":
        return "compilation is supported on Linux only"
    if not shutil.which(os.environ.get("CXX", "g++")):
        return "there is no C++ compiler (g++, or the one that CXX names)"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's headers are not installed"
    return ""
