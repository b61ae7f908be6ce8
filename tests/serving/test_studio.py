"""The studio's routes: uploads, plans, and training in separate processes."""

import asyncio
import base64
import gzip
import http.client
import importlib
import io
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

import penwright
from penwright.config.recipe import FineTuningSettings, LoraSettings
from penwright.errors import PenwrightError
from penwright.run.folder import Run
from penwright.serving.model_registry import ModelRegistry, UnknownModel
from penwright.serving.server import Server
from penwright.serving.settings import ServingSettings
from penwright.serving.studio import Studio, delete_run, resume
from penwright.serving.studio_fields import NameRequest, ResumeRequest
from penwright.serving.texts import zipped
from penwright.serving.training_queue import Job, JobFacts, TrainingQueue, _locked

from .conftest import eventually

DAYS = "".join(f"It was day {number}, and the rain fell on house {number * 7 % 31}.\n" for number in range(300))
HOSTILE = [
    "../evil.txt",
    "a/b.txt",
    "C:\\evil.txt",
    "<img src=x onerror=alert(1)>.txt",
    ".hidden",
    "-rf",
    "hub:name",
    "a*.txt",
    "a\u202egpj.exe",
    "a\n.txt",
    "",
    " ",
    "ä" * 100,
]


class Client:
    """A running studio and a client for it."""

    def __init__(self, folder: Path, **limits: Any):
        settings = ServingSettings(**{"port": 0, "drain_seconds": 0.2, "min_free_bytes": 1, **limits})
        self.folder, self.studio = folder, Studio(folder, settings)
        self.studio.queue.open()
        self._server = Server(ModelRegistry([], home=folder.resolve()), settings, self.studio)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve()))
        self._thread.start()
        self.address = self._server.address

    def close(self) -> None:
        self._server.stop()
        self._thread.join()
        self.studio.queue.close()

    def kill_training(self) -> None:
        """Kill the training processes that this studio has started."""
        for process in self.studio.queue._processes:
            process.kill()
            process.wait()

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        try:
            with urlopen(Request(f"{self.address}/{path}", content), timeout=120) as answer:
                return answer.status, json.load(answer)
        except HTTPError as refused:
            with refused:
                return refused.code, json.load(refused)

    def upload(self, name: str, content: bytes) -> tuple[int, Any]:
        data = base64.b64encode(content).decode()
        return self.ask("studio/upload", {"name": name, "offset": 0, "total": len(content), "data": data})

    def job(self, name: str) -> Any:
        return next((each for each in self.ask("studio")[1]["jobs"] if each["name"] == name), None)

    def state(self, name: str) -> Any:
        return (self.job(name) or {}).get("state")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    (tmp_path / "json.py").write_text("raise ImportError('a file in the folder of the studio is no module')")
    opened = Client(tmp_path, max_upload_bytes=1_000_000, max_text_bytes=2_000_000)
    yield opened
    opened.close()
    opened.kill_training()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_file_names_are_refused(client: Client, name: str) -> None:
    status, found = client.upload(name, b"text")
    assert status == 400 and "name" in found["error"]["message"]
    assert not client.studio.texts.folder.exists() or not list(client.studio.texts.folder.iterdir())
    for path in ("train", "delete-text", "delete-run"):
        assert client.ask(f"studio/{path}", {"name": name, **({"texts": [name]} if path == "train" else {})})[0] == 400


def test_oversized_uploads_are_refused(client: Client) -> None:
    claim = {"name": "huge.txt", "offset": 0, "total": 10_000_000_000, "data": ""}
    status, found = client.ask("studio/upload", claim)
    assert status == 400 and "max_upload_bytes" in found["error"]["message"]
    host = client.address.removeprefix("http://")
    connection = http.client.HTTPConnection(host)
    connection.putrequest("POST", "/studio/upload")
    connection.putheader("Content-Length", "10000000000")
    connection.endheaders()
    assert connection.getresponse().status == 413
    connection.close()
    assert [client.upload(f"{number}.txt", b"x" * 900_000)[0] for number in range(3)] == [200, 200, 400]
    assert [each["name"] for each in client.ask("studio")[1]["texts"]] == ["0.txt", "1.txt"]


