"""The context and the trainer of a run, in this process or together with other ranks."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import time_ns

import torch

from penwright.config import Recipe
from penwright.data.blocks import is_pipe
from penwright.data.corpus import Labelled
from penwright.data.paths import is_pipe_name
from penwright.devices import available_memory
from penwright.errors import PenwrightError, UsageError
from penwright.model import Model, make_model
from penwright.model.size import size_of_recipe
from penwright.model.transformer import DecoderOnly, EncoderOnly
from penwright.model.weights import freeze_embeddings, start_from_bigrams
from penwright.run.checkpoint_folder import CHECKPOINTS
from penwright.run.checkpoints import Checkpoint, folder_name
from penwright.run.folder import CORPUS, JOB, TOKENIZER, Run
from penwright.run.provenance import corpus_record
from penwright.tasks import TASKS, AnyCorpus, RunContext, make_card, reading_of, token_store
from penwright.tasks.chat import longest_conversation
from penwright.text import count
from penwright.tokenizers import Tokenizer
from penwright.training.auto.machine import Machine, memory_of_rank
from penwright.training.distributed.launcher import env_int, job, note_run
from penwright.training.distributed.parallel import SHARDED_TASKS, ShardedSaver, choose_parallelism
from penwright.training.distributed.ranks import Ranks, joined
from penwright.training.observers import Observer, notify
from penwright.training.trainer import Trainer
from penwright.workflows.background import BYTES_PER_PARAMETER, COMPILER_BYTES, is_possible
from penwright.workflows.evaluate import is_trained_on, require_unchanged
from penwright.workflows.finetune import start_from_base
from penwright.workflows.load import load, open_base, require_shapes
from penwright.workflows.old_text import with_old_text

FILES_OF_RANKS = (TOKENIZER, CORPUS)  # files of the run folder that rank 0 sends to the other ranks


def make_context(
    recipe: Recipe,
    corpus: AnyCorpus,
    tokenizer: Tokenizer,
    device: torch.device,
    run: Run | None = None,
    *,
    is_new: bool,
) -> RunContext:
    """Store the tokens of the corpus, and initialize the model. If there is a base model, load its weights.

    A resumed `run` loads a checkpoint afterwards, but not the base weights that adapters and averages with them need.
    """
    training = token_store(recipe.task, corpus, tokenizer, corpus.labels, held_out=False)
    held_out = token_store(recipe.task, corpus, tokenizer, corpus.labels, held_out=True)
    model = make_model(recipe.task, tokenizer.vocab_size, recipe.model, len(corpus.labels), recipe.lora)
    if isinstance(model, EncoderOnly):
        _measure_labels(model, corpus)
        if model.settings.balanced and is_new and recipe.finetuning is None:
            model.output.get_parameter("bias").data.copy_(model.log_prior)
    needs_base = is_new or recipe.lora or (recipe.finetuning and recipe.finetuning.base_weight)
    has_new_head = bool(needs_base) and start_from_base(model, recipe, tokenizer, corpus.labels, run)
    if recipe.finetuning and recipe.finetuning.contrastive:
        has_new_head = True  # contrastive fine-tuning fits a new head even if the base has the same labels
    if recipe.finetuning and recipe.finetuning.freeze_embeddings:
        freeze_embeddings(model)
    if isinstance(model, DecoderOnly) and is_new and recipe.training.bigram_init:
        start_from_bigrams(model, training.column("text").tokens)
    base = open_base(recipe).card if recipe.finetuning and is_new else None
    card = make_card(corpus, training, tokenizer, recipe.data, base)
    if joined().size == 1 or not _can_shard(recipe):  # otherwise, the trainer moves the model, or its shard
        model.to(device)
    return RunContext(recipe, corpus, tokenizer, training, held_out, model, device, card, has_new_head=has_new_head)


def reopen(
    run: Run, recipe: Recipe, machine: Machine, checkpoint: Checkpoint | None = None, *, is_new: bool = False
) -> RunContext:
    """Open the corpus and the tokenizer, and initialize the model. Raise PenwrightError if the text has changed."""
    torch.manual_seed(recipe.seed)
    corpus = TASKS[recipe.task].open_corpus(recipe.data.train, reading_of(recipe, corpus_record(run).columns))
    if machine.ranks.is_main:
        advice = "Restore the original data to resume, or train a new run with a different --run."
        require_unchanged(run, corpus, advice)
    elif not is_trained_on(corpus_record(run), corpus):
        what = f"rank {machine.ranks.rank} reads other text from {', '.join(recipe.data.train)} than rank 0"
        raise PenwrightError(f"{what}. Copy the same files to each machine")
    tokenizer = Tokenizer.load(run.tokenizer_path)
    if checkpoint:
        require_shapes(checkpoint, recipe, tokenizer.vocab_size, len(corpus.labels))
    context = make_context(recipe, corpus, tokenizer, machine.device, run, is_new=is_new)
    card = corpus_record(run).card  # its limit and languages may be those of the base
    limit, languages, hints = card.max_source_tokens, card.languages, card.hints
    card = replace(context.card, max_source_tokens=limit, languages=languages, hints=hints)
    return replace(context, card=card)


def _measure_labels(model: EncoderOnly, corpus: AnyCorpus) -> None:
    """Store what a classifier must know of its training labels: their shares, or the mean and deviation of scores."""
    if model.settings.balanced:
        counts = torch.tensor([float(n) for n in corpus.label_counts.values()])
        model.log_prior.copy_((counts / counts.sum()).log())
    if model.settings.problem_type == "regression":
        scores = [float(example.label) for example in corpus.training if isinstance(example, Labelled)]
        numbers = torch.tensor(scores, dtype=torch.double)  # float32 is too inexact for large numbers such as times
        model.scale.copy_(torch.stack([numbers.mean(), numbers.std(correction=0).clamp(min=1e-6)]))


def make_trainer(
    context: RunContext, machine: Machine, run: Run, observers: Sequence[Observer] = (), shared: str | None = None
) -> Trainer:
    """Return a trainer for the model and the training set of the context.

    If there are other ranks, rank 0 sends them the work, and all wait until every rank is ready. The other
    ranks pass `shared`, the path of a temporary folder that rank 0 has made. If all ranks see this folder, they
    share a disk.
    """
    assert context.training is not None
    recipe, ranks, work = context.recipe, machine.ranks, None
    require_dropout(recipe)
    if ranks.size > 1 and ranks.is_main:
        recipe, reason = _with_parallelism(context, machine)
        notify(observers, "message", f"parallelism: {recipe.training.parallelism}, {reason}")
        note_run(run.folder)
        if job() and not is_restarted(run):
            run.write_json(JOB, {"id": job(), "step": run.checkpoints.last_step()})
        files = {name: (run.folder / name).read_text(encoding="utf-8") for name in FILES_OF_RANKS}
        stored = recipe.model_dump(mode="json", exclude_none=True)
        resumes = bool(run.checkpoints.all())
        first = evaluates_first(context, resumes=resumes)
        work = {"recipe": stored, "files": files, "resumes": resumes, "evaluates_first": first}
        if recipe.training.parallelism == "fsdp":
            work["shared"] = shared = str(_temporary_folder(run))
    ranks.gather_at_start(work)
    batches = with_old_text(context, TASKS[recipe.task].batches(context, context.training))
    later = not context.skips_training and compiles_later(
        recipe, machine, context.tokenizer.vocab_size, len(context.corpus.labels)
    )
    trainer = Trainer(context.model, batches, recipe, machine, _teachers(context), compiles_later=later)
    if context.skips_training:
        trainer.state.total_steps = 0
    if shared is not None:
        trainer.saver = _make_saver(ranks, Path(shared), observers)
    return trainer


def compiles_later(recipe: Recipe, machine: Machine, vocab_size: int, n_labels: int) -> bool:
    """Return whether another process can compile the training steps while this process takes the first ones.

    It needs a processor and memory of its own, and reads the text again, which pipes do not allow. The clock decides
    which steps are compiled, so runs of a given number of steps, which are repeatable, do not need it. Adapters are
    compiled only in long runs.
    """
    if machine.device.type != "cpu" or machine.ranks.size > 1 or recipe.training.minutes is None or recipe.lora:
        return False
    has_pipes = any(is_pipe(Path(path)) for path in (*recipe.data.train, *recipe.data.validation))
    if torch.get_num_threads() < 2 or recipe.distillation or has_pipes or not is_possible():
        return False
    size = size_of_recipe(recipe, vocab_size, n_labels)
    # the decoding steps may be compiled at the same time
    compilers = 2 * COMPILER_BYTES + BYTES_PER_PARAMETER * size.parameters
    return available_memory() >= 2 * size.training_bytes + compilers


def require_no_shared_pipe(paths: Sequence[str]) -> None:
    """Raise UsageError if several ranks would read the same pipe. Each rank reads all of the text."""
    if joined().size > 1 and any(is_pipe_name(path) or is_pipe(Path(path)) for path in paths):
        raise UsageError("several processes cannot read the same pipe. Save the text as a file")


def require_dropout(recipe: Recipe) -> None:
    """Raise UsageError for `training.consistency` without dropout."""
    rates = (recipe.model.dropout, recipe.model.attention_dropout, recipe.model.feed_forward_dropout)
    if recipe.training.consistency and not any(rates):
        raise UsageError(
            "[training] consistency needs dropout, so that two passes differ: set model.dropout, or set "
            "training.consistency to 0"
        )


def advice_on_memory(recipe: Recipe) -> str:
    """Return advice for a model that does not fit in memory. A base model keeps its size."""
    if recipe.finetuning:
        return "Train adapters (--lora 8), lower training.batch_tokens, or start from a smaller model"
    return "Choose a smaller --size"


def skipped_text(trainer: Trainer, recipe: Recipe) -> Iterator[str]:
    """Yield notices about texts that training leaves out, or uses only in part."""
    batches, reach = trainer.batches, recipe.model.context_length
    if n := batches.n_left_out:
        yield f"left out: {count(n, 'pair')} longer than {reach} tokens, the limit of the model's learned positions"
    if n := batches.n_cut if recipe.model.text_pairs else 0:
        yield f"{count(n, 'pair')} longer than the context of {reach} tokens: the end of the longer text is cut off"
    elif n := batches.n_cut if recipe.task == "chat" else 0:
        longest = longest_conversation(recipe)
        more = "; training.batch_tokens raises this limit" if longest < reach else ""
        yield f"{count(n, 'conversation')} longer than {longest} tokens: only the end is used{more}"
    elif n := batches.n_cut:
        yield f"{count(n, 'text')} longer than the context of {reach} tokens: each epoch uses a different part"


def _temporary_folder(run: Run) -> Path:
    """Make a temporary folder beside the checkpoints. Resuming deletes it, as it deletes unfinished checkpoints."""
    folder = run.real_folder.absolute() / CHECKPOINTS / f"{folder_name(0)}.tmp-{time_ns()}"
    folder.mkdir(parents=True)
    return folder


def _make_saver(ranks: Ranks, shared: Path, observers: Sequence[Observer]) -> ShardedSaver | None:
    """Return a saver if all ranks see the shared folder, otherwise None: rank 0 then saves the whole state."""
    is_shared = ranks.all_agree(shared.is_dir())
    if ranks.is_main:
        shared.rmdir()
    if is_shared:
        return ShardedSaver(ranks, shared.parent, shared.suffix)
    notify(observers, "message", "the processes do not share a disk, so rank 0 collects the training state to save it")
    return None


def is_restarted(run: Run) -> bool:
    """Return whether torchrun has restarted the job that began or resumed this run.

    The restart count of a process does not show this: on several machines, only one agent counts a restart.
    """
    with suppress(PenwrightError):
        return job() is not None and run.read_json(JOB).get("id") == job()
    return False


def has_extended(run: Run) -> bool:
    """Return whether this job has already extended the budget, so that a restart must not extend it again.

    This is so if the job saved a checkpoint after it resumed the run. But if the run is finished and the process was
    not restarted, this is a new job with the same id, which may extend the budget.
    """
    is_new_request = run.is_finished and not env_int("TORCHELASTIC_RESTART_COUNT", 0)
    return is_restarted(run) and run.checkpoints.last_step() > run.read_json(JOB).get("step", 0) and not is_new_request


def _with_parallelism(context: RunContext, machine: Machine) -> tuple[Recipe, str]:
    """Return the recipe with DDP or FSDP2 chosen, and the reason."""
    recipe, requested = context.recipe, context.recipe.training.parallelism
    can_shard = _can_shard(recipe)
    if requested == "fsdp" and not can_shard:
        raise UsageError(
            f"training.parallelism={requested}: only language models and translators without LoRA can be sharded"
        )
    n_labels, n_ranks = len(context.corpus.labels), machine.ranks.size
    size = size_of_recipe(recipe, context.tokenizer.vocab_size, n_labels, n_ranks)
    chosen, reason = choose_parallelism(size.training_bytes, memory_of_rank(machine.device), can_shard=can_shard)
    if requested != "auto":
        chosen, reason = requested, "as requested"
    training = recipe.training.model_copy(update={"parallelism": chosen})
    return recipe.model_copy(update={"training": training}), reason


def _can_shard(recipe: Recipe) -> bool:
    return recipe.task in SHARDED_TASKS and recipe.lora is None


def evaluates_first(context: RunContext, *, resumes: bool) -> bool:
    """Return whether to evaluate the base model before the first step of a fine-tuning run."""
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
        if not is_trained_on(corpus_record(Run.open(Path(folder))), context.corpus):
            raise PenwrightError(
                f"{folder} cannot teach this model: it was trained on different data, or on texts that "
                "are held out in this run. Train it on the same data with the same data.seed"
            )
        if teacher.model.settings.context_length < context.recipe.model.context_length:
            raise PenwrightError(
                f"{folder} cannot teach this model: its context is {teacher.model.settings.context_length} tokens. "
                f"Add --set model.context_length={teacher.model.settings.context_length}"
            )
        teachers.append(teacher.model)
    return teachers
