"""The facts about each model that the page shows."""

from pathlib import Path

import pytest

from penwright.model.quantized import Int8Linear
from penwright.serving.model_worker import ModelWorker
from penwright.serving.models import facts
from penwright.workflows.load import load, open_run


@pytest.mark.parametrize("kind", ["writer", "translator", "classifier"])
def test_parameter_count_includes_quantized_weights(runs: Path, kind: str) -> None:
    folder, exact = runs / kind, load(runs / kind).model
    rounded = load(folder, precision="int8")
    assert any(isinstance(part, Int8Linear) for part in rounded.model.modules())
    n_parameters = sum(parameter.numel() for parameter in exact.parameters())
    assert facts(ModelWorker(kind, open_run(folder), rounded)).parameters == n_parameters
