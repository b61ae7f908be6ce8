import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import BaseModel, NonNegativeInt
from safetensors.torch import load_file

from penwright.errors import PenwrightError, PenwrightWarning
from penwright.run import checkpoints
from penwright.run.checkpoints import Checkpoint, DamagedCheckpoint, Tensors
from penwright.run.folder import Run
from penwright.storage import write_atomically, write_output

WEIGHTS = {"w": torch.arange(1000.0)}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run")


def save(run: Run, step: int, best_step: int | None = None) -> None:
    run.checkpoints.save(step, WEIGHTS, {"m": torch.zeros(3)}, {"step": step, "best_step": best_step})


def empty_file(run: Run, step: int, name: str) -> None:
    (run.folder / "checkpoints" / f"step-{step:08d}" / name).write_bytes(b"")


def test_checkpoint_round_trips(run: Run) -> None:
    save(run, 7)
    checkpoint, warnings = run.checkpoints.newest()
    assert (checkpoint.step, checkpoint.state(), warnings) == (7, {"step": 7, "best_step": None}, [])
    torch.testing.assert_close(checkpoint.weights()["w"], WEIGHTS["w"])


def test_newest_checkpoint_is_found_by_number_not_by_name(run: Run) -> None:
    save(run, 9_900)
    save(run, 100_000_000)
    assert run.checkpoints.newest()[0].step == 100_000_000


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip a bit", "cut", "empty", "delete"])
def test_damaged_checkpoint_falls_back_to_the_previous_one(run: Run, name: str, damage: str) -> None:
    save(run, 1)
    save(run, 2)
    path = run.checkpoints.all()[-1].folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    changed = {"flip a bit": bytes(content), "cut": bytes(content[:-1]), "empty": b""}.get(damage)
    if changed is None:
        path.unlink()
    elif name == "manifest.json" and damage == "flip a bit":
        path.write_bytes(content.replace(b"{", b"[", 1))
    else:
        path.write_bytes(changed)
    checkpoint, warnings = run.checkpoints.newest()
    assert checkpoint.step == 1
    assert "step-00000002" in warnings[0]


@pytest.mark.parametrize("content", [b"", b"abc", b"\xff" * 8, (90).to_bytes(8, "little") + b"{}", bytes(8)])
def test_weights_without_a_readable_header_are_damaged(run: Run, content: bytes) -> None:
    save(run, 1)
    checkpoint = run.checkpoints.all()[0]
    assert checkpoint.shapes() == {"w": (1000,)}
    (checkpoint.folder / "model.safetensors").write_bytes(content)
    with pytest.raises(DamagedCheckpoint, match=r"model\.safetensors cannot be read"):
        checkpoint.shapes()


def test_run_with_only_damaged_checkpoints_is_refused(run: Run) -> None:
    save(run, 1)
    empty_file(run, 1, "model.safetensors")
    with pytest.raises(PenwrightError, match=r"model\.safetensors is damaged"):
        run.checkpoints.newest()


def test_files_of_another_checkpoint_are_detected(run: Run) -> None:
    save(run, 1)
    run.checkpoints.save(2, {"w": torch.ones(1000)}, {}, {"step": 2})
    one, two = run.checkpoints.all()
    (one.folder / "model.safetensors").write_bytes((two.folder / "model.safetensors").read_bytes())
    with pytest.raises(DamagedCheckpoint, match=r"step-00000001/model\.safetensors"):
        one.verify()


def test_pruning_keeps_the_last_and_the_best(run: Run) -> None:
    for step in range(1, 7):
        save(run, step, best_step=min(step, 2))
    run.checkpoints.prune(keep=2)
    assert [checkpoint.step for checkpoint in run.checkpoints.all()] == [2, 5, 6]
    assert run.checkpoints.best()[0].step == 2


