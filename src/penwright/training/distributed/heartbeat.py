"""The heartbeats of ranks, by which they notice that another rank was stopped or cannot be reached."""

import os
import sys
from threading import Event
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEAT = 5.0  # seconds between two heartbeats
SILENT_BEATS = 18  # a rank counts as stopped if its neighbour sees no heartbeat for this many beats


class Heartbeat:
    """The heartbeat of a rank, and its check of the next rank's heartbeat.

    Time is counted in beats, not in seconds, so ranks do not seem stopped after the machine has slept.
    """

    def __init__(self, store: "Store", rank: int, size: int):
        self.store, self.rank, self.watched = store, rank, (rank + 1) % size
        self.n_beats = self.n_silent = 0
        self.last = b""

    def beat(self) -> bool:
        """Send a heartbeat. Return whether the next rank has sent none for SILENT_BEATS."""
        self.n_beats += 1
        self.store.set(f"beat/{self.rank}", str(self.n_beats))
        key = f"beat/{self.watched}"
        sign = self.store.get(key) if self.store.check([key]) else b""
        self.n_silent = 0 if sign in (b"", b"left") or sign != self.last else self.n_silent + 1
        self.last = sign
        return self.n_silent >= SILENT_BEATS

    def run(self, ended: Event) -> None:
        """Send heartbeats until this rank ends. End it if the next rank was stopped or torchrun's agent has ended."""
        try:
            while not ended.wait(BEAT):
                if self.beat():
                    self._end(
                        f"rank {self.watched} was stopped or cannot be reached: no sign of life for "
                        f"{BEAT * SILENT_BEATS:.0f} seconds. All ranks end. Everything saved so far is intact"
                    )
        except RuntimeError:  # the store ends with torchrun's agent
            if not ended.is_set():
                self._end("torchrun has ended, so this rank ends" if self.rank == 0 else "")

    @staticmethod
    def _end(reason: str) -> None:
        if reason:
            sys.stderr.write(f"penwright: {reason}\n")
            sys.stderr.flush()
        os._exit(1)
