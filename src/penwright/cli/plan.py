"""The `penwright plan` command: show what would be trained, and what to expect of it."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

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
from penwright.errors import Undecided, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penwright.training.auto.cluster import ClusterEstimate
    from penwright.training.auto.forecast import Forecast
    from penwright.workflows.api import Prepared

NGpus = Annotated[int | None, typer.Option(help="Also estimate training on this many GPUs.", min=1)]
GpuName = Annotated[str, typer.Option(help="Kind of GPU for --gpus: a100, h100, h200, b200, l40s or rtx4090.")]


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
    gpus: NGpus = None,
    gpu: GpuName = "h100",
    json: Json = False,
) -> None:
    """Show what would be trained, and what to expect of it.

    Also estimates how much longer training would pay off. Trains nothing.
    """
    from penwright.training.auto.choices import amount
    from penwright.training.auto.cluster import GPUS, estimate_cluster
    from penwright.workflows import api

    if gpu not in GPUS:
        raise UsageError(f"--gpu: there is no data sheet for '{gpu}'. Choose one of {', '.join(GPUS)}")
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
    plan = prepared.plan
    estimate = estimate_cluster(plan.recipe, plan.size, gpus, GPUS[gpu]) if gpus else None
    if json:
        record = {"cluster": estimate._asdict()} if estimate else {}
        print_json({**plan_as_record(prepared), "outlook": forecast._asdict(), **_alternatives(prepared), **record})
        return
    for line in plan_in_words(prepared):
        print(line)
    print(f"reads the text about {amount(prepared.plan.epochs, 'time')}")
    for line in _forecast_in_words(forecast, prepared.plan.recipe.training.minutes):
        print(line)
    if estimate and gpus:
        for line in _estimate_in_words(estimate, plan.tokens, f"{gpus} {gpu}"):
            print(line)


def _estimate_in_words(estimate: "ClusterEstimate", tokens: float, gpus: str) -> "Iterator[str]":
    """Yield lines that estimate the memory, speed and duration of training on these GPUs."""
    from penwright.training.auto.choices import in_words

    hours = tokens / estimate.tokens_per_second / 3600
    yield f"on {gpus}: {estimate.parallelism}, because {estimate.reason}"
    yield (
        f"on {gpus}: {estimate.bytes_per_gpu / 1e9:.2g} GB per GPU, about {in_words(estimate.tokens_per_second)} "
        f"tokens/s, {hours:.2g} hours for {in_words(tokens)} tokens (estimated, see training/auto/cluster.py)"
    )
    if estimate.is_underused:
        yield (
            f"on {gpus}: with only {estimate.tokens_per_gpu:,.0f} tokens per GPU and step, training will be slower. "
            "Raise training.batch_tokens"
        )


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
