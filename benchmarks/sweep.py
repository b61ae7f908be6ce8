"""The automatic choice of settings compared with alternatives at equal minutes, to fit and check the planner's rules.

Run: python -m benchmarks.sweep NAME MINUTES CORPUS[,FILE...] SETTING=VALUE[,SETTING=VALUE...] ...

Each further argument is one alternative, such as model.size=small,model.dropout=0.2. If the first one is
validation=FILE,validation=FILE, it applies to all.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import ours
from benchmarks.report import Result, write_result
from penwright.run.folder import Run

NAME = "sweep"
AUTOMATIC = "the automatic choice"


def main(name: str, minutes: float, corpus: Sequence[str], alternatives: Sequence[str]) -> None:
    """Train one run of each, and report the score of its best checkpoint."""
    for_all = [*corpus, "--minutes", minutes]
    if alternatives and alternatives[0].startswith("validation="):
        for setting in alternatives[0].split(","):
            for_all += ["--validation", setting.partition("=")[2]]
        alternatives = alternatives[1:]
    results = []
    for choice in (AUTOMATIC, *alternatives):
        settings = [] if choice == AUTOMATIC else [f"--set={setting}" for setting in choice.split(",")]
        with TemporaryDirectory() as folder:
            run = Path(folder) / "run"
            ours.train(run, [*for_all, *settings])
            what, score, epochs = _best(Run.open(run))
            model = Run.open(run).recipe.model
        said = f"{choice} (d {model.d_model}, {model.n_layers} layers, dropout {model.dropout:g})"
        results.append(Result(said, {what: [score], "epochs": [epochs]}))
        print(f"{said}: {score:.4f} {what}, {epochs:.2f} epochs", flush=True)
    command = f"python -m benchmarks.{NAME} {name} {minutes:g} CORPUS {' '.join(alternatives)}"
    write_result(
        f"{NAME}-{name}-{minutes:g}", command, results, "One run each. For the load of the machine, see LOG.md."
    )


def _best(run: Run) -> tuple[str, float, float]:
    """Return the name of the score, its value at the best step, and the epochs of the whole run."""
    records = run.records("metrics.jsonl")
    best = next(record for record in records if record["step"] == run.checkpoints.best_step())
    what = next(name for name in ("BLEU", "bits per byte", "accuracy") if name in best)
    return what, float(best[what]), float(records[-1]["epoch"])


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3].split(","), sys.argv[4:])
