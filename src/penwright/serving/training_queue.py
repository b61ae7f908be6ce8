"""The training queue of the studio: a separate process trains each run, one run at a time.

queue/NAME.json (the job)  queue/NAME.log (its output)  queue/NAME.lock (held while its process is running)
A checksum takes the place of a NAME that cannot be a file name, such as home/novel.

The queue is stored in files, so that it survives a restart of the server. The training process inherits the lock,
and the system releases it when the process ends for any reason.
"""

import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from penwright.errors import PenwrightError, UsageError
from penwright.run.folder import Run
from penwright.run.records import STEPS
from penwright.serving.model_worker import DAMAGE
from penwright.serving.texts import check_name
from penwright.storage import MOST_IN_SMALL, open_plain, read_bytes, write_atomically

RUNS = "runs"
JobState = Literal["waiting", "preparing", "training", "stopping", "finished", "stopped", "failed"]
LOG_TAIL = 8000  # number of bytes to read from the end of a log
SAID = "penwright: "  # prefix of an error message in a log
INTERRUPTED = "interrupted"  # error of a process that was stopped before it had anything to save


class Job(BaseModel):
    """A run to train."""

    model_config = ConfigDict(strict=True)

    name: str
    folder: str = ""  # folder of the run, relative to the studio's; "": runs/NAME, in files of earlier versions
    arguments: list[str]  # arguments of the penwright command
    minutes: float | None  # training budget, which the page needs to show the progress
    created: float
    started: float | None = None  # time when the training process was started; None while the job waits
    pid: int | None = None
    was_stopped: bool = False  # whether stop() ended the process before there was anything to save


class JobFacts(BaseModel):
    """The state of a run in the queue."""

    name: str
    state: JobState
    minutes: float | None
    note: str  # the last line that the process printed, or its error


