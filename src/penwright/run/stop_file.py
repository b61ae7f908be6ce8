"""A wish that training ends, left in the run's folder by another process; no signal is sent, to whatever process."""

from penwright.errors import PenwrightError
from penwright.run.folder import STOP, STOPPED, Run


def wish_stop(run: Run) -> None:
    """Ask whoever trains this run to save and stop after its step. Raises PenwrightError where that cannot be kept."""
    try:
        (run.folder / STOP).open("x").close()  # "x" follows no link
    except FileExistsError:
        return
    except OSError as error:
        raise PenwrightError(f"{run.folder / STOP} could not be written: {error}") from None


def is_to_stop(run: Run) -> bool:
    """Whether somebody wishes that training ends."""
    return (run.folder / STOP).exists()


def was_stopped(run: Run) -> bool:
    """Whether training ended before its time, all saved, and has not gone on since."""
    return (run.folder / STOPPED).exists()


def note_stopped(run: Run) -> None:
    """A wish, or a signal, was obeyed."""
    (run.folder / STOPPED).touch()
    (run.folder / STOP).unlink(missing_ok=True)


def forget_wishes(run: Run) -> None:
    """Training begins, goes on, or has come to its end."""
    for name in (STOP, STOPPED):
        (run.folder / name).unlink(missing_ok=True)
