"""Runs as the page sees them, and what it warns of."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from math import nan
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penwright.config import merge
from penwright.run.folder import Run
from penwright.run.stop_file import is_stop_requested, mark_stopped
from penwright.serving.alerts import alerts
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.model_worker import ModelWorker
from penwright.serving.runs import downsample
from penwright.serving.server import Server
from penwright.serving.settings import ServingSettings

from .conftest import SETTINGS, eventually


def get(asked: Any, path: str) -> Any:
    status, found = asked(f"runs{path}")
    assert status == 200, found
    return found


def test_runs_are_those_beside_the_served_ones(asked: Any, runs: Path) -> None:
    found = {run["name"]: run for run in get(asked, "")["runs"]}
    assert {"writer", "translator", "classifier"} <= set(found)
    writer = found["writer"]
    assert (writer["task"], writer["state"], writer["step"], writer["total_steps"]) == ("generate", "finished", 6, 6)
    assert writer["model"] == "writer" and writer["scores"]["nats per token"] > 0


def test_figures_are_the_lines_of_the_run(asked: Any, runs: Path) -> None:
    found, run = get(asked, "/figures?run=writer"), Run.open(runs / "writer")
    for columns, name in ((found["steps"], "steps.jsonl"), (found["evaluations"], "metrics.jsonl")):
        for at, record in enumerate(run.records(name)):
            assert {key: columns[key][at] for key in record} == record
    targets, seconds = found["steps"]["targets"][0], found["steps"]["seconds"][0]
    assert found["steps"]["speed"][0] == pytest.approx(targets / seconds)
    assert found["state"] == "finished"


def test_samples_and_settings_are_those_of_the_run(asked: Any, runs: Path) -> None:
    run = Run.open(runs / "translator")
    assert get(asked, "/samples?run=translator")["samples"] == run.records("samples.jsonl")
    settings = get(asked, "/settings?run=translator")["settings"]
    assert settings["model.d_model"] == 32 and settings["training.steps"] == 6


@pytest.mark.parametrize("name", ["nothing", "../runs/writer", "/etc", "writer/checkpoints", "", "\0"])
def test_only_a_name_opens_a_run(asked: Any, name: str) -> None:
    for path in ("figures", "samples", "settings"):
        status, found = asked(f"runs/{path}?run={quote(name)}")
        assert status == 404 and "has no run" in str(found)


def test_a_run_that_has_just_begun_or_is_broken_breaks_nothing(asked: Any, runs: Path) -> None:
    young, broken = runs / "young", runs / "broken"
    for folder in (young, broken):
        folder.mkdir()
    (young / "recipe.toml").write_bytes((runs / "writer" / "recipe.toml").read_bytes())
    (young / "steps.jsonl").write_text('{"step": 10, "seconds": 1.0, "targets": 50, "loss": NaN}\n{"step": 20, "sec')
    (broken / "recipe.toml").write_text("task = 'nothing'")
    found = {run["name"]: run for run in get(asked, "")["runs"]}
    assert found["young"]["state"] == "training" and not found["young"]["problem"]
    assert "broken" in found["broken"]["problem"] and found["broken"]["task"] is None
    assert get(asked, "/figures?run=young")["steps"]["loss"] == [None]
    for folder in (young, broken):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


DAMAGES = {
    "a bad byte": b'{"step": 20, "seconds": 1.0, "targets": 9, "loss": 1.0}\xff\n',
    "no object": b"5\n[]\nnull\n",
    "no step": b'{"seconds": 1.0, "targets": 9}\n',
    "no number": b'{"step": "x", "seconds": [], "targets": {}, "loss": "y", "skipped": "z"}\n',
    "a huge number": b'{"step": 1, "seconds": 1.0, "targets": 9, "loss": ' + b"9" * 400 + b"}\n",
    "nested": b"[" * 5000 + b"\n",
    "half of a pair": b'{"step": 1, "seconds": 1.0, "targets": 9, "loss": "\\ud800", "\\ud800": 1}\n',
}


@pytest.mark.parametrize("file", ["steps.jsonl", "metrics.jsonl", "samples.jsonl"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_line_is_told_at_its_run_and_hides_nothing(asked: Any, runs: Path, file: str, damage: str) -> None:
    folder = young_run(runs, "hurt")
    try:
        with (folder / file).open("ab") as lines:
            lines.write(DAMAGES[damage] + b'{"step": 30, "seconds": 2.0, "targets": 90, "loss": 2.0}\n')
        found = {run["name"]: run for run in get(asked, "")["runs"]}
        assert {"writer", "translator", "classifier", "hurt"} <= set(found)
        assert found["hurt"]["step"] == (30 if file == "steps.jsonl" else 10)
        assert not found["writer"]["problem"]
        figures = get(asked, "/figures?run=hurt")
        for place in ("samples", "settings"):
            get(asked, f"/{place}?run=hurt")
        if damage == "a bad byte" and file == "steps.jsonl":
            assert "steps.jsonl: line 2" in found["hurt"]["problem"] and "line 2" in figures["problem"]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("state", ["checkpoints/step-abc/x", "checkpoints/step-00000001/state.json"])
def test_a_damaged_folder_of_checkpoints_is_told_at_its_run(asked: Any, runs: Path, state: str) -> None:
    folder = young_run(runs, "odd")
    try:
        (folder / state).parent.mkdir(parents=True)
        (folder / state).write_bytes(b"\xff")
        found = {run["name"]: run for run in get(asked, "")["runs"]}
        assert {"writer", "odd"} <= set(found)
        get(asked, "/figures?run=odd")
    finally:
        shutil.rmtree(folder)


def test_a_name_that_is_not_utf8_is_shown(asked: Any, runs: Path) -> None:
    try:
        folder = young_run(runs, os.fsdecode(b"odd\xff"))
    except OSError:
        pytest.skip("this file system takes no such name")
    try:
        assert "odd\ufffd" in {run["name"] for run in get(asked, "")["runs"]}
    finally:
        shutil.rmtree(folder)


def test_a_served_run_may_be_deleted(runs: Path, tmp_path: Path) -> None:
    names = ("writer", "translator", "classifier")
    for name in names:
        shutil.copytree(runs / name, tmp_path / name)
    limits = ServingSettings(port=0)
    served = [ModelWorker.load(tmp_path / name, name, limits) for name in names]
    questions: list[tuple[str, Any]] = [
        ("translating/sentences", {"sentences": [{"text": "eins"}]}),
        ("translating/links", {"text": "eins", "target": "one"}),
        ("translating/words", {"text": "eins"}),
        ("translate", {"q": "eins", "target": "target"}),
        ("classify", {"texts": "a"}),
        ("classifying/calibration", None),
        ("v1/completions", {"prompt": "It", "max_tokens": 1}),
        ("v1/models", None),
        ("models", None),
        ("runs", None),
        ("languages", None),
        ("inspect/tokens", {"text": "a"}),
        ("metrics", None),
    ]
    server = Server(ModelRegistry(served), limits)
    thread = Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    try:
        shutil.rmtree(tmp_path)
        for path, body in questions:
            data = None if body is None else json.dumps(body).encode()
            with urlopen(Request(f"{server.address}/{path}", data)) as answer:
                assert answer.status == 200, path
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"{server.address}/runs/figures?run=writer")
    finally:
        server.stop()
        thread.join()


def young_run(runs: Path, name: str) -> Path:
    """A folder that looks like that of a run which is being trained."""
    folder = runs / name
    folder.mkdir()
    (folder / "recipe.toml").write_bytes((runs / "writer" / "recipe.toml").read_bytes())
    (folder / "steps.jsonl").write_text('{"step": 10, "seconds": 1.0, "targets": 50, "loss": 3.0}\n')
    return folder


def test_a_run_that_is_being_trained_gets_the_wish_that_it_stops(asked: Any, runs: Path) -> None:
    folder = young_run(runs, "to-stop")
    try:
        for _ in range(2):  # to ask again does no harm
            status, found = asked("runs/stop", {"run": "to-stop"})
            assert (status, found) == (200, {"state": "stopping"})
        assert (
            is_stop_requested(Run(folder))
            and {run["name"]: run["state"] for run in get(asked, "")["runs"]}["to-stop"] == "stopping"
        )
        mark_stopped(Run(folder))
        assert get(asked, "/figures?run=to-stop")["state"] == "stopped"
        assert asked("runs/stop", {"run": "to-stop"})[0] == 409
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("writer", 409, "has finished"),
        ("nothing", 404, "has no run"),
        ("../runs/writer", 404, "has no run"),
        (7, 422, ""),
    ],
)
def test_only_a_run_that_is_being_trained_can_be_stopped(
    asked: Any, runs: Path, name: object, status: int, words: str
) -> None:
    before = sorted(runs.rglob("*"))
    found = asked("runs/stop", {"run": name})
    assert found[0] == status and words in str(found[1])
    assert sorted(runs.rglob("*")) == before


def test_a_link_in_the_place_of_the_wish_is_not_followed(asked: Any, runs: Path, tmp_path: Path) -> None:
    folder = young_run(runs, "linked")
    (folder / "stop").symlink_to(tmp_path / "elsewhere")
    try:
        asked("runs/stop", {"run": "linked"})
        assert not (tmp_path / "elsewhere").exists()
    finally:
        shutil.rmtree(folder)


def test_training_in_another_process_stops_when_the_server_is_asked_and_resumes_to_the_same(
    asked: Any, runs: Path
) -> None:
    settings = merge(SETTINGS, {"training": {"steps": 1500, "evaluate_every": 1500}, "tokenizer": {"type": "bytes"}})
    flags = [f"--set={table}.{key}={value}" for table, values in settings.items() for key, value in values.items()]
    command = [sys.executable, "-m", "penwright", "train", str(runs / "writer.txt"), "--run", str(runs / "long")]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: len(Run(runs / "long").records("steps.jsonl")) > 0, 60)
        assert asked("runs/stop", {"run": "long"})[0] == 200
        _, said = process.communicate(timeout=60)
        state = Run(runs / "long").newest()[0].state()
        assert process.returncode == 130 and "everything is saved" in said and 0 < state["step"] < 1500
        assert get(asked, "/figures?run=long")["state"] == "stopped"
        subprocess.run([*command[:4], "--resume", str(runs / "long")], check=True, capture_output=True)
        assert get(asked, "/figures?run=long")["state"] == "finished"
    finally:
        process.kill()
        shutil.rmtree(runs / "long", ignore_errors=True)


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=300), st.integers(2, 40))
def test_thinned_curves_keep_the_least_and_the_greatest(losses: list[float], most: int) -> None:
    records = [{"step": step, "loss": loss} for step, loss in enumerate(losses)]
    kept = downsample(records, most)
    assert len(kept) <= max(most, len(losses) if len(losses) <= most else 0)
    assert [each["step"] for each in kept] == sorted({each["step"] for each in kept})
    assert {min(losses), max(losses)} <= {each["loss"] for each in kept}


def curve(losses: list[float | None], skipped: list[int] | None = None) -> list[dict[str, object]]:
    counts = skipped or [0] * len(losses)
    return [
        {"step": 10 * at, "loss": loss, "skipped": count}
        for at, (loss, count) in enumerate(zip(losses, counts, strict=True), start=1)
    ]


def looks(*losses: float) -> list[dict[str, object]]:
    return [{"step": 100 * at, "seconds": 1.0, "nats per token": loss} for at, loss in enumerate(losses, start=1)]


def test_a_calm_run_gives_no_alert() -> None:
    falling = [5 / (1 + 0.05 * at) + 0.01 * (at % 3) for at in range(200)]
    assert alerts(curve(falling), looks(4, 3, 2.5, 2.2, 2.1, 2.0)) == []
    assert alerts([], []) == []


def test_a_jump_of_the_loss_is_told_once_with_its_step() -> None:
    losses = [3 - 0.01 * at + 0.02 * (at % 2) for at in range(60)]
    losses[40:43] = [6.0, 7.0, 5.0]
    (alert,) = alerts(curve(losses), looks(3, 2))
    assert (alert.kind, alert.step) == ("spike", 410) and "to 6" in alert.text


def test_skipped_steps_are_counted() -> None:
    (alert,) = alerts(curve([3.0, None, 2.9, None], [0, 4, 4, 9]), [])
    assert (alert.kind, alert.step) == ("not finite", 20) and "9 steps were skipped" in alert.text


def test_over_fitting_is_told_from_the_best_step() -> None:
    (alert,) = alerts(curve([3.0, 2.0, 1.0, 0.5] * 10), looks(3, 2, 2.1, 2.4))
    assert (alert.kind, alert.step) == ("over-fitting", 200) and "from 2 to 2.4" in alert.text


def test_a_plateau_is_a_loss_that_no_longer_moves_either_way() -> None:
    (alert,) = alerts([], looks(4, 2, 1.001, 1.0, 1.002, 1.001, 0.9995))
    assert (alert.kind, alert.step) == ("plateau", 300)
    assert json.dumps(alert._asdict())


def test_numbers_that_are_none_are_left_out() -> None:
    assert alerts(curve([None, None]), [{"step": 1, "nats per token": nan}]) == []
