"""The stop file: another process creates it in the run folder to ask training to stop. No signals are sent."""

import os
from contextlib import suppress

from penwright.errors import PenwrightError
from penwright.run.folder import STOP, STOPPED, Run
from penwright.storage import open_plain


def request_stop(run: Run) -> None:
    """Ask the process that trains this run to save and stop after its current step.

    Raises PenwrightError if the request cannot be written.
    """
    try:
        (run.folder / STOP).open("x").close()  # mode "x" does not follow links
    except FileExistsError:
        return
    except OSError as error:
        raise PenwrightError(f"{run.folder / STOP} could not be written: {error}") from None


def is_stop_requested(run: Run) -> bool:
    """Return whether training was asked to stop; False if the folder cannot be read."""
    return os.path.exists(run.folder / STOP)  # Path.exists can raise OSError, but os.path.exists cannot


def was_stopped(run: Run) -> bool:
    """Return whether training was interrupted, has saved everything, and has not been resumed since."""
    return (run.folder / STOPPED).exists()


def mark_stopped(run: Run) -> None:
    """Record that training was interrupted and has saved everything. On a full disk, only this record is lost."""
    with suppress(OSError):
        os.close(open_plain(run.folder / STOPPED, os.O_WRONLY | os.O_CREAT))
        _delete(run, STOP)


def clear_stop_files(run: Run) -> None:
    """Delete the stop files. Call this when training starts, resumes or is complete."""
    _delete(run, STOP, STOPPED)


def _delete(run: Run, *names: str) -> None:
    for name in names:
        try:
            (run.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise PenwrightError(f"{run.folder / name} could not be deleted: {error}") from None