def test_pruning_keeps_the_best_if_the_newest_state_is_damaged(run: Run) -> None:
    for step in range(1, 7):
        save(run, step, best_step=min(step, 2))
    empty_file(run, 6, "state.json")
    run.checkpoints.prune(keep=1)
    assert [checkpoint.step for checkpoint in run.checkpoints.all()] == [2, 6]


def test_best_checkpoint_without_scores_is_the_newest(run: Run) -> None:
    save(run, 1)
    save(run, 2)
    assert run.checkpoints.best_step() is None
    assert (run.checkpoints.best()[0].step, run.checkpoints.best()[1]) == (2, [])


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize(
    ("bests", "damaged", "used"),
    [
        ({2: 2, 5: 2, 6: 2}, 2, 6),  # the best is damaged: the newest
        ({2: 2, 5: 2, 6: 6}, 6, 2),  # the newest is the best and damaged: the best before it
    ],
)
def test_damaged_best_checkpoint_falls_back_to_another_one(
    run: Run, bests: dict[int, int], damaged: int, used: int, name: str
) -> None:
    for step, best in bests.items():
        save(run, step, best)
    empty_file(run, damaged, name)
    checkpoint, warnings = run.checkpoints.best()
    assert checkpoint.step == used
    assert len(warnings) == 1 and f"step-0000000{damaged}" in warnings[0]


def test_missing_best_checkpoint_falls_back_to_the_newest(run: Run) -> None:
    save(run, 5, best_step=2)
    checkpoint, warnings = run.checkpoints.best()
    assert checkpoint.step == 5 and "step-00000002" in warnings[0]


def test_resuming_deletes_newer_damaged_checkpoints(run: Run) -> None:
    for step in (2, 5, 6):
        save(run, step, best_step=min(step, 5))
    empty_file(run, 6, "model.safetensors")
    run.delete_after(run.checkpoints.newest()[0].step)
    assert [checkpoint.step for checkpoint in run.checkpoints.all()] == [2, 5]


def test_partial_checkpoint_of_a_killed_run_is_ignored(run: Run) -> None:
    save(run, 1)
    partial = run.folder / "checkpoints" / "step-00000002.tmp-123"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    assert run.checkpoints.newest()[0].step == 1
    save(run, 2)
    assert not partial.exists()


