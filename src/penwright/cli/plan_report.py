"""Reports on a plan for `penwright train` and `penwright plan`: in full, in brief or as JSON, with advice."""

from itertools import islice
from math import ceil
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from penwright.cli.options import prepare_by_asking, print_json, warn
from penwright.streams import escaped
from penwright.text import amount, count, in_words, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penwright.config import Table, TrainingSettings
    from penwright.training.auto.choices import Plan
    from penwright.workflows.plan import Prepared

Form = Literal["plan", "json", "recipe"]  # what to print in a dry run (without training)
LONGEST_SIDE = 100  # in the preview, a text, source, target or label is cut to this many characters
FEW_EXAMPLES = 50  # number of labelled texts below which a warning is printed
RARE = 0.1  # --balance is advised if the rarest label has at most this fraction of the mean number of texts per label
FEW_BYTES = 20_000  # size of the training text, in bytes, below which a warning is printed


def show_dry_run(settings: "Table", run: Path | None, n_members: int | None, form: Form) -> None:
    """Print the plan (as text or JSON) or the recipe. For an ensemble, use the plan of the first member."""
    from penwright.config import write_toml
    from penwright.workflows.ensemble import member_settings
    from penwright.workflows.plan import new_run_folder, prepare

    settings, prepared = prepare_by_asking(settings, run, is_dry=True)
    folder = run or new_run_folder(prepared.plan.recipe)
    if n_members is not None:
        prepared = prepare(member_settings(settings, n_members, 1))
    if form == "json":
        print_json({"run": folder, **plan_as_record(prepared)})
    elif form == "recipe":
        print(write_toml(prepared.plan.recipe), end="")
    else:
        print(escaped("\n".join([*plan_in_words(prepared), f"run: {folder}"])))
    if n_members is not None:
        warn_of_short_members(prepared, n_members)


def show_plan(prepared: "Prepared", folder: Path, json: bool, why: bool) -> None:
    """Print the plan on standard error, in brief or with all reasons, or as JSON on standard output."""
    from penwright.streams import print_message

    if json:
        return print_json({"run": folder, **plan_as_record(prepared)})
    lines = plan_in_words(prepared) if why else plan_in_brief(prepared)
    print_message("\n".join([*lines, f"run: {folder}"]))


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
    about = "" if plan.recipe.tokenizer.vocab_size else "about "  # until the characters are counted
    yield (
        f"model: {size.parameters:,} parameters with {about}{count(plan.vocab_size, 'token')}{trained}, "
        f"{size.flops_per_token / 1e6:.1f} MFLOP per token, "
        f"about {rounded(size.training_bytes / 1e9)} GB of memory to train"
    )
    yield from _problems(prepared)


def plan_in_brief(prepared: "Prepared") -> "Iterator[str]":
    """Yield one line for each of the main choices, then the warnings of the plan."""
    from penwright.workflows.plan import first_examples

    plan, machine, recipe = prepared.plan, prepared.machine, prepared.plan.recipe
    yield from _task_and_data(prepared)
    yield from (f"first example: {_in_one_line(example)}" for example in first_examples(prepared.corpus)[:1])
    tokenizer = recipe.tokenizer
    n_tokens = f", {count(tokenizer.vocab_size, 'token')}" if tokenizer.vocab_size else ""
    yield f"tokenizer: {f'from {tokenizer.from_}' if tokenizer.from_ else tokenizer.type}{n_tokens}"
    yield f"model: {f'{recipe.model.size}, ' if recipe.model.size else ''}{plan.size.parameters:,} parameters"
    yield f"training: {_budget(recipe.training)}; {passes_in_words(plan)}"
    device, _, *others = machine.reasons
    yield f"machine: {device}; precision {str(machine.precision).removeprefix('torch.')}"
    yield from (f"machine: {other}" for other in others)
    yield from _problems(prepared)
    yield "--why also prints all other choices, with the reasons"


def passes_in_words(plan: "Plan") -> str:
    """Say how often training goes through the text, or that contrastive fine-tuning replaces ordinary training."""
    if plan.recipe.finetuning and plan.recipe.finetuning.contrastive:
        return "fits a head, and tunes the encoder contrastively if this helps"
    return f"goes through the text about {amount(plan.epochs, 'time')}"


