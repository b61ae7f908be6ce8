"""The trainer of a run, in this process or together with other ranks."""

from collections.abc import Sequence
from pathlib import Path

from penwright.config import Recipe
from penwright.errors import PenwrightError, UsageError
from penwright.model import Model
from penwright.model.size import size_of
from penwright.run.folder import Run
from penwright.tasks import TASKS, RunContext
from penwright.training.auto.machine import Machine, memory_of_rank
from penwright.training.distributed.launcher import note_run
from penwright.training.distributed.parallel import SHARDED_TASKS, choose_parallelism
from penwright.training.observers import Observer, notify
from penwright.training.trainer import Trainer
from penwright.workflows.finetune import with_old_text
from penwright.workflows.load import CORPUS, corpus_record, load

FILES_OF_RANKS = ("tokenizer.json", CORPUS)  # files of the run folder that rank 0 sends to the other ranks


def make_trainer(context: RunContext, machine: Machine, run: Run, observers: Sequence[Observer] = ()) -> Trainer:
    """Return a trainer for the model and the training part of the context.

    If there are other ranks, rank 0 sends them the work, and all wait until every rank is ready.
    """
    assert context.training is not None
    recipe, ranks, work = context.recipe, machine.ranks, None
    if ranks.size > 1 and ranks.leads:
        recipe, reason = _with_parallelism(context, machine)
        notify(observers, "said", f"parallelism: {recipe.training.parallelism}, {reason}")
        note_run(run.folder)
        files = {name: (run.folder / name).read_text(encoding="utf-8") for name in FILES_OF_RANKS}
        stored = recipe.model_dump(mode="json", exclude_none=True)
        resumes = bool(run.checkpoints())
        first = evaluates_first(context, resumes=resumes)
        work = {"recipe": stored, "files": files, "resumes": resumes, "evaluates_first": first}
    ranks.gather_at_start(work)
    batches = with_old_text(context, TASKS[recipe.task].batches(context, context.training))
    return Trainer(context.model, batches, recipe, machine, _teachers(context))


def _with_parallelism(context: RunContext, machine: Machine) -> tuple[Recipe, str]:
    """Return the recipe with DDP or FSDP2 chosen, and the reason."""
    recipe, asked = context.recipe, context.recipe.training.parallelism
    n_labels, n_ranks = max(1, len(context.corpus.labels)), machine.ranks.size
    can_shard = recipe.task in SHARDED_TASKS and recipe.lora is None
    if asked == "fsdp" and not can_shard:
        raise UsageError(f"training.parallelism={asked}: only writers and translators without LoRA can be sharded")
    tokens = recipe.training.batch_tokens // n_ranks
    size = size_of(recipe.task, context.tokenizer.vocab_size, recipe.model, tokens, n_labels)
    chosen, reason = choose_parallelism(size.training_bytes, memory_of_rank(machine.device), can_shard=can_shard)
    if asked != "auto":
        chosen, reason = asked, "as requested"
    training = recipe.training.model_copy(update={"parallelism": chosen})
    return recipe.model_copy(update={"training": training}), reason


def evaluates_first(context: RunContext, *, resumes: bool) -> bool:
    """Return whether to evaluate the base before the first step of a fine-tuned run."""
    return context.recipe.finetuning is not None and not context.has_new_head and not resumes


def _teachers(context: RunContext) -> list[Model]:
    """Load the best models of the teachers. Raise PenwrightError if one of them cannot teach this run."""
    teachers = []
    for folder in context.recipe.distillation.teachers if context.recipe.distillation else ():
        teacher = load(folder, str(context.device), "float32")
        if teacher.tokenizer.fingerprint != context.tokenizer.fingerprint:
            raise PenwrightError(f"{folder} cannot teach this model: it has a different tokenizer")
        if type(teacher.model) is not type(context.model) or getattr(teacher, "labels", ()) != context.card.labels:
            raise PenwrightError(f"{folder} cannot teach this model: its task or its labels differ")
        if corpus_record(Run.open(Path(folder))).fingerprint != context.corpus.fingerprint:
            raise PenwrightError(
                f"{folder} cannot teach this model: it was trained on different data, or on texts held out here. "
                "Train it on the same data with the same data.seed"
            )
        if teacher.model.settings.context_length < context.recipe.model.context_length:
            raise PenwrightError(
                f"{folder} cannot teach this model: its context is {teacher.model.settings.context_length} tokens. "
                f"Add --set model.context_length={teacher.model.settings.context_length}"
            )
        teachers.append(teacher.model)
    return teachers
