"""Alternatives to a plan: different sizes, budgets and columns for the user to choose from."""

from collections.abc import Iterator
from typing import NamedTuple

from penwright.config import ModelSettings, validate
from penwright.data.readers.tables import find_table
from penwright.errors import PenwrightError
from penwright.model.size import size_of
from penwright.training.auto.capacity import LADDER
from penwright.training.auto.forecast import forecast_bits
from penwright.workflows.plan import Prepared, forecast

MINUTES = (1 / 3, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0)  # budgets to choose from, in minutes
DIMENSIONS = {"size", "d_model", "n_layers", "n_decoder_layers", "n_heads", "n_kv_heads", "d_head", "d_ff"}
SHOWN_COLUMNS = 100


class SizeOption(NamedTuple):
    """A model size, and the number of epochs that a model of this size completes within the planned budget."""

    size: str
    parameters: int
    epochs: float  # a rough estimate, from the number of operations
    is_chosen: bool


class BudgetOption(NamedTuple):
    """A budget in minutes, and a forecast of the result that the planned model reaches with this budget."""

    minutes: float
    epochs: float
    low: float | None  # bits per byte of held-out text; None for tasks without a forecast
    high: float | None


def size_options(prepared: Prepared) -> Iterator[SizeOption]:
    """Yield the model sizes from nano to large, smallest first."""
    plan, labels = prepared.plan, max(1, len(prepared.corpus.labels))
    recipe = plan.recipe
    replaced = DIMENSIONS - {"n_layers"} if recipe.task == "classify" else DIMENSIONS
    kept = recipe.model.model_dump(exclude=replaced, exclude_none=True)
    for name in LADDER:
        settings = validate(ModelSettings, {**kept, "size": name}, "the settings")
        size = size_of(recipe.task, plan.vocab_size, settings, n_labels=labels)
        is_chosen = recipe.model.size == name
        epochs = plan.epochs if is_chosen else plan.epochs * plan.size.flops_per_token / size.flops_per_token
        yield SizeOption(name, size.parameters, epochs, is_chosen)


def budget_options(prepared: Prepared) -> Iterator[BudgetOption]:
    """Yield budgets in minutes with their forecasts. If the planned budget is not in minutes, yield none."""
    plan, planned = prepared.plan, prepared.plan.recipe.training.minutes
    if planned is None:
        return
    compressed = forecast(prepared).compressed
    for minutes in sorted({*MINUTES, planned}):
        epochs = plan.epochs * minutes / planned
        if compressed is None:
            yield BudgetOption(minutes, epochs, None, None)
        else:
            found = forecast_bits(compressed, prepared.corpus.training_bytes, epochs, minutes)
            yield BudgetOption(minutes, epochs, found.low, found.high)


def columns_of(prepared: Prepared) -> list[str]:
    """Return the column names of the first file, in order. The list is empty for running text."""
    try:
        table = find_table(prepared.corpus.files[0])
    except (PenwrightError, OSError):  # the text is on the Hugging Face Hub, or the file has just been deleted
        return []
    return list(table.columns)[:SHOWN_COLUMNS] if table else []
