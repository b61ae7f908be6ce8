"""What comes before a run: settings laid over each other, the corpus opened, the recipe planned, nothing written."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path

from penwright.config import (
    BUDGETS,
    Recipe,
    Table,
    Task,
    flatten,
    merge,
    one_or_more,
    read_toml,
    require_writable_cache,
    validate,
)
from penwright.data.corpora import Document, Labelled, Pair, detect_task
from penwright.data.paths import WILDCARD, is_pattern, is_pipe_name
from penwright.data.report import count
from penwright.errors import PenwrightError, Say, UsageError, say_nothing
from penwright.run.folder import Run
from penwright.tasks import TASKS, AnyCorpus, reading_of
from penwright.training.auto.capacity import Facts
from penwright.training.auto.forecast import CONTEXT, MEASURED, Outlook, compressed_bits, outlook_by_epochs, outlook_for
from penwright.training.auto.machine import Machine, choose_machine
from penwright.training.auto.planner import Plan, make_plan
from penwright.training.auto.throughput import pace_on

HEADS = ("n_heads", "n_kv_heads", "d_head")  # settings that must suit the width
N_EXAMPLES = 3  # that are shown before training
FEWEST_CHARACTERS = 100  # that a writer can be trained on
SEEN_FOR_FACTS = 2_000_000  # characters read to see which distinct ones there are


@dataclass(frozen=True)
class Prepared:
    """A plan with the corpus and the machine that it was made for; nothing is written yet."""

    plan: Plan
    corpus: AnyCorpus
    machine: Machine
    reason: str  # for the task

    def __repr__(self) -> str:
        return f"<Prepared on {self.machine.device}: {self.plan!r}>"


def read_recipe(path: Path, above: Table) -> Table:
    """A recipe's tables; without its budget when `above`, which will be laid over it, gives another."""
    return _making_way(read_toml(path), above)


def _making_way(table: Table, above: Table) -> Table:
    """The table without its budget, where the one above it gives another."""
    if "training" not in table or not any(name in above.get("training", {}) for name in BUDGETS):
        return table
    return {**table, "training": {key: value for key, value in table["training"].items() if key not in BUDGETS}}


def prepare(given: Table, say: Say = say_nothing) -> Prepared:
    """Open the corpus, look at the machine, choose what is not `given` (the tables of a recipe)."""
    data = given.get("data", {})
    paths = one_or_more(data.get("train", ()))
    if not paths:
        raise UsageError("nothing to train on: name a file, a folder or hub:NAME")
    require_writable_cache()  # before the text is read
    asked, encoding = given.get("task"), data.get("encoding")
    told = _task_of_told_columns(data)
    task, reason = (asked, "as asked") if asked else told or detect_task(paths, encoding=encoding)
    if task not in TASKS:
        raise UsageError(f"there is no task '{task}'; the tasks are {', '.join(TASKS)}")
    say("reading the text")
    given = _with_pieces_of_teachers(given)
    first = validate(Recipe, _without_open_choices(merge(given, {"task": task})), "the settings")
    corpus = TASKS[first.task].open_corpus(first.data.train, reading_of(first))
    _require_enough(first, corpus)
    machine = choose_machine(first.training)
    facts = _facts(first.task, corpus)
    say("timing a few steps of training on this machine")
    plan = make_plan(facts, given, pace_on(machine, first.task, max(1, len(corpus.labels))), machine.device)
    return Prepared(plan, corpus, machine, reason)


def _require_enough(recipe: Recipe, corpus: AnyCorpus) -> None:
    """Raise PenwrightError for a text of which nothing can be learned."""
    size = corpus.training.n_characters
    if recipe.task == "generate" and size < FEWEST_CHARACTERS:
        raise PenwrightError(
            f"{corpus.files[0].path} is too short to learn from: {count(size, 'character')} beside what is held out. "
            f"Give at least {FEWEST_CHARACTERS}; a model begins to write well with some hundred thousand"
        )


def expect(prepared: Prepared) -> Outlook:
    """What may come of it, told from a compressor on the same text where that says something."""
    corpus, plan = prepared.corpus, prepared.plan
    minutes = plan.recipe.training.minutes
    if plan.recipe.task != "generate":
        return outlook_by_epochs(plan.recipe.task, plan.epochs, minutes)
    before = _beginning(TASKS["generate"].texts(corpus), CONTEXT)
    held_out = (chunk for document in corpus.held_out if isinstance(document, Document) for chunk in document.chunks)
    compressed = compressed_bits(before, _beginning(held_out, MEASURED))
    return outlook_for(compressed, corpus.training_bytes, plan.epochs, minutes)


