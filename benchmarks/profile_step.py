"""Profile of training steps: the time of each operator, measured by torch's profiler on a run like yours.

Run: python -m benchmarks.profile_step CORPUS[,FILE...] [SETTING=VALUE ...]

Other settings are chosen as for a run of ten minutes, compilation included.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.profiler import ProfilerActivity, profile

from penwright.config import BUDGETS, Table, merge, parse_override
from penwright.training.observers import Observer
from penwright.training.trainer import StepReport, Trainer
from penwright.workflows import plan, train

SETTLING, STEPS = 8, 8  # steps before the profiler starts (the first ones compile), and steps that it measures
ROWS = 25


class _Profiler(Observer):
    def __init__(self) -> None:
        self.profile = profile(activities=[ProfilerActivity.CPU])

    def stepped(self, trainer: Trainer, report: StepReport) -> None:
        if report.step == SETTLING:
            self.profile.start()
        elif report.step == SETTLING + STEPS:
            self.profile.stop()


def main(corpus: Sequence[str], settings: Sequence[str]) -> None:
    """Print the operators by their own time. In compiled code, each fused kernel is an operator."""
    given: Table = {"data": {"train": list(corpus)}, "training": {"minutes": 10}}
    chosen = plan.prepare(merge(given, *map(parse_override, settings))).plan.recipe.model_dump(exclude_none=True)
    training = {key: value for key, value in chosen["training"].items() if key not in BUDGETS}
    few = {"steps": SETTLING + STEPS, "evaluate_every": SETTLING + STEPS}
    watch = _Profiler()
    with TemporaryDirectory() as folder:
        train.train(plan.prepare({**chosen, "training": {**training, **few}}), Path(folder) / "run", [watch])
    print(f"{STEPS} steps:")
    print(watch.profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=ROWS, max_name_column_width=60))


if __name__ == "__main__":
    main(sys.argv[1].split(","), sys.argv[2:])
