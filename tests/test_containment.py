"""A run folder from a stranger: its links, pipes and huge files must neither be followed nor harm other files."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penwright.errors import PenwrightError, PenwrightWarning
from penwright.run.checkpoints import step_of
from penwright.run.folder import Run
from penwright.run.stop_file import mark_stopped
from penwright.workflows import api
from penwright.workflows.evaluate import evaluate
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
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps beside its text."""
    place = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("novel.txt").write_text("".join(f"It was a dark night, the {n}th.\n" for n in range(300)), "utf-8")
        sizes = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}
        asked = {"task": "generate", "data": {"train": ["novel.txt"]}, "model": sizes}
        train(prepare({**asked, "training": {"steps": 2, "threads": 1}}), Path("run"))
    return place


@pytest.fixture
def place(trained: Path, tmp_path: Path) -> Path:
    """A copy of the run and its text, beside a person's own files."""
    shutil.copytree(trained, tmp_path / "here")
    mine = tmp_path / "mine" / "step-00000001"
    mine.mkdir(parents=True)
    (mine / "diary.txt").write_text("mine", "utf-8")
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
def test_a_link_in_a_run_is_refused_by_name_and_what_it_points_to_stays(place: Path, part: str, target: str) -> None:
    run, mine = place / "here" / "run", place / "mine"
    replace(run / part, lambda path: path.symlink_to(mine / target))
    before = contents(mine)
    with pytest.raises(PenwrightError, match=rf"{part.rpartition('/')[2]} is a symbolic link.*Delete the link"):
        resume(run, {"training": {"steps": 1}})
    assert contents(mine) == before and (run / part).is_symlink()
    assert sorted(path.name for path in place.iterdir()) == ["here", "mine"]


@pytest.mark.parametrize("part", ["recipe.toml", "tokenizer.json", "corpus.json", "checkpoints"])
@pytest.mark.parametrize("use", [api.load, evaluate])
def test_nothing_is_read_through_a_link(place: Path, part: str, use: Callable[[Path], object]) -> None:
    run = place / "here" / "run"
    (run / part).rename(place / "elsewhere")
    (run / part).symlink_to(place / "elsewhere")
    with pytest.raises(PenwrightError, match=rf"{part} is a symbolic link"):
        use(run)


def test_a_checkpoint_that_is_a_link_is_passed_over_with_a_warning(place: Path) -> None:
    run = Run(place / "here" / "run")
    (run.folder / "checkpoints" / "step-00000009").symlink_to(run.checkpoints()[0].folder)
    checkpoint, (warning,) = run.newest()
    assert checkpoint.step == 2 and "step-00000009 is a symbolic link" in warning


@pytest.mark.parametrize(
    "part", ["recipe.toml", "tokenizer.json", "corpus.json", "checkpoints/step-00000002/state.json"]
)
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(place: Path, part: str) -> None:
    run = place / "here" / "run"
    replace(run / part, os.mkfifo)
    for use in (api.load, lambda folder: resume(folder, {})):
        with pytest.raises((PenwrightError, PenwrightWarning), match=r"is a pipe"):
            use(run)


@pytest.mark.parametrize(
    "part", ["recipe.toml", "tokenizer.json", "corpus.json", "checkpoints/step-00000002/state.json"]
)
def test_a_huge_file_is_not_read(place: Path, part: str) -> None:
    run = place / "here" / "run"
    os.truncate(run / part, 1 << 42)  # sparse: it takes no room
    with pytest.raises(
        (PenwrightError, PenwrightWarning), match=rf"{part.rpartition('/')[2]} (has 4,398,046,511,104 bytes|is damaged)"
    ):
        api.load(run)


def test_a_run_may_be_reached_by_a_link(place: Path) -> None:
    (place / "latest").symlink_to(place / "here" / "run")
    assert api.load(place / "latest")
    resume(place / "latest", {"training": {"steps": 1}})
    assert Run(place / "here" / "run").last_step() == 3


