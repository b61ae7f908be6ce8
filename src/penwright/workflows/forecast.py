"""What to expect of a plan: a forecast of its result; other sizes, budgets and columns for the user to choose from.

The forecast is made before training by compressing the same text. The difficulty of a text is estimated mainly by a
general compressor: how well it compresses the held-out set after it has seen the training set. The amount of text, and
how much of it the model will see, also matter. The formula below is fitted to only a handful of runs
(benchmarks/LOG.md), hence the wide range. For translators, the forecast says how much of the best possible score
training will reach. For classifiers, it is the accuracy of a linear classifier.
"""

import lzma
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from math import exp, inf
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from penwright.config import ModelSettings, Task, validate
from penwright.data.corpus import Document
from penwright.data.readers.tables import find_table
from penwright.errors import PenwrightError
from penwright.inspection.forward_pass import tokens_of
from penwright.model.size import size_of
from penwright.run.folder import RECIPE, Run
from penwright.tasks import TASKS
from penwright.tasks.linear import linear_accuracy
from penwright.tokenizers.training import train_tokenizer
from penwright.training.auto.capacity import LADDER
from penwright.workflows.plan import Prepared
from penwright.workflows.train import FIRST_SHARE, LINEAR_SHARE

MINUTES = (1 / 3, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 240.0, 480.0)  # budgets to choose from, in minutes
DIMENSIONS = {"size", "d_model", "n_layers", "n_decoder_layers", "n_heads", "n_kv_heads", "d_head", "d_ff"}
SHOWN_COLUMNS = 100
PASSAGE = 400  # number of characters of running text to show
PASSAGE_SOURCE = 1_000_000  # bytes of text for training the tokenizer of the preview (takes about a second)
FITTING_SECONDS = 5.0  # maximum time to fit a linear classifier for a forecast
MOST_RUNS = 100  # maximum number of runs to search for an encoder
# bytes of the training set that the compressor sees, and bytes of the held-out set to compress
CONTEXT, MEASURED = 4_000_000, 300_000
# largest relative deviations of the recorded runs from the formula, for runs of at least one epoch
BELOW, ABOVE = 0.06, 0.08
YOUNG = 0.2  # for runs of n < 1 epochs, ABOVE grows by YOUNG * (1 - n)
AT_MOST = 8.0  # bits per byte of uncompressed text
SATURATION = 8.0  # repeated epochs are together worth less than this many epochs of new text
PAYS = 0.01  # minimum relative gain for which doubling the time pays off
MOST_DOUBLINGS = 10
# Number of epochs after which the few recorded runs gained little: on Multi30k, 55 epochs gave 0.25 BLEU more than 13.
ENOUGH_EPOCHS: dict[Task, float] = {"chat": 8.0, "translate": 16.0, "classify": 8.0, "encode": 16.0}
# After n epochs, translators of Multi30k and Tatoeba fell short of their best BLEU by a fraction between LACKS[0] / n
# and LACKS[1] / n (LOG.md). The largest fraction was measured with 19,000 pairs of Tatoeba: BLEU 15.2 after 1.8
# epochs, 22.3 after 4.2.
LACKS = 0.12, 0.7
FEWEST_EPOCHS = 1.0  # minimum number of epochs for a forecast; with fewer, the range would be too wide to be useful


class Forecast(NamedTuple):
    """A forecast in bits per byte of held-out text, as a range; None for tasks that are not measured in bits."""

    low: float | None
    high: float | None
    compressed: float | None  # bits per byte that the compressor needs
    pays_up_to: float | None  # minutes after which doubling the time gains less than 1 %
    share: tuple[float, float] | None = None  # translators: lowest and highest expected fraction of the best BLEU
    accuracy: float | None = None  # classifiers: percent of held-out texts that a linear classifier labels correctly


def compressed_bits(before: bytes, text: bytes) -> float:
    """Return the bits per byte that xz needs for `text` after it has seen `before`."""
    return 8 * (_packed(before + text) - _packed(before)) / max(1, len(text))