def _budget(training: "TrainingSettings") -> str:
    """Return the budget of a run in words."""
    if training.minutes is not None:
        return amount(training.minutes, "minute")
    if training.steps is not None:
        return count(training.steps, "step")
    return f"{in_words(training.tokens)} tokens" if training.tokens else amount(training.epochs or 0.0, "epoch")


def _task_and_data(prepared: "Prepared") -> "Iterator[str]":
    """Yield the task and why it was chosen, then the report on the data."""
    yield f"task: {prepared.plan.recipe.task} ({prepared.reason})"
    yield from (f"  {line}" for line in prepared.corpus.report.lines())


def _problems(prepared: "Prepared") -> "Iterator[str]":
    """Yield a warning for each reason why the model may perform poorly, or may not fit in memory."""
    from penwright.workflows.forecast import encoders_beside
    from penwright.workflows.make_trainer import advice_on_memory

    plan = prepared.plan
    if plan.minutes_wanted is not None:
        does = f"sees only {plan.epochs:.1%} of the data" if plan.epochs < 1 else "takes too few steps to learn much"
        yield (
            f"too short: in {amount(plan.recipe.training.minutes or 0.0, 'minute')}, this model {does}. "
            f"Give --minutes {ceil(10 * plan.minutes_wanted) / 10:g} or more"
        )
    if prepared.is_too_large:
        yield f"too large: the model does not fit in the memory of this machine. {advice_on_memory(plan.recipe)}"
    corpus = prepared.corpus
    if prepared.plan.recipe.task == "classify":
        starts = prepared.plan.recipe.finetuning
        if corpus.n_training < FEW_EXAMPLES and not (starts and starts.contrastive):
            yield (
                f"too few texts: a model can only memorise {count(corpus.n_training, 'labelled text')}. To classify "
                "new texts, it needs dozens for each label, or an imported encoder to start from (--from)"
            )
        yield from _note_on_rare_label(prepared)
        for encoder in islice(encoders_beside(prepared), 1):
            yield (
                f"better start: {encoder} holds a pretrained encoder. If it knows the language of these texts, "
                f"a classifier trained with --from {quote(str(encoder))} is usually better after the same time"
            )
    elif corpus.training_bytes < FEW_BYTES and plan.recipe.finetuning is None:  # few texts suffice for fine-tuning
        yield (
            f"too little text: a model can only memorise {count(corpus.training_bytes, 'byte')}. "
            "To do well on new text, it needs a few hundred thousand bytes"
        )


def _note_on_rare_label(prepared: "Prepared") -> "Iterator[str]":
    """Yield advice if one of the labels is far rarer than the others, and the labels are not balanced."""
    counts, recipe = prepared.corpus.label_counts, prepared.plan.recipe
    if recipe.model.balanced or not recipe.gives_one_label:
        return
    rarest, n = min(counts, key=lambda label: counts[label]), sum(counts.values())
    if counts[rarest] * len(counts) <= RARE * n:
        yield (
            f"rare label: {rarest} has {100 * counts[rarest] / n:.2g} % of the texts, and will rarely be predicted. "
            "To find more of its texts, add --balance"
        )


def _in_one_line(example: dict[str, str]) -> str:
    """Format an example on one line: `source => target`, `text => label`, or a line of running text."""
    from penwright.data.profiles import shortened

    return " => ".join(shortened(side, LONGEST_SIDE) for side in example.values())


def warn_of_short_members(member: "Prepared", n_members: int) -> None:
    """Warn if the members have too little time for an ensemble to outperform a single model."""
    from penwright.workflows.ensemble import minutes_for
    from penwright.workflows.forecast import SATURATION

    plan, minutes = member.plan, member.plan.recipe.training.minutes
    if plan.recipe.distillation is not None or minutes is None:
        return
    if plan.minutes_wanted is not None:
        warn(
            f"each of the {n_members} members gets {amount(minutes, 'minute')}, too little to learn from. "
            f"Give --minutes {minutes_for(n_members, plan.minutes_wanted):.2g} or more, or leave out --ensemble"
        )
    elif plan.recipe.task == "generate" and plan.epochs < SATURATION:  # SATURATION was measured only for this task
        enough = minutes_for(n_members, minutes * SATURATION / plan.epochs)
        warn(
            f"each of the {n_members} members goes through the text only about {amount(plan.epochs, 'time')}, and "
            "could learn more from it. In the same time, a single model without --ensemble gets better results. "
            f"An ensemble pays off from about --minutes {enough:.3g}"
        )
