"""A request to end training, left as a file in the run folder by another process; no signal is sent to any process."""

import os
from contextlib import suppress

from penwright.errors import PenwrightError
from penwright.run.folder import STOP, STOPPED, Run
from penwright.storage import open_plain


def wish_stop(run: Run) -> None:
    """Ask whoever trains this run to save and stop after its step. Raises PenwrightError where that cannot be kept."""
    try:
        (run.folder / STOP).open("x").close()  # "x" follows no link
    except FileExistsError:
        return
    except OSError as error:
        raise PenwrightError(f"{run.folder / STOP} could not be written: {error}") from None


def is_to_stop(run: Run) -> bool:
    """Whether somebody asked the training to stop. A folder that cannot be read asks for nothing."""
    return os.path.exists(run.folder / STOP)  # unlike Path.exists, it never raises


def was_stopped(run: Run) -> bool:
    """Whether training ended before its time, all saved, and has not gone on since."""
    return (run.folder / STOPPED).exists()


def note_stopped(run: Run) -> None:
    """Note that training has saved and stopped as asked. A full disk costs nothing but the note."""
    with suppress(OSError):
        os.close(open_plain(run.folder / STOPPED, os.O_WRONLY | os.O_CREAT))
        _delete(run, STOP)


def forget_wishes(run: Run) -> None:
    """Delete all requests: training begins, is resumed, or has come to its end."""
    _delete(run, STOP, STOPPED)


def _delete(run: Run, *names: str) -> None:
    for name in names:
        try:
            (run.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise PenwrightError(f"{run.folder / name} could not be deleted: {error}") from None
