"""The commands that improve a trained run: `penwright optimize` and `penwright tune`."""

from typing import Annotated

import typer

from penwright.cli.options import Device, InPrecision, Json, OwnFiles, RunFolder, print_json, warn

SHOWN = 10  # number of trials that `tune` prints


def optimize(
    run: RunFolder,
    precision: InPrecision = None,
    json: Json = False,
) -> None:
    """Make a run generate or translate faster.

    Chooses the fastest precision that is as accurate as float32, and compiles the decoding steps. Takes a few minutes,
    once per run. Without this command, the steps are compiled in the background.
    """
    from penwright.streams import print_message
    from penwright.workflows.optimize import optimize

    nats = optimize(run, precision, print_message)
    if json:
        print_json(nats)
        return
    for name, value in nats.items():
        print(f"{name}\t{value:.4f} nats per token on held-out text")
    print(f"{run} now decodes with compiled steps. To use the weights as trained, add --precision float32")


def quicken(run: RunFolder, precision: InPrecision = None, json: Json = False) -> None:
    """Run `penwright optimize`. Deprecated alias for older scripts."""
    warn("`penwright quicken` is now `penwright optimize`; the old name will be removed")
    optimize(run, precision, json)


def tune(
    run: RunFolder,
    data: OwnFiles = None,
    beam: Annotated[
        int | None, typer.Option(help="Beam size to tune for. Default: the run's setting.", metavar="N", min=2)
    ] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Tune the length and coverage penalties of a translator.

    Tries values on held-out pairs. Saves the best ones in the run if they raise BLEU significantly, unless chrF falls
    by more.
    """
    from penwright.streams import print_message
    from penwright.workflows.optimize import tune_decoding

    tuning = tune_decoding(run, data or [], device, beam_size=beam, say=print_message)
    if json:
        trials = [trial._asdict() for trial in tuning.trials]
        record = {"before": tuning.before, "after": tuning.after, "p": tuning.p, "kept": tuning.is_better}
        chrf = {"before_chrf": tuning.before_chrf, "after_chrf": tuning.after_chrf}
        print_json({**record, **chrf, "trials": trials})
        return
    print("length_penalty\tcoverage_penalty\tBLEU of reranking\tchrF")
    for trial in tuning.trials[:SHOWN]:
        print(f"{trial.length_penalty:g}\t{trial.coverage_penalty:g}\t{trial.bleu:.2f}\t{trial.chrf:.2f}")
    outcome = "saved in the run" if tuning.is_better else "the run is unchanged"
    bleu = f"BLEU {tuning.before:.2f} before, {tuning.after:.2f} with the best penalties (p = {tuning.p:.3f})"
    print(
        f"search: {bleu}; chrF {tuning.before_chrf:.2f} before, "
        f"{tuning.after_chrf:.2f} with the best penalties; {outcome}"
    )
