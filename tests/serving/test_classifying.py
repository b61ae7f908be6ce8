"""How often a classifier is right that is so sure."""

from pathlib import Path
from typing import Any

import pytest

from penwright.workflows.optimize import CALIBRATION, calibrate


def test_calibration_is_measured_on_held_out_texts_and_kept(asked: Any, runs: Path) -> None:
    _, found = asked("classifying/calibration")
    assert (runs / "classifier" / CALIBRATION).is_file()
    expected = calibrate(runs / "classifier")
    assert found["n"] == expected.n == sum(each["n"] for each in found["bins"])
    assert [each["accuracy"] for each in found["bins"]] == [each.accuracy for each in expected.bins]
    assert found["error"] == pytest.approx(expected.error) and found["note"] == ""
    assert asked("classifying/calibration") == (200, found)


def test_without_its_texts_a_note_says_why(asked: Any, runs: Path) -> None:
    (runs / "classifier" / CALIBRATION).unlink(missing_ok=True)
    texts = runs / "classifier.csv"
    texts.rename(runs / "elsewhere.csv")
    _, found = asked("classifying/calibration")
    (runs / "elsewhere.csv").rename(texts)
    assert found["bins"] == [] and "classifier.csv" in found["note"]


def test_a_writer_has_no_calibration(asked: Any) -> None:
    status, found = asked("classifying/calibration?model=writer")
    assert status == 400 and "is a writer" in str(found)
