"""Plan a run: merge the settings, open the corpus, plan the recipe. Nothing is written."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from pathlib import Path

from penwright.config import (
    BUDGETS,
    DataSettings,
    Recipe,
    Table,
    merge,
    one_or_more,
    read_toml,
    require_known_keys,
    validate,
)
from penwright.data.conversations import Conversation
from penwright.data.corpus import Document, LabelKind, Labelled, Pair, ReadingOptions
from penwright.data.detection import detect_task
from penwright.data.globs import WILDCARD
from penwright.data.paths import is_pattern, is_pipe_name
from penwright.devices import available_memory
from penwright.errors import PenwrightError, Say, Undecided, UsageError, say_nothing
from penwright.formats.tokenizer_source import read_tokenizer_source
from penwright.run.checkpoints import WEIGHTS
from penwright.run.folder import Run
from penwright.storage import require_writable_cache
from penwright.tasks import TASKS, AnyCorpus, reading_of
from penwright.text import BETWEEN_TEXTS, count
from penwright.tokenizers import Tokenizer
from penwright.tokenizers.foreign import ForeignTokenizer
from penwright.training.auto.choices import Plan
from penwright.training.auto.facts import Facts
from penwright.training.auto.machine import Machine, choose_machine
from penwright.training.auto.planner import make_plan
from penwright.training.auto.throughput import throughput_meter
from penwright.workflows.finetune import changed_tokenizer, has_few_labels, require_suitable, share_of_few, with_base
from penwright.workflows.leaks import with_notes_on_held_out
from penwright.workflows.load import open_run
from penwright.workflows.make_trainer import require_dropout, require_no_shared_pipe

SCORE = "score"  # name of the regression task: `classify` with numbers instead of labels
HEADS = ("n_heads", "n_kv_heads", "d_head")  # settings that must be consistent with the width of the model
N_EXAMPLES = 3  # number of examples to show before training
FEWEST_CHARACTERS = 100  # minimum length in characters of a text on which a model can learn to generate text
SEEN_FOR_FACTS = 2_000_000  # maximum number of characters to read for counting the distinct characters


@dataclass(frozen=True)
class Prepared:
    """A plan with its corpus and its machine, before training. Nothing has been written yet."""

    plan: Plan
    corpus: AnyCorpus
    machine: Machine
    reason: str  # why this task was chosen
    tokenizer: Tokenizer | None = None  # the tokenizer, if it is known before training
    replan: Callable[[float], Plan] | None = None  # makes a new plan for a number of minutes, with fresh timings

    @property
    def is_too_large(self) -> bool:
        """Whether the model does not fit in the memory of this machine. Always False on a GPU, and with adapters."""
        is_judged = self.machine.device.type == "cpu" and not self.plan.recipe.lora
        return is_judged and self.plan.size.training_bytes > available_memory()

    def __repr__(self) -> str:
        return f"<Prepared on {self.machine.device}: {self.plan!r}>"


def read_recipe(path: Path, above: Table) -> Table:
    """Read a recipe as a table. Drop its budget if the overriding settings (`above`) contain a budget.

    Raises UsageError, naming the file, for unknown keys and invalid values.
    """
    table = read_toml(path)
    require_known_keys(Recipe, _without_open_choices(without_score_task(table)), str(path))
    return _without_replaced_budget(table, above)


def _without_replaced_budget(table: Table, above: Table) -> Table:
    """Remove the budget from a recipe's table if the overriding settings (`above`) contain a budget."""
    if "training" not in table or not any(name in above.get("training", {}) for name in BUDGETS):
        return table
    return {**table, "training": {key: value for key, value in table["training"].items() if key not in BUDGETS}}