@pytest.mark.parametrize(
    ("name", "content", "looks_like"),
    [
        ("foto.png", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "a PNG image"),
        ("program.txt", bytes(range(256)) * 9, "binary data"),
        ("old.doc", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99), "an old Office document"),
    ],
)
def test_uploads_that_are_not_text_are_refused(client: Client, name: str, content: bytes, looks_like: str) -> None:
    status, found = client.upload(name, content)
    assert status == 400 and name in found["error"]["message"] and looks_like in found["error"]["message"]
    texts = {"latin.txt": "Größe, Süße. ".encode("latin-1"), "wide.txt": "Größe. ".encode("utf-16"), "a.csv": b"a,b\n"}
    texts |= {"table.parquet": b"PAR1" + bytes(9), "a.txt.gz": gzip.compress(b"text"), "book.pdf": b"%PDF-1.4\n\0\1\2"}
    assert [client.upload(*text)[0] for text in texts.items()] == [200] * len(texts)
    assert {path.name for path in client.studio.texts.folder.iterdir()} == set(texts)


def test_choices_of_the_plan_are_kept_in_training(client: Client) -> None:
    client.upload("days.txt", DAYS.encode())
    wanted = {"texts": ["days.txt"], "name": "days", "minutes": 1}
    for choices in ({"data.validation": "x"}, {"model.size": "../x"}, {"model.size": "tiny training.minutes=9"}):
        assert client.ask("studio/train", {**wanted, "choices": choices})[0] == 422
    assert client.ask("studio/train", {**wanted, "choices": {"model.size": "tiny", "model.n_layers": 2}})[0] == 200
    job = client.studio.queue._read("days")
    assert job and "--set model.size=tiny --set model.n_layers=2" in " ".join(job.arguments)


def test_error_at_the_start_of_a_run_is_logged_once_and_does_not_stop_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    studio, n_started = Studio(tmp_path, ServingSettings()), 0

    def fail(*_: object, **__: object) -> None:
        nonlocal n_started
        n_started += 1
        raise ValueError("a bug")

    async def watch() -> None:
        task = asyncio.create_task(studio.watch())
        while n_started < 3 and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()

    monkeypatch.setattr("penwright.serving.studio.ADVANCE_SECONDS", 0.01)
    monkeypatch.setattr("penwright.serving.training_queue.subprocess.Popen", fail)
    for name in "abc":
        studio.queue.add(name, [], 1.0)
    with ThreadPoolExecutor(1) as thread:  # other tests' browsers keep an event loop running in this thread
        thread.submit(asyncio.run, watch()).result()
    assert n_started == 3 and {each.state for each in studio.queue.facts()} == {"failed"}
    assert len([record for record in caplog.records if "a bug" in record.message]) == 1


@pytest.mark.parametrize("columns", [{"text": "a\0b"}, {"label": ["a", "\0"]}])
def test_names_of_columns_that_no_process_can_get_are_refused(client: Client, columns: object) -> None:
    client.upload("days.txt", DAYS.encode())
    wanted = {"texts": ["days.txt"], "columns": columns}
    assert client.ask("studio/train", {**wanted, "name": "days"})[0] == client.ask("studio/plan", wanted)[0] == 422


