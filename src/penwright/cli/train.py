"""The `penwright train` command: train a model on your own text."""

import shlex
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
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
    without_none,
)
from penwright.cli.plan_report import Form, show_dry_run, show_plan, warn_of_short_members
from penwright.errors import PenwrightError, UsageError

if TYPE_CHECKING:
    from penwright.config import Table
    from penwright.training.observers import Observer
    from penwright.workflows.plan import Prepared

LONGEST_EXAMPLE = 80  # maximum number of characters of the prompt in a suggested command
NProcesses = Annotated[
    int | None,
    typer.Option(
        help="Number of training processes (one per GPU, or a split of the CPU cores). Default: 1.",
        metavar="N",
        min=1,
    ),
]
Restarts = Annotated[
    int,
    typer.Option(
        help="With --processes: number of times that training restarts after a process was killed.",
        metavar="N",
        min=0,
    ),
]
NewRun = Annotated[Path | None, typer.Option(help="Folder for the new run. Default: runs/NAME, named after the data.")]
Seed = Annotated[int | None, typer.Option(help="Random seed. Default: 1.")]
NMembers = Annotated[
    int | None, typer.Option(help="Train N models, and distill them into one.", metavar="N", min=2, max=64)
]
BaseRun = Annotated[
    Path | None,
    typer.Option("--from", help="Fine-tune the model of this run, or of any source that `penwright import` accepts."),
]
KeptShare = Annotated[
    float | None,
    typer.Option(help="With --from: share of batches to take from the training text of that run, such as 0.2."),
]
Trim = Annotated[
    bool,
    typer.Option(
        "--trim-vocabulary", help="With --from: drop tokens from the vocabulary if the text does not use them."
    ),
]
NewTokens = Annotated[
    str | None,
    typer.Option(
        "--add-tokens", help="With --from: add N tokens learned from the text, or the words in FILE.", metavar="N|FILE"
    ),
]
LoraRank = Annotated[
    int | None, typer.Option(help="With --from: train LoRA adapters of this rank, and no other weights.")
]
ResumedRun = Annotated[
    Path | None,
    typer.Option(help="Resume this run, on its own data. With a budget (--minutes, --steps), train that much longer."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan with its reasons, then exit.")]
Why = Annotated[bool, typer.Option("--why", help="Before training, print every choice with its reason.")]
PrintRecipe = Annotated[
    bool, typer.Option("--print-recipe", help="Print the recipe (all settings, as TOML), then exit.")
]


def command(
    data: Data = None,
    task: TaskName = None,
    run: NewRun = None,
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
    seed: Seed = None,
    set_: AnySetting = None,
    ensemble: NMembers = None,
    from_: BaseRun = None,
    keep_old: KeptShare = None,
    trim_vocabulary: Trim = False,
    add_tokens: NewTokens = None,
    lora: LoraRank = None,
    resume: ResumedRun = None,
    processes: NProcesses = None,
    max_restarts: Restarts = 0,
    why: Why = False,
    dry_run: DryRun = False,
    print_recipe: PrintRecipe = False,
    json: Json = False,
) -> None:
    """Train a model on your own text.

    Settings that you leave out are chosen for the data and the machine; --why prints the reasons.
    Ctrl+C saves the run; --resume continues it, bit for bit.
    """
    if processes is None:
        refuse_unused({"--max-restarts": max_restarts or None}, "without --processes")
    budget = {"minutes": minutes, "steps": steps, "epochs": epochs}
    files: dict[str, object] = {"train": data, "validation": validation, "dictionary": dictionary, "group": group}
    flags = {
        **training_flags(files, columns, task, size, tokenizer, balance=balance, **budget),
        **without_none({"seed": seed, "lora": None if lora is None else {"rank": lora}}),
        "finetuning": _finetuning_flags(from_, keep_old, trim_vocabulary, add_tokens),
    }
    form: Form | None = "recipe" if print_recipe else None if not dry_run else "json" if json else "plan"
    _require_consistent(from_, run, resume, ensemble, shows_plan=form is not None or why)
    work = partial(_work, settings_of(recipe, flags, set_ or []), run, resume, ensemble, form, json=json, why=why)
    _run_in_processes(processes, max_restarts, work)


def _finetuning_flags(
    base: Path | None, keep_old: float | None, trim_vocabulary: bool, add_tokens: str | None
) -> dict[str, object]:
    """Return the [finetuning] settings that --from and the options for it stand for."""
    tokens = int(add_tokens) if add_tokens and add_tokens.isdecimal() else add_tokens
    trim = trim_vocabulary or None
    return without_none(
        {"base": base and str(base), "keep_old": keep_old, "trim_vocabulary": trim, "add_tokens": tokens}
    )


def _require_consistent(
    base: Path | None, run: Path | None, resume: Path | None, ensemble: int | None, *, shows_plan: bool
) -> None:
    """Raise UsageError if mutually exclusive options are combined."""
    if base is not None and ensemble is not None:
        raise UsageError("--ensemble trains new models. To start from an existing run, leave out --ensemble")
    if resume is not None and ensemble is not None:
        raise UsageError("--resume does not continue an ensemble. Repeat the command that started it, without --resume")
    if resume is not None and run is not None:
        raise UsageError(
            "--resume trains a run in its own folder: leave out --run. To start a new run from it, use --from"
        )
    if resume is not None and shows_plan:
        raise UsageError("--resume does not make a plan. To print the recipe of a run: penwright config RUN")


def _work(
    settings: "Table",
    run: Path | None,
    resume: Path | None,
    ensemble: int | None,
    form: "Form | None",
    *,
    json: bool,
    why: bool,
) -> None:
    """Print what would be trained, resume a run, or train."""
    if form is not None:
        show_dry_run(settings, run, ensemble, form)
    elif resume is not None:
        _resume(resume, settings, json)
    elif ensemble is None and (restarted := _run_before_restart(run)):
        _resume(restarted, {}, json)
    else:
        _train(settings, run, ensemble, json, why)


def _run_in_processes(processes: int | None, max_restarts: int, work: Callable[[], None]) -> None:
    """Call `work` in this process, or launch several ranks that rerun this command; rank 0 directs the others."""
    from penwright.training.distributed.launcher import is_launched, launch, leave_rank

    if is_launched():
        from penwright.workflows.resume import follow

        code: object = 0
        try:
            if not follow():
                work()
        except SystemExit as end:
            code = end.code
        except PenwrightError as error:
            print(f"penwright: {error}", file=sys.stderr)
            code = error.exit_code
        raise typer.Exit(leave_rank(code if isinstance(code, int) else 1))
    if processes is not None and processes > 1:
        raise typer.Exit(launch(processes, ["penwright", *sys.argv[1:]], max_restarts))
    work()


def _run_before_restart(run: Path | None) -> Path | None:
    """Return the run to resume if torchrun restarted this process after it had begun a run, otherwise None."""
    from penwright.run.folder import CORPUS, Run
    from penwright.training.distributed.launcher import run_to_restart
    from penwright.workflows.make_trainer import is_restarted

    folder = run_to_restart(run) or (run if run and is_restarted(Run(run)) else None)
    return folder if folder and (folder / CORPUS).exists() else None


def _train(settings: "Table", run: Path | None, n_members: int | None, json: bool, why: bool) -> None:
    """Train a new run or an ensemble, and print how to use it."""
    from penwright.run.folder import require_unused
    from penwright.training.distributed.launcher import ENSEMBLE, note_run, run_to_restart
    from penwright.training.progress import observers_of
    from penwright.workflows.plan import new_run_folder
    from penwright.workflows.train import train

    if run is not None and n_members is None:
        require_unused(run)  # if the folder is in use, fail before any work is done
    settings, prepared = prepare_by_asking(settings, run)
    folder = run or run_to_restart(None, ENSEMBLE) or new_run_folder(prepared.plan.recipe)
    if n_members is not None:
        note_run(folder, ENSEMBLE)
        _train_ensemble(settings, n_members, folder, json, why)
    else:
        show_plan(prepared, folder, json, why)
        train(prepared, folder, observers_of(folder))
    _finish(folder, prepared.plan.recipe.task, json)


def _train_ensemble(settings: "Table", n_members: int, folder: Path, json: bool, why: bool) -> None:
    """Train an ensemble, and show the plan of each member."""
    from penwright.training.progress import observers_of
    from penwright.workflows.ensemble import train_ensemble

    has_warned = False

    def watch(run: Path, prepared: "Prepared | None") -> "list[Observer]":
        nonlocal has_warned
        if prepared is not None:
            show_plan(prepared, run, json, why)
            if not has_warned:
                warn_of_short_members(prepared, n_members)
                has_warned = True
        return observers_of(run)

    train_ensemble(settings, n_members, folder, watch)


def _resume(folder: Path, changes: "Table", json: bool) -> None:
    """Resume a run, and print how to use it once it is finished."""
    from penwright.run.folder import Run
    from penwright.training.progress import observers_of
    from penwright.workflows.resume import resume

    resume(folder, changes, observers_of(folder))
    _finish(folder, Run.open(folder).recipe.task, json)


def _finish(folder: Path, task: str, json: bool) -> None:
    """Print that training is done, and suggest the next commands to try."""
    from penwright.streams import print_message

    if json:
        print_json({"run": folder, "task": task, "finished": True})
        return
    command, quoted = "embed" if task == "encode" else task, shlex.quote(str(folder))
    example = _example(folder)
    print_message(f"\nDone. Try next:\n  penwright {command} {quoted} {example}\n  penwright evaluate {quoted}")


def _example(folder: Path) -> str:
    """Return a held-out prompt to try the model with, quoted for a shell."""
    from penwright.run.folder import Run
    from penwright.run.records import SAMPLES

    prompts = [record["prompt"].strip() for record in Run.open(folder).records(SAMPLES)]
    short = [prompt for prompt in prompts if 0 < len(prompt) <= LONGEST_EXAMPLE and "\n" not in prompt]
    plain = [prompt for prompt in short if "'" not in prompt] or short  # shell quoting makes apostrophes hard to read
    return shlex.quote(plain[-1] if plain else "...")
