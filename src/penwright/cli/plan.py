"""The `penwright plan` command: show what would be trained, and what to expect of it."""

from dataclasses import asdict
from itertools import islice
from math import ceil
from shlex import quote
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
    TextColumns,
    TokenizerSource,
    Validation,
    counted,
    prepare_by_asking,
    print_json,
    settings_of,
    training_flags,
)
from penwright.errors import Undecided, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penwright.config import TrainingSettings
    from penwright.training.auto.forecast import Forecast
    from penwright.training.auto.planner import Plan
    from penwright.training.auto.throughput import ClusterEstimate
    from penwright.workflows.api import Prepared

LONGEST_SIDE = 100  # maximum number of characters per side of an example in the preview
FEW_EXAMPLES = 50  # number of labelled texts below which a warning is printed
RARE = 0.1  # share of a rare label, relative to that of equally frequent labels, up to which --balance is advised
FEW_BYTES = 20_000  # size of the training text, in bytes, below which a warning is printed
IMPROVES = "should improve the model", "would hardly improve the model"
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
    columns: TextColumns = None,
    set_: AnySetting = None,
    gpus: NGpus = None,
    gpu: GpuName = "h100",
    json: Json = False,
) -> None:
    """Show what would be trained, and what to expect of it.

    Also estimates how much longer training would pay off. Trains nothing.
    """
    from penwright.training.auto.choices import amount
    from penwright.training.auto.throughput import GPUS, estimate_cluster
    from penwright.workflows import api

    if gpu not in GPUS:
        raise UsageError(f"--gpu: the specifications of '{gpu}' are not known. Choose one of {', '.join(GPUS)}")
    flags = training_flags(
        {"train": data, "validation": validation, "dictionary": dictionary},
        columns,
        task,
        size,
        tokenizer,
        minutes=minutes,
        steps=steps,
        epochs=epochs,
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
        others = _alternatives(prepared, forecast)
        print_json({**plan_as_record(prepared), "outlook": forecast._asdict(), **others, **record})
        return
    for line in plan_in_words(prepared):
        print(line)
    print(f"reads the text about {amount(prepared.plan.epochs, 'time')}")
    for line in _forecast_in_words(forecast, prepared.plan.recipe.training.minutes):
        print(line)
    if estimate and gpus:
        for line in _estimate_in_words(estimate, plan, f"{gpus} {gpu}"):
            print(line)


def _estimate_in_words(estimate: "ClusterEstimate", plan: "Plan", gpus: str) -> "Iterator[str]":
    """Yield lines that estimate the memory, speed and duration of training on these GPUs."""
    from penwright.training.auto.choices import duration, in_words
    from penwright.training.auto.throughput import TOKENS_PER_PARAMETER

    speed, enough = estimate.tokens_per_second, TOKENS_PER_PARAMETER * float(plan.size.parameters)
    yield f"on {gpus}: {estimate.parallelism}, because {estimate.reason}"
    yield (
        f"on {gpus}: {estimate.bytes_per_gpu / 1e9:.2g} GB per GPU, about {in_words(speed)} tokens/s "
        "(estimated, see training/auto/throughput.py)"
    )
    yield (
        f"on {gpus}: about {duration(plan.tokens / plan.epochs / speed)} to read the text once, and "
        f"{duration(enough / speed)} for {in_words(enough)} tokens ({TOKENS_PER_PARAMETER} per parameter)"
    )
    if estimate.is_underused:
        yield (
            f"on {gpus}: with only {estimate.tokens_per_gpu:,.0f} tokens per GPU and step, training will be slower. "
            "Raise training.batch_tokens"
        )


def _alternatives(prepared: "Prepared", forecast: "Forecast") -> dict[str, object]:
    """Return the alternatives to the plan (sizes, budgets and columns), and facts about the corpus."""
    from penwright.workflows import api

    return {
        "reason": prepared.reason,
        "characters": prepared.corpus.training.n_characters,
        "bytes": prepared.corpus.training_bytes,
        "sizes": [each._asdict() for each in api.size_options(prepared)],
        "budgets": [each._asdict() for each in api.budget_options(prepared, forecast.compressed)],
        "columns": api.columns_of(prepared),
        "roles": prepared.corpus.roles,
    }


def _forecast_in_words(forecast: "Forecast", minutes: float | None) -> "Iterator[str]":
    """Yield the lines of the forecast: the expected quality, and whether longer training pays off."""
    from penwright.training.auto.choices import amount

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
        return f"about {forecast.accuracy:.0f}% accuracy or more (a linear classifier, fitted just now, reaches this)"
    return "no forecast for this task, or for so little training"


def plan_as_record(prepared: "Prepared") -> dict[str, object]:
    """Return the plan as a JSON object: recipe, choices with reasons, model size and a report on the data."""
    from penwright.workflows.plan import first_examples

    plan = prepared.plan
    choices = [choice._asdict() for choice in plan.choices]
    record = {"recipe": plan.recipe.model_dump(mode="json"), "choices": choices, "epochs": plan.epochs}
    return {
        **record,
        "minutes_wanted": plan.minutes_wanted,
        "size": plan.size._asdict(),
        "data": prepared.corpus.report.as_dict(),
        "examples": first_examples(prepared.corpus),
    }


def plan_in_words(prepared: "Prepared") -> "Iterator[str]":
    """Yield the lines of a human-readable description of the plan."""
    from penwright.workflows.plan import first_examples

    plan, size = prepared.plan, prepared.plan.size
    yield from _task_and_data(prepared)
    yield "first examples, as the model sees them:"
    yield from (f"  {_in_one_line(example)}" for example in first_examples(prepared.corpus))
    yield from (f"{choice.key} = {choice.value} ({choice.reason})" for choice in plan.choices)
    yield from (f"machine: {reason}" for reason in prepared.machine.reasons)
    trained = f" ({size.trained:,} of them trained)" if size.trained < size.parameters else ""
    yield (
        f"model: {size.parameters:,} parameters{trained}, {size.flops_per_token / 1e6:.1f} MFLOP per token, "
        f"about {size.training_bytes / 1e9:.2g} GB of memory to train"
    )
    yield from _problems(prepared)


def plan_in_brief(prepared: "Prepared") -> "Iterator[str]":
    """Yield a line on each of the most important choices, and the warnings of the plan."""
    from penwright.training.auto.choices import amount
    from penwright.workflows.plan import first_examples

    plan, machine, recipe = prepared.plan, prepared.machine, prepared.plan.recipe
    yield from _task_and_data(prepared)
    yield from (f"first example: {_in_one_line(example)}" for example in first_examples(prepared.corpus)[:1])
    tokenizer = recipe.tokenizer
    n_tokens = f", {counted(tokenizer.vocab_size, 'token')}" if tokenizer.vocab_size else ""
    yield f"tokenizer: {f'from {tokenizer.from_}' if tokenizer.from_ else tokenizer.type}{n_tokens}"
    yield f"model: {f'{recipe.model.size}, ' if recipe.model.size else ''}{plan.size.parameters:,} parameters"
    yield f"training: {_budget(recipe.training)}; reads the text about {amount(plan.epochs, 'time')}"
    device, _, *others = machine.reasons
    yield f"machine: {device}; precision {str(machine.precision).removeprefix('torch.')}"
    yield from (f"machine: {other}" for other in others)
    yield from _problems(prepared)
    yield "--why also prints all other choices, with the reasons"


def _budget(training: "TrainingSettings") -> str:
    """Return the budget of a run in words."""
    from penwright.training.auto.choices import amount, in_words

    if training.minutes is not None:
        return amount(training.minutes, "minute")
    if training.steps is not None:
        return counted(training.steps, "step")
    return f"{in_words(training.tokens)} tokens" if training.tokens else amount(training.epochs or 0.0, "epoch")


def _task_and_data(prepared: "Prepared") -> "Iterator[str]":
    """Yield the task and why it was chosen, then the report on the data."""
    yield f"task: {prepared.plan.recipe.task} ({prepared.reason})"
    yield from (f"  {line}" for line in prepared.corpus.report.lines())


def _problems(prepared: "Prepared") -> "Iterator[str]":
    """Yield a warning for each reason why the model may perform poorly, or may not fit in memory."""
    from penwright.training.auto.choices import amount
    from penwright.workflows import api

    plan = prepared.plan
    if plan.minutes_wanted is not None:
        does = f"reads only {plan.epochs:.1%} of the data" if plan.epochs < 1 else "takes too few steps to learn much"
        yield (
            f"too short: in {amount(plan.recipe.training.minutes or 0.0, 'minute')}, this model {does}. "
            f"Give --minutes {ceil(10 * plan.minutes_wanted) / 10:g} or more"
        )
    if prepared.is_too_large:
        yield "too large: the model does not fit in the memory of this machine. Choose a smaller --size"
    corpus = prepared.corpus
    if prepared.plan.recipe.task == "classify":
        starts = prepared.plan.recipe.finetuning
        if corpus.n_training < FEW_EXAMPLES and not (starts and starts.contrastive):
            yield (
                f"too few texts: a model can only memorise {counted(corpus.n_training, 'labelled text')}. To classify "
                "new texts, it needs dozens for each label, or an imported encoder to start from (--from)"
            )
        yield from _note_on_rare_label(prepared)
        for encoder in islice(api.encoders_beside(prepared), 1):
            yield (
                f"better start: {encoder} holds a pretrained encoder. If it knows the language of these texts, "
                f"--from {quote(str(encoder))} usually classifies better after the same time"
            )
    elif corpus.training_bytes < FEW_BYTES:
        yield (
            f"too little text: a model can only memorise {counted(corpus.training_bytes, 'byte')}. "
            "To do well on new text, it needs a few hundred thousand bytes"
        )


def _note_on_rare_label(prepared: "Prepared") -> "Iterator[str]":
    """Yield advice if one of the labels is far rarer than the others, and the labels are not balanced."""
    counts, model = prepared.corpus.label_counts, prepared.plan.recipe.model
    if model.balanced or model.problem_type != "single_label_classification":
        return
    rarest, n = min(counts, key=lambda label: counts[label]), sum(counts.values())
    if counts[rarest] * len(counts) <= RARE * n:
        yield (
            f"rare label: {rarest} has {100 * counts[rarest] / n:.2g} % of the texts, and will hardly be predicted. "
            "To find more of its texts, add --balance"
        )


def _in_one_line(example: dict[str, str]) -> str:
    """Format an example on one line: `source => target`, `text => label`, or a line of running text."""
    from penwright.data.profiles import shortened

    return " => ".join(shortened(side, LONGEST_SIDE) for side in example.values())
