"""Commands that run in several processes."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from penwright.errors import PenwrightError

NProcesses = Annotated[
    int | None,
    typer.Option(help="Number of training processes (one per GPU, or a split of the CPU cores). Default: 1.", min=1),
]
Restarts = Annotated[
    int,
    typer.Option(help="With --processes: number of times that training restarts after a process was killed.", min=0),
]


def run_in_processes(processes: int | None, max_restarts: int, work: Callable[[], None]) -> None:
    """Call `work` in this process, or start several ranks that run the command, in which rank 0 directs the others."""
    from penwright.training.distributed.launcher import is_launched, launch, leave_rank, treat_as_ctrl_c
    from penwright.workflows.resume import follow

    treat_as_ctrl_c()
    if is_launched():
        code: object = 0
        try:
            if not follow():
                work()
        except SystemExit as end:
            code = end.code
        except PenwrightError as error:
            print(f"penwright: {error}", file=sys.stderr)
            code = error.exit_code
        raise typer.Exit(leave_rank(code if isinstance(code, int) else 1))
    if processes is not None and processes > 1:
        raise typer.Exit(launch(processes, ["penwright", *sys.argv[1:]], max_restarts))
    work()


def run_before_restart(run: Path | None) -> Path | None:
    """Return the run to resume if torchrun restarted this process after it had begun a run, otherwise None."""
    from penwright.run.folder import Run
    from penwright.training.distributed.launcher import run_to_restart
    from penwright.workflows.load import CORPUS
    from penwright.workflows.make_trainer import goes_on

    folder = run_to_restart(run) or (run if run and goes_on(Run(run)) else None)
    return folder if folder and (folder / CORPUS).exists() else None
