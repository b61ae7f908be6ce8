"""penwright tune: the settings of decoding that suit a translator."""

from typing import Annotated

import typer

from penwright.cli.options import Device, Json, OwnFiles, RunFolder, print_json

NAME = "tune"
SHOWN = 10


def command(
    run: RunFolder,
    data: OwnFiles = None,
    beam: Annotated[int | None, typer.Option(help="As wide as this, not as the recipe has it.", min=2)] = None,
    device: Device = "cpu",
    json: Json = False,
) -> None:
    """Find the penalties of beam search that suit a translator.

    Tries length and coverage penalties on held-out pairs, and keeps the best in the run if they help beyond chance.
    """
    from penwright.cli.progress import err
    from penwright.workflows import api

    tuning = api.tune_decoding(run, data or [], device, beam_size=beam, say=err)
    if json:
        trials = [trial._asdict() for trial in tuning.trials]
        record = {"before": tuning.before, "after": tuning.after, "p": tuning.p, "kept": tuning.is_better}
        print_json({**record, "trials": trials})
        return
    print("length_penalty\tcoverage_penalty\tBLEU, ranked anew")
    for trial in tuning.trials[:SHOWN]:
        print(f"{trial.length_penalty:g}\t{trial.coverage_penalty:g}\t{trial.bleu:.2f}")
    done = "kept in the run" if tuning.is_better else "nothing is changed"
    print(f"searched: BLEU {tuning.before:.2f} before, {tuning.after:.2f} with the best (p = {tuning.p:.3f}): {done}")