class TrainingQueue:
    """The queue of a studio: the runs that are waiting or being trained."""

    def __init__(self, folder: Path):
        self.home, self.folder = folder, folder / "queue"
        self._processes: list[subprocess.Popen[bytes]] = []  # training processes, polled until they end
        # held while a job is changed, and while a run's lock file is tested, since the test locks it for a moment
        self._mutex = RLock()
        self._own: BinaryIO | None = None

    def open(self) -> None:
        """Lock the queue for this server. Raises PenwrightError if another server holds it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._own = _locked(self.folder / ".studio.lock")
        except BlockingIOError:
            raise PenwrightError(
                f"a studio is already open in {self.home}. Use it, or choose a different folder"
            ) from None

    def close(self) -> None:
        """Release the lock of the queue. Runs that are being trained are not stopped."""
        if self._own is not None:
            self._own.close()

    def add(self, name: str, arguments: list[str], minutes: float | None) -> Job:
        """Queue a run under this name, or a similar one if the name is taken."""
        with self._mutex:
            return self._add(name, arguments, minutes)

    def _add(self, name: str, arguments: list[str], minutes: float | None) -> Job:
        names = [check_name(name), *(f"{name}-{number}" for number in range(2, 10_000))]
        free = next(each for each in names if not self._is_taken(each))
        folder = f"{RUNS}/{free}"
        arguments = ["train", *arguments, "--run", folder]
        return self._put(Job(name=free, folder=folder, arguments=arguments, minutes=minutes, created=time.time()))

    def folder_of(self, name: str) -> Path | None:
        """Return the folder of the run with this name, or None if the queue has no such job, not even an ended one."""
        job = self._read(name)
        return self._run(job).folder if job else None

    def resume(self, name: str, folder: Path | None, minutes: float | None) -> Job:
        """Queue a run again: resume `folder`, for `minutes` more if given, or rerun the job if `folder` is None.

        A job that failed before it saved any of its further training is rerun, too: its budget is still needed.
        """
        with self._mutex:
            if self._is_running(name):
                raise UsageError(f"{name} is already being trained")
            before = self._read(name)
            if before and (folder is None or (minutes is None and not self._has_begun(before))):
                anew = {"created": time.time(), "started": None, "pid": None, "was_stopped": False}
                return self._put(before.model_copy(update=anew))
            if folder is None:
                raise UsageError(f"there is no run '{name}' to resume")
            place = os.path.relpath(folder, self.home)
            arguments = ["train", f"--resume={place}", *([] if minutes is None else ["--minutes", f"{minutes:g}"])]
            known = before.minutes if before else None
            total = known + (minutes or 0.0) if known is not None else None
            return self._put(Job(name=name, folder=place, arguments=arguments, minutes=total, created=time.time()))

    def remove(self, name: str) -> None:
        """Remove a run from the queue, but keep its folder. Raises UsageError while the run is being trained."""
        with self._mutex:
            if self._is_running(name):
                raise UsageError(f"{name} is being trained. Stop it first")
            for suffix in (".json", ".log", ".lock"):
                self._file(name, suffix).unlink(missing_ok=True)

    def stop(self, name: str) -> None:
        """Ask the training process to save and stop. Terminate it if it is still preparing, with nothing to save."""
        with self._mutex:
            job = self._read(name)
            if job is None or not self._is_running(name):
                raise UsageError(f"{name} is not being trained by this studio")
            if self._state(job) == "preparing" and job.pid is not None:
                self._put(job.model_copy(update={"was_stopped": True}))
                os.kill(job.pid, signal.SIGTERM)
            else:
                self._run(job).request_stop()

    def facts(self) -> list[JobFacts]:
        """List the runs in the queue, in the order in which they were added."""
        return [
            JobFacts(name=job.name, state=(state := self._state(job)), minutes=job.minutes, note=self._note(job, state))
            for job in self._jobs()
        ]

    def advance(self) -> None:
        """Start the first waiting run, unless another run is being trained."""
        with self._mutex:
            self._processes = [each for each in self._processes if each.poll() is None]
            jobs = self._jobs()
            waiting = next((job for job in jobs if job.started is None), None)
            if waiting is not None and not any(self._is_running(job.name) for job in jobs):
                self._start(waiting)

    def _start(self, job: Job) -> None:
        """Start the process of a run. It has its own session, so it outlives the server."""
        job = self._put(job.model_copy(update={"started": time.time()}))
        log = open_plain(self._file(job.name, ".log"), os.O_WRONLY | os.O_CREAT)
        os.ftruncate(log, 0)
        with open(log, "ab") as output, _locked(self._file(job.name, ".lock")) as lock:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "penwright", *job.arguments],
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )
        self._processes.append(process)
        self._put(job.model_copy(update={"pid": process.pid}))

    def _is_running(self, name: str) -> bool:
        with self._mutex:
            if not (lock := self._file(name, ".lock")).exists():
                return False
            try:
                _locked(lock).close()
            except BlockingIOError:
                return True
            return False

    def _state(self, job: Job) -> JobState:
        run = self._run(job)
        if job.started is None:
            return "waiting"
        if self._is_running(job.name):
            steps = run.folder / STEPS
            if not steps.is_file() or steps.stat().st_mtime < job.started:
                return "preparing"
            return "stopping" if run.is_stop_requested else "training"
        if self._has_finished(job):
            return "finished"
        is_stopped = job.was_stopped or run.was_stopped or self._error(job) == INTERRUPTED
        return "stopped" if is_stopped else "failed"

    def _has_finished(self, job: Job) -> bool:
        """Return whether the run was finished after the job was started. An earlier job may have finished it, too."""
        run, is_resumed = self._run(job), any(each.startswith("--resume=") for each in job.arguments)
        with suppress(*DAMAGE):
            if not is_resumed:
                return run.is_finished
            saved = max((each.folder.stat().st_mtime for each in run.checkpoints.all()), default=0.0)
            return run.is_finished and saved >= (job.started or 0.0)
        return False

    def _has_begun(self, job: Job) -> bool:
        """Return False if the job trains a finished run longer, but has saved nothing yet."""
        with suppress(*DAMAGE):
            is_longer = job.arguments[1].startswith("--resume=") and "--minutes" in job.arguments
            return not is_longer or self._has_finished(job) or not self._run(job).is_finished
        return True

    def _note(self, job: Job, state: JobState) -> str:
        """Return the last line of the log or, for a run that failed, its error."""
        if state == "failed":
            return (
                self._error(job)
                or "The training process ended before it could save. Resume the run, or train it again."
            )
        lines = self._log(job)
        return lines[-1][:300] if lines else ""

    def _error(self, job: Job) -> str:
        """Return the error at the end of the log, or ""."""
        lines = self._log(job)
        begin = next((at for at, line in enumerate(lines) if line.startswith(SAID)), len(lines))
        return "\n".join(lines[begin:]).removeprefix(SAID)[:2000]

    def _log(self, job: Job) -> list[str]:
        try:
            file = open(open_plain(self._file(job.name, ".log"), os.O_RDONLY), "rb")  # noqa: SIM115 - closed below
        except (OSError, PenwrightError):
            return []
        with file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_TAIL))
            return [line for line in file.read(LOG_TAIL).decode("utf-8", "replace").split("\n") if line.strip()]

    def _is_taken(self, name: str) -> bool:
        places = (self.home / RUNS / name, self.home / name, self._file(name, ".json"))  # runs lie in both folders
        return any(map(os.path.lexists, places))

    def _run(self, job: Job) -> Run:
        return Run(self.home / (job.folder or f"{RUNS}/{job.name}"))

    def _file(self, name: str, suffix: str) -> Path:
        """Return the path of a file of a job."""
        try:
            return self.folder / f"{check_name(name)}{suffix}"
        except UsageError:
            return self.folder / f"{hashlib.sha256(name.encode()).hexdigest()}{suffix}"

    def _put(self, job: Job) -> Job:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file(job.name, ".json"), job.model_dump_json())
        return job

    def _read(self, name: str) -> Job | None:
        return _job(self._file(name, ".json"))

    def _jobs(self) -> list[Job]:
        jobs = map(_job, self.folder.glob("*.json"))
        return sorted((job for job in jobs if job is not None), key=lambda job: job.created)


def _job(path: Path) -> Job | None:
    with suppress(OSError, PenwrightError, ValidationError):
        return Job.model_validate_json(read_bytes(path, MOST_IN_SMALL))
    return None


def _locked(path: Path) -> BinaryIO:
    """Open and lock a lock file. Raises BlockingIOError while another process holds the lock."""
    file = open(open_plain(path, os.O_RDWR | os.O_CREAT), "rb")  # noqa: SIM115 - returned open
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise
    return file
