"""Run folders from an untrusted source: links, pipes and huge files are refused and harm no other files."""

import json
import os
import shutil
from collections.abc import Callable
from math import inf
from pathlib import Path

import pytest

from penwright.errors import PenwrightError, PenwrightWarning
from penwright.run.checkpoints import step_of
from penwright.run.folder import Run
from penwright.workflows.evaluate import evaluate
from penwright.workflows.load import load
from penwright.workflows.plan import prepare
from penwright.workflows.resume import resume
from penwright.workflows.train import train

PARTS = [
    "lock",
    "stop",
    "stopped",
    "recipe.toml",
    "tokenizer.json",
    "corpus.json",
    "steps.jsonl",
    "metrics.jsonl",
    "samples.jsonl",
    "checkpoints",
    "checkpoints/first",
    "checkpoints/step-00000002",
    "checkpoints/step-00000009",
    "checkpoints/step-00000002/state.json",
    "checkpoints/step-00000002/manifest.json",
    "checkpoints/step-00000002/model.safetensors",
    "tensorboard",
]


@pytest.fixture(scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of two steps and of its text."""
    parent = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(parent)
        Path("novel.txt").write_text("".join(f"It was a dark night, the {n}th.\n" for n in range(300)), "utf-8")
        sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
        settings = {"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes}
        train(prepare({**settings, "training": {"steps": 2, "threads": 1}}), Path("run"))
    return parent


@pytest.fixture
def parent(trained_run: Path, tmp_path: Path) -> Path:
    """A copy of the run and its text, beside private files."""
    shutil.copytree(trained_run, tmp_path / "here")
    private = tmp_path / "mine" / "step-00000001"
    private.mkdir(parents=True)
    (private / "diary.txt").write_text("mine", "utf-8")
    (tmp_path / "mine" / "letter.txt").write_text("mine", "utf-8")
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def replace(path: Path, make: Callable[[Path], object]) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("target", ["letter.txt", "", "nothing"], ids=["a file", "a folder", "nothing"])
def test_symlink_in_a_run_is_refused_and_its_target_unchanged(parent: Path, part: str, target: str) -> None:
    run, private = parent / "here" / "run", parent / "mine"
    replace(run / part, lambda path: path.symlink_to(private / target))
    before = contents(private)
    with pytest.raises(PenwrightError, match=rf"{part.rpartition('/')[2]} is a symbolic link.*Delete the link"):
        resume(run, {"training": {"steps": 1}})
    assert contents(private) == before and (run / part).is_symlink()
    assert sorted(path.name for path in parent.iterdir()) == ["here", "mine"]


@pytest.mark.parametrize("part", ["recipe.toml", "tokenizer.json", "corpus.json", "checkpoints"])
@pytest.mark.parametrize("use", [load, evaluate])
def test_nothing_is_read_through_a_symlink(parent: Path, part: str, use: Callable[[Path], object]) -> None:
    run = parent / "here" / "run"
    (run / part).rename(parent / "elsewhere")
    (run / part).symlink_to(parent / "elsewhere")
    with pytest.raises(PenwrightError, match=rf"{part} is a symbolic link"):
        use(run)


def test_symlinked_checkpoint_is_skipped_with_a_warning(parent: Path) -> None:
    run = Run(parent / "here" / "run")
    (run.folder / "checkpoints" / "step-00000009").symlink_to(run.checkpoints.all()[0].folder)
    checkpoint, (warning,) = run.checkpoints.newest()
    assert checkpoint.step == 2 and "step-00000009 is a symbolic link" in warning


@pytest.mark.parametrize(
    "part", ["recipe.toml", "tokenizer.json", "corpus.json", "checkpoints/step-00000002/state.json"]
)
def test_named_pipe_in_place_of_a_file_is_refused(parent: Path, part: str) -> None:
    run = parent / "here" / "run"
    replace(run / part, os.mkfifo)
    for use in (load, lambda folder: resume(folder, {})):
        with pytest.raises((PenwrightError, PenwrightWarning), match=r"is a pipe"):
            use(run)


@pytest.mark.parametrize(
    "part", ["recipe.toml", "tokenizer.json", "corpus.json", "checkpoints/step-00000002/state.json"]
)
def test_huge_file_is_refused(parent: Path, part: str) -> None:
    run = parent / "here" / "run"
    os.truncate(run / part, 1 << 42)  # sparse, so it takes no disk space
    with pytest.raises(
        (PenwrightError, PenwrightWarning), match=rf"{part.rpartition('/')[2]} (has 4,398,046,511,104 bytes|is damaged)"
    ):
        load(run)


def test_impossible_values_in_small_files_are_refused_or_ignored(parent: Path) -> None:
    run = parent / "here" / "run"
    manifest = run / "checkpoints" / "first" / "manifest.json"
    manifest.parent.mkdir(exist_ok=True)
    manifest.write_text(json.dumps({"step": inf}))
    assert Run(run).checkpoints.first() is None
    for terms in ([["", ["x"]]], [["x", []]], [["x", [""]]]):
        record = json.loads((run / "corpus.json").read_text())
        (run / "corpus.json").write_text(json.dumps(record | {"new_terms": terms}))
        with pytest.raises(PenwrightError, match=r"corpus\.json"):
            load(run)


def test_run_folder_itself_may_be_a_symlink(parent: Path) -> None:
    (parent / "latest").symlink_to(parent / "here" / "run")
    assert load(parent / "latest")
    resume(parent / "latest", {"training": {"steps": 1}})
    assert Run(parent / "here" / "run").checkpoints.last_step() == 3


def test_pruning_deletes_only_penwrights_own_names(parent: Path) -> None:
    run = Run(parent / "here" / "run")
    others = [
        "step-abc",
        "step-1e3",
        "step-12",
        "step-000000012",
        "step-00000009.backup",
        "step-00000009.tmp-mine",
        "mine.tmp-1",
        "notes",
    ]
    for name in others:
        (run.folder / "checkpoints" / name).mkdir()
    (run.folder / "checkpoints" / "step-00000009.tmp-17").mkdir()
    resume(run.folder, {"training": {"steps": 3, "keep": 1}})
    left = {path.name for path in (run.folder / "checkpoints").iterdir()}
    assert set(others) <= left and "step-00000009.tmp-17" not in left
    assert all(step_of(name) is None for name in others)


def test_stopped_file_is_not_written_through_a_symlink(parent: Path) -> None:
    run = Run(parent / "here" / "run")
    (run.folder / "stopped").symlink_to(parent / "made")
    with pytest.raises(PenwrightError, match="stopped is a symbolic link"):
        run.mark_stopped()
    assert not (parent / "made").exists()


def test_symlink_in_place_of_a_temporary_file_is_not_followed(parent: Path) -> None:
    run = Run(parent / "here" / "run")
    temporary = run.folder / f"recipe.toml.tmp-{os.getpid()}"
    temporary.symlink_to(parent / "mine" / "letter.txt")
    run.save_recipe(run.recipe)
    assert (parent / "mine" / "letter.txt").read_text("utf-8") == "mine" and not temporary.is_symlink()


@pytest.mark.parametrize(
    "changed",
    [
        ("d_model = 16", "d_model = 65536"),
        ("d_ff = 64", "d_ff = 2000000000"),
        ("n_layers = 1", "n_layers = 1000000000"),
        ("d_model = 16", f"d_model = {10**30}"),
    ],
)
@pytest.mark.parametrize("is_old", [True, False])
def test_recipe_that_does_not_match_the_weights_is_refused(
    parent: Path, changed: tuple[str, str], is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(parent / "here" / "run")
    if is_old:
        forget_origin(run)
    text = (run.folder / "recipe.toml").read_text("utf-8")
    assert changed[0] in text
    without_checksum = text.partition("\n")[2]
    (run.folder / "recipe.toml").write_text(without_checksum.replace(*changed), "utf-8")
    with pytest.raises(PenwrightError, match=r"recipe\.toml"):
        load(run.folder)
    monkeypatch.chdir(parent / "here")
    with pytest.raises(PenwrightError, match=r"recipe\.toml"):
        resume(run.folder, {"training": {"steps": 1}})


def forget_origin(run: Run) -> None:
    """Remove from each checkpoint the record of its files, which older versions did not save."""
    for checkpoint in run.checkpoints.all():
        weights, training, state = checkpoint.weights(), checkpoint.training(), checkpoint.state()
        del state["made_with"]
        weights = {name: tensor.clone() for name, tensor in weights.items()}
        run.checkpoints.save(checkpoint.step, weights, {n: t.clone() for n, t in training.items()}, state)


def test_older_checkpoints_without_a_record_of_their_files_load(parent: Path) -> None:
    run = Run(parent / "here" / "run")
    before = load(run.folder).generate("It", seed=1, max_new_tokens=20)[0].text
    forget_origin(run)
    assert load(run.folder).generate("It", seed=1, max_new_tokens=20)[0].text == before


@pytest.mark.parametrize("old", [True, False])
def test_huge_token_ids_are_refused(parent: Path, old: bool) -> None:
    run = Run(parent / "here" / "run")
    if old:
        forget_origin(run)
    text = run.tokenizer_path.read_text("utf-8")
    run.tokenizer_path.write_text(text.replace('"a": ', f'"a": {2**31 - 100}'), "utf-8")
    with pytest.raises(PenwrightError, match=r"tokenizer\.json"):
        load(run.folder)


def test_swapped_token_ids_are_detected(parent: Path) -> None:
    run = Run(parent / "here" / "run")
    text = run.tokenizer_path.read_text("utf-8")
    a, b = (int(text.split(f'"{letter}": ')[1].split(",")[0]) for letter in "ad")
    swapped = text.replace(f'"a": {a}', f'"a": {b}').replace(f'"d": {b}', f'"d": {a}')
    assert swapped != text
    run.tokenizer_path.write_text(swapped, "utf-8")
    for use in (load, lambda folder: resume(folder, {"training": {"steps": 1}})):
        with pytest.raises(
            PenwrightError, match=r"tokenizer\.json is not the file that step-00000002 was trained with"
        ):
            use(run.folder)


def test_changed_setting_that_affects_the_weights_is_refused(parent: Path) -> None:
    run = Run(parent / "here" / "run")
    positions = run.recipe.model.positions.model_copy(update={"base": 500.0})
    model = run.recipe.model.model_copy(update={"positions": positions})
    run.save_recipe(run.recipe.model_copy(update={"model": model}))
    with pytest.raises(PenwrightError, match=r"model\.positions\.base is 500\.0, but step-00000002.* with 10000\.0"):
        load(run.folder)


def test_other_settings_may_change_and_manual_edits_give_a_warning(parent: Path) -> None:
    run = Run(parent / "here" / "run")
    resume(run.folder, {"training": {"steps": 1}, "decoding": {"temperature": 0.3}})
    assert load(run.folder).defaults.temperature == 0.3
    path = run.folder / "recipe.toml"
    text = path.read_text("utf-8").replace("temperature = 0.3", "temperature = 0.4")
    path.write_text(text, "utf-8")
    with pytest.warns(UserWarning, match=r"recipe\.toml has changed since Penwright wrote it"):
        load(run.folder)
    path.write_text(text.partition("\n")[2], "utf-8")
    assert load(run.folder).defaults.temperature == 0.4


def test_symlink_outside_the_run_is_ignored(parent: Path) -> None:
    (parent / "checkpoints").symlink_to(parent / "mine")  # outside the folder of the run and its text
    assert load(parent / "here" / "run").kind == "writer"