def test_disk_space_is_kept_free(runs: Path, tmp_path: Path) -> None:
    client = Client(tmp_path, min_free_bytes=10**18)
    try:
        status, found = client.upload("days.txt", DAYS.encode())
        assert status == 400 and "min_free_bytes" in found["error"]["message"]
        status, found = client.ask("studio/train", {"texts": ["days.txt"], "name": "days", "steps": 1})
        assert status == 400 and "min_free_bytes" in found["error"]["message"]
        assert client.ask("studio")[1]["texts"] == client.ask("studio")[1]["jobs"] == []
        shutil.copytree(runs / "writer", tmp_path / "runs" / "novel")
        status, found = client.ask("studio/download?run=novel")
        assert status == 400 and "min_free_bytes" in found["error"]["message"]
    finally:
        client.close()


def test_one_archive_is_made_at_a_time(client: Client, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(runs / "writer", client.folder / "runs" / "novel")
    n_now, most, may_end = [0], [0], threading.Event()

    def slow(*given: Any) -> Any:
        n_now[0] += 1
        most[0] = max(most[0], n_now[0])
        may_end.wait(60)
        archive = zipped(*given)
        n_now[0] -= 1
        return archive

    def fetch() -> None:
        with urlopen(f"{client.address}/studio/download?run=novel", timeout=120) as answer:
            assert zipfile.is_zipfile(io.BytesIO(answer.read()))

    monkeypatch.setattr("penwright.serving.studio.zipped", slow)
    with ThreadPoolExecutor(3) as executor:
        fetched = [executor.submit(fetch) for _ in range(3)]
        assert eventually(lambda: most[0] == 1)
        may_end.set()
        for each in fetched:
            each.result()
    assert most == [1]
    assert {path.name for path in client.folder.iterdir()} <= {"runs", "queue", "texts", "json.py"}


def test_decompression_bombs_are_refused_and_deleted(client: Client) -> None:
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"0" * 200_000_000)
    large = io.BytesIO()
    with zipfile.ZipFile(large, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"0" * 3_000_000)
    zeros = b"0" * 3_000_000
    bombs = {"bomb.zip": bomb.getvalue(), "large.zip": large.getvalue(), "bomb.txt.gz": gzip.compress(zeros)}
    with suppress(ImportError):
        bombs["bomb.txt.zst"] = importlib.import_module("pyarrow").compress(zeros, "zstd", asbytes=True)
    for name, content in bombs.items():
        status, found = client.upload(name, content)
        assert status == 400 and (
            "zip bomb" in found["error"]["message"] or "max_text_bytes" in found["error"]["message"]
        )
    assert list(client.studio.texts.folder.iterdir()) == []


def test_upload_parts_must_be_contiguous_and_names_unique(client: Client) -> None:
    def part(offset: int, text: bytes) -> int:
        data = base64.b64encode(text).decode()
        return client.ask("studio/upload", {"name": "a.txt", "offset": offset, "total": 6, "data": data})[0]

    assert [part(0, b"abc"), part(4, b"ef"), part(3, b"defg"), part(3, b"def")] == [200, 400, 400, 200]
    assert (client.studio.texts.folder / "a.txt").read_bytes() == b"abcdef"
    assert part(0, b"abcdef") == 400, "the name is already in use"
    assert client.ask("studio/delete-text", {"name": "a.txt"})[0] == 200
    assert client.ask("studio")[1]["texts"] == []
    assert client.ask("studio/upload", {"name": "b.txt", "offset": 0, "total": 6, "data": "?"})[0] == 400


def test_uploads_at_the_same_time_with_the_same_name_are_kept_apart(client: Client) -> None:
    def part(ticket: str, offset: int, text: bytes) -> int:
        body = {"name": name, "ticket": ticket, "offset": offset, "total": 6, "data": base64.b64encode(text).decode()}
        return client.ask("studio/upload", body)[0]

    name, tickets = "a" * 116 + ".txt", ("1" * 40, "2" * 40)
    sent = [part(ticket, 0, letter * 3) for ticket, letter in zip(tickets, (b"a", b"b"), strict=True)]
    sent += [part(ticket, 3, letter * 3) for ticket, letter in zip(tickets, (b"a", b"b"), strict=True)]
    assert sent == [200, 200, 200, 400]
    assert (client.studio.texts.folder / name).read_bytes() == b"aaaaaa"
    assert [each["name"] for each in client.ask("studio")[1]["texts"]] == [name]


