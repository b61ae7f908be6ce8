"""Fine-tuning: a run starts from the tokenizer and the weights of another run, which is called its base."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penwright.config import Recipe, Table, merge
from penwright.data.batches import Batches
from penwright.data.bucketing import AnyBatches
from penwright.data.mixing import MixedBatches
from penwright.errors import PenwrightError, Say, UsageError
from penwright.languages import languages_between
from penwright.model import HEAD, Model
from penwright.model.weights import start_from, weights_for
from penwright.tasks import TASKS, AnyCorpus, RunContext, reading_of
from penwright.tokenizers import Tokenizer
from penwright.workflows.consistency import MAY_CHANGE
from penwright.workflows.evaluate import columns_of_training, recipe_here, require_unchanged
from penwright.workflows.load import corpus_record, open_base, open_run

SAMPLE = 1_000_000  # number of characters to check against the tokenizer of the base
MOST_UNKNOWN = 0.2  # maximum share of characters that the tokenizer of the base does not know


def with_base(given: Table) -> Table:
    """Add the tokenizer, the model and the task of the base, if there is one, to the settings of a new run.

    Raises UsageError for a setting that would change the model.
    """
    match given.get("finetuning"):
        case {"base": str(folder)}:
            base = open_run(folder)
        case _:
            return given
    weights_for(given["task"], base.recipe.task, {})  # raises PenwrightError if the weights do not fit the task
    chosen = {"ngrams", "balanced"}
    if base.recipe.tokenizer.type != "imported":
        chosen |= {"dropout"}  # a pretrained model keeps its own dropout, which is 0 for most writers
    if given["task"] != base.recipe.task:
        chosen |= {"token_dropout", "n_decoder_layers"}
    model = base.recipe.model.model_dump(exclude_none=True, exclude=chosen)
    for name, value in given.get("model", {}).items():
        if name == "size" or (name not in MAY_CHANGE | chosen and model.get(name) != value):
            raise UsageError(f"model.{name} cannot be set: the model of {folder} keeps its size and its parts")
    if given.get("tokenizer"):
        raise UsageError(f"[tokenizer] cannot be set: the model of {folder} keeps its tokenizer")
    tokenizer = base.recipe.tokenizer.model_dump() | {"vocab_size": base.tokenizer.vocab_size}
    chat = {"chat": base.recipe.chat.model_dump()} if base.recipe.chat else {}
    own = {"base_sha256": base.best.weights_sha256}
    return merge({"tokenizer": tokenizer, "model": model, **chat}, given, {"finetuning": own})


def require_suitable(recipe: Recipe, corpus: AnyCorpus, say: Say) -> None:
    """Raise PenwrightError if the base cannot be trained on this corpus, or if the old text is needed but unusable."""
    if recipe.finetuning is None:
        return
    base = open_base(recipe)
    for note in _unknown_text(base.tokenizer, TASKS[recipe.task].texts(corpus)):
        say(note)
    languages, known = languages_between(corpus.names), base.card.languages
    if languages and known and (languages.source, languages.target) == (known.target, known.source):
        raise PenwrightError(
            f"{recipe.finetuning.base} translates {known.source} to {known.target}, but these pairs go from "
            f"{languages.source} to {languages.target}. Name the files or the columns in the other order"
        )
    if recipe.finetuning.keep_old:
        if base.recipe.task != recipe.task or base.card.labels != corpus.labels:
            raise PenwrightError(
                f"--keep-old cannot mix in the text of {recipe.finetuning.base}: its task or its labels differ"
            )
        _old_corpus(recipe)


def _unknown_text(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[str]:
    """Yield a notice if some characters are unknown to the tokenizer. Raise PenwrightError if there are many."""
    if tokenizer.unknown_id is None:
        return
    n_read, counts = 0, Counter[str]()
    for text in texts:
        counts.update(text)
        n_read += len(text)
        if n_read >= SAMPLE:
            break
    unknown = tokenizer.unknown_characters("".join(counts))
    share = sum(counts[each] for each in unknown) / max(1, n_read)
    shown = " ".join(each for each in unknown[:10] if each.isprintable())
    if share > MOST_UNKNOWN:
        raise PenwrightError(
            f"{100 * share:.0f} % of the characters of this text are unknown to the base ({shown}). "
            "Train a new run on this text, without --from"
        )
    if unknown:
        yield f"{100 * share:.2g} % of the characters are unknown to the base, and are read as <unk>: {shown}"


def start_from_base(model: Model, recipe: Recipe, labels: Sequence[str]) -> bool:
    """Load the weights of the base, if there is one, into the model. Return whether the model has a new head."""
    if recipe.finetuning is None:
        return False
    base = open_base(recipe)
    weights = weights_for(recipe.task, base.recipe.task, base.weights())
    if base.card.labels != tuple(labels):
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("output.")}
    return start_from(model, weights, recipe.finetuning.base, HEAD if recipe.task == "classify" else ())


def origin_of_base(recipe: Recipe) -> dict[str, object]:
    """Return the entry of corpus.json for the origin of an imported base, or an empty table for any other base."""
    origin = corpus_record(open_base(recipe).run).imported if recipe.finetuning else None
    return {} if origin is None else {"imported": origin.model_dump()}


def with_old_text(context: RunContext, batches: AnyBatches) -> AnyBatches:
    """Mix in batches of the base's own text, if the recipe asks for them."""
    recipe = context.recipe
    if recipe.finetuning is None or not recipe.finetuning.keep_old:
        return batches
    corpus = _old_corpus(recipe)
    store = TASKS[recipe.task].token_store(corpus, context.tokenizer, corpus.labels, held_out=False)
    old: Batches[Any] = TASKS[recipe.task].batches(context, store)
    new: Batches[Any] = batches
    return MixedBatches(new, old, recipe.finetuning.keep_old)


def _old_corpus(recipe: Recipe) -> AnyCorpus:
    """Open the text that the base was trained on. Raise PenwrightError if the text is missing or has changed."""
    base = open_base(recipe)
    if corpus_record(base.run).is_untrained:
        raise PenwrightError(f"{base.run.folder} was imported without its training text: leave out --keep-old")
    theirs = recipe_here(base.run, base.recipe)
    advice = "Restore the text, or leave out --keep-old"
    try:
        corpus = TASKS[theirs.task].open_corpus(theirs.data.train, reading_of(theirs, columns_of_training(base.run)))
    except PenwrightError as error:
        raise PenwrightError(
            f"--keep-old needs the text that {base.run.folder} was trained on: {error}. {advice}"
        ) from None
    require_unchanged(base.run, corpus, f"{advice}.")
    return corpus
