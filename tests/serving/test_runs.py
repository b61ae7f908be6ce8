"""The routes of the Runs screen, and alerts about training."""

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
from penwright.run import records
from penwright.run.folder import Run
from penwright.run.records import read_end, read_records
from penwright.serving.model_registry import ModelRegistry
from penwright.serving.model_worker import ModelWorker
from penwright.serving.run_records import alerts
from penwright.serving.runs import downsample
from penwright.serving.server import Server
from penwright.serving.settings import ServingSettings

from .conftest import SETTINGS, eventually


def get(call_api: Any, path: str) -> Any:
    status, found = call_api(f"runs{path}")
    assert status == 200, found
    return found


def test_all_runs_beside_the_served_ones_are_listed(call_api: Any, runs: Path) -> None:
    found = {run["name"]: run for run in get(call_api, "")["runs"]}
    assert {"writer", "translator", "classifier"} <= set(found)
    writer = found["writer"]
    assert (writer["task"], writer["state"], writer["step"], writer["total_steps"]) == ("generate", "finished", 6, 6)
    assert writer["model"] == "writer" and writer["scores"]["nats per token"] > 0


def test_figures_equal_the_runs_logs(call_api: Any, runs: Path) -> None:
    found, run = get(call_api, "/figures?run=writer"), Run.open(runs / "writer")
    for columns, name in ((found["steps"], "steps.jsonl"), (found["evaluations"], "metrics.jsonl")):
        for at, record in enumerate(run.records(name)):
            assert {key: columns[key][at] for key in record} == record
    targets, seconds = found["steps"]["targets"][0], found["steps"]["seconds"][0]
    assert found["steps"]["speed"][0] == pytest.approx(targets / seconds)
    assert found["state"] == "finished"


def test_samples_and_settings_equal_the_runs(call_api: Any, runs: Path) -> None:
    run = Run.open(runs / "translator")
    assert get(call_api, "/samples?run=translator")["samples"] == run.records("samples.jsonl")
    settings = get(call_api, "/settings?run=translator")["settings"]
    assert settings["model.d_model"] == 32 and settings["training.steps"] == 6


@pytest.mark.parametrize("name", ["nothing", "../runs/writer", "/etc", "writer/checkpoints", "", "\0"])
def test_unknown_names_and_paths_open_no_run(call_api: Any, name: str) -> None:
    for path in ("figures", "samples", "settings"):
        status, found = call_api(f"runs/{path}?run={quote(name)}")
        assert status == 404 and "has no run" in str(found)


def test_new_and_broken_runs_are_listed_with_the_others(call_api: Any, runs: Path) -> None:
    new_run, broken = runs / "young", runs / "broken"
    for folder in (new_run, broken):
        folder.mkdir()
    (new_run / "recipe.toml").write_bytes((runs / "writer" / "recipe.toml").read_bytes())
    (new_run / "steps.jsonl").write_text('{"step": 10, "seconds": 1.0, "targets": 50, "loss": NaN}\n{"step": 20, "sec')
    (broken / "recipe.toml").write_text("task = 'nothing'")
    found = {run["name"]: run for run in get(call_api, "")["runs"]}
    assert found["young"]["state"] == "training" and not found["young"]["problem"]
    assert "broken" in found["broken"]["problem"] and found["broken"]["task"] is None
    assert get(call_api, "/figures?run=young")["steps"]["loss"] == [None]
    for folder in (new_run, broken):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


DAMAGED_LINES = {
    "a bad byte": b'{"step": 20, "seconds": 1.0, "targets": 9, "loss": 1.0}\xff\n',
    "no object": b"5\n[]\nnull\n",
    "no step": b'{"seconds": 1.0, "targets": 9}\n',
    "no number": b'{"step": "x", "seconds": [], "targets": {}, "loss": "y", "skipped": "z"}\n',
    "a huge number": b'{"step": 1, "seconds": 1.0, "targets": 9, "loss": ' + b"9" * 400 + b"}\n",
    "nested": b"[" * 5000 + b"\n",
    "half of a pair": b'{"step": 1, "seconds": 1.0, "targets": 9, "loss": "\\ud800", "\\ud800": 1}\n',
}


