"""Optimize a trained run: choose the precision, the penalties and the alignment head, and calibrate a classifier."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from shlex import quote
from warnings import warn

import torch

from penwright.config import Precision, decoding_settings
from penwright.data.batches import Batch
from penwright.data.corpus import Pair
from penwright.decoding.engine import n_decoder_parameters
from penwright.devices import usable_device
from penwright.errors import PenwrightError, PenwrightWarning, Say, UsageError, say_nothing
from penwright.evaluation.classification import Calibration
from penwright.evaluation.perplexity import negative_log_likelihood
from penwright.evaluation.tuning import Tuning, apply_trial, tune
from penwright.model import EncoderOnly, Model
from penwright.model.transformer import DecoderOnly
from penwright.native import toolchain
from penwright.run.folder import ALIGNMENT, CALIBRATION, OPTIMIZED, Run
from penwright.run.provenance import corpus_record
from penwright.storage import require_writable_cache
from penwright.tasks import TASKS, AnyCorpus, RunContext, classification
from penwright.translation.alignment import Aligner, AlignmentHead, choose_head
from penwright.translation.translator import Translator
from penwright.workflows.background import can_be_compiled, compile_alone
from penwright.workflows.evaluate import evaluation_context, open_corpus_of
from penwright.workflows.load import OpenedRun, load_translator, open_run

MAX_LOSS_INCREASE = 0.005  # maximum increase in loss compared with float32, in nats per token
MEASURED_BATCHES = 100
# Minimum number of target tokens on which a precision is measured after training. Models with more than MEDIUM
# decoder parameters use FEW_TARGETS, since 4,096 tokens would take them more than half a minute.
MEASURED_TARGETS, FEW_TARGETS, MEDIUM = 4096, 1024, 30_000_000
INT8_FROM = 2_000_000  # minimum number of decoder parameters for trying int8 if decoding steps are not compiled


def optimize(folder: Path, precision: Precision | None = None, say: Say = say_nothing) -> Mapping[Precision, float]:
    """Choose the fastest precision that is as good as float32, and compile the decoding steps; load() uses both.

    "As good" means that the nats per token rise by at most MAX_LOSS_INCREASE on at most MEASURED_BATCHES batches of
    held-out text. Return the nats per token of each precision. A given `precision` is used even if its loss is higher.
    An imported model has no held-out text, so it stays in float32 unless a precision is given.
    """
    opened_run = open_run(folder)
    if opened_run.recipe.task == "classify":
        raise UsageError(
            f"{folder} holds a classifier: it processes a text in one pass, and has no decoding steps to compile"
        )
    toolchain.require_compiler()
    require_writable_cache()
    measured = _step_of(opened_run)
    nats = {} if corpus_record(opened_run.run).is_untrained else _nats_by_precision(opened_run, say)
    good = [each for each, value in nats.items() if value <= nats["float32"] + MAX_LOSS_INCREASE]
    chosen = precision or (good[0] if good else "float32")
    model = opened_run.model(chosen)
    if not isinstance(model, EncoderOnly):
        compile_alone(model, say)
    if not opened_run.run.save_finding(OPTIMIZED, {"precision": chosen, "nats": nats}, measured):
        folder = opened_run.run.folder
        say(f"{chosen} is not saved as the precision of {folder}, because the model that was measured is not its best")
    return nats


def _step_of(opened_run: OpenedRun) -> int | None:
    """Return the step of the model to measure. Training may find a better model while it is measured."""
    return opened_run.checkpoint.step if opened_run.checkpoint else opened_run.run.checkpoints.best_step()


def _nats_by_precision(opened_run: OpenedRun, say: Say) -> dict[Precision, float]:
    corpus, nats = open_corpus_of(opened_run), {}
    for each in fastest_first():
        say(f"evaluating on held-out text in {each}")
        nats[each] = _held_out_nats(opened_run, corpus, each)
    return nats


def expected_precision(model: Model, device: torch.device) -> Precision:
    """Return the precision to try for decoding after training. It is used unless the held-out loss rises too much."""
    if device.type != "cpu" or isinstance(model, EncoderOnly) or "int8" not in fastest_first():
        return "float32"
    is_large = n_decoder_parameters(model) >= INT8_FROM
    return "int8" if is_large or can_be_compiled(model) else "float32"


def choose_precision(run: Run, context: RunContext) -> str:
    """Choose and save the decoding precision of a trained run. Return a message; "" if there was nothing to choose.

    Int8 is chosen if the nats per token on a part of the held-out text rise by at most MAX_LOSS_INCREASE. An imported
    language model stays in float32: int8 raised the loss too much, and measuring it takes long (benchmarks/LOG.md).
    """
    precision = expected_precision(context.model, context.device)
    is_kept = context.is_slow and isinstance(context.model, DecoderOnly)
    if precision == "float32" or isinstance(context.model, EncoderOnly) or is_kept:
        return ""
    opened_run, nats = open_run(run.folder), dict[Precision, float]()
    measured = _step_of(opened_run)
    n_targets = MEASURED_TARGETS if n_decoder_parameters(context.model) <= MEDIUM else FEW_TARGETS
    for each in (precision, "float32"):
        tried = replace(context, model=opened_run.model(each))
        batches = _first_targets(TASKS[context.recipe.task].batches(tried, context.held_out).in_order(), n_targets)
        nats[each] = negative_log_likelihood(tried.model, batches, context.device).mean
        del tried, batches  # two large models may not fit in memory
    increase = nats[precision] - nats["float32"]
    chosen = precision if increase <= MAX_LOSS_INCREASE else "float32"
    run.save_finding(OPTIMIZED, {"precision": chosen, "nats": nats}, measured)
    change = f"{precision} changes the held-out loss by {increase:+.4f} nats per token"
    if chosen == "float32":
        return f"decoding uses float32: {change}, more than {MAX_LOSS_INCREASE}"
    return f"decoding uses {precision}, which is faster: {change}. For the exact model, use --precision float32"


def _first_targets(batches: Iterator[Batch], most: int) -> Iterator[Batch]:
    """Yield batches until they contain this many target tokens."""
    n_targets = 0
    for batch in batches:
        yield batch
        n_targets += batch.n_targets
        if n_targets >= most:
            return


def fastest_first() -> list[Precision]:
    """Return the precisions for which this processor has instructions, fastest first. All others are slow on it."""
    has_int8, has_bfloat16 = torch.cpu._is_vnni_supported(), torch.cpu._is_avx512_bf16_supported()
    possible: list[tuple[Precision, bool]] = [("int8", has_int8), ("bfloat16", has_bfloat16), ("float32", True)]
    return [precision for precision, has in possible if has]


def _held_out_nats(opened_run: OpenedRun, corpus: AnyCorpus, precision: Precision) -> float:
    context = evaluation_context(opened_run, corpus, opened_run.model(precision))
    batches = TASKS[opened_run.recipe.task].batches(context, context.held_out).in_order()
    return negative_log_likelihood(context.model, islice(batches, MEASURED_BATCHES), context.device).mean


def tune_decoding(
    folder: Path,
    paths: Sequence[str] = (),
    device: str = "cpu",
    *,
    beam_size: int | None = None,
    say: Say = say_nothing,
) -> Tuning:
    """Try length and coverage penalties on the run's held-out pairs or, if paths are given, on all pairs of the files.

    If the best penalties are significantly better than the current ones, they are saved in the run's recipe.
    """
    opened_run = open_run(folder)
    translator = load_translator(opened_run, device, verb="tune")
    settings = decoding_settings(translator.defaults, options={"beam_size": beam_size})
    pairs = _pairs(opened_run, paths)
    tuning = tune(translator, [pair.source for pair in pairs], [pair.target for pair in pairs], say, settings)
    if tuning.is_better:
        decoding = apply_trial(opened_run.recipe.decoding, tuning.trials[0])
        # change the stored recipe, whose relative paths must stay relative
        opened_run.run.save_recipe(opened_run.run.recipe.model_copy(update={"decoding": decoding}))
    return tuning


def load_aligner(
    folder: Path,
    device: str = "cpu",
    pairs: Sequence[tuple[str, str]] = (),
    say: Say = say_nothing,
    translator: Translator | None = None,
) -> Aligner:
    """Load a translation run for word alignment, in float32. If `translator` is in float32, use it instead.

    The attention head is chosen once, and saved in alignment.json. It is chosen on the run's held-out pairs or, if
    these cannot be read, on `pairs`: an imported run has no text, and a run may have been copied without its text.
    """
    opened_run = open_run(folder)
    measured, head = _step_of(opened_run), kept_alignment(opened_run.run)
    if translator is None or translator.model.decoder.cache_like.dtype != torch.float32:
        translator = load_translator(opened_run, device, "float32", "align")
    if head is None:
        try:
            pairs = [(pair.source, pair.target) for pair in _pairs(opened_run, ())]
        except PenwrightError:
            if not pairs:
                raise PenwrightError(
                    f"it is not known which attention head of {folder} aligns best, and the run's text cannot be read. "
                    f"Align two files first: penwright align {quote(str(folder))} SOURCE TARGET"
                ) from None
        say(f"choosing the attention head that aligns best on {len(pairs):,} pairs (once for this model)")
        best = choose_head(translator.model, translator.tokenizer, pairs)[0]
        head = best.head
        opened_run.run.save_finding(ALIGNMENT, {**asdict(head), "f1": best.f1, "n_pairs": len(pairs)}, measured)
    return Aligner(translator.model, translator.tokenizer, head)


def kept_alignment(run: Run) -> AlignmentHead | None:
    """Return the attention head that load_aligner() chose for the current model, or None."""
    head, model = run.finding(ALIGNMENT, AlignmentHead), run.recipe.model
    if head is None:
        return None
    if head.layer >= (model.n_decoder_layers or model.n_layers) or head.head >= model.n_heads:
        warn(f"{run.folder / ALIGNMENT} names a head that the model does not have", PenwrightWarning, stacklevel=2)
        return None
    return head


def calibrate(run: Path | OpenedRun, device: str = "cpu") -> Calibration:
    """Return how often a classifier is right at each level of confidence, on held-out texts.

    It is measured once for the best model, and at each call for another checkpoint.
    """
    torch_device, opened_run = usable_device(device), run if isinstance(run, OpenedRun) else open_run(run)
    if not opened_run.recipe.gives_one_label:
        folder = opened_run.run.folder
        raise UsageError(f"{folder} is not a classifier with one label for each text, so it cannot be calibrated")
    measured = _step_of(opened_run)
    is_best = measured == opened_run.run.checkpoints.best_step()
    calibration = opened_run.run.finding(CALIBRATION, Calibration) if is_best else None
    if calibration is None:
        context = evaluation_context(opened_run, open_corpus_of(opened_run), opened_run.model(), torch_device)
        calibration = classification.calibration(context)
        opened_run.run.save_finding(CALIBRATION, calibration._asdict(), measured)
    return calibration


def _pairs(opened_run: OpenedRun, paths: Sequence[str]) -> list[Pair]:
    return [pair for pair in open_corpus_of(opened_run, paths).held_out if isinstance(pair, Pair)]
