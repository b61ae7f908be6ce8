"""penwright plan: what would be trained, and what may be expected of it."""

from typing import TYPE_CHECKING

from penwright.cli.options import (
    AnySetting,
    Data,
    Epochs,
    Json,
    Minutes,
    RecipeFile,
    SizeName,
    Steps,
    TaskName,
    Validation,
    plan_as_record,
    plan_in_words,
    prepare_by_asking,
    print_json,
    settings_of,
    training_flags,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penwright.training.auto.forecast import Outlook

NAME = "plan"


def command(
    data: Data = None,
    task: TaskName = None,
    recipe: RecipeFile = None,
    minutes: Minutes = None,
    steps: Steps = None,
    epochs: Epochs = None,
    size: SizeName = None,
    validation: Validation = None,
    set_: AnySetting = None,
    json: Json = False,
) -> None:
    """Say what would be trained, and how good it may become.

    Also when more minutes stop paying. Trains nothing.
    """
    from penwright.training.auto.choices import rounded
    from penwright.workflows import api

    flags = training_flags(data, validation, task, size, minutes=minutes, steps=steps, epochs=epochs)
    _, prepared = prepare_by_asking(settings_of(recipe, flags, set_ or []))
    outlook = api.expect(prepared)
    if json:
        print_json({**plan_as_record(prepared), "outlook": outlook._asdict()})
        return
    for line in plan_in_words(prepared):
        print(line)
    print(f"reads the text about {rounded(prepared.plan.epochs)} times")
    for line in _outlook_in_words(outlook, prepared.plan.recipe.training.minutes):
        print(line)


def _outlook_in_words(outlook: "Outlook", minutes: float | None) -> "Iterator[str]":
    if outlook.low is None:
        yield "how well it will do cannot be told beforehand for this task: labels and translations differ too much"
        gains = "should make it better", "would hardly make it better"
    else:
        yield (
            f"expected: {outlook.low:.2f} to {outlook.high:.2f} bits a byte of the held-out text "
            f"(a rough guess, from the {outlook.compressed:.2f} that xz needs and a few runs of ours)"
        )
        gains = "should gain a hundredth or more", "would gain less than a hundredth"
    if minutes is not None and outlook.pays_up_to is not None:
        if outlook.pays_up_to >= 2 * minutes:
            yield f"more time: up to about {outlook.pays_up_to:.0f} minutes, each doubling {gains[0]}"
        else:
            yield f"more time: another doubling {gains[1]}"
