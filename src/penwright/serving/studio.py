"""The routes of the studio: upload texts, plan, train, stop, resume, download and delete.

All files are stored below one folder: texts/ (uploads), queue/ (jobs) and runs/ (runs).
"""

import asyncio
import base64
import binascii
import json
import logging
import os
import shutil
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO
from urllib.parse import quote

from fastapi import APIRouter, Depends, Request
from fastapi.responses import StreamingResponse

from penwright.errors import PenwrightError, UsageError
from penwright.run.folder import CORPUS, Run
from penwright.serving.errors import ERROR_RESPONSES
from penwright.serving.fields import Registry
from penwright.serving.runs import LIVE, RunName, folders, run_of, state_of
from penwright.serving.settings import ServingSettings
from penwright.serving.studio_fields import (
    Done,
    MachineFacts,
    NameRequest,
    PlanRequest,
    Queued,
    ResumeRequest,
    StudioFacts,
    TrainRequest,
    Upload,
    Uploaded,
)
from penwright.serving.texts import CHUNK_BYTES, TextFolder, require_free_disk, zipped
from penwright.serving.training_queue import SAID, TrainingQueue
from penwright.storage import remove_folder
from penwright.workflows.resume import require_no_adapters

router = APIRouter(prefix="/studio", responses=ERROR_RESPONSES)
ADVANCE_SECONDS = 0.5  # seconds between two checks of the queue
EARLY = ("--set", "training.early=4")  # keep the weights after 1, 10, 100 and 1,000 seconds, to show progress


class Studio:
    """The folder of a studio. Only one process at a time may open it."""

    router = router

    def __init__(self, folder: Path, settings: ServingSettings):
        self.folder, self.settings = folder.resolve(), settings
        self.texts = TextFolder(self.folder / "texts", settings)
        self.queue = TrainingQueue(self.folder)
        self.planning: list[str | None] = []  # tickets of the pending requests for a plan, in order
        self.planner = asyncio.Lock()  # one plan at a time, since planning measures the machine's speed
        self.archiver = ThreadPoolExecutor(1, thread_name_prefix="penwright-archive")  # makes one archive at a time

    async def watch(self) -> None:
        """Start the waiting runs one after another, until cancelled."""
        logged: set[str] = set()
        while True:
            try:
                with suppress(PenwrightError, OSError):  # e.g. a full disk, which is reported to users who start a run
                    await asyncio.to_thread(self.queue.advance)
            except Exception as error:  # an error in one run must not keep the others waiting
                message = f"a run of the studio could not be started: {error!r}"
                if message not in logged:
                    logging.getLogger("penwright").warning(message, exc_info=error)
                logged.add(message)
            await asyncio.sleep(ADVANCE_SECONDS)

    def arguments(self, request: PlanRequest) -> list[str]:
        """Return the arguments of `penwright train` or `penwright plan` for a request."""
        texts = [f"{self.texts.path(name).relative_to(self.folder)}" for name in request.texts]
        options: list[str] = []
        for option, value in (("task", request.task), ("size", request.size), ("minutes", request.minutes)):
            options += [f"--{option}", f"{value}"] if value is not None else []
        options += ["--steps", f"{request.steps}"] if request.steps is not None else []
        for role, column in request.columns.items():
            value = json.dumps(column, ensure_ascii=False) if isinstance(column, list) else column
            options += ["--set", f"data.{role}={value}"]
        return [*texts, *options]


def _studio(request: Request) -> Studio:
    studio: Studio = request.app.state.studio
    return studio


TheStudio = Annotated[Studio, Depends(_studio)]


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
        planning=studio.planning,
        machine=_machine(studio.folder),
    )


@router.post("/upload")
def upload(studio: TheStudio, body: Upload) -> Uploaded:
    """Add a part of a text. Send the parts in order; the text is usable when the last one has arrived."""
    try:
        data = base64.b64decode(body.data, validate=True)
    except (binascii.Error, ValueError):
        raise UsageError("data is not valid base64") from None
    return Uploaded(bytes=studio.texts.add(body.name, body.offset, body.total, data, body.ticket))


