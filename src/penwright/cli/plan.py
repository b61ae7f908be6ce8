"""The `penwright plan` command: show what would be trained, and what to expect of it."""

from dataclasses import asdict
from typing import TYPE_CHECKING

from penwright.cli.options import (
    AnySetting,
    Data,
    Dictionary,
    Epochs,
    Json,
    Minutes,
    RecipeFile,
    SizeName,
    Steps,
    TaskName,
    TokenizerSource,
    Validation,
    plan_as_record,
    plan_in_words,
    prepare_by_asking,
    print_json,
    settings_of,
    training_flags,
)
from penwright.errors import Undecided

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penwright.training.auto.forecast import Forecast
    from penwright.workflows.api import Prepared


def command(
    data: Data = None,
    task: TaskName = None,
    recipe: RecipeFile = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    size: SizeName = None,
    tokenizer: TokenizerSource = None,
    validation: Validation = None,
    dictionary: Dictionary = None,
    set_: AnySetting = None,
    json: Json = False,
) -> None:
    """Show what would be trained, and what to expect of it.

    Also estimates how much longer training would pay off. Trains nothing.
    """
    from penwright.training.auto.choices import amount
    from penwright.workflows import api

    flags = training_flags(
        data, validation, task, size, tokenizer, dictionary, minutes=minutes, steps=steps, epochs=epochs
    )
    try:
        _, prepared = prepare_by_asking(settings_of(recipe, flags, set_ or []))
    except Undecided as undecided:
        if json:
            print_json({"undecided": {"question": undecided.question, "options": list(map(asdict, undecided.options))}})
        raise
    forecast = api.forecast(prepared)
    if json:
        print_json({**plan_as_record(prepared), "outlook": forecast._asdict(), **_alternatives(prepared)})
        return
    for line in plan_in_words(prepared):
        print(line)
    print(f"reads the text about {amount(prepared.plan.epochs, 'time')}")
    for line in _forecast_in_words(forecast, prepared.plan.recipe.training.minutes):
        print(line)


def _alternatives(prepared: "Prepared") -> dict[str, object]:
    """Return the alternatives to the plan (sizes, budgets and columns), and facts about the corpus."""
    from penwright.workflows import api

    return {
        "reason": prepared.reason,
        "characters": prepared.corpus.training.n_characters,
        "bytes": prepared.corpus.training_bytes,
        "sizes": [each._asdict() for each in api.size_options(prepared)],
        "budgets": [each._asdict() for each in api.budget_options(prepared)],
        "columns": api.columns_of(prepared),
        "roles": prepared.corpus.roles,
    }


def _forecast_in_words(forecast: "Forecast", minutes: float | None) -> "Iterator[str]":
    """Yield the lines of the forecast: the expected quality, and whether longer training pays off."""
    from penwright.training.auto.choices import amount

    if forecast.low is None:
        yield "expected: no forecast for this task, because labels and translations vary too much between data sets"
        gains = "should improve the model", "would hardly improve the model"
    else:
        yield (
            f"expected: {forecast.low:.2f} to {forecast.high:.2f} bits per byte of held-out text "
            f"(a rough estimate, from the {forecast.compressed:.2f} that xz needs and a few recorded runs)"
        )
        gains = "should gain 1 % or more", "would gain less than 1 %"
    if minutes is not None and forecast.pays_up_to is not None:
        if forecast.pays_up_to >= 2 * minutes:
            limit = amount(forecast.pays_up_to, "minute")
            yield f"more time: up to about {limit}, each doubling of the time {gains[0]}"
        else:
            yield f"more time: doubling the time {gains[1]}"
