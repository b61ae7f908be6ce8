"""penwright optimize: what is chosen is what is used from then on, and can be overruled."""

import json
import shutil
from pathlib import Path

import pytest

from penwright.errors import PenwrightWarning
from penwright.generation.generator import Generator
from penwright.model.quantised import Int8Linear
from penwright.workflows import api, optimize

from .conftest import Command


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