@router.post("/delete-text")
def delete_text(studio: TheStudio, body: NameRequest) -> Done:
    """Delete an uploaded text."""
    studio.texts.delete(body.name)
    return Done()


@router.post("/plan")
async def plan(studio: TheStudio, body: PlanRequest) -> dict[str, Any]:
    """Return the output of `penwright plan --json`: the data as the model sees them, the plan, and alternatives.

    If the task or the columns are unclear, the answer is {undecided: {question, options}}.
    """
    studio.planning.append(body.ticket)
    try:
        async with studio.planner:
            output, errors = await _plan(studio, body)
    finally:
        studio.planning.remove(body.ticket)
    with suppress(ValueError):
        planned: dict[str, Any] = json.loads(output)
        return planned
    message = errors.decode("utf-8", "replace")
    raise UsageError(message.rpartition(SAID)[2].strip()[:2000] or "the texts cannot be read")


async def _plan(studio: Studio, request: PlanRequest) -> tuple[bytes, bytes]:
    """Run `penwright plan --json`, and return its output and its messages."""
    command = [sys.executable, "-P", "-m", "penwright", "plan", *studio.arguments(request), "--json"]
    process = await asyncio.create_subprocess_exec(*command, cwd=studio.folder, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(studio.settings.plan_seconds):
            return await process.communicate()
    finally:
        if process.returncode is None:  # the client has disconnected, or the time limit has passed
            process.kill()
            await process.wait()


@router.post("/train")
def train(studio: TheStudio, body: TrainRequest) -> Queued:
    """Queue a run. A separate process trains it, and outlives the server."""
    require_free_disk(studio.folder, studio.settings.min_free_bytes)
    kept = [part for key, value in body.choices.items() for part in ("--set", f"{key}={value}")]
    return Queued(name=studio.queue.add(body.name, [*studio.arguments(body), *kept, *EARLY], body.minutes).name)


@router.post("/stop")
def stop(studio: TheStudio, body: NameRequest) -> Done:
    """Stop a run. It saves a checkpoint first, and can be resumed. A run that is still waiting leaves the queue."""
    state = next((each.state for each in studio.queue.facts() if each.name == body.name), None)
    if state == "waiting":
        studio.queue.remove(body.name)
    else:
        studio.queue.stop(body.name)
    return Done()


@router.post("/resume")
def resume(studio: TheStudio, registry: Registry, body: ResumeRequest) -> Queued:
    """Queue a stopped, failed or finished run again. A run that has saved nothing yet starts over."""
    folder = studio.queue.folder_of(body.run)
    if folder is not None:  # the queue refuses a run that is being trained
        is_begun = (folder / CORPUS).is_file()
        return Queued(name=studio.queue.resume(body.run, folder if is_begun else None, body.minutes).name)
    run = run_of(registry, body.run)
    if state_of(run) in LIVE:
        raise UsageError(f"{body.run} is already being trained")
    return Queued(name=studio.queue.resume(body.run, run.folder, body.minutes).name)


@router.post("/delete-run")
def delete_run(studio: TheStudio, registry: Registry, body: NameRequest) -> Done:
    """Delete a run that is not being trained, and its entry in the queue."""
    folder = studio.queue.folder_of(body.name) or folders(registry).get(body.name)
    if folder is None:
        raise UsageError(f"there is no run '{body.name[:80]}'")
    require_no_adapters(Run(folder))
    studio.queue.remove(body.name)
    if folder.is_dir():
        with Run(folder).lock():  # raises PenwrightError while another process trains the run
            remove_folder(folder)
    return Done()


@router.get("/download", response_class=StreamingResponse)
async def download(studio: TheStudio, registry: Registry, run: RunName) -> StreamingResponse:
    """Return a run with its best checkpoint as a zip archive."""
    opened = await asyncio.to_thread(run_of, registry, run)
    work = studio.archiver.submit(zipped, opened, studio.folder, studio.settings.min_free_bytes)
    archive = await asyncio.wrap_future(work)
    name = quote(f"{opened.folder.name}.zip")
    headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return StreamingResponse(_blocks(archive), media_type="application/zip", headers=headers)


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
