"""Damage anywhere in a run: each use gives the same result, a warning, or an error that names a file."""

import os
import random
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from penwright.errors import PenwrightError, PenwrightWarning
from penwright.run.folder import Run
from penwright.training.observers import Observer
from penwright.workflows.evaluate import evaluate
from penwright.workflows.export import export as export_run
from penwright.workflows.load import load
from penwright.workflows.optimize import calibrate
from penwright.workflows.plan import prepare
from penwright.workflows.resume import resume
from penwright.workflows.train import train

N_DAMAGES = int(os.environ.get("PENWRIGHT_DAMAGES", "60"))  # damages per kind of run
SIZES = {"d_model": 16, "n_layers": 1, "n_heads": 1, "context_length": 32}


class IntactRun(NamedTuple):
    """An undamaged run, and the result of each use."""

    folder: Path
    results: dict[str, object]


def generate(folder: Path) -> object:
    return load(folder).generate("It was", seed=1, min_new_tokens=10, max_new_tokens=12)[0].text


def classify(folder: Path) -> object:
    return str(load(folder).classify(["good great day", "bad awful night"]))


def evaluate_run(folder: Path) -> object:
    return str(evaluate(folder))


def calibrate_run(folder: Path) -> object:
    return str(calibrate(folder))


class WarningObserver(Observer):
    """An observer that turns messages about skipped checkpoints into warnings."""

    def message(self, text: str) -> None:
        if "; skipped " in text:
            warnings.warn(text, PenwrightWarning, stacklevel=1)


def generate_from_first_checkpoint(folder: Path) -> object:
    return generate(folder / "checkpoints" / "first")


def resume_run(folder: Path) -> object:
    resume(folder, {"training": {"steps": 1}}, [WarningObserver()])
    return {name: tensor.sum().item() for name, tensor in Run(folder).checkpoints.newest()[0].weights().items()}


def export(folder: Path) -> object:
    output = folder.with_name(f"{folder.name}-exported")
    try:
        export_run(folder, "huggingface", output)
        return {path.name: path.read_bytes() for path in output.iterdir()}
    finally:
        shutil.rmtree(output, ignore_errors=True)


Use = Callable[[Path], object]
USES: dict[str, tuple[Use, ...]] = {
    "writer": (generate, generate, generate_from_first_checkpoint, evaluate_run, export, resume_run),
    "classifier": (classify, classify, calibrate_run),
}


@pytest.fixture(scope="module")
def intact_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, IntactRun]:
    """A writer and a classifier, trained for two steps, beside their texts."""
    folder = tmp_path_factory.mktemp("sound")
    novel = "".join(f"It was a dark night, the {n}th.\n" for n in range(300))
    rows = "".join(
        f"{'good great day' if n % 2 else 'bad awful night'} {n}\t{'yes' if n % 2 else 'no'}\n" for n in range(80)
    )
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PENWRIGHT_CACHE", str(folder / "cache"))
        Path("novel.txt").write_text(novel, "utf-8")
        Path("rows.tsv").write_text(rows, "utf-8")
        for kind, task, text in (("writer", "generate", "novel.txt"), ("classifier", "classify", "rows.tsv")):
            data = {"train": [text]} if kind == "writer" else {"train": [text], "text": "1", "label": "2"}
            data = {name: int(each) if str(each).isdigit() else each for name, each in data.items()}
            settings = {"task": task, "data": data, "model": SIZES, "tokenizer": {"type": "characters"}}
            train(prepare({**settings, "training": {"steps": 2, "evaluate_every": 1, "threads": 1}}), Path(kind))
            if kind == "classifier":
                calibrate(Path(kind))
            found[kind] = IntactRun(folder / kind, {})
        for kind, uses in USES.items():
            for use in dict.fromkeys(uses):
                shutil.copytree(kind, "copy")
                found[kind].results[use.__name__] = use(Path("copy"))
                shutil.rmtree("copy")
    return found


def damage(folder: Path, rng: random.Random) -> str:
    """Damage one file, or swap two, and return a description."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    files = [path for path in files if "tensorboard" not in path.parts and path.stat().st_size]
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "flip", "flip", "flip", "cut", "zeros", "swap", "key", "garbage"])
    match kind:
        case "flip":
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        case "cut":
            del content[rng.randrange(len(content)) :]
        case "zeros":
            content = bytearray(len(content))
        case "garbage":
            content = bytearray(rng.choice([b"[]", b"{}", b"null", b"[" * 100_000, b'{"best_step": NaN}', b"1e999"]))
        case "key":
            content = bytearray(bytes(content).replace(b'"', b'"x', 1 + rng.randrange(40)))
        case "swap":
            other = rng.choice(files)
            content, theirs = bytearray(other.read_bytes()), bytes(content)
            other.write_bytes(theirs)
            path.write_bytes(content)
            return f"swapped {path} and {other}"
    path.write_bytes(content)
    return f"{kind} in {path}"


@pytest.mark.parametrize("kind", ["writer", "classifier"])
def test_damage_is_reported_or_has_no_effect(
    intact_runs: dict[str, IntactRun], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(intact_runs[kind].folder.parent)
    monkeypatch.setenv("PENWRIGHT_CACHE", str(intact_runs[kind].folder.parent / "cache"))
    rng = random.Random(int(os.environ.get("PENWRIGHT_SEED", "7")))
    copy = Path("copy")
    for _ in range(N_DAMAGES):
        shutil.copytree(intact_runs[kind].folder, copy)
        description, use = damage(copy, rng), rng.choice(USES[kind])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                found = use(copy)
            except PenwrightError as error:
                assert str(copy) in str(error) or "recipe.toml" in str(error) or "novel" in str(error), (
                    description,
                    str(error),
                )
                found = None
        shutil.rmtree(copy)
        is_warned = any(issubclass(warning.category, PenwrightWarning) for warning in caught)
        assert found is None or is_warned or found == intact_runs[kind].results[use.__name__], (
            description,
            use.__name__,
        )


def test_run_can_be_loaded_while_training_saves_and_prunes(tmp_path: Path) -> None:
    run, finished, loaded = Run.create(tmp_path / "run"), threading.Event(), []

    def save(step: int) -> None:
        weights = {"w": torch.full((10,), float(step))}
        run.checkpoints.save(step, weights, {"m": torch.zeros(1)}, {"step": step, "best_step": step - step % 3 or step})
        run.checkpoints.prune(keep=1)

    def keep_saving() -> None:
        for step in range(2, 100):
            save(step)
        finished.set()

    save(1)
    with background(keep_saving):
        while not finished.is_set():
            (checkpoint, weights), warned = run.checkpoints.read_best(lambda each: (each, each.weights()))
            assert warned == [] and weights["w"][0] == checkpoint.step
            assert run.checkpoints.best_step() is not None
            loaded.append(checkpoint.step)
    assert loaded == sorted(loaded) and len(set(loaded)) > 3


@contextmanager
def background(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()
