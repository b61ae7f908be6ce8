"""A served run that still trains: newer checkpoints answer without a restart."""

import asyncio
import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from penwright.run.folder import Run
from penwright.serving import live
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.model_worker import ModelWorker
from penwright.serving.server import Server, serve
from penwright.serving.settings import ServingSettings
from penwright.workflows import load

from .conftest import eventually

PROMPT = {"prompt": "It was", "max_tokens": 8, "temperature": 0}


class LiveServer(NamedTuple):
    """A server of a run that appears to be training, and the run."""

    address: str
    run: Run
    registry: ModelRegistry


def save_next_checkpoint(run: Run, step: int, total: int = 99) -> None:
    """Save a checkpoint with changed weights, as training does."""
    weights = {name: tensor * 0.9 for name, tensor in run.checkpoints.newest()[0].weights().items()}
    run.checkpoints.save(step, weights, weights, {"step": step, "total_steps": total, "best_step": 6})
    run.append("steps.jsonl", {"step": step, "seconds": step / 10, "targets": 9 * step, "loss": 3.0})
    run.checkpoints.prune(2)


@pytest.fixture
def live_server(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    monkeypatch.setattr(live, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(live, "MAX_SHARE", 1.0)
    monkeypatch.setattr(live, "IDLE_SECONDS", 0.5)
    folder = tmp_path / "novel"
    shutil.copytree(runs / "writer", folder)
    settings = ServingSettings(port=0, drain_seconds=1.0)
    registry = ModelRegistry([ModelWorker.load(folder, None, settings)])
    server = Server(registry, settings)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    yield LiveServer(server.address, Run(folder), registry)
    server.stop()
    thread.join()


def ask(address: str, path: str, body: object = None) -> tuple[int, Any]:
    content = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(f"{address}/{path}", content, {"content-type": "application/json"}), timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def step_of(live_server: LiveServer) -> Any:
    return ask(live_server.address, "models/steps")[1]["models"]["novel"]["step"]


def test_newer_checkpoints_are_served_and_no_request_fails(live_server: LiveServer) -> None:
    statuses: list[int] = []
    is_over = threading.Event()

    def write() -> None:
        while not is_over.is_set():
            statuses.append(ask(live_server.address, "v1/completions", PROMPT)[0])
            statuses.append(ask(live_server.address, "next", {"text": "It was"})[0])

    clients = [threading.Thread(target=write) for _ in range(3)]
    for each in clients:
        each.start()
    distributions = []
    try:
        for step in (10, 20, 30):
            save_next_checkpoint(live_server.run, step)
            assert eventually(lambda step=step: step_of(live_server) == step)  # type: ignore[misc]
            distributions.append(ask(live_server.address, "next", {"text": "It was"})[1]["entropy"])
    finally:
        is_over.set()
        for each in clients:
            each.join()
    assert set(statuses) == {200}
    assert len(set(distributions)) == 3, "each checkpoint gives other probabilities"


def test_best_checkpoint_is_served_after_training(live_server: LiveServer) -> None:
    save_next_checkpoint(live_server.run, 10)
    assert eventually(lambda: step_of(live_server) == 10)
    assert ask(live_server.address, "models")[1]["models"][0]["is_learning"] is True
    save_next_checkpoint(live_server.run, 20, total=20)
    assert eventually(lambda: step_of(live_server) == 6)
    assert ask(live_server.address, "models/steps")[1]["models"]["novel"]["is_learning"] is False


def test_stopped_run_serves_its_newest_checkpoint_unless_it_got_worse(runs: Path, tmp_path: Path) -> None:
    run = Run(tmp_path / "novel")
    shutil.copytree(runs / "writer", run.folder)
    registry = ModelRegistry([ModelWorker.load(run.folder, None, ServingSettings(port=0))])
    models = live.LiveModels(registry, ServingSettings(port=0))
    save_next_checkpoint(run, 10)
    run.mark_stopped()
    models.update()
    assert registry.get().step == 10 and not registry.get().is_learning
    weights = run.checkpoints.newest()[0].weights()
    worse = {"step": 20, "total_steps": 99, "best_step": 6, "evaluations_since_best": 1}
    run.checkpoints.save(20, weights, weights, worse)
    models.update()
    assert registry.get().step == 6
    run.checkpoints.save(30, weights, weights, {**worse, "step": 30, "evaluations_since_best": 0})
    (run.checkpoints.all()[-1].folder / "model.safetensors").write_bytes(b"damaged")
    for _ in range(3):
        models.update()
    assert registry.get().step == 6, "the best one stands in for a damaged one"
    registry.close()


def test_running_request_keeps_its_weights(live_server: LiveServer) -> None:
    old = live_server.registry.get()
    save_next_checkpoint(live_server.run, 10)
    assert eventually(lambda: live_server.registry.get() is not old)
    assert old.step == 6 and live_server.registry.get().step == 10
    old.n_inside = 1  # an unfinished request
    assert old.generator.generate("It was", max_new_tokens=4, temperature=0) is not None
    assert not eventually(lambda: old._executor._shutdown, 1.0)
    old.n_inside = 0
    assert eventually(lambda: old._executor._shutdown)


def test_replaced_model_is_kept_between_two_steps_of_a_request(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, has_begun, may_end = live_server.registry.get(), threading.Event(), threading.Event()

    async def slow(*_: object) -> str:
        has_begun.set()
        await asyncio.to_thread(may_end.wait, 60)
        return "early"

    monkeypatch.setattr(live, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr("penwright.serving.comparison.run_early", slow)
    weights = live_server.run.checkpoints.newest()[0].weights()
    live_server.run.checkpoints.save_early(2, weights, {"step": 2, "seconds": 1.25})
    with ThreadPoolExecutor(1) as client:
        answering = client.submit(ask, live_server.address, "early", {"text": "It was", "max_new_tokens": 4})
        try:
            assert has_begun.wait(30)
            save_next_checkpoint(live_server.run, 10)
            assert eventually(lambda: live_server.registry.get() is not old)
            assert old.n_inside == 0 and not eventually(lambda: old._executor._shutdown, 0.3)
        finally:
            may_end.set()
        status, found = answering.result()
    assert status == 200 and len(found["answers"]) == 2 and found["answers"][0]["text"] == "early"
    assert eventually(lambda: old._executor._shutdown)


def test_decoding_steps_are_compiled_only_after_training(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []

    def start(run: Run, _: object) -> None:
        compiled.append(run.folder.name)

    def use() -> None:
        (worker,) = registry
        worker.generator.generate("It", max_new_tokens=1)

    monkeypatch.setattr(load, "compile_in_background", start)
    monkeypatch.setattr(live, "MAX_SHARE", 1e6)  # no pause between two loads
    run = Run(tmp_path / "runs" / "novel")
    shutil.copytree(runs / "writer", run.folder)
    save_next_checkpoint(run, 10)
    settings = ServingSettings(port=0)
    registry = ModelRegistry([], home=tmp_path)
    models = live.LiveModels(registry, settings)
    models.update()
    serve([str(run.folder)], settings)._socket.close()
    use()
    assert [each.step for each in registry] == [10] and compiled == []
    save_next_checkpoint(run, 20, total=20)
    models.update()
    use()
    assert [each.step for each in registry] == [6] and compiled == ["novel"]
    registry.close()


def test_damaged_checkpoint_leaves_the_previous_one_in_use(live_server: LiveServer) -> None:
    save_next_checkpoint(live_server.run, 10)
    assert eventually(lambda: step_of(live_server) == 10)
    save_next_checkpoint(live_server.run, 20)
    newest = live_server.run.checkpoints.all()[-1].folder / "model.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[-1] ^= 1
    newest.write_bytes(damaged)
    assert ask(live_server.address, "v1/completions", PROMPT)[0] == 200
    save_checkpoint_after_damage(live_server.run)
    assert eventually(lambda: step_of(live_server) == 30)


def test_error_of_the_watcher_is_logged_once_and_does_not_end_it(
    runs: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = ModelRegistry([ModelWorker.load(runs / "writer", None, ServingSettings(port=0))])
    models, called = live.LiveModels(registry, ServingSettings(port=0)), 0

    def fail(*_: object) -> None:
        nonlocal called
        called += 1
        raise AttributeError("a bug")

    async def watch() -> None:
        task = asyncio.create_task(models.watch())
        while called < 3 and not task.done():
            await asyncio.sleep(0.01)
        task.cancel()

    monkeypatch.setattr(live, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(live, "state_of", fail)
    with ThreadPoolExecutor(1) as thread:  # other tests' browsers keep an event loop running in this thread
        thread.submit(asyncio.run, watch()).result()
        own = thread.submit(threading.get_ident).result()
    registry.close()
    (record,) = [record for record in caplog.records if record.thread == own]  # other tests' servers watch, too
    assert called >= 3 and "a bug" in record.message and record.exc_info is not None


def save_checkpoint_after_damage(run: Run) -> None:
    first = run.checkpoints.all()[0].weights()
    run.checkpoints.save(30, first, first, {"step": 30, "total_steps": 99, "best_step": 6})
    run.append("steps.jsonl", {"step": 30, "seconds": 3.0, "targets": 270, "loss": 3.0})


def test_registry_follows_its_folder_up_to_max_models(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = ServingSettings(port=0, max_models=2)
    registry = ModelRegistry([], home=tmp_path)
    models = live.LiveModels(registry, settings)
    models.update()
    assert list(registry) == []
    for name in ("novel", "new.tmp-17"):  # the second one is just being imported
        shutil.copytree(runs / "writer", tmp_path / "runs" / name)
    models.update()
    assert [(each.name, each.kind) for each in registry] == [("novel", "writer")]
    for name, kind in (("pairs", "translator"), ("films", "classifier")):
        shutil.copytree(runs / kind, tmp_path / name)
    models.update()
    assert len(list(registry)) == 2, "no more models than the limit"
    saved = [(path.stat().st_size, path) for path in tmp_path.rglob("step-*/model.safetensors")]
    size, largest = max(saved)
    os.utime(largest.parent)  # the newest one
    live.LiveModels(registry, settings.model_copy(update={"max_model_bytes": size - 1})).update()
    name = largest.parents[2].name
    assert name not in {each.name for each in registry} and list(registry), "it does not hide the older ones"
    assert any(f"{name} is not served" in record.message for record in caplog.records)
    live.LiveModels(registry, settings.model_copy(update={"max_model_bytes": 1})).update()
    assert list(registry) == [], "no more bytes than the limit"
    models.update()
    shutil.rmtree(tmp_path / "runs")
    models.update()
    assert {each.name for each in registry} == {"pairs", "films"}
    registry.close()


def test_early_weights_answer_beside_served_weights(live_server: LiveServer) -> None:
    weights = {name: tensor * 0.5 for name, tensor in live_server.run.checkpoints.newest()[0].weights().items()}
    live_server.run.checkpoints.save_early(2, weights, {"step": 2, "seconds": 1.25})
    status, found = ask(live_server.address, "early", {"text": "It was", "max_new_tokens": 12})
    assert status == 200
    then, now = found["answers"]
    assert (then["step"], then["seconds"], then["is_served"]) == (2, 1.25, False)
    assert (now["step"], now["is_served"]) == (6, True)
    greedy = ask(live_server.address, "v1/completions", {**PROMPT, "max_tokens": 12})[1]["choices"][0]["text"]
    assert now["text"] == greedy and then["text"] != greedy


def test_early_weights_for_disconnected_clients_are_not_loaded(
    live_server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one early model is in memory at a time, although its client has disconnected while it was loaded."""
    worker, checkpoint = live_server.registry.get(), live_server.run.checkpoints.newest()[0]
    has_begun, may_end, loaded = threading.Event(), threading.Event(), list[bool]()

    def slow(*_: object, **__: object) -> Any:
        has_begun.set()
        loaded.append(may_end.wait(60))
        return worker.application

    async def disconnected(n: int) -> None:
        tasks = [asyncio.create_task(live.run_early(worker, checkpoint, lambda application: 1)) for _ in range(n)]
        await asyncio.to_thread(has_begun.wait, 60)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def clients() -> int:
        await disconnected(8)
        task = asyncio.create_task(live.run_early(worker, checkpoint, lambda application: 2))
        await asyncio.sleep(0.05)
        assert not loaded
        may_end.set()
        return await task

    monkeypatch.setattr(live, "load", slow)
    with ThreadPoolExecutor(1) as thread:  # other tests' browsers keep an event loop running in this thread
        assert thread.submit(asyncio.run, clients()).result() == 2
    assert loaded == [True, True]
