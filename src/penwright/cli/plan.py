"""The `penwright plan` command: show what would be trained, and what to expect of it."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from penwright.cli.options import (
    AnySetting,
    Balance,
    Data,
    Dictionary,
    Epochs,
    Group,
    Json,
    Minutes,
    RecipeFile,
    SizeName,
    Steps,
    TaskName,
    TextColumns,
    TokenizerSource,
    Validation,
    prepare_by_asking,
    print_json,
    refuse_unused,
    settings_of,
    training_flags,
)
from penwright.cli.plan_report import passes_in_words, plan_as_record, plan_in_words
from penwright.errors import Undecided, UsageError
from penwright.text import amount, duration, in_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penwright.training.auto.choices import Plan
    from penwright.training.auto.cluster import ClusterEstimate
    from penwright.workflows.forecast import Forecast
    from penwright.workflows.plan import Prepared

IMPROVES = "should improve the model", "would hardly improve the model"
NGpus = Annotated[
    int | None, typer.Option(help="Also estimate training time and memory on N GPUs.", metavar="N", min=1)
]
GpuName = Annotated[
    str | None,
    typer.Option(help="Kind of GPU for --gpus: a100, h100, h200, b200, l40s or rtx4090. Default: h100."),
]


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
    balance: Balance = False,
    group: Group = None,
    columns: TextColumns = None,
    set_: AnySetting = None,
    gpus: NGpus = None,
    gpu: GpuName = None,
    json: Json = False,
) -> None:
    """Show what would be trained, and what to expect of it.

    Also estimates how much longer training would pay off. Trains nothing.
    """
    from penwright.training.auto.cluster import GPUS, estimate_cluster
    from penwright.workflows.forecast import forecast

    if gpus is None:
        refuse_unused({"--gpu": gpu}, "without --gpus")
    gpu = gpu or "h100"
    if gpu not in GPUS:
        raise UsageError(f"--gpu: the specifications of '{gpu}' are not known. Choose one of {', '.join(GPUS)}")
    files: dict[str, object] = {"train": data, "validation": validation, "dictionary": dictionary, "group": group}
    budget = {"minutes": minutes, "steps": steps, "epochs": epochs}
    flags = training_flags(files, columns, task, size, tokenizer, balance=balance, **budget)
    try:
        _, prepared = prepare_by_asking(settings_of(recipe, flags, set_ or []), is_dry=True)
    except Undecided as undecided:
        if json:
            print_json({"undecided": {"question": undecided.question, "options": list(map(asdict, undecided.options))}})
        raise
    outlook = forecast(prepared)
    plan = prepared.plan
    estimate = estimate_cluster(plan.recipe, plan.size, gpus, GPUS[gpu]) if gpus else None
    if json:
        record = {"cluster": estimate._asdict()} if estimate else {}
        others = _alternatives(prepared, outlook)
        print_json({**plan_as_record(prepared), "outlook": outlook._asdict(), **others, **record})
        return
    print(*plan_in_words(prepared), sep="\n")
    print(f"training {passes_in_words(plan)}")
    print(*_forecast_in_words(outlook, prepared.plan.recipe.training.minutes), sep="\n")
    if estimate and gpus:
        print(*_estimate_in_words(estimate, plan, f"{gpus} {gpu}"), sep="\n")


def _estimate_in_words(estimate: "ClusterEstimate", plan: "Plan", gpus: str) -> "Iterator[str]":
    """Yield lines that estimate the memory, speed and duration of training on these GPUs."""
    from penwright.training.auto.cluster import TOKENS_PER_PARAMETER

    speed, enough = estimate.tokens_per_second, TOKENS_PER_PARAMETER * float(plan.size.parameters)
    yield f"on {gpus}: {estimate.parallelism}, because {estimate.reason}"
    yield (
        f"on {gpus}: {estimate.bytes_per_gpu / 1e9:.2g} GB per GPU, about {in_words(speed)} tokens/s "
        "(estimated, see training/auto/cluster.py)"
    )
    yield (
        f"on {gpus}: about {duration(plan.tokens / plan.epochs / speed)} for one epoch, and "
        f"{duration(enough / speed)} for {in_words(enough)} tokens ({TOKENS_PER_PARAMETER} per parameter)"
    )
    if not estimate.fits:
        yield (
            f"on {gpus}: this does not fit into the memory of a GPU. Use more GPUs or a smaller training.batch_tokens, "
            "or set training.activation_checkpointing=true"
        )
    if estimate.is_underused:
        yield (
            f"on {gpus}: with only {estimate.tokens_per_gpu:,.0f} tokens per GPU and step, training will be slower. "
            "Raise training.batch_tokens"
        )


def _alternatives(prepared: "Prepared", forecast: "Forecast") -> dict[str, object]:
    """Return the alternatives to the plan (sizes, budgets and columns), and facts about the corpus."""
    from penwright.workflows.forecast import budget_options, columns_of, passage_tokens, size_options

    return {
        "reason": prepared.reason,
        "characters": prepared.corpus.training.n_characters,
        "bytes": prepared.corpus.training_bytes,
        "sizes": [each._asdict() for each in size_options(prepared)],
        "budgets": [each._asdict() for each in budget_options(prepared, forecast.compressed)],
        "columns": columns_of(prepared),
        "roles": prepared.corpus.roles,
        "passage": passage_tokens(prepared),
    }


def _forecast_in_words(forecast: "Forecast", minutes: float | None) -> "Iterator[str]":
    """Yield the lines of the forecast: the expected quality, and whether longer training pays off."""
    yield f"expected: {_expected(forecast)}"
    gains = ("should gain 1 % or more", "would gain less than 1 %") if forecast.low is not None else IMPROVES
    if minutes is not None and forecast.pays_up_to is not None:
        if forecast.pays_up_to >= 2 * minutes:
            limit = amount(forecast.pays_up_to, "minute")
            yield f"more time: up to about {limit}, each doubling of the time {gains[0]}"
        else:
            yield f"more time: doubling the time {gains[1]}"


def _expected(forecast: "Forecast") -> str:
    """Return the expected quality in words."""
    if forecast.low is not None:
        return (
            f"{forecast.low:.2f} to {forecast.high:.2f} bits per byte of held-out text (a rough estimate, from the "
            f"{forecast.compressed:.2f} bits per byte of xz compression and a few recorded runs)"
        )
    if forecast.share is not None:
        low, high = forecast.share
        return f"{low:.0%} to {high:.0%} of the best BLEU for this text (a rough estimate, from a few recorded runs)"
    if forecast.accuracy is not None:
        return f"about {forecast.accuracy:.0f}% accuracy or more (the accuracy of a linear classifier, fitted just now)"
    return "no forecast for this task, for fine-tuning, or for so little training"