def test_full_disk_is_reported_and_saved_checkpoints_stay(run: Run) -> None:
    save(run, 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(PenwrightError, match="could not be saved"):
            save(run, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert run.checkpoints.newest()[0].step == 1
    assert [path.name for path in (run.folder / "checkpoints").iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("write", [write_atomically, lambda path, text: write_output(path, text.encode())])
def test_atomic_write_keeps_the_old_file_when_the_disk_is_full(
    tmp_path: Path, write: Callable[[Path, str], None]
) -> None:
    path = tmp_path / "a.json"
    write(path, "old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(PenwrightError, match="could not be written"):
            write(path, "new" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_output_to_a_link_or_a_pipe_does_not_replace_it(tmp_path: Path) -> None:
    link, pipe, target = tmp_path / "link", tmp_path / "pipe", tmp_path / "target"
    link.symlink_to(target)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for path in (link, pipe):
        write_output(path, b"text")
    assert link.is_symlink() and pipe.is_fifo() and target.read_bytes() == os.read(reader, 10) == b"text"
    os.close(reader)


def test_new_run_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(PenwrightError, match="is not empty"):
        Run.create(tmp_path)


@pytest.mark.parametrize("unfinished", ["recipe.toml.tmp-17", "corpus.json.tmp-17"])
def test_run_that_was_killed_while_its_first_files_were_written_can_begin_again(run: Run, unfinished: str) -> None:
    (run.folder / unfinished).write_text("{")
    assert Run.create(run.folder).folder == run.folder


def test_missing_run_names_the_runs_nearby(tmp_path: Path) -> None:
    Run.create(tmp_path / "novels")
    (tmp_path / "novels" / "recipe.toml").write_text("")
    with pytest.raises(PenwrightError, match=r"Did you mean .*novels\?"):
        Run.open(tmp_path / "novel")
    with pytest.raises(PenwrightError, match=r"Runs here: .*novels"):
        Run.open(tmp_path / "translator")


def test_missing_run_is_also_sought_in_the_folder_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Run.create(Path("runs/novel"))
    Path("runs/novel/recipe.toml").write_text("")
    with pytest.raises(PenwrightError, match=r"Did you mean runs/novel\?"):
        Run.open(Path("novel"))


def test_records_after_the_resumed_step_are_deleted(run: Run) -> None:
    for step in (10, 20, 30):
        run.append("metrics.jsonl", {"step": step, "loss": 1 / step})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 40, "lo')  # killed in the middle of a line
    run.delete_after(20)
    assert [record["step"] for record in run.records("metrics.jsonl")] == [10, 20]
    assert all(json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().strip().split("\n"))


def test_checkpoint_that_is_deleted_while_it_is_loaded_is_replaced_by_another(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(path: Path) -> Tensors:
        if path.parent.name.endswith("2"):
            shutil.rmtree(path.parent)
            raise RuntimeError(f"unable to open file <{path}> in read-only mode")  # as torch does
        return load_file(path)

    monkeypatch.setattr(checkpoints, "load_file", load)
    save(run, 1)
    save(run, 2)
    weights, warnings = run.checkpoints.read_newest(Checkpoint.weights)
    assert torch.equal(weights["w"], WEIGHTS["w"]) and not warnings


def test_resuming_deletes_partial_checkpoints(run: Run) -> None:
    save(run, 1)
    unfinished = run.folder / "checkpoints" / "step-00000002.tmp-17"
    unfinished.mkdir()
    run.delete_after(1)
    assert not unfinished.exists() and [checkpoint.step for checkpoint in run.checkpoints.all()] == [1]


def test_finding_is_discarded_when_the_best_checkpoint_changes(run: Run) -> None:
    assert run.finding("found.json", ExampleFinding) is None
    save(run, 1, best_step=1)
    assert run.save_finding("found.json", {"head": 3}, measured=1)
    assert run.finding("found.json", ExampleFinding) == ExampleFinding(head=3)
    save(run, 2, best_step=2)
    assert run.finding("found.json", ExampleFinding) is None


def test_only_one_process_trains_a_run(run: Run) -> None:
    pytest.importorskip("fcntl", reason="the system has no fcntl locks")
    with run.lock(), pytest.raises(PenwrightError, match="another process"), run.lock():
        pass
    with run.lock():
        pass


def test_appending_to_a_full_disk_is_reported(run: Run) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5, before[1]))
    try:
        with pytest.raises(PenwrightError, match=r"could not be written.*intact"):
            run.append("steps.jsonl", {"step": 1})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_run_folder_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(PenwrightError, match="is a file"):
        Run.create(tmp_path / "file")
    with pytest.raises(PenwrightError, match="cannot be created"):
        Run.create(tmp_path / "file" / "run")


def test_checkpoint_files_have_default_permissions(run: Run) -> None:
    save(run, 1)
    modes = {path.stat().st_mode for path in run.checkpoints.newest()[0].folder.iterdir()}
    (run.folder / "plain").touch()
    assert modes == {(run.folder / "plain").stat().st_mode}


def test_non_utf8_file_names_are_saved_in_json(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_json("corpus.json", {"files": ["caf\udce9.txt", "żółw.txt"]})
    assert run.read_json("corpus.json") == {"files": ["caf\udce9.txt", "żółw.txt"]}
    with pytest.raises(PenwrightError, match="cannot be saved as UTF-8"):
        write_atomically(tmp_path / "recipe.toml", "caf\udce9.txt")


class ExampleFinding(BaseModel):
    """The content of the findings in these tests."""

    head: NonNegativeInt


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1, 2]",
        b"[" * 100_000,
        b'{"head": "three", "best_step": 1}',
        b'{"head": NaN, "best_step": 1}',
        b'{"best_step": 1}',
        b'{"head": 4, "best_step": 1, "sha256": "that of another content"}',
    ],
)
def test_damaged_finding_is_ignored_with_a_warning(run: Run, content: bytes) -> None:
    save(run, 1, best_step=1)
    (run.folder / "found.json").write_bytes(content)
    with pytest.warns(PenwrightWarning, match=r"found\.json is damaged and is not used"):
        assert run.finding("found.json", ExampleFinding) is None


def test_finding_without_a_checksum_is_read(run: Run) -> None:
    save(run, 1, best_step=1)
    (run.folder / "found.json").write_text('{"head": 3, "best_step": 1}')
    assert run.finding("found.json", ExampleFinding) == ExampleFinding(head=3)


def test_modified_finding_is_ignored_with_a_warning(run: Run) -> None:
    save(run, 1, best_step=1)
    run.save_finding("found.json", {"head": 3}, measured=1)
    path = run.folder / "found.json"
    path.write_text(path.read_text().replace('"head": 3', '"head": 2'))
    with pytest.warns(PenwrightWarning, match="its content has changed since it was saved"):
        assert run.finding("found.json", ExampleFinding) is None


@pytest.mark.parametrize(
    "manifest",
    [
        b"[]",
        b"{}",
        b'{"files": []}',
        b'{"step": 1, "files": {"state.json": {"bytes": "5", "sha256": 3}}}',
        b'{"step": 1, "files": {"../../other": {"bytes": 5, "sha256": "a"}}}',
        b'{"step": NaN, "files": {}}',
    ],
)
def test_invalid_manifest_makes_a_damaged_checkpoint(run: Run, manifest: bytes) -> None:
    save(run, 1)
    save(run, 2)
    (run.checkpoints.all()[1].folder / "manifest.json").write_bytes(manifest)
    checkpoint, (warning,) = run.checkpoints.newest()
    assert checkpoint.step == 1 and "step-00000002" in warning and run.checkpoints.best()[0].step == 1


def test_renamed_checkpoint_is_detected(run: Run) -> None:
    save(run, 1)
    save(run, 2)
    run.checkpoints.all()[0].folder.rename(run.folder / "checkpoints" / "step-00000009")
    checkpoint, (warning,) = run.checkpoints.newest()
    assert checkpoint.step == 2 and "step-00000009" in warning


def test_invalid_record_lines_are_skipped(run: Run) -> None:
    lines = [b'{"step": 1}', b'{"step": "2"}', b"[3]", b"\xff\xfe", b'{"loss": 4}', b"[" * 100_000, b'{"step": 5}']
    (run.folder / "metrics.jsonl").write_bytes(b"\n".join(lines))
    assert [record["step"] for record in run.records("metrics.jsonl")] == [1, 5]
    run.delete_after(4)
    assert (run.folder / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'


def test_sample_without_its_text_is_skipped(run: Run) -> None:
    run.append("samples.jsonl", {"step": 1, "prompt": None})
    run.append("samples.jsonl", {"step": 2, "prompt": "It was", "completion": " dark"})
    assert [record["step"] for record in run.records("samples.jsonl")] == [2]


def test_recipe_of_an_older_version_is_read_without_a_warning(run: Run, recwarn: pytest.WarningsRecorder) -> None:
    data = 'task = "generate"\n[data]\ntrain = ["a.txt"]\n[model]\n'
    recipe = f"{data}[training]\nsteps = 1\naverage = 0.5\n[decoding]\noutlook = 2.0\n"
    (run.folder / "recipe.toml").write_text(recipe, encoding="utf-8")
    assert run.recipe.training.ema_decay == 0.5 and run.recipe.decoding.beam_patience == 2.0
    assert not [each for each in recwarn if issubclass(each.category, PenwrightWarning)]
