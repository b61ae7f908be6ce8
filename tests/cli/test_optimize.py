"""What `train` and `optimize` choose for fast decoding is used from then on, and can be overruled."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from penwright.decoding import engine
from penwright.errors import PenwrightError, PenwrightWarning
from penwright.generation.generator import Generator
from penwright.model.quantised import Int8Linear
from penwright.run.folder import Run
from penwright.translation.translator import Translator
from penwright.workflows import api, background, optimize

from .conftest import QUICK, Command


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The models whose steps were asked for; compiling itself takes a minute, and has a test of its own."""
    models: list[object] = []
    monkeypatch.setattr(optimize, "compile_steps", lambda model, say: models.append(model))
    return models


@pytest.mark.parametrize("run", ["writer", "translator"])
def test_an_optimized_run_is_used_in_the_precision_that_was_as_good(
    penwright: Command, runs: Path, tmp_path: Path, compiled: list[object], run: str
) -> None:
    folder = tmp_path / run
    shutil.copytree(runs / run, folder)
    nats = json.loads(penwright("optimize", folder, "--json").stdout)
    assert list(nats) == optimize.fastest_first()
    chosen = json.loads((folder / "quickened.json").read_text(encoding="utf-8"))["precision"]
    assert nats[chosen] <= nats["float32"] + 0.005
    assert len(compiled) == 1
    assert penwright("evaluate", folder, "--precision", "int8").returncode == 0


@pytest.fixture
def in_int8(penwright: Command, runs: Path, tmp_path: Path, compiled: list[object]) -> Path:
    """A writer that is optimized so, but for its steps."""
    folder = tmp_path / "run"
    shutil.copytree(runs / "writer", folder)
    assert penwright("optimize", folder, "--precision", "int8").returncode == 0
    return folder


def test_an_optimized_run_is_measured_as_it_is_used(penwright: Command, in_int8: Path) -> None:
    scores = {}
    for asked in ((), ("--precision", "int8"), ("--precision", "float32")):
        done = penwright("evaluate", in_int8, "--json", *asked)
        assert ("evaluating in int8" in done.stderr) == (asked == ())
        scores[asked[-1:]] = done.stdout
    assert scores[()] == scores["int8",] != scores["float32",]


def test_a_precision_that_is_asked_for_is_taken_and_given_up_again(penwright: Command, in_int8: Path) -> None:
    with pytest.warns(PenwrightWarning, match="penwright optimize"):  # nothing was really compiled
        quick = api.load(in_int8)
    exact = api.load(in_int8, precision="float32")
    assert isinstance(quick, Generator) and isinstance(exact, Generator)
    assert isinstance(quick.model.output, Int8Linear) and not isinstance(exact.model.output, Int8Linear)
    done = penwright("generate", in_int8, "It", "--max-new-tokens", 5)
    assert (
        done.returncode == 0
        and done.stdout.startswith("It")
        and done.stderr.startswith(f"penwright: {in_int8} is slower")
    )


def test_int8_costs_no_more_than_a_hundredth_of_a_nat(runs: Path, compiled: list[object]) -> None:
    for run in ("writer", "translator"):
        found = {each: api.evaluate(runs / run, precision=each)[-1].value for each in ("float32", "int8")}
        assert abs(found["int8"] - found["float32"]) < 0.02, run


def test_a_classifier_has_nothing_to_optimize(penwright: Command, runs: Path) -> None:
    done = penwright("optimize", runs / "classifier")
    assert done.returncode == 2 and "no decoding steps" in done.stderr