@pytest.mark.parametrize("file", ["steps.jsonl", "metrics.jsonl", "samples.jsonl"])
@pytest.mark.parametrize("damage", DAMAGED_LINES)
def test_damaged_log_line_is_reported_and_hides_no_run(call_api: Any, runs: Path, file: str, damage: str) -> None:
    folder = make_unfinished_run(runs, "hurt")
    try:
        with (folder / file).open("ab") as lines:
            lines.write(DAMAGED_LINES[damage] + b'{"step": 30, "seconds": 2.0, "targets": 90, "loss": 2.0}\n')
        found = {run["name"]: run for run in get(call_api, "")["runs"]}
        assert {"writer", "translator", "classifier", "hurt"} <= set(found)
        assert found["hurt"]["step"] == (30 if file == "steps.jsonl" else 10)
        assert not found["writer"]["problem"]
        figures = get(call_api, "/figures?run=hurt")
        for place in ("samples", "settings"):
            get(call_api, f"/{place}?run=hurt")
        if damage == "a bad byte" and file == "steps.jsonl":
            assert "steps.jsonl: line 2" in found["hurt"]["problem"] and "line 2" in figures["problem"]
    finally:
        shutil.rmtree(folder)


def log_line(step: int) -> bytes:
    return json.dumps({"step": step, "seconds": 1.5 * step, "targets": step, "loss": 3.0}).encode() + b"\n"


def test_end_of_a_log_equals_the_whole_log_whatever_happens_to_it(tmp_path: Path) -> None:
    path, lines = tmp_path / "steps.jsonl", [log_line(step) for step in range(60)]
    contents = [
        b"",
        lines[0][:9],
        b"".join(lines[:3]),
        b"".join(lines[:4])[:-5],  # the process was killed
        b"".join(lines[:4]) + b"damage\n",
        b"".join(lines[:4]) + b"damage\n" + b"".join(lines[5:30]),
        b"".join(lines[:4]) + b"damage\n" + b"".join(lines[5:30]) + b"more\n" * 7,
        b"".join(lines[:4]),  # the run was resumed from an older checkpoint
        b"".join(lines[:2]) + b"".join(lines[20:50]),
        b"".join(lines[:7]) + b"worse\n" + b"".join(lines[7:]),
    ]
    for content in contents:
        path.write_bytes(content)
        end, whole = read_end(path), read_records(path)
        assert end.last == (whole.lines[-1] if whole.lines else {}) and end.problem == whole.problem
    path.unlink()
    assert read_end(path).last == {}


def test_list_of_runs_reads_only_the_new_lines_of_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, parsed = tmp_path / "steps.jsonl", []
    path.write_bytes(b"".join(map(log_line, range(500))))
    read_end(path)
    parse = records.parse_record
    monkeypatch.setattr(records, "parse_record", lambda line, keys: parsed.append(line) or parse(line, keys))
    assert read_end(path).last["step"] == 499 and parsed == []
    with path.open("ab") as log:
        log.write(log_line(500))
    assert read_end(path).last["step"] == 500 and [line + b"\n" for line in parsed] == [log_line(500)]


@pytest.mark.parametrize("state", ["checkpoints/step-abc/x", "checkpoints/step-00000001/state.json"])
def test_damaged_checkpoint_folder_hides_no_run(call_api: Any, runs: Path, state: str) -> None:
    folder = make_unfinished_run(runs, "odd")
    try:
        (folder / state).parent.mkdir(parents=True)
        (folder / state).write_bytes(b"\xff")
        found = {run["name"]: run for run in get(call_api, "")["runs"]}
        assert {"writer", "odd"} <= set(found)
        get(call_api, "/figures?run=odd")
    finally:
        shutil.rmtree(folder)