def prepare(settings: Table, say: Say = say_nothing) -> Prepared:
    """Open the corpus, choose the device, and choose every setting that `settings` leaves open."""
    data = settings.get("data", {})
    paths = one_or_more(data.get("train", ()))
    if not paths:
        raise UsageError("nothing to train on: name a file, a folder or hub:NAME")
    require_no_shared_pipe([*paths, *one_or_more(data.get("validation", ()))])
    require_writable_cache()  # if the cache is not writable, fail before the text is read
    settings = without_score_task(settings)
    requested, encoding = settings.get("task"), data.get("encoding")
    implied = _task_of_columns(data)
    try:
        task, reason = (requested, "as requested") if requested else implied or detect_task(paths, encoding=encoding)
    except Undecided:
        validate(DataSettings, data, "the settings: [data]")  # if a key is misspelled, report that instead
        raise
    if task not in TASKS:
        raise UsageError(f"there is no task '{task}'; the tasks are {', '.join([*TASKS, SCORE])}")
    settings, tokenizer = _with_existing_tokenizer({**settings, "task": task})
    settings = with_base(_with_teacher_tokenizer(settings))
    first = validate(Recipe, _without_open_choices(merge(settings, {"task": task})), "the settings")
    say("reading the text")
    reading = _reading(first, settings)
    corpus = TASKS[first.task].open_corpus(first.data.train, reading)
    if (are_few := has_few_labels(first, settings, corpus)) and (share := share_of_few(first, settings)):
        settings = merge(settings, {"data": {"held_out": share}})
        corpus = TASKS[first.task].open_corpus(first.data.train, replace(reading, held_out=share))
    settings = merge(settings, _found_in(corpus))
    if tokenizer is None and (tokenizer := changed_tokenizer(first, corpus, say)):
        settings = merge(settings, {"tokenizer": {"vocab_size": tokenizer.vocab_size}})
    require_suitable(first, corpus, tokenizer, say)
    _require_enough(first, corpus)
    machine = choose_machine(first.training)
    facts = _facts(first, corpus)._replace(has_few_labels=are_few)
    say("timing a few training steps on this machine")
    measure = throughput_meter(machine, first.task, len(corpus.labels), first.lora)
    plan = make_plan(facts, settings, measure, machine.device)
    require_dropout(plan.recipe)
    hints = plan.recipe.data.dictionary_hints

    def replan(minutes: float) -> Plan:
        changes: Table = {"training": {"minutes": minutes}, "data": {"dictionary_hints": hints}}
        return make_plan(facts, merge(settings, changes), measure, machine.device)

    if hints and hints != reading.hints:  # chosen by the plan
        corpus = TASKS[first.task].open_corpus(first.data.train, replace(reading, hints=hints))
    if first.task != "chat":
        corpus = with_notes_on_held_out(corpus, say)
    return Prepared(plan, corpus, machine, reason, tokenizer, replan)


def without_score_task(settings: Table) -> Table:
    """Return the settings with the task `score` replaced by `classify` with regression."""
    if settings.get("task") != SCORE:
        return settings
    return merge(settings, {"task": "classify", "model": {"problem_type": "regression"}})


def _reading(recipe: Recipe, settings: Table) -> ReadingOptions:
    """Return the options for reading files. The label kind and text pairs are detected unless `settings` sets them."""
    reading, separator, model = reading_of(recipe), recipe.data.label_separator, settings.get("model", {})
    columns = reading.columns
    if "problem_type" not in model:
        kind = LabelKind("multi_label_classification", separator) if separator else None
        columns = replace(columns, label_kind=kind)
    return replace(reading, columns=columns if "text_pairs" in model else replace(columns, text_pairs=None))


def _found_in(corpus: AnyCorpus) -> Table:
    """Return the settings that the labels and text pairs of a corpus require; {} if there is nothing special."""
    pairs: Table = {"model": {"text_pairs": True}} if corpus.text_pairs else {}
    if corpus.label_kind in (None, LabelKind()):
        return pairs
    problem_type, separator = corpus.label_kind
    data: Table = {"data": {"label_separator": separator}} if separator else {}
    return merge(pairs, {"model": {"problem_type": problem_type}}, data)


def _require_enough(recipe: Recipe, corpus: AnyCorpus) -> None:
    """Raise PenwrightError if the text is too short to learn from."""
    size = corpus.training.n_characters
    if recipe.task in ("generate", "encode") and size < FEWEST_CHARACTERS:
        raise PenwrightError(
            f"{corpus.files[0].path} is too short to learn from: {count(size, 'character')} without the held-out set. "
            f"Give at least {FEWEST_CHARACTERS}; a model begins to write well with a few hundred thousand"
        )


def _task_of_columns(data: Table) -> tuple[str, str] | None:
    """Return the task that the given columns imply, and the reason. Return None if they imply no task."""
    tasks = {"label": "classify", "label_separator": "classify", "source": "translate", "target": "translate"}
    return next(((task, f"data.{key} is set") for key, task in tasks.items() if data.get(key) is not None), None)


