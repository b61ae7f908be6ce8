"""The routes of the studio: upload texts, plan, train, stop, resume, download and delete.

All files are stored below one folder: texts/ (uploads), queue/ (jobs) and runs/ (runs).
"""

import asyncio
import base64
import binascii
import json
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal
from urllib.parse import quote

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from penwright.errors import PenwrightError, UsageError
from penwright.run.folder import Run
from penwright.serving.errors import ERROR_RESPONSES
from penwright.serving.fields import ModelRequest, Name, Registry, Text
from penwright.serving.runs import LIVE, folders, run_of, state_of
from penwright.serving.settings import ServingSettings
from penwright.serving.texts import CHUNK_BYTES, TextFile, TextFolder, check_name, require_free_disk, zipped
from penwright.serving.training_queue import SAID, JobFacts, TrainingQueue
from penwright.storage import remove_folder

router = APIRouter(prefix="/studio", responses=ERROR_RESPONSES)
ADVANCE_SECONDS = 0.5  # seconds between two checks of the queue
MAX_PART = 2_000_000  # maximum number of base64 characters in a part of an upload
Role = Literal["text", "label", "source", "target"]
Column = Annotated[Text, Field(max_length=500)]
EARLY = ("--set", "training.early=4")  # keep the weights after 1, 10, 100 and 1,000 seconds, to show progress


class Studio:
    """The folder of a studio. Only one process at a time may open it."""

    router = router

    def __init__(self, folder: Path, settings: ServingSettings):
        self.folder, self.settings = folder.resolve(), settings
        self.texts = TextFolder(self.folder / "texts", settings)
        self.queue = TrainingQueue(self.folder)
        self.planning = asyncio.Lock()  # one plan at a time, since planning measures the machine's speed

    async def watch(self) -> None:
        """Start the waiting runs one after another, until cancelled."""
        while True:
            with suppress(PenwrightError, OSError):  # an error, e.g. a full disk, is reported when a user starts a run
                await asyncio.to_thread(self.queue.advance)
            await asyncio.sleep(ADVANCE_SECONDS)

    def arguments(self, wanted: "PlanRequest") -> list[str]:
        """Return the arguments of `penwright train` or `penwright plan` for a request."""
        texts = [f"{self.texts.path(name).relative_to(self.folder)}" for name in wanted.texts]
        options: list[str] = []
        for option, value in (("task", wanted.task), ("size", wanted.size), ("minutes", wanted.minutes)):
            options += [f"--{option}", f"{value}"] if value is not None else []
        options += ["--steps", f"{wanted.steps}"] if wanted.steps is not None else []
        for role, column in wanted.columns.items():
            options += ["--set", f"data.{role}={column}"]
        return [*texts, *options]


def _studio(request: Request) -> Studio:
    studio: Studio = request.app.state.studio
    return studio


TheStudio = Annotated[Studio, Depends(_studio)]
RunName = Annotated[str, Query(max_length=500)]


class MachineFacts(BaseModel):
    """The load and the free resources of this machine."""

    load: float | None  # mean number of running processes; None on systems without a load average
    processors: int
    memory: int | None  # total memory in bytes; None if unknown
    free_memory: int | None
    free_disk: int


class StudioFacts(BaseModel):
    """The uploaded texts, the training queue, and the load of the machine."""

    folder: str
    texts: list[TextFile]
    text_bytes: int
    max_text_bytes: int
    max_upload_bytes: int
    jobs: list[JobFacts]
    machine: MachineFacts


class Upload(ModelRequest):
    """A part of an upload, in base64."""

    name: Name
    offset: Annotated[int, Field(ge=0)]
    total: Annotated[int, Field(ge=1)]  # size of the whole file in bytes
    data: Annotated[str, Field(max_length=MAX_PART)]


class Uploaded(BaseModel):
    """The number of bytes of an upload that have arrived."""

    bytes: int


class PlanRequest(ModelRequest):
    """The texts to train on, and the training budget. The planner chooses the fields that are left out."""

    texts: Annotated[list[Name], Field(min_length=1, max_length=1000)]
    task: Literal["generate", "chat", "translate", "classify"] | None = None
    columns: Annotated[
        dict[Role, int | Column], Field(default_factory=dict)
    ]  # number or name of the column for each role
    size: Annotated[Text, Field(max_length=40, pattern=r"^[a-z0-9-]+$")] | None = None
    minutes: Annotated[float, Field(gt=0, le=100_000)] | None = None
    steps: Annotated[int, Field(gt=0, le=10**9)] | None = None


class TrainRequest(PlanRequest):
    """The texts, the training budget and the other settings of a run, and its name."""

    name: Name