def test_only_names_that_penwright_gives_are_deleted(place: Path) -> None:
    run = Run(place / "here" / "run")
    others = [
        "step-abc",
        "step-1e3",
        "step-12",
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


def test_a_note_is_not_written_through_a_link(place: Path) -> None:
    run = Run(place / "here" / "run")
    (run.folder / "stopped").symlink_to(place / "made")
    with pytest.raises(PenwrightError, match="stopped is a symbolic link"):
        mark_stopped(run)
    assert not (place / "made").exists()


def test_a_link_in_the_place_of_a_temporary_file_is_not_followed(place: Path) -> None:
    run = Run(place / "here" / "run")
    temporary = run.folder / f"recipe.toml.tmp-{os.getpid()}"
    temporary.symlink_to(place / "mine" / "letter.txt")
    run.save_recipe(run.recipe)
    assert (place / "mine" / "letter.txt").read_text("utf-8") == "mine" and not temporary.is_symlink()


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
def test_a_model_of_other_shapes_than_its_weights_is_not_built(
    place: Path, changed: tuple[str, str], is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(place / "here" / "run")
    if is_old:
        forget_origin(run)
    text = (run.folder / "recipe.toml").read_text("utf-8")
    assert changed[0] in text
    without_checksum = text.partition("\n")[2]
    (run.folder / "recipe.toml").write_text(without_checksum.replace(*changed), "utf-8")
    with pytest.raises(PenwrightError, match=r"recipe\.toml"):
        api.load(run.folder)
    monkeypatch.chdir(place / "here")
    with pytest.raises(PenwrightError, match=r"recipe\.toml"):
        resume(run.folder, {"training": {"steps": 1}})


def forget_origin(run: Run) -> None:
    """Make of each checkpoint what an older version would have saved."""
    for checkpoint in run.checkpoints():
        weights, training, state = checkpoint.weights(), checkpoint.training(), checkpoint.state()
        del state["made_with"]
        weights = {name: tensor.clone() for name, tensor in weights.items()}
        run.save_checkpoint(checkpoint.step, weights, {n: t.clone() for n, t in training.items()}, state)


def test_older_checkpoints_that_do_not_say_what_they_were_made_with_still_load(place: Path) -> None:
    run = Run(place / "here" / "run")
    before = api.load(run.folder).generate("It", seed=1, max_new_tokens=20)[0].text
    forget_origin(run)
    assert api.load(run.folder).generate("It", seed=1, max_new_tokens=20)[0].text == before


@pytest.mark.parametrize("old", [True, False])
def test_ids_that_would_exhaust_memory_are_refused(place: Path, old: bool) -> None:
    run = Run(place / "here" / "run")
    if old:
        forget_origin(run)
    text = run.tokenizer_path.read_text("utf-8")
    run.tokenizer_path.write_text(text.replace('"a": ', f'"a": {2**31 - 100}'), "utf-8")
    with pytest.raises(PenwrightError, match=r"tokenizer\.json"):
        api.load(run.folder)


def test_two_swapped_ids_are_noticed(place: Path) -> None:
    run = Run(place / "here" / "run")
    text = run.tokenizer_path.read_text("utf-8")
    a, b = (int(text.split(f'"{letter}": ')[1].split(",")[0]) for letter in "ad")
    swapped = text.replace(f'"a": {a}', f'"a": {b}').replace(f'"d": {b}', f'"d": {a}')
    assert swapped != text
    run.tokenizer_path.write_text(swapped, "utf-8")
    for use in (api.load, lambda folder: resume(folder, {"training": {"steps": 1}})):
        with pytest.raises(
            PenwrightError, match=r"tokenizer\.json is not the file that step-00000002 was trained with"
        ):
            use(run.folder)


def test_a_changed_setting_that_the_weights_depend_on_is_named(place: Path) -> None:
    run = Run(place / "here" / "run")
    positions = run.recipe.model.positions.model_copy(update={"base": 500.0})
    model = run.recipe.model.model_copy(update={"positions": positions})
    run.save_recipe(run.recipe.model_copy(update={"model": model}))
    with pytest.raises(PenwrightError, match=r"model\.positions\.base is 500\.0, but step-00000002.* with 10000\.0"):
        api.load(run.folder)


def test_settings_that_weights_do_not_depend_on_may_change_and_an_edit_by_hand_is_said(place: Path) -> None:
    run = Run(place / "here" / "run")
    resume(run.folder, {"training": {"steps": 1}, "decoding": {"temperature": 0.3}})
    assert api.load(run.folder).defaults.temperature == 0.3
    path = run.folder / "recipe.toml"
    text = path.read_text("utf-8").replace("temperature = 0.3", "temperature = 0.4")
    path.write_text(text, "utf-8")
    with pytest.warns(UserWarning, match=r"recipe\.toml is not as Penwright wrote it"):
        api.load(run.folder)
    path.write_text(text.partition("\n")[2], "utf-8")
    assert api.load(run.folder).defaults.temperature == 0.4


def test_a_link_outside_the_run_does_not_matter(place: Path) -> None:
    (place / "checkpoints").symlink_to(place / "mine")  # beside the folder of the run's text
    assert api.load(place / "here" / "run").kind == "writer"