@pytest.mark.parametrize(("allowed", "chosen"), [(1.0, "int8"), (-1.0, "float32")])
def test_training_chooses_int8_only_if_the_loss_stays(
    penwright: Command, corpora: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, allowed: float, chosen: str
) -> None:
    monkeypatch.setattr(optimize, "INT8_FROM", 0)
    monkeypatch.setattr(optimize, "fastest_first", lambda: ["int8", "float32"])
    monkeypatch.setattr(optimize, "MAX_LOSS_INCREASE", allowed)
    done = penwright("train", corpora / "novel.txt", "--steps", 2, "--run", tmp_path / "run", *QUICK)
    assert done.returncode == 0 and f"decoding uses {chosen}" in done.stderr
    assert api.kept_precision(tmp_path / "run") == chosen
    generator = api.load(tmp_path / "run", precision="float32")
    assert isinstance(generator, Generator) and not isinstance(generator.model.output, Int8Linear)


def test_small_models_decode_in_float32(runs: Path) -> None:
    assert not (runs / "writer" / "quickened.json").exists()


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """The commands of the processes that would compile in the background."""
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: commands.append(command))
    monkeypatch.setattr(background, "FEWEST_PARAMETERS", 0)
    monkeypatch.setattr(background.toolchain, "missing_requirement", str)
    monkeypatch.setenv(background.SWITCH, "on")
    monkeypatch.setenv("PENWRIGHT_CACHE", str(tmp_path))  # nothing is compiled there yet
    background.toolchain.trusted_folder()  # creates the folder
    return commands


@pytest.mark.parametrize("name", ["writer", "translator"])
def test_the_first_use_compiles_in_the_background(
    runs: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(runs)  # the process starts in another folder
    with pytest.warns(PenwrightWarning, match="compiled in the background"):
        api.load(name)
    assert [command[-3:] for command in started] == [[str(runs / name), "float32", "1"]]


def test_compiling_in_the_background_draws_no_random_numbers(runs: Path, started: list[list[str]]) -> None:
    before = torch.get_rng_state()
    assert background.compile_in_background(Run.open(runs / "writer"), "float32") and started
    assert torch.equal(torch.get_rng_state(), before)


def test_nothing_is_compiled_if_switched_off_or_while_another_process_compiles(
    runs: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.open(runs / "writer")
    folder = background.toolchain.trusted_folder()
    with (folder / background.LOCK).open("w") as lock:
        background.fcntl.flock(lock, background.fcntl.LOCK_EX)
        assert background.is_compiling() and not background.compile_in_background(run, "float32")
    assert not background.is_compiling()
    monkeypatch.setenv(background.SWITCH, "off")
    assert not background.compile_in_background(run, "float32") and not started


def test_the_background_compiles_the_shape_that_is_loaded_and_gives_up_after_an_error(
    runs: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, shapes = Run.open(runs / "translator"), []

    def fail(model: engine.DecoderOnly) -> None:
        shapes.append(engine.shape_key(model))
        raise PenwrightError("no space left")

    monkeypatch.setattr(engine, "compile_steps", fail)
    with pytest.raises(PenwrightError, match="no space"):
        background.compile_now(run, "float32")
    monkeypatch.setenv(background.SWITCH, "off")
    translator = api.load(run.folder)
    monkeypatch.setenv(background.SWITCH, "on")
    assert isinstance(translator, Translator) and shapes == [engine.shape_key(translator.model)]
    assert not background.compile_in_background(run, "float32") and not started
    assert background.compile_in_background(run, "int8")  # another shape


def test_a_running_process_uses_steps_that_are_compiled_meanwhile(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = api.load(runs / "writer")
    assert isinstance(generator, Generator)
    before = generator.generate("It", temperature=0.0, max_new_tokens=2)
    used: list[str] = []

    def load(part: engine.ModelPart, name: str, _: int) -> engine.Compiled:
        def run(*inputs: engine.Input) -> list[torch.Tensor]:
            used.append(name)
            found = part(*inputs)
            return [found] if isinstance(found, torch.Tensor) else list(found)

        return run

    monkeypatch.setattr(engine, "load", load)
    assert generator.generate("It", temperature=0.0, max_new_tokens=2) == before and not used
    monkeypatch.setattr(engine, "LOOK_EVERY", 0.0)
    assert generator.generate("It", temperature=0.0, max_new_tokens=2) == before and "one" in used
