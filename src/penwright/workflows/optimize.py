"""What makes a trained run better to use, kept in its folder: precision, penalties, a head of attention that aligns."""

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Literal
from warnings import warn

import torch
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from penwright.config import Precision, require_writable_cache
from penwright.data.corpora import Pair
from penwright.decoding.engine import compile_steps
from penwright.devices import usable_device
from penwright.errors import PenwrightWarning, Say, UsageError, say_nothing
from penwright.evaluation.classification import Bin, Calibration, calibration
from penwright.evaluation.perplexity import surprise
from penwright.evaluation.tuning import Tuning, tune, tuned
from penwright.model.encoder_only import EncoderOnly
from penwright.native import toolchain
from penwright.run.folder import Run
from penwright.tasks import TASKS, AnyCorpus, classification
from penwright.translation.alignment import Aligner, AlignmentHead, choose_head
from penwright.workflows.load import QUICKENED, Opened, load_translator, opened

AS_GOOD = 0.005  # nats a token
MEASURED_BATCHES = 100
ALIGNMENT = "alignment.json"  # of a run: the head of attention that aligns best
CALIBRATION = "calibration.json"  # of a run: how often a classifier is right that is so sure


class KeptHead(BaseModel):
    """What alignment.json keeps."""

    layer: NonNegativeInt
    head: NonNegativeInt
    shift: Literal[0, 1]


class KeptCalibration(BaseModel):
    """What calibration.json keeps: the bins of a Calibration, each as a list."""

    model_config = ConfigDict(allow_inf_nan=False)

    bins: list[tuple[float, float, NonNegativeInt, float, float]]
    n: NonNegativeInt
    error: float


def optimize(folder: Path, precision: Precision | None = None, say: Say = say_nothing) -> Mapping[Precision, float]:
    """Find the fastest precision that is as good as float32, and compile the steps of decoding; load() uses both.

    As good means that the nats per token rise by at most AS_GOOD. Returns the nats per token of each precision on at
    most MEASURED_BATCHES of the held-out text. A `precision` that is given is taken whatever its nats are.
    """
    it = opened(folder)
    if it.recipe.task == "classify":
        raise UsageError(f"{folder} holds a classifier: it reads each text at once, and has no steps to compile")
    toolchain.require()
    require_writable_cache()
    corpus = it.corpus()
    nats = {}
    for each in quickest_first():
        say(f"measuring held-out text in {each}")
        nats[each] = _held_out_nats(it, corpus, each)
    good = [each for each, value in nats.items() if value <= nats["float32"] + AS_GOOD]
    chosen = precision or good[0]
    model = it.model(chosen)
    if not isinstance(model, EncoderOnly):
        compile_steps(model, say)
    it.run.keep_finding(QUICKENED, {"precision": chosen, "nats": nats})
    return nats


def quicken(folder: Path, precision: Precision | None = None, say: Say = say_nothing) -> Mapping[Precision, float]:
    """Do what `optimize` does, under its old name."""
    warn("`quicken` is now `optimize`; the old name will go", PenwrightWarning, stacklevel=2)
    return optimize(folder, precision, say)


def quickest_first() -> list[Precision]:
    """The precisions that this processor has instructions for; others it would imitate slowly."""
    has_int8, has_bfloat16 = torch.cpu._is_vnni_supported(), torch.cpu._is_avx512_bf16_supported()
    possible: list[tuple[Precision, bool]] = [("int8", has_int8), ("bfloat16", has_bfloat16), ("float32", True)]
    return [precision for precision, has in possible if has]


def _held_out_nats(it: Opened, corpus: AnyCorpus, precision: Precision) -> float:
    bench = it.bench(corpus, it.model(precision))
    batches = TASKS[it.recipe.task].batches(bench, bench.held_out).in_order()
    return surprise(bench.model, islice(batches, MEASURED_BATCHES), bench.device).mean


def tune_decoding(
    folder: Path,
    paths: Sequence[str] = (),
    device: str = "cpu",
    *,
    beam_size: int | None = None,
    say: Say = say_nothing,
) -> Tuning:
    """Try length and coverage penalties on the run's held-out pairs, or on all of these files.

    Where the best are better than those in use by more than chance, the run's recipe has them afterwards.
    """
    it, translator = opened(folder), load_translator(folder, device, verb="tune")
    if beam_size is not None:
        translator.defaults = translator.defaults.model_copy(update={"beam_size": beam_size})
    pairs = _pairs(it, paths)
    tuning = tune(translator, [pair.source for pair in pairs], [pair.target for pair in pairs], say)
    if tuning.is_better:
        decoding = tuned(it.recipe.decoding, tuning.trials[0])
        it.run.save_recipe(it.run.recipe.model_copy(update={"decoding": decoding}))  # with its files as they were named
    return tuning


def load_aligner(folder: Path, device: str = "cpu", paths: Sequence[str] = (), say: Say = say_nothing) -> Aligner:
    """A run that translates, as one that aligns.

    Its head is chosen once, on the run's held-out pairs or on those of these files, and kept in alignment.json.
    """
    it, translator = opened(folder), load_translator(folder, device, "float32", "align")
    if _kept_head(it.run) is None:
        pairs = [(pair.source, pair.target) for pair in _pairs(it, paths)]
        say(f"choosing the head of attention that aligns best, on {len(pairs):,} pairs: once for this model")
        best = choose_head(translator.model, translator.tokenizer, pairs)[0]
        it.run.keep_finding(ALIGNMENT, {**best.head._asdict(), "f1": best.f1, "n_pairs": len(pairs)})
    return Aligner(translator.model, translator.tokenizer, kept_alignment(folder))


def kept_alignment(folder: Path) -> AlignmentHead | None:
    """The head that load_aligner() has chosen for the model as it is, if it was asked."""
    return _kept_head(Run.open(folder))


def _kept_head(run: Run) -> AlignmentHead | None:
    kept, model = run.finding(ALIGNMENT, KeptHead), run.recipe.model
    if kept is None:
        return None
    head = AlignmentHead(kept["layer"], kept["head"], kept["shift"])
    if head.layer >= (model.n_decoder_layers or model.n_layers) or head.head >= model.n_heads:
        warn(f"{run.folder / ALIGNMENT} names a head that the model does not have", PenwrightWarning, stacklevel=2)
        return None
    return head


def calibrate(folder: Path, device: str = "cpu") -> Calibration:
    """How often a classifier is right, by how sure it is; measured once, on the run's held-out texts, and kept."""
    here, it = usable_device(device), opened(folder)
    if it.recipe.task != "classify":
        raise UsageError(f"{folder} does not classify, so that there is no label it could be sure of")
    kept = it.run.finding(CALIBRATION, KeptCalibration)
    if kept is None:
        bench = it.bench(it.corpus(), it.model(), here)
        assert isinstance(bench.model, EncoderOnly)
        batches = classification.batches(bench, bench.held_out).in_order()
        found = calibration(bench.model, batches, bench.device)
        it.run.keep_finding(CALIBRATION, found._asdict())
        return found
    return Calibration(tuple(Bin(*each) for each in kept["bins"]), kept["n"], kept["error"])


def _pairs(it: Opened, paths: Sequence[str]) -> list[Pair]:
    return [pair for pair in it.corpus(paths).held_out if isinstance(pair, Pair)]