def _task_of_told_columns(data: Table) -> tuple[str, str] | None:
    """Return the task that the columns named in the settings are for; None where they do not tell."""
    for key, task in (("label", "classify"), ("source", "translate"), ("target", "translate")):
        if data.get(key) is not None:
            return task, f"data.{key} is given"
    return None


def first_examples(corpus: AnyCorpus) -> list[dict[str, str]]:
    """Return the first training examples as the model will see them: pairs, labelled texts, or lines."""
    found: list[dict[str, str]] = []
    for example in islice(corpus.training, N_EXAMPLES):
        match example:
            case Pair() | Labelled():
                found.append(example._asdict())
            case Document():
                lines = (line for chunk in example.chunks for line in chunk.split("\n") if line.strip())
                found += [{"text": line} for line in islice(lines, N_EXAMPLES - len(found))]
    return found


def _beginning(texts: Iterable[str], n_bytes: int) -> bytes:
    found = bytearray()
    for text in texts:
        found += text.encode()
        if len(found) >= n_bytes:
            break
    return bytes(found[:n_bytes])


def _without_open_choices(given: Table) -> Table:
    """Settings that can be checked before the plan is made: what depends on its choices is left to its own check."""
    budget: Table = {} if any(name in given.get("training", {}) for name in BUDGETS) else {"steps": 1}
    table = merge({"model": {}, "training": budget}, given)
    for name in ("optimizer", "schedule"):
        if isinstance(table.get(name), dict) and "type" not in table[name]:  # which is chosen yet
            del table[name]
    model = table["model"]
    if isinstance(model, dict) and not {"size", "d_model"} & set(model):
        table["model"] = {key: value for key, value in model.items() if key not in HEADS}
    return table


def _with_pieces_of_teachers(given: Table) -> Table:
    """With the tokenizer settings of the teachers, if there are any: what they expect is told in their pieces."""
    match given.get("distillation"):
        case {"teachers": [str(teacher), *_]}:
            tokenizer = Run.open(Path(teacher)).recipe.tokenizer
        case _:
            return given
    return merge(given, {"tokenizer": tokenizer.model_dump(exclude_none=True)})


def _facts(task: Task, corpus: AnyCorpus) -> Facts:
    distinct: set[str] = set()
    seen = 0
    for text in TASKS[task].texts(corpus):
        distinct.update(text)
        seen += len(text)
        if seen > SEEN_FOR_FACTS:
            break
    letters = corpus.training.n_characters
    return Facts(task, corpus.n_training, corpus.training_bytes, len(distinct), len(corpus.labels), letters)


def new_run_folder(recipe: Recipe) -> Path:
    """A folder under runs/ named after the text, that does not exist yet."""
    text = recipe.data.train[0].removeprefix("hub:")
    text = "stdin" if is_pipe_name(text) else text
    parts = Path(text).parts
    if is_pattern(text):  # which names no file: the folder before it does
        parts = tuple(takewhile(lambda part: not WILDCARD.search(part), parts))
    name = "".join(parts[-1:]).strip("/").split(".")[0] or "run"
    folders = (Path("runs") / (name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(folder for folder in folders if not folder.exists())


def changed(recipe: Recipe, changes: Table, folder: Path) -> Recipe:
    """The recipe of a run with changes laid over it; a budget given replaces its own."""
    table = _making_way(recipe.model_dump(exclude_none=True), changes)
    return validate(Recipe, merge(table, changes), str(folder))


def require_settings(folder: Path, given: Table) -> None:
    """Raises PenwrightError, naming one, where a run has other settings than these."""
    run = Run.open(folder).recipe
    training = {key: value for key, value in given.get("training", {}).items() if value != "auto"}  # told by now
    asked, begun = (flatten(each.model_dump()) for each in (changed(run, {**given, "training": training}, folder), run))
    for name, value in asked.items():
        if value != begun.get(name):
            raise PenwrightError(
                f"{folder} was begun with another {name}: give the same command again to go on with it, "
                "or choose another --run"
            )