class ResumeRequest(ModelRequest):
    """A run to resume."""

    run: Name
    minutes: Annotated[float, Field(gt=0, le=100_000)] | None = None


class NameRequest(ModelRequest):
    """A request that names a text or a run."""

    name: Name


class Queued(BaseModel):
    """The name under which a run was queued."""

    name: str


class Done(BaseModel):
    """The answer to a successful request that has no result."""

    done: bool = True


@router.get("")
def facts(studio: TheStudio) -> StudioFacts:
    """Return the texts, the queue and the load of the machine."""
    limits = studio.settings
    return StudioFacts(
        folder=str(studio.folder),
        texts=studio.texts.listed(),
        text_bytes=studio.texts.used(),
        max_text_bytes=limits.max_text_bytes,
        max_upload_bytes=limits.max_upload_bytes,
        jobs=studio.queue.facts(),
        machine=_machine(studio.folder),
    )


@router.post("/upload")
def upload(studio: TheStudio, body: Upload) -> Uploaded:
    """Add a part of a text. Send the parts in order; the text is usable when the last one has arrived."""
    try:
        data = base64.b64decode(body.data, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("data is not valid base64") from None
    return Uploaded(bytes=studio.texts.add(body.name, body.offset, body.total, data))


@router.post("/delete-text")
def delete_text(studio: TheStudio, body: NameRequest) -> Done:
    """Delete an uploaded text."""
    studio.texts.delete(body.name)
    return Done()


@router.post("/plan")
async def plan(studio: TheStudio, body: PlanRequest) -> dict[str, Any]:
    """Return the output of `penwright plan --json`: the data as the model sees them, the plan, and its alternatives.

    If the task or the columns are unclear, the answer is {undecided: {question, options}}.
    """
    command = [sys.executable, "-m", "penwright", "plan", *studio.arguments(body), "--json"]
    async with studio.planning:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=studio.folder, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
        )
        try:
            async with asyncio.timeout(studio.settings.plan_seconds):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:  # the client has disconnected, or the time limit has passed
                process.kill()
                await process.wait()
    with suppress(ValueError):
        found: dict[str, Any] = json.loads(output)
        return found
    message = errors.decode("utf-8", "replace")
    raise UsageError(message.rpartition(SAID)[2].strip()[:2000] or "the texts cannot be read")


@router.post("/train")
def train(studio: TheStudio, body: TrainRequest) -> Queued:
    """Queue a run. A separate process trains it, and outlives the server."""
    require_free_disk(studio.folder, studio.settings.min_free_bytes)
    return Queued(name=studio.queue.add(body.name, [*studio.arguments(body), *EARLY], body.minutes).name)


@router.post("/stop")
def stop(studio: TheStudio, body: NameRequest) -> Done:
    """Stop a run. It is saved first and can be resumed. A run that is still waiting is removed from the queue."""
    state = next((each.state for each in studio.queue.facts() if each.name == body.name), None)
    if state == "waiting":
        studio.queue.remove(body.name)
    else:
        studio.queue.stop(body.name)
    return Done()


@router.post("/resume")
def resume(studio: TheStudio, registry: Registry, body: ResumeRequest) -> Queued:
    """Queue a stopped or finished run again."""
    run = run_of(registry, body.run)
    if state_of(run) in LIVE:
        raise UsageError(f"{body.run} is already being trained")
    return Queued(name=studio.queue.resume(run.folder.name, run.folder, body.minutes).name)


@router.post("/delete-run")
def delete_run(studio: TheStudio, registry: Registry, body: NameRequest) -> Done:
    """Delete a run that is not being trained, and its entry in the queue."""
    found = folders(registry).get(check_name(body.name))
    name = found.name if found else body.name
    studio.queue.remove(name)
    if found is not None:
        with Run(found).lock():  # raises PenwrightError while another process trains the run
            remove_folder(found)
    return Done()


@router.get("/download", response_class=StreamingResponse)
def download(registry: Registry, run: RunName) -> StreamingResponse:
    """Return a run with its best checkpoint as a zip archive."""
    found = run_of(registry, run)
    name = quote(f"{found.folder.name}.zip")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return StreamingResponse(_blocks(zipped(found)), media_type="application/zip", headers=headers)


def _blocks(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while block := file.read(CHUNK_BYTES):
            yield block


def _machine(folder: Path) -> MachineFacts:
    memory: dict[str, int] = {}
    with suppress(OSError, ValueError):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        memory = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines}
    load = None
    with suppress(OSError, AttributeError):
        load = os.getloadavg()[0]
    return MachineFacts(
        load=load,
        processors=os.cpu_count() or 1,
        memory=memory.get("MemTotal"),
        free_memory=memory.get("MemAvailable"),
        free_disk=shutil.disk_usage(folder).free,
    )
