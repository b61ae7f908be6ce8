"""Links between the launcher and its ranks: a table of progress in shared memory, and a guard thread in each rank."""

import _thread
import mmap
import os
import select
import signal
import tempfile
import threading
from enum import IntEnum
from pathlib import Path
from shlex import quote

from penwright.training.signals import STOP_SIGNALS

TABLE, LAUNCHER = (
    "PENWRIGHT_RANK_TABLE",
    "PENWRIGHT_LAUNCHER",
)  # environment variables of a rank: the descriptor of the table, and the process id of the launcher
FOLDER_BYTES = 4096  # maximum length of the path of the run folder
ORPHAN_GRACE = 3.0  # seconds that a rank gets to save the run after its launcher has ended


class Field(IntEnum):
    """The columns of the table. Each rank writes its own row, except ENDED, which the launcher writes."""

    STEPS = 0  # number of optimizer steps whose gradients were all-reduced
    COLLECTIVES = 1  # number of collectives entered within steps; equal in all ranks unless a rank lags
    WAITS = 2  # counter that is odd while the rank waits for the others
    COMPILATIONS = 3  # counter that is odd while the rank compiles
    ASKED = 4  # 1 once the rank has received a stop signal
    ENDED = 5  # exit code of a rank that failed; negative for a signal


class RankTable:
    """A table with the progress of each rank and the path of the run folder."""

    def __init__(self, n_ranks: int, descriptor: int | None = None):
        """Map the file with this descriptor. Without a descriptor, create a table for this process alone."""
        self.n_ranks, self.is_shared = n_ranks, descriptor is not None
        size = n_ranks * len(Field) * 8
        memory = bytearray(size + FOLDER_BYTES) if descriptor is None else mmap.mmap(descriptor, size + FOLDER_BYTES)
        self._cells = memoryview(memory)[:size].cast("q")
        self._folder = memoryview(memory)[size:]

    @classmethod
    def inherited(cls, n_ranks: int) -> "RankTable":
        """Return the table that the launcher passed to this rank or, without a launcher, a private table."""
        descriptor = os.environ.get(TABLE)
        return cls(n_ranks, None if descriptor is None else int(descriptor))

    def get(self, rank: int, field: Field) -> int:
        """Return the value of a field for one rank."""
        return self._cells[rank * len(Field) + field]

    def set(self, rank: int, field: Field, value: int) -> None:
        """Set a field of one rank."""
        self._cells[rank * len(Field) + field] = value

    def count(self, rank: int, field: Field) -> None:
        """Add one to a field of one rank."""
        self.set(rank, field, self.get(rank, field) + 1)

    def column(self, field: Field) -> list[int]:
        """Return the value of a field for every rank."""
        return [self.get(rank, field) for rank in range(self.n_ranks)]

    def keep_folder(self, folder: str) -> None:
        """Store the path of the run folder, for messages."""
        path = os.fsencode(folder)
        if len(path) < FOLDER_BYTES:
            self._folder[:] = path.ljust(FOLDER_BYTES, b"\0")

    @property
    def remedy(self) -> str:
        """Advice to the user on what to do after the ranks have ended."""
        folder = os.fsdecode(bytes(self._folder).rstrip(b"\0"))
        if not folder:
            return "Start the training again"
        return (
            "Everything saved so far is intact. Resume with: "
            f"penwright train --resume {quote(folder)} --processes {self.n_ranks}"
        )


def make_shared_file(n_ranks: int) -> int:
    """Create a file for the table and return its descriptor. The file is deleted when the last process closes it."""
    descriptor, path = tempfile.mkstemp()
    Path(path).unlink()
    os.ftruncate(descriptor, n_ranks * len(Field) * 8 + FOLDER_BYTES)
    return descriptor


def how_it_ended(code: int) -> str:
    """Describe the exit code of a process as a predicate: "failed with ...", "was ended by ..."."""
    if code >= 0:
        return f"failed with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # real-time signals have no name
        name = f"signal {-code}"
    return f"was ended by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")


def guard(rank: int, n_ranks: int) -> None:
    """Start a thread that ends this rank soon after its launcher has ended, and records stop signals in the table.

    Signals are recorded even while the main thread waits in a collective and Python runs no signal handlers.
    """
    launcher = os.environ.get(LAUNCHER) or ("TORCHELASTIC_RUN_ID" in os.environ and os.getppid())
    if not launcher or os.name != "posix":
        return
    table = RankTable.inherited(n_ranks)
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    threading.Thread(target=_guard, args=(table, rank, read_end, int(launcher)), daemon=True).start()


def _guard(table: RankTable, rank: int, signals: int, launcher: int) -> None:
    while os.getppid() == launcher:
        if select.select([signals], [], [], 0.5)[0] and set(os.read(signals, 64)) & set(STOP_SIGNALS):
            table.set(rank, Field.ASKED, 1)
    signal.setitimer(signal.ITIMER_REAL, ORPHAN_GRACE)  # this signal ends even an interpreter that is shutting down
    if not table.get(rank, Field.ASKED):
        _thread.interrupt_main()  # acts like Ctrl+C: rank 0 saves and leaves, and the other ranks follow
