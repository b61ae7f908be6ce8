"""What to expect of a plan, and its alternatives: other sizes, budgets and columns for the user to choose from."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from math import inf
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from penwright.config import ModelSettings, validate
from penwright.data.corpus import Document
from penwright.data.readers.tables import find_table
from penwright.errors import PenwrightError
from penwright.inspection.forward_pass import tokens_of
from penwright.model.size import size_of
from penwright.run.folder import RECIPE, Run
from penwright.tasks import TASKS
from penwright.tasks.labelled import linear_accuracy
from penwright.tokenizers.training import train_tokenizer
from penwright.training.auto.capacity import LADDER
from penwright.training.auto.forecast import (
    CONTEXT,
    MEASURED,
    Forecast,
    compressed_bits,
    forecast_bits,
    forecast_by_epochs,
    share_of_best,
)
from penwright.workflows.plan import Prepared
from penwright.workflows.train import FIRST_SHARE, LINEAR_SHARE

MINUTES = (1 / 3, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0)  # budgets to choose from, in minutes
DIMENSIONS = {"size", "d_model", "n_layers", "n_decoder_layers", "n_heads", "n_kv_heads", "d_head", "d_ff"}
SHOWN_COLUMNS = 100
PASSAGE = 400  # number of characters of running text to show
PASSAGE_SOURCE = 1_000_000  # bytes of text for training the tokenizer of the preview (takes about a second)
FITTING_SECONDS = 5.0  # maximum time to fit a linear classifier for a forecast
MOST_RUNS = 100  # maximum number of runs to search for an encoder


class SizeOption(NamedTuple):
    """A model size, and the number of epochs that a model of this size completes within the planned budget."""

    size: str
    parameters: int
    epochs: float  # a rough estimate, from the number of operations
    is_chosen: bool


class BudgetOption(NamedTuple):
    """A budget in minutes, and a forecast of the result that the planned model reaches with this budget."""

    minutes: float
    epochs: float
    low: float | None  # bits per byte of held-out text; None for tasks without a forecast
    high: float | None
    share: tuple[float, float] | None  # translators: lowest and highest expected share of the best possible BLEU


def forecast(prepared: Prepared) -> Forecast:
    """Forecast how good the trained model will be on held-out data.

    For language models, the forecast depends on how compressible the text is; for translators, on the number of epochs.
    For classifiers, a linear classifier is fitted as a lower bound, because the trained classifier will include one.
    """
    corpus, plan = prepared.corpus, prepared.plan
    recipe, minutes = plan.recipe, plan.recipe.training.minutes
    if recipe.task != "generate":
        has_linear = recipe.task == "classify" and recipe.model.ngrams
        is_single = recipe.model.problem_type == "single_label_classification"
        accuracy = linear_accuracy(corpus, monotonic() + fitting_seconds(minutes)) if has_linear and is_single else None
        return forecast_by_epochs(recipe.task, plan.epochs, minutes)._replace(accuracy=accuracy)
    before = _first_bytes(TASKS["generate"].texts(corpus), CONTEXT)
    held_out = (chunk for document in corpus.held_out if isinstance(document, Document) for chunk in document.chunks)
    compressed = compressed_bits(before, _first_bytes(held_out, MEASURED))
    return forecast_bits(compressed, corpus.training_bytes, plan.epochs, minutes)


def fitting_seconds(minutes: float | None) -> float:
    """Return the time limit in seconds for fitting a linear classifier for a forecast.

    It is at most the time that training with this budget would spend on its first linear classifier.
    """
    return min(FITTING_SECONDS, FIRST_SHARE * LINEAR_SHARE * 60 * (minutes or inf))


def size_options(prepared: Prepared) -> Iterator[SizeOption]:
    """Yield the model sizes from nano to large, smallest first."""
    plan, labels = prepared.plan, max(1, len(prepared.corpus.labels))
    recipe = plan.recipe
    replaced = DIMENSIONS - {"n_layers"} if recipe.task == "classify" else DIMENSIONS
    kept = recipe.model.model_dump(exclude=replaced, exclude_none=True)
    for name in LADDER:
        settings = validate(ModelSettings, {**kept, "size": name}, "the settings")
        size = size_of(recipe.task, plan.vocab_size, settings, n_labels=labels)
        is_chosen = recipe.model.size == name
        epochs = plan.epochs if is_chosen else plan.epochs * plan.size.flops_per_token / size.flops_per_token
        yield SizeOption(name, size.parameters, epochs, is_chosen)


def budget_options(prepared: Prepared, compressed: float | None) -> Iterator[BudgetOption]:
    """Yield budgets in minutes with their forecasts. If the planned budget is not in minutes, yield none.

    `compressed` is from the plan's forecast: the held-out text's bits per byte under a general compressor.
    """
    plan, planned = prepared.plan, prepared.plan.recipe.training.minutes
    if planned is None:
        return
    for minutes in sorted({*MINUTES, planned}):
        epochs = plan.epochs * minutes / planned
        if compressed is None:
            share = share_of_best(epochs) if plan.recipe.task == "translate" else None
            yield BudgetOption(minutes, epochs, None, None, share)
        else:
            forecast = forecast_bits(compressed, prepared.corpus.training_bytes, epochs, minutes)
            yield BudgetOption(minutes, epochs, forecast.low, forecast.high, None)


def passage_tokens(prepared: Prepared) -> list[str]:
    """Return the tokens of a passage from the middle of running text, as the trained model will see them.

    The tokenizer is trained on the beginning of a long text, so a few tokens may differ from the model's. The list is
    empty for other tasks, and for models whose tokenizer is not known yet.
    """
    recipe, tokenizer = prepared.plan.recipe, prepared.tokenizer
    is_text = recipe.task in ("generate", "encode")
    if not is_text or (tokenizer is None and (recipe.finetuning or recipe.distillation)):
        return []
    documents = (each for each in prepared.corpus.training if isinstance(each, Document))
    chunks = (chunk for document in documents for chunk in chain(document.chunks, ["\n\n"]))
    text = _first_bytes(chunks, PASSAGE_SOURCE).decode(errors="ignore")
    wanted = recipe.tokenizer
    if tokenizer is None:
        tokenizer = train_tokenizer(wanted.type, [text], wanted.vocab_size, prefix_space=wanted.prefix_space)
    begin = text.rfind("\n", 0, len(text) // 2) + 1
    return [token.text for token in tokens_of(tokenizer, text[begin : begin + PASSAGE])]


def _first_bytes(texts: Iterable[str], n_bytes: int) -> bytes:
    """Return the first `n_bytes` bytes of the texts."""
    collected = bytearray()
    for text in texts:
        collected += text.encode()
        if len(collected) >= n_bytes:
            break
    return bytes(collected[:n_bytes])


def encoders_beside(prepared: Prepared, folder: Path = Path("runs")) -> Iterator[Path]:
    """Yield the runs in this folder that hold a pretrained encoder, from which the planned classifier could start."""
    recipe = prepared.plan.recipe
    if recipe.task != "classify" or recipe.finetuning is not None or recipe.distillation is not None:
        return
    for path in sorted(folder.glob(f"*/{RECIPE}"))[:MOST_RUNS]:
        with suppress(PenwrightError):  # skip damaged runs
            other = Run.open(path.parent).recipe
            if other.task == "classify" and other.tokenizer.is_pretrained and other.finetuning is None:
                yield path.parent


def columns_of(prepared: Prepared) -> list[str]:
    """Return the column names of the first file, in order. The list is empty for running text."""
    try:
        table = find_table(prepared.corpus.files[0])
    except (PenwrightError, OSError):  # the text is on the Hugging Face Hub, or the file has just been deleted
        return []
    return list(table.columns)[:SHOWN_COLUMNS] if table else []
