"""The budget of a training run is given in exactly one way."""

import pytest

from penwright.config import BUDGETS, AdamW, Muon, Recipe, TrainingSettings, validate
from penwright.errors import UsageError


@pytest.mark.parametrize("budget", BUDGETS)
def test_any_one_budget_is_enough(budget: str) -> None:
    assert getattr(validate(TrainingSettings, {budget: 3}, "here"), budget) == 3


def test_no_budget_is_refused() -> None:
    with pytest.raises(UsageError, match=r"exactly one of steps, epochs, tokens and minutes \(given: none\)"):
        validate(TrainingSettings, {}, "here")


def test_two_budgets_are_refused_and_named() -> None:
    with pytest.raises(UsageError, match=r"given: steps, minutes"):
        validate(TrainingSettings, {"minutes": 2, "steps": 10}, "here")


@pytest.mark.parametrize(("name", "kind"), [("adamw", AdamW), ("muon", Muon)])
def test_the_type_chooses_the_optimizer(name: str, kind: type) -> None:
    table = {"task": "generate", "data": {"train": ["a"]}, "model": {}, "training": {"steps": 1}}
    assert isinstance(validate(Recipe, table | {"optimizer": {"type": name}}, "here").optimizer, kind)


def test_what_is_given_of_the_adamw_beside_muon_leaves_the_rest_of_it() -> None:
    beside = validate(Muon, {"type": "muon", "adamw": {"learning_rate": 0.02}}, "here").adamw
    assert beside == Muon().adamw.model_copy(update={"learning_rate": 0.02})
    assert beside.betas != AdamW().betas