def test_abandoned_uploads_are_deleted_when_another_begins(client: Client) -> None:
    names, folder = [".old.txt.part", ".new.txt|1.part"], client.studio.texts.folder
    folder.mkdir()
    for name in names:
        (folder / name).write_bytes(b"x" * 900_000)
    assert client.upload("a.txt", b"x" * 900_000)[0] == 400
    os.utime(folder / names[0], (0, 0))
    assert client.upload("a.txt", b"x" * 900_000)[0] == 200
    assert {path.name for path in folder.iterdir()} == {names[1], "a.txt"}


def test_texts_that_are_being_deleted_are_not_listed(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.upload("a.txt", b"text")
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [*glob(self, pattern), self / "gone.txt"])
    texts = client.studio.texts
    assert [each.name for each in texts.listed()] == ["a.txt"] and texts.used() == 4


def test_symlinks_are_not_followed(client: Client, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    client.upload("a.txt", b"text")
    (client.studio.texts.folder / "b.txt").symlink_to(secret)
    assert [each["name"] for each in client.ask("studio")[1]["texts"]] == ["a.txt"]
    assert client.ask("studio/plan", {"texts": ["b.txt"]})[0] == 400
    (client.studio.texts.folder / ".c.txt.part").symlink_to(secret)
    assert client.upload("c.txt", b"x")[0] == 200
    assert secret.read_text() == "secret"


@pytest.mark.parametrize("header", [{"Host": "evil.example:80"}, {"Origin": "http://evil.example"}])
def test_foreign_hosts_and_origins_are_refused(client: Client, header: dict[str, str]) -> None:
    body = json.dumps({"name": "a.txt", "offset": 0, "total": 1, "data": "YQ=="}).encode()
    with pytest.raises(HTTPError, match="403"):
        urlopen(Request(f"{client.address}/studio/upload", body, header))
    assert client.ask("studio")[1]["texts"] == []


def test_server_of_runs_has_no_studio(call_api: Any) -> None:
    assert call_api("studio")[0] == 404
    assert call_api("models")[1]["has_studio"] is False


def test_second_studio_of_a_folder_is_refused(client: Client) -> None:
    with pytest.raises(PenwrightError, match="already"):
        TrainingQueue(client.folder).open()


def test_text_becomes_a_served_and_downloadable_model(client: Client, runs: Path, tmp_path: Path) -> None:
    """Upload, plan, train, stop, use, download and delete. Runs trained elsewhere appear, too."""
    client.upload("days.txt", DAYS.encode())
    status, plan = client.ask("studio/plan", {"texts": ["days.txt"], "size": "nano", "minutes": 1})
    assert status == 200 and plan["recipe"]["task"] == "generate" and plan["examples"][0]["text"] in DAYS
    assert [each["size"] for each in plan["sizes"] if each["is_chosen"]] == ["nano"]
    budgets = {each["minutes"]: each["high"] for each in plan["budgets"]}
    assert list(budgets) == sorted(budgets) and budgets[480] < budgets[1], "more time, better text"
    wanted = {"texts": ["days.txt"], "size": "nano", "steps": 4}
    names = [client.ask("studio/train", {**wanted, "name": "days"})[1]["name"] for _ in range(2)]
    assert names == ["days", "days-2"]
    assert eventually(lambda: client.state("days") == "preparing", 5) and client.state("days-2") == "waiting"
    assert client.ask("studio/stop", {"name": "days-2"})[0] == 200 and client.state("days-2") is None
    assert eventually(lambda: client.state("days") == "finished", 180), client.job("days")
    assert client.job("days")["note"], "what the process printed is kept"
    shutil.copytree(runs / "classifier", tmp_path / "runs" / "films")
    assert eventually(lambda: {"days", "films"} <= set(client.ask("models/steps")[1]["models"]), 20)
    assert client.ask("v1/completions", {"model": "days", "prompt": "It was", "max_tokens": 4})[0] == 200
    with urlopen(f"{client.address}/studio/download?run=days") as answer:
        zipfile.ZipFile(io.BytesIO(answer.read())).extractall(tmp_path / "elsewhere")
    assert penwright.load(tmp_path / "elsewhere" / "days").kind == "writer"
    assert client.ask("studio/delete-run", {"name": "films"})[0] == 200
    assert not (tmp_path / "runs" / "films").exists() and (runs / "classifier").exists()
    assert client.ask("studio/download?run=films")[0] == 404


def test_training_outlives_the_server_and_resumes_after_a_stop(tmp_path: Path) -> None:
    first = Client(tmp_path)
    first.upload("days.txt", DAYS.encode())
    first.ask("studio/train", {"texts": ["days.txt"], "size": "nano", "steps": 1000, "name": "days"})
    try:
        assert eventually((tmp_path / "runs" / "days" / "steps.jsonl").exists, 180), first.job("days")
    finally:
        first.close()
    second = Client(tmp_path)
    try:
        assert second.state("days") == "training"
        assert second.ask("studio/delete-run", {"name": "days"})[0] == 400
        assert second.ask("studio/stop", {"name": "days"})[0] == 200
        assert eventually(lambda: second.state("days") == "stopped", 60)
        assert second.ask("studio/resume", {"run": "days"})[0] == 200
        assert eventually(lambda: second.state("days") == "training", 180)
        second.ask("studio/stop", {"name": "days"})
        assert eventually(lambda: second.state("days") == "stopped", 60)
    finally:
        second.close()
        first.kill_training()
        second.kill_training()


def test_run_that_ended_before_its_first_step_can_be_continued(runs: Path, tmp_path: Path) -> None:
    studio, registry = Studio(tmp_path, ServingSettings()), ModelRegistry([], home=tmp_path)
    queue, log = studio.queue, tmp_path / "queue" / "days.log"

    def end(said: str) -> None:
        queue._put(job.model_copy(update={"started": 1.0, "pid": 1}))
        log.write_text(said, encoding="utf-8")

    def facts() -> JobFacts:
        (found,) = queue.facts()
        return found

    job = queue.add("days", ["texts/days.txt"], 1.0)
    for said, before in (("penwright: interrupted\n", "stopped"), ("penwright: the disk is full\n", "failed")):
        end(said)
        assert facts().state == before and (before == "stopped" or facts().note == "the disk is full")
        assert resume(studio, registry, ResumeRequest(run="days")).name == "days" and facts().state == "waiting"
        again = queue._read("days")
        assert again and again.arguments == job.arguments and again.minutes == 1.0
    folder = tmp_path / "runs" / "days"
    folder.mkdir(parents=True)
    for name in ("recipe.toml", "tokenizer.json", "corpus.json"):
        shutil.copy(runs / "writer" / name, folder)
        end("penwright: interrupted\n")
        resume(studio, registry, ResumeRequest(run="days"))
        again = queue._read("days")
        begins = ["train", "--resume=runs/days"] if name == "corpus.json" else ["train", "texts/days.txt"]
        assert again and again.arguments[:2] == begins
    with pytest.raises(UnknownModel):
        resume(studio, registry, ResumeRequest(run="nothing"))


def test_run_that_is_stopped_before_it_can_write_to_its_log_counts_as_stopped(tmp_path: Path) -> None:
    queue, process = TrainingQueue(tmp_path), subprocess.Popen(["sleep", "60"])
    job = queue.add("days", ["texts/days.txt"], 1.0)
    queue._put(job.model_copy(update={"started": 1.0, "pid": process.pid}))
    (queue.folder / "days.log").touch()
    with _locked(queue.folder / "days.lock"):
        assert [each.state for each in queue.facts()] == ["preparing"]
        queue.stop("days")
    assert process.wait(10) == -signal.SIGTERM
    assert [each.state for each in queue.facts()] == ["stopped"]
    queue._put(queue.resume("days", None, None).model_copy(update={"started": 2.0}))
    assert [each.state for each in queue.facts()] == ["failed"], "it was not stopped again"


def test_job_that_trains_a_finished_run_longer_counts_as_failed_until_it_saves(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "days"
    shutil.copytree(runs / "writer", folder)
    studio, registry = Studio(tmp_path, ServingSettings()), ModelRegistry([], home=tmp_path)
    queue = studio.queue

    def end(job: Job | None) -> str:
        assert job
        queue._put(job.model_copy(update={"started": time.time(), "pid": 1}))
        return queue.facts()[0].state

    job = queue.resume("days", folder, 5.0)
    assert end(job) == "failed" and "before it could save" in queue.facts()[0].note
    resume(studio, registry, ResumeRequest(run="days"))
    again = queue._read("days")
    assert again and again.arguments == job.arguments == ["train", "--resume=runs/days", "--minutes", "5"]
    assert end(again) == "failed"
    run = Run(folder)
    weights = run.checkpoints.newest()[0].weights()
    run.checkpoints.save(8, weights, weights, {"step": 8, "total_steps": 9})
    assert [each.state for each in queue.facts()] == ["failed"]
    resume(studio, registry, ResumeRequest(run="days"))
    again = queue._read("days")
    assert again and again.arguments == ["train", "--resume=runs/days"], "its budget is saved"
    end(again)
    run.checkpoints.save(9, weights, weights, {"step": 9, "total_steps": 9})
    assert [each.state for each in queue.facts()] == ["finished"]


def test_run_that_is_stopped_while_it_is_being_started_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, popen = TrainingQueue(tmp_path), subprocess.Popen

    def start(*_: object, pass_fds: tuple[int, ...], **__: object) -> Any:
        stopping.start()
        stopping.join(0.1)
        return popen(["sleep", "60"], pass_fds=pass_fds)

    stopping = threading.Thread(target=lambda: queue.stop("days"))
    queue.add("days", [], 1.0)
    monkeypatch.setattr("penwright.serving.training_queue.subprocess.Popen", start)
    queue.advance()
    stopping.join()
    (process,) = queue._processes
    assert process.wait(10) == -signal.SIGTERM
    assert [each.state for each in queue.facts()] == ["stopped"]


@pytest.mark.parametrize("name", ["mine", "home/novel", "-odd", f"home/{'ä' * 100}"])
def test_runs_beside_the_studios_own_are_continued_stopped_and_deleted(runs: Path, tmp_path: Path, name: str) -> None:
    """Runs in both folders may have the same name, and their names may be no file names of the queue."""
    home = tmp_path / "home"
    folder, other = home / name.removeprefix("home/"), home / "runs" / name.removeprefix("home/")
    for each in (folder, other) if name.startswith("home/") else (folder,):
        shutil.copytree(runs / "writer", each)
    studio, registry = Studio(home, ServingSettings()), ModelRegistry([], home=home)
    queue = studio.queue

    def state() -> str:
        return next(each.state for each in TrainingQueue(home).facts() if each.name == name)

    assert resume(studio, registry, ResumeRequest(run=name)).name == name
    job = queue._read(name)
    assert job and job.arguments == ["train", f"--resume={folder.name}"] and state() == "waiting"
    queue._put(job.model_copy(update={"started": 1.0, "pid": 1}))
    assert state() == "finished"
    with _locked(queue._file(name, ".lock")):
        assert state() == "training"
        queue.stop(name)
        assert state() == "stopping" and (folder / "stop").exists() and not (other / "stop").exists()
        with pytest.raises(PenwrightError, match="is being trained"):
            delete_run(studio, registry, NameRequest(name=name))
    delete_run(studio, registry, NameRequest(name=name))
    assert not folder.exists() and not queue.facts()
    assert other.exists() == name.startswith("home/")


def test_run_that_adapters_need_is_not_deleted(runs: Path, tmp_path: Path) -> None:
    for name in ("base", "adapters"):
        shutil.copytree(runs / "writer", tmp_path / "runs" / name)
    base, adapters = (Run(tmp_path / "runs" / name) for name in ("base", "adapters"))
    base_of = FineTuningSettings(base=str(base.folder), base_sha256=base.checkpoints.best()[0].weights_sha256)
    adapters.save_recipe(adapters.recipe.model_copy(update={"lora": LoraSettings(rank=2), "finetuning": base_of}))
    studio, registry = Studio(tmp_path, ServingSettings()), ModelRegistry([], home=tmp_path)
    with pytest.raises(PenwrightError, match="adapters to the present weights"):
        delete_run(studio, registry, NameRequest(name="base"))
    for name in ("adapters", "base"):
        delete_run(studio, registry, NameRequest(name=name))
    assert not list((tmp_path / "runs").iterdir())


def test_new_run_does_not_take_the_name_of_a_run_beside_the_studios_own(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "writer", tmp_path / "novel")
    assert TrainingQueue(tmp_path).add("novel", [], 1.0).name == "novel-2"


def test_plans_are_made_one_after_another_and_their_order_is_known(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    async def slow(studio: Studio, wanted: object) -> tuple[bytes, bytes]:
        await asyncio.to_thread(may_end.wait, 60)
        return b"{}", b""

    def order() -> Any:
        return client.ask("studio")[1]["planning"]

    monkeypatch.setattr("penwright.serving.studio._plan", slow)
    threads = []
    for ticket, expected in (("a", ["a"]), ("b", ["a", "b"])):
        body = {"texts": ["days.txt"], "ticket": ticket}
        threads.append(threading.Thread(target=client.ask, args=("studio/plan", body)))
        threads[-1].start()
        assert eventually(lambda expected=expected: order() == expected, 20)  # type: ignore[misc]
    may_end.set()
    for thread in threads:
        thread.join()
    assert order() == []


def test_unsuitable_texts_are_explained(client: Client) -> None:
    client.upload("short.txt", b"too short\n")
    status, found = client.ask("studio/plan", {"texts": ["short.txt"]})
    assert status == 400 and "too short to learn from" in found["error"]["message"]
    rows = "".join(f"some words {n}\tother words {n}\t{n % 3}\n" for n in range(60))
    client.upload("table.tsv", f"text\tremark\tgroup\n{rows}".encode())
    chosen = {"texts": ["table.tsv"], "columns": {"label": "group", "text": 2}, "size": "nano", "minutes": 1}
    status, found = client.ask("studio/plan", chosen)
    assert status == 200 and found["recipe"]["task"] == "classify"
    assert found["roles"] == {"text": [["remark", 2]], "label": [["group", 3]]}


def test_several_columns_of_labels_are_chosen_by_name_or_number(client: Client) -> None:
    rows = "".join(f"some words {n}\t{n % 2}\t{n % 3 // 2}\t{n % 5 // 4}\n" for n in range(60))
    client.upload("films.tsv", f'text\twar\t"quoted" łove\tsad\n{rows}'.encode())
    chosen = {"texts": ["films.tsv"], "columns": {"label": ['"quoted" łove', 4]}, "size": "nano", "minutes": 1}
    status, found = client.ask("studio/plan", chosen)
    assert status == 200, found
    assert found["roles"] == {"text": [["text", 1]], "label": [['"quoted" łove', 3], ["sad", 4]]}
    status, found = client.ask("studio/plan", {**chosen, "columns": {"label": []}})
    assert 400 <= status < 500, found