def test_links_to_files_outside_a_run_are_not_read(call_api: Any, runs: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text('{"step": 7, "nats per token": 2.0}\n')
    folder = make_unfinished_run(runs, "linked")
    try:
        (folder / "metrics.jsonl").unlink(missing_ok=True)
        (folder / "metrics.jsonl").symlink_to(tmp_path / "secret.jsonl")
        found = get(call_api, "/figures?run=linked")
        assert not found["evaluations"] and "is a symbolic link" in found["problem"]
        assert "linked" in {run["name"] for run in get(call_api, "")["runs"]}
    finally:
        shutil.rmtree(folder)


STRANGE_RECIPES = {"deep tables": "a" + ".a" * 2000 + " = 1", "a list as size": "model.size = []"}


@pytest.mark.parametrize("content", STRANGE_RECIPES)
def test_strange_recipe_is_a_problem_of_its_run(call_api: Any, runs: Path, content: str) -> None:
    folder = make_unfinished_run(runs, "strange")
    try:
        (folder / "recipe.toml").write_text(STRANGE_RECIPES[content])
        found = {run["name"]: run for run in get(call_api, "")["runs"]}
        assert "recipe.toml" in found["strange"]["problem"] and not found["writer"]["problem"]
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("state", [{"step": "many", "total_steps": 5}, {"step": 1}, {"step": 1, "total_steps": []}])
def test_state_with_strange_counters_hides_no_run(call_api: Any, runs: Path, state: dict[str, object]) -> None:
    folder = make_unfinished_run(runs, "odd")
    try:
        Run(folder).checkpoints.save(1, {}, {}, state)
        assert {"writer", "odd"} <= {run["name"] for run in get(call_api, "")["runs"]}
    finally:
        shutil.rmtree(folder)


def test_run_name_that_is_not_utf8_is_shown(call_api: Any, runs: Path) -> None:
    try:
        folder = make_unfinished_run(runs, os.fsdecode(b"odd\xff"))
    except OSError:
        pytest.skip("the file system does not allow this name")
    try:
        assert "odd\ufffd" in {run["name"] for run in get(call_api, "")["runs"]}
    finally:
        shutil.rmtree(folder)


def test_deleted_run_is_still_served(runs: Path, tmp_path: Path) -> None:
    names = ("writer", "translator", "classifier")
    for name in names:
        shutil.copytree(runs / name, tmp_path / name)
    limits = ServingSettings(port=0)
    workers = [ModelWorker.load(tmp_path / name, name, limits) for name in names]
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
    server = Server(ModelRegistry(workers), limits)
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


def make_unfinished_run(runs: Path, name: str) -> Path:
    """Make a folder that looks like a run in training."""
    folder = runs / name
    folder.mkdir()
    (folder / "recipe.toml").write_bytes((runs / "writer" / "recipe.toml").read_bytes())
    (folder / "steps.jsonl").write_text('{"step": 10, "seconds": 1.0, "targets": 50, "loss": 3.0}\n')
    return folder


@pytest.mark.parametrize("is_longer", [False, True])
def test_stop_request_reaches_a_run_in_training(call_api: Any, runs: Path, is_longer: bool) -> None:
    """A finished run that trains longer is in training again, although its newest checkpoint is finished."""
    folder = make_unfinished_run(runs, "to-stop")
    if is_longer:
        shutil.copytree(runs / "writer" / "checkpoints", folder / "checkpoints")
    try:
        for _ in range(2):  # a second request is harmless
            status, found = call_api("runs/stop", {"run": "to-stop"})
            assert (status, found) == (200, {"state": "stopping"})
        assert (
            Run(folder).is_stop_requested
            and {run["name"]: run["state"] for run in get(call_api, "")["runs"]}["to-stop"] == "stopping"
        )
        Run(folder).mark_stopped()
        assert get(call_api, "/figures?run=to-stop")["state"] == "stopped"
        assert call_api("runs/stop", {"run": "to-stop"})[0] == 409
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
def test_only_a_run_in_training_can_be_stopped(
    call_api: Any, runs: Path, name: object, status: int, words: str
) -> None:
    before = sorted(runs.rglob("*"))
    found = call_api("runs/stop", {"run": name})
    assert found[0] == status and words in str(found[1])
    assert sorted(runs.rglob("*")) == before


def test_symlink_in_place_of_the_stop_file_is_not_followed(call_api: Any, runs: Path, tmp_path: Path) -> None:
    folder = make_unfinished_run(runs, "linked")
    (folder / "stop").symlink_to(tmp_path / "elsewhere")
    try:
        call_api("runs/stop", {"run": "linked"})
        assert not (tmp_path / "elsewhere").exists()
    finally:
        shutil.rmtree(folder)


def test_stop_request_ends_the_training_process(call_api: Any, runs: Path) -> None:
    changes = {
        "training": {"steps": 100_000, "evaluate_every": 400, "compile": "off"},
        "model": {"d_model": 16, "n_layers": 1},
    }
    changes |= {"tokenizer": {"type": "bytes"}, "decoding": {"max_new_tokens": 8}}
    settings = merge(SETTINGS, changes)
    flags = [f"--set={table}.{key}={value}" for table, values in settings.items() for key, value in values.items()]
    command = [sys.executable, "-m", "penwright", "train", str(runs / "writer.txt"), "--run", str(runs / "long")]
    process = subprocess.Popen([*command, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert eventually(lambda: len(Run(runs / "long").records("steps.jsonl")) > 0, 120)
        assert call_api("runs/stop", {"run": "long"})[0] == 200
        _, output = process.communicate(timeout=60)
        state = Run(runs / "long").checkpoints.newest()[0].state()
        assert process.returncode == 130 and "everything is saved" in output and 0 < state["step"] < 100_000
        assert get(call_api, "/figures?run=long")["state"] == "stopped"
    finally:
        process.kill()
        shutil.rmtree(runs / "long", ignore_errors=True)


@given(st.lists(st.floats(0.1, 9), min_size=1, max_size=300), st.integers(2, 40))
def test_downsampled_curves_keep_minimum_and_maximum(losses: list[float], most: int) -> None:
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


def evaluations(*losses: float) -> list[dict[str, object]]:
    return [{"step": 100 * at, "seconds": 1.0, "nats per token": loss} for at, loss in enumerate(losses, start=1)]


def test_smooth_run_has_no_alert() -> None:
    falling = [5 / (1 + 0.05 * at) + 0.01 * (at % 3) for at in range(200)]
    assert alerts(curve(falling), evaluations(4, 3, 2.5, 2.2, 2.1, 2.0)) == []
    assert alerts([], []) == []


def test_loss_spike_gives_one_alert_with_its_step() -> None:
    losses = [3 - 0.01 * at + 0.02 * (at % 2) for at in range(60)]
    losses[40:43] = [6.0, 7.0, 5.0]
    (alert,) = alerts(curve(losses), evaluations(3, 2))
    assert (alert.kind, alert.step) == ("spike", 410) and "to 6" in alert.text


def test_change_of_the_loss_by_consistency_is_no_spike() -> None:
    steps = curve([3 - 0.01 * at + 0.02 * (at % 2) for at in range(40)] + [5.0] * 40)
    assert [alert.kind for alert in alerts(steps, [])] == ["spike"]
    assert alerts(steps[:40] + [{**each, "consistent": True} for each in steps[40:]], []) == []


def test_text_that_was_not_read_once_is_not_overfitted() -> None:
    rising = evaluations(2, 3)
    assert [alert.kind for alert in alerts([], rising)] == ["over-fitting"]
    assert alerts([], [{**each, "epoch": 0.5} for each in rising]) == []


def test_skipped_steps_are_counted_in_one_alert() -> None:
    (alert,) = alerts(curve([3.0, None, 2.9, None], [0, 4, 4, 9]), [])
    assert (alert.kind, alert.step) == ("not finite", 20) and "9 steps were skipped" in alert.text


def test_overfitting_alert_names_the_best_step() -> None:
    (alert,) = alerts(curve([3.0, 2.0, 1.0, 0.5] * 10), evaluations(3, 2, 2.1, 2.4))
    assert (alert.kind, alert.step) == ("over-fitting", 200) and "from 2 to 2.4" in alert.text


def test_plateau_alert_needs_a_constant_loss() -> None:
    (alert,) = alerts([], evaluations(4, 2, 1.001, 1.0, 1.002, 1.001, 0.9995))
    assert (alert.kind, alert.step) == ("plateau", 300)
    assert json.dumps(alert._asdict())


def test_missing_and_nan_losses_are_ignored() -> None:
    assert alerts(curve([None, None]), [{"step": 1, "nats per token": nan}]) == []
