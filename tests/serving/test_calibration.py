"""Calibration of a classifier, as the page gets it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from penwright.run.folder import CALIBRATION, Run
from penwright.workflows.load import open_run
from penwright.workflows.optimize import calibrate


def test_calibration_is_measured_on_held_out_texts_and_cached(call_api: Any, runs: Path) -> None:
    _, found = call_api("classifying/calibration")
    assert (runs / "classifier" / CALIBRATION).is_file()
    expected = calibrate(runs / "classifier")
    assert found["n"] == expected.n == sum(each["n"] for each in found["bins"])
    assert [each["accuracy"] for each in found["bins"]] == [each.accuracy for each in expected.bins]
    assert found["error"] == pytest.approx(expected.error) and found["note"] == ""
    assert call_api("classifying/calibration") == (200, found)


def test_calibration_of_an_earlier_checkpoint_is_not_cached_as_that_of_the_best(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "classifier", folder := tmp_path / "run")
    (folder / CALIBRATION).unlink(missing_ok=True)
    run = Run(folder)
    newest, _ = run.checkpoints.newest()
    state = {**newest.state(), "best_step": newest.step + 1}
    run.checkpoints.save(newest.step + 1, newest.weights(), newest.training(), state)
    calibrate(newest.folder)
    assert not (folder / CALIBRATION).exists()
    calibrate(folder)
    assert (folder / CALIBRATION).is_file()
    run.save_finding(CALIBRATION, {"bins": [], "n": 1, "error": 0.5}, newest.step + 1)
    assert calibrate(folder).n == 1 < calibrate(open_run(newest.folder)).n


def test_missing_training_texts_give_a_note_instead_of_bins(call_api: Any, runs: Path) -> None:
    (runs / "classifier" / CALIBRATION).unlink(missing_ok=True)
    texts = runs / "classifier.csv"
    texts.rename(runs / "elsewhere.csv")
    _, found = call_api("classifying/calibration")
    (runs / "elsewhere.csv").rename(texts)
    assert found["bins"] == [] and "classifier.csv" in found["note"]


def test_calibration_of_a_writer_is_refused(call_api: Any) -> None:
    status, found = call_api("classifying/calibration?model=writer")
    assert status == 400 and "is a writer" in str(found)