def first_examples(corpus: AnyCorpus) -> list[dict[str, str]]:
    """Return the first training examples as the model will see them: pairs, labelled texts, or lines."""
    collected: list[dict[str, str]] = []
    for example in islice(corpus.training, N_EXAMPLES):
        match example:
            case Pair():
                collected.append(example._asdict())
            case Labelled():
                text = example.text.replace(BETWEEN_TEXTS, " | ")
                collected.append({"text": text, "label": ", ".join(example.labels)})
            case Conversation(messages=(*_, prompt, answer)):
                collected.append({"prompt": prompt.content, "answer": answer.content})
            case Document():
                lines = (line for chunk in example.chunks for line in chunk.split("\n") if line.strip())
                collected += [{"text": line} for line in islice(lines, N_EXAMPLES - len(collected))]
    return collected


def _without_open_choices(settings: Table) -> Table:
    """Return the settings that can be checked before planning. Drop those that depend on choices not yet made."""
    training = settings.get("training", {})
    lacks_budget = isinstance(training, dict) and not any(name in training for name in BUDGETS)
    table = merge({"model": {}, "training": {"steps": 1} if lacks_budget else {}}, settings)
    for name in ("optimizer", "schedule"):
        # a table without a type cannot be checked until the planner has chosen the type
        if isinstance(table.get(name), dict) and "type" not in table[name]:
            del table[name]
    model = table["model"]
    if isinstance(model, dict) and not {"size", "d_model"} & set(model):
        table["model"] = {key: value for key, value in model.items() if key not in HEADS}
    return table


def _with_existing_tokenizer(settings: Table) -> tuple[Table, Tokenizer | None]:
    """Return the tokenizer that `tokenizer.from` names, if there is one, and the settings with its type and size.

    Raises UsageError for a setting that contradicts the tokenizer.
    """
    match settings:
        case {"tokenizer": {"from": str(source)}} if not settings.get("finetuning") and not settings.get(
            "distillation"
        ):
            tokenizer = read_tokenizer_source(source)
        case _:
            return settings, None
    is_foreign = isinstance(tokenizer, ForeignTokenizer)
    actual = {
        "type": "imported" if is_foreign else tokenizer.kind,
        "vocab_size": tokenizer.vocab_size,
        "prefix_space": not is_foreign and tokenizer.prefix_space,
    }
    for name, value in settings["tokenizer"].items():
        if actual.get(name, value) != value:
            problem = f"tokenizer.{name} = {value!r}, but the tokenizer of {source} has {actual[name]!r}"
            raise UsageError(f"{problem}. Leave out this setting")
    return {**settings, "tokenizer": {**settings["tokenizer"], **actual}}, tokenizer


def _with_teacher_tokenizer(settings: Table) -> Table:
    """Add the tokenizer settings of the teachers, if there are any: a student must use the same tokens."""
    match settings.get("distillation"):
        case {"teachers": [str(teacher), *_]} if not settings.get("finetuning"):  # a base has its own tokenizer
            tokenizer = Run.open(Path(teacher)).recipe.tokenizer
        case _:
            return settings
    return merge(settings, {"tokenizer": tokenizer.model_dump(exclude_none=True)})


def _facts(recipe: Recipe, corpus: AnyCorpus) -> Facts:
    distinct, seen = set[str](), 0
    for text in TASKS[recipe.task].texts(corpus):
        distinct.update(text)
        seen += len(text)
        if seen > SEEN_FOR_FACTS:
            break
    n_examples, n_bytes, n_characters = corpus.n_training, corpus.training_bytes, corpus.training.n_characters
    teachers = [open_run(teacher).best for teacher in recipe.distillation.teachers] if recipe.distillation else []
    teacher_bytes = sum((teacher.folder / WEIGHTS).stat().st_size for teacher in teachers)
    return Facts(recipe.task, n_examples, n_bytes, len(distinct), len(corpus.labels), n_characters, teacher_bytes)


def new_run_folder(recipe: Recipe) -> Path:
    """Return a folder under runs/ that does not exist yet, named after the text."""
    text = recipe.data.train[0].removeprefix("hub:")
    text = "stdin" if is_pipe_name(text) else text
    parts = Path(text).parts
    if is_pattern(text):  # name the run after the last folder before the first wildcard
        parts = tuple(takewhile(lambda part: not WILDCARD.search(part), parts))
    name = "".join(parts[-1:]).strip("/").split(".")[0] or "run"
    folders = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(folder for folder in folders if not folder.exists())


def apply_changes(recipe: Recipe, changes: Table, folder: Path) -> Recipe:
    """Return the recipe of a run with these changes. A new budget replaces the old budget."""
    table = _without_replaced_budget(recipe.model_dump(exclude_none=True), changes)
    return validate(Recipe, merge(table, changes), str(folder))
