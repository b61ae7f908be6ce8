"""The `penwright doctor` command: what this machine offers for training."""

import os
import platform
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from penwright import __version__
from penwright.cli.options import Json, print_json

NAME = "doctor"
EXTRAS = {"datasets": "hub", "tensorboard": "tensorboard", "babel": "demo", "num2words": "demo"}


def command(json: Json = False) -> None:
    """Show what training would run on here, and why."""
    import torch

    from penwright.config import TrainingSettings
    from penwright.training.auto.machine import choose_machine, measure_speed
    from penwright.training.compilation import choose_compilation

    machine = choose_machine(TrainingSettings(minutes=10))
    compiled, reason = choose_compilation(machine.device, "generate", 600.0)
    reasons = (
        *machine.reasons,
        f"a ten-minute training run of a writer would {'' if compiled else 'not '}be compiled: {reason}",
    )
    facts: dict[str, object] = {
        "penwright": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": str(machine.device),
        "precision": str(machine.precision).removeprefix("torch."),
        "compile": compiled,
        "matrix products": f"{measure_speed(machine.device, machine.precision) / 1e9:.0f} GFLOP/s",
        "C++ compiler": shutil.which(os.environ.get("CXX", "g++")) or "none: torch.compile needs one on the CPU",
        "free disk": f"{shutil.disk_usage(Path.cwd()).free / 1e9:.1f} GB",
        **{name: _installed(name, extra) for name, extra in EXTRAS.items()},
    }
    if json:
        print_json({**facts, "reasons": reasons})
        return
    for name, value in facts.items():
        print(f"{name:16} {value}")
    for reason in reasons:
        print(f"  {reason}")


def _installed(name: str, extra: str) -> str:
    """Return the version of a package, or how to install it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return f"not installed (pip install penwright[{extra}])"