def forecast_bits(compressed: float, corpus_bytes: int, epochs: float, minutes: float | None) -> Forecast:
    """Forecast the bits per byte after training on a text for this many epochs in this many minutes."""
    middle = compressed * _ratio(corpus_bytes, epochs)
    above = ABOVE + YOUNG * max(0.0, 1 - epochs)
    doublings = 0
    while doublings < MOST_DOUBLINGS:
        now, doubled = (_ratio(corpus_bytes, epochs * 2 ** (doublings + more)) for more in (0, 1))
        if now - doubled < PAYS * now:
            break
        doublings += 1
    pays_up_to = None if minutes is None else minutes * 2**doublings
    return Forecast(middle * (1 - BELOW), min(AT_MOST, middle * (1 + above)), compressed, pays_up_to)


def forecast_by_epochs(task: Task, epochs: float, minutes: float | None) -> Forecast:
    """Make a forecast for a task that is not measured in bits.

    It says when more time stops paying off and, for translators, what fraction of the best BLEU to expect.
    """
    pays_up_to = None if minutes is None else minutes * max(1.0, ENOUGH_EPOCHS[task] / epochs)
    return Forecast(None, None, None, pays_up_to, share_of_best(epochs) if task == "translate" else None)


def share_of_best(epochs: float) -> tuple[float, float] | None:
    """Return the lowest and highest fraction of its best BLEU that a translator should reach after this many epochs.

    Return None if there are too few epochs for an estimate.
    """
    if epochs < FEWEST_EPOCHS:
        return None
    least, most = LACKS
    return 1 - most / epochs, 1 - least / epochs


def _ratio(corpus_bytes: int, epochs: float) -> float:
    """Return the ratio of the model's bits to the compressor's. More text lowers it; repeated text counts less."""
    fresh = SATURATION * (1 - exp(-epochs / SATURATION)) * corpus_bytes / 1e6
    return 0.63 + 0.32 * max(1e-9, fresh) ** -0.4


def _packed(text: bytes) -> int:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 2 * CONTEXT}]
    return len(lzma.compress(text, format=lzma.FORMAT_RAW, filters=filters))


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
    There is no forecast for other fine-tuned models: the formula knows only runs that began from scratch.
    """
    corpus, plan = prepared.corpus, prepared.plan
    recipe, minutes = plan.recipe, plan.recipe.training.minutes
    if recipe.finetuning is not None and recipe.task != "classify":
        return Forecast(None, None, None, None)
    if recipe.task != "generate":
        has_linear = recipe.gives_one_label and recipe.model.ngrams
        accuracy = linear_accuracy(corpus, monotonic() + fitting_seconds(minutes)) if has_linear else None
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
    plan, recipe = prepared.plan, prepared.plan.recipe
    replaced = DIMENSIONS - {"n_layers"} if recipe.task == "classify" else DIMENSIONS
    kept = recipe.model.model_dump(exclude=replaced, exclude_none=True)
    for name in LADDER:
        settings = validate(ModelSettings, {**kept, "size": name}, "the settings")
        size = size_of(recipe.task, plan.vocab_size, settings, n_labels=len(prepared.corpus.labels))
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
            is_new_translator = plan.recipe.task == "translate" and plan.recipe.finetuning is None
            share = share_of_best(epochs) if is_new_translator else None
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
    settings = recipe.tokenizer
    if tokenizer is None:
        tokenizer = train_tokenizer(settings.type, [text], settings.vocab_size, prefix_space=settings.prefix_space)
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


def encoders_beside(prepared: Prepared) -> Iterator[Path]:
    """Yield the runs in `runs` that hold a pretrained or own encoder, from which the planned classifier could start."""
    recipe = prepared.plan.recipe
    if recipe.task != "classify" or recipe.finetuning is not None or recipe.distillation is not None:
        return
    for path in sorted(Path("runs").glob(f"*/{RECIPE}"))[:MOST_RUNS]:
        with suppress(PenwrightError):  # skip damaged runs
            other, is_trained = Run.open(path.parent).recipe, bool(Run.open(path.parent).checkpoints.all())
            is_imported = other.task == "classify" and other.tokenizer.is_pretrained
            if (is_imported or (other.task == "encode" and is_trained)) and other.finetuning is None:
                yield path.parent


def columns_of(prepared: Prepared) -> list[str]:
    """Return the column names of the first file, in order. The list is empty for running text."""
    try:
        table = find_table(prepared.corpus.files[0])
    except (PenwrightError, OSError):  # the text is on the Hugging Face Hub, or the file has just been deleted
        return []
    return list(table.columns)[:SHOWN_COLUMNS] if table else []
