"""Training settings: exactly one budget, and the choice of the optimizer."""

import pytest

from penwright.config import BUDGETS, AdamW, Muon, Recipe, TrainingSettings, validate
from penwright.errors import UsageError


@pytest.mark.parametrize("budget", BUDGETS)
def test_any_single_budget_is_accepted(budget: str) -> None:
    assert getattr(validate(TrainingSettings, {budget: 3}, "here"), budget) == 3


def test_no_budget_is_refused() -> None:
    with pytest.raises(UsageError, match=r"exactly one of steps, epochs, tokens and minutes \(given: none\)"):
        validate(TrainingSettings, {}, "here")


def test_two_budgets_are_refused_and_named() -> None:
    with pytest.raises(UsageError, match=r"given: steps, minutes"):
        validate(TrainingSettings, {"minutes": 2, "steps": 10}, "here")


@pytest.mark.parametrize(("name", "kind"), [("adamw", AdamW), ("muon", Muon)])
def test_type_selects_the_optimizer(name: str, kind: type) -> None:
    table = {"task": "generate", "data": {"train": ["a"]}, "model": {}, "training": {"steps": 1}}
    assert isinstance(validate(Recipe, table | {"optimizer": {"type": name}}, "here").optimizer, kind)


def test_partial_adamw_table_keeps_muons_other_defaults() -> None:
    adamw = validate(Muon, {"type": "muon", "adamw": {"learning_rate": 0.02}}, "here").adamw
    assert adamw == Muon().adamw.model_copy(update={"learning_rate": 0.02})
    assert adamw.betas != AdamW().betas
